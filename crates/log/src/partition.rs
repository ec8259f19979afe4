//! One partition's log: what its owner calls, and what appends and readers share.
//!
//! **Owns** the partition's offsets, its tail and epoch chain (under one short lock that is never held across IO), and
//! the published list of its segments. **Does not own** the files themselves ([`crate::files`]) nor the journal.
//!
//! ```text
//!   log start <= local log start                  behind_end <= written_end   log end
//!       |             |                               |             |            |
//!   ----+-------------+== segments on disk ===========+             |            |
//!                                       +== tail (memory) ==========+============+
//!                                                        synced_end <= written_end
//! ```

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tidelog_format::{batch::BatchHeader, epochs::EpochChain};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, TopicPartition};
use tokio::sync::Notify;

use crate::{
    AppendBatch, AppendError, LogFailure, LogObserver, LogOffsets, LogRead, PartitionConfig, ReadError,
    SegmentSummary,
    engine::Engine,
    files::Files,
    journal::{Entry, Piece, Request},
    segment::Segment,
    tail::{Dropped, Tail, TailBatch, keep},
    write_behind::Turn,
};

/// What appends and readers share; locked for moments only.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: PartitionConfig,
    pub(crate) log_start: Offset,
    pub(crate) local_log_start: Offset,
    pub(crate) log_end: Offset,
    pub(crate) written_end: Offset,
    pub(crate) synced_end: Offset,
    /// One past what is in segments.
    pub(crate) behind_end: Offset,
    pub(crate) tail: Tail,
    pub(crate) epochs: EpochChain,
    /// From here on the producers' state can be rebuilt after a kill: the newest stored one that the newest durable checkpoint
    /// leaves in place. A cut may have removed it.
    pub(crate) producers_from: Offset,
    /// Counts truncations and resets, so that the completion of an older round moves nothing.
    pub(crate) cut: u64,
    pub(crate) fenced: Option<Arc<str>>,
    /// Ascending: what the start found missing, as far as it is still in the log.
    pub(crate) lost: Vec<OffsetRange>,
    pub(crate) deleted: bool,
    /// Whether the partition waits in the queue of those to write behind by age.
    pub(crate) aging: bool,
}

/// One partition.
pub(crate) struct Partition {
    pub(crate) place: TopicPartition,
    pub(crate) folder: PathBuf,
    pub(crate) state: Mutex<State>,
    /// Whoever changes files holds this.
    pub(crate) files: tokio::sync::Mutex<Files>,
    /// Ascending by base.
    pub(crate) segments: ArcSwap<Vec<Arc<Segment>>>,
    observer: RwLock<Option<Arc<dyn LogObserver>>>,
    /// Told whenever offsets move.
    pub(crate) changed: Notify,
    /// Whether it waits for a write-behind worker, for each kind of turn.
    queued_large: AtomicBool,
    queued_old: AtomicBool,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Partition {
    /// Whether it waits for a write-behind worker's turn of this kind.
    pub(crate) const fn queued(&self, turn: Turn) -> &AtomicBool {
        match turn {
            Turn::Large => &self.queued_large,
            Turn::Old => &self.queued_old,
        }
    }

    pub(crate) fn new(place: TopicPartition, folder: PathBuf, state: State, files: Files) -> Self {
        Self {
            place,
            folder,
            state: Mutex::new(state),
            files: tokio::sync::Mutex::new(files),
            segments: ArcSwap::from_pointee(Vec::new()),
            observer: RwLock::new(None),
            changed: Notify::new(),
            queued_large: AtomicBool::new(false),
            queued_old: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn observer(&self) -> Option<Arc<dyn LogObserver>> {
        self.observer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn drop_front(&self, sequence: u64) -> Dropped {
        self.lock().tail.drop_front(sequence)
    }

    /// The journal wrote everything below `end`, as of `cut`.
    pub(crate) fn note_written(&self, cut: u64, end: Offset) {
        {
            let mut state = self.lock();
            if state.cut != cut || end <= state.written_end {
                return;
            }
            assert!(end <= state.log_end, "written end {end} is above the log end {}", state.log_end);
            state.written_end = end;
        }
        self.changed.notify_waiters();
        if let Some(observer) = self.observer() {
            observer.written(end);
        }
    }

    /// The journal synced everything below `end`, as of `cut`.
    pub(crate) fn note_synced(&self, cut: u64, end: Offset) {
        {
            let mut state = self.lock();
            if state.cut != cut || end <= state.synced_end {
                return;
            }
            assert!(end <= state.log_end, "synced end {end} is above the log end {}", state.log_end);
            state.synced_end = end;
            state.written_end = state.written_end.max(end);
        }
        self.changed.notify_waiters();
        if let Some(observer) = self.observer() {
            observer.synced(end);
        }
    }

    pub(crate) fn note_failed(&self, why: &LogFailure) {
        self.changed.notify_waiters();
        if let Some(observer) = self.observer() {
            observer.failed(why);
        }
    }
}

/// One partition's log. Clones are the same log.
///
/// Whoever appends, truncates or moves a start serialises these calls; reads may come from anywhere at any time.
#[derive(Clone, Debug)]
pub struct PartitionLog {
    pub(crate) engine: Arc<Engine>,
    pub(crate) partition: Arc<Partition>,
}

impl PartitionLog {
    /// Which partition this is.
    #[must_use]
    pub fn place(&self) -> TopicPartition {
        self.partition.place
    }

    /// Sets who is told of progress; replaces the one before. Progress made earlier is in [`PartitionLog::offsets`].
    pub fn attach(&self, observer: Arc<dyn LogObserver>) {
        *self.partition.observer.write().unwrap_or_else(PoisonError::into_inner) = Some(observer);
    }

    /// Takes new settings; they act on the next append.
    pub fn set_config(&self, config: PartitionConfig) {
        self.partition.lock().config = config;
    }

    /// Whether the disk has space for appends, as of the last look.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.engine.space.ok()
    }

    /// Appends batches of one received frame, in order, and hands them to the journal's next round. Does no IO. Returns the
    /// new log end offset.
    ///
    /// # Errors
    /// Nothing was appended. [`AppendError::NoSpace`] and [`AppendError::Backpressure`] may be retried.
    pub fn append<B>(&self, batches: B) -> Result<Offset, AppendError>
    where
        B: AsRef<[AppendBatch]> + IntoIterator<Item = AppendBatch>,
    {
        let engine = &self.engine;
        engine.accepting()?;
        if !engine.space.ok() {
            return Err(AppendError::NoSpace);
        }
        if engine.pool.full() || engine.journal_overfull() || engine.space.unknown() {
            engine.wake_write_behind();
            return Err(AppendError::Backpressure);
        }
        let now = engine.clock.monotonic();
        let appended_bytes = batches.as_ref().iter().map(|batch| batch.body.len() + 61).sum::<usize>();
        let mut state = self.partition.lock();
        check_order(&state, batches.as_ref())?;
        for batch in batches {
            let (body, charge) = keep(batch.body, batch.frame_bytes, appended_bytes);
            state.epochs.assign(batch.leader_epoch, batch.base_offset);
            state.log_end = batch.last_offset.next();
            let sequence = state.tail.push(TailBatch {
                sequence: 0,
                base: batch.base_offset,
                last: batch.last_offset,
                header: Bytes::copy_from_slice(&batch.header),
                body: body.clone(),
                max_timestamp: batch.max_timestamp,
                leader_epoch: batch.leader_epoch,
                charge,
                journal_position: None,
                appended: now,
            });
            engine.pool.add(&self.partition, sequence, charge);
            engine.queue.push(Entry {
                partition: Arc::clone(&self.partition),
                cut: state.cut,
                end: state.log_end,
                request: Request::Append(Piece { sequence, header: batch.header, body }),
            });
        }
        let end = state.log_end;
        let full = state.tail.unwritten_bytes() >= engine.config.write_behind_bytes.get();
        let starts_aging = !std::mem::replace(&mut state.aging, true);
        drop(state);
        if starts_aging {
            engine.start_aging(&self.partition, now);
        }
        if full {
            engine.queue_write_behind(&self.partition, Turn::Large);
        }
        engine.space.accept(appended_bytes as u64);
        engine.pool.shrink();
        if engine.pool.crowded() {
            engine.wake_write_behind();
        }
        engine.metrics.appended_bytes.add(appended_bytes as u64);
        Ok(end)
    }

    /// Waits while this partition has more than its share of what all have together: of the journal's queue, and of memory for
    /// what is in no segment. Also returns once the log failed, or refuses appends for want of space.
    pub async fn append_share(&self) {
        self.engine.share(&self.partition).await;
    }

    /// The offsets now.
    #[must_use]
    pub fn offsets(&self) -> LogOffsets {
        let state = self.partition.lock();
        LogOffsets {
            log_start: state.log_start,
            local_log_start: state.local_log_start,
            log_end: state.log_end,
            written_end: state.written_end,
            synced_end: state.synced_end,
        }
    }

    /// Why the partition takes no append, where rot took acknowledged records. [`PartitionLog::truncate`] lifts it, once the
    /// owner has decided what becomes of them.
    #[must_use]
    pub fn fenced(&self) -> Option<Arc<str>> {
        self.partition.lock().fenced.clone()
    }

    /// What the start found missing ([`crate::RecoveryReport::lost`]) and is still in the log, ascending.
    #[must_use]
    pub fn lost(&self) -> Vec<OffsetRange> {
        self.partition.lock().lost.clone()
    }

    /// Takes what is lost at and above `from` out of the log for good, durably: a read goes on behind it as if there had never
    /// been anything. What is lost below, of which there is another copy, stays quarantined.
    ///
    /// # Errors
    /// The log failed; after a restart the loss may be found again.
    pub async fn give_up_lost(&self, from: Offset) -> Result<(), LogFailure> {
        self.engine.give_up_lost(&self.partition, from).await
    }

    /// Refuses appends from here on, over restarts, until [`PartitionLog::truncate`] lifts it: the owner found that
    /// acknowledged records are gone, and nobody has them.
    ///
    /// # Errors
    /// The log failed; the partition is fenced, and after a restart it may not be.
    pub async fn fence(&self, why: &str) -> Result<(), LogFailure> {
        self.engine.fence(&self.partition, why).await
    }

    /// Asks that everything appended so far be synced now; otherwise a sync comes within `log.flush.linger.ms`.
    pub fn request_sync(&self) {
        self.engine.queue.request_sync();
    }

    /// Waits until everything below `end` is durable; asks for the sync.
    ///
    /// # Errors
    /// The log failed or the partition was deleted: what is below `end` may or may not be durable.
    pub async fn wait_synced(&self, end: Offset) -> Result<(), LogFailure> {
        self.request_sync();
        loop {
            let changed = self.partition.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.engine.check()?;
            {
                let state = self.partition.lock();
                if state.deleted {
                    return Err(LogFailure::Deleted);
                }
                // What a truncation removed needs no sync.
                if state.synced_end >= end.min(state.log_end) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Whole batches from the one that holds `from` on, below `end`, up to `bytes_max`; with `one_at_least`, one batch
    /// whatever its size. From memory where they are there, else one positioned read.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`]: the segment is quarantined; read the offsets elsewhere.
    pub async fn read(
        &self,
        from: Offset,
        bytes_max: usize,
        end: Offset,
        one_at_least: bool,
    ) -> Result<LogRead, ReadError> {
        let first_max = if one_at_least { usize::MAX } else { 0 };
        self.read_within(from, bytes_max, end, first_max).await
    }

    /// As [`PartitionLog::read`]; the first batch may have up to `first_max` bytes where that is more than `bytes_max`. No
    /// bytes and no error below `end`: it is larger.
    ///
    /// # Errors
    /// As [`PartitionLog::read`].
    pub async fn read_within(
        &self,
        from: Offset,
        bytes_max: usize,
        end: Offset,
        first_max: usize,
    ) -> Result<LogRead, ReadError> {
        crate::read::read(&self.engine, &self.partition, from, bytes_max, end, first_max).await
    }

    /// The first batch, in offset order and at or after `from`, whose largest timestamp is at least `time`.
    ///
    /// # Errors
    /// As [`PartitionLog::read`].
    pub async fn first_batch_at_or_after(
        &self,
        time: Timestamp,
        from: Offset,
    ) -> Result<Option<Bytes>, ReadError> {
        crate::read::first_batch_at_or_after(&self.engine, &self.partition, time, from).await
    }

    /// The first of the batches in `range` with the largest timestamp.
    ///
    /// # Errors
    /// As [`PartitionLog::read`].
    pub async fn max_timestamp_batch(&self, range: OffsetRange) -> Result<Option<Bytes>, ReadError> {
        crate::read::max_timestamp_batch(&self.engine, &self.partition, range).await
    }

    /// The headers of all batches that end above `from`, in order.
    ///
    /// # Errors
    /// As [`PartitionLog::read`].
    pub async fn batch_headers(&self, from: Offset) -> Result<Vec<[u8; 61]>, ReadError> {
        crate::read::batch_headers(&self.engine, &self.partition, from).await
    }

    /// Where each leader epoch starts in this log.
    #[must_use]
    pub fn epochs(&self) -> EpochChain {
        self.partition.lock().epochs.clone()
    }

    /// Replaces the epoch chain below what is here: a replica that starts at a tiered end takes its leader's.
    pub fn set_epochs(&self, epochs: EpochChain) {
        self.partition.lock().epochs = epochs;
    }

    /// The local segments, oldest first. What is in memory only counts to the active one.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentSummary> {
        crate::read::summaries(&self.engine, &self.partition)
    }

    /// Writes behind what is there and seals the active segment, so that the next append begins a new one.
    ///
    /// # Errors
    /// The log failed.
    pub async fn roll(&self) -> Result<(), LogFailure> {
        self.engine.roll(&self.partition).await
    }

    /// Removes every batch that reaches `to` or lies above, durably: the log then ends where the last batch below ends. Where
    /// that is below the log start, the log is empty there ([`PartitionLog::reset`]). Lifts a fence.
    ///
    /// # Errors
    /// The log failed; after a restart the truncation may or may not have happened.
    pub async fn truncate(&self, to: Offset) -> Result<(), LogFailure> {
        self.engine.truncate(&self.partition, to).await
    }

    /// Removes everything and starts anew at `start`, durably. Log start and local log start become `start`, which may lie
    /// below or above what was there. A fence stays: what was lost may lie above `start`.
    ///
    /// # Errors
    /// The log failed; after a restart the reset may or may not have happened.
    pub async fn reset(&self, start: Offset) -> Result<(), LogFailure> {
        self.engine.reset(&self.partition, start).await
    }

    /// Raises the log start offset, durably; a lower one changes nothing. Deletes no file.
    ///
    /// # Errors
    /// The log failed; after a restart the log start may or may not have moved.
    pub async fn set_log_start(&self, to: Offset) -> Result<(), LogFailure> {
        self.engine.set_log_start(&self.partition, to).await
    }

    /// Raises the local log start offset to the base of the segment that holds `to`, and deletes the whole segments below it,
    /// durably. The active segment stays.
    ///
    /// # Errors
    /// The log failed; after a restart the segments may or may not be there.
    pub async fn set_local_log_start(&self, to: Offset) -> Result<(), LogFailure> {
        self.engine.set_local_log_start(&self.partition, to).await
    }
}

fn check_order(state: &State, batches: &[AppendBatch]) -> Result<(), AppendError> {
    if state.deleted {
        return Err(LogFailure::Deleted.into());
    }
    if let Some(why) = &state.fenced {
        return Err(AppendError::Fenced { at: state.log_end, why: Arc::clone(why) });
    }
    let mut end = state.log_end;
    let mut epoch = state.epochs.latest().unwrap_or(LeaderEpoch::ZERO);
    for batch in batches {
        let ordered =
            batch.base_offset >= end && batch.last_offset < Offset::MAX && batch.leader_epoch >= epoch;
        if !ordered || !agrees(batch) {
            return Err(AppendError::OutOfOrder { base: batch.base_offset, end });
        }
        epoch = batch.leader_epoch;
        end = batch.last_offset.next();
    }
    Ok(())
}

/// Whether the header says what the caller says; the journal would refuse to encode anything else.
fn agrees(batch: &AppendBatch) -> bool {
    let header = BatchHeader::from_bytes(batch.header);
    header.base_offset() == Some(batch.base_offset)
        && header.last_offset() == Some(batch.last_offset)
        && header.leader_epoch() == Some(batch.leader_epoch)
        && header.batch_bytes() == Some(batch.header.len() + batch.body.len())
}

impl State {
    /// A log with nothing in it that starts at `start`.
    pub(crate) fn empty(config: PartitionConfig, start: Offset) -> Self {
        Self {
            config,
            log_start: start,
            local_log_start: start,
            log_end: start,
            written_end: start,
            synced_end: start,
            behind_end: start,
            tail: Tail::default(),
            epochs: EpochChain::default(),
            producers_from: Offset::ZERO,
            cut: 0,
            fenced: None,
            lost: Vec::new(),
            deleted: false,
            aging: false,
        }
    }

    /// Everything at or above `to` is gone.
    pub(crate) fn cut_to(&mut self, to: Offset) {
        self.cut += 1;
        self.fenced = None;
        self.lost.retain(|hole| hole.base < to);
        self.producers_from = Offset::ZERO;
        self.log_end = to;
        self.written_end = self.written_end.min(to);
        self.synced_end = self.synced_end.min(to);
        self.behind_end = self.behind_end.min(to);
        self.epochs.truncate_from_end(to);
    }

    /// The first moment at which something waits to be written behind.
    pub(crate) fn oldest_unwritten(&self) -> Option<Duration> {
        self.tail.unwritten().next().map(|batch| batch.appended)
    }
}

/// Orders a flag for the queue of write-behind.
pub(crate) fn take_flag(flag: &AtomicBool) -> bool {
    !flag.swap(true, Ordering::AcqRel)
}
