//! CreateTopics (key 19), and creation for those who ask by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use tidelog_core::{
    cluster::{Command, MetadataImage, NewTopic},
    topic_config::{ConfigError, TopicConfig, describe_topic, take_without_effect, topic_key},
};
use tidelog_types::{BrokerId, TopicId, TopicName, limits};
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        CreateTopicsRequest, CreateTopicsResponse,
        create_topics::{
            CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfigs, CreatableTopicResult,
        },
    },
};

use super::describe_configs::source_code;
use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::Node,
};

/// A topic that is to be created, checked as far as one broker can.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub name: TopicName,
    pub partition_count: i32,
    pub replication_factor: i32,
    /// Replicas by partition; empty where the controller places them.
    pub assignments: Vec<Vec<BrokerId>>,
    pub configs: BTreeMap<String, String>,
    /// What else was asked for, and nothing acts on.
    pub without_effect: Vec<ConfigError>,
}

impl Wanted {
    /// A topic as the broker's defaults make it.
    pub(crate) fn by_default(node: &Node, image: &MetadataImage, name: TopicName) -> Self {
        let (partition_count, replication_factor) = defaults(node, image);
        Self {
            name,
            partition_count,
            replication_factor,
            assignments: Vec::new(),
            configs: BTreeMap::new(),
            without_effect: Vec::new(),
        }
    }
}

fn defaults(node: &Node, image: &MetadataImage) -> (i32, i32) {
    let settings = node.settings(image);
    let number = |key| settings.number(key).and_then(|number| i32::try_from(number).ok()).unwrap_or(1);
    (number("num.partitions"), number("default.replication.factor"))
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    if partitions_asked(node, &request) > i64::from(limits::PARTITIONS_PER_TOPIC_MAX) {
        let refuse = |topic: &CreatableTopic| {
            let text = "Excessively large number of partitions per request.";
            failed(&topic.name, ApiError::new(ErrorCode::PolicyViolation, text))
        };
        let topics = request.topics.iter().map(refuse).collect();
        return CreateTopicsResponse { topics, ..CreateTopicsResponse::default() };
    }
    let mut names = BTreeSet::new();
    let repeated: BTreeSet<Str> = request
        .topics
        .iter()
        .filter(|topic| !names.insert(topic.name.clone()))
        .map(|topic| topic.name.clone())
        .collect();
    let mut results = Vec::with_capacity(names.len());
    let mut refused = BTreeSet::new();
    for topic in &request.topics {
        if repeated.contains(&topic.name) {
            // Answered once, as Kafka does.
            if refused.insert(&topic.name) {
                let error = ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
                results.push(failed(&topic.name, error));
            }
            continue;
        }
        let result = match check(node, topic) {
            Err(error) => Err(error),
            // Kafka draws an id for what it only looks at, too.
            Ok(wanted) if request.validate_only => Ok((wanted, TopicId::from_bytes(node.ids.uuid()))),
            Ok(wanted) => create(node, wanted.clone(), request.timeout_ms).await.map(|id| {
                warn_without_effect(&wanted.name, &wanted.without_effect);
                (wanted, id)
            }),
        };
        results.push(match result {
            Err(error) => failed(&topic.name, error),
            Ok((wanted, id)) => succeeded(node, &topic.name, &wanted, id),
        });
    }
    CreateTopicsResponse { topics: results, ..CreateTopicsResponse::default() }
}

/// How many partitions all topics of a request would have together.
fn partitions_asked(node: &Node, request: &CreateTopicsRequest) -> i64 {
    let (default_partitions, _) = defaults(node, &node.image());
    let of = |topic: &CreatableTopic| match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => i64::from(default_partitions),
        (0, count) => i64::from(count.max(0)),
        (assigned, _) => i64::try_from(assigned).unwrap_or(i64::MAX),
    };
    request.topics.iter().map(of).fold(0, i64::saturating_add)
}

fn failed(name: &Str, error: ApiError) -> CreatableTopicResult {
    CreatableTopicResult {
        name: name.clone(),
        error_code: error.code.code(),
        error_message: error.into_message(),
        ..CreatableTopicResult::default()
    }
}

fn succeeded(node: &Node, name: &Str, wanted: &Wanted, id: TopicId) -> CreatableTopicResult {
    let settings = node.settings(&node.image());
    let configs = describe_topic(&settings, &wanted.configs)
        .into_iter()
        .map(|entry| CreatableTopicConfigs {
            name: Str::from_static(entry.name),
            value: entry.value.map(Str::from),
            read_only: entry.read_only,
            config_source: source_code(entry.source),
            is_sensitive: entry.sensitive,
        })
        .collect();
    CreatableTopicResult {
        name: name.clone(),
        topic_id: Uuid::from(id),
        error_message: None,
        num_partitions: wanted.partition_count,
        replication_factor: i16::try_from(wanted.replication_factor).unwrap_or(-1),
        configs: Some(configs),
        ..CreatableTopicResult::default()
    }
}

/// Says that settings of a topic or a group that somebody gave were not kept.
pub(crate) fn warn_without_effect(resource: &dyn Debug, errors: &[ConfigError]) {
    for error in errors {
        tracing::warn!(?resource, %error, "a setting was not kept");
    }
}

/// Checks a topic against everything that is known here; the state machine checks again what may have moved meanwhile.
fn check(node: &Node, topic: &CreatableTopic) -> Result<Wanted, ApiError> {
    let image = node.image();
    let name = TopicName::new(&topic.name).map_err(|error| {
        ApiError::new(error_code::topic_name(&error), format!("Topic name is invalid: {error}"))
    })?;
    // What was deleted may be hosted for a while yet; its name is free all the same.
    if node.metadata.image().topic_by_name(&name).is_some() {
        return Err(ApiError::new(ErrorCode::TopicAlreadyExists, format!("Topic '{name}' already exists.")));
    }
    let mut configs = configs(topic)?;
    TopicConfig::resolve(&node.settings(&image), &configs).map_err(|errors| config_errors(&errors))?;
    // A topic is often made with all that another one has: what is without effect is not kept, and the answer shows its default.
    let without_effect = take_without_effect(&mut configs, topic_key);
    let (default_partitions, default_replication) = defaults(node, &image);
    let mut wanted = Wanted {
        name,
        partition_count: default_partitions,
        replication_factor: default_replication,
        assignments: Vec::new(),
        configs,
        without_effect,
    };
    if topic.assignments.is_empty() {
        match topic.num_partitions {
            -1 => {}
            count if count <= 0 => {
                return Err(ApiError::new(
                    ErrorCode::InvalidPartitions,
                    "Number of partitions was set to an invalid non-positive value.",
                ));
            }
            count => wanted.partition_count = count,
        }
        match topic.replication_factor {
            -1 => {}
            factor if factor <= 0 => {
                return Err(ApiError::new(
                    ErrorCode::InvalidReplicationFactor,
                    "Replication factor must be larger than 0, or -1 to use the default value.",
                ));
            }
            factor => wanted.replication_factor = i32::from(factor),
        }
    } else {
        assign(&image, topic, &mut wanted)?;
    }
    check_size(&image, &wanted)?;
    Ok(wanted)
}

fn check_size(image: &MetadataImage, wanted: &Wanted) -> Result<(), ApiError> {
    let live = image.brokers().filter(|broker| !broker.fenced).count();
    let factor = wanted.replication_factor;
    if usize::try_from(factor).unwrap_or(0) > live {
        return Err(ApiError::new(
            ErrorCode::InvalidReplicationFactor,
            format!(
                "Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be \
                 reached because only {live} broker(s) are registered."
            ),
        ));
    }
    if wanted.partition_count > limits::PARTITIONS_PER_TOPIC_MAX {
        return Err(ApiError::new(
            ErrorCode::PolicyViolation,
            format!(
                "A topic has at most {} partitions, {} were asked for.",
                limits::PARTITIONS_PER_TOPIC_MAX,
                wanted.partition_count
            ),
        ));
    }
    Ok(())
}

fn configs(topic: &CreatableTopic) -> Result<BTreeMap<String, String>, ApiError> {
    let mut configs = BTreeMap::new();
    for config in &topic.configs {
        let Some(value) = &config.value else {
            let error = ConfigError::Null { key: config.name.to_string() };
            return Err(ApiError::new(error_code::config(&error), error.to_string()));
        };
        configs.insert(config.name.to_string(), value.to_string());
    }
    Ok(configs)
}

pub(crate) fn config_errors(errors: &[ConfigError]) -> ApiError {
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    ApiError::new(errors.first().map_or(ErrorCode::InvalidConfig, error_code::config), text)
}

fn assign(image: &MetadataImage, topic: &CreatableTopic, wanted: &mut Wanted) -> Result<(), ApiError> {
    if topic.num_partitions != -1 || topic.replication_factor != -1 {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "A manual partition assignment was specified, but numPartitions and replicationFactor were not set to -1.",
        ));
    }
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, text);
    let mut assignments: Vec<&CreatableReplicaAssignment> = topic.assignments.iter().collect();
    assignments.sort_by_key(|assignment| assignment.partition_index);
    let consecutive =
        assignments.iter().zip(0..).all(|(assignment, index)| assignment.partition_index == index);
    if !consecutive {
        return Err(invalid("partitions should be a consecutive 0-based integer sequence".to_owned()));
    }
    for assignment in &assignments {
        wanted.assignments.push(check_replicas(image, &assignment.broker_ids).map_err(invalid)?);
    }
    let factor = wanted.assignments.first().map_or(0, Vec::len);
    if wanted.assignments.iter().any(|replicas| replicas.len() != factor) {
        return Err(invalid("all partitions must have the same number of replicas".to_owned()));
    }
    wanted.partition_count = i32::try_from(assignments.len()).unwrap_or(i32::MAX);
    wanted.replication_factor = i32::try_from(factor).unwrap_or(i32::MAX);
    Ok(())
}

/// Checks one partition's replicas.
pub(crate) fn check_replicas(image: &MetadataImage, brokers: &[i32]) -> Result<Vec<BrokerId>, String> {
    if brokers.is_empty() {
        return Err("The manual partition assignment includes an empty replica list.".to_owned());
    }
    let mut replicas = Vec::with_capacity(brokers.len());
    for id in brokers.iter().copied().map(BrokerId) {
        if replicas.contains(&id) {
            return Err(format!("The manual partition assignment includes the broker {id} more than once."));
        }
        if image.broker(id).is_none() {
            return Err(format!(
                "The manual partition assignment includes broker {id}, but no such broker is registered."
            ));
        }
        replicas.push(id);
    }
    Ok(replicas)
}

/// Creates a topic and waits until it can be used here.
pub(crate) async fn create(node: &Arc<Node>, wanted: Wanted, timeout_ms: i32) -> Result<TopicId, ApiError> {
    let topic_id = TopicId::from_bytes(node.ids.uuid());
    let topic = NewTopic {
        topic_id,
        name: wanted.name,
        partition_count: wanted.partition_count,
        replication_factor: wanted.replication_factor,
        assignments: wanted.assignments,
        configs: wanted.configs,
    };
    node.metadata
        .propose(Command::CreateTopic { topic })
        .await
        .map_err(|failure| error_code::propose(&failure))?;
    if node.wait_visible(timeout_ms, |image| image.topic(topic_id).is_some()).await {
        Ok(topic_id)
    } else {
        Err(ApiError::new(ErrorCode::RequestTimedOut, "The topic is created and not hosted yet."))
    }
}

#[cfg(test)]
mod tests {
    use tidelog_core::topic_config::Source;

    use super::*;

    #[test]
    fn sources_have_kafkas_numbers() {
        let sources = [
            Source::DynamicGroup,
            Source::DynamicTopic,
            Source::DynamicBroker,
            Source::DynamicDefaultBroker,
            Source::StaticBroker,
            Source::Default,
        ];
        assert_eq!(sources.map(source_code), [8, 1, 2, 3, 4, 5]);
    }
}
