//! The journal: one sequential file of everything that all partitions append.
//!
//! **Owns** the queue of what waits for a round ([`Queue`]), the files ([`files::Files`]), the task that writes and syncs
//! rounds ([`committer`]) and the play of what a stop left ([`play`]). **Does not own** any partition's state: it reports
//! ends, and partitions move their offsets.
//!
//! One write serves all that waits when it starts, one sync all that was written before it starts; while a sync runs
//! the next round is written. What a round has of large entries is bounded ([`pace`]) while others wait for syncs of little: an entry
//! that is left for the next round is passed by others, but by none of its own partition.

pub(crate) mod committer;
mod encode;
pub(crate) mod files;
mod pace;
pub(crate) mod play;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidelog_types::{Offset, TopicPartition, limits::BATCH_HEADER_BYTES};
use tokio::sync::Notify;

use crate::partition::Partition;

/// One batch on its way to the journal.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Its sequence in the partition's tail.
    pub(crate) sequence: u64,
    /// Beside the tail's own: one that is shared needs a reference count on the heap.
    pub(crate) header: [u8; BATCH_HEADER_BYTES],
    pub(crate) body: Bytes,
}

/// What an entry says.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "appends are what there is many of")]
pub(crate) enum Request {
    Append(Piece),
    Truncate(Offset),
    Reset(Offset),
    LogStart(Offset),
    LocalLogStart(Offset),
    Delete,
}

/// One partition's entry, waiting for a round.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) partition: Arc<Partition>,
    /// The partition's count of truncations when it was made.
    pub(crate) cut: u64,
    /// The partition's log end once this entry is there.
    pub(crate) end: Offset,
    pub(crate) request: Request,
}

impl Entry {
    /// Its size in the journal, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.request {
            Request::Append(piece) => (piece.header.len() + piece.body.len() + ENTRY_BYTES) as u64,
            _ => ENTRY_BYTES as u64,
        }
    }
}

/// An entry without its batch, rounded up.
const ENTRY_BYTES: usize = 128;

/// An entry above this is a large one: what a producer writes that does not linger is below.
const LARGE_ENTRY_BYTES: u64 = 64 * 1024;

/// Entries that one look for a round's passes over at most.
const PASSED_OVER_MAX: usize = 4096;

impl Entry {
    /// Whether it is one of those of which a round has a bounded share.
    fn is_large(&self) -> bool {
        self.bytes() > LARGE_ENTRY_BYTES
    }

    /// Whether it is a batch of a producer who writes little at a time.
    fn is_light(&self) -> bool {
        matches!(self.request, Request::Append(_)) && !self.is_large()
    }
}

/// What a round may have.
#[derive(Debug, Clone, Copy)]
struct RoundMax {
    bytes: u64,
    /// Of large entries.
    large: u64,
    /// One large entry may be larger than that.
    one_large: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    /// With their tickets.
    entries: VecDeque<(u64, Entry)>,
    /// Their size in the journal, roughly.
    bytes: u64,
    /// Entries pushed since the start: the ticket of the newest.
    pushed: u64,
}

/// Entries that wait for a round, in order. Tickets count them from 1.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// The committer waits on it.
    pub(crate) wake: Notify,
    /// Whoever waits for a ticket waits on it.
    progress: Notify,
    urgent: AtomicU64,
    synced: AtomicU64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. Its bound is the tail's budget, which the caller has looked at.
    pub(crate) fn push(&self, entry: Entry) -> u64 {
        let ticket = {
            let mut waiting = self.lock();
            waiting.bytes = waiting.bytes.saturating_add(entry.bytes());
            waiting.pushed += 1;
            let ticket = waiting.pushed;
            waiting.entries.push_back((ticket, entry));
            ticket
        };
        self.wake.notify_one();
        ticket
    }

    /// Bytes that wait for a round, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Everything pushed so far is to be synced at once.
    pub(crate) fn request_sync(&self) {
        let pushed = self.lock().pushed;
        if pushed > self.synced.load(Ordering::Acquire)
            && self.urgent.fetch_max(pushed, Ordering::AcqRel) < pushed
        {
            self.wake.notify_one();
        }
    }

    /// The newest ticket that somebody waits for.
    pub(crate) fn urgent(&self) -> u64 {
        self.urgent.load(Ordering::Acquire)
    }

    /// Takes entries for one round into `taken`, which is empty: in order, but that large ones beyond their share stay, with what
    /// is behind them of their partition. Answers the newest ticket up to which nothing is left.
    fn take(&self, max: RoundMax, taken: &mut Vec<Entry>) -> u64 {
        let mut waiting = self.lock();
        let (mut bytes, mut large) = (0_u64, 0_u64);
        let mut left = Vec::new();
        let mut partitions_left: BTreeSet<TopicPartition> = BTreeSet::new();
        while let Some((ticket, entry)) = waiting.entries.pop_front() {
            let (own, is_large) = (entry.bytes(), entry.is_large());
            if (!taken.is_empty() && bytes.saturating_add(own) > max.bytes) || left.len() >= PASSED_OVER_MAX {
                waiting.entries.push_front((ticket, entry));
                break;
            }
            let fits = !is_large || large.saturating_add(own) <= max.large || (max.one_large && large == 0);
            if !fits || partitions_left.contains(&entry.partition.place) {
                partitions_left.insert(entry.partition.place);
                left.push((ticket, entry));
                continue;
            }
            bytes = bytes.saturating_add(own);
            large = large.saturating_add(if is_large { own } else { 0 });
            taken.push(entry);
        }
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        for passed in left.into_iter().rev() {
            waiting.entries.push_front(passed);
        }
        waiting.entries.front().map_or(waiting.pushed, |(ticket, _)| ticket - 1)
    }

    fn note_synced(&self, ticket: u64) {
        self.synced.fetch_max(ticket, Ordering::AcqRel);
        self.progress.notify_waiters();
    }

    /// Wakes whoever waits for a ticket: the log failed.
    pub(crate) fn note_failed(&self) {
        self.progress.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits until the entry of `ticket` is durable, or until `failed` says that it never will be.
    pub(crate) async fn wait_synced<E>(
        &self,
        ticket: u64,
        failed: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        self.urgent.fetch_max(ticket, Ordering::AcqRel);
        self.wake.notify_one();
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if self.synced.load(Ordering::Acquire) >= ticket {
                return Ok(());
            }
            failed()?;
            progress.await;
        }
    }

    /// The ticket of the newest entry.
    pub(crate) fn newest(&self) -> u64 {
        self.lock().pushed
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::{PartitionIndex, TopicId};

    use super::*;
    use crate::{PartitionConfig, files::Files, partition::State};

    const SHARE: u64 = 300_000;

    fn partition(number: i32) -> Arc<Partition> {
        let place =
            TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(number) };
        let state = State::empty(PartitionConfig::default(), Offset::ZERO);
        Arc::new(Partition::new(place, "folder".into(), state, Files::default()))
    }

    /// An entry whose sequence tells it.
    fn entry(partition: &Arc<Partition>, sequence: u64, bytes: usize) -> Entry {
        let piece = Piece { sequence, header: [0; BATCH_HEADER_BYTES], body: Bytes::from(vec![0; bytes]) };
        let end = Offset::new(sequence).unwrap();
        Entry { partition: Arc::clone(partition), cut: 0, end, request: Request::Append(piece) }
    }

    fn taken(queue: &Queue, max: RoundMax) -> (Vec<u64>, u64) {
        let mut taken = Vec::new();
        let ticket = queue.take(max, &mut taken);
        (taken.iter().map(|entry| entry.end.get()).collect(), ticket)
    }

    // One client that floods, and one that writes a little: the little is in the next round, whatever waits before it.
    #[test]
    fn a_little_is_in_the_next_round_and_what_floods_keeps_its_order() {
        let queue = Queue::default();
        let (flooded, other) = (partition(0), partition(1));
        for sequence in 1..=6 {
            queue.push(entry(&flooded, sequence, 200_000));
        }
        queue.push(entry(&flooded, 7, 100));
        queue.push(entry(&other, 8, 1000));
        let all = RoundMax { bytes: 4 << 20, large: u64::MAX, one_large: true };
        let fair = RoundMax { large: SHARE, ..all };
        assert_eq!(taken(&queue, fair), (vec![1, 8], 1), "up to 1 nothing is left");
        queue.push(entry(&other, 9, 1000));
        let none = RoundMax { large: 0, one_large: false, ..all };
        assert_eq!(taken(&queue, none), (vec![9], 1), "what was written before has the share");
        assert_eq!(taken(&queue, none), (vec![], 1));
        assert_eq!(taken(&queue, RoundMax { large: 2 * SHARE, ..all }), (vec![2, 3], 3));
        assert_eq!(taken(&queue, RoundMax { large: 1, ..all }), (vec![4], 4), "one in any case");
        assert_eq!(queue.bytes(), 2 * (200_000 + 61 + 128) + 100 + 61 + 128);
        assert_eq!(taken(&queue, all), (vec![5, 6, 7], 9));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn partitions_that_are_flooded_take_turns() {
        let queue = Queue::default();
        let (one, two) = (partition(0), partition(1));
        for sequence in 1..=3 {
            queue.push(entry(&one, 10 + sequence, 250_000));
            queue.push(entry(&two, 20 + sequence, 250_000));
        }
        let fair = RoundMax { bytes: 4 << 20, large: SHARE, one_large: true };
        let rounds: Vec<Vec<u64>> = (0..6).map(|_| taken(&queue, fair).0).collect();
        assert_eq!(rounds, [[11], [21], [12], [22], [13], [23]]);
        let full = RoundMax { bytes: 1000, large: u64::MAX, one_large: true };
        queue.push(entry(&one, 30, 5000));
        queue.push(entry(&two, 31, 10));
        assert_eq!(
            taken(&queue, full),
            (vec![30], 7),
            "one entry in any case, and no more than the round's bytes"
        );
    }
}
