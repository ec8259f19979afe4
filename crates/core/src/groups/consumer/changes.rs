//! What a call has changed, and the way back.

use std::{sync::Arc, time::Duration};

use super::{ConsumerGroup, ConsumerRecord, ConsumerRules, MemberState, deadlines::Timer, session_timeout};
use crate::groups::{GoneMember, Now};

/// The records of what one call changed, in their order. They are applied already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    records: Vec<ConsumerRecord>,
    /// For each of them the record that makes the group what it was before.
    inverses: Vec<ConsumerRecord>,
    /// Members that were put out since their time was over.
    pub(super) gone: Vec<GoneMember>,
    /// The state of the regular expressions' resolution, where it moved: it is not stored.
    pub(super) patterns_resolved: Option<Option<(i64, Duration)>>,
}

impl Changes {
    /// The records.
    #[must_use]
    pub fn records(&self) -> &[ConsumerRecord] {
        &self.records
    }

    /// Whether nothing has changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether a target assignment was computed.
    #[must_use]
    pub fn has_target(&self) -> bool {
        self.records.iter().any(|record| matches!(record, ConsumerRecord::TargetAssignmentMetadata(Some(_))))
    }

    /// Whether the group's epoch was raised.
    #[must_use]
    pub fn raise_the_epoch(&self) -> bool {
        self.records.iter().any(|record| matches!(record, ConsumerRecord::GroupMetadata(Some(_))))
    }

    /// Members that were put out since their time was over.
    #[must_use]
    pub fn gone(&self) -> &[GoneMember] {
        &self.gone
    }

    /// The records alone, of what is not to be taken back.
    #[must_use]
    pub fn into_records(self) -> Vec<ConsumerRecord> {
        self.records
    }

    /// Puts those of a later call behind these.
    pub(super) fn extend(&mut self, later: Self) {
        self.records.extend(later.records);
        self.inverses.extend(later.inverses);
        self.gone.extend(later.gone);
        self.patterns_resolved = self.patterns_resolved.or(later.patterns_resolved);
    }
}

impl ConsumerGroup {
    /// Applies a record of a change made now and notes it for the log.
    pub(super) fn commit(&mut self, changes: &mut Changes, record: ConsumerRecord) {
        changes.inverses.push(self.state.inverse(&record));
        self.state.apply(&record);
        changes.records.push(record);
    }

    /// Takes back what the last call that changed the group did, for records that cannot be stored. Timers that run go on; what
    /// the call ended begins anew. A target assignment that is taken back is not computed again for a while.
    pub fn undo(&mut self, changes: &Changes, now: Now, rules: &ConsumerRules) {
        for record in changes.inverses.iter().rev() {
            self.state.apply(record);
        }
        if let Some(before) = changes.patterns_resolved {
            self.patterns_resolved = before;
        }
        self.hash_checked = None;
        if changes.has_target() {
            self.target_refused = Some(now.monotonic);
        }
        for record in &changes.inverses {
            match record {
                ConsumerRecord::MemberMetadata { member_id, .. }
                | ConsumerRecord::CurrentMemberAssignment { member_id, .. } => {
                    self.restart(member_id, now, rules);
                }
                _ => {}
            }
        }
    }

    /// Gives a member the timers that it must have, or ends those of one that there is not.
    fn restart(&mut self, member_id: &Arc<str>, now: Now, rules: &ConsumerRules) {
        let Some(member) = self.state.members.get(member_id) else {
            self.deadlines.remove(member_id);
            self.untaken.remove(member_id);
            return;
        };
        let session = now.after(session_timeout(member, rules));
        self.deadlines.start_if_absent(member_id, Timer::Session, session);
        if member.metadata.classic.is_none() {
            // What it was seen with may be of the change: nothing is known of it.
            self.untaken.begin(member_id, &member.current);
            if member.current.state == MemberState::UnrevokedPartitions {
                let deadline = now.after(member.metadata.rebalance_timeout);
                self.deadlines.start_if_absent(member_id, Timer::Revocation, deadline);
            }
        }
    }
}
