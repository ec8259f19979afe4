//! Checkpoints: making what was written behind durable, so that the journal below it may be used again.
//!
//! **Owns** the order of it: every partition's files first, then the checkpoint file aside, its sync, its rename, the
//! directory's sync, and only then the journal's files.
//!
//! A partition's record says: everything of it that the journal has below `position` is in its segments, which end at
//! `synced_end`.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tidelog_format::{
    checkpoint::{Checkpoint, CheckpointEntry, CheckpointSegment},
    journal::{Generation, JournalPosition},
};
use tidelog_runtime::{is_disk_full, sync_error};
use tidelog_types::{Offset, OffsetRange};

use crate::{
    LogFailure, data_dir,
    engine::Engine,
    files::Files,
    partition::{Partition, State},
    segment::Segment,
};

/// The checkpoint's file in the data directory.
pub(crate) const FILE: &str = "log.checkpoint";

/// Partitions synced at once: as many as keep the disk's own queue busy.
const WORKERS: usize = 4;

/// How often the journal's length is looked at.
const TICK: Duration = Duration::from_millis(500);

/// Takes checkpoints as time and the journal ask for them.
pub(crate) async fn run(engine: Arc<Engine>) {
    let stop = engine.supervisor.shutdown_token();
    let mut last = engine.clock.monotonic();
    while engine.check().is_ok() {
        let tick = TICK.min(engine.config.checkpoint_interval);
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.checkpoint_wake.notified() => {}
            () = engine.clock.sleep(tick) => {}
        }
        let now = engine.clock.monotonic();
        let long = engine.journal.bytes() >= engine.config.journal_bytes_max.get() / 4;
        if !long && now.saturating_sub(last) < engine.config.checkpoint_interval {
            continue;
        }
        match take(&engine, false).await {
            Ok(()) => last = engine.clock.monotonic(),
            Err(failure) => {
                tracing::debug!(%failure, "no checkpoint");
                return;
            }
        }
    }
}

/// Takes one checkpoint. With `clean`, nothing is appended any more and the mark of a clean stop is left.
pub(crate) async fn take(engine: &Arc<Engine>, clean: bool) -> Result<(), LogFailure> {
    let _one = engine.checkpoint_lock.lock().await;
    // The one before may have failed: its sync, made again, would say that all is well.
    engine.check()?;
    let begun = engine.clock.monotonic();
    match try_take(engine, clean).await {
        Ok(()) => {
            engine.metrics.checkpoints.inc();
            engine
                .metrics
                .checkpoint_seconds
                .observe_duration(engine.clock.monotonic().saturating_sub(begun));
            if !clean {
                make_reserve(engine).await;
            }
            Ok(())
        }
        Err(Stopped::Failed(failure)) => Err(failure),
        Err(Stopped::Io(error)) if is_disk_full(&error) && !clean => {
            // The journal holds everything until there is space again.
            engine.note_full();
            if let Some(suppressed) = engine.space.lines.pass("checkpoint") {
                tracing::error!(%error, suppressed, "no checkpoint: the disk is full");
            }
            Ok(())
        }
        Err(Stopped::Io(source)) => {
            let failure = LogFailure::Checkpoint { source: Arc::new(source) };
            engine.fail(failure.clone());
            Err(failure)
        }
    }
}

/// Makes the reserve again that a start on a full disk gave up, once there is room for it.
async fn make_reserve(engine: &Engine) {
    let made = data_dir::make_reserve(&engine.config, &*engine.disk, engine.space.free()).await;
    if let Err(error) = made
        && let Some(suppressed) = engine.space.lines.pass("reserve")
    {
        tracing::warn!(%error, suppressed, "the reserve is not made again");
    }
}

enum Stopped {
    Failed(LogFailure),
    Io(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<LogFailure> for Stopped {
    fn from(failure: LogFailure) -> Self {
        Self::Failed(failure)
    }
}

async fn try_take(engine: &Arc<Engine>, clean: bool) -> Result<(), Stopped> {
    // What is created, or begins to be deleted, from here on has its entry at or above this position.
    let mut replay_from = engine.journal.head();
    replay_from = engine.held_from().map_or(replay_from, |held| held.min(replay_from));
    let mut records = BTreeMap::new();
    let mut changed = Vec::new();
    for partition in engine.partitions() {
        match unchanged(engine, &partition) {
            Some(record) => drop(records.insert(partition.place, record)),
            None => changed.push(partition),
        }
    }
    for record in sync_partitions(engine, changed).await? {
        records.insert(record.entry.place, record);
    }
    let (entries, stored): (Vec<CheckpointEntry>, Vec<Stored>) =
        records.into_values().map(|record| (record.entry, record.stored)).unzip();
    replay_from = entries.iter().map(|entry| entry.position.0).fold(replay_from, u64::min);
    if engine.new_folders.swap(false, Ordering::AcqRel) {
        engine.disk.sync_dir(&engine.config.directory).await.map_err(sync_error)?;
    }
    if engine.config.mistakes.free_journal_early {
        engine.journal.free_below(engine.journal.head()).await?;
    }
    write(
        engine,
        Checkpoint {
            generation: Generation(engine.journal.newest_generation()),
            replay_from: JournalPosition(replay_from),
            clean,
            written_at: Some(engine.clock.wall()),
            entries,
        },
    )
    .await?;
    for Stored { partition, producers_from, cut } in stored {
        let mut state = partition.lock();
        // What was cut since may have been in it.
        if state.cut == cut {
            state.producers_from = producers_from;
        }
    }
    engine.journal.free_below(replay_from).await?;
    engine.pool.room.notify_waiters();
    Ok(())
}

/// Writes the file and makes it durable.
pub(crate) async fn write(engine: &Engine, checkpoint: Checkpoint) -> io::Result<()> {
    let directory = &engine.config.directory;
    tidelog_runtime::write_aside(&*engine.disk, directory, FILE, Bytes::from(checkpoint.encode())).await?;
    engine.disk.sync_dir(directory).await.map_err(sync_error)
}

/// What a checkpoint says of a partition, and what follows from it once it is durable.
struct Record {
    entry: CheckpointEntry,
    stored: Stored,
}

/// The producers' state that a partition's record leaves in place, as of a cut.
struct Stored {
    partition: Arc<Partition>,
    producers_from: Offset,
    cut: u64,
}

/// The record of a partition whose files hold all of it and are synced.
fn unchanged(engine: &Engine, partition: &Arc<Partition>) -> Option<Record> {
    let files = partition.files.try_lock().ok()?;
    let state = partition.lock();
    (files.is_clean() && state.behind_end == state.log_end && !state.deleted)
        .then(|| record(engine, partition, &files, &state))
}

fn record(engine: &Engine, partition: &Arc<Partition>, files: &Files, state: &State) -> Record {
    let entry = entry(engine, partition, state);
    let producers_from = files.newest_snapshot(entry.synced_end).unwrap_or(Offset::ZERO);
    Record { entry, stored: Stored { partition: Arc::clone(partition), producers_from, cut: state.cut } }
}

fn entry(engine: &Engine, partition: &Partition, state: &State) -> CheckpointEntry {
    // The first batch that no segment has; one that is in no round yet lands at or above the head.
    let head = engine.journal.head();
    let position = state.tail.unwritten().next().map_or(head, |batch| batch.journal_position.unwrap_or(head));
    CheckpointEntry {
        place: partition.place,
        synced_end: state.behind_end,
        position: JournalPosition(position),
        log_start: state.log_start,
        local_log_start: state.local_log_start,
        segments: segments(partition, state.behind_end),
    }
}

/// What a start needs to know of the segments below `end`: which there are, since a lost file leaves no trace in its folder,
/// and what only reading them would tell. The caller holds the files lock.
pub(crate) fn segments(partition: &Partition, end: Offset) -> Vec<CheckpointSegment> {
    let segments = partition.segments.load();
    let bases = segments.iter().skip(1).map(|next| next.base).chain([end]);
    let record = |(segment, next): (&Arc<Segment>, Offset)| {
        let content = segment.content();
        // One of an older process of which nothing is known yet is listed once it was looked at.
        let told = content.known && content.bytes > 0 && segment.base < end;
        told.then(|| CheckpointSegment {
            range: OffsetRange { base: segment.base, end: content.end.min(next) },
            bytes: content.bytes,
            max_timestamp: content.max_timestamp,
            created: content.created,
        })
    };
    segments.iter().zip(bases).filter_map(record).collect()
}

/// Writes behind and syncs partitions, a few at a time.
async fn sync_partitions(engine: &Arc<Engine>, changed: Vec<Arc<Partition>>) -> Result<Vec<Record>, Stopped> {
    let ticket = engine.queue.newest();
    engine.queue.wait_synced(ticket, || engine.check()).await?;
    let waiting = Arc::new(Mutex::new(changed.into_iter().collect::<VecDeque<_>>()));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (engine, waiting) = (Arc::clone(engine), Arc::clone(&waiting));
            engine.supervisor.clone().spawn_back("log checkpoint worker", async move {
                let mut entries = Vec::new();
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(partition) = next else { return Ok(entries) };
                    entries.extend(sync_partition(&engine, &partition).await?);
                }
            })
        })
        .collect();
    let mut entries = Vec::new();
    let mut stopped = None;
    for worker in workers {
        match worker.await {
            Ok(Ok(synced)) => entries.extend(synced),
            Ok(Err(why)) => stopped = Some(why),
            Err(failure) => stopped = Some(Stopped::Io(io::Error::other(failure))),
        }
    }
    stopped.map_or(Ok(entries), Err)
}

/// Writes behind and syncs one partition. `None` where it is deleted.
async fn sync_partition(engine: &Arc<Engine>, partition: &Arc<Partition>) -> Result<Option<Record>, Stopped> {
    let mut files = partition.files.lock().await;
    if partition.lock().deleted {
        return Ok(None);
    }
    engine.write_behind(partition, &mut files).await?;
    let behind_end = partition.lock().behind_end;
    files.sync(engine, partition, true).await?;
    let state = partition.state.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(state.behind_end == behind_end, "nobody writes behind without the files lock");
    Ok((!state.deleted).then(|| record(engine, partition, &files, &state)))
}

/// Where the file is.
pub(crate) fn path(engine_directory: &std::path::Path) -> PathBuf {
    engine_directory.join(FILE)
}
