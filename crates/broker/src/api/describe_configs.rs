//! DescribeConfigs (key 32): every key, set or not, with its source.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_core::{
    cluster::MetadataImage,
    topic_config::{
        BrokerSettings, ConfigType, Description, Source, describe_broker, describe_broker_defaults,
        describe_client_metrics, describe_group, describe_topic,
    },
};
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DescribeConfigsRequest, DescribeConfigsResponse,
        describe_configs::{
            DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
            DescribeConfigsSynonym,
        },
    },
};

use super::shown;
use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::Node,
};

/// What a configuration belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A topic, by name.
    Topic(TopicName),
    /// This broker.
    Broker,
    /// All brokers.
    BrokerDefaults,
    /// A group, by its id; there need not be one.
    Group(Str),
}

/// Kafka's numbers of resource types.
pub(crate) const TOPIC: i8 = 2;
pub(crate) const BROKER: i8 = 4;
pub(crate) const BROKER_LOGGER: i8 = 8;
pub(crate) const CLIENT_METRICS: i8 = 16;
pub(crate) const GROUP: i8 = 32;

impl Resource {
    /// Reads the wire form.
    pub(crate) fn from_wire(node: &Node, kind: i8, name: &Str) -> Result<Self, ApiError> {
        match kind {
            TOPIC => {
                TopicName::new(name).map(Self::Topic).map_err(|error| error_code::invalid_topic(name, &error))
            }
            BROKER if name.is_empty() => Ok(Self::BrokerDefaults),
            BROKER => this_broker(node, name).map(|()| Self::Broker),
            GROUP if name.is_empty() => {
                Err(ApiError::new(ErrorCode::InvalidRequest, "Default group resources are not allowed."))
            }
            GROUP => Ok(Self::Group(name.clone())),
            _ => Err(ApiError::new(ErrorCode::InvalidRequest, format!("Unknown resource type {kind}"))),
        }
    }
}

/// Checks that a name is this broker's number.
pub(crate) fn this_broker(node: &Node, name: &Str) -> Result<(), ApiError> {
    let text = match name.parse::<i32>() {
        Ok(id) if id == node.id.0 => return Ok(()),
        Ok(id) => format!("Unexpected broker id, expected {} or empty string, but received {id}", node.id),
        Err(_) => format!("Broker id must be an integer, but it is: {}", shown(name)),
    };
    Err(ApiError::new(ErrorCode::InvalidRequest, text))
}

/// Resources of a request that are answered as often as they are named.
const REPEATED_RESOURCES_MAX: usize = 64;

/// What Kafka tells whoever asks for the settings of something that has none.
const NO_SETTINGS: &str = "This most likely occurs because of a request being malformed by the client library or the message \
                           was sent to an incompatible broker. See the broker logs for more details.";

/// Kafka's number of a source.
pub(crate) const fn source_code(source: Source) -> i8 {
    match source {
        Source::DynamicGroup => 8,
        Source::DynamicTopic => 1,
        Source::DynamicBroker => 2,
        Source::DynamicDefaultBroker => 3,
        Source::StaticBroker => 4,
        Source::Default => 5,
    }
}

const fn type_code(kind: ConfigType) -> i8 {
    match kind {
        ConfigType::Boolean => 1,
        ConfigType::String => 2,
        ConfigType::Int => 3,
        ConfigType::Short => 4,
        ConfigType::Long => 5,
        ConfigType::Double => 6,
        ConfigType::List => 7,
        ConfigType::Class => 8,
        ConfigType::Password => 9,
    }
}

/// Bytes of a key in an answer, about; of its documentation; and keys of a resource whose keys are not named.
const KEY_BYTES: u64 = 96;
const DOCUMENTATION_BYTES: u64 = 256;
const KEYS: u64 = 64;
const BROKER_KEYS: u64 = 384;

/// About how large the answer will be.
pub(crate) fn answer_bytes(_: &Node, request: &DescribeConfigsRequest) -> u64 {
    let times = if request.include_synonyms { 2 } else { 1 };
    let documentation = if request.include_documentation { DOCUMENTATION_BYTES } else { 0 };
    let keys = |resource: &DescribeConfigsResource| {
        let all = if resource.resource_type == BROKER { BROKER_KEYS } else { KEYS };
        match &resource.configuration_keys {
            Some(keys) if !keys.is_empty() => (keys.len() as u64).min(all),
            Some(_) | None => all,
        }
    };
    request.resources.iter().map(keys).sum::<u64>().saturating_mul(times * KEY_BYTES + documentation)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let image = node.image();
    // An answer is hundreds of times as large as its name: where many are named, each is answered once.
    let is_short = request.resources.len() <= REPEATED_RESOURCES_MAX;
    let mut named = BTreeSet::new();
    let results = request
        .resources
        .iter()
        .filter(|resource| named.insert((resource.resource_type, resource.resource_name.clone())) || is_short)
        .map(|resource| {
            let mut result = DescribeConfigsResult {
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                error_message: None,
                ..DescribeConfigsResult::default()
            };
            match describe(node, &image, resource) {
                Ok(entries) => {
                    // An empty text, not none: so does Kafka.
                    result.error_message = Some(Str::default());
                    let to_wire =
                        |entry| wire(entry, request.include_synonyms, request.include_documentation);
                    result.configs = entries.into_iter().map(to_wire).collect();
                }
                Err(error) => {
                    result.error_code = error.code.code();
                    // Kafka has no words for a topic that is not there.
                    result.error_message = Some(error.into_message().unwrap_or_default());
                }
            }
            result
        })
        .collect();
    DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() }
}

fn describe(
    node: &Node,
    image: &MetadataImage,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Description>, ApiError> {
    let settings = node.settings(image);
    let name = &resource.resource_name;
    let refused = |message: String| Err(ApiError::new(ErrorCode::InvalidRequest, message));
    let mut entries = match resource.resource_type {
        TOPIC | BROKER => describe_kept(node, image, &settings, resource)?,
        GROUP if name.is_empty() => return refused("Group name must not be empty".to_owned()),
        GROUP => {
            let none = BTreeMap::new();
            describe_group(&settings, image.group_configs().get(name.as_str()).unwrap_or(&none))
        }
        CLIENT_METRICS if name.is_empty() => {
            return refused("Client metrics subscription name must not be empty".to_owned());
        }
        CLIENT_METRICS => describe_client_metrics(),
        BROKER_LOGGER if name.is_empty() => return refused("Broker id must not be empty".to_owned()),
        // Nothing here logs by a level that can be changed.
        BROKER_LOGGER => this_broker(node, name).map(|()| Vec::new())?,
        _ => return Err(ApiError::new(ErrorCode::InvalidRequest, NO_SETTINGS)),
    };
    // None at all are all, as in Kafka.
    if let Some(keys) = resource.configuration_keys.as_ref().filter(|keys| !keys.is_empty()) {
        let keys: BTreeSet<&str> = keys.iter().map(Str::as_str).collect();
        entries.retain(|entry| keys.contains(entry.name));
    }
    Ok(entries)
}

/// The settings of what may have some of its own.
fn describe_kept(
    node: &Node,
    image: &MetadataImage,
    settings: &BrokerSettings,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Description>, ApiError> {
    let described = match Resource::from_wire(node, resource.resource_type, &resource.resource_name)? {
        Resource::Topic(name) => {
            let topic = image
                .topic_by_name(&name)
                .ok_or_else(|| ApiError::new(ErrorCode::UnknownTopicOrPartition, ""))?;
            describe_topic(settings, &topic.configs)
        }
        Resource::Group(_) => return Err(ApiError::new(ErrorCode::InvalidRequest, NO_SETTINGS)),
        Resource::Broker => describe_broker(settings),
        Resource::BrokerDefaults => describe_broker_defaults(&settings.dynamic_defaults),
    };
    Ok(described)
}

fn wire(entry: Description, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult {
    let behind = entry.synonyms.into_iter().map(|synonym| DescribeConfigsSynonym {
        name: Str::from_static(synonym.name),
        value: Some(Str::from(synonym.value)),
        source: source_code(synonym.source),
    });
    DescribeConfigsResourceResult {
        name: Str::from_static(entry.name),
        value: entry.value.map(Str::from),
        read_only: entry.read_only,
        config_source: source_code(entry.source),
        is_sensitive: entry.sensitive,
        synonyms: if synonyms { behind.collect() } else { Vec::new() },
        config_type: type_code(entry.kind),
        documentation: documentation.then(|| Str::from_static(entry.documentation)),
    }
}
