//! AlterPartitionReassignments (key 45): moves replicas between brokers.
//!
//! What Kafka answers where there is nothing to move: the replicas that a partition has are accepted, and a move that is not
//! going on cannot be cancelled. To other brokers no replica is moved here; that is refused.

use std::sync::Arc;

use tidelog_core::cluster::{MetadataImage, PartitionImage};
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
        alter_partition_reassignments::{
            ReassignablePartition, ReassignablePartitionResponse, ReassignableTopic,
            ReassignableTopicResponse,
        },
    },
};

use super::{TOO_MANY_PARTITIONS, create_topics::check_replicas, shown, too_many};
use crate::{connection::Caller, error_code::ApiError, node::Node};

/// Bytes of one partition in an answer, about.
const PARTITION_BYTES: u64 = 128;

const NOT_MOVED: &str = "This broker does not move replicas to other brokers.";

/// About how large the answer will be.
pub(crate) fn answer_bytes(_: &Node, request: &AlterPartitionReassignmentsRequest) -> u64 {
    let partitions: usize = request.topics.iter().map(|topic| 1 + topic.partitions.len()).sum();
    PARTITION_BYTES.saturating_mul(partitions as u64)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let may_resize = request.allow_replication_factor_change;
    let mut response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: may_resize,
        error_message: None,
        ..AlterPartitionReassignmentsResponse::default()
    };
    if request.topics.is_empty() {
        // An empty text, not none: so does Kafka.
        response.error_message = Some(Str::default());
    } else if too_many(request.topics.iter().map(|topic| topic.partitions.len())) {
        response.error_code = ErrorCode::InvalidRequest.code();
        response.error_message = Some(Str::from_static(TOO_MANY_PARTITIONS));
    } else {
        let image = node.image();
        response.responses = request.topics.iter().map(|topic| reassign(&image, topic, may_resize)).collect();
    }
    response
}

fn reassign(image: &MetadataImage, topic: &ReassignableTopic, may_resize: bool) -> ReassignableTopicResponse {
    let found = TopicName::new(&topic.name).ok().and_then(|name| image.topic_by_name(&name));
    let unknown = Str::from(format!("Unable to find a topic named {}.", shown(&topic.name)));
    let reassigned = |wanted: &ReassignablePartition| {
        let index = wanted.partition_index;
        let (code, message) = match found {
            None => (ErrorCode::UnknownTopicOrPartition, Some(unknown.clone())),
            Some(found) => {
                let partition = usize::try_from(index).ok().and_then(|index| found.partitions.get(index));
                let result = partition
                    .ok_or_else(|| {
                        let message = format!("Unable to find partition {}:{index}.", found.name);
                        ApiError::new(ErrorCode::UnknownTopicOrPartition, message)
                    })
                    .and_then(|partition| check(image, partition, wanted.replicas.as_deref(), may_resize));
                match result {
                    Ok(()) => (ErrorCode::None, None),
                    Err(error) => (error.code, error.into_message()),
                }
            }
        };
        ReassignablePartitionResponse {
            partition_index: index,
            error_code: code.code(),
            error_message: message,
        }
    };
    ReassignableTopicResponse {
        name: topic.name.clone(),
        partitions: topic.partitions.iter().map(reassigned).collect(),
    }
}

/// Whether the partition has the wanted replicas already.
fn check(
    image: &MetadataImage,
    partition: &PartitionImage,
    wanted: Option<&[i32]>,
    may_resize: bool,
) -> Result<(), ApiError> {
    let Some(wanted) = wanted else {
        return Err(ApiError::new(ErrorCode::NoReassignmentInProgress, ""));
    };
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, text);
    // More than there are brokers names one twice, or one that is not registered: all need not be looked at.
    let some = &wanted[..wanted.len().min(image.brokers().count() + 1)];
    let replicas = check_replicas(image, some).map_err(invalid)?;
    let (before, after) = (partition.replicas.len(), replicas.len());
    if !may_resize && before != after {
        let text = format!("The replication factor is changed from {before} to {after}");
        return Err(ApiError::new(ErrorCode::InvalidReplicationFactor, text));
    }
    if replicas == partition.replicas { Ok(()) } else { Err(invalid(NOT_MOVED.to_owned())) }
}
