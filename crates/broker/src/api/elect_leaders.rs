//! ElectLeaders (key 43): asks for a leader by hand.
//!
//! The controller elects as soon as it can, and the preferred replica as soon as that is in sync: so there is nothing that an
//! election by hand could do, and each partition is answered with why.

use std::sync::Arc;

use tidelog_core::cluster::{MetadataImage, PartitionImage};
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        ElectLeadersRequest, ElectLeadersResponse,
        elect_leaders::{PartitionResult, ReplicaElectionResult, TopicPartitions},
    },
};

use super::{shown, too_many};
use crate::{
    connection::Caller,
    node::{Node, wire_name},
};

/// Kafka's numbers of election types.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// Bytes of one partition in an answer, about.
const PARTITION_BYTES: u64 = 96;

/// About how large the answer will be.
pub(crate) fn answer_bytes(node: &Node, request: &ElectLeadersRequest) -> u64 {
    let partitions: usize = match &request.topic_partitions {
        Some(topics) => topics.iter().map(|topic| 1 + topic.partitions.len()).sum(),
        None => node.image().topics().count(),
    };
    PARTITION_BYTES.saturating_mul(partitions as u64)
}

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let image = node.image();
    let topics = request.topic_partitions.as_deref();
    if topics.is_some_and(|topics| too_many(topics.iter().map(|topic| topic.partitions.len()))) {
        // Version 0 has no place for it.
        let error_code = if version == 0 { ErrorCode::None } else { ErrorCode::InvalidRequest };
        return ElectLeadersResponse { error_code: error_code.code(), ..ElectLeadersResponse::default() };
    }
    let unclean = match request.election_type {
        PREFERRED => false,
        UNCLEAN => true,
        other => return unknown_type(other, topics.unwrap_or_default()),
    };
    let replica_election_results = match topics {
        Some(topics) => topics.iter().map(|topic| elect(&image, topic, unclean)).collect(),
        None => elect_all(&image, unclean),
    };
    ElectLeadersResponse { replica_election_results, ..ElectLeadersResponse::default() }
}

fn unknown_type(election_type: i8, topics: &[TopicPartitions]) -> ElectLeadersResponse {
    let message = Str::from(format!("Unknown election type {election_type}"));
    let refused = |topic: &TopicPartitions| ReplicaElectionResult {
        topic: topic.topic.clone(),
        partition_result: topic
            .partitions
            .iter()
            .map(|partition| result(*partition, ErrorCode::InvalidRequest, message.clone()))
            .collect(),
    };
    ElectLeadersResponse {
        error_code: ErrorCode::InvalidRequest.code(),
        replica_election_results: topics.iter().map(refused).collect(),
        ..ElectLeadersResponse::default()
    }
}

fn result(partition_id: i32, code: ErrorCode, message: Str) -> PartitionResult {
    PartitionResult { partition_id, error_code: code.code(), error_message: Some(message) }
}

fn elect(image: &MetadataImage, topic: &TopicPartitions, unclean: bool) -> ReplicaElectionResult {
    let found = TopicName::new(&topic.topic).ok().and_then(|name| image.topic_by_name(&name));
    let unknown = Str::from(format!("No such topic as {}", shown(&topic.topic)));
    let elected = |partition: &i32| {
        let Some(found) = found else {
            return result(*partition, ErrorCode::UnknownTopicOrPartition, unknown.clone());
        };
        let of_topic = usize::try_from(*partition).ok().and_then(|index| found.partitions.get(index));
        match of_topic {
            Some(of_topic) => {
                let (code, message) = outcome(of_topic, unclean);
                result(*partition, code, Str::from_static(message))
            }
            None => {
                let message = format!("No such partition as {}-{partition}", found.name);
                result(*partition, ErrorCode::UnknownTopicOrPartition, Str::from(message))
            }
        }
    };
    ReplicaElectionResult {
        topic: topic.topic.clone(),
        partition_result: topic.partitions.iter().map(elected).collect(),
    }
}

/// All topics, with those of their partitions that an election would have been of use for.
fn elect_all(image: &MetadataImage, unclean: bool) -> Vec<ReplicaElectionResult> {
    image
        .topics()
        .map(|topic| ReplicaElectionResult {
            topic: wire_name(&topic.name),
            partition_result: (0..)
                .zip(&topic.partitions)
                .map(|(index, partition)| (index, outcome(partition, unclean)))
                .filter(|(_, (code, _))| *code != ErrorCode::ElectionNotNeeded)
                .map(|(index, (code, message))| result(index, code, Str::from_static(message)))
                .collect(),
        })
        .collect()
}

fn outcome(partition: &PartitionImage, unclean: bool) -> (ErrorCode, &'static str) {
    let not_needed = match partition.leader {
        Some(leader) => unclean || partition.replicas.first() == Some(&leader),
        None => false,
    };
    match (not_needed, unclean) {
        (true, _) => (ErrorCode::ElectionNotNeeded, "Leader election not needed for topic partition."),
        (false, true) => {
            (ErrorCode::EligibleLeadersNotAvailable, "Eligible topic partition leaders are not available.")
        }
        (false, false) => (ErrorCode::PreferredLeaderNotAvailable, "The preferred leader was not available."),
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::BrokerId;

    use super::*;

    #[test]
    fn each_partition_is_told_why_nothing_was_elected() {
        let [one, two] = [BrokerId(1), BrokerId(2)];
        let partition = |leader| PartitionImage {
            leader,
            leader_epoch: tidelog_types::LeaderEpoch::ZERO,
            partition_epoch: 0,
            replicas: vec![one, two],
            directories: Vec::new(),
            isr: vec![two],
            last_leader: two,
            log_start: tidelog_types::Offset::ZERO,
            manifest: Arc::default(),
            tiered: false,
        };
        let code = |leader, unclean| outcome(&partition(leader), unclean).0;
        assert_eq!(code(Some(one), false), ErrorCode::ElectionNotNeeded);
        assert_eq!(code(Some(two), false), ErrorCode::PreferredLeaderNotAvailable);
        assert_eq!(code(Some(two), true), ErrorCode::ElectionNotNeeded);
        assert_eq!(code(None, false), ErrorCode::PreferredLeaderNotAvailable);
        assert_eq!(code(None, true), ErrorCode::EligibleLeadersNotAvailable);
    }
}
