//! DescribeConfigs (key 32): every key, set or not, with its source.

use std::{collections::BTreeSet, sync::Arc};

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
            BROKER if name.parse() == Ok(node.id.0) => Ok(Self::Broker),
            BROKER if name.parse::<i32>().is_err() => Err(ApiError::new(
                ErrorCode::InvalidRequest,
                format!("Broker id must be an integer, but it is: {}", shown(name)),
            )),
            BROKER => Err(ApiError::new(
                ErrorCode::InvalidRequest,
                format!(
                    "Unexpected broker id, expected {} or empty string, but received {}",
                    node.id,
                    name.as_str()
                ),
            )),
            _ => Err(ApiError::new(ErrorCode::InvalidRequest, format!("Unknown resource type {kind}"))),
        }
    }
}

/// What Kafka tells whoever asks for the settings of something that has none.
const NO_SETTINGS: &str = "This most likely occurs because of a request being malformed by the client library or the message \
                           was sent to an incompatible broker. See the broker logs for more details.";

/// Kafka's number of a source.
pub(crate) const fn source_code(source: Source) -> i8 {
    match source {
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
            Some(keys) => (keys.len() as u64).min(all),
            None => all,
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
    // Each once, however often it is named: an answer is hundreds of times as large as its name.
    let mut named = BTreeSet::new();
    let results = request
        .resources
        .iter()
        .filter(|resource| named.insert((resource.resource_type, resource.resource_name.clone())))
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
                    result.error_message = error.into_message();
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
    let named = |what: &str| {
        let message = format!("{what} name must not be empty");
        if name.is_empty() { Err(ApiError::new(ErrorCode::InvalidRequest, message)) } else { Ok(()) }
    };
    let mut entries = match resource.resource_type {
        TOPIC | BROKER => describe_kept(node, image, &settings, resource)?,
        GROUP => named("Group").map(|()| describe_group(&settings))?,
        CLIENT_METRICS => named("Client metrics subscription").map(|()| describe_client_metrics())?,
        _ => return Err(ApiError::new(ErrorCode::InvalidRequest, NO_SETTINGS)),
    };
    if let Some(keys) = &resource.configuration_keys {
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
            let topic = image.topic_by_name(&name).ok_or_else(|| {
                ApiError::new(
                    ErrorCode::UnknownTopicOrPartition,
                    "This server does not host this topic-partition.",
                )
            })?;
            describe_topic(settings, &topic.configs)
        }
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
