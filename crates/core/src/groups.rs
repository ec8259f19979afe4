//! Consumer groups: what a group coordinator decides, pure.
//!
//! **Owns** the state machines of groups and the words they share: the time that comes in, the errors that go out.
//!
//! **Does not own** where the state is kept (the records of `__consumer_offsets`), who asks, or any clock.

use std::time::Duration;

use tidelog_types::Timestamp;

pub mod consumer;

/// The time a call is made at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Time since some fixed moment of this process: deadlines are counted on it.
    pub monotonic: Duration,
    /// The wall clock: what is stored is stamped with it.
    pub wall: Timestamp,
}

/// Why a group refuses a request; every refusal leaves the group as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The group does not exist.
    #[error("the group does not exist")]
    GroupIdNotFound,
    /// The group still has members.
    #[error("the group is not empty")]
    NonEmptyGroup,
    /// The group has as many members as it may.
    #[error("the group has reached its maximum size")]
    GroupMaxSizeReached,
    /// The member is not in the group.
    #[error("the member is not in the group")]
    UnknownMemberId,
    /// The instance id belongs to another member.
    #[error("another member has taken this instance id")]
    FencedInstanceId,
    /// The instance id is in use by a member that has not left.
    #[error("the instance id is still in use by another member")]
    UnreleasedInstanceId,
    /// The member's epoch is not the one that the group knows: it must give up its partitions and join again.
    #[error("the member epoch is not the one known to the group: give up all partitions and join again")]
    FencedMemberEpoch,
    /// The epoch of a commit or of a fetch of offsets is not the member's.
    #[error("the member epoch is stale")]
    StaleMemberEpoch,
    /// The generation is not the group's.
    #[error("the generation is not the one of the group")]
    IllegalGeneration,
    /// The request's version cannot be used by this member.
    #[error("this version of the request cannot be used by a member of the consumer protocol")]
    UnsupportedVersion,
    /// The request is malformed.
    #[error("{reason}")]
    InvalidRequest {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The assignor is not one of the broker's.
    #[error("the assignor {name} is not supported")]
    UnsupportedAssignor {
        /// The assignor asked for.
        name: String,
    },
    /// The regular expression does not compile, or is too large.
    #[error("the regular expression {pattern} is not valid: {reason}")]
    InvalidRegularExpression {
        /// The expression.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
}
