//! The engine behind [`Log`]: what all partitions of a node share, and the changes of one partition that need IO.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidelog_runtime::{CancellationToken, Clock, Disk, LogLimit, Registry, Supervisor, Task};
use tidelog_types::{DirectoryId, Offset, Timestamp, TopicPartition, limits};
use tokio::sync::Notify;

use crate::{
    CreateError, DirectoryLock, LogConfig, LogFailure, LogStatus, OpenError, PartitionConfig, PartitionLog,
    RecoveredPartition, checkpoint,
    descriptors::Descriptors,
    files::Files,
    journal::{self, Queue, Request, committer},
    metrics::LogMetrics,
    partition::{Partition, State},
    recovery,
    segment::Segment,
    space::{self, Space},
    tail::TailPool,
    write_behind::Behind,
};

/// Indexes of sealed segments kept in memory; each costs 32 bytes per interval.
const INDEXES_LOADED_MAX: usize = 256;

/// Workers that write behind. Two keep one device busy and leave it to readers.
const WRITE_BEHIND_WORKERS: usize = 2;

/// Rounds of the journal that may wait, beyond one batch of each partition. Two keep it busy; what waits beyond is latency
/// for everybody behind it.
const ROUNDS_QUEUED_MAX: u64 = 2;

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
    /// Turns of reads that open a segment's file.
    pub(crate) reads: tokio::sync::Semaphore,
    pub(crate) committer_stop: CancellationToken,
    pub(crate) directory_id: DirectoryId,
    /// Given back when the log is closed, whoever still holds a partition.
    lock: Mutex<Option<DirectoryLock>>,
    pub(crate) partitions: Mutex<BTreeMap<TopicPartition, Arc<Partition>>>,
    failure: OnceLock<LogFailure>,
    closing: AtomicBool,
    /// Partitions that a worker shall write behind.
    pub(crate) behind: Mutex<Behind>,
    pub(crate) behind_wake: Notify,
    /// Partitions with unwritten batches, by the time of the first of them.
    pub(crate) aging: Mutex<VecDeque<(Duration, Arc<Partition>)>>,
    pub(crate) aging_wake: Notify,
    pub(crate) checkpoint_wake: Notify,
    /// One checkpoint at a time.
    pub(crate) checkpoint_lock: tokio::sync::Mutex<()>,
    /// Journal positions that a work in progress still needs, by its number.
    pub(crate) holds: Mutex<(u64, BTreeMap<u64, u64>)>,
    /// One creation at a time: it clears what an earlier life left.
    creations: tokio::sync::Mutex<()>,
    /// One repair of an index at a time.
    pub(crate) repairs: tokio::sync::Mutex<()>,
    /// Folders were made that no sync of the data directory covers.
    pub(crate) new_folders: AtomicBool,
    loaded: Mutex<VecDeque<Weak<Segment>>>,
    pub(crate) space: Space,
    pub(crate) unclean: bool,
    tasks: Mutex<Vec<Task>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("directory", &self.config.directory).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let space = Space::new(LogLimit::new(Arc::clone(&clock), space::LINES_PER_MINUTE));
        let committer_stop = supervisor.shutdown_token().child_token();
        Self {
            descriptors: Descriptors::new(Arc::clone(&disk), descriptors),
            reads: tokio::sync::Semaphore::new(limits::SEGMENT_READS_IN_FLIGHT_MAX),
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
            repairs: tokio::sync::Mutex::new(()),
            new_folders: AtomicBool::new(false),
            loaded: Mutex::default(),
            space,
            unclean,
            tasks: Mutex::default(),
        }
    }

    /// The wall time of a moment that is told by the monotonic clock.
    pub(crate) fn wall_at(&self, moment: Duration) -> Timestamp {
        let ago = self.clock.monotonic().saturating_sub(moment).as_millis();
        let now = self.clock.wall().as_millis();
        Timestamp::from_millis(now.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX)))
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

    pub(crate) fn fail_partition(
        &self,
        partition: &Partition,
        operation: &'static str,
        source: io::Error,
    ) -> LogFailure {
        let failure = LogFailure::Partition { place: partition.place, operation, source: Arc::new(source) };
        self.fail(failure.clone());
        failure
    }

    /// Whether the journal is so full that even callers who did not wait are refused.
    pub(crate) fn journal_overfull(&self) -> bool {
        let max = self.config.journal_bytes_max.get();
        self.journal.bytes() >= max.saturating_add(max / 4)
    }

    pub(crate) fn crowded(&self) -> bool {
        self.pool.crowded()
            || self.journal.bytes() >= self.config.journal_bytes_max.get()
            || self.space.unknown()
    }

    /// Whether a partition may have more of what all share: the journal's queue, and memory for what is in no segment. Whoever
    /// floods one waits for its rounds and its write-behind; whoever writes little does not wait behind him.
    pub(crate) fn has_share(&self, state: &State) -> bool {
        let queue = ROUNDS_QUEUED_MAX * self.config.round_bytes_max.get();
        let waiting = state.tail.waiting_bytes();
        (waiting == 0 || waiting <= queue.saturating_sub(self.queue.bytes()))
            && self.pool.has_share(state.tail.unwritten_bytes(), self.config.write_behind_bytes.get())
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

    /// Waits until a partition has no more than its share, or nobody may append for want of space: what takes the share does not
    /// drain then.
    pub(crate) async fn share(&self, partition: &Partition) {
        loop {
            let room = self.pool.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.check().is_err() || !self.space.ok() || self.has_share(&partition.lock()) {
                return;
            }
            room.await;
        }
    }

    /// Waits until appends need not wait, or are refused for want of space.
    async fn room(&self) {
        loop {
            let room = self.pool.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if !self.crowded() || !self.space.ok() || self.check().is_err() {
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
        let committing = guarded(engine, committer::run(Arc::clone(engine)));
        let aging = guarded(engine, Arc::clone(engine).run_aging());
        let checkpoints = guarded(engine, checkpoint::run(Arc::clone(engine)));
        let segments = guarded(engine, crate::read::learn_segments(Arc::clone(engine)));
        let files = guarded(engine, journal::files::run(Arc::clone(engine)));
        let mut tasks = vec![
            supervisor.spawn("log committer", committing),
            supervisor.spawn_back("log aging", aging),
            supervisor.spawn_back("log checkpoints", checkpoints),
            supervisor.spawn_back("log segments", segments),
            supervisor.spawn_back("log journal files", files),
        ];
        for _ in 0..WRITE_BEHIND_WORKERS {
            let writing = guarded(engine, Arc::clone(engine).run_write_behind());
            tasks.push(supervisor.spawn_back("log write-behind", writing));
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
    /// once the log failed, or refuses appends for want of space.
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
            queued_bytes: engine.queue.bytes(),
            descriptors: engine.descriptors.count(),
            partitions: lock(&engine.partitions).len(),
            unclean: engine.unclean,
            free_space_ok: engine.space.ok(),
            free_bytes: engine.space.free(),
            failure: engine.check().err(),
        }
    }
}

/// Stops the log when the work panics: a node whose log lost a task would look healthy and acknowledge nothing.
fn guarded<W: Future<Output = ()>>(engine: &Arc<Engine>, work: W) -> impl Future<Output = ()> + use<W> {
    struct Guard(Arc<Engine>);
    impl Drop for Guard {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.fail(LogFailure::Panicked);
            }
        }
    }
    let guard = Guard(Arc::clone(engine));
    async move {
        let _guard = guard;
        work.await;
    }
}
