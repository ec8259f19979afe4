//! AlterConfigs (key 33): replaces all overrides of a resource. What is not named goes back to its default.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::{
    cluster::{Command, ConfigChange, ConfigResource, MetadataImage},
    topic_config::{ConfigError, TopicConfig, check_broker_value},
};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        AlterConfigsRequest, AlterConfigsResponse,
        alter_configs::{AlterConfigsResource, AlterConfigsResourceResponse},
    },
};

use super::{create_topics::config_errors, describe_configs::Resource};
use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::Node,
};

/// How long a change is waited for until this broker acts on it.
const APPLY_WAIT_MS: i32 = 10_000;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for (position, resource) in request.resources.iter().enumerate() {
        let same = |other: &AlterConfigsResource| {
            (other.resource_type, &other.resource_name) == (resource.resource_type, &resource.resource_name)
        };
        let result = if request.resources[..position].iter().any(same) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Each resource must appear at most once."))
        } else {
            replace(node, resource, request.validate_only).await
        };
        let (error_code, error_message) = outcome(result);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    AlterConfigsResponse { responses, ..AlterConfigsResponse::default() }
}

pub(crate) fn outcome(result: Result<(), ApiError>) -> (i16, Option<Str>) {
    match result {
        Ok(()) => (ErrorCode::None.code(), None),
        Err(error) => (error.code.code(), error.into_message()),
    }
}

async fn replace(node: &Node, resource: &AlterConfigsResource, validate_only: bool) -> Result<(), ApiError> {
    let target = Target::find(node, resource.resource_type, &resource.resource_name)?;
    let mut overrides = BTreeMap::new();
    for config in &resource.configs {
        let Some(value) = &config.value else {
            let error = ConfigError::Null { key: config.name.to_string() };
            return Err(ApiError::new(ErrorCode::InvalidRequest, error.to_string()));
        };
        if overrides.insert(config.name.to_string(), value.to_string()).is_some() {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "Error due to duplicate config keys"));
        }
    }
    target.apply(node, overrides, validate_only).await
}

/// A resource that exists, with the overrides it has.
#[derive(Debug)]
pub(crate) struct Target {
    pub resource: Resource,
    place: ConfigResource,
    image: Arc<MetadataImage>,
}

impl Target {
    pub(crate) fn find(node: &Node, kind: i8, name: &Str) -> Result<Self, ApiError> {
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
                ConfigResource::Topic { topic_id: topic.id }
            }
            Resource::Broker => ConfigResource::Broker { broker: node.id },
            Resource::BrokerDefaults => ConfigResource::ClusterDefault {},
        };
        Ok(Self { resource, place, image })
    }

    /// The overrides that it has now.
    pub(crate) fn overrides(&self) -> BTreeMap<String, String> {
        self.image.configs(self.place).cloned().unwrap_or_default()
    }

    /// Makes `wanted` its overrides: checks all of them, and commits what differs in one change.
    pub(crate) async fn apply(
        &self,
        node: &Node,
        wanted: BTreeMap<String, String>,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        let current = self.overrides();
        self.check(node, &current, &wanted)?;
        let set = wanted.iter().filter(|(key, value)| current.get(*key) != Some(value));
        let changes: Vec<(String, ConfigChange)> = set
            .map(|(key, value)| (key.clone(), ConfigChange::Set { value: value.clone() }))
            .chain(
                current
                    .keys()
                    .filter(|key| !wanted.contains_key(*key))
                    .map(|key| (key.clone(), ConfigChange::Delete {})),
            )
            .collect();
        if validate_only || changes.is_empty() {
            return Ok(());
        }
        let resource = self.place;
        node.metadata
            .propose(Command::AlterConfigs { resource, changes })
            .await
            .map_err(|failure| error_code::propose(&failure))?;
        // An answer means that this broker acts on it.
        let index = node.metadata.image().index;
        let _ = node.wait_visible(APPLY_WAIT_MS, |image| image.index >= index).await;
        Ok(())
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
                TopicConfig::resolve_stored(&settings, current)
                    .check_change(&next)
                    .map_err(|error| config_errors(&[error]))
            }
            Resource::Broker | Resource::BrokerDefaults => {
                let changed = wanted.iter().filter(|(key, value)| current.get(*key) != Some(value));
                let errors: Vec<ConfigError> =
                    changed.filter_map(|(key, value)| check_broker_value(key, value, true).err()).collect();
                if errors.is_empty() { Ok(()) } else { Err(config_errors(&errors)) }
            }
        }
    }
}
