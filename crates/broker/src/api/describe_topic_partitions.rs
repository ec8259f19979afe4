//! DescribeTopicPartitions (key 75): topics in pages, in the order of their names.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::cluster::{MetadataImage, TopicImage};
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
        describe_topic_partitions::{
            Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
            TopicRequest,
        },
    },
};

use super::metadata::{TOPIC_OPERATIONS_ALL, ids, leader, offline};
use crate::{
    connection::Caller,
    error_code,
    node::{Node, is_internal, wire_name},
};

/// Bytes of a partition in an answer, at most, about.
const PARTITION_BYTES: u64 = 64;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &DescribeTopicPartitionsRequest) -> u64 {
    let asked = usize::try_from(request.response_partition_limit).unwrap_or(0);
    PARTITION_BYTES * asked.min(node.limits.describe_partitions_max) as u64
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    if let Some(refused) = refuse_cursor(&request) {
        return refused;
    }
    let image = node.image();
    let all = request.topics.is_empty();
    let names: BTreeSet<Str> = if all {
        image.topics().map(|topic| wire_name(&topic.name)).collect()
    } else {
        request.topics.into_iter().map(|topic| topic.name).collect()
    };
    let (from_name, from_partition) = match &request.cursor {
        Some(cursor) => (cursor.topic_name.clone(), cursor.partition_index.max(0)),
        None => (Str::default(), 0),
    };
    let asked = usize::try_from(request.response_partition_limit).unwrap_or(0).max(1);
    let mut room = asked.min(node.limits.describe_partitions_max);
    let mut response =
        DescribeTopicPartitionsResponse { next_cursor: None, ..DescribeTopicPartitionsResponse::default() };
    for name in names.into_iter().filter(|name| *name >= from_name) {
        let first = if name == from_name { from_partition } else { 0 };
        if room == 0 {
            response.next_cursor = Some(Cursor { topic_name: name, partition_index: first });
            break;
        }
        let topic = match TopicName::new(&name) {
            Err(error) => Err(error_code::topic_name(&error)),
            Ok(valid) => image.topic_by_name(&valid).ok_or(ErrorCode::UnknownTopicOrPartition),
        };
        let topic = match topic {
            Ok(topic) => topic,
            Err(code) => {
                response.topics.push(failed(name, code));
                continue;
            }
        };
        let (described, next) = describe(&image, topic, first, room);
        room -= described.partitions.len().min(room);
        response.topics.push(described);
        if let Some(partition_index) = next {
            response.next_cursor = Some(Cursor { topic_name: name, partition_index });
            break;
        }
    }
    response
}

/// A cursor stands at a topic that is asked for, where any are named, and at a partition.
fn refuse_cursor(request: &DescribeTopicPartitionsRequest) -> Option<DescribeTopicPartitionsResponse> {
    let cursor = request.cursor.as_ref()?;
    let is_named =
        request.topics.is_empty() || request.topics.iter().any(|topic| topic.name == cursor.topic_name);
    if is_named && cursor.partition_index >= 0 {
        return None;
    }
    let refuse = |topic: &TopicRequest| DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: Some(topic.name.clone()),
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    Some(DescribeTopicPartitionsResponse {
        topics: request.topics.iter().map(refuse).collect(),
        next_cursor: None,
        ..DescribeTopicPartitionsResponse::default()
    })
}

fn failed(name: Str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code: code.code(),
        name: Some(name),
        topic_authorized_operations: TOPIC_OPERATIONS_ALL,
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}

/// A topic's partitions from `first` on, `room` at most, and the next one where some are left.
fn describe(
    image: &MetadataImage,
    topic: &TopicImage,
    first: i32,
    room: usize,
) -> (DescribeTopicPartitionsResponseTopic, Option<i32>) {
    let from = topic.partitions.iter().zip(0..).skip_while(|(_, index)| *index < first);
    let partitions: Vec<_> = from
        .take(room)
        .map(|(partition, index)| {
            let (leader_id, error_code) = leader(partition);
            DescribeTopicPartitionsResponsePartition {
                error_code,
                partition_index: index,
                leader_id,
                leader_epoch: partition.leader_epoch.to_wire(),
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                offline_replicas: offline(image, partition),
            }
        })
        .collect();
    let next = partitions.last().map_or(first, |last| last.partition_index.saturating_add(1));
    let left = usize::try_from(next).is_ok_and(|next| next < topic.partitions.len());
    let described = DescribeTopicPartitionsResponseTopic {
        name: Some(wire_name(&topic.name)),
        topic_id: topic.id.into(),
        is_internal: is_internal(&topic.name),
        partitions,
        topic_authorized_operations: TOPIC_OPERATIONS_ALL,
        ..DescribeTopicPartitionsResponseTopic::default()
    };
    (described, left.then_some(next))
}
