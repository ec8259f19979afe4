//! The timers of a group's members. They are not stored; after a load all sessions begin anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// What a member is given time for. When the time is up it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The next heartbeat.
    Session,
    /// Giving up partitions.
    Revocation,
    /// Joining again, for a classic member that was told to.
    Join,
    /// Asking for its assignment, for a classic member that joined.
    Sync,
}

impl Timer {
    const ALL: [Self; 4] = [Self::Session, Self::Revocation, Self::Join, Self::Sync];
}

/// All timers of a group, the next one first.
#[derive(Debug, Clone, Default)]
pub(super) struct Deadlines {
    queue: BTreeSet<(Duration, Arc<str>, Timer)>,
    running: BTreeMap<(Arc<str>, Timer), Duration>,
}

impl Deadlines {
    /// Starts a timer, or starts it anew.
    pub(super) fn start(&mut self, member_id: &Arc<str>, timer: Timer, deadline: Duration) {
        let key = (Arc::clone(member_id), timer);
        if let Some(old) = self.running.insert(key, deadline) {
            self.queue.remove(&(old, Arc::clone(member_id), timer));
        }
        self.queue.insert((deadline, Arc::clone(member_id), timer));
    }

    /// Starts a timer unless it runs.
    pub(super) fn start_if_absent(&mut self, member_id: &Arc<str>, timer: Timer, deadline: Duration) {
        if !self.running.contains_key(&(Arc::clone(member_id), timer)) {
            self.start(member_id, timer, deadline);
        }
    }

    /// Stops a timer, if it runs.
    pub(super) fn stop(&mut self, member_id: &Arc<str>, timer: Timer) {
        if let Some(deadline) = self.running.remove(&(Arc::clone(member_id), timer)) {
            self.queue.remove(&(deadline, Arc::clone(member_id), timer));
        }
    }

    /// The member is gone.
    pub(super) fn remove(&mut self, member_id: &Arc<str>) {
        Timer::ALL.into_iter().for_each(|timer| self.stop(member_id, timer));
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(deadline, _, _)| *deadline)
    }

    /// The member with a timer whose deadline has come: the next that [`Self::take_due`] takes.
    pub(super) fn due(&self, now: Duration) -> Option<&Arc<str>> {
        self.queue.first().filter(|(deadline, _, _)| *deadline <= now).map(|(_, member_id, _)| member_id)
    }

    /// Takes a timer whose deadline has come.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<(Arc<str>, Timer)> {
        if self.next()? > now {
            return None;
        }
        let (_, member_id, timer) = self.queue.pop_first()?;
        self.running.remove(&(Arc::clone(&member_id), timer));
        Some((member_id, timer))
    }

    /// The members that timers run for.
    #[cfg(test)]
    pub(super) fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.running.keys().map(|(member_id, _)| member_id)
    }

    /// Whether a timer runs.
    #[cfg(test)]
    pub(super) fn is_running(&self, member_id: &Arc<str>, timer: Timer) -> bool {
        self.running.contains_key(&(Arc::clone(member_id), timer))
    }

    /// Forgets every timer.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.running.clear();
    }
}
