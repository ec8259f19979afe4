//! What a consumer group keeps in `__consumer_offsets`, one variant for each kind of record that Kafka has.
//!
//! The bytes of these records are the wire crate's matter. The records of kind 4 (partition metadata) are not here:
//! since KIP-1101 the metadata hash of the group's record has taken their place, and who reads one skips it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidelog_types::{Timestamp, TopicId};

use crate::groups::ENTRY_OVERHEAD_BYTES;

/// Partitions by topic.
pub type Partitions = BTreeMap<TopicId, BTreeSet<i32>>;

/// Partitions by topic, each with the epoch at which it was given to the member (KIP-1251).
pub type EpochPartitions = BTreeMap<TopicId, BTreeMap<i32, i32>>;

/// One change of a group, as it is stored; an absent value is a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerRecord {
    /// Kind 3: the group itself.
    GroupMetadata(Option<GroupMetadata>),
    /// Kind 5: what a member said of itself.
    MemberMetadata {
        /// The member.
        member_id: Arc<str>,
        /// `None` when it is gone.
        value: Option<MemberMetadata>,
    },
    /// Kind 6: the epoch of the target assignment.
    TargetAssignmentMetadata(Option<TargetAssignmentMetadata>),
    /// Kind 7: what a member is to have.
    TargetAssignmentMember {
        /// The member.
        member_id: Arc<str>,
        /// `None` when it is gone.
        value: Option<Arc<Partitions>>,
    },
    /// Kind 8: what a member has, and how far it is on its way to its target.
    CurrentMemberAssignment {
        /// The member.
        member_id: Arc<str>,
        /// `None` when it is gone.
        value: Option<CurrentAssignment>,
    },
    /// Kind 16: the topics that a regular expression matches.
    RegularExpression {
        /// The expression.
        pattern: Arc<str>,
        /// `None` when no member subscribes by it any more.
        value: Option<ResolvedPattern>,
    },
}

impl ConsumerRecord {
    /// Whether it ends what its key stands for.
    #[must_use]
    pub const fn is_tombstone(&self) -> bool {
        match self {
            Self::GroupMetadata(value) => value.is_none(),
            Self::MemberMetadata { value, .. } => value.is_none(),
            Self::TargetAssignmentMetadata(value) => value.is_none(),
            Self::TargetAssignmentMember { value, .. } => value.is_none(),
            Self::CurrentMemberAssignment { value, .. } => value.is_none(),
            Self::RegularExpression { value, .. } => value.is_none(),
        }
    }
}

/// The value of a group's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMetadata {
    /// Grows with every change of members, subscriptions or topics.
    pub epoch: i32,
    /// The hash of the subscribed topics (`topics_hash`); 0 when there are none.
    pub metadata_hash: i64,
}

/// The value of a target assignment's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetAssignmentMetadata {
    /// The group epoch that the target assignment was computed at.
    pub assignment_epoch: i32,
    /// When it was computed (KIP-1263); `None` when that is not known.
    pub timestamp: Option<Timestamp>,
}

/// What a member said of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberMetadata {
    /// The instance id of a static member.
    pub instance_id: Option<Arc<str>>,
    /// The member's rack.
    pub rack_id: Option<Arc<str>>,
    /// The client id of its last request.
    pub client_id: Arc<str>,
    /// The address its last request came from.
    pub client_host: Arc<str>,
    /// The topics it subscribes to by name.
    pub subscribed_topics: Arc<BTreeSet<Arc<str>>>,
    /// The regular expression it subscribes by; empty when there is none.
    pub subscribed_pattern: Arc<str>,
    /// How long it may take to give up partitions; whole milliseconds.
    pub rebalance_timeout: Duration,
    /// The assignor it wishes for.
    pub server_assignor: Option<Arc<str>>,
    /// Present while the member speaks the classic protocol.
    pub classic: Option<ClassicMember>,
}

impl MemberMetadata {
    /// What it takes in memory besides the struct itself, about; nothing for what nobody has said.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.instance_id, &self.rack_id, &self.server_assignor];
        let texts: usize = texts.into_iter().flatten().map(|text| text.len()).sum();
        let topics: usize =
            self.subscribed_topics.iter().map(|topic| topic.len() + ENTRY_OVERHEAD_BYTES).sum();
        let protocols = self.classic.iter().flat_map(|classic| &classic.protocols);
        let protocols: usize =
            protocols.map(|(name, metadata)| name.len() + metadata.len() + ENTRY_OVERHEAD_BYTES).sum();
        let own = self.client_id.len() + self.client_host.len() + self.subscribed_pattern.len();
        texts + topics + protocols + own
    }
}

/// What is known of a member of a consumer group that speaks the classic protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicMember {
    /// The session time-out it asked for; whole milliseconds.
    pub session_timeout: Duration,
    /// The embedded protocols it offers, each with its metadata.
    pub protocols: Vec<(Arc<str>, Bytes)>,
}

/// How far a member is on its way to its target assignment.
///
/// ```text
///            target moved, something to give up          given up, nothing missing
///   Stable ────────────────────────────▶ UnrevokedPartitions ───────────────▶ Stable
///     │  ▲                                     │
///     │  │ all partitions free                 │ given up, some partitions not free yet
///     │  │                                     ▼
///     └──┴───────────────────────────▶ UnreleasedPartitions
///        target moved, nothing to give up, some partitions not free yet
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemberState {
    /// The member has what its epoch's target gives it.
    #[default]
    Stable,
    /// The member has been told to give up partitions and has not said that it did.
    UnrevokedPartitions,
    /// Partitions of its target are still owned by others.
    UnreleasedPartitions,
    /// A state that a later version wrote: the member must join again without partitions.
    Unknown,
}

impl MemberState {
    /// The byte that stands for it in a record.
    #[must_use]
    pub const fn to_wire(self) -> i8 {
        match self {
            Self::Stable => 0,
            Self::UnrevokedPartitions => 1,
            Self::UnreleasedPartitions => 2,
            Self::Unknown => 127,
        }
    }

    /// The state that a byte of a record stands for.
    #[must_use]
    pub const fn from_wire(raw: i8) -> Self {
        match raw {
            0 => Self::Stable,
            1 => Self::UnrevokedPartitions,
            2 => Self::UnreleasedPartitions,
            _ => Self::Unknown,
        }
    }
}

/// What a member has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentAssignment {
    /// The epoch that the member must send; [`LEFT_FOR_A_WHILE`](super::LEFT_FOR_A_WHILE) for a static member that left
    /// and will be back.
    pub epoch: i32,
    /// The epoch before the last change: who sends it has not heard of the change.
    pub previous_epoch: i32,
    /// How far the member is.
    pub state: MemberState,
    /// The partitions that the member owns and may keep.
    pub assigned: EpochPartitions,
    /// The partitions that the member owns and has to give up.
    pub pending_revocation: EpochPartitions,
}

impl Default for CurrentAssignment {
    fn default() -> Self {
        Self {
            epoch: 0,
            previous_epoch: -1,
            state: MemberState::Stable,
            assigned: EpochPartitions::new(),
            pending_revocation: EpochPartitions::new(),
        }
    }
}

impl CurrentAssignment {
    /// True when the member has all of the target of `epoch` and nothing else.
    #[must_use]
    pub fn is_reconciled_to(&self, epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// Every partition the member owns: those it may keep and those it has not given up yet.
    pub fn owned(&self) -> impl Iterator<Item = (TopicId, i32)> + '_ {
        pairs(&self.assigned).chain(pairs(&self.pending_revocation))
    }
}

/// The topics that a regular expression matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPattern {
    /// Their names.
    pub topics: BTreeSet<Arc<str>>,
    /// The version of the topics they were looked for in.
    pub version: i64,
    /// When that was.
    pub timestamp: Timestamp,
}

impl ResolvedPattern {
    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES
            + self.topics.iter().map(|topic| topic.len() + ENTRY_OVERHEAD_BYTES).sum::<usize>()
    }
}

/// Every partition with its topic.
pub(super) fn pairs(partitions: &EpochPartitions) -> impl Iterator<Item = (TopicId, i32)> + '_ {
    partitions.iter().flat_map(|(topic, inner)| inner.keys().map(move |partition| (*topic, *partition)))
}

/// The partitions without their epochs.
#[must_use]
pub fn without_epochs(partitions: &EpochPartitions) -> Partitions {
    partitions.iter().map(|(topic, inner)| (*topic, inner.keys().copied().collect())).collect()
}
