//! Reads from the bucket that outlive the fetch that began them.
//!
//! **Owns** what was read, or is being read, for fetches that went out without it: the next fetch of the same place takes
//! it. It is kept until it is taken or [`KEPT_FOR`] has passed, and at most [`SLOTS_MAX`] of them are; each has its share
//! of a budget from its beginning until nobody holds it, and what nobody took yet gives way to new reads.
//!
//! **Does not own** memory of the bucket's chunks: that is the reader's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tidelog_format::batch::BatchHeader;
use tidelog_replica::{ReadError, Records};
use tidelog_runtime::{Budget, Permit, watch};
use tidelog_types::{Offset, TopicPartition, limits::COLD_UNIT_BYTES};

/// How long a read waits for the fetch that takes it.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Reads that are kept at once; above it the oldest goes. Their memory is bounded by the budget: this bounds their number
/// alone. With fewer places than consumers, of a bucket that is slower than their fetches' waits, each that comes back would
/// push out what another one waits for, and none would ever have anything.
const SLOTS_MAX: usize = 4_096;

/// Reads that are begun in any case take at most this part of the budget beyond its whole.
const OVERDRAFT_PART: u64 = 4;

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
    _permit: Arc<Permit>,
}

impl ColdSlot {
    /// What came of it, if it is done.
    pub(crate) fn outcome(&self) -> Outcome {
        let gone = self.outcome.is_closed();
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

    fn is_done(&self) -> bool {
        self.outcome.borrow().is_some()
    }
}

#[derive(Debug)]
struct Kept {
    slot: ColdSlot,
    begun: Duration,
}

/// What came of asking for a read.
#[derive(Debug)]
pub(crate) enum Joined {
    /// It is there.
    UnderWay(ColdSlot),
    /// It is new; its outcome is to be sent.
    Begun(ColdSlot, watch::Sender<Outcome>),
    /// It would be new, and there is no memory for it.
    NoMemory,
}

/// All reads that are under way or wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct ColdReads {
    kept: Mutex<BTreeMap<ColdKey, Kept>>,
}

impl ColdReads {
    /// The read of this place: the one that is there, or a new one, for which `budget` has memory. With `in_any_case` it may
    /// exceed the budget by a quarter.
    pub(crate) fn join(&self, now: Duration, key: ColdKey, budget: &Budget, in_any_case: bool) -> Joined {
        let mut kept = self.lock();
        kept.retain(|_, read| now.saturating_sub(read.begun) <= KEPT_FOR);
        if let Some(read) = kept.get(&key) {
            return Joined::UnderWay(read.slot.clone());
        }
        let bytes = u64::try_from(key.bytes_max).unwrap_or(u64::MAX);
        let overdraft = budget.capacity().saturating_add(budget.capacity() / OVERDRAFT_PART);
        let permit = loop {
            match budget.try_acquire(bytes) {
                Some(permit) => break permit,
                None if drop_oldest(&mut kept, ColdSlot::is_done) => {}
                None if in_any_case && budget.used() <= overdraft => break budget.charge(bytes),
                None => return Joined::NoMemory,
            }
        };
        if kept.len() >= SLOTS_MAX {
            drop_oldest(&mut kept, |_| true);
        }
        let (sender, outcome) = watch::channel(None);
        let slot = ColdSlot { outcome, _permit: Arc::new(permit) };
        kept.insert(key, Kept { slot: slot.clone(), begun: now });
        Joined::Begun(slot, sender)
    }

    /// The read of this place, if there is one.
    pub(crate) fn under_way(&self, now: Duration, key: &ColdKey) -> Option<ColdSlot> {
        let kept = self.lock();
        let read = kept.get(key).filter(|read| now.saturating_sub(read.begun) <= KEPT_FOR);
        read.map(|read| read.slot.clone())
    }

    /// Its records are in an answer, or its error is: the next fetch reads anew.
    pub(crate) fn taken(&self, key: &ColdKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ColdKey, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops the oldest read of these; `false`: there is none.
fn drop_oldest(kept: &mut BTreeMap<ColdKey, Kept>, of: impl Fn(&ColdSlot) -> bool) -> bool {
    let those = kept.iter().filter(|(_, read)| of(&read.slot));
    let oldest = those.min_by_key(|(_, read)| read.begun).map(|(key, _)| *key);
    oldest.is_some_and(|oldest| kept.remove(&oldest).is_some())
}

/// The whole batches of a read that an answer has room for.
#[derive(Debug, Default)]
pub(crate) struct Fitting {
    pub chunks: Vec<Bytes>,
    pub bytes: usize,
    /// The memory that the chunks keep alive.
    pub pinned: usize,
}

/// What of `records`, each chunk of which holds whole batches, fits into `room`; the first batch may have `first_max` bytes
/// where that is more.
pub(crate) fn fitting(records: Records, room: usize, first_max: usize) -> Fitting {
    let mut fitting = Fitting::default();
    for chunk in records.chunks {
        let mut at = 0;
        while at < chunk.len() {
            let size = chunk.get(at..).and_then(BatchHeader::peek).and_then(|header| header.batch_bytes());
            // What does not say its size goes as a whole: that it is batches was checked by who read it.
            let size =
                size.filter(|size| *size > 0).map_or(chunk.len() - at, |size| size.min(chunk.len() - at));
            let first = size <= first_max && fitting.bytes == 0 && at == 0;
            if !first && fitting.bytes.saturating_add(at).saturating_add(size) > room {
                break;
            }
            at += size;
        }
        let whole = at == chunk.len();
        if at > 0 {
            fitting.bytes += at;
            // A small part is copied: it would pin the rest while it is sent.
            let copied = at < chunk.len() / 4;
            fitting.pinned += if copied { at } else { pinned_by(chunk.len()) };
            fitting.chunks.push(if copied {
                Bytes::copy_from_slice(&chunk[..at])
            } else {
                chunk.slice(..at)
            });
        }
        if !whole {
            break;
        }
    }
    fitting
}

/// The most that a slice of a unit keeps alive: a slice is at least a quarter of its unit, and units are of one size unless
/// a batch is larger.
fn pinned_by(bytes: usize) -> usize {
    let unit = usize::try_from(COLD_UNIT_BYTES).unwrap_or(usize::MAX);
    bytes.max(bytes.saturating_mul(4).min(unit))
}

#[cfg(test)]
mod tests {
    use tidelog_types::{PartitionIndex, TopicId};

    use super::*;

    fn key(offset: u64) -> ColdKey {
        let place = TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(0) };
        ColdKey { place, offset: Offset::new(offset).unwrap(), bytes_max: 1 }
    }

    fn budget() -> Budget {
        Budget::new("cold", tidelog_types::ByteSize::bytes(100))
    }

    fn begun(joined: Joined) -> (ColdSlot, watch::Sender<Outcome>) {
        match joined {
            Joined::Begun(slot, sender) => (slot, sender),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_next_fetch_takes_what_the_last_one_began() {
        let (reads, budget) = (ColdReads::default(), budget());
        let (slot, sender) = begun(reads.join(Duration::ZERO, key(5), &budget, false));
        assert!(slot.outcome().is_none());
        sender.send_replace(Some(Ok(Records { next: Offset::MAX, ..Records::default() })));
        let again = reads.join(Duration::from_secs(30), key(5), &budget, false);
        let Joined::UnderWay(again) = again else { panic!("{again:?}") };
        again.done().await;
        assert_eq!(again.outcome().unwrap().unwrap().next, Offset::MAX);
        reads.taken(&key(5));
        begun(reads.join(Duration::from_secs(30), key(5), &budget, false));
    }

    #[tokio::test]
    async fn what_nobody_takes_is_let_go() {
        let (reads, budget) = (ColdReads::default(), budget());
        let _first = reads.join(Duration::ZERO, key(5), &budget, false);
        begun(reads.join(Duration::from_secs(31), key(5), &budget, false));
        for offset in 0..u64::try_from(SLOTS_MAX).unwrap() + 10 {
            let _slot = reads.join(Duration::from_secs(40 + offset), key(100 + offset), &budget, false);
        }
        assert!(reads.lock().len() <= SLOTS_MAX);
    }

    // R10
    #[tokio::test]
    async fn reads_have_memory_until_nobody_holds_them() {
        let (reads, budget) = (ColdReads::default(), budget());
        let of = |offset, bytes_max| ColdKey { bytes_max, ..key(offset) };
        let (first, sender) = begun(reads.join(Duration::ZERO, of(1, 60), &budget, false));
        let (second, _sender) = begun(reads.join(Duration::ZERO, of(2, 40), &budget, false));
        assert_eq!(budget.used(), 100);
        assert!(matches!(reads.join(Duration::ZERO, of(3, 40), &budget, false), Joined::NoMemory));
        assert!(matches!(reads.join(Duration::ZERO, of(3, 1), &budget, true), Joined::Begun(..)));
        assert_eq!(budget.used(), 101, "in any case");
        // A read that is done and was not taken gives way.
        sender.send_replace(Some(Ok(Records::default())));
        drop(first);
        begun(reads.join(Duration::ZERO, of(3, 40), &budget, false));
        assert_eq!(budget.used(), 81);
        reads.taken(&of(2, 40));
        assert_eq!(budget.used(), 81, "still held");
        drop(second);
        assert_eq!(budget.used(), 41);
    }

    // Each of a hundred consumers of a slow bucket comes back before its read is done, over and over.
    #[tokio::test]
    async fn no_read_under_way_is_pushed_out_by_other_consumers() {
        let (reads, budget) = (ColdReads::default(), Budget::new("cold", tidelog_types::ByteSize::mib(1)));
        let senders: Vec<_> =
            (0..100).map(|offset| begun(reads.join(Duration::ZERO, key(offset), &budget, true)).1).collect();
        for offset in 0..100 {
            let again = reads.join(Duration::from_millis(500), key(offset), &budget, true);
            assert!(matches!(again, Joined::UnderWay(_)), "{offset}");
        }
        for (sender, offset) in senders.into_iter().zip(0..) {
            sender.send_replace(Some(Ok(Records::default())));
            assert!(reads.under_way(Duration::from_secs(2), &key(offset)).unwrap().outcome().is_some());
        }
    }

    #[tokio::test]
    async fn what_is_begun_in_any_case_is_bounded() {
        let (reads, budget) = (ColdReads::default(), budget());
        let of = |offset| ColdKey { bytes_max: 10, ..key(offset) };
        let under_way: Vec<_> =
            (0..100).map(|offset| reads.join(Duration::ZERO, of(offset), &budget, true)).collect();
        let begun = under_way.iter().filter(|joined| matches!(joined, Joined::Begun(..))).count();
        assert_eq!((begun, budget.used()), (13, 130), "100 bytes, and a quarter more");
    }

    #[test]
    fn what_fits_is_whole_batches() {
        let batch = |size: usize| {
            let mut bytes = vec![0; size];
            bytes[8..12].copy_from_slice(&i32::try_from(size - 12).unwrap().to_be_bytes());
            bytes
        };
        let chunk =
            |sizes: &[usize]| Bytes::from(sizes.iter().flat_map(|size| batch(*size)).collect::<Vec<u8>>());
        let records =
            || Records { chunks: vec![chunk(&[100, 200, 300]), chunk(&[400])], ..Records::default() };
        let fit = |room, one: bool| {
            let fitting = fitting(records(), room, if one { 100 } else { 99 });
            assert_eq!(fitting.bytes, fitting.chunks.iter().map(Bytes::len).sum::<usize>());
            (fitting.bytes, fitting.pinned)
        };
        assert_eq!(fit(5_000, false), (1000, 4000));
        assert_eq!(fit(1000, false), (1000, 4000));
        assert_eq!(fit(999, false), (600, 2400));
        assert_eq!(fit(599, false), (300, 2400));
        assert_eq!(fit(299, false), (100, 100), "copied");
        assert_eq!(fit(99, false), (0, 0));
        assert_eq!(fit(99, true), (100, 100), "the first one may be larger");
        assert_eq!(
            (pinned_by(1 << 20), pinned_by(300 << 10), pinned_by(5 << 20)),
            (1 << 20, 1 << 20, 5 << 20)
        );
    }

    #[tokio::test]
    async fn a_read_whose_task_ended_without_an_outcome_is_an_error() {
        let (reads, budget) = (ColdReads::default(), budget());
        let (slot, sender) = begun(reads.join(Duration::ZERO, key(5), &budget, false));
        drop(sender);
        slot.done().await;
        assert!(matches!(slot.outcome(), Some(Err(ReadError::Storage(_)))));
    }
}
