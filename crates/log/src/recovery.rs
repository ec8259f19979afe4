//! The start: what the last stop left becomes logs again.
//!
//! ```text
//!  checkpoint --+--> cut each partition to the least of its synced end and later truncations
//!  journal    --+--> write what survives into the cut files --> sync --> checkpoint --> new journal file
//! ```
//!
//! The journal is synced before anything is cut or removed, since its last entries may be page cache that a kill left.
//! A crash at any point of it leaves checkpoint and journal as they were, and the next start does the same again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use tidelog_format::{
    checkpoint::{Checkpoint, CheckpointEntry},
    journal::{Generation, JournalPosition},
    producers::ProducerSnapshot,
};
use tidelog_runtime::{Clock, Disk, Registry, Supervisor, read_small};
use tidelog_types::{Offset, TopicPartition};

use crate::{
    LogConfig, OpenError, PartitionConfig, PartitionLog, RecoveryReport, checkpoint,
    data_dir::{self, failed},
    engine::Engine,
    fence,
    files::{Files, FoundFolder},
    journal::{
        self,
        play::{Journal, Replay, Replays},
    },
    metrics::LogMetrics,
    partition::{Partition, State},
    segment::{self, SNAPSHOT},
    tail::TailBatch,
};

mod folder;

use folder::Contents;

/// The folder of the journal.
const JOURNAL: &str = "journal";

/// The largest checkpoint believed: 100,000 partitions take 5 MiB.
const CHECKPOINT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The largest small file believed.
const SMALL_FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Partitions restored at once.
const WORKERS: usize = 8;

/// Partitions written and synced at once.
const AT_ONCE: usize = 16;

/// Recovered bytes that are written to segments at once.
const FLUSH_BYTES: usize = 16 * 1024 * 1024;

/// A partition as the start found it.
#[derive(Debug, Clone)]
pub struct RecoveredPartition {
    /// Its log.
    pub log: PartitionLog,
    /// The newest producer state that is not above the log end, with its offset.
    pub producer_snapshot: Option<(Offset, Bytes)>,
    /// The headers of all batches from that offset (or else from the local log start offset) to the log end.
    pub replay: Vec<[u8; 61]>,
    /// What recovery did.
    pub report: RecoveryReport,
}

/// Opens the directory and recovers. The engine's tasks do not run yet.
pub(crate) async fn open(
    config: LogConfig,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    registry: &Registry,
) -> Result<(Arc<Engine>, Vec<RecoveredPartition>), OpenError> {
    let begun = clock.monotonic();
    let directory = data_dir::open(&config, &*disk).await?;
    let checkpoint = read_checkpoint(&*disk, &config.directory, directory.new).await?;
    let journal_folder = config.directory.join(JOURNAL);
    let mut journal = Journal::open(&*disk, &journal_folder, &checkpoint).await?;
    journal.sync().await?;
    // A file that a kill left in the making is used as it is found: its name must be durable before anything is in it.
    disk.sync_dir(&journal_folder).await.map_err(failed("sync", &journal_folder))?;
    give_files_up_when_full(&config, &*disk, &mut journal).await?;
    let replays = journal.replays(&checkpoint).await?;
    let unclean = !directory.new && (!checkpoint.clean || replays.entries > 0);
    let found = std::mem::take(&mut journal.found);
    let (next_generation, start) = (found.next_generation, found.start);
    let files = journal::files::Files::new(Arc::clone(&disk), journal_folder.clone(), &config, found);
    disk.sync_dir(&config.directory).await.map_err(failed("sync", &config.directory))?;
    let engine = Arc::new(Engine::new(
        config,
        disk,
        clock,
        supervisor,
        LogMetrics::new(registry),
        files,
        directory.meta.directory_id,
        unclean,
    ));
    let recovery = Recovery { engine: Arc::clone(&engine), checkpoint: Arc::new(checkpoint) };
    let folders = recovery.folders().await?;
    let mut restored = recovery.restore_all(&replays, &folders).await?;
    recovery.write_survivors(&journal, &replays.partitions, &mut restored).await?;
    recovery.sync_all(&restored).await?;
    // Always: from here on the mark of a clean stop is gone, and the old journal files are free.
    recovery.checkpoint(next_generation, start, &restored).await?;
    engine.look_at_space().await;
    let free = engine.space.free();
    let reserve = data_dir::make_reserve(&engine.config, &*engine.disk, free).await;
    reserve.map_err(failed("make the reserve in", &engine.config.directory))?;
    for orphan in folders.iter().filter(|place| !replays.partitions.contains_key(place)) {
        tracing::warn!(place = %orphan, "a folder of a partition that the log does not know is left alone");
    }
    let recovered = recovery.report(restored).await;
    let took = engine.clock.monotonic().saturating_sub(begun);
    tracing::info!(
        partitions = recovered.len(),
        journal_entries = replays.entries,
        unclean,
        milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "log opened"
    );
    Ok((engine, recovered))
}

/// What is played goes to segments before its journal files are free. Where the disk has no room for that, and the reserve is
/// spent, the files that the journal keeps ahead go: they are made again when there is space.
async fn give_files_up_when_full(
    config: &LogConfig,
    disk: &dyn Disk,
    journal: &mut Journal,
) -> Result<(), OpenError> {
    let directory = &config.directory;
    let space = disk.space(directory).await.map_err(failed("look at the space of", directory))?;
    if space.free >= config.journal_file_bytes.get() {
        return Ok(());
    }
    let unread = journal.take_unread();
    for spare in &unread {
        disk.remove_file(&spare.path).await.map_err(failed("remove", &spare.path))?;
    }
    if !unread.is_empty() {
        tracing::warn!(
            free_bytes = space.free,
            files = unread.len(),
            "disk is full: journal files kept ahead were given up"
        );
        let folder = directory.join(JOURNAL);
        disk.sync_dir(&folder).await.map_err(failed("sync", &folder))?;
    }
    Ok(())
}

async fn read_checkpoint(disk: &dyn Disk, directory: &Path, new: bool) -> Result<Checkpoint, OpenError> {
    let path = checkpoint::path(directory);
    let bytes = read_small(disk, &path, CHECKPOINT_BYTES_MAX).await.map_err(failed("read", &path))?;
    let damaged = |why: String| OpenError::Damaged { path: path.display().to_string(), why };
    match bytes {
        Some(bytes) => Checkpoint::decode(&bytes).map_err(|error| damaged(error.to_string())),
        // A crash between the first open's meta file and its checkpoint.
        None if new => Ok(Checkpoint::default()),
        // No partition is made before the first checkpoint: one that is gone was lost, and with it what it says of them.
        None => {
            let entries = disk.list_dir(directory).await.map_err(failed("list", directory))?;
            let is_partition = |name: &str| name.parse::<TopicPartition>().is_ok();
            if entries.iter().any(|entry| entry.is_dir && is_partition(&entry.name)) {
                return Err(damaged(
                    "it is missing although there are partitions: restore it, or move their folders away"
                        .to_owned(),
                ));
            }
            Ok(Checkpoint::default())
        }
    }
}

/// The newest producer state that can be read, and what it lacks.
struct Producers {
    snapshot: Option<(Offset, Bytes)>,
    replay: Vec<[u8; 61]>,
    /// Why the batches behind it cannot be told, which makes it useless.
    failed: Option<Arc<str>>,
}

struct Restored {
    partition: Arc<Partition>,
    report: RecoveryReport,
    snapshots: Vec<Offset>,
}

#[derive(Clone)]
struct Recovery {
    engine: Arc<Engine>,
    checkpoint: Arc<Checkpoint>,
}

impl Recovery {
    async fn folders(&self) -> Result<BTreeSet<TopicPartition>, OpenError> {
        let directory = &self.engine.config.directory;
        let entries = self.engine.disk.list_dir(directory).await.map_err(failed("list", directory))?;
        let folders = entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse().ok());
        Ok(folders.collect())
    }

    /// Restores partitions, many at a time: each takes a dozen small reads.
    async fn restore_all(
        &self,
        replays: &Replays,
        folders: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, Restored>, OpenError> {
        let all = replays
            .partitions
            .iter()
            .map(|(place, replay)| (*place, replay.clone(), folders.contains(place)));
        let waiting = Arc::new(Mutex::new(all.collect::<VecDeque<_>>()));
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (recovery, waiting) = (self.clone(), Arc::clone(&waiting));
                self.engine.supervisor.spawn("log recovery worker", async move {
                    let mut restored = Vec::new();
                    loop {
                        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                        let Some((place, replay, exists)) = next else { return Ok(restored) };
                        let one = recovery.restore(place, &replay, exists).await?;
                        restored.extend(one.map(|one| (place, one)));
                    }
                })
            })
            .collect();
        let mut restored = BTreeMap::new();
        for worker in workers {
            let directory = &self.engine.config.directory;
            let done =
                worker.await.map_err(|failure| failed("recover", directory)(io::Error::other(failure)))?;
            restored.extend(done?);
        }
        Ok(restored)
    }

    /// Makes one partition's files agree with its checkpoint and the journal's cuts. `None` where it is deleted.
    async fn restore(
        &self,
        place: TopicPartition,
        replay: &Replay,
        exists: bool,
    ) -> Result<Option<Restored>, OpenError> {
        let engine = &self.engine;
        let folder = engine.config.directory.join(place.to_string());
        let io = |error| failed("recover", &folder)(error);
        if replay.deleted || replay.reset.is_some() {
            if exists {
                engine.disk.remove_dir_all(&folder).await.map_err(io)?;
                let directory = &engine.config.directory;
                engine.disk.sync_dir(directory).await.map_err(failed("sync", directory))?;
            }
            // A fence outlives a reset: it may be younger.
            if replay.deleted {
                fence::lift(engine, place).await.map_err(io)?;
                return Ok(None);
            }
        }
        let earlier = fence::read(engine, place).await.map_err(io)?;
        let fenced = replay.fenced.clone().or_else(|| earlier.clone());
        let mut found = match replay.reset {
            Some(_) => Contents::default(),
            None if exists => {
                Contents::cut(engine, &self.checkpoint, place, &folder, replay).await.map_err(io)?
            }
            None => Contents::default(),
        };
        // The files end where the checkpoint says, or acknowledged records are gone.
        let missing = found.take_missing_end(engine, &self.checkpoint, place, &folder, replay).await;
        let missing = missing.map_err(io)?;
        let (mut end, lost, mut held) =
            (replay.cut.max(replay.local_log_start), found.lost.clone(), fenced.clone());
        if let Some(range) = missing {
            let why = format!("records in [{}, {}) are missing or damaged on disk", range.base, range.end);
            tracing::error!(place = %place, why, "partition fenced");
            held = held.or(Some(Arc::from(why)));
            found.lost.push(range);
            end = range.base;
        }
        if let Some(why) = held.as_ref().filter(|why| earlier.as_ref() != Some(why)) {
            fence::write(engine, place, why).await.map_err(io)?;
        }
        let state = State {
            log_start: replay.log_start,
            local_log_start: replay.local_log_start,
            epochs: found.epochs.clone(),
            fenced: held,
            lost,
            ..State::empty(PartitionConfig::default(), end)
        };
        let report = RecoveryReport { cut_to: end, batches_played: 0, fenced, lost: found.lost };
        let folder_state = FoundFolder {
            exists: exists && replay.reset.is_none(),
            active: found.segments.last().filter(|last| last.quarantined().is_none()).cloned(),
            snapshots: found.snapshots.clone(),
            epochs: found.saved_epochs,
            changed: found.changed,
            rolls_from: found.rolls_from,
            // What the journal holds was appended after the checkpoint was made, or just before: the time that this process
            // was away does not make it younger.
            replayed_at: self.checkpoint.written_at,
        };
        let files = Files::found(folder_state);
        let partition = Arc::new(Partition::new(place, folder, state, files));
        partition.segments.store(Arc::new(found.segments));
        Ok(Some(Restored { partition, report, snapshots: found.snapshots }))
    }

    /// Writes what the journal holds behind the cut ends.
    async fn write_survivors(
        &self,
        journal: &Journal,
        replays: &BTreeMap<TopicPartition, Replay>,
        restored: &mut BTreeMap<TopicPartition, Restored>,
    ) -> Result<(), OpenError> {
        let total: usize = replays.values().map(|replay| replay.survivors.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let mut bodies = journal.bodies()?;
        let mut pending: BTreeMap<TopicPartition, Vec<TailBatch>> = BTreeMap::new();
        let mut bytes = 0;
        while let Some(body) = bodies.next().await? {
            let Some(replay) = replays.get(&body.place) else { continue };
            let survives =
                replay.survivors.binary_search_by_key(&body.position, |survivor| survivor.position).is_ok();
            let Some(target) = restored.get_mut(&body.place).filter(|_| survives) else { continue };
            target.report.batches_played += 1;
            bytes += body.batch.size();
            pending.entry(body.place).or_default().push(tail_batch(body));
            if bytes >= FLUSH_BYTES {
                self.flush(&mut pending, restored).await?;
                bytes = 0;
            }
        }
        self.flush(&mut pending, restored).await
    }

    async fn flush(
        &self,
        pending: &mut BTreeMap<TopicPartition, Vec<TailBatch>>,
        restored: &BTreeMap<TopicPartition, Restored>,
    ) -> Result<(), OpenError> {
        let writes = std::mem::take(pending).into_iter().filter_map(|(place, batches)| {
            let partition = &restored.get(&place)?.partition;
            Some(async move { self.write(partition, &batches).await })
        });
        stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn write(&self, partition: &Partition, batches: &[TailBatch]) -> Result<(), OpenError> {
        let Some(last) = batches.last() else { return Ok(()) };
        let mut files = partition.files.lock().await;
        let mut rest = batches;
        while !rest.is_empty() {
            let written = files.append(&self.engine, partition, rest).await;
            let count = written.map_err(failed("write", &partition.folder))?;
            rest = &rest[count.max(1)..];
        }
        let end = last.last.next();
        let mut state = partition.state.lock().unwrap_or_else(PoisonError::into_inner);
        for batch in batches {
            if state.epochs.try_assign(batch.leader_epoch, batch.base).is_err() {
                state.fenced = Some(Arc::from("leader epochs in the journal go back"));
            }
        }
        (state.log_end, state.written_end, state.synced_end, state.behind_end) = (end, end, end, end);
        Ok(())
    }

    /// Makes every partition durable as it is now: after a kill all of a thousand may have files to sync, and a file
    /// system's journal takes many at the price of one.
    async fn sync_all(&self, restored: &BTreeMap<TopicPartition, Restored>) -> Result<(), OpenError> {
        let engine = &self.engine;
        let syncs = restored.iter().map(|(place, restored)| async move {
            let partition = &restored.partition;
            let mut files = partition.files.lock().await;
            let synced = files.sync(engine, partition, false).await;
            synced.map_err(failed("sync", &partition.folder))?;
            files.end_replay();
            drop(files);
            engine.add_partition(Arc::clone(partition));
            tracing::debug!(place = %place, "partition recovered");
            Ok(())
        });
        stream::iter(syncs).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn checkpoint(
        &self,
        generation: u64,
        start: u64,
        restored: &BTreeMap<TopicPartition, Restored>,
    ) -> Result<(), OpenError> {
        let engine = &self.engine;
        let directory = &engine.config.directory;
        engine.disk.sync_dir(directory).await.map_err(failed("sync", directory))?;
        let entries = restored.iter().map(|(place, restored)| {
            let state = restored.partition.lock();
            CheckpointEntry {
                place: *place,
                synced_end: state.log_end,
                position: JournalPosition(start),
                log_start: state.log_start,
                local_log_start: state.local_log_start,
                segments: checkpoint::segments(&restored.partition, state.log_end),
            }
        });
        let checkpoint = Checkpoint {
            generation: Generation(generation.saturating_sub(1)),
            replay_from: JournalPosition(start),
            clean: false,
            written_at: Some(engine.clock.wall()),
            entries: entries.collect(),
        };
        let path = checkpoint::path(directory);
        checkpoint::write(engine, checkpoint).await.map_err(failed("write", &path))
    }

    async fn report(&self, restored: BTreeMap<TopicPartition, Restored>) -> Vec<RecoveredPartition> {
        let mut recovered = Vec::with_capacity(restored.len());
        for (_, Restored { partition, mut report, snapshots }) in restored {
            let log = PartitionLog { engine: Arc::clone(&self.engine), partition };
            let producers = self.producers(&log, &snapshots).await;
            if let Some(why) = producers.failed {
                // Not written down: the next start looks again, and sees it again where it stays.
                tracing::error!(place = %log.place(), why = %why, "partition fenced");
                log.partition.lock().fenced.get_or_insert_with(|| Arc::clone(&why));
                report.fenced.get_or_insert(why);
            }
            let (producer_snapshot, replay) = (producers.snapshot, producers.replay);
            recovered.push(RecoveredPartition { log, producer_snapshot, replay, report });
        }
        recovered
    }

    /// Snapshots from the newest to the oldest until one can be read, and else every batch that is here. Without the batches
    /// behind it a state is worse than none: retries of what it lacks would be taken for new records. So none counts below
    /// what is `lost`, and the batches behind that are all.
    async fn producers(&self, log: &PartitionLog, snapshots: &[Offset]) -> Producers {
        let (end, whole_from) = {
            let state = log.partition.lock();
            (state.log_end, state.lost.last().map_or(Offset::ZERO, |hole| hole.end))
        };
        let snapshots = snapshots.iter().rev().copied().filter(|offset| (whole_from..=end).contains(offset));
        let mut snapshot = None;
        for offset in snapshots {
            match self.read_snapshot(log, offset).await {
                Ok(bytes) => {
                    snapshot = Some((offset, bytes));
                    break;
                }
                Err(why) => {
                    tracing::error!(place = %log.place(), %offset, why, "producer snapshot passed over for an older one");
                }
            }
        }
        let from = snapshot.as_ref().map_or(whole_from, |(offset, _)| *offset);
        let read = if from < end { log.batch_headers(from).await } else { Ok(Vec::new()) };
        match read {
            Ok(replay) => Producers { snapshot, replay, failed: None },
            Err(error) => {
                let why = format!("producer state cannot be rebuilt from offset {from} on: {error}");
                Producers { snapshot: None, replay: Vec::new(), failed: Some(Arc::from(why)) }
            }
        }
    }

    async fn read_snapshot(&self, log: &PartitionLog, offset: Offset) -> Result<Bytes, String> {
        let path = segment::path(&log.partition.folder, offset, SNAPSHOT);
        let read = read_small(&*self.engine.disk, &path, SMALL_FILE_BYTES_MAX).await;
        let bytes = read.map_err(|error| error.to_string())?.ok_or("it is gone")?;
        // An empty one says that there were no producers.
        if !bytes.is_empty() {
            let snapshot = ProducerSnapshot::decode(&bytes).map_err(|error| error.to_string())?;
            if snapshot.end != offset {
                return Err(format!("it is the state at {}", snapshot.end));
            }
        }
        Ok(bytes)
    }
}

fn tail_batch(body: journal::play::Body) -> TailBatch {
    TailBatch {
        sequence: 0,
        base: body.range.base,
        last: body.range.end.prev().unwrap_or(body.range.base),
        header: Bytes::copy_from_slice(body.batch.header.as_bytes()),
        max_timestamp: body.batch.header.max_timestamp(),
        body: body.batch.body,
        leader_epoch: body.leader_epoch,
        charge: 0,
        journal_position: Some(body.position),
        appended: std::time::Duration::ZERO,
    }
}
