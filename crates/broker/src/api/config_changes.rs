//! What AlterConfigs and IncrementalAlterConfigs share: each names resources, and the overrides that they are to have.
//!
//! **Owns** the checks that are common to both, and the one change that a resource gets.
//!
//! **Does not own** what the overrides of a resource become: each request says that ([`ResourceChange`]).

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::{
    cluster::{Command, ConfigChange, ConfigResource, MetadataImage},
    topic_config::{
        ConfigError, Key, TopicConfig, broker_key, check_broker_value, check_group, group_key,
        is_client_metrics_key, is_idle, is_of_one_broker, take_without_effect, topic_key,
    },
};
use tidelog_wire::{ErrorCode, Str};

use super::{
    create_topics::{config_errors, warn_without_effect},
    describe_configs::{CLIENT_METRICS, Resource, TOPIC},
    shown,
};
use crate::{
    coordinator,
    error_code::{self, ApiError},
    node::Node,
};

/// How long a change is waited for until this broker acts on it.
const APPLY_WAIT_MS: i32 = 10_000;

const TIERING_STAYS: &str = "remote.storage.enable cannot be turned off for a topic that has it: this broker does not delete \
                             the remote data of a topic that lives. Set remote.log.copy.disable=true to stop uploads, or \
                             delete the topic.";

/// A change that a request asks for.
pub(crate) trait ResourceChange {
    /// Whether it names all that a resource is to have.
    const IS_WHOLE: bool;

    /// The type and the name of the resource.
    fn resource(&self) -> (i8, &Str);

    /// The names of the keys, in the request's order.
    fn keys(&self) -> impl Iterator<Item = &Str>;

    /// The overrides that the resource is to have.
    fn wanted(&self, target: &Target) -> Result<BTreeMap<String, String>, ApiError>;
}

/// What is answered for one resource.
#[derive(Debug)]
pub(crate) struct Altered {
    pub error_code: i16,
    pub error_message: Option<Str>,
    pub resource_type: i8,
    pub resource_name: Str,
}

/// Makes every change that can be made. Resources named more than once are refused, as Kafka does, each time they are named.
pub(crate) async fn alter<C: ResourceChange>(
    node: &Node,
    changes: &[C],
    validate_only: bool,
) -> Vec<Altered> {
    let mut named: BTreeMap<(i8, &str), usize> = BTreeMap::new();
    for change in changes {
        let (kind, name) = change.resource();
        *named.entry((kind, name.as_str())).or_default() += 1;
    }
    let mut altered = Vec::with_capacity(changes.len());
    for change in changes {
        let (kind, name) = change.resource();
        let result = if named.get(&(kind, name.as_str())).is_some_and(|times| *times > 1) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Each resource must appear at most once."))
        } else {
            alter_one(node, change, validate_only).await
        };
        let (error_code, error_message) = match result {
            Ok(()) => (ErrorCode::None.code(), None),
            Err(error) => (error.code.code(), error.into_message()),
        };
        altered.push(Altered { error_code, error_message, resource_type: kind, resource_name: name.clone() });
    }
    altered
}

async fn alter_one<C: ResourceChange>(node: &Node, change: &C, validate_only: bool) -> Result<(), ApiError> {
    let (kind, name) = change.resource();
    if kind == CLIENT_METRICS {
        return refuse(name, change.keys());
    }
    if kind == TOPIC && name.is_empty() {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "Default topic resources are not allowed."));
    }
    let target = Target::find(node, kind, name)?;
    let mut keys: Vec<&Str> = change.keys().collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "Error due to duplicate config keys"));
    }
    let wanted = change.wanted(&target)?;
    let acts = |key: &&Str| target.key_of()(key).is_some_and(|key| !key.read_only);
    let is_copy = C::IS_WHOLE || keys.iter().any(acts);
    target.apply(node, wanted, is_copy, validate_only).await
}

/// Subscriptions to client metrics have Kafka's settings, which nobody can set here.
fn refuse<'a>(name: &Str, mut keys: impl Iterator<Item = &'a Str>) -> Result<(), ApiError> {
    let invalid = |text: String| Err(ApiError::new(ErrorCode::InvalidRequest, text));
    if name.is_empty() {
        return invalid("Subscription name can't be empty".to_owned());
    }
    match keys.next().map(|key| shown(key)) {
        None => Ok(()),
        Some(key) if is_client_metrics_key(key) => {
            invalid(format!("{key} cannot be set: this broker collects no client metrics"))
        }
        Some(key) => invalid(format!("Unknown client metrics configuration: {key}")),
    }
}

/// The value of a key that must have one.
pub(crate) fn value_of(key: &Str, value: Option<&Str>) -> Result<String, ApiError> {
    value.map(ToString::to_string).ok_or_else(|| {
        let text = format!("Null value not supported for : {}", shown(key));
        ApiError::new(ErrorCode::InvalidRequest, text)
    })
}

/// Where the overrides of a resource are kept.
#[derive(Debug, Clone)]
enum Place {
    Config(ConfigResource),
    Group(String),
}

/// A resource that exists, with the overrides it has.
#[derive(Debug)]
pub(crate) struct Target {
    pub resource: Resource,
    place: Place,
    image: Arc<MetadataImage>,
}

impl Target {
    fn find(node: &Node, kind: i8, name: &Str) -> Result<Self, ApiError> {
        // The newest image, not the hosted one: a change is made on top of the last change.
        let image = node.metadata.image();
        let resource = Resource::from_wire(node, kind, name)?;
        let place = match &resource {
            Resource::Topic(name) => {
                let topic = image.topic_by_name(name).ok_or_else(|| {
                    ApiError::new(
                        ErrorCode::UnknownTopicOrPartition,
                        "This server does not host this topic-partition.",
                    )
                })?;
                Place::Config(ConfigResource::Topic { topic_id: topic.id })
            }
            Resource::Broker => Place::Config(ConfigResource::Broker { broker: node.id }),
            Resource::BrokerDefaults => Place::Config(ConfigResource::ClusterDefault {}),
            Resource::Group(name) => Place::Group(name.to_string()),
        };
        Ok(Self { resource, place, image })
    }

    /// The overrides that it has now. What another version kept, and nothing acts on here, is none.
    pub(crate) fn overrides(&self) -> BTreeMap<String, String> {
        let mut overrides = self.stored();
        match &self.resource {
            Resource::Topic(_) | Resource::Group(_) => {
                drop(take_without_effect(&mut overrides, self.key_of()))
            }
            Resource::Broker | Resource::BrokerDefaults => overrides.retain(|key, _| !is_idle(key)),
        }
        overrides
    }

    fn stored(&self) -> BTreeMap<String, String> {
        match &self.place {
            Place::Config(resource) => self.image.configs(*resource),
            Place::Group(group) => self.image.group_configs().get(group),
        }
        .cloned()
        .unwrap_or_default()
    }

    /// Makes `wanted` its overrides: checks all of them, and commits what differs in one change.
    async fn apply(
        &self,
        node: &Node,
        wanted: BTreeMap<String, String>,
        is_copy: bool,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        let wanted = match &self.place {
            Place::Config(_) => wanted,
            // None of a group's values has spaces around it, and Kafka tells none.
            Place::Group(_) => {
                wanted.into_iter().map(|(key, value)| (key, value.trim().to_owned())).collect()
            }
        };
        let current = self.overrides();
        let mut wanted = self.with_what_stays(&current, wanted);
        self.check(node, &current, &wanted)?;
        let without_effect = self.take_without_effect(&mut wanted, is_copy)?;
        let stored = self.stored();
        let set = wanted.iter().filter(|(key, value)| stored.get(*key) != Some(value));
        let changes: Vec<(String, ConfigChange)> = set
            .map(|(key, value)| (key.clone(), ConfigChange::Set { value: value.clone() }))
            .chain(
                stored
                    .keys()
                    .filter(|key| !wanted.contains_key(*key))
                    .map(|key| (key.clone(), ConfigChange::Delete {})),
            )
            .collect();
        if validate_only {
            return Ok(());
        }
        if changes.is_empty() {
            warn_without_effect(&self.resource, &without_effect);
            return Ok(());
        }
        let command = match self.place.clone() {
            Place::Config(resource) => Command::AlterConfigs { resource, changes },
            Place::Group(group) => Command::AlterGroupConfigs { group, changes },
        };
        node.metadata.propose(command).await.map_err(|failure| error_code::propose(&failure))?;
        // An answer means that this broker acts on it.
        let index = node.metadata.image().index;
        let _ = node.wait_visible(APPLY_WAIT_MS, |image| image.index >= index).await;
        coordinator::take_settings(node);
        warn_without_effect(&self.resource, &without_effect);
        Ok(())
    }

    /// The table of its keys.
    fn key_of(&self) -> fn(&str) -> Option<&'static Key> {
        match &self.resource {
            Resource::Topic(_) => topic_key,
            Resource::Group(_) => group_key,
            Resource::Broker | Resource::BrokerDefaults => broker_key,
        }
    }

    /// Takes out what is of a topic or a group and has no effect, and tells what that was. It is refused where nothing else is asked
    /// for: what is copied with the rest of a topic's settings need not stop the rest.
    fn take_without_effect(
        &self,
        wanted: &mut BTreeMap<String, String>,
        is_copy: bool,
    ) -> Result<Vec<ConfigError>, ApiError> {
        if matches!(self.resource, Resource::Broker | Resource::BrokerDefaults) {
            return Ok(Vec::new());
        }
        let taken = take_without_effect(wanted, self.key_of());
        if is_copy || taken.is_empty() { Ok(taken) } else { Err(config_errors(&taken)) }
    }

    /// What the node itself keeps among a broker's overrides no client takes away: a full replacement does not name it.
    fn with_what_stays(
        &self,
        current: &BTreeMap<String, String>,
        mut wanted: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        if matches!(self.resource, Resource::Broker | Resource::BrokerDefaults) {
            for (key, value) in
                current.iter().filter(|(key, value)| check_broker_value(key, value, true).is_err())
            {
                wanted.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        wanted
    }

    fn check(
        &self,
        node: &Node,
        current: &BTreeMap<String, String>,
        wanted: &BTreeMap<String, String>,
    ) -> Result<(), ApiError> {
        let settings = node.settings(&self.image);
        match &self.resource {
            Resource::Topic(_) => {
                let next =
                    TopicConfig::resolve(&settings, wanted).map_err(|errors| config_errors(&errors))?;
                let before = TopicConfig::resolve_stored(&settings, current);
                if before.remote_storage_enable && !next.remote_storage_enable {
                    // Nothing here deletes a living topic's objects, and a promise to do so would be an empty one.
                    return Err(ApiError::new(ErrorCode::InvalidConfig, TIERING_STAYS));
                }
                Ok(())
            }
            Resource::Group(_) => check_group(&settings, wanted).map_err(|errors| config_errors(&errors)),
            Resource::Broker | Resource::BrokerDefaults => {
                let changed = wanted.iter().filter(|(key, value)| current.get(*key) != Some(value));
                let wrong = |(key, value): (&String, &String)| match check_broker_value(key, value, true) {
                    Ok(()) if self.resource == Resource::BrokerDefaults && is_of_one_broker(key) => {
                        Some(ConfigError::OfOneBroker { key: key.clone() })
                    }
                    checked => checked.err(),
                };
                let errors: Vec<ConfigError> = changed.filter_map(wrong).collect();
                if errors.is_empty() { Ok(()) } else { Err(config_errors(&errors)) }
            }
        }
    }
}
