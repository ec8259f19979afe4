//! DescribeProducers (key 61): the idempotent and transactional producers that a partition knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_core::producers::ProducerEntry;
use tidelog_replica::PartitionHandle;
use tidelog_types::{Offset, PartitionIndex, ProducerId, Timestamp, TopicName};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        DescribeProducersRequest, DescribeProducersResponse,
        describe_producers::{PartitionResponse, ProducerState, TopicRequest, TopicResponse},
    },
};

use crate::{
    connection::Caller,
    error_code::{self, ApiError},
    node::Node,
};

/// Bytes of a producer, and of a partition, in an answer.
const PRODUCER_BYTES: u64 = 35;
const PARTITION_BYTES: u64 = 64;

/// The partitions that are asked for, each once: an answer is far larger than the number that asks for it.
fn asked(topics: &[TopicRequest]) -> BTreeMap<&Str, BTreeSet<i32>> {
    let mut asked: BTreeMap<&Str, BTreeSet<i32>> = BTreeMap::new();
    for topic in topics {
        asked.entry(&topic.name).or_default().extend(&topic.partition_indexes);
    }
    asked
}

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &DescribeProducersRequest) -> u64 {
    let mut bytes = 0_u64;
    for (name, partitions) in asked(&request.topics) {
        bytes = bytes.saturating_add(PARTITION_BYTES.saturating_mul(partitions.len() as u64));
        let Ok(name) = TopicName::new(name) else { continue };
        for index in partitions {
            if let Some(handle) = node.replicas.partition_by_name(&name, PartitionIndex(index)) {
                bytes = bytes.saturating_add(PRODUCER_BYTES.saturating_mul(handle.producer_count() as u64));
            }
        }
    }
    bytes
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut left = asked(&request.topics);
    let topics = request.topics.iter().map(|topic| {
        let mut once = left.remove(&topic.name).unwrap_or_default();
        let partitions = describe_topic(
            node,
            &topic.name,
            topic.partition_indexes.iter().filter(|index| once.remove(*index)),
        );
        // What a later entry of the same topic asks for as well.
        left.insert(&topic.name, once);
        TopicResponse { name: topic.name.clone(), partitions }
    });
    DescribeProducersResponse { topics: topics.collect(), ..DescribeProducersResponse::default() }
}

fn describe_topic<'a>(
    node: &Node,
    topic: &Str,
    partitions: impl Iterator<Item = &'a i32>,
) -> Vec<PartitionResponse> {
    let image = node.image();
    let name = match TopicName::new(topic) {
        Ok(name) if image.topic_by_name(&name).is_some() => Ok(name),
        Ok(_) => Err(ApiError::new(
            ErrorCode::UnknownTopicOrPartition,
            "This server does not host this topic-partition.",
        )),
        Err(error) => Err(error_code::invalid_topic(topic, &error)),
    };
    let refused = name.as_ref().err().map(|error| (error.code, error.clone().into_message()));
    let described = |index: &i32| {
        let mut response = PartitionResponse {
            partition_index: *index,
            error_message: None,
            ..PartitionResponse::default()
        };
        let handle =
            name.as_ref().ok().map(|name| node.replicas.partition_by_name(name, PartitionIndex(*index)));
        match (handle, &refused) {
            (Some(Some(handle)), _) => match producers(&handle) {
                Ok(producers) => response.active_producers = producers,
                Err(code) => response.error_code = code.code(),
            },
            (Some(None), _) | (None, None) => response.error_code = ErrorCode::UnknownTopicOrPartition.code(),
            (None, Some((code, message))) => {
                response.error_code = code.code();
                response.error_message.clone_from(message);
            }
        }
        response
    };
    partitions.map(described).collect()
}

fn producers(handle: &PartitionHandle) -> Result<Vec<ProducerState>, ErrorCode> {
    if handle.leading().is_none() {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    Ok(handle.producers().into_iter().map(|(id, entry)| state(id, &entry)).collect())
}

fn state(id: ProducerId, entry: &ProducerEntry) -> ProducerState {
    let last = entry.batches.last();
    ProducerState {
        producer_id: id.0,
        producer_epoch: i32::from(entry.epoch.0),
        last_sequence: last.map_or(-1, |batch| batch.last_sequence),
        last_timestamp: last.and_then(|batch| batch.max_timestamp).map_or(-1, Timestamp::to_wire),
        coordinator_epoch: -1,
        current_txn_start_offset: entry.open_transaction.map_or(-1, Offset::to_wire),
    }
}
