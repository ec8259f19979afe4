//! A consumer group of the "consumer" protocol (KIP-848): the coordinator assigns, members reconcile by heartbeats.
//!
//! **Owns** members, their subscriptions, the group epoch, the target assignment and who owns which partition.
//!
//! **Does not own** where records are kept, offsets, or the clock. Groups of the classic protocol are another machine
//! ([`classic`](super::classic)); while an application moves from one protocol to the other, members of both are in one
//! consumer group (`classic_members`), and `migration` makes the one kind of group of the other.
//!
//! ```text
//!  heartbeat ─▶ member's metadata ─▶ group epoch ─▶ target assignment ─▶ the member's own assignment ─▶ answer
//!               (what it said)       (+1 when       (for all members,    (one step towards its target,
//!                                     anything       when older than      `reconciliation`)
//!                                     changed)       the group epoch)
//! ```
//!
//! Invariants:
//! - a partition has one owner at most: it is given to a member only when no other member has it, be it to keep or still
//!   to give up;
//! - `target epoch <= group epoch`, and a member's epoch is never greater than the target epoch;
//! - state changes by [`ConsumerGroup::apply`] alone, so that a group restored from its records equals the one that wrote
//!   them. The timers are not part of it.
//!
//! **Storing.** Every call that changes a group applies its records at once and returns them. The caller appends them in
//! the order of the calls, as one batch each call, and answers when they are durable; an answer without records waits for
//! the records before it, for it may tell of them. Records that are found too large to be stored before any later call
//! are taken back ([`ConsumerGroup::undo`]). If records cannot be stored later, the group in memory is ahead of its log: it
//! must be dropped and restored from the log.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

mod assignor;
mod changes;
mod classic_members;
mod commit;
mod deadlines;
mod describe;
mod heartbeat;
mod members;
mod migration;
mod pattern;
mod reconciliation;
mod records;
mod rules;
mod state;
mod target;
mod topics;
mod untaken;

#[cfg(test)]
mod tests;

pub use assignor::{Assignor, GroupSpec, MemberSpec, TopicSpec};
pub use changes::Changes;
pub use classic_members::ClassicJoined;
pub use commit::CommitPermit;
pub use describe::{ConsumerGroupState, DescribedGroup, DescribedMember, DescribedTopic};
pub use migration::{ClassicBegin, Downgraded, MigrationPolicy};
pub use pattern::{Pattern, PatternsWanted, Resolutions};
pub use records::{
    ClassicMember, ConsumerRecord, CurrentAssignment, EpochPartitions, GroupMetadata, MemberMetadata,
    MemberState, Partitions, ResolvedPattern, TargetAssignmentMetadata, without_epochs,
};
pub use rules::{ConsumerBounds, ConsumerRules, Heartbeat, HeartbeatAnswer, HeartbeatRefused, Heartbeated};
pub use state::Member;
pub use topics::{TopicShape, TopicsImage, topics_hash};

use deadlines::{Deadlines, Timer};
use state::State;
use untaken::Untaken;

use super::Now;

/// The member epoch of a request that leaves the group for good.
pub const LEAVE_FOR_GOOD: i32 = -1;

/// The member epoch of a request of a static member that will be back within its session.
pub const LEAVE_FOR_A_WHILE: i32 = -2;

/// The epoch of a static member that left and will be back.
pub const LEFT_FOR_A_WHILE: i32 = LEAVE_FOR_A_WHILE;

/// What a member takes besides what it said: the structs, its timers, its places in the maps.
const MEMBER_OVERHEAD_BYTES: usize = 1_024;

/// The least time between two resolutions of all regular expressions of a group.
const PATTERN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// One consumer group.
#[derive(Debug, Clone, Default)]
pub struct ConsumerGroup {
    state: State,
    deadlines: Deadlines,
    /// Not stored: after a load nobody has been seen with anything.
    untaken: Untaken,
    /// The version of the topics that the metadata hash was last compared with; not stored.
    hash_checked: Option<i64>,
    /// The version of the topics that the regular expressions were last resolved with, and when; not stored.
    patterns_resolved: Option<(i64, Duration)>,
    /// When a target assignment was found too large to be stored; not stored.
    target_refused: Option<Duration>,
}

impl ConsumerGroup {
    /// A group without members, which a heartbeat that joins creates. As long as no call has returned records nothing of
    /// it need be kept.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a record that was read from the log. The timers begin with [`loaded`](Self::loaded).
    pub fn apply(&mut self, record: &ConsumerRecord) {
        self.state.apply(record);
    }

    /// All records have been read: sessions begin now, and so does the time of members that have to give up partitions.
    pub fn loaded(&mut self, now: Now, rules: &ConsumerRules) {
        self.deadlines.clear();
        for (member_id, member) in &self.state.members {
            if member.metadata.classic.is_none() {
                self.untaken.begin(member_id, &member.current);
            }
            self.deadlines.start(member_id, Timer::Session, now.after(session_timeout(member, rules)));
            if member.current.state == MemberState::UnrevokedPartitions && member.metadata.classic.is_none() {
                let deadline = now.after(member.metadata.rebalance_timeout);
                self.deadlines.start(member_id, Timer::Revocation, deadline);
            }
        }
    }

    /// True when both groups were made by the same records; timers do not count.
    #[must_use]
    pub fn has_same_state(&self, other: &Self) -> bool {
        self.state == other.state
    }

    /// The group epoch.
    #[must_use]
    pub const fn epoch(&self) -> i32 {
        self.state.epoch
    }

    /// The epoch of the target assignment.
    #[must_use]
    pub const fn target_epoch(&self) -> i32 {
        self.state.target_epoch
    }

    /// The members, by id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Member)> {
        self.state.members.iter()
    }

    /// One member.
    #[must_use]
    pub fn member(&self, member_id: &str) -> Option<&Member> {
        self.state.members.get(member_id)
    }

    /// True when the group has no members: its offsets may expire and it may be deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.members.is_empty()
    }

    /// About how many bytes a member takes, known by its instance id where it is static; 0 where there is none.
    #[must_use]
    pub fn member_bytes(&self, member_id: &str, instance_id: Option<&str>) -> usize {
        let holder = instance_id.and_then(|instance_id| self.state.static_members.get(instance_id));
        let member_id = holder.map_or(member_id, |holder| holder);
        self.state
            .members
            .get(member_id)
            .map_or(0, |member| MEMBER_OVERHEAD_BYTES + member_id.len() + member.metadata.bytes())
    }

    /// The topics that members subscribe to: their offsets do not expire.
    #[must_use]
    pub fn subscribed_topics(&self) -> BTreeSet<&Arc<str>> {
        self.state.subscribed_topics()
    }

    /// True when every timer is of a member and every member has a session.
    #[cfg(test)]
    fn has_timers_of_its_members(&self) -> bool {
        let members = || self.state.members.keys();
        self.deadlines.owners().all(|owner| self.state.members.contains_key(owner))
            && self.untaken.owners().all(|owner| self.state.members.contains_key(owner))
            && members().all(|member_id| self.deadlines.is_running(member_id, Timer::Session))
    }

    /// When [`tick`](Self::tick) must be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.next()
    }

    /// About how many bytes of memory it takes that its clients can make as many as they like: what members said of
    /// themselves, and what their regular expressions match.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.members().len() * MEMBER_OVERHEAD_BYTES + self.state.bytes()
    }
}

/// How long the member lives without a heartbeat.
fn session_timeout(member: &Member, rules: &ConsumerRules) -> Duration {
    member.metadata.classic.as_ref().map_or(rules.session_timeout, |classic| classic.session_timeout)
}
