//! CreatePartitions (key 37): a topic grows; it never shrinks.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::cluster::{Command, MetadataImage};
use tidelog_types::{BrokerId, TopicName, limits};
use tidelog_wire::{
    ErrorCode,
    messages::{
        CreatePartitionsRequest, CreatePartitionsResponse,
        create_partitions::{CreatePartitionsTopic, CreatePartitionsTopicResult},
    },
};

use super::create_topics::check_replicas;
use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::Node,
};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let mut seen = BTreeSet::new();
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let result = if seen.insert(topic.name.clone()) {
            grow(node, topic, request.timeout_ms, request.validate_only).await
        } else {
            Err(ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name."))
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
    let unknown = || {
        ApiError::new(ErrorCode::UnknownTopicOrPartition, "This server does not host this topic-partition.")
    };
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
    if count > limits::PARTITIONS_PER_TOPIC_MAX {
        return Err(invalid(format!("A topic has at most {} partitions.", limits::PARTITIONS_PER_TOPIC_MAX)));
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
    let Some(given) = topic.assignments.as_ref().filter(|given| !given.is_empty()) else {
        return Ok(Vec::new());
    };
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, text);
    if i32::try_from(given.len()).ok() != Some(added) {
        return Err(invalid(format!(
            "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
            given.len()
        )));
    }
    given.iter().map(|replicas| check_replicas(image, &replicas.broker_ids).map_err(invalid)).collect()
}
