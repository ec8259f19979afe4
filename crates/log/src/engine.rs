//! The engine behind [`Log`]: what all partitions of a node share, and the changes of one partition that need IO.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidelog_runtime::{CancellationToken, Clock, Disk, Registry, Supervisor, Task};
use tidelog_types::{DirectoryId, Offset, TopicPartition};
use tokio::sync::Notify;

use crate::{
    CreateError, DirectoryLock, LogConfig, LogFailure, LogStatus, OpenError, PartitionConfig, PartitionLog,
    RecoveredPartition, checkpoint,
    descriptors::Descriptors,
    files::{Files, PIECE_BYTES},
    journal::{self, Entry, Queue, Request, committer},
    metrics::LogMetrics,
    partition::{Partition, State, take_flag},
    recovery,
    segment::Segment,
    tail::{TailBatch, TailPool},
};

/// Indexes of sealed segments kept in memory; each costs 32 bytes per interval.
const INDEXES_LOADED_MAX: usize = 256;

/// Workers that write behind. Two keep one device busy and leave it to readers.
const WRITE_BEHIND_WORKERS: usize = 2;

/// How long write-behind waits when a disk was full.
const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

/// How often the free space is looked at.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

/// What the partitions of a node share.
pub(crate) struct Engine {
    pub(crate) config: LogConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) supervisor: Supervisor,
    pub(crate) metrics: LogMetrics,
    pub(crate) queue: Queue,
    pub(crate) journal: Arc<journal::files::Files>,
    pub(crate) pool: TailPool,
    pub(crate) descriptors: Descriptors,
    pub(crate) committer_stop: CancellationToken,
    pub(crate) directory_id: DirectoryId,
    /// Given back when the log is closed, whoever still holds a partition.
    lock: Mutex<Option<DirectoryLock>>,
    partitions: Mutex<BTreeMap<TopicPartition, Arc<Partition>>>,
    failure: OnceLock<LogFailure>,
    closing: AtomicBool,
    /// Partitions that a worker shall write behind.
    behind: Mutex<VecDeque<Arc<Partition>>>,
    behind_wake: Notify,
    /// Partitions with unwritten batches, by the time of the first of them.
    aging: Mutex<VecDeque<(Duration, Arc<Partition>)>>,
    aging_wake: Notify,
    pub(crate) checkpoint_wake: Notify,
    /// One checkpoint at a time.
    pub(crate) checkpoint_lock: tokio::sync::Mutex<()>,
    /// Journal positions that a work in progress still needs, by its number.
    pub(crate) holds: Mutex<(u64, BTreeMap<u64, u64>)>,
    /// One creation at a time: it clears what an earlier life left.
    creations: tokio::sync::Mutex<()>,
    /// Folders were made that no sync of the data directory covers.
    pub(crate) new_folders: AtomicBool,
    loaded: Mutex<VecDeque<Weak<Segment>>>,
    space_ok: AtomicBool,
    free_bytes: AtomicU64,
    pub(crate) unclean: bool,
    tasks: Mutex<Vec<Task>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("directory", &self.config.directory).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    #[allow(clippy::too_many_arguments, reason = "the parts of one node, put together in one place")]
    pub(crate) fn new(
        mut config: LogConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
        metrics: LogMetrics,
        journal: journal::files::Files,
        directory_id: DirectoryId,
        unclean: bool,
    ) -> Self {
        let (tail_bytes, descriptors) = (config.tail_bytes.get(), config.descriptors_max);
        let lock = Mutex::new(config.lock.take());
        let committer_stop = supervisor.shutdown_token().child_token();
        Self {
            descriptors: Descriptors::new(Arc::clone(&disk), descriptors),
            config,
            disk,
            clock,
            supervisor,
            metrics,
            queue: Queue::default(),
            journal: Arc::new(journal),
            pool: TailPool::new(tail_bytes),
            committer_stop,
            lock,
            directory_id,
            partitions: Mutex::default(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
            behind: Mutex::default(),
            behind_wake: Notify::new(),
            aging: Mutex::default(),
            aging_wake: Notify::new(),
            checkpoint_wake: Notify::new(),
            checkpoint_lock: tokio::sync::Mutex::new(()),
            holds: Mutex::default(),
            creations: tokio::sync::Mutex::new(()),
            new_folders: AtomicBool::new(false),
            loaded: Mutex::default(),
            space_ok: AtomicBool::new(true),
            free_bytes: AtomicU64::new(u64::MAX),
            unclean,
            tasks: Mutex::default(),
        }
    }

    /// Whether the log takes appends.
    pub(crate) fn accepting(&self) -> Result<(), LogFailure> {
        self.check()?;
        if self.closing.load(Ordering::Acquire) { Err(LogFailure::Closed) } else { Ok(()) }
    }

    /// Whether the log still works.
    pub(crate) fn check(&self) -> Result<(), LogFailure> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Stops the log for good, and tells everybody.
    pub(crate) fn fail(&self, failure: LogFailure) {
        let closed = matches!(failure, LogFailure::Closed);
        if self.failure.set(failure).is_err() {
            return;
        }
        let Some(failure) = self.failure.get() else { return };
        if !closed {
            tracing::error!(%failure, "the log stops: nothing is acknowledged any more");
            self.metrics.failed.set(1);
        }
        self.queue.note_failed();
        self.pool.room.notify_waiters();
        self.behind_wake.notify_waiters();
        self.aging_wake.notify_one();
        self.checkpoint_wake.notify_one();
        for partition in self.partitions() {
            partition.note_failed(failure);
        }
    }

    fn fail_partition(
        &self,
        partition: &Partition,
        operation: &'static str,
        source: io::Error,
    ) -> LogFailure {
        let failure = LogFailure::Partition { place: partition.place, operation, source: Arc::new(source) };
        self.fail(failure.clone());
        failure
    }

    pub(crate) fn space_ok(&self) -> bool {
        self.space_ok.load(Ordering::Relaxed)
    }

    /// Whether the journal is so full that even callers who did not wait are refused.
    pub(crate) fn journal_overfull(&self) -> bool {
        let max = self.config.journal_bytes_max.get();
        self.journal.bytes() >= max.saturating_add(max / 4)
    }

    fn crowded(&self) -> bool {
        self.pool.crowded() || self.journal.bytes() >= self.config.journal_bytes_max.get()
    }

    pub(crate) fn partitions(&self) -> Vec<Arc<Partition>> {
        lock(&self.partitions).values().cloned().collect()
    }

    pub(crate) fn add_partition(&self, partition: Arc<Partition>) {
        lock(&self.partitions).insert(partition.place, partition);
    }

    pub(crate) fn note_new_folder(&self) {
        self.new_folders.store(true, Ordering::Release);
    }

    /// A sealed segment's index is in memory; the one loaded longest ago goes.
    pub(crate) fn note_loaded(&self, segment: &Arc<Segment>) {
        let mut loaded = lock(&self.loaded);
        loaded.push_back(Arc::downgrade(segment));
        while loaded.len() > INDEXES_LOADED_MAX {
            let Some(oldest) = loaded.pop_front().and_then(|oldest| oldest.upgrade()) else { continue };
            let mut content = oldest.content_mut();
            if content.sealed {
                content.intervals = None;
            }
        }
    }

    // ---- write-behind ----

    pub(crate) fn queue_write_behind(&self, partition: &Arc<Partition>) {
        if take_flag(&partition.queued) {
            lock(&self.behind).push_back(Arc::clone(partition));
            self.behind_wake.notify_one();
        }
    }

    pub(crate) fn start_aging(&self, partition: &Arc<Partition>, now: Duration) {
        lock(&self.aging).push_back((now, Arc::clone(partition)));
    }

    pub(crate) fn wake_write_behind(&self) {
        self.aging_wake.notify_one();
    }

    /// Queues partitions whose first unwritten batch is old, or the oldest ones whatever their age while memory is short.
    async fn run_aging(self: Arc<Self>) {
        let stop = self.supervisor.shutdown_token();
        let tick = (self.config.write_behind_delay / 4).clamp(Duration::from_millis(10), SPACE_INTERVAL);
        let mut next_space = Duration::ZERO;
        while self.check().is_ok() {
            let now = self.clock.monotonic();
            if now >= next_space {
                self.look_at_space().await;
                next_space = now + SPACE_INTERVAL;
            }
            self.queue_aged(now);
            self.publish_metrics();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.aging_wake.notified() => {}
                () = self.clock.sleep(tick) => {}
            }
        }
    }

    fn queue_aged(&self, now: Duration) {
        let crowded = self.crowded();
        let mut aging = lock(&self.aging);
        while let Some((since, partition)) = aging.front() {
            if !crowded && now.saturating_sub(*since) < self.config.write_behind_delay {
                return;
            }
            self.queue_write_behind(partition);
            aging.pop_front();
        }
    }

    fn publish_metrics(&self) {
        self.metrics.tail_bytes.set(self.pool.charged());
        self.metrics.unwritten_bytes.set(self.pool.unwritten());
        self.metrics.journal_live_bytes.set(self.journal.bytes());
        self.metrics.open_files.set(self.descriptors.count() as u64);
        self.metrics.free_bytes.set(self.free_bytes.load(Ordering::Relaxed));
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    pub(crate) async fn look_at_space(&self) {
        let Ok(space) = self.disk.space(&self.config.directory).await else { return };
        self.free_bytes.store(space.free, Ordering::Relaxed);
        let floor = u128::from(space.total) * u128::from(self.config.free_space_floor_percent) / 100;
        let ok = u128::from(space.free) >= floor;
        if self.space_ok.swap(ok, Ordering::Relaxed) != ok {
            tracing::warn!(
                free_bytes = space.free,
                total_bytes = space.total,
                ok,
                "free space crossed its floor"
            );
        }
    }

    async fn run_write_behind(self: Arc<Self>) {
        let stop = self.supervisor.shutdown_token();
        while self.check().is_ok() {
            let next = lock(&self.behind).pop_front();
            let Some(partition) = next else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.behind_wake.notified() => {}
                }
                continue;
            };
            partition.queued.store(false, Ordering::Release);
            let mut files = partition.files.lock().await;
            let written = self.write_behind(&partition, &mut files).await;
            drop(files);
            match written {
                Ok(()) => self.age_again(&partition),
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::error!(place = %partition.place, %error, "write-behind waits for space");
                    self.space_ok.store(false, Ordering::Relaxed);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = self.clock.sleep(FULL_DISK_RETRY) => self.queue_write_behind(&partition),
                    }
                }
                Err(error) => {
                    self.fail_partition(&partition, "write behind", error);
                }
            }
        }
    }

    fn age_again(&self, partition: &Arc<Partition>) {
        let mut state = partition.lock();
        match state.oldest_unwritten() {
            Some(since) => {
                state.aging = true;
                drop(state);
                self.start_aging(partition, since);
            }
            None => state.aging = false,
        }
    }

    /// Writes to segments everything that the journal has written.
    pub(crate) async fn write_behind(&self, partition: &Partition, files: &mut Files) -> io::Result<()> {
        loop {
            let batches = next_piece(partition);
            let Some(last) = batches.last() else { return Ok(()) };
            let end = last.last.next();
            files.append(self, partition, &batches).await?;
            let charge = {
                let mut state = partition.lock();
                state.behind_end = end;
                state.tail.mark_behind(end)
            };
            self.pool.wrote(charge);
            self.pool.shrink();
        }
    }

    // ---- changes of one partition ----

    /// Holds the journal from here on for a work whose entry must not be freed before it is done.
    fn hold(&self) -> Hold<'_> {
        let mut holds = lock(&self.holds);
        holds.0 += 1;
        let number = holds.0;
        holds.1.insert(number, self.journal.head());
        Hold { engine: self, number }
    }

    /// The least position that works in progress need.
    pub(crate) fn held_from(&self) -> Option<u64> {
        lock(&self.holds).1.values().min().copied()
    }

    fn push(&self, partition: &Arc<Partition>, state: &State, request: Request) -> u64 {
        let entry = Entry { partition: Arc::clone(partition), cut: state.cut, end: state.log_end, request };
        self.queue.push(entry)
    }

    async fn synced(&self, ticket: u64) -> Result<(), LogFailure> {
        self.queue.wait_synced(ticket, || self.check()).await
    }

    pub(crate) async fn roll(&self, partition: &Arc<Partition>) -> Result<(), LogFailure> {
        let ticket = self.queue.newest();
        self.synced(ticket).await?;
        let mut files = partition.files.lock().await;
        if partition.lock().deleted {
            return Err(LogFailure::Deleted);
        }
        let rolled = async {
            self.write_behind(partition, &mut files).await?;
            files.seal(self, partition).await
        };
        rolled.await.map_err(|error| self.fail_partition(partition, "roll", error))
    }

    pub(crate) async fn truncate(&self, partition: &Arc<Partition>, to: Offset) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        let to = crate::read::boundary_below(self, partition, to).await;
        let (floor, unchanged) = {
            let state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            (state.log_start.max(state.local_log_start), to >= state.log_end && state.fenced.is_none())
        };
        if unchanged {
            return Ok(());
        }
        if to < floor {
            // Nothing of what stays is served: the log is empty at its start.
            return self.reset_holding(partition, &mut files, floor).await;
        }
        let (ticket, to, freed, unwritten) = {
            let mut state = partition.lock();
            let to = to.min(state.log_end);
            let (freed, unwritten) = state.tail.truncate(to);
            state.cut_to(to);
            let ticket = if self.config.mistakes.truncate_without_entry {
                (state.written_end, state.synced_end) = (to, to);
                0
            } else {
                self.push(partition, &state, Request::Truncate(to))
            };
            (ticket, to, freed, unwritten)
        };
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        self.synced(ticket).await?;
        let cut = files.truncate(self, partition, to).await;
        tracing::info!(place = %partition.place, offset = %to, "log truncated");
        cut.map_err(|error| self.fail_partition(partition, "truncate", error))
    }

    pub(crate) async fn reset(&self, partition: &Arc<Partition>, start: Offset) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        self.reset_holding(partition, &mut files, start).await
    }

    async fn reset_holding(
        &self,
        partition: &Arc<Partition>,
        files: &mut Files,
        start: Offset,
    ) -> Result<(), LogFailure> {
        let (ticket, freed, unwritten) = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let (freed, unwritten) = state.tail.clear();
            let (config, cut) = (state.config.clone(), state.cut);
            let tail = std::mem::take(&mut state.tail);
            let aging = state.aging;
            *state = State { cut: cut + 1, tail, aging, ..State::empty(config, start) };
            (self.push(partition, &state, Request::Reset(start)), freed, unwritten)
        };
        let old = partition.segments.swap(Arc::new(Vec::new()));
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        self.synced(ticket).await?;
        for segment in old.iter() {
            self.descriptors.forget(&segment.path(crate::segment::LOG));
            self.descriptors.forget(&segment.path(crate::segment::INDEX));
        }
        tracing::info!(place = %partition.place, offset = %start, "log reset");
        files.clear(self, partition).await.map_err(|error| self.fail_partition(partition, "reset", error))
    }

    pub(crate) async fn set_log_start(
        &self,
        partition: &Arc<Partition>,
        to: Offset,
    ) -> Result<(), LogFailure> {
        self.check()?;
        let ticket = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let to = to.min(state.log_end);
            if to <= state.log_start {
                return Ok(());
            }
            state.log_start = to;
            self.push(partition, &state, Request::LogStart(to))
        };
        self.synced(ticket).await
    }

    pub(crate) async fn set_local_log_start(
        &self,
        partition: &Arc<Partition>,
        to: Offset,
    ) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        let (ticket, removed) = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let segments = partition.segments.load_full();
            // A segment goes if it is sealed and ends at or below `to`; the next one's base is its end.
            let count = (0..segments.len())
                .take_while(|index| {
                    let content = segments[*index].content();
                    let end = segments.get(index + 1).map_or(content.end, |next| next.base);
                    content.sealed && end <= to
                })
                .count();
            if count == 0 {
                return Ok(());
            }
            let start =
                segments.get(count).map_or_else(|| segments[count - 1].content().end, |next| next.base);
            state.local_log_start = start;
            partition.segments.store(Arc::new(segments[count..].to_vec()));
            (self.push(partition, &state, Request::LocalLogStart(start)), segments[..count].to_vec())
        };
        self.synced(ticket).await?;
        let gone = files.remove_oldest(self, partition, &removed).await;
        gone.map_err(|error| self.fail_partition(partition, "remove segments", error))
    }

    async fn delete(&self, partition: &Arc<Partition>) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        let hold = self.hold();
        let (ticket, freed, unwritten) = {
            let mut state = partition.lock();
            if state.deleted {
                return Ok(());
            }
            state.deleted = true;
            state.cut += 1;
            let (freed, unwritten) = state.tail.clear();
            (self.push(partition, &state, Request::Delete), freed, unwritten)
        };
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        partition.changed.notify_waiters();
        self.synced(ticket).await?;
        let cleared = files.clear(self, partition).await;
        drop(hold);
        cleared.map_err(|error| self.fail_partition(partition, "delete", error))?;
        let mut partitions = lock(&self.partitions);
        if partitions.get(&partition.place).is_some_and(|known| Arc::ptr_eq(known, partition)) {
            partitions.remove(&partition.place);
        }
        tracing::info!(place = %partition.place, "partition deleted");
        Ok(())
    }

    /// Waits until appends need not wait.
    async fn room(&self) {
        loop {
            let room = self.pool.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if !self.crowded() || self.check().is_err() {
                return;
            }
            self.wake_write_behind();
            if self.journal.bytes() >= self.config.journal_bytes_max.get() {
                self.checkpoint_wake.notify_one();
            }
            room.await;
        }
    }
}

struct Hold<'a> {
    engine: &'a Engine,
    number: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        lock(&self.engine.holds).1.remove(&self.number);
    }
}

/// Batches that the journal has written and no segment has, up to one piece.
fn next_piece(partition: &Partition) -> Vec<TailBatch> {
    let state = partition.lock();
    let mut bytes = 0;
    let mut batches = Vec::new();
    for batch in state.tail.unwritten() {
        if batch.last >= state.written_end || (bytes > 0 && bytes + batch.bytes() > PIECE_BYTES) {
            break;
        }
        bytes += batch.bytes();
        batches.push(batch.clone());
    }
    batches
}

/// The log of one node. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    engine: Arc<Engine>,
}

impl Log {
    /// Opens the data directory, recovering what the last stop left: each partition is cut back to its checkpoint, and the
    /// journal is played over it. When it returns, all of it is durable.
    ///
    /// # Errors
    /// Nothing was lost by trying; what is damaged is named.
    pub async fn open(
        config: LogConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
        registry: &Registry,
    ) -> Result<(Self, Vec<RecoveredPartition>), OpenError> {
        let (engine, recovered) =
            recovery::open(config, disk, clock, supervisor.child("log"), registry).await?;
        let log = Self { engine };
        log.start();
        Ok((log, recovered))
    }

    fn start(&self) {
        let engine = &self.engine;
        let supervisor = &engine.supervisor;
        let mut tasks = vec![
            supervisor.spawn("log committer", committer::run(Arc::clone(engine))),
            supervisor.spawn_back("log aging", Arc::clone(engine).run_aging()),
            supervisor.spawn_back("log checkpoints", checkpoint::run(Arc::clone(engine))),
            supervisor.spawn_back("log segments", crate::read::learn_segments(Arc::clone(engine))),
            supervisor.spawn_back("log journal files", journal::files::run(Arc::clone(engine))),
        ];
        for _ in 0..WRITE_BEHIND_WORKERS {
            tasks.push(supervisor.spawn_back("log write-behind", Arc::clone(engine).run_write_behind()));
        }
        *lock(&engine.tasks) = tasks;
    }

    /// Creates a partition that starts at `start`. Durable with its first synced append; a crash before that forgets it.
    ///
    /// # Errors
    /// [`CreateError::Exists`] where it is there.
    pub async fn create(
        &self,
        place: TopicPartition,
        config: PartitionConfig,
        start: Offset,
    ) -> Result<PartitionLog, CreateError> {
        let engine = &self.engine;
        engine.accepting()?;
        let _one = engine.creations.lock().await;
        let folder = engine.config.directory.join(place.to_string());
        // A folder that nobody knows is the rest of an earlier life of this replica.
        if lock(&engine.partitions).contains_key(&place) {
            return Err(CreateError::Exists);
        }
        let cleared = async {
            engine.disk.remove_dir_all(&folder).await?;
            engine.note_new_folder();
            Ok(())
        };
        cleared.await.map_err(|source: io::Error| {
            let failure = LogFailure::Partition { place, operation: "create", source: Arc::new(source) };
            engine.fail(failure.clone());
            failure
        })?;
        let state = State::empty(config, start);
        let partition = Arc::new(Partition::new(place, folder, state, Files::default()));
        let mut partitions = lock(&engine.partitions);
        if partitions.contains_key(&place) {
            return Err(CreateError::Exists);
        }
        engine.push(&partition, &partition.lock(), Request::Reset(start));
        partitions.insert(place, Arc::clone(&partition));
        drop(partitions);
        Ok(PartitionLog { engine: Arc::clone(engine), partition })
    }

    /// The partition, if it is here.
    #[must_use]
    pub fn partition(&self, place: TopicPartition) -> Option<PartitionLog> {
        let partition = lock(&self.engine.partitions).get(&place).cloned()?;
        Some(PartitionLog { engine: Arc::clone(&self.engine), partition })
    }

    /// Deletes a partition: its journal entry is durable before the first file goes. Absence is success.
    ///
    /// # Errors
    /// The log failed; after a restart the partition may or may not be there.
    pub async fn delete(&self, place: TopicPartition) -> Result<(), LogFailure> {
        let partition = lock(&self.engine.partitions).get(&place).cloned();
        match partition {
            Some(partition) => self.engine.delete(&partition).await,
            None => Ok(()),
        }
    }

    /// Takes a checkpoint now.
    ///
    /// # Errors
    /// The log failed.
    pub async fn checkpoint(&self) -> Result<(), LogFailure> {
        checkpoint::take(&self.engine, false).await
    }

    /// Writes everything behind, takes a last checkpoint, and leaves the mark of a clean stop. Nothing can be appended
    /// afterwards.
    ///
    /// # Errors
    /// The log failed; the next start recovers.
    pub async fn close(&self) -> Result<(), LogFailure> {
        let engine = &self.engine;
        engine.check()?;
        engine.closing.store(true, Ordering::Release);
        // The second finds nothing to do, so that nothing lies behind it.
        checkpoint::take(engine, false).await?;
        checkpoint::take(engine, true).await?;
        engine.fail(LogFailure::Closed);
        engine.committer_stop.cancel();
        let tasks = std::mem::take(&mut *lock(&engine.tasks));
        for task in tasks {
            task.abort();
            if let Err(failure) = task.join().await {
                tracing::debug!(%failure, "task ended");
            }
        }
        drop(lock(&engine.lock).take());
        Ok(())
    }

    /// Waits while appends should wait: half of the tail's budget is unwritten, or the journal is at its limit. Also returns
    /// once the log failed.
    pub async fn append_room(&self) {
        self.engine.room().await;
    }

    /// The directory's own id.
    #[must_use]
    pub fn directory_id(&self) -> DirectoryId {
        self.engine.directory_id
    }

    /// The state of the log.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        let engine = &self.engine;
        LogStatus {
            journal_bytes: engine.journal.bytes(),
            tail_bytes: engine.pool.charged(),
            unwritten_bytes: engine.pool.unwritten(),
            descriptors: engine.descriptors.count(),
            partitions: lock(&engine.partitions).len(),
            unclean: engine.unclean,
            free_space_ok: engine.space_ok(),
            free_bytes: engine.free_bytes.load(Ordering::Relaxed),
            failure: engine.check().err(),
        }
    }
}
