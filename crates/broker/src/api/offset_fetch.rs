//! OffsetFetch (key 9): one group in the versions up to 7, several from 8 on.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::{
    cluster::MetadataImage,
    groups::offsets::{CommittedOffset, OffsetTable, Sizes},
};
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

use super::Mentions;
use crate::{connection::Caller, coordinator, node::Node};

/// From which version on a request names several groups.
const GROUPS_VERSION: i16 = 8;

/// From which version on the answer has an error of its own; before, each partition has it.
const ERROR_VERSION: i16 = 2;

/// What passes by itself. Kafka tells it in the answer's own error and names no partition; a client that looks at
/// partitions alone (aiokafka 0.14) takes that for "nothing was ever committed" and begins anew. So they are named with
/// it here; a client that looks at the answer's error first sees no difference.
const PASSING: [ErrorCode; 3] =
    [ErrorCode::CoordinatorLoadInProgress, ErrorCode::CoordinatorNotAvailable, ErrorCode::NotCoordinator];

/// Bytes of one partition in an answer, and of one topic, besides its name and the client's text.
const PARTITION_BYTES: usize = 32;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &OffsetFetchRequest) -> u64 {
    let mut mentions = Mentions::default();
    let groups = request.groups.iter().filter(|group| mentions.allow(&group.group_id)).map(|group| {
        let named = |topics: &Vec<OffsetFetchRequestTopics>| {
            topics.iter().map(|topic| (topic.name.len(), topic.partition_indexes.len())).collect()
        };
        (&group.group_id, group.topics.as_ref().map(named))
    });
    let named = |topics: &Vec<tidelog_wire::messages::offset_fetch::OffsetFetchRequestTopic>| {
        topics.iter().map(|topic| (topic.name.len(), topic.partition_indexes.len())).collect()
    };
    let alone = (&request.group_id, request.topics.as_ref().map(named));
    let alone = request.groups.is_empty().then_some(alone);
    let metadata_bytes_max = node.groups.settings().metadata_bytes_max;
    let bytes = groups.chain(alone).map(|(group, named)| {
        let sizes = coordinator::shard_of(node, group).map(|shard| shard.offset_sizes(group));
        told(sizes.unwrap_or_default(), named, metadata_bytes_max)
    });
    bytes.fold(0_u64, |sum, bytes| sum.saturating_add(bytes as u64))
}

/// Bytes of the offsets of one group: of the topics that are named, each by the length of its name and its partitions, or all.
fn told(sizes: Sizes, named: Option<Vec<(usize, usize)>>, metadata_bytes_max: usize) -> usize {
    let Some(named) = named else {
        return sizes.names + sizes.offsets * 2 * PARTITION_BYTES + sizes.metadata;
    };
    let partitions: usize = named.iter().map(|(_, partitions)| partitions).sum();
    // Who names a partition twice is told its text twice: that is counted when the answer is made.
    let metadata = sizes.metadata.min(partitions.saturating_mul(metadata_bytes_max));
    named.iter().map(|(name, partitions)| name + PARTITION_BYTES * (partitions + 1)).sum::<usize>() + metadata
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if version >= GROUPS_VERSION {
        let mut mentions = Mentions::default();
        let groups = request.groups.into_iter().filter(|group| mentions.allow(group.group_id.clone()));
        let groups = groups.map(|group| fetch(node, group)).collect();
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
    let is_passing = PASSING.iter().any(|passing| passing.code() == code);
    let topics = if code != 0 && (version < ERROR_VERSION || is_passing) {
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
    let look = |offsets: &OffsetTable| {
        // Once the table cannot change: what was committed was let in by this image or one before it.
        let image = node.image();
        match &group.topics {
            Some(topics) => {
                let mut mentions = Mentions::default();
                topics.iter().map(|topic| asked(&image, offsets, topic, &mut mentions)).collect()
            }
            None => all(&image, offsets),
        }
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

/// An offset that was committed to another topic of that name is none, also before its end is written.
fn asked<'a>(
    image: &MetadataImage,
    offsets: &OffsetTable,
    topic: &'a OffsetFetchRequestTopics,
    mentions: &mut Mentions<(&'a Str, i32)>,
) -> OffsetFetchResponseTopics {
    let current = coordinator::topic_id(image, &topic.name);
    let partitions = topic.partition_indexes.iter();
    let partitions =
        partitions.filter(|partition| mentions.allow((&topic.name, **partition))).map(|partition| {
            offsets
                .get(&topic.name, *partition)
                .filter(|found| found.is_of(current))
                .map_or_else(|| none(*partition), |found| one_of(*partition, found))
        });
    OffsetFetchResponseTopics {
        name: topic.name.clone(),
        partitions: partitions.collect(),
        ..OffsetFetchResponseTopics::default()
    }
}

fn all(image: &MetadataImage, offsets: &OffsetTable) -> Vec<OffsetFetchResponseTopics> {
    let topic = |(name, partitions): (&Arc<str>, &BTreeMap<i32, CommittedOffset>)| {
        let current = coordinator::topic_id(image, name);
        let found = partitions.iter().filter(|(_, found)| found.is_of(current));
        OffsetFetchResponseTopics {
            name: Str::from(&**name),
            partitions: found.map(|(partition, found)| one_of(*partition, found)).collect(),
            ..OffsetFetchResponseTopics::default()
        }
    };
    offsets.topics().map(topic).filter(|topic| !topic.partitions.is_empty()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_what_is_asked_for_or_all_there_is() {
        let sizes = Sizes { offsets: 1_000, names: 500, metadata: 8_000 };
        assert_eq!(told(sizes, None, 4_096), 500 + 64_000 + 8_000);
        assert_eq!(told(sizes, Some(vec![(10, 1)]), 4_096), 10 + 64 + 4_096, "one text at most");
        assert_eq!(told(sizes, Some(vec![(10, 100)]), 4_096), 10 + 3_232 + 8_000, "each text once");
        assert_eq!(told(Sizes::default(), Some(vec![(10, 3)]), 4_096), 10 + 128);
    }

    #[test]
    fn partitions_have_the_error_where_the_answer_has_none_and_where_it_passes() {
        let asked = || {
            let topic = OffsetFetchRequestTopics {
                name: Str::from("t"),
                partition_indexes: vec![0, 3],
                ..OffsetFetchRequestTopics::default()
            };
            Some(vec![topic])
        };
        let told = |version, code: ErrorCode| {
            let group =
                OffsetFetchResponseGroup { error_code: code.code(), ..OffsetFetchResponseGroup::default() };
            let answer = one(version, group, asked());
            assert_eq!(answer.error_code, code.code());
            let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.map(|it| (it.partition_index, it.committed_offset, it.error_code)).collect::<Vec<_>>()
        };
        assert_eq!(told(1, ErrorCode::InvalidGroupId), [(0, -1, 24), (3, -1, 24)]);
        assert_eq!(told(2, ErrorCode::InvalidGroupId), []);
        assert_eq!(told(7, ErrorCode::CoordinatorLoadInProgress), [(0, -1, 14), (3, -1, 14)]);
        assert_eq!(told(2, ErrorCode::NotCoordinator), [(0, -1, 16), (3, -1, 16)]);
    }
}
