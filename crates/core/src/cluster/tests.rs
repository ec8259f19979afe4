//! Step tests of the cluster's state machine: one action, the outcome and the state.

mod brokers;
mod golden;
mod properties;
mod tiered;
mod topics;

use tidelog_format::manifest::{ManifestEntry, PageId, PageLine, Section, SegmentObjectId};
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ClusterId, DirectoryId, LeaderEpoch, Offset, OffsetRange,
    PartitionIndex, ProducerId, Timestamp, TopicId, TopicName, TopicPartition, UploadId, UploadSequence,
};

use super::*;

/// A state with the means to feed it.
struct Cluster {
    state: ClusterState,
    index: u64,
}

impl Cluster {
    fn empty() -> Self {
        Self { state: ClusterState::new(), index: 0 }
    }

    /// One with an id and the brokers 1 to `brokers`, each in its own directory and boot.
    fn with_brokers(brokers: i32) -> Self {
        let mut cluster = Self::empty();
        assert_eq!(cluster.apply(&initialize()), Outcome::Done);
        for broker in 1..=brokers {
            let number = u8::try_from(broker).unwrap();
            cluster.register(broker, number, 1, true);
        }
        cluster
    }

    fn apply(&mut self, command: &Command) -> Outcome {
        self.index += 1;
        let encoded = command.encode();
        assert_eq!(Command::decode(&encoded).as_ref(), Ok(command), "a command reads as it was written");
        let outcome = self.state.apply(LogIndex(self.index), command);
        self.state.check().unwrap();
        outcome
    }

    fn register(&mut self, broker: i32, directory: u8, boot: u8, clean: bool) -> BrokerIncarnation {
        match self.apply(&registration(broker, directory, boot, clean)) {
            Outcome::Registered { incarnation, epoch } => {
                assert_eq!(epoch, self.index);
                incarnation
            }
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, number: u8, partitions: i32, replicas: i32) -> TopicId {
        let topic = new_topic(number, partitions, replicas);
        let topic_id = topic.topic_id;
        assert_eq!(
            self.apply(&Command::CreateTopic { topic }),
            Outcome::TopicCreated { topic_id, partition_count: partitions }
        );
        topic_id
    }

    fn tick(&mut self, elapsed_ms: u64) {
        assert_eq!(self.apply(&Command::Tick { elapsed_ms }), Outcome::Done);
    }

    fn partition(&self, place: TopicPartition) -> &PartitionImage {
        self.state.image().partition(&place).unwrap()
    }

    fn commit(&mut self, commit: SegmentCommit) -> Result<Offset, CommitRefusal> {
        match self.apply(&Command::CommitSegments { commits: vec![commit] }) {
            Outcome::Committed { mut results } => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Commits `count` objects of ten offsets each at the tiered end, in the current epoch and incarnation.
    fn upload(&mut self, place: TopicPartition, count: u64) {
        for _ in 0..count {
            let commit = self.next_commit(place, 10);
            let end = commit.entry.range.end;
            assert_eq!(self.commit(commit), Ok(end));
        }
    }

    fn next_commit(&self, place: TopicPartition, offsets: u64) -> SegmentCommit {
        let partition = self.partition(place);
        let base = partition.manifest.tiered_end.get();
        let leader = self.state.image().broker(partition.leader.unwrap()).unwrap();
        let sequence = base + 1_000;
        commit(place, partition.leader_epoch, leader.incarnation, sequence, base..base + offsets)
    }

    fn advance(&mut self, place: TopicPartition, to: u64) -> Outcome {
        let leader_epoch = self.partition(place).leader_epoch;
        self.apply(&Command::AdvanceLogStart { place, leader_epoch, to: offset(to) })
    }

    /// A spill of the oldest `count` entries, as a leader would propose it.
    fn next_spill(&self, place: TopicPartition, count: usize, replaces_last: bool, sequence: u64) -> Spill {
        let partition = self.partition(place);
        let manifest = &partition.manifest;
        let moved = &manifest.entries[..count];
        let last = manifest.lines.last();
        let base = if replaces_last { last.unwrap().range.base } else { moved[0].range.base };
        let incarnation = self.state.image().broker(partition.leader.unwrap()).unwrap().incarnation;
        Spill {
            place,
            leader_epoch: partition.leader_epoch,
            last_page: last.map(|line| line.page),
            replaces_last,
            moved: moved.iter().map(|entry| entry.object).collect(),
            line: PageLine {
                page: page(base.get(), incarnation, sequence),
                range: OffsetRange { base, end: moved[count - 1].range.end },
                bytes: 5,
                max_timestamp: None,
            },
        }
    }

    fn deletions(&self, place: TopicPartition) -> Vec<DeletionTarget> {
        self.state.image().deletions().partition(place).iter().map(|item| item.target.clone()).collect()
    }

    fn ready(&self) -> Vec<(DeletionScope, u64)> {
        let ready = self.state.image().ready_deletions(100);
        ready.into_iter().map(|(scope, item)| (scope, item.id)).collect()
    }
}

fn initialize() -> Command {
    Command::Initialize {
        cluster_id: ClusterId::from_bytes([9; 16]),
        feature_level: 1,
        restore_number: 0,
        producer_ids_from: ProducerId(0),
    }
}

fn registration(broker: i32, directory: u8, boot: u8, clean: bool) -> Command {
    Command::RegisterBroker {
        registration: BrokerRegistration {
            broker: BrokerId(broker),
            directory: DirectoryId::from_bytes([directory; 16]),
            boot: BootId::from_bytes([boot; 16]),
            clean,
            listeners: vec![Listener {
                name: "PLAINTEXT".to_owned(),
                host: "localhost".to_owned(),
                port: 9092,
            }],
            rack: None,
            feature_level_max: 1,
        },
    }
}

fn new_topic(number: u8, partition_count: i32, replication_factor: i32) -> NewTopic {
    NewTopic {
        topic_id: topic_id(number),
        name: TopicName::new(&format!("topic-{number}")).unwrap(),
        partition_count,
        replication_factor,
        assignments: Vec::new(),
        configs: std::collections::BTreeMap::new(),
    }
}

/// An id that is a multiple of 256, so that placement begins at the first of 1, 2 or 4 brokers.
fn topic_id(number: u8) -> TopicId {
    TopicId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number, 0])
}

fn place(topic_id: TopicId, partition: i32) -> TopicPartition {
    TopicPartition { topic_id, partition: PartitionIndex(partition) }
}

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

fn page(base: u64, incarnation: BrokerIncarnation, sequence: u64) -> PageId {
    PageId { base: offset(base), upload: UploadId { incarnation, sequence: UploadSequence(sequence) } }
}

fn commit(
    place: TopicPartition,
    leader_epoch: LeaderEpoch,
    incarnation: BrokerIncarnation,
    sequence: u64,
    range: std::ops::Range<u64>,
) -> SegmentCommit {
    let range = OffsetRange { base: offset(range.start), end: offset(range.end) };
    let upload = UploadId { incarnation, sequence: UploadSequence(sequence) };
    SegmentCommit {
        place,
        leader_epoch,
        entry: ManifestEntry {
            range,
            object: SegmentObjectId { base: range.base, leader_epoch, upload },
            position: 0,
            bytes: 100,
            object_bytes: 150,
            max_timestamp: Timestamp::from_wire(7),
            index: Section { position: 100, bytes: 20, crc: 3 },
            leader_epoch,
        },
    }
}

fn segment_key(commit: &SegmentCommit) -> DeletionTarget {
    DeletionTarget::Key { object: ObjectName::Segment { object: commit.entry.object } }
}
