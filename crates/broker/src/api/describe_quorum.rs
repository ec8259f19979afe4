//! DescribeQuorum (key 55): who agrees on the cluster's metadata, and how far.
//!
//! This node is the one voter. Its log is Kafka's `__cluster_metadata`, partition 0.

use std::sync::Arc;

use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        DescribeQuorumRequest, DescribeQuorumResponse,
        describe_quorum::{Node as QuorumNode, PartitionData, ReplicaState, RequestTopicData, TopicData},
    },
};

use super::{TOO_MANY_PARTITIONS, too_many};
use crate::{connection::Caller, node::Node};

const TOPIC: &str = "__cluster_metadata";

/// About how large the answer will be.
pub(crate) fn answer_bytes(_: &Node, request: &DescribeQuorumRequest) -> u64 {
    let partitions: usize = request.topics.iter().map(|topic| 1 + topic.partitions.len()).sum();
    96_u64.saturating_mul(partitions as u64)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    if too_many(request.topics.iter().map(|topic| topic.partitions.len())) {
        return DescribeQuorumResponse {
            error_code: ErrorCode::InvalidRequest.code(),
            error_message: Some(Str::from_static(TOO_MANY_PARTITIONS)),
            ..DescribeQuorumResponse::default()
        };
    }
    if !asks_for_the_quorum(&request.topics) {
        return unknown(&request.topics);
    }
    let partition = quorum(node);
    let nodes = if version >= 2 {
        vec![QuorumNode { node_id: node.id.0, listeners: Vec::new() }]
    } else {
        Vec::new()
    };
    DescribeQuorumResponse {
        topics: vec![TopicData { topic_name: Str::from_static(TOPIC), partitions: vec![partition] }],
        nodes,
        ..DescribeQuorumResponse::default()
    }
}

/// Whether it is Kafka's one question, that for the first partition of the metadata's topic alone.
fn asks_for_the_quorum(topics: &[RequestTopicData]) -> bool {
    match topics {
        [topic] => {
            topic.topic_name == TOPIC
                && matches!(topic.partitions.as_slice(), [partition] if partition.partition_index == 0)
        }
        _ => false,
    }
}

fn quorum(node: &Node) -> PartitionData {
    let quorum = node.metadata.quorum();
    let offset = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let now = node.clock.wall().to_wire();
    let voter = ReplicaState {
        replica_id: node.id.0,
        replica_directory_id: Uuid::ZERO,
        log_end_offset: offset(quorum.log_end),
        last_fetch_timestamp: now,
        last_caught_up_timestamp: now,
    };
    let (leader, code) =
        if quorum.leads { (node.id.0, ErrorCode::None) } else { (-1, ErrorCode::NotLeaderOrFollower) };
    PartitionData {
        partition_index: 0,
        error_code: code.code(),
        leader_id: leader,
        leader_epoch: i32::try_from(quorum.term).unwrap_or(i32::MAX),
        high_watermark: offset(quorum.high_watermark),
        current_voters: vec![voter],
        observers: Vec::new(),
        ..PartitionData::default()
    }
}

fn unknown(topics: &[RequestTopicData]) -> DescribeQuorumResponse {
    let message = Str::from_static("This server does not host this topic-partition.");
    let topics = topics.iter().map(|topic| TopicData {
        topic_name: topic.topic_name.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| PartitionData {
                partition_index: partition.partition_index,
                error_code: ErrorCode::UnknownTopicOrPartition.code(),
                error_message: Some(message.clone()),
                ..PartitionData::default()
            })
            .collect(),
    });
    DescribeQuorumResponse { topics: topics.collect(), ..DescribeQuorumResponse::default() }
}
