//! When a member that stays silent is given up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// The ends of sessions, by member and by time. A member that waits for the coordinator may have none.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_member: BTreeMap<Arc<str>, Duration>,
    by_time: BTreeSet<(Duration, Arc<str>)>,
}

impl Sessions {
    /// Lets the session of a member end at `at`, whatever it was before.
    pub(super) fn set(&mut self, member_id: &Arc<str>, at: Duration) {
        if let Some(before) = self.by_member.insert(Arc::clone(member_id), at) {
            self.by_time.remove(&(before, Arc::clone(member_id)));
        }
        self.by_time.insert((at, Arc::clone(member_id)));
    }

    /// The member has no session any more.
    pub(super) fn cancel(&mut self, member_id: &str) {
        if let Some((member_id, at)) = self.by_member.remove_entry(member_id) {
            self.by_time.remove(&(at, member_id));
        }
    }

    /// The session that ends first.
    pub(super) fn first(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes out the session that ends first.
    pub(super) fn pop_first(&mut self) -> Option<Arc<str>> {
        let (_, member_id) = self.by_time.pop_first()?;
        self.by_member.remove(&member_id);
        Some(member_id)
    }

    pub(super) fn clear(&mut self) {
        self.by_member.clear();
        self.by_time.clear();
    }

    #[cfg(test)]
    pub(super) fn contains(&self, member_id: &str) -> bool {
        self.by_member.contains_key(member_id)
    }
}
