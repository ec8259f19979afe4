//! One step of a member towards its target assignment.
//!
//! A member gives up before it gets: while it owns what is not in its target it keeps its epoch and gets nothing new; a
//! partition of its target that another still owns is waited for. So a partition never has two owners.

use std::collections::BTreeSet;

use tidelog_types::TopicId;

use super::{CurrentAssignment, EpochPartitions, MemberState, Partitions};

/// All that one step depends on, apart from the member itself.
pub(super) struct Step<'a> {
    /// The epoch of the target.
    pub(super) target_epoch: i32,
    /// What the member is to have.
    pub(super) target: &'a Partitions,
    /// What the member says that it owns; `None` when it says nothing.
    pub(super) owned: Option<&'a Partitions>,
    /// The topics that the member subscribes to now; the target may be older.
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    /// True when the member has just changed its subscription.
    pub(super) subscription_changed: bool,
    /// True when nobody but the member itself owns the partition.
    pub(super) is_free: &'a dyn Fn(TopicId, i32) -> bool,
}

impl Step<'_> {
    /// The member after the step; equal to `current` when it cannot go on.
    pub(super) fn take(&self, current: &CurrentAssignment) -> CurrentAssignment {
        match current.state {
            MemberState::Stable if current.epoch != self.target_epoch => self.towards_target(current),
            MemberState::UnrevokedPartitions if !self.still_owns(&current.pending_revocation) => {
                self.towards_target(current)
            }
            MemberState::Stable | MemberState::UnrevokedPartitions if self.subscription_changed => {
                self.without_unsubscribed(current)
            }
            MemberState::Stable | MemberState::UnrevokedPartitions => current.clone(),
            MemberState::UnreleasedPartitions => self.towards_target(current),
            // Whoever asks has made sure that the member owns nothing.
            MemberState::Unknown => {
                self.towards_target(&CurrentAssignment { epoch: self.target_epoch, ..current.clone() })
            }
        }
    }

    /// True unless the member has said that it owns none of `partitions`.
    fn still_owns(&self, partitions: &EpochPartitions) -> bool {
        let Some(owned) = self.owned else { return true };
        owned.iter().any(|(topic, owned)| {
            partitions
                .get(topic)
                .is_some_and(|inner| owned.iter().any(|partition| inner.contains_key(partition)))
        })
    }

    fn towards_target(&self, current: &CurrentAssignment) -> CurrentAssignment {
        // What another owns as well can only come of a log that says so; the one whose record is last keeps it.
        let wanted = |topic: &TopicId, partition: &i32| {
            (self.is_free)(*topic, *partition)
                && self.subscribed.contains(topic)
                && self.target.get(topic).is_some_and(|partitions| partitions.contains(partition))
        };
        let (mut assigned, revoked) = split(&current.assigned, wanted);
        if !revoked.is_empty() && self.still_owns(&revoked) {
            return CurrentAssignment {
                epoch: current.epoch,
                previous_epoch: current.epoch,
                state: MemberState::UnrevokedPartitions,
                assigned,
                pending_revocation: revoked,
            };
        }
        let mut state = MemberState::Stable;
        for (topic, partitions) in self.target.iter().filter(|(topic, _)| self.subscribed.contains(topic)) {
            for partition in partitions {
                if assigned.get(topic).is_some_and(|inner| inner.contains_key(partition)) {
                    continue;
                }
                // What the member itself gives up at this moment is free as well.
                if (self.is_free)(*topic, *partition) {
                    assigned.entry(*topic).or_default().insert(*partition, self.target_epoch);
                } else {
                    state = MemberState::UnreleasedPartitions;
                }
            }
        }
        let next = CurrentAssignment {
            epoch: self.target_epoch,
            previous_epoch: current.epoch,
            state,
            assigned,
            pending_revocation: EpochPartitions::new(),
        };
        // A member that waits stays as it is: else the epoch it had before would be forgotten without a change.
        if (CurrentAssignment { previous_epoch: current.previous_epoch, ..next.clone() }) == *current {
            return current.clone();
        }
        next
    }

    /// A member that no longer subscribes to a topic gives it up at once, before a target without it is computed.
    fn without_unsubscribed(&self, current: &CurrentAssignment) -> CurrentAssignment {
        let (assigned, dropped) = split(&current.assigned, |topic, _| self.subscribed.contains(topic));
        if dropped.is_empty() {
            return current.clone();
        }
        let mut pending_revocation = current.pending_revocation.clone();
        for (topic, partitions) in dropped {
            pending_revocation.entry(topic).or_default().extend(partitions);
        }
        if self.still_owns(&pending_revocation) {
            return CurrentAssignment {
                epoch: current.epoch,
                previous_epoch: current.epoch,
                state: MemberState::UnrevokedPartitions,
                assigned,
                pending_revocation,
            };
        }
        CurrentAssignment {
            previous_epoch: current.epoch,
            assigned,
            pending_revocation: EpochPartitions::new(),
            ..current.clone()
        }
    }
}

/// The partitions that `keep` says yes to, and the others.
fn split(
    partitions: &EpochPartitions,
    keep: impl Fn(&TopicId, &i32) -> bool,
) -> (EpochPartitions, EpochPartitions) {
    let (mut kept, mut others) = (EpochPartitions::new(), EpochPartitions::new());
    for (topic, inner) in partitions {
        for (partition, epoch) in inner {
            let side = if keep(topic, partition) { &mut kept } else { &mut others };
            side.entry(*topic).or_default().insert(*partition, *epoch);
        }
    }
    (kept, others)
}
