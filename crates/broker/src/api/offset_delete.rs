//! OffsetDelete (key 47).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidelog_core::groups::offsets::Place;
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode,
    messages::{
        OffsetDeleteRequest, OffsetDeleteResponse,
        offset_delete::{OffsetDeleteRequestTopic, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic},
    },
};

use crate::{connection::Caller, coordinator, node::Node};

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    _: i16,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    match delete(node, &request).await {
        Ok(codes) => {
            let image = node.image();
            let is_known =
                |name: &str| TopicName::new(name).is_ok_and(|name| image.topic_by_name(&name).is_some());
            answer(request, &codes, is_known)
        }
        Err(code) => OffsetDeleteResponse { error_code: code.code(), ..OffsetDeleteResponse::default() },
    }
}

async fn delete(
    node: &Arc<Node>,
    request: &OffsetDeleteRequest,
) -> Result<BTreeMap<Place, ErrorCode>, ErrorCode> {
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let image = node.image();
    let mut codes = BTreeMap::new();
    let mut places = BTreeSet::new();
    for topic in &request.topics {
        let found = TopicName::new(&topic.name).ok().and_then(|name| image.topic_by_name(&name).cloned());
        let name: Arc<str> = Arc::from(topic.name.as_str());
        for partition in &topic.partitions {
            let place = (Arc::clone(&name), partition.partition_index);
            let count = found.as_ref().map_or(0, |topic| topic.partitions.len());
            if usize::try_from(partition.partition_index).is_ok_and(|partition| partition < count) {
                places.insert(place);
            } else {
                codes.insert(place, ErrorCode::UnknownTopicOrPartition);
            }
        }
    }
    let shard = coordinator::shard_of(node, &request.group_id)?;
    codes.extend(shard.delete_offsets(node, &request.group_id, places).await?);
    Ok(codes)
}

/// In Kafka's order: what is unknown comes first. A known topic without partitions is left out.
fn answer(
    request: OffsetDeleteRequest,
    codes: &BTreeMap<Place, ErrorCode>,
    is_known: impl Fn(&str) -> bool,
) -> OffsetDeleteResponse {
    let is_told = |topic: &OffsetDeleteRequestTopic| !topic.partitions.is_empty() || !is_known(&topic.name);
    let topics = request.topics.into_iter().filter(is_told).map(|topic| {
        let name: Arc<str> = Arc::from(topic.name.as_str());
        let code = |partition: i32| {
            codes.get(&(Arc::clone(&name), partition)).copied().unwrap_or(ErrorCode::None).code()
        };
        let mut partitions: Vec<_> = topic
            .partitions
            .iter()
            .map(|partition| OffsetDeleteResponsePartition {
                partition_index: partition.partition_index,
                error_code: code(partition.partition_index),
            })
            .collect();
        partitions.sort_by_key(|partition| partition.error_code != ErrorCode::UnknownTopicOrPartition.code());
        OffsetDeleteResponseTopic { partitions, name: topic.name }
    });
    OffsetDeleteResponse { topics: topics.collect(), ..OffsetDeleteResponse::default() }
}
