//! Reads from the bucket that outlive the fetch that began them.
//!
//! **Owns** what was read, or is being read, for fetches that went out without it: the next fetch of the same place takes
//! it. It is kept until it is taken or [`KEPT_FOR`] has passed, and at most [`SLOTS_MAX`] of them are.
//!
//! **Does not own** memory of the bucket's chunks: that is the reader's.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidelog_replica::{ReadError, Records};
use tidelog_types::{Offset, TopicPartition};
use tokio::sync::watch;

/// How long a read waits for the fetch that takes it.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Reads that are kept at once; above it the oldest goes. Each is at most a partition's share of a fetch.
const SLOTS_MAX: usize = 64;

/// What identifies a read: who asks again for the same place takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ColdKey {
    pub place: TopicPartition,
    pub offset: Offset,
    pub bytes_max: usize,
}

type Outcome = Option<Result<Records, ReadError>>;

/// One read.
#[derive(Debug, Clone)]
pub(crate) struct ColdSlot {
    outcome: watch::Receiver<Outcome>,
}

impl ColdSlot {
    /// What came of it, if it is done.
    pub(crate) fn outcome(&self) -> Outcome {
        let gone = self.outcome.has_changed().is_err();
        let outcome = self.outcome.borrow().clone();
        // Its task ended without an outcome only where the broker stops.
        outcome.or_else(|| gone.then(|| Err(ReadError::Storage("the broker is stopping".into()))))
    }

    /// Waits until it is done.
    pub(crate) async fn done(&self) {
        let mut outcome = self.outcome.clone();
        // An error says that the task ended, which is an end too.
        let _ = outcome.wait_for(Option::is_some).await;
    }
}

#[derive(Debug)]
struct Kept {
    slot: ColdSlot,
    begun: Duration,
}

/// All reads that are under way or wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct ColdReads {
    kept: Mutex<BTreeMap<ColdKey, Kept>>,
}

impl ColdReads {
    /// The read of this place: the one that is there, or a new one, for which a sender of its outcome comes too.
    pub(crate) fn join(&self, now: Duration, key: ColdKey) -> (ColdSlot, Option<watch::Sender<Outcome>>) {
        let mut kept = self.lock();
        kept.retain(|_, read| now.saturating_sub(read.begun) <= KEPT_FOR);
        if let Some(read) = kept.get(&key) {
            return (read.slot.clone(), None);
        }
        if kept.len() >= SLOTS_MAX {
            let oldest = kept.iter().min_by_key(|(_, read)| read.begun).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                kept.remove(&oldest);
            }
        }
        let (sender, outcome) = watch::channel(None);
        let slot = ColdSlot { outcome };
        kept.insert(key, Kept { slot: slot.clone(), begun: now });
        (slot, Some(sender))
    }

    /// Its records are in an answer, or its error is: the next fetch reads anew.
    pub(crate) fn taken(&self, key: &ColdKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ColdKey, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::{PartitionIndex, TopicId};

    use super::*;

    fn key(offset: u64) -> ColdKey {
        let place = TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(0) };
        ColdKey { place, offset: Offset::new(offset).unwrap(), bytes_max: 1 }
    }

    #[tokio::test]
    async fn the_next_fetch_takes_what_the_last_one_began() {
        let reads = ColdReads::default();
        let (slot, sender) = reads.join(Duration::ZERO, key(5));
        assert!(slot.outcome().is_none());
        sender.unwrap().send_replace(Some(Ok(Records { next: Offset::MAX, ..Records::default() })));
        let (again, none) = reads.join(Duration::from_secs(30), key(5));
        assert!(none.is_none());
        again.done().await;
        assert_eq!(again.outcome().unwrap().unwrap().next, Offset::MAX);
        reads.taken(&key(5));
        assert!(reads.join(Duration::from_secs(30), key(5)).1.is_some(), "taken once");
    }

    #[tokio::test]
    async fn what_nobody_takes_is_let_go() {
        let reads = ColdReads::default();
        let _first = reads.join(Duration::ZERO, key(5));
        assert!(reads.join(Duration::from_secs(31), key(5)).1.is_some());
        for offset in 0..u64::try_from(SLOTS_MAX).unwrap() + 10 {
            let _slot = reads.join(Duration::from_secs(40 + offset), key(100 + offset));
        }
        assert!(reads.lock().len() <= SLOTS_MAX);
    }

    #[tokio::test]
    async fn a_read_whose_task_ended_without_an_outcome_is_an_error() {
        let reads = ColdReads::default();
        let (slot, sender) = reads.join(Duration::ZERO, key(5));
        drop(sender);
        slot.done().await;
        assert!(matches!(slot.outcome(), Some(Err(ReadError::Storage(_)))));
    }
}
