//! What a partition knows about its idempotent and transactional producers.
//!
//! **Owns** the rules that make a retry recognised and a gap refused, the remembered batches behind them, the open
//! transactions and so the last stable offset, expiry, and the bound on all of it.
//!
//! **Does not own** the bytes of a snapshot (`format::producers`), nor the order of an append: whoever holds the
//! partition's lock asks [`Producers::check`], assigns offsets, and tells [`Producers::record`].
//!
//! The rules are Kafka's (`ProducerAppendInfo`):
//!
//! ```text
//! no state for the id             any first sequence is accepted and is the new base (KIP-360: state may have expired)
//! same epoch, one of the last 5   a duplicate: answered with the offsets of the original
//! same epoch, next sequence       accepted; after 2147483647 comes 0
//! same epoch, anything else       OUT_OF_ORDER_SEQUENCE_NUMBER
//! higher epoch, sequence 0        accepted; what was remembered is forgotten
//! higher epoch, anything else     OUT_OF_ORDER_SEQUENCE_NUMBER
//! lower epoch                     INVALID_PRODUCER_EPOCH
//! ```
//!
//! Crash behaviour: a state is a function of the log. It is restored from a snapshot at some offset and the headers of
//! every batch from there on ([`Producers::replay`]), and equals the one that was lost.

mod batches;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use thiserror::Error;
use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp, limits};

pub use batches::{RememberedBatch, RememberedBatches};

/// The sequence of a record `distance` after `sequence`: sequences are 31 bits wide and wrap to 0.
#[must_use]
pub const fn sequence_after(sequence: i32, distance: i32) -> i32 {
    let sum = sequence as i64 + distance as i64;
    // Both are at most 2^31 - 1, so one subtraction brings the sum back into range.
    let wrapped = if sum > i32::MAX as i64 { sum - (i32::MAX as i64 + 1) } else { sum };
    #[allow(clippy::cast_possible_truncation, reason = "the sum was brought into the range of i32 above")]
    {
        wrapped as i32
    }
}

/// What a batch's header says about its producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Who sent it.
    pub producer_id: ProducerId,
    /// In which epoch.
    pub producer_epoch: ProducerEpoch,
    /// The sequence of its first record; −1 in a control batch.
    pub base_sequence: i32,
    /// Last offset − base offset.
    pub last_offset_delta: i32,
    /// The largest timestamp in it, where it has one.
    pub max_timestamp: Option<Timestamp>,
    /// Whether it belongs to a transaction.
    pub transactional: bool,
    /// Whether it is the marker that ends a transaction.
    pub control: bool,
}

impl ProducerBatch {
    /// The sequence of its last record.
    #[must_use]
    pub const fn last_sequence(&self) -> i32 {
        sequence_after(self.base_sequence, self.last_offset_delta)
    }
}

/// What an append of a batch would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its records are new.
    New,
    /// The log holds it already, there.
    Duplicate(RememberedBatch),
}

/// Why a batch is refused; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProducerError {
    /// A newer producer took the id over: `INVALID_PRODUCER_EPOCH`.
    #[error("producer {producer_id} has epoch {current}, the batch is of epoch {given}")]
    Fenced {
        /// Whose batch.
        producer_id: ProducerId,
        /// The epoch that the partition knows.
        current: ProducerEpoch,
        /// The batch's.
        given: ProducerEpoch,
    },
    /// Records between the last one and this batch are missing: `OUT_OF_ORDER_SEQUENCE_NUMBER`.
    #[error("producer {producer_id} sent sequence {given}, the last one here is {last:?}")]
    OutOfOrder {
        /// Whose batch.
        producer_id: ProducerId,
        /// The sequence of the last record of the epoch here; `None` when it has none.
        last: Option<i32>,
        /// The batch's first sequence.
        given: i32,
    },
}

/// A transaction that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedTransaction {
    /// Whose it was.
    pub producer_id: ProducerId,
    /// The offset of its first record.
    pub first: Offset,
    /// The offset of its marker, inclusive.
    pub last: Offset,
}

/// What is known of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Its newest epoch here.
    pub epoch: ProducerEpoch,
    /// Its last batches in that epoch, oldest first.
    pub batches: RememberedBatches,
    /// The wall-clock time of its last append: expiry counts from it, and not from the records' timestamps, which may be
    /// years old.
    pub last_append: Timestamp,
    /// The first offset of its open transaction.
    pub open_transaction: Option<Offset>,
}

/// Bounds of a partition's producer state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerLimits {
    /// `producer.id.expiration.ms`.
    pub expiration: Duration,
    /// Producers that one partition remembers; above it those that were silent longest are forgotten.
    pub entries_max: usize,
}

impl Default for ProducerLimits {
    fn default() -> Self {
        Self {
            expiration: Duration::from_secs(24 * 60 * 60),
            entries_max: limits::PRODUCERS_PER_PARTITION_MAX,
        }
    }
}

/// The producers of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Producers {
    limits: ProducerLimits,
    entries: BTreeMap<ProducerId, ProducerEntry>,
    /// Open transactions by their first offset.
    open: BTreeMap<Offset, ProducerId>,
    /// Ended transactions whose marker is not below the high watermark yet, by first offset, with the marker's offset.
    undecided: BTreeMap<Offset, Offset>,
}

impl Producers {
    /// No producers.
    #[must_use]
    pub fn new(limits: ProducerLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The state that a snapshot holds. Ended transactions are not in a snapshot: their markers are in the log below it.
    #[must_use]
    pub fn restore(
        limits: ProducerLimits,
        entries: impl IntoIterator<Item = (ProducerId, ProducerEntry)>,
    ) -> Self {
        let entries: BTreeMap<_, _> = entries.into_iter().collect();
        let open = entries.iter().filter_map(|(id, entry)| Some((entry.open_transaction?, *id))).collect();
        Self { limits, entries, open, undecided: BTreeMap::new() }
    }

    /// Every known producer, by id.
    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerEntry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// What is known of one producer.
    #[must_use]
    pub fn get(&self, id: ProducerId) -> Option<&ProducerEntry> {
        self.entries.get(&id)
    }

    /// How many producers are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Changes the bounds, as a configuration change does; what is above them goes at the next [`Producers::expire`].
    pub fn set_limits(&mut self, limits: ProducerLimits) {
        self.limits = limits;
    }

    /// Decides on a client's batch, without changing anything.
    ///
    /// # Errors
    /// Why the batch is refused.
    pub fn check(&self, batch: &ProducerBatch) -> Result<Verdict, ProducerError> {
        let Some(entry) = self.entries.get(&batch.producer_id) else { return Ok(Verdict::New) };
        let producer_id = batch.producer_id;
        if batch.producer_epoch < entry.epoch {
            return Err(ProducerError::Fenced {
                producer_id,
                current: entry.epoch,
                given: batch.producer_epoch,
            });
        }
        if batch.control {
            return Ok(Verdict::New);
        }
        let given = batch.base_sequence;
        if batch.producer_epoch > entry.epoch {
            return if given == 0 {
                Ok(Verdict::New)
            } else {
                Err(ProducerError::OutOfOrder {
                    producer_id,
                    last: entry.batches.last().map(|last| last.last_sequence),
                    given,
                })
            };
        }
        if let Some(original) = entry.batches.find(given, batch.last_sequence()) {
            return Ok(Verdict::Duplicate(original));
        }
        let last = entry.batches.last().map(|last| last.last_sequence);
        // A producer known by a marker alone has written nothing in this epoch: it begins at 0.
        let expected = last.map_or(0, |last| sequence_after(last, 1));
        if given == expected {
            Ok(Verdict::New)
        } else {
            Err(ProducerError::OutOfOrder { producer_id, last, given })
        }
    }

    /// Takes over a batch that was given `base`; it was checked, or is read from the log. Answers the transaction that it
    /// ends, if it is a marker of one.
    pub fn record(
        &mut self,
        batch: &ProducerBatch,
        base: Offset,
        now: Timestamp,
    ) -> Option<CompletedTransaction> {
        let delta = u64::try_from(batch.last_offset_delta)
            .expect("a batch's last offset delta is validated as not negative");
        let last =
            base.checked_add(delta).expect("offsets of a batch are validated before they are assigned");
        let id = batch.producer_id;
        let entry = self.entries.entry(id).or_insert_with(|| ProducerEntry {
            epoch: batch.producer_epoch,
            batches: RememberedBatches::default(),
            last_append: now,
            open_transaction: None,
        });
        entry.last_append = entry.last_append.max(now);
        if batch.producer_epoch > entry.epoch {
            entry.epoch = batch.producer_epoch;
            entry.batches = RememberedBatches::default();
        }
        let mut completed = None;
        if batch.control {
            if let Some(first) = entry.open_transaction.take() {
                self.open.remove(&first);
                self.undecided.insert(first, last);
                completed = Some(CompletedTransaction { producer_id: id, first, last });
            }
        } else {
            entry.batches.push(RememberedBatch {
                base_sequence: batch.base_sequence,
                last_sequence: batch.last_sequence(),
                base_offset: base,
                last_offset: last,
                max_timestamp: batch.max_timestamp,
            });
            if batch.transactional && entry.open_transaction.is_none() {
                entry.open_transaction = Some(base);
                self.open.insert(base, id);
            }
        }
        self.bound(id);
        completed
    }

    /// Takes over a batch that is in the log already, as a restart finds it. A batch of an epoch below the known one, which
    /// only a log written by others can hold, is passed over.
    pub fn replay(
        &mut self,
        batch: &ProducerBatch,
        base: Offset,
        now: Timestamp,
    ) -> Option<CompletedTransaction> {
        if self.entries.get(&batch.producer_id).is_some_and(|entry| batch.producer_epoch < entry.epoch) {
            return None;
        }
        self.record(batch, base, now)
    }

    /// Forgets ended transactions whose markers are readable.
    pub fn high_watermark_moved(&mut self, high_watermark: Offset) {
        self.undecided.retain(|_, marker| *marker >= high_watermark);
    }

    /// Forgets transactions that lie wholly below the log start. What is remembered of batches stays: a producer is not
    /// refused because its records were deleted.
    pub fn log_start_moved(&mut self, log_start: Offset) {
        self.undecided.retain(|_, marker| *marker >= log_start);
    }

    /// The first offset that is not decided: of an open transaction, or of one whose marker is not readable yet. The last
    /// stable offset is the lesser of it and the high watermark.
    #[must_use]
    pub fn first_unstable(&self) -> Option<Offset> {
        let open = self.open.keys().next();
        let undecided = self.undecided.keys().next();
        open.into_iter().chain(undecided).min().copied()
    }

    /// Forgets producers that were silent for `producer.id.expiration.ms` and have no open transaction. Answers how many.
    pub fn expire(&mut self, now: Timestamp) -> usize {
        let before = self.entries.len();
        let expiration = self.limits.expiration.as_millis();
        self.entries.retain(|_, entry| {
            entry.open_transaction.is_some() || u128::from(now.millis_since(entry.last_append)) < expiration
        });
        before - self.entries.len()
    }

    /// Keeps the count within its bound, sparing the producer that was just recorded: a tenth goes at once, so that the
    /// search for the oldest is rare.
    fn bound(&mut self, spared: ProducerId) {
        if self.entries.len() <= self.limits.entries_max.max(1) {
            return;
        }
        let mut ages: Vec<(Timestamp, ProducerId)> = self
            .entries
            .iter()
            .filter(|(id, entry)| **id != spared && entry.open_transaction.is_none())
            .map(|(id, entry)| (entry.last_append, *id))
            .collect();
        ages.sort_unstable();
        let excess = self.entries.len() - self.limits.entries_max.max(1) + self.limits.entries_max / 10;
        for (_, id) in ages.into_iter().take(excess) {
            self.entries.remove(&id);
        }
    }
}
