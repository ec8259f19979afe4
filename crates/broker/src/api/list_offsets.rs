//! ListOffsets (key 2): offsets by time, and the special ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

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

/// What a client says that does not know the leader's epoch. Below it there is only the past.
const EPOCH_UNKNOWN: i32 = -1;

/// The first version that says how long it may take.
const TIMEOUT_VERSION_MIN: i16 = 10;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let isolation = match request.isolation_level {
        0 => Some(Isolation::ReadUncommitted),
        1 => Some(Isolation::ReadCommitted),
        _ => None,
    };
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
    // Kafka answers for partitions, and for a topic only where it has some.
    let asked: Vec<_> = request.topics.iter().filter(|topic| !topic.partitions.is_empty()).collect();
    for some in asked.chunks(TOPICS_AT_ONCE) {
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
    isolation: Option<Isolation>,
    deadline: Duration,
) -> ListOffsetsTopicResponse {
    let name = TopicName::new(&topic.name).ok();
    let name = name.as_ref();
    // Which of two questions about a partition is meant, Kafka does not guess; it answers them as one.
    let mut times: BTreeMap<i32, usize> = BTreeMap::new();
    topic.partitions.iter().for_each(|asked| *times.entry(asked.partition_index).or_default() += 1);
    let mut seen = BTreeSet::new();
    let asked: Vec<_> =
        topic.partitions.iter().filter(|partition| seen.insert(partition.partition_index)).collect();
    let mut partitions = Vec::with_capacity(asked.len());
    for some in asked.chunks(PARTITIONS_AT_ONCE) {
        let times = &times;
        let listed = some.iter().map(|partition| async move {
            let twice = times.get(&partition.partition_index).is_some_and(|times| *times > 1);
            let found = match (name, isolation) {
                (_, None) => Err(ErrorCode::UnknownServerError),
                (None, _) => Err(ErrorCode::UnknownTopicOrPartition),
                _ if twice => Err(ErrorCode::InvalidRequest),
                (Some(name), Some(isolation)) => {
                    list(node, version, name, partition, isolation, deadline).await
                }
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
    if partition.current_leader_epoch < EPOCH_UNKNOWN {
        return Err(ErrorCode::FencedLeaderEpoch);
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
