//! ListOffsets (key 2): offsets by time, and the special ones.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tidelog_core::read_plan::{Isolation, ListOffsetsTarget};
use tidelog_types::{LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicName};
use tidelog_wire::{
    ErrorCode,
    messages::{
        ListOffsetsRequest, ListOffsetsResponse,
        list_offsets::{
            ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic, ListOffsetsTopicResponse,
        },
    },
};

use super::{PARTITIONS_AT_ONCE, TOPICS_AT_ONCE};
use crate::{connection::Caller, error_code, node::Node};

/// The lowest versions of the special timestamps, by the timestamp.
const fn version_min(timestamp: i64) -> i16 {
    match timestamp {
        -3 => 7,
        -4 => 8,
        -5 => 9,
        -6 => 11,
        _ => 0,
    }
}

/// Offset, timestamp and leader epoch.
type Found = (Option<Offset>, Option<Timestamp>, Option<LeaderEpoch>);

/// The first version that says how long it may take.
const TIMEOUT_VERSION_MIN: i16 = 10;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let isolation =
        if request.isolation_level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted };
    let given = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let deadline = match given {
        given if version >= TIMEOUT_VERSION_MIN && !given.is_zero() => {
            given.min(node.limits.list_offsets_timeout)
        }
        _ => node.limits.list_offsets_timeout,
    };
    // Many at once: a look-up in the bucket does not hold up the others. Not all: a look-up takes far more memory than its
    // few bytes of the request.
    let mut topics = Vec::with_capacity(request.topics.len());
    for some in request.topics.chunks(TOPICS_AT_ONCE) {
        topics.extend(
            join_all(some.iter().map(|topic| list_topic(node, version, topic, isolation, deadline))).await,
        );
    }
    ListOffsetsResponse { topics, ..ListOffsetsResponse::default() }
}

async fn list_topic(
    node: &Node,
    version: i16,
    topic: &ListOffsetsTopic,
    isolation: Isolation,
    deadline: Duration,
) -> ListOffsetsTopicResponse {
    let name = TopicName::new(&topic.name).ok();
    let name = name.as_ref();
    let mut partitions = Vec::with_capacity(topic.partitions.len());
    for some in topic.partitions.chunks(PARTITIONS_AT_ONCE) {
        let listed = some.iter().map(|partition| async move {
            let found = match name {
                None => Err(ErrorCode::UnknownTopicOrPartition),
                Some(name) => list(node, version, name, partition, isolation, deadline).await,
            };
            response(version, partition.partition_index, found)
        });
        partitions.extend(join_all(listed).await);
    }
    ListOffsetsTopicResponse { name: topic.name.clone(), partitions }
}

fn response(
    version: i16,
    partition_index: i32,
    found: Result<Found, ErrorCode>,
) -> ListOffsetsPartitionResponse {
    let mut response =
        ListOffsetsPartitionResponse { partition_index, ..ListOffsetsPartitionResponse::default() };
    match found {
        Ok((offset, timestamp, epoch)) => {
            response.offset = offset.map_or(-1, Offset::to_wire);
            response.timestamp = timestamp.map_or(-1, Timestamp::to_wire);
            // Below version 4 there is no such field.
            response.leader_epoch = if version >= 4 { epoch.map_or(-1, LeaderEpoch::to_wire) } else { -1 };
        }
        Err(code) => response.error_code = code.code(),
    }
    response
}
async fn list(
    node: &Node,
    version: i16,
    topic: &TopicName,
    partition: &ListOffsetsPartition,
    isolation: Isolation,
    deadline: Duration,
) -> Result<Found, ErrorCode> {
    let index = PartitionIndex(partition.partition_index);
    let handle = node.replicas.partition_by_name(topic, index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if version < version_min(partition.timestamp) {
        return Err(ErrorCode::UnsupportedVersion);
    }
    let target = ListOffsetsTarget::from_wire(partition.timestamp).ok_or(ErrorCode::UnsupportedVersion)?;
    let epoch = LeaderEpoch::from_wire(partition.current_leader_epoch);
    let listing = handle.list_offsets(target, isolation, epoch, deadline);
    match tokio::time::timeout(deadline, listing).await {
        Ok(Ok(found)) => Ok((found.offset, found.timestamp, found.leader_epoch)),
        Ok(Err(error)) => Err(error_code::look_up(&error)),
        Err(_) => Err(ErrorCode::RequestTimedOut),
    }
}
