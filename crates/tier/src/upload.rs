//! Segments to the bucket: one partition's objects one after another, several partitions at once.
//!
//! **Owns** the steps of an upload and their order, which is what makes it safe:
//!
//! ```text
//!  seal idle --> plan --> memory --> read, check every batch --> PUT under a fresh key --> look --> commit --> next
//!                 ^                                                                          |
//!                 `------------ refused: the object is abandoned, the range is begun anew ---'
//! ```
//!
//! **Does not own** what is uploaded (`tidelog_core::upload`), the form of an object (`tidelog_format`), how long a transfer
//! may take (`ObjectClient`: limits of silence and of rate), or local deletion.
//!
//! Crash behaviour: an object that was written and not committed is an orphan and is swept; nothing else is left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::{CommitRefusal, MetadataImage, Refusal, SegmentCommit},
    upload::Lag,
};
use tidelog_format::{
    keys::ObjectKey,
    manifest::SegmentObjectId,
    object::{BatchBytes, Gaps, ObjectIdentity, SegmentObject},
};
use tidelog_replica::{DeleteRecordsError, PartitionHandle, ProposeFailure, TieringError};
use tidelog_runtime::Permit;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, TopicName, TopicPartition, limits};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tracing::{debug, error, info, warn};

use crate::{
    commit::{CommitError, Committer},
    config::millis,
    context::{Context, Standing},
    metrics::LagGauges,
    put::{PutWholeError, put_whole},
    segment_object, spill,
    task::{Task, TickError},
};

/// Objects that one partition uploads before another gets its turn: half a gigabyte.
const OBJECTS_PER_TURN: usize = 8;

/// Refusals after which a turn ends: whatever refuses so often is not a race, and each costs an object.
const REFUSALS_PER_TURN_MAX: u32 = 1;

/// Memory for the sections of an object, beside its batches.
const SECTION_BYTES: u64 = 1024 * 1024;

/// Why an upload did not happen. Everything is tried again at the next tick.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the local log: {0}")]
    Read(#[from] TieringError),
    #[error("the local log is damaged at offset {at}: {why}")]
    Damaged { at: Offset, why: String },
    #[error("an open transaction at offset {0} is not decided within what may be read")]
    Undecided(Offset),
    #[error(transparent)]
    Put(#[from] PutWholeError),
    #[error("the commit: {0}")]
    Commit(#[from] CommitError),
    #[error("the move of entries to a page: {0}")]
    Spill(#[from] spill::SpillError),
    #[error("the log start: {0}")]
    LogStart(#[from] DeleteRecordsError),
    #[error("the log could not be sealed: {0}")]
    Seal(String),
}

/// The task.
pub(crate) struct Uploader {
    context: Arc<Context>,
    committer: Committer,
    slots: Arc<Semaphore>,
    wake: Arc<Notify>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    running: Mutex<BTreeSet<TopicPartition>>,
    /// Where damage was reported, so that it is reported once.
    damaged: Mutex<BTreeMap<TopicPartition, Offset>>,
    /// Partitions that are due and whose last turn ended before it asked the store to take anything.
    unput: Mutex<BTreeSet<TopicPartition>>,
    /// The partition that was tried last while the store was known to take none.
    tried: Mutex<Option<TopicPartition>>,
    /// A partition found no slot: the next one that is free wakes the task.
    starved: AtomicBool,
    gauges: Mutex<LagGauges>,
}

/// One partition's turn; its end makes room for another.
struct Turn {
    state: Arc<State>,
    wake: Arc<Notify>,
    context: Arc<Context>,
    place: TopicPartition,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.state.running).remove(&self.place);
        self.context.metrics.uploads_running.sub(1);
        if self.state.starved.swap(false, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Forgets what is not due any more. While the store takes none, whoever ended before a put the last time finds nothing out, and
    /// is left out unless there is no other; the others come in turn, behind the one that was tried last.
    fn prefer_those_that_put(&self, due: &mut Vec<(u64, PartitionHandle)>, takes_none: bool) {
        let mut unput = lock(&self.unput);
        if !unput.is_empty() {
            let places: BTreeSet<TopicPartition> = due.iter().map(|(_, handle)| handle.place()).collect();
            unput.retain(|place| places.contains(place));
        }
        if !takes_none {
            return;
        }
        if unput.len() < due.len() {
            due.retain(|(_, handle)| !unput.contains(&handle.place()));
        }
        let tried = *lock(&self.tried);
        let last = due.iter().position(|(_, handle)| Some(handle.place()) == tried);
        due.rotate_left(last.map_or(0, |last| last + 1));
    }
}

impl Uploader {
    pub(crate) fn new(context: Arc<Context>, committer: Committer, wake: Arc<Notify>) -> Self {
        let slots = Arc::new(Semaphore::new(context.config.uploads_at_once.clamp(1, 1_024)));
        Self { context, committer, slots, wake, state: Arc::default() }
    }

    /// Starts a turn of every partition that has something to do and finds a slot, the one that waits longest first.
    fn start_turns(&self) {
        let image = self.context.commands.image();
        let lag_max = millis(self.context.config.upload_lag_max);
        let now = self.context.clock.wall();
        let newest = self.context.is_newest(&image);
        let mut topics: BTreeMap<TopicName, Lag> = BTreeMap::new();
        let mut due = Vec::new();
        for handle in self.context.partitions.partitions() {
            let Some(at) = Standing::of(&handle, &image) else { continue };
            if at.leader_epoch.is_none() || !at.image.tiered {
                continue;
            }
            let view = at.upload_view(&self.context.retention_plan(&at));
            let (lag, plan) = (view.lag(now), view.plan(now, lag_max));
            add(topics.entry(at.name.clone()).or_default(), lag);
            let spills = tidelog_core::upload::plan_spill(&at.image.manifest).is_some();
            if newest && (plan.seal_active || plan.range.is_some() || spills) {
                due.push((lag.age_ms, handle));
            }
        }
        lock(&self.state.gauges).set(self.context.metrics.registry(), &topics);
        due.sort_by_key(|(age_ms, handle)| (std::cmp::Reverse(*age_ms), handle.place()));
        // Each turn reads, checks and assembles an object. While the store is known to take none, one at a time finds out
        // when it does again.
        let takes_none = self.context.store.health().writes_outage().is_some();
        self.state.prefer_those_that_put(&mut due, takes_none);
        for (_, handle) in due {
            let place = handle.place();
            if takes_none && !lock(&self.state.running).is_empty() {
                break;
            }
            if takes_none {
                *lock(&self.state.tried) = Some(place);
            }
            if lock(&self.state.running).contains(&place) {
                continue;
            }
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
                self.state.starved.store(true, Ordering::Relaxed);
                break;
            };
            lock(&self.state.running).insert(place);
            self.context.metrics.uploads_running.add(1);
            let turn = Turn {
                state: Arc::clone(&self.state),
                wake: Arc::clone(&self.wake),
                context: Arc::clone(&self.context),
                place,
                _slot: slot,
            };
            let committer = self.committer.clone();
            let work = async move { turn.run(handle, committer).await };
            self.context.supervisor.spawn_back("tier-upload-partition", work).detach();
        }
    }
}

fn add(sum: &mut Lag, lag: Lag) {
    sum.bytes = sum.bytes.saturating_add(lag.bytes);
    sum.segments = sum.segments.saturating_add(lag.segments);
    sum.age_ms = sum.age_ms.max(lag.age_ms);
    sum.unsent_bytes = sum.unsent_bytes.saturating_add(lag.unsent_bytes);
    sum.unsent_age_ms = sum.unsent_age_ms.max(lag.unsent_age_ms);
}

impl Task for Uploader {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move {
            self.start_turns();
            Ok(())
        })
    }
}

impl Turn {
    async fn run(self, handle: PartitionHandle, committer: Committer) {
        let metrics = &self.context.metrics;
        let mut progress = Progress::default();
        let outcome = upload_partition(&self.context, &handle, &committer, &mut progress).await;
        if progress.has_put {
            lock(&self.state.unput).remove(&self.place);
        } else {
            lock(&self.state.unput).insert(self.place);
        }
        match outcome {
            Ok(more) => {
                lock(&self.state.damaged).remove(&self.place);
                if more {
                    self.state.starved.store(true, Ordering::Relaxed);
                }
            }
            Err(UploadError::Damaged { at, why }) => {
                metrics.damaged.inc();
                if lock(&self.state.damaged).insert(self.place, at) != Some(at) {
                    error!(
                        partition = %self.place, topic = %handle.topic(), offset = %at, %why,
                        "the local log is damaged and is not uploaded"
                    );
                }
            }
            Err(UploadError::Read(TieringError::NotReadable { offset })) => {
                debug!(partition = %self.place, %offset, "the log moved under an upload");
            }
            Err(error) => {
                let known = self.context.commands.image().partition(&self.place).is_some();
                let (partition, topic) = (self.place, handle.topic());
                match overtaken(&error, known) {
                    Some(Overtaken::Deleted) => {
                        debug!(%partition, %topic, %error, "the topic was deleted under an upload");
                    }
                    Some(Overtaken::ManifestMoved) => {
                        info!(%partition, %topic, %error, "the manifest moved under an upload, which is tried again");
                    }
                    None => {
                        metrics.upload_failures.inc();
                        warn!(%partition, %topic, %error, "an upload failed and is tried again");
                    }
                }
            }
        }
    }
}

/// What overtook an upload: ordinary, and no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overtaken {
    /// The partition went with its topic.
    Deleted,
    /// Entries that were to move to a page left before it was named: retention took them.
    ManifestMoved,
}

/// Whether an upload ended because the cluster moved on meanwhile; `known`: the newest image has the partition.
fn overtaken(error: &UploadError, known: bool) -> Option<Overtaken> {
    if !known {
        return Some(Overtaken::Deleted);
    }
    let UploadError::Spill(spill::SpillError::Propose(ProposeFailure::Refused(refusal))) = error else {
        return None;
    };
    matches!(refusal, Refusal::SpillMismatch { .. }).then_some(Overtaken::ManifestMoved)
}

/// What a turn did so far.
#[derive(Default)]
struct Progress {
    /// It asked the store to take something, whatever came of it.
    has_put: bool,
    /// Why entries did not move to a page. The manifest has room for more than where a spill begins, so uploads go on.
    unspilled: Option<spill::SpillError>,
}

impl Progress {
    async fn spill(&mut self, context: &Context, place: TopicPartition) {
        match spill::spill_if_due(context, place).await {
            Ok(has_put) => self.has_put |= has_put,
            Err(error) => {
                self.has_put |= error.is_behind_put();
                self.unspilled = Some(error);
            }
        }
    }
}

/// Uploads what a partition has, up to [`OBJECTS_PER_TURN`] objects. Answers whether more is left.
async fn upload_partition(
    context: &Context,
    handle: &PartitionHandle,
    committer: &Committer,
    progress: &mut Progress,
) -> Result<bool, UploadError> {
    let more = upload_objects(context, handle, committer, progress).await?;
    progress.unspilled.take().map_or(Ok(more), |error| Err(error.into()))
}

async fn upload_objects(
    context: &Context,
    handle: &PartitionHandle,
    committer: &Committer,
    progress: &mut Progress,
) -> Result<bool, UploadError> {
    let token = context.supervisor.shutdown_token();
    let lag_max = millis(context.config.upload_lag_max);
    let mut refusals = 0;
    for _ in 0..OBJECTS_PER_TURN {
        if token.is_cancelled() || refusals > REFUSALS_PER_TURN_MAX {
            return Ok(false);
        }
        if progress.unspilled.is_none() {
            progress.spill(context, handle.place()).await;
        }
        let image = context.commands.image();
        let Some(at) = Standing::of(handle, &image) else { return Ok(false) };
        if progress.unspilled.is_some() && at.image.manifest.entries.len() >= limits::MANIFEST_ENTRIES_MAX {
            // An object now would be refused.
            return Ok(false);
        }
        let view = at.upload_view(&context.retention_plan(&at));
        let plan = view.plan(context.clock.wall(), lag_max);
        if plan.seal_active {
            handle.roll().await.map_err(|error| UploadError::Seal(error.to_string()))?;
            continue;
        }
        let (Some(range), Some(leader_epoch)) = (plan.range, at.leader_epoch) else { return Ok(false) };
        if range.base != at.image.manifest.tiered_end {
            // The log starts above all that is committed: an object from there would be refused.
            handle.commit_own_log_start().await?;
            refusals += 1;
            continue;
        }
        if !context.take_room(handle, object_bytes(context, &at, range)) {
            return Ok(false);
        }
        let built = read_object(context, handle, &at, leader_epoch, range).await?;
        progress.has_put = true;
        match put_object(context, committer, &at, leader_epoch, built).await? {
            Ok(end) => debug!(partition = %at.place, %end, "a segment object is committed"),
            Err(
                CommitRefusal::ManifestFull
                | CommitRefusal::NotAtTieredEnd { .. }
                | CommitRefusal::UploadFenced,
            ) => {
                // The spill, the log start or the sweep came first: the range is begun anew under another name.
                refusals += 1;
            }
            Err(refusal) => {
                debug!(partition = %at.place, %refusal, "an upload is not for this leadership");
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Bytes of the first object of `range`, at most.
fn object_bytes(context: &Context, at: &Standing, range: OffsetRange) -> u64 {
    let local: u64 =
        at.segments.iter().filter(|segment| segment.range.end > range.base).map(|one| one.bytes).sum();
    context.config.object_target.get().min(local).saturating_add(SECTION_BYTES)
}

/// Reads the first object of `range`, with the memory that it takes.
async fn read_object(
    context: &Context,
    handle: &PartitionHandle,
    at: &Standing,
    leader_epoch: LeaderEpoch,
    range: OffsetRange,
) -> Result<(SegmentObject, Permit), UploadError> {
    let target = context.config.object_target.get();
    let mut memory: Permit = context.memory.acquire(object_bytes(context, at, range)).await;
    let read = handle.read_for_upload(range, target).await?;
    let range = OffsetRange { base: range.base, end: read.next };
    let chunks = segment_object::whole_batches(read.chunks, range.base)?;
    let stable_end = at.snapshot.last_stable_offset.min(at.snapshot.synced_end);
    let aborted = segment_object::aborted_transactions(handle, range, &chunks, stable_end).await?;
    // Damage in a header shows when the object is made of the batches, and nothing is kept of it.
    let headers = chunks.iter().flat_map(BatchBytes::headers).flatten();
    let producers = match handle.producer_snapshot_behind(range, headers) {
        Some(producers) => producers,
        None => handle.producer_snapshot_at(range.end).await?,
    };
    let identity = ObjectIdentity {
        cluster_id: context.config.cluster_id,
        place: at.place,
        range,
        leader_epoch,
        upload: context.next_upload(),
        log_start: at.log_start(),
        previous: previous_object(&at.image.manifest, range.base),
    };
    let gaps = if at.topic.cleanup_policy.compact { Gaps::Allowed } else { Gaps::Refused };
    let built = segment_object::assemble(identity, gaps, chunks, &aborted, &producers)?;
    memory.shrink_to(built.bytes());
    Ok((built, memory))
}

/// Puts an object and commits it. A refusal leaves the object abandoned.
async fn put_object(
    context: &Context,
    committer: &Committer,
    at: &Standing,
    leader_epoch: LeaderEpoch,
    (built, memory): (SegmentObject, Permit),
) -> Result<Result<Offset, CommitRefusal>, UploadError> {
    let entry = built.entry();
    let object = entry.object;
    let key = ObjectKey::Segment { topic: at.name.clone(), place: at.place, object }.to_string();
    put_whole(&context.store, &key, built.payload).await?;
    drop(memory);
    let result = committer.commit(SegmentCommit { place: at.place, leader_epoch, entry }).await?;
    match &result {
        Ok(_) => {
            context.metrics.uploads.inc();
            context.metrics.uploaded_bytes.add(entry.object_bytes);
        }
        Err(refusal) => {
            context.metrics.uploads_abandoned.inc();
            info!(partition = %at.place, %key, %refusal, "a written object is abandoned");
        }
    }
    Ok(result)
}

/// The object that ends where the next one begins; `None` where a log start jumped, or where it is in a page.
fn previous_object(
    manifest: &tidelog_core::cluster::PartitionManifest,
    base: Offset,
) -> Option<SegmentObjectId> {
    manifest.entries.last().filter(|entry| entry.range.end == base).map(|entry| entry.object)
}

/// Lag of one partition, for the status.
pub(crate) fn lag_of(context: &Context, handle: &PartitionHandle, image: &MetadataImage) -> Option<Lag> {
    let at = Standing::of(handle, image)?;
    Some(at.upload_view(&context.retention_plan(&at)).lag(context.clock.wall()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cluster_overtook_is_no_failure() {
        let refused = |refusal: Refusal| -> UploadError {
            spill::SpillError::Propose(ProposeFailure::Refused(refusal)).into()
        };
        let why = "what it moves is not the oldest that is held";
        let moved = refused(Refusal::SpillMismatch { why });
        assert_eq!(overtaken(&moved, true), Some(Overtaken::ManifestMoved));
        assert_eq!(overtaken(&refused(Refusal::NotInitialized), true), None);
        let sealed = UploadError::Seal("the partition is deleted".into());
        assert_eq!(overtaken(&sealed, false), Some(Overtaken::Deleted));
        assert_eq!(overtaken(&sealed, true), None, "it failed, and is still there");
    }
}
