//! What may be proposed to the cluster, and what comes of it.

use std::collections::BTreeMap;

use thiserror::Error;
use tidelog_format::manifest::{ManifestEntry, PageId, PageLine, SegmentObjectId};
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ClusterId, DirectoryId, LeaderEpoch, Offset, ProducerId, TopicId,
    TopicName, TopicPartition, UploadSequence,
};

use super::{deletion::DeletionScope, image::Listener};

/// One change of the cluster's metadata. Proposing an equal command twice is safe where its documentation says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Gives a new cluster its id. The first command of every cluster; repeated with the same id it changes nothing.
    Initialize {
        /// The cluster's id.
        cluster_id: ClusterId,
        /// The finalised feature level to begin with.
        feature_level: u16,
        /// How many restores from the bucket came before: the upper half of every incarnation.
        restore_number: u32,
        /// The first producer id that may be given out: above any in a restored log.
        producer_ids_from: ProducerId,
    },
    /// Starts a new incarnation of a broker. Repeating it starts another one.
    RegisterBroker {
        /// Who registers.
        registration: BrokerRegistration,
    },
    /// Says that a broker lives, for its session's sake.
    Heartbeat {
        /// Who.
        broker: BrokerId,
        /// Its newest incarnation.
        incarnation: BrokerIncarnation,
    },
    /// Ends a broker's session: it led nothing from here on until it registers again. Sent at a clean stop.
    EndSession {
        /// Who.
        broker: BrokerId,
        /// Its newest incarnation; an older one ends nothing.
        incarnation: BrokerIncarnation,
    },
    /// Creates a topic. Repeated with the same topic id and name it answers as the first time.
    CreateTopic {
        /// What to create.
        topic: NewTopic,
    },
    /// Deletes a topic; its objects go after the grace period.
    DeleteTopic {
        /// Which life of it.
        topic_id: TopicId,
    },
    /// Raises a topic's number of partitions.
    CreatePartitions {
        /// Which topic.
        topic_id: TopicId,
        /// How many it has afterwards.
        partition_count: i32,
        /// Replicas of each *new* partition; empty: placed on live brokers.
        assignments: Vec<Vec<BrokerId>>,
    },
    /// Sets and deletes configuration overrides of one resource, all together.
    AlterConfigs {
        /// Of what.
        resource: ConfigResource,
        /// In order; a later change of a key wins.
        changes: Vec<(String, ConfigChange)>,
    },
    /// Sets and deletes settings of one group, all together.
    AlterGroupConfigs {
        /// Its id; there need not be such a group.
        group: String,
        /// In order; a later change of a key wins.
        changes: Vec<(String, ConfigChange)>,
    },
    /// Takes the next block of producer ids; each proposal that applies takes another.
    AllocateProducerIds {
        /// Who takes it.
        broker: BrokerId,
        /// Its newest incarnation.
        incarnation: BrokerIncarnation,
    },
    /// Moves the log start of a tiered partition up. Repeated it changes nothing.
    AdvanceLogStart {
        /// Which partition.
        place: TopicPartition,
        /// The proposer's leader epoch.
        leader_epoch: LeaderEpoch,
        /// The new log start, inclusive.
        to: Offset,
    },
    /// Adds uploaded segment objects to manifests. Each is accepted or refused alone; an equal entry that is already
    /// there counts as accepted.
    CommitSegments {
        /// In order.
        commits: Vec<SegmentCommit>,
    },
    /// Moves a partition's oldest entries into a page that is already in the bucket.
    SpillManifest {
        /// The move.
        spill: Spill,
    },
    /// Refuses every later change that names a key of this incarnation at or below this sequence (T7).
    FenceUploads {
        /// Whose uploads.
        incarnation: BrokerIncarnation,
        /// The last one fenced, inclusive.
        sequence: UploadSequence,
    },
    /// Says that a copy of a partition's manifest is in the bucket.
    ManifestPublished {
        /// Which partition.
        place: TopicPartition,
        /// The proposer's leader epoch.
        leader_epoch: LeaderEpoch,
        /// The manifest version that was written.
        version: u64,
    },
    /// Removes items of the deletion queue whose objects are gone.
    DeletionDone {
        /// Each with the id that it had when it was read; a merged item has another one and stays.
        items: Vec<(DeletionScope, u64)>,
    },
    /// Moves the state machine's time.
    Tick {
        /// Milliseconds of the Raft leader's monotonic clock since its last tick.
        elapsed_ms: u64,
    },
    /// Raises the finalised feature level.
    SetFeatureLevel {
        /// The new level.
        level: u16,
    },
}

impl Command {
    /// Whether it may change which topics there are, how many partitions they have, or brokers.
    pub(super) const fn changes_topics(&self) -> bool {
        matches!(
            self,
            Self::RegisterBroker { .. }
                | Self::CreateTopic { .. }
                | Self::DeleteTopic { .. }
                | Self::CreatePartitions { .. }
        )
    }
}

/// A broker's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerRegistration {
    /// `node.id`.
    pub broker: BrokerId,
    /// The id of its data directory.
    pub directory: DirectoryId,
    /// The boot it runs in.
    pub boot: BootId,
    /// Whether its log was closed cleanly before this start.
    pub clean: bool,
    /// Where clients and other brokers reach it.
    pub listeners: Vec<Listener>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// The newest feature level that it can write.
    pub feature_level_max: u16,
}

/// A topic to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    /// Chosen by the proposer, never used before.
    pub topic_id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// How many partitions.
    pub partition_count: i32,
    /// Replicas of each partition, where they are placed here.
    pub replication_factor: i32,
    /// Replicas of each partition, where the client chose; empty: placed on live brokers.
    pub assignments: Vec<Vec<BrokerId>>,
    /// Configuration overrides.
    pub configs: BTreeMap<String, String>,
}

/// What a configuration belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigResource {
    /// One topic.
    Topic {
        /// Which.
        topic_id: TopicId,
    },
    /// One broker.
    Broker {
        /// Which; it need not be registered yet.
        broker: BrokerId,
    },
    /// Every broker that does not say otherwise.
    ClusterDefault {},
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Gives it a value.
    Set {
        /// The value.
        value: String,
    },
    /// Returns it to the default.
    Delete {},
}

/// One uploaded segment object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentCommit {
    /// Whose it is.
    pub place: TopicPartition,
    /// The uploader's leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// The manifest entry to add.
    pub entry: ManifestEntry,
}

/// A move of entries into a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spill {
    /// Which partition.
    pub place: TopicPartition,
    /// The proposer's leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// The page of the last line when it was read; `None` where there was no line.
    pub last_page: Option<PageId>,
    /// Whether `line` takes the last line's place (its page was copied and appended to) or follows it.
    pub replaces_last: bool,
    /// The objects moved: exactly the oldest entries still held, in order.
    pub moved: Vec<SegmentObjectId>,
    /// The line of the page that was written.
    pub line: PageLine,
}

/// What an applied command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, and there is nothing to tell.
    Done,
    /// A broker is registered.
    Registered {
        /// Its new incarnation.
        incarnation: BrokerIncarnation,
        /// Its broker epoch: the index of this entry.
        epoch: u64,
    },
    /// A topic exists.
    TopicCreated {
        /// Its id.
        topic_id: TopicId,
        /// How many partitions it has.
        partition_count: i32,
    },
    /// A block of producer ids belongs to the proposer.
    ProducerIds {
        /// The first.
        first: ProducerId,
        /// How many.
        count: i64,
    },
    /// The log start is at or above what was asked for.
    LogStart {
        /// Where it is.
        log_start: Offset,
        /// The tiered end.
        tiered_end: Offset,
    },
    /// Each entry of a batch, in its order.
    Committed {
        /// The partition's new tiered end, or why not.
        results: Vec<Result<Offset, CommitRefusal>>,
    },
    /// Entries moved to a page.
    Spilled {
        /// The manifest's version: the one to publish.
        version: u64,
    },
    /// Each item of a batch, in its order: whether it was removed.
    DeletionsRemoved {
        /// `false`: unknown, merged meanwhile, or not due.
        removed: Vec<bool>,
    },
    /// Nothing changed.
    Refused(Refusal),
}

impl Outcome {
    /// Tells refusals apart.
    ///
    /// # Errors
    /// The refusal; the state is as before.
    pub fn into_result(self) -> Result<Self, Refusal> {
        match self {
            Self::Refused(refusal) => Err(refusal),
            done => Ok(done),
        }
    }
}

/// Why a command changed nothing. Definite: it was applied, and refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the message of each variant says what it is and names its fields")]
pub enum Refusal {
    #[error("the cluster has no id yet")]
    NotInitialized,
    #[error("this cluster is {cluster_id}")]
    AnotherCluster { cluster_id: ClusterId },
    #[error(
        "broker {broker} is registered by directory {directory}, whose session lives for {session_ms} ms more"
    )]
    DuplicateBroker { broker: BrokerId, directory: DirectoryId, session_ms: u64 },
    #[error("broker {broker} is not registered")]
    UnknownBroker { broker: BrokerId },
    #[error("the newest incarnation of broker {broker} is {newest}")]
    StaleIncarnation { broker: BrokerId, newest: BrokerIncarnation },
    #[error("incarnation {incarnation} was never issued")]
    UnknownIncarnation { incarnation: BrokerIncarnation },
    #[error("feature level {asked} is refused: finalised is {finalised}, this version knows up to {known}")]
    FeatureLevel { asked: u16, finalised: u16, known: u16 },
    #[error("topic `{name}` exists with id {topic_id}")]
    TopicExists { name: TopicName, topic_id: TopicId },
    #[error("topic `{name}` collides with `{with}`: `.` and `_` are one character in metric names")]
    TopicCollides { name: TopicName, with: TopicName },
    #[error("topic id {topic_id} belongs to another topic, or did")]
    TopicIdTaken { topic_id: TopicId },
    #[error("topic {topic_id} is not known")]
    UnknownTopic { topic_id: TopicId },
    #[error("partition {place} is not known")]
    UnknownPartition { place: TopicPartition },
    #[error("{count} partitions are refused: {least} to {most} are allowed")]
    PartitionCount { count: i32, least: i32, most: i32 },
    #[error("the cluster would have more than {most} partitions")]
    TooManyPartitions { most: usize },
    #[error("replication factor {asked} is refused: {live} brokers live")]
    ReplicationFactor { asked: i32, live: usize },
    #[error("the replica assignment is not valid: {why}")]
    Assignment { why: &'static str },
    #[error("{what}: at most {most} are allowed")]
    TooMuch { what: &'static str, most: usize },
    #[error("all producer ids were given out")]
    ProducerIdsExhausted,
    #[error("the leader epoch of {place} is {current}")]
    StaleLeaderEpoch { place: TopicPartition, current: LeaderEpoch },
    #[error("the upload is fenced")]
    UploadFenced,
    #[error("the spill does not fit the manifest: {why}")]
    SpillMismatch { why: &'static str },
    #[error("manifest version {asked} cannot be published: current is {current}, published is {published}")]
    PublishedVersion { asked: u64, current: u64, published: u64 },
    #[error("the state machine's time cannot move by {elapsed_ms} ms")]
    TimeOverflow { elapsed_ms: u64 },
}

/// Why one uploaded segment is not in the manifest. The upload is abandoned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the message of each variant says what it is and names its fields")]
pub enum CommitRefusal {
    #[error("the partition is not known")]
    UnknownPartition,
    #[error("the topic is not tiered")]
    NotTiered,
    #[error("the leader epoch is {current}")]
    StaleLeaderEpoch { current: LeaderEpoch },
    #[error("the upload is fenced, or not of the leader's newest incarnation")]
    UploadFenced,
    #[error("the entry does not begin at the tiered end {tiered_end}")]
    NotAtTieredEnd { tiered_end: Offset },
    #[error("the manifest holds as many entries as it may: a spill comes first; retry")]
    ManifestFull,
    #[error("the entry contradicts itself: {why}")]
    Malformed { why: &'static str },
}
