//! What members were given and have never been seen with.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_types::TopicId;

use super::{CurrentAssignment, Partitions, reconciliation::Report, records::pairs};

/// The partitions of each member that it was given and has not said to own since.
#[derive(Debug, Clone, Default)]
pub(super) struct Untaken {
    members: BTreeMap<Arc<str>, Partitions>,
}

impl Untaken {
    /// The member's.
    pub(super) fn of(&self, member_id: &str) -> Option<&Partitions> {
        self.members.get(member_id)
    }

    /// Nothing is known of what the member, which has `current`, was seen with.
    pub(super) fn begin(&mut self, member_id: &Arc<str>, current: &CurrentAssignment) {
        self.set(member_id, current.owned());
    }

    /// The member, which has `current`, says what it owns.
    pub(super) fn note(&mut self, member_id: &Arc<str>, report: Report<'_>, current: &CurrentAssignment) {
        let Some(owned) = report.owned() else { return };
        let is_untaken =
            |topic, partition| !owned.get(&topic).is_some_and(|inner| inner.contains(&partition));
        if matches!(report, Report::Anew(_)) {
            let all = current.owned().filter(|(topic, partition)| is_untaken(*topic, *partition));
            self.set(member_id, all);
        } else if let Some(untaken) = self.members.remove(member_id) {
            let all = untaken
                .iter()
                .flat_map(|(topic, inner)| inner.iter().map(move |partition| (*topic, *partition)));
            self.set(member_id, all.filter(|(topic, partition)| is_untaken(*topic, *partition)));
        }
    }

    /// The member is given what `next` has and `before` has not; what it has no longer is forgotten.
    pub(super) fn move_to(
        &mut self,
        member_id: &Arc<str>,
        before: &CurrentAssignment,
        next: &CurrentAssignment,
    ) {
        let untaken = self.members.remove(member_id).unwrap_or_default();
        // What it had to give up and gets again is new to it.
        let had = |topic, partition| {
            before.assigned.get(&topic).is_some_and(|inner| inner.contains_key(&partition))
        };
        let waits = |topic, partition| untaken.get(&topic).is_some_and(|inner| inner.contains(&partition));
        let given = pairs(&next.assigned).filter(|(topic, partition)| !had(*topic, *partition));
        let still = next.owned().filter(|(topic, partition)| waits(*topic, *partition));
        self.set(member_id, given.chain(still));
    }

    fn set(&mut self, member_id: &Arc<str>, untaken: impl Iterator<Item = (TopicId, i32)>) {
        let mut left = Partitions::new();
        for (topic, partition) in untaken {
            left.entry(topic).or_default().insert(partition);
        }
        if left.is_empty() {
            self.members.remove(member_id);
        } else {
            self.members.insert(Arc::clone(member_id), left);
        }
    }

    /// The members that something is noted of.
    #[cfg(test)]
    pub(super) fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.members.keys()
    }

    /// The member is gone.
    pub(super) fn remove(&mut self, member_id: &str) {
        self.members.remove(member_id);
    }
}
