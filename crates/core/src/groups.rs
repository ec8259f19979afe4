//! Groups of consumers: who belongs to a group, and what its members were told to do.
//!
//! **Owns** the decisions of the group coordinator, one state machine for each kind of group. [`classic`] is the kind whose
//! leader, one of the clients, hands out the partitions; in [`consumer`] the coordinator does.
//!
//! **Does not own** how a request waits, how a record gets into `__consumer_offsets`, or which broker coordinates which
//! group: time, requests and the outcome of writes come in, replies and records go out.
//!
//! A group lives on one broker at a time. What a client was told about its assignment is in the log before it is told.
//! What is only in memory (who waits, sessions, members that were given an id but did not join yet) may be lost with the
//! broker: its clients come again.

pub mod classic;
pub mod consumer;
mod embedded;
pub mod offsets;

use std::{sync::Arc, time::Duration};

use tidelog_types::Timestamp;

/// About what one entry of a set or list takes in memory besides its bytes.
pub const ENTRY_OVERHEAD_BYTES: usize = 64;

/// The present: a machine counts its deadlines on the one and writes the other into what it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Time since some fixed moment of this process, which never goes back.
    pub monotonic: Duration,
    /// Wall-clock time.
    pub wall: Timestamp,
}

impl Now {
    /// The moment `after` from here, for a deadline.
    #[must_use]
    pub const fn after(self, after: Duration) -> Duration {
        self.monotonic.saturating_add(after)
    }
}

/// A member that was put out of its group, for whoever asks why the group rebalances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneMember {
    /// The member.
    pub member_id: Arc<str>,
    /// What its client calls itself.
    pub client_id: Arc<str>,
    /// The address it came from.
    pub client_host: Arc<str>,
    /// What it failed to do.
    pub why: GoneWhy,
}

/// What a member that was put out of its group failed to do in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoneWhy {
    /// Sending a heartbeat within its session time-out.
    Heartbeat,
    /// Joining again within the rebalance time-out.
    Join,
    /// Asking for its assignment within the rebalance time-out.
    Sync,
    /// Giving up partitions within the rebalance time-out.
    Revocation,
}

impl GoneWhy {
    /// It for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Heartbeat => "no heartbeat within the session time-out",
            Self::Join => "did not join again within the rebalance time-out",
            Self::Sync => "did not ask for its assignment within the rebalance time-out",
            Self::Revocation => "did not give up its partitions within the rebalance time-out",
        }
    }
}

/// A request that waits for its reply. The shell draws it, never twice for one group, and knows whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Why a request to a group was refused. The words are Kafka's; the codes are the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum GroupError {
    /// The group id is not acceptable.
    #[error("group id is invalid")]
    InvalidGroupId,
    /// No such group.
    #[error("group does not exist")]
    GroupIdNotFound,
    /// The group has members, or offsets of a kind that must stay.
    #[error("group is not empty")]
    NonEmptyGroup,
    /// A member subscribes to the topic whose offsets were to go.
    #[error("group is subscribed to the topic")]
    GroupSubscribedToTopic,
    /// The member is not, or no longer, in the group.
    #[error("member is not in the group")]
    UnknownMemberId,
    /// The member must join again with the id that it was given.
    #[error("member must join again with the id it was given")]
    MemberIdRequired,
    /// The generation is not the present one.
    #[error("generation is not the present one")]
    IllegalGeneration,
    /// The members are joining anew.
    #[error("group is rebalancing")]
    RebalanceInProgress,
    /// The protocols of the request do not fit those of the members.
    #[error("protocols do not fit those of the group")]
    InconsistentGroupProtocol,
    /// Another member id holds this instance id.
    #[error("another member holds the instance id")]
    FencedInstanceId,
    /// The instance id is held by a member that has not left yet.
    #[error("instance id is still held by another member")]
    UnreleasedInstanceId,
    /// The member epoch is not the one of the coordinator: the member must join anew.
    #[error("member epoch is fenced")]
    FencedMemberEpoch,
    /// The member epoch is older than that of the coordinator.
    #[error("member epoch is stale")]
    StaleMemberEpoch,
    /// The coordinator knows no assignor of this name.
    #[error("assignor is not supported")]
    UnsupportedAssignor,
    /// The regular expression does not compile, or is too large.
    #[error("regular expression is invalid")]
    InvalidRegularExpression,
    /// The member cannot use this version of the request.
    #[error("version of the request is not for members of the consumer protocol")]
    UnsupportedVersion,
    /// There is no room for another member.
    #[error("group has as many members as it may have")]
    GroupMaxSizeReached,
    /// The session timeout is outside of what the broker allows.
    #[error("session timeout is out of bounds")]
    InvalidSessionTimeout,
    /// The request contradicts itself.
    #[error("request is invalid")]
    InvalidRequest,
    /// The group is being loaded from its log.
    #[error("coordinator is loading")]
    CoordinatorLoadInProgress,
    /// The coordinator cannot serve now; the client asks again.
    #[error("coordinator is not available")]
    CoordinatorNotAvailable,
    /// Another broker coordinates this group.
    #[error("not the coordinator of the group")]
    NotCoordinator,
    /// Something that no client can mend.
    #[error("unexpected error of the coordinator")]
    UnknownServer,
}

/// The settings that groups follow. They can change while the broker runs, so that they come with every call that needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRules {
    /// `group.min.session.timeout.ms`, inclusive.
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`, inclusive.
    pub session_timeout_max: Duration,
    /// `group.max.size`: members of one group.
    pub size_max: usize,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members after the first.
    pub initial_rebalance_delay: Duration,
}
