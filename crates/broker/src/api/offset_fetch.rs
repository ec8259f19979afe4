//! OffsetFetch (key 9): one group in the versions up to 7, several from 8 on.

use std::sync::Arc;

use tidelog_core::groups::offsets::{CommittedOffset, OffsetTable};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        OffsetFetchRequest, OffsetFetchResponse,
        offset_fetch::{
            OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup,
            OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
            OffsetFetchResponseTopics,
        },
    },
};

use crate::{connection::Caller, coordinator, node::Node};

/// From which version on a request names several groups.
const GROUPS_VERSION: i16 = 8;

/// From which version on the answer has an error of its own; before, each partition has it.
const ERROR_VERSION: i16 = 2;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if version >= GROUPS_VERSION {
        let groups = request.groups.into_iter().map(|group| fetch(node, group)).collect();
        return OffsetFetchResponse { groups, ..OffsetFetchResponse::default() };
    }
    let topics = request.topics.map(|topics| {
        let topic =
            |topic: tidelog_wire::messages::offset_fetch::OffsetFetchRequestTopic| OffsetFetchRequestTopics {
                name: topic.name,
                partition_indexes: topic.partition_indexes,
                ..OffsetFetchRequestTopics::default()
            };
        topics.into_iter().map(topic).collect::<Vec<_>>()
    });
    let asked = topics.clone();
    let group =
        OffsetFetchRequestGroup { group_id: request.group_id, topics, ..OffsetFetchRequestGroup::default() };
    one(version, fetch(node, group), asked)
}

/// The answer of the versions that know one group.
fn one(
    version: i16,
    group: OffsetFetchResponseGroup,
    asked: Option<Vec<OffsetFetchRequestTopics>>,
) -> OffsetFetchResponse {
    let code = group.error_code;
    let topics = if code != 0 && version < ERROR_VERSION {
        let failed = |topic: OffsetFetchRequestTopics| OffsetFetchResponseTopics {
            name: topic.name,
            partitions: topic
                .partition_indexes
                .into_iter()
                .map(|partition| OffsetFetchResponsePartitions { error_code: code, ..none(partition) })
                .collect(),
            ..OffsetFetchResponseTopics::default()
        };
        asked.unwrap_or_default().into_iter().map(failed).collect()
    } else {
        group.topics
    };
    let topics = topics.into_iter().map(|topic| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic
            .partitions
            .into_iter()
            .map(|partition| OffsetFetchResponsePartition {
                partition_index: partition.partition_index,
                committed_offset: partition.committed_offset,
                committed_leader_epoch: partition.committed_leader_epoch,
                metadata: partition.metadata,
                error_code: partition.error_code,
            })
            .collect(),
    });
    OffsetFetchResponse { topics: topics.collect(), error_code: code, ..OffsetFetchResponse::default() }
}

fn fetch(node: &Node, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
    let member = (group.member_id.as_deref(), group.member_epoch);
    let look = |offsets: &OffsetTable| match &group.topics {
        Some(topics) => topics.iter().map(|topic| asked(offsets, topic)).collect(),
        None => all(offsets),
    };
    let found = coordinator::shard_of(node, &group.group_id)
        .and_then(|shard| shard.offsets(&group.group_id, member, look));
    match found {
        Ok(topics) => {
            OffsetFetchResponseGroup { group_id: group.group_id, topics, error_code: ErrorCode::None.code() }
        }
        Err(code) => OffsetFetchResponseGroup {
            group_id: group.group_id,
            error_code: code.code(),
            ..OffsetFetchResponseGroup::default()
        },
    }
}

fn asked(offsets: &OffsetTable, topic: &OffsetFetchRequestTopics) -> OffsetFetchResponseTopics {
    let partitions = topic.partition_indexes.iter().map(|partition| {
        offsets
            .get(&topic.name, *partition)
            .map_or_else(|| none(*partition), |found| one_of(*partition, found))
    });
    OffsetFetchResponseTopics {
        name: topic.name.clone(),
        partitions: partitions.collect(),
        ..OffsetFetchResponseTopics::default()
    }
}

fn all(offsets: &OffsetTable) -> Vec<OffsetFetchResponseTopics> {
    let topic = |(name, partitions): (&Arc<str>, &std::collections::BTreeMap<i32, CommittedOffset>)| {
        OffsetFetchResponseTopics {
            name: Str::from(&**name),
            partitions: partitions.iter().map(|(partition, found)| one_of(*partition, found)).collect(),
            ..OffsetFetchResponseTopics::default()
        }
    };
    offsets.topics().map(topic).collect()
}

fn one_of(partition: i32, committed: &CommittedOffset) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: committed.offset,
        committed_leader_epoch: committed.leader_epoch,
        metadata: Some(Str::from(&*committed.metadata)),
        error_code: ErrorCode::None.code(),
    }
}

/// What is told of a partition without an offset.
fn none(partition: i32) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some(Str::default()),
        error_code: ErrorCode::None.code(),
    }
}
