//! CreatePartitions (key 37): a topic grows; it never shrinks.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::cluster::{Command, MetadataImage};
use tidelog_types::{BrokerId, TopicName, limits};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        CreatePartitionsRequest, CreatePartitionsResponse,
        create_partitions::{CreatePartitionsTopic, CreatePartitionsTopicResult},
    },
};

use super::create_topics::check_replicas;
use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::{Node, is_internal},
};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let mut named: BTreeMap<&Str, usize> = BTreeMap::new();
    for topic in &request.topics {
        *named.entry(&topic.name).or_default() += 1;
    }
    let mut results = Vec::with_capacity(named.len());
    for topic in &request.topics {
        let result = match named.get_mut(&topic.name) {
            Some(1) => grow(node, topic, request.timeout_ms, request.validate_only).await,
            // Named more than once: nothing of it is done, and it is answered once.
            Some(times) if *times > 0 => {
                *times = 0;
                Err(ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name."))
            }
            _ => continue,
        };
        let (error_code, error_message) = match result {
            Ok(()) => (ErrorCode::None.code(), None),
            Err(error) => (error.code.code(), error.into_message()),
        };
        results.push(CreatePartitionsTopicResult { name: topic.name.clone(), error_code, error_message });
    }
    CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() }
}

async fn grow(
    node: &Node,
    topic: &CreatePartitionsTopic,
    timeout_ms: i32,
    validate_only: bool,
) -> Result<(), ApiError> {
    let image = node.image();
    // Kafka has no words for it here.
    let unknown = || ApiError::new(ErrorCode::UnknownTopicOrPartition, "");
    let name = TopicName::new(&topic.name).map_err(|_| unknown())?;
    let found = image.topic_by_name(&name).ok_or_else(unknown)?;
    let (topic_id, count) = (found.id, topic.count);
    let current = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidPartitions, text);
    if count == current {
        return Err(invalid(format!("Topic already has {current} partition(s).")));
    }
    if count < current {
        return Err(invalid(format!(
            "The topic {name} currently has {current} partition(s); {count} would not be an increase."
        )));
    }
    if is_internal(&name) {
        return Err(ApiError::new(
            ErrorCode::PolicyViolation,
            format!("{name} keeps its number of partitions: what is in it is found by that number."),
        ));
    }
    if count > limits::PARTITIONS_PER_TOPIC_MAX {
        return Err(ApiError::new(
            ErrorCode::PolicyViolation,
            format!("A topic has at most {} partitions.", limits::PARTITIONS_PER_TOPIC_MAX),
        ));
    }
    let assignments = assignments(&image, topic, count - current)?;
    if validate_only {
        return Ok(());
    }
    node.metadata
        .propose(Command::CreatePartitions { topic_id, partition_count: count, assignments })
        .await
        .map_err(|failure| error_code::propose(&failure))?;
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    let grown =
        |image: &MetadataImage| image.topic(topic_id).is_none_or(|topic| topic.partitions.len() >= wanted);
    if node.wait_visible(timeout_ms, grown).await {
        Ok(())
    } else {
        Err(ApiError::new(ErrorCode::RequestTimedOut, "The partitions are created and not hosted yet."))
    }
}

fn assignments(
    image: &MetadataImage,
    topic: &CreatePartitionsTopic,
    added: i32,
) -> Result<Vec<Vec<BrokerId>>, ApiError> {
    let Some(given) = topic.assignments.as_ref() else { return Ok(Vec::new()) };
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, text);
    if i32::try_from(given.len()).ok() != Some(added) {
        return Err(invalid(format!(
            "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
            given.len()
        )));
    }
    given.iter().map(|replicas| check_replicas(image, &replicas.broker_ids).map_err(invalid)).collect()
}
