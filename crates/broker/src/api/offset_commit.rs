//! OffsetCommit (key 8).

use std::{collections::BTreeMap, sync::Arc};

use tidelog_core::{
    cluster::MetadataImage,
    groups::offsets::{CommittedOffset, Place},
};
use tidelog_types::{Timestamp, TopicId, TopicName};
use tidelog_wire::{
    ErrorCode,
    messages::{
        OffsetCommitRequest, OffsetCommitResponse,
        offset_commit::{
            OffsetCommitRequestPartition, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
        },
    },
};

use crate::{
    connection::Caller,
    coordinator::{self, Commit},
    node::Node,
};

/// From which version on a client knows groups of the consumer protocol, and the error that there is no such group.
const NEW_GROUPS_VERSION: i16 = 9;

/// A partition's answer, or its place among what is committed.
type Outcome = Option<ErrorCode>;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let image = node.image();
    let metadata_max = node.groups.settings().metadata_bytes_max;
    let times = times(node.clock.wall(), request.retention_time_ms);
    // The last of several commits of one partition counts: each is answered alike.
    let mut changes: BTreeMap<Place, CommittedOffset> = BTreeMap::new();
    let mut known = false;
    let mut outcomes: Vec<Vec<Outcome>> = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let found = find(&image, &topic.name);
        let name: Arc<str> = Arc::from(topic.name.as_str());
        let outcome = |partition: &OffsetCommitRequestPartition| -> Outcome {
            let Some(topic_id) = found.filter(|(_, count)| within(partition.partition_index, *count)) else {
                return Some(ErrorCode::UnknownTopicOrPartition);
            };
            known = true;
            let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
            // Kafka counts characters of UTF-16, as Java does.
            if metadata.encode_utf16().count() > metadata_max {
                return Some(ErrorCode::OffsetMetadataTooLarge);
            }
            let committed = CommittedOffset {
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: Arc::from(metadata),
                commit_time: times.0,
                expire_time: times.1,
                topic_id: Some(topic_id.0),
            };
            changes.insert((Arc::clone(&name), partition.partition_index), committed);
            None
        };
        outcomes.push(topic.partitions.iter().map(outcome).collect());
    }
    // A request of unknown partitions alone asks no coordinator.
    let committed =
        if known { commit(node, version, &request, changes.into_iter().collect()).await } else { Ok(()) };
    answer(request, &outcomes, committed)
}

/// When a commit is made, and when it ends by itself.
fn times(now: Timestamp, retention_ms: i64) -> (Timestamp, Option<Timestamp>) {
    let end = u64::try_from(retention_ms)
        .ok()
        .map(|retention| Timestamp::from_millis(now.as_millis().saturating_add(retention)));
    (now, end)
}

fn find(image: &MetadataImage, name: &str) -> Option<(TopicId, usize)> {
    let topic = image.topic_by_name(&TopicName::new(name).ok()?)?;
    Some((topic.id, topic.partitions.len()))
}

fn within(partition: i32, count: usize) -> bool {
    usize::try_from(partition).is_ok_and(|partition| partition < count)
}

async fn commit(
    node: &Arc<Node>,
    version: i16,
    request: &OffsetCommitRequest,
    changes: Vec<(Place, CommittedOffset)>,
) -> Result<(), ErrorCode> {
    let shard = coordinator::shard_of(node, &request.group_id)?;
    let count = changes.len() as u64;
    let commit = Commit {
        member_id: Arc::from(request.member_id.as_str()),
        instance_id: request.group_instance_id.as_deref().map(Arc::from),
        generation: request.generation_id_or_member_epoch,
        is_old_version: version < NEW_GROUPS_VERSION,
        changes,
    };
    shard.commit(node, &request.group_id, commit).await?;
    node.groups.metrics.commits.add(count);
    Ok(())
}

fn answer(
    request: OffsetCommitRequest,
    outcomes: &[Vec<Outcome>],
    committed: Result<(), ErrorCode>,
) -> OffsetCommitResponse {
    let code = committed.err().unwrap_or(ErrorCode::None);
    // A topic without partitions is left out, as Kafka does.
    let asked = request.topics.into_iter().zip(outcomes).filter(|(topic, _)| !topic.partitions.is_empty());
    let topics = asked.map(|(topic, outcomes)| {
        let partitions = topic.partitions.iter().zip(outcomes).map(|(partition, outcome)| {
            // What is unknown is unknown whatever the group says; all else shares the group's fate.
            let code = match outcome {
                Some(ErrorCode::UnknownTopicOrPartition) => ErrorCode::UnknownTopicOrPartition,
                Some(own) if code == ErrorCode::None => *own,
                _ => code,
            };
            OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code.code(),
            }
        });
        let partitions = partitions.collect();
        OffsetCommitResponseTopic { name: topic.name, topic_id: topic.topic_id, partitions }
    });
    OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() }
}
