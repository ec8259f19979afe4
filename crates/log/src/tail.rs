//! The tail: received batches in memory, so that followers and tailing consumers need no disk.
//!
//! **Owns** the batches of each partition ([`Tail`], under the partition's state lock) and the node's budget for them
//! ([`TailPool`]). **Does not own** the decision what to write behind, nor any file.
//!
//! A batch is charged by the allocation that it keeps alive. The oldest batch of the node goes first, once it is in a
//! segment. At half of the budget unwritten, appends wait; those to a partition that has more than its share, sooner
//! ([`TailPool::has_share`]).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_types::{LeaderEpoch, Offset, Timestamp};
use tokio::sync::Notify;

use crate::partition::Partition;

/// A batch in memory.
#[derive(Debug, Clone)]
pub(crate) struct TailBatch {
    pub(crate) sequence: u64,
    pub(crate) base: Offset,
    /// Inclusive.
    pub(crate) last: Offset,
    pub(crate) header: Bytes,
    pub(crate) body: Bytes,
    pub(crate) max_timestamp: Option<Timestamp>,
    pub(crate) leader_epoch: LeaderEpoch,
    /// Bytes of memory that it keeps alive.
    pub(crate) charge: u64,
    /// Where the journal has it; `None` while it waits for its round.
    pub(crate) journal_position: Option<u64>,
    /// Monotonic time of its append.
    pub(crate) appended: Duration,
}

impl TailBatch {
    pub(crate) fn bytes(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

/// The batches of one partition that are in memory: a contiguous stretch that ends at the log end.
///
/// ```text
///   segments ........................|  (behind_end)
///                    tail  [ written behind | not yet written ]
///                          ^ first            ^ unwritten        ^ log end
/// ```
#[derive(Debug, Default)]
pub(crate) struct Tail {
    batches: VecDeque<TailBatch>,
    /// How many of them, from the front, are in a segment.
    behind: usize,
    next_sequence: u64,
    /// Bytes of batches that are not in a segment.
    unwritten_bytes: u64,
    /// Bytes of batches that wait for their round of the journal.
    waiting_bytes: u64,
}

/// What became of a request to drop a partition's oldest batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is gone; so many bytes are free.
    Freed(u64),
    /// It was gone before.
    Gone,
    /// It is not in a segment yet, or one of the partition before it is not.
    Unwritten,
}

impl Tail {
    pub(crate) fn push(&mut self, mut batch: TailBatch) -> u64 {
        batch.sequence = self.next_sequence;
        self.next_sequence += 1;
        self.unwritten_bytes += batch.bytes() as u64;
        if batch.journal_position.is_none() {
            self.waiting_bytes += batch.bytes() as u64;
        }
        self.batches.push_back(batch);
        self.next_sequence - 1
    }

    /// The first offset in memory.
    pub(crate) fn first(&self) -> Option<Offset> {
        self.batches.front().map(|batch| batch.base)
    }

    /// The index of the batch that holds `offset`, or else of the first one above it.
    fn index_of(&self, offset: Offset) -> usize {
        self.batches.partition_point(|batch| batch.last < offset)
    }

    /// The end of the last batch that lies below `to` as a whole, if it is in memory.
    pub(crate) fn end_below(&self, to: Offset) -> Option<Offset> {
        let before = self.index_of(to).checked_sub(1)?;
        self.batches.get(before).map(|batch| batch.last.next())
    }

    /// Batches from the one that holds `from` on.
    pub(crate) fn from(&self, from: Offset) -> impl Iterator<Item = &TailBatch> {
        self.batches.range(self.index_of(from)..)
    }

    /// Batches not yet in a segment.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = &TailBatch> {
        self.batches.range(self.behind..)
    }

    /// Everything below `end` is in a segment now. Returns the charge of what became droppable.
    pub(crate) fn mark_behind(&mut self, end: Offset) -> u64 {
        let mut charge = 0;
        while let Some(batch) = self.batches.get(self.behind) {
            if batch.last >= end {
                break;
            }
            charge += batch.charge;
            self.unwritten_bytes -= batch.bytes() as u64;
            self.behind += 1;
        }
        charge
    }

    /// Notes where the journal has the batch.
    pub(crate) fn set_journal_position(&mut self, sequence: u64, position: u64) {
        let index = self.batches.partition_point(|batch| batch.sequence < sequence);
        if let Some(batch) = self.batches.get_mut(index)
            && batch.sequence == sequence
            && batch.journal_position.replace(position).is_none()
        {
            self.waiting_bytes -= batch.bytes() as u64;
        }
    }

    /// Drops the oldest batch if it is the one of `sequence` and in a segment.
    pub(crate) fn drop_front(&mut self, sequence: u64) -> Dropped {
        match self.batches.front() {
            Some(front) if front.sequence < sequence => Dropped::Unwritten,
            Some(front) if front.sequence == sequence => {
                if self.behind == 0 {
                    return Dropped::Unwritten;
                }
                self.behind -= 1;
                self.batches.pop_front().map_or(Dropped::Gone, |batch| Dropped::Freed(batch.charge))
            }
            _ => Dropped::Gone,
        }
    }

    /// Removes every batch that reaches `to` or lies above. Returns (charge freed, of it unwritten).
    pub(crate) fn truncate(&mut self, to: Offset) -> (u64, u64) {
        let (mut freed, mut unwritten) = (0, 0);
        while let Some(back) = self.batches.back() {
            if back.last < to {
                break;
            }
            freed += back.charge;
            if back.journal_position.is_none() {
                self.waiting_bytes -= back.bytes() as u64;
            }
            if self.batches.len() > self.behind {
                unwritten += back.charge;
                self.unwritten_bytes -= back.bytes() as u64;
            } else {
                self.behind -= 1;
            }
            self.batches.pop_back();
        }
        (freed, unwritten)
    }

    /// Removes everything. Returns (charge freed, of it unwritten).
    pub(crate) fn clear(&mut self) -> (u64, u64) {
        self.truncate(Offset::ZERO)
    }

    /// The sequence of the newest batch.
    pub(crate) fn last_sequence(&self) -> Option<u64> {
        self.batches.back().map(|batch| batch.sequence)
    }

    /// Bytes of batches that are not in a segment.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes
    }

    /// Bytes of batches that wait for their round of the journal.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }
}

/// Batches that one look for memory passes over since they are not in a segment yet: each append looks.
const PASSED_OVER_MAX: usize = 64;

/// The node's memory for received batches.
#[derive(Debug)]
pub(crate) struct TailPool {
    budget: u64,
    charged: AtomicU64,
    unwritten: AtomicU64,
    /// Batches of all partitions in the order of their appends.
    oldest: Mutex<VecDeque<(Arc<Partition>, u64)>>,
    /// Told whenever unwritten bytes shrink.
    pub(crate) room: Notify,
}

impl TailPool {
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            budget,
            charged: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            oldest: Mutex::new(VecDeque::new()),
            room: Notify::new(),
        }
    }

    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether appends should wait.
    pub(crate) fn crowded(&self) -> bool {
        self.unwritten() >= self.budget / 2
    }

    /// Whether a partition with so many unwritten bytes may have more: no more than all others leave of a half of the budget,
    /// and `least` in any case. So one that is written to as fast as it goes has a quarter, four of them a tenth each, and
    /// what they leave is there for those who write little.
    pub(crate) fn has_share(&self, own: u64, least: u64) -> bool {
        own <= least.max((self.budget / 2).saturating_sub(self.unwritten()))
    }

    /// Whether appends must be refused: callers that wait for room never get here.
    pub(crate) fn full(&self) -> bool {
        self.unwritten() >= self.budget
    }

    /// Takes the newest batch of a partition.
    pub(crate) fn add(&self, partition: &Arc<Partition>, sequence: u64, charge: u64) {
        self.oldest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back((Arc::clone(partition), sequence));
        self.charged.fetch_add(charge, Ordering::Relaxed);
        self.unwritten.fetch_add(charge, Ordering::Relaxed);
    }

    /// So many bytes are in segments now.
    pub(crate) fn wrote(&self, charge: u64) {
        self.unwritten.fetch_sub(charge, Ordering::Relaxed);
        self.room.notify_waiters();
    }

    /// Batches were truncated or deleted.
    pub(crate) fn forget(&self, freed: u64, unwritten: u64) {
        self.charged.fetch_sub(freed, Ordering::Relaxed);
        self.wrote(unwritten);
    }

    /// Drops what batches that were cut off left in the queue.
    pub(crate) fn forget_batches(&self, partition: &Arc<Partition>) {
        let last = partition.lock().tail.last_sequence();
        let mut oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner);
        oldest.retain(|(owner, sequence)| {
            !Arc::ptr_eq(owner, partition) || last.is_some_and(|last| *sequence <= last)
        });
    }

    /// Drops the node's oldest batches until the budget holds. Those that are not in a segment yet are passed over, a few at a
    /// time: they wait for ten seconds where little is written, and what came behind them is in segments long before.
    pub(crate) fn shrink(&self) {
        let mut passed = 0;
        while self.charged() > self.budget && passed < PASSED_OVER_MAX {
            let front = self.oldest.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((partition, sequence)) = front else { return };
            match partition.drop_front(sequence) {
                Dropped::Freed(charge) => {
                    self.charged.fetch_sub(charge, Ordering::Relaxed);
                }
                Dropped::Gone => {}
                Dropped::Unwritten => {
                    // All of a partition that are passed over keep their order among themselves.
                    self.oldest
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push_back((partition, sequence));
                    passed += 1;
                }
            }
        }
    }
}

/// What a batch costs in memory, and its body, copied where it would keep a much larger frame alive.
///
/// The charge of a shared frame is split over the slices of one append in proportion to their length.
pub(crate) fn keep(body: Bytes, frame_bytes: usize, appended_bytes: usize) -> (Bytes, u64) {
    let length = body.len() as u64;
    if frame_bytes <= appended_bytes {
        return (body, length + HEADER_COST);
    }
    if appended_bytes.saturating_mul(4) < frame_bytes {
        return (Bytes::copy_from_slice(&body), length + HEADER_COST);
    }
    let share = u128::from(length) * frame_bytes as u128 / appended_bytes.max(1) as u128;
    (body, u64::try_from(share).unwrap_or(u64::MAX) + HEADER_COST)
}

/// A batch's header apart from its body, and its place in the queues: measured, 61 bytes, two reference counts, 136
/// bytes in the tail and 24 in the pool.
const HEADER_COST: u64 = 288;

#[cfg(test)]
mod tests;
