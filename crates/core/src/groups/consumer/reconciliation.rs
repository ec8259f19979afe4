//! One step of a member towards its target assignment.
//!
//! A member gives up before it gets: while it owns what is not in its target it keeps its epoch and gets nothing new; a
//! partition of its target that another still owns is waited for. So a partition never has two owners.
//!
//! What a member was given and has never been seen with is a case of its own. It may be taking it at this moment, and a
//! request that it sends meanwhile, after an answer was lost, does not name it: which is what one would send that had
//! given it up. Kafka takes it for that, and another member may get what the first begins to read. Here such a partition
//! counts as given up only once the member names exactly what it is left with, or has been told to give it up and has then
//! finished a step without it (a request with partitions and nothing else).

use std::collections::BTreeSet;

use tidelog_types::TopicId;

use super::{CurrentAssignment, EpochPartitions, MemberState, Partitions, without_epochs};

/// All that one step depends on, apart from the member itself.
pub(super) struct Step<'a> {
    /// The epoch of the target.
    pub(super) target_epoch: i32,
    /// What the member is to have.
    pub(super) target: &'a Partitions,
    /// What the member says that it owns.
    pub(super) report: Report<'a>,
    /// What the member was given and has never said to own.
    pub(super) untaken: &'a Partitions,
    /// The topics that the member subscribes to now; the target may be older.
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    /// True when the member has just changed its subscription.
    pub(super) subscription_changed: bool,
    /// True when nobody but the member itself owns the partition.
    pub(super) is_free: &'a dyn Fn(TopicId, i32) -> bool,
}

/// What a member says that it owns.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report<'a> {
    /// Nothing: it is as it was.
    Unchanged,
    /// It has finished a step, and owns these.
    Finished(&'a Partitions),
    /// It says all there is to say, be it in the middle of a step.
    Full(&'a Partitions),
    /// It begins: it owns these, and takes nothing of what it was given before.
    Anew(&'a Partitions),
}

impl<'a> Report<'a> {
    /// The partitions; `None` when it says nothing.
    pub(super) const fn owned(self) -> Option<&'a Partitions> {
        match self {
            Self::Unchanged => None,
            Self::Finished(owned) | Self::Full(owned) | Self::Anew(owned) => Some(owned),
        }
    }
}

impl Step<'_> {
    /// The member after the step; equal to `current` when it cannot go on.
    pub(super) fn take(&self, current: &CurrentAssignment) -> CurrentAssignment {
        match current.state {
            MemberState::Stable if current.epoch != self.target_epoch => self.towards_target(current),
            MemberState::UnrevokedPartitions
                if !self.still_owns(&current.pending_revocation, &current.assigned, true) =>
            {
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

    /// True unless the member has given up all of `partitions`; `left` is what it keeps, and `is_told` is true when it has
    /// been asked to.
    fn still_owns(&self, partitions: &EpochPartitions, left: &EpochPartitions, is_told: bool) -> bool {
        let Some(owned) = self.report.owned() else { return true };
        let named_in = |among: &Partitions| {
            among.iter().any(|(topic, among)| {
                partitions
                    .get(topic)
                    .is_some_and(|inner| among.iter().any(|partition| inner.contains_key(partition)))
            })
        };
        if named_in(owned) {
            return true;
        }
        match self.report {
            Report::Anew(_) => false,
            Report::Finished(_) if is_told => false,
            // It is where it is to be: it need not take a step, and would not tell of one.
            Report::Full(_) if without_epochs(left) == *owned => false,
            _ => named_in(self.untaken),
        }
    }

    fn towards_target(&self, current: &CurrentAssignment) -> CurrentAssignment {
        // What another owns as well can only come of a log that says so; the one whose record is last keeps it.
        let wanted = |topic: &TopicId, partition: &i32| {
            (self.is_free)(*topic, *partition)
                && self.subscribed.contains(topic)
                && self.target.get(topic).is_some_and(|partitions| partitions.contains(partition))
        };
        let (mut assigned, revoked) = split(&current.assigned, wanted);
        if !revoked.is_empty() && self.still_owns(&revoked, &assigned, false) {
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
        if self.still_owns(&pending_revocation, &assigned, false) {
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
