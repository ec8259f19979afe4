//! OffsetForLeaderEpoch (key 23): where an epoch ended, so that a client can tell whether its records are still the log's.

use std::sync::Arc;

use futures::future::join_all;
use tidelog_core::read_plan::check_leadership;
use tidelog_types::{LeaderEpoch, Offset, PartitionIndex, TopicName};
use tidelog_wire::{
    ErrorCode,
    messages::{
        OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
        offset_for_leader_epoch::{
            EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopic, OffsetForLeaderTopicResult,
        },
    },
};

use super::{PARTITIONS_AT_ONCE, TOPICS_AT_ONCE};
use crate::{connection::Caller, error_code, node::Node};

/// What a client asks for that knows no epoch.
const EPOCH_UNKNOWN: i32 = -1;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for some in request.topics.chunks(TOPICS_AT_ONCE) {
        topics.extend(join_all(some.iter().map(|topic| find_topic(node, topic))).await);
    }
    OffsetForLeaderEpochResponse { topics, ..OffsetForLeaderEpochResponse::default() }
}

async fn find_topic(node: &Node, topic: &OffsetForLeaderTopic) -> OffsetForLeaderTopicResult {
    let name = TopicName::new(&topic.topic).ok();
    let name = name.as_ref();
    let mut partitions = Vec::with_capacity(topic.partitions.len());
    for some in topic.partitions.chunks(PARTITIONS_AT_ONCE) {
        let found = some.iter().map(|partition| async move {
            let found = match name {
                None => Err(ErrorCode::UnknownTopicOrPartition),
                Some(name) => find(node, name, partition).await,
            };
            let mut response = EpochEndOffset { partition: partition.partition, ..EpochEndOffset::default() };
            match found {
                Ok(Some((epoch, end))) => {
                    response.leader_epoch = epoch;
                    response.end_offset = end.to_wire();
                }
                Ok(None) => {}
                Err(code) => response.error_code = code.code(),
            }
            response
        });
        partitions.extend(join_all(found).await);
    }
    OffsetForLeaderTopicResult { topic: topic.topic.clone(), partitions }
}

async fn find(
    node: &Node,
    topic: &TopicName,
    partition: &OffsetForLeaderPartition,
) -> Result<Option<(i32, Offset)>, ErrorCode> {
    let index = PartitionIndex(partition.partition);
    let handle = node.replicas.partition_by_name(topic, index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if partition.leader_epoch == EPOCH_UNKNOWN {
        return Ok(None);
    }
    let current = LeaderEpoch::from_wire(partition.current_leader_epoch);
    let Some(epoch) = LeaderEpoch::from_wire(partition.leader_epoch) else {
        // Older than any: where the first one that is known begins.
        let snapshot = handle.snapshot();
        check_leadership(&snapshot, current).map_err(error_code::leadership)?;
        return Ok(Some((partition.leader_epoch, snapshot.log_start)));
    };
    let found = handle.offset_for_leader_epoch(epoch, current, node.limits.list_offsets_timeout).await;
    let found = found.map_err(|error| error_code::look_up(&error))?;
    Ok(found.map(|(epoch, end)| (epoch.to_wire(), end)))
}
