//! One partition on one node: what may be appended, what may be read, how far.
//!
//! **Owns** the order of the partition's offsets, the decision on an append, the high watermark and the last stable
//! offset, the leader epochs of the log, and its [`Producers`].
//!
//! **Does not own** bytes: the shell holds one lock around this and the log's queue, calls [`PartitionState::decide`],
//! hands the batch to the log, and calls [`PartitionState::appended`] when the log took it. The log reports
//! [`PartitionState::written`] and [`PartitionState::synced`].
//!
//! ```text
//!   log start <= last stable offset <= high watermark <= log end
//!                                      high watermark <= synced end            (by default)
//!                                      high watermark <= written end           (Visibility::Written)
//!   synced end <= written end <= log end
//!   tiered end <= last stable offset
//!   local log start <= max(log start, tiered end)
//! ```
//!
//! Crash behaviour: the high watermark is not persisted. After a restart it begins at what is known to be durable, which
//! is where it was or above, by default; nothing that was visible is gone.

mod append;
mod snapshot;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use thiserror::Error;
use tidelog_types::{LeaderEpoch, Offset, Timestamp};

use crate::producers::{CompletedTransaction, Producers};

pub use append::{AppendDecision, AppendRefusal, AppendRules, BatchFacts, TimestampBounds};
pub use snapshot::{EpochStart, PartitionSnapshot};

/// What a record must be before consumers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    /// Synced on this node: a power cut cannot take back what was read.
    #[default]
    Synced,
    /// Written to the journal: a kill of the process cannot take it back, a power cut can.
    Written,
}

/// When records are synced and when they become visible: `flush.messages`, `flush.ms` and `log.flush.default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushPolicy {
    /// What the high watermark waits for.
    pub visibility: Visibility,
    /// Unsynced records at which a sync is asked for; `None` leaves it to the log's linger.
    pub messages: Option<u64>,
}

impl FlushPolicy {
    /// The policy of a topic: `messages` and `interval_ms` are its overrides of `flush.messages` and `flush.ms`,
    /// `replicated` is `log.flush.default=replicated`. An internal topic always syncs first.
    #[must_use]
    pub fn resolve(
        messages: Option<u64>,
        interval_ms: Option<u64>,
        replicated: bool,
        internal: bool,
    ) -> Self {
        // `flush.messages=1` and `flush.ms=0` ask for a sync of everything: that is the default here.
        let relaxed = messages.is_some_and(|count| count > 1) || interval_ms.is_some_and(|ms| ms > 0);
        let every = messages == Some(1) || interval_ms == Some(0);
        if internal || every || !(relaxed || replicated) {
            return Self { visibility: Visibility::Synced, messages: None };
        }
        Self { visibility: Visibility::Written, messages: messages.filter(|count| *count < u64::MAX) }
    }
}

/// What moved, so that the shell wakes exactly those who wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Moved {
    /// The high watermark grew.
    pub high_watermark: bool,
    /// The last stable offset grew.
    pub last_stable_offset: bool,
    /// The written end grew.
    pub written: bool,
    /// Unsynced records reached `flush.messages`: a sync is due.
    pub sync_due: bool,
    /// A leader epoch began.
    pub epoch: bool,
}

impl Moved {
    /// Whether anything moved that a consumer can see.
    #[must_use]
    pub const fn visible(self) -> bool {
        self.high_watermark || self.last_stable_offset
    }
}

/// A log start that cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("offset {asked} is outside of the log: its high watermark is {high_watermark}")]
pub struct LogStartBeyondHighWatermark {
    /// What was asked.
    pub asked: Offset,
    /// The most that may be asked.
    pub high_watermark: Offset,
}

/// What a restart found on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveredLog {
    /// The larger of the local and the replicated log start.
    pub log_start: Offset,
    /// The first offset on local disk.
    pub local_log_start: Offset,
    /// One past the last offset in the bucket; the log start where the partition is not tiered.
    pub tiered_end: Offset,
    /// One past the last offset.
    pub log_end: Offset,
    /// One past what the journal has written.
    pub written_end: Offset,
    /// One past what is durable.
    pub synced_end: Offset,
    /// The leader epochs of the local log, ascending.
    pub epochs: Vec<EpochStart>,
}

/// The state machine.
#[derive(Debug, Clone)]
pub struct PartitionState {
    leader_epoch: LeaderEpoch,
    leading: bool,
    tiered: bool,
    in_sync_count: usize,
    flush: FlushPolicy,
    log_start: Offset,
    local_log_start: Offset,
    tiered_end: Offset,
    high_watermark: Offset,
    log_end: Offset,
    written_end: Offset,
    synced_end: Offset,
    epochs: Arc<[EpochStart]>,
    producers: Producers,
}

impl PartitionState {
    /// The state after a start, or of a new partition. It leads nothing until [`PartitionState::follow_image`].
    #[must_use]
    pub fn new(log: RecoveredLog, producers: Producers, flush: FlushPolicy) -> Self {
        let log_end = log.log_end.max(log.log_start);
        let written_end = log.written_end.max(log.log_start).min(log_end);
        let synced_end = log.synced_end.max(log.log_start).min(written_end);
        let mut state = Self {
            leader_epoch: LeaderEpoch::ZERO,
            leading: false,
            tiered: false,
            in_sync_count: 0,
            flush,
            log_start: log.log_start,
            local_log_start: log.local_log_start,
            tiered_end: log.tiered_end.max(log.log_start),
            high_watermark: log.log_start,
            log_end,
            written_end,
            synced_end,
            epochs: log.epochs.into(),
            producers,
        };
        let _ = state.advance();
        state
    }

    /// Takes the partition's image: who leads in which epoch, and how many replicas are in sync.
    pub fn follow_image(&mut self, leading: bool, epoch: LeaderEpoch, in_sync_count: usize, tiered: bool) {
        self.leading = leading && epoch >= self.leader_epoch;
        self.leader_epoch = self.leader_epoch.max(epoch);
        self.in_sync_count = in_sync_count;
        self.tiered = tiered;
    }

    /// Ends all leading here: the log failed or the partition goes away.
    pub fn stop_leading(&mut self) {
        self.leading = false;
    }

    /// The policy changed with the topic's configuration.
    pub fn set_flush_policy(&mut self, flush: FlushPolicy) -> Moved {
        self.flush = flush;
        self.advance()
    }

    /// Decides on a client's batch; nothing changes yet.
    ///
    /// # Errors
    /// Why it is refused: certain, nothing was appended.
    pub fn decide(
        &self,
        rules: &AppendRules,
        batch: &BatchFacts,
        now: Timestamp,
    ) -> Result<AppendDecision, AppendRefusal> {
        append::decide(self, rules, batch, now)
    }

    /// The log took a batch that [`PartitionState::decide`] allowed, at `base`.
    pub fn appended(
        &mut self,
        batch: &BatchFacts,
        base: Offset,
        now: Timestamp,
    ) -> (Moved, Option<CompletedTransaction>) {
        assert!(
            base == self.log_end,
            "a batch at {base} was appended to a log that ends at {}",
            self.log_end
        );
        let last = base
            .checked_add(u64::from(batch.last_offset_delta))
            .expect("decide keeps offsets in their space");
        self.log_end = last.next();
        let epoch = self.note_epoch(base);
        let completed =
            batch.producer.as_ref().and_then(|producer| self.producers.record(producer, base, now));
        let unsynced = self.log_end.distance_from(self.synced_end);
        let sync_due = self.flush.messages.is_some_and(|messages| unsynced >= messages);
        self.assert_order();
        (Moved { sync_due, epoch, ..Moved::default() }, completed)
    }

    /// Everything below `end` is in the journal.
    pub fn written(&mut self, end: Offset) -> Moved {
        let before = self.written_end;
        self.written_end = before.max(end.min(self.log_end));
        Moved { written: self.written_end > before, ..self.advance() }
    }

    /// Everything below `end` is durable.
    pub fn synced(&mut self, end: Offset) -> Moved {
        let before = self.written_end;
        self.written_end = before.max(end.min(self.log_end));
        self.synced_end = self.synced_end.max(end.min(self.log_end));
        Moved { written: self.written_end > before, ..self.advance() }
    }

    /// Moves the log start forward; a smaller one changes nothing.
    ///
    /// # Errors
    /// It is above the high watermark.
    pub fn set_log_start(&mut self, to: Offset) -> Result<Moved, LogStartBeyondHighWatermark> {
        if to > self.high_watermark {
            return Err(LogStartBeyondHighWatermark { asked: to, high_watermark: self.high_watermark });
        }
        if to > self.log_start {
            let stable = self.last_stable_offset();
            self.log_start = to;
            self.tiered_end = self.tiered_end.max(to);
            self.producers.log_start_moved(to);
            self.drop_epochs_below(to);
            self.assert_order();
            let last_stable_offset = self.last_stable_offset() > stable;
            return Ok(Moved { last_stable_offset, ..Moved::default() });
        }
        Ok(Moved::default())
    }

    /// The first offset on local disk moved.
    pub fn set_local_log_start(&mut self, to: Offset) {
        self.local_log_start = self.local_log_start.max(to.min(self.log_end));
    }

    /// The bucket holds everything from the log start to `end`.
    pub fn set_tiered_end(&mut self, end: Offset) {
        self.tiered_end = self.tiered_end.max(end);
    }

    /// The log was begun anew at `start` (T5): all state of the local log is gone, the log start is not.
    pub fn reset(&mut self, start: Offset, producers: Producers) {
        self.local_log_start = start;
        self.log_end = start;
        self.written_end = start;
        self.synced_end = start;
        self.tiered_end = self.tiered_end.max(start);
        self.high_watermark = start;
        self.epochs = Arc::from([]);
        self.producers = producers;
        self.assert_order();
    }

    /// Forgets producers that were silent too long; answers how many.
    pub fn expire_producers(&mut self, now: Timestamp) -> usize {
        self.producers.expire(now)
    }

    /// The producers.
    #[must_use]
    pub const fn producers(&self) -> &Producers {
        &self.producers
    }

    /// The producers, to change their bounds.
    pub const fn producers_mut(&mut self) -> &mut Producers {
        &mut self.producers
    }

    /// The log end offset.
    #[must_use]
    pub const fn log_end(&self) -> Offset {
        self.log_end
    }

    /// One past what the journal has written.
    #[must_use]
    pub const fn written_end(&self) -> Offset {
        self.written_end
    }

    /// The high watermark.
    #[must_use]
    pub const fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// The log start offset.
    #[must_use]
    pub const fn log_start(&self) -> Offset {
        self.log_start
    }

    /// The epoch that this node leads in, if it leads.
    #[must_use]
    pub fn leading(&self) -> Option<LeaderEpoch> {
        self.leading.then_some(self.leader_epoch)
    }

    /// The last stable offset: nothing below it can still be aborted.
    #[must_use]
    pub fn last_stable_offset(&self) -> Offset {
        self.producers
            .first_unstable()
            .map_or(self.high_watermark, |unstable| unstable.min(self.high_watermark))
            .max(self.log_start)
    }

    /// What readers see.
    #[must_use]
    pub fn snapshot(&self) -> PartitionSnapshot {
        PartitionSnapshot {
            leader_epoch: self.leader_epoch,
            leading: self.leading,
            tiered: self.tiered,
            log_start: self.log_start,
            local_log_start: self.local_log_start,
            tiered_end: self.tiered_end,
            last_stable_offset: self.last_stable_offset(),
            high_watermark: self.high_watermark,
            log_end: self.log_end,
            written_end: self.written_end,
            synced_end: self.synced_end,
            epochs: Arc::clone(&self.epochs),
        }
    }

    /// Moves the high watermark to where the policy allows it; it never goes back.
    fn advance(&mut self) -> Moved {
        let stable = self.last_stable_offset();
        let reached = match self.flush.visibility {
            Visibility::Synced => self.synced_end,
            Visibility::Written => self.written_end,
        };
        let mut moved = Moved::default();
        if reached > self.high_watermark {
            self.high_watermark = reached;
            self.producers.high_watermark_moved(reached);
            moved.high_watermark = true;
        }
        moved.last_stable_offset = self.last_stable_offset() > stable;
        self.assert_order();
        moved
    }

    /// Answers whether the epoch is new to the log.
    fn note_epoch(&mut self, base: Offset) -> bool {
        let epoch = self.leader_epoch;
        let new = self.epochs.last().is_none_or(|last| last.epoch < epoch);
        if new {
            self.epochs = self.epochs.iter().copied().chain([EpochStart { epoch, start: base }]).collect();
        }
        new
    }

    /// Kafka's `truncateFromStart`: the epoch that holds `to` begins there, older ones are forgotten.
    fn drop_epochs_below(&mut self, to: Offset) {
        let Some(first) = self.epochs.iter().rposition(|entry| entry.start <= to) else { return };
        let mut kept = self.epochs[first..].to_vec();
        kept[0].start = to;
        self.epochs = kept.into();
    }

    fn assert_order(&self) {
        let stable = self.last_stable_offset();
        assert!(
            self.log_start <= stable,
            "log start {} is above the last stable offset {stable}",
            self.log_start
        );
        assert!(
            stable <= self.high_watermark,
            "last stable offset {stable} is above {}",
            self.high_watermark
        );
        assert!(
            self.high_watermark <= self.log_end,
            "high watermark {} is above the log end {}",
            self.high_watermark,
            self.log_end
        );
        assert!(
            self.synced_end <= self.written_end && self.written_end <= self.log_end,
            "synced {} written {} end {}",
            self.synced_end,
            self.written_end,
            self.log_end
        );
    }
}
