//! The timers of a group's members: sessions and revocations. They are not stored; after a load all sessions begin anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Why a member's time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// No heartbeat came within the session.
    Session,
    /// Partitions were not given up within the rebalance timeout.
    Revocation {
        /// The epoch that the member had to leave.
        epoch: i32,
    },
}

/// All timers of a group, the next one first.
#[derive(Debug, Clone, Default)]
pub(super) struct Deadlines {
    queue: BTreeSet<(Duration, Arc<str>, Timer)>,
    members: BTreeMap<Arc<str>, MemberDeadlines>,
}

#[derive(Debug, Clone, Copy, Default)]
struct MemberDeadlines {
    session: Option<Duration>,
    revocation: Option<(Duration, i32)>,
}

impl Deadlines {
    /// Starts the member's session anew.
    pub(super) fn start_session(&mut self, member_id: &Arc<str>, deadline: Duration) {
        let timers = self.members.entry(Arc::clone(member_id)).or_default();
        if let Some(old) = timers.session.replace(deadline) {
            self.queue.remove(&(old, Arc::clone(member_id), Timer::Session));
        }
        self.queue.insert((deadline, Arc::clone(member_id), Timer::Session));
    }

    /// Starts the time in which the member must give up partitions and leave `epoch`.
    pub(super) fn start_revocation(&mut self, member_id: &Arc<str>, epoch: i32, deadline: Duration) {
        self.stop_revocation(member_id);
        self.members.entry(Arc::clone(member_id)).or_default().revocation = Some((deadline, epoch));
        self.queue.insert((deadline, Arc::clone(member_id), Timer::Revocation { epoch }));
    }

    /// The member has given up what it had to.
    pub(super) fn stop_revocation(&mut self, member_id: &Arc<str>) {
        let Some(timers) = self.members.get_mut(member_id) else { return };
        if let Some((deadline, epoch)) = timers.revocation.take() {
            self.queue.remove(&(deadline, Arc::clone(member_id), Timer::Revocation { epoch }));
        }
    }

    /// The member is gone.
    pub(super) fn remove(&mut self, member_id: &Arc<str>) {
        self.stop_revocation(member_id);
        if let Some(deadline) = self.members.remove(member_id).and_then(|timers| timers.session) {
            self.queue.remove(&(deadline, Arc::clone(member_id), Timer::Session));
        }
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(deadline, _, _)| *deadline)
    }

    /// Takes a timer whose deadline has come; the session of a member that is taken does not start again by itself.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<(Arc<str>, Timer)> {
        if self.next()? > now {
            return None;
        }
        let (_, member_id, timer) = self.queue.pop_first()?;
        if let Some(timers) = self.members.get_mut(&member_id) {
            match timer {
                Timer::Session => timers.session = None,
                Timer::Revocation { .. } => timers.revocation = None,
            }
        }
        Some((member_id, timer))
    }

    /// Forgets every timer.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.members.clear();
    }
}
