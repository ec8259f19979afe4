//! Cold reads: records and look-ups of what is in the bucket.
//!
//! **Owns** the way from a manifest to bytes: pages, indexes, units of about 1 MiB, the memory of readers under way, and
//! readahead. Everything that is held is charged to `tier.read.memory.bytes`.
//!
//! **Never** lists, never serves or caches a byte that did not pass its interval's checksum, never reads a manifest of its
//! own: what a reader's image does not hold, or the store does not have any more, is answered with
//! [`ColdError::NotHeld`], upon which the reader looks at a newer image.
//!
//! ```text
//!   offset -> entry (manifest, page) -> object (index) -> units -> batches
//!                                                          |
//!              ring (memory, readers under way) -> cache (wanted twice) -> a flight -> the bucket
//! ```
//!
//! A read that is dropped ends at once. Its requests that wait for their turn go with it unless others want them too; one
//! that is on the wire finishes into the ring.
//!
//! Start reading at [`read`](self) and `fetch`.

mod ahead;
mod charged;
mod fetch;
mod flights;
mod get;
mod intake;
mod look_up;
mod metrics;
mod object;
mod open;
mod pace;
mod read;
mod ring;
mod streams;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidelog_core::{readahead::ReadaheadLimits, topic_config::BrokerSettings};
use tidelog_format::{
    manifest::{ManifestEntry, PageId, SegmentObjectId},
    segment::AbortedTransaction,
};
use tidelog_object::{CacheUsage, ChunkCache, ChunkKey, ObjectClient};
use tidelog_replica::{ColdError, ColdFuture, ColdOutage, ColdPlace, ColdRead, ColdReader, ColdRecords};
use tidelog_runtime::{Budget, Buffers, Clock, LogLimit, Registry, Supervisor, metrics::Histogram};
use tidelog_types::{
    ByteSize, ClusterId, LeaderEpoch, Offset, OffsetRange, Timestamp, TopicPartition,
    limits::{COLD_UNIT_BYTES, COLD_UNITS_PER_GET_MAX},
};
use tokio::sync::Semaphore;
use tracing::{error, warn};

use crate::{kept::Kept, mistakes::Mistakes, pages::ManifestPages};
use charged::Charged;
use flights::Flights;
use get::{LookUpLane, Missing};
use metrics::ColdMetrics;
use object::OpenObject;
use pace::{LOOK_INTERVAL, Pace};
use ring::Ring;
use streams::Streams;

/// Free buffers that are kept: what a reader's requests bring. Units make room in bursts, one for each request.
const FREE_BUFFERS_MAX: usize = 64;

/// How long a read waits while the bucket is known not to serve: what memory and cache hold still answers.
const PATIENCE_WHILE_AWAY: Duration = Duration::from_millis(500);

/// Looks at the present between two at what nobody came for: one a second.
const LOOKS_PER_SWEEP: u32 = 4;

/// An object within the cluster.
pub(crate) type ObjectId = (TopicPartition, SegmentObjectId);

/// A page within the cluster.
type PageKey = (TopicPartition, PageId);

/// Settings of cold reads on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdConfig {
    /// `tier.read.memory.bytes`: answers on the wire, and what is kept for readers under way.
    pub memory: ByteSize,
    /// Indexes and pages that were read, a quarter of it for pages.
    pub index_memory: ByteSize,
    /// Memory of look-ups by time, apart from reads.
    pub look_up_memory: ByteSize,
    /// Requests of reads on the wire at once, at least 2: half of what the store's client allows leaves uploads the rest.
    pub requests_max: usize,
    /// Of these, requests that read ahead.
    pub ahead_requests_max: usize,
    /// Requests of look-ups on the wire at once.
    pub look_up_requests_max: usize,
    /// How far ahead of one reader is read at most.
    pub readahead_max: ByteSize,
    /// Deliberate defects, for the tests that prove the checkers.
    #[doc(hidden)]
    pub mistakes: Mistakes,
}

impl Default for ColdConfig {
    fn default() -> Self {
        Self {
            memory: ByteSize::mib(128),
            index_memory: ByteSize::mib(32),
            look_up_memory: ByteSize::mib(8),
            requests_max: 32,
            ahead_requests_max: 16,
            look_up_requests_max: 8,
            readahead_max: ByteSize::mib(48),
            mistakes: Mistakes::default(),
        }
    }
}

impl ColdConfig {
    /// What the broker's checked settings say.
    #[must_use]
    pub fn from_settings(settings: &BrokerSettings) -> Self {
        let default = Self::default();
        let memory = settings.amount("tier.read.memory.bytes").map_or(default.memory, ByteSize::bytes);
        Self { memory, ..default }
    }

    /// One reader's readahead takes three eighths of the memory at most: of 128 MiB three requests.
    fn readahead(&self) -> ReadaheadLimits {
        let max = self.readahead_max.get().min(self.memory.get() / 8 * 3);
        let request = COLD_UNIT_BYTES * COLD_UNITS_PER_GET_MAX;
        ReadaheadLimits { first: COLD_UNIT_BYTES.min(max), max, request }
    }
}

/// What cold reads hold and did since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ColdUsage {
    /// Bytes of `tier.read.memory.bytes` that are held now.
    pub memory_bytes: u64,
    /// Of these, bytes in the ring.
    pub ring_bytes: u64,
    /// Bytes of indexes and pages.
    pub index_bytes: u64,
    /// Bytes held by look-ups.
    pub look_up_bytes: u64,
    /// Requests on the wire now.
    pub gets_in_flight: u64,
    /// Things being fetched now: units, indexes, pages and intervals.
    pub flight_count: u64,
    /// Readers that are told apart now.
    pub reader_count: u64,
    /// Requests.
    pub get_count: u64,
    /// Bytes that they brought.
    pub get_bytes: u64,
    /// Units served from the ring.
    pub ring_hit_count: u64,
    /// Units served from the cache.
    pub cache_hit_count: u64,
    /// Units that came from the bucket while their reader waited.
    pub store_hit_count: u64,
    /// Units offered to the cache.
    pub admitted_count: u64,
    /// Bytes that were read ahead and then read.
    pub ahead_used_bytes: u64,
    /// Bytes that were read ahead in vain.
    pub ahead_dropped_bytes: u64,
    /// Intervals and indexes that failed their checksum.
    pub corrupt_count: u64,
    /// Bytes per second that they are held to, so that produces do not suffer; 0: they are free.
    pub rate_limit_bytes: u64,
    /// The cache.
    pub cache: CacheUsage,
}

/// Lines a minute about one kind of damage.
const LINES_PER_MINUTE: u32 = 6;

pub(crate) struct Shared {
    store: ObjectClient,
    cache: Arc<dyn ChunkCache>,
    cluster_id: ClusterId,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    metrics: ColdMetrics,
    memory: Budget,
    pace: Pace,
    gets: Arc<Semaphore>,
    ahead_gets: Arc<Semaphore>,
    look_ups: LookUpLane,
    ring: Ring,
    buffers: Arc<Buffers>,
    objects: Kept<ObjectId, Arc<OpenObject>>,
    pages: ManifestPages,
    unit_flights: Arc<Flights<ChunkKey, Charged>>,
    object_flights: Arc<Flights<ObjectId, Arc<OpenObject>>>,
    page_flights: Arc<Flights<PageKey, Arc<[ManifestEntry]>>>,
    interval_flights: Arc<Flights<(ObjectId, usize), Bytes>>,
    streams: Mutex<Streams>,
    missing: Mutex<BTreeMap<String, Missing>>,
    lines: LogLimit,
    mistakes: Mistakes,
    sweeping: AtomicBool,
    /// Itself, for the tasks that it starts.
    me: Weak<Shared>,
}

/// The reader of the bucket. See the module.
pub struct ColdTier {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ColdTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColdTier").field("memory", &self.shared.memory).finish_non_exhaustive()
    }
}

impl ColdTier {
    /// A reader of `store`. Nothing is requested or started before the first read.
    #[must_use]
    pub fn new(
        config: &ColdConfig,
        store: ObjectClient,
        cache: Arc<dyn ChunkCache>,
        cluster_id: ClusterId,
        clock: Arc<dyn Clock>,
        supervisor: &Supervisor,
        registry: &Registry,
    ) -> Arc<Self> {
        let metrics = ColdMetrics::new(registry);
        let memory = Budget::new("tier.read.memory.bytes", config.memory);
        let held = memory.clone();
        registry.gauge_computed(
            "tier_cold_memory_bytes",
            "Bytes of tier.read.memory.bytes that are held.",
            &[],
            move || held.used(),
        );
        let requests =
            |count: usize, least: usize| Arc::new(Semaphore::new(count.clamp(least, Semaphore::MAX_PERMITS)));
        let page_bytes = config.index_memory.get() / 4;
        let shared = Arc::new_cyclic(|me| Shared {
            store,
            cache,
            cluster_id,
            lines: LogLimit::new(Arc::clone(&clock), LINES_PER_MINUTE),
            clock,
            supervisor: supervisor.child("cold"),
            ring: Ring::new(metrics.clone()),
            buffers: Arc::new(Buffers::new(FREE_BUFFERS_MAX)),
            pace: Pace::new(metrics.clone()),
            metrics,
            memory,
            // An object's index and its first range go on the wire together.
            gets: requests(config.requests_max, 2),
            ahead_gets: requests(config.ahead_requests_max, 1),
            look_ups: LookUpLane::new(
                config.look_up_requests_max,
                Budget::new("cold look-ups", config.look_up_memory),
            ),
            objects: Kept::new(config.index_memory.get() - page_bytes),
            pages: ManifestPages::new(cluster_id, ByteSize::bytes(page_bytes)),
            unit_flights: Flights::new(),
            object_flights: Flights::new(),
            page_flights: Flights::new(),
            interval_flights: Flights::new(),
            streams: Mutex::new(Streams::new(config.readahead())),
            missing: Mutex::default(),
            mistakes: config.mistakes,
            sweeping: AtomicBool::new(false),
            me: Weak::clone(me),
        });
        Arc::new(Self { shared })
    }

    /// The pages that it reads, for whoever reads pages on this node.
    #[must_use]
    pub fn pages(&self) -> ManifestPages {
        self.shared.pages.clone()
    }

    /// What is held and was done.
    #[must_use]
    pub fn usage(&self) -> ColdUsage {
        let shared = &*self.shared;
        let flights = shared.unit_flights.count()
            + shared.object_flights.count()
            + shared.page_flights.count()
            + shared.interval_flights.count();
        let metrics = &shared.metrics;
        ColdUsage {
            memory_bytes: shared.memory.used(),
            ring_bytes: shared.ring.bytes(),
            index_bytes: shared.objects.bytes().saturating_add(shared.pages.bytes()),
            look_up_bytes: shared.look_ups.used(),
            gets_in_flight: metrics.gets_in_flight.get(),
            flight_count: flights as u64,
            reader_count: shared.lock_streams().count() as u64,
            get_count: metrics.gets.get(),
            get_bytes: metrics.get_bytes.get(),
            ring_hit_count: metrics.ring_hits.get(),
            cache_hit_count: metrics.cache_hits.get(),
            store_hit_count: metrics.store_hits.get(),
            admitted_count: metrics.admitted.get(),
            ahead_used_bytes: metrics.ahead_used_bytes.get(),
            ahead_dropped_bytes: metrics.ahead_dropped_bytes.get(),
            corrupt_count: metrics.corrupt_intervals.get(),
            rate_limit_bytes: shared.pace.rate(),
            cache: shared.cache.usage(),
        }
    }

    /// Has cold reads give way while these latencies, in seconds, are far above what is usual: the rounds of the journal, and
    /// whole produces. Without it they are bounded by their budgets alone.
    pub fn give_way_to(&self, signals: [Histogram; 2]) {
        if !self.shared.pace.watch(signals) {
            warn!("cold reads were told twice what to give way to");
        }
    }

    /// Drops everything that was read: the next read goes to the bucket. What is on the wire may still land.
    pub async fn clear(&self) {
        let shared = &*self.shared;
        shared.lock_streams().clear();
        shared.ring.clear();
        shared.buffers.clear();
        shared.objects.clear();
        shared.pages.clear();
        shared.lock_missing().clear();
        shared.cache.clear().await;
    }

    /// Every aborted transaction of the bucket that overlaps `range`: what a read_committed fetch of it needs. From indexes
    /// alone; an object without one asks for nothing (C1).
    ///
    /// # Errors
    /// As a read.
    pub async fn aborted(
        &self,
        place: &ColdPlace,
        range: OffsetRange,
        deadline: Duration,
    ) -> Result<Vec<AbortedTransaction>, ColdError> {
        let shared = &self.shared;
        shared.within(deadline, shared.aborted_in(place, range)).await
    }

    /// Ends all requests; reads that wait, and all after, answer [`ColdError::Unavailable`]. Answers the names of tasks that
    /// did not end by `deadline`.
    pub async fn stop(&self, deadline: Duration) -> Vec<&'static str> {
        let shared = &*self.shared;
        let late = shared.supervisor.shutdown(deadline).await;
        shared.ring.clear();
        shared.buffers.clear();
        if !late.is_empty() {
            warn!(?late, "cold reads did not end in time");
        }
        late
    }
}

impl Shared {
    /// Runs a request in the background: who waits for it may go.
    fn fly(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let token = self.supervisor.shutdown_token();
        let flight = async move {
            tokio::select! {
                // A node that stops begins nothing.
                biased;
                () = token.cancelled() => {}
                () = work => {}
            }
        };
        self.supervisor.spawn_back(name, flight).detach();
    }

    /// An answer by the deadline, from now.
    async fn within<T>(
        &self,
        deadline: Duration,
        work: impl Future<Output = Result<T, ColdError>>,
    ) -> Result<T, ColdError> {
        let token = self.supervisor.shutdown_token();
        let unavailable = |why: &str| Err(ColdError::Unavailable { why: why.into() });
        tokio::select! {
            // An answer that is there counts, however late.
            biased;
            () = token.cancelled() => unavailable("cold reads are stopping"),
            answer = work => answer,
            why = self.known_to_fail() => unavailable(&why),
            () = self.clock.sleep(deadline) => match self.store.health().failures() {
                Some(failures) => unavailable(&failures.to_string()),
                None => unavailable("the time for it is over"),
            },
        }
    }

    /// Completes once it makes no sense to wait: the bucket is known not to serve, and has been while this waited. The
    /// request that was begun goes on, and finds out when the bucket is back.
    async fn known_to_fail(&self) -> String {
        let health = self.store.health();
        loop {
            health.reads_fail().await;
            self.clock.sleep(PATIENCE_WHILE_AWAY).await;
            if let Some(outage) = health.reads_outage() {
                return outage.to_string();
            }
        }
    }

    /// Sees to it that what nobody comes for leaves the ring.
    fn keep_sweeping(&self) {
        // Nothing to do where a sweep runs; the look comes first since it is cheap.
        if self.sweeping.load(Ordering::Acquire) || self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(shared) = self.me.upgrade() {
            self.fly("cold sweep", async move {
                // What happened before the first read tells what is usual.
                shared.pace.look(shared.clock.monotonic());
                loop {
                    for _ in 0..LOOKS_PER_SWEEP {
                        shared.clock.sleep(LOOK_INTERVAL).await;
                        shared.pace.look(shared.clock.monotonic());
                    }
                    let now = shared.clock.monotonic();
                    let readers = {
                        let mut streams = shared.lock_streams();
                        streams.forget(now);
                        streams.count()
                    };
                    let is_empty = !shared.ring.expire(now);
                    if is_empty {
                        shared.buffers.clear();
                    }
                    if is_empty && readers == 0 {
                        shared.sweeping.store(false, Ordering::Release);
                        // What came in since then has seen the flag and begun no sweep.
                        if shared.ring.bytes() == 0 || shared.sweeping.swap(true, Ordering::AcqRel) {
                            return;
                        }
                    }
                }
            });
        }
    }

    async fn aborted_in(
        self: &Arc<Self>,
        place: &ColdPlace,
        range: OffsetRange,
    ) -> Result<Vec<AbortedTransaction>, ColdError> {
        let mut aborted: Vec<AbortedTransaction> = Vec::new();
        let mut at = range.base;
        while at < range.end
            && let Some(entry) = self.entry_at(place, at).await?
        {
            let object = self.open(place, &entry, false).await?;
            // One that spans objects is in the index of each.
            for transaction in object.index.aborted_in(range) {
                if !aborted.contains(transaction) {
                    aborted.push(*transaction);
                }
            }
            at = entry.range.end;
        }
        Ok(aborted)
    }

    fn lock_streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is wrong in the bucket; every fetch of it would say so again.
    fn complain(&self, what: &'static str, key: &str, why: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.lines.pass(what) {
            error!(key, %why, suppressed, "{what}");
        }
    }

    fn lock_missing(&self) -> MutexGuard<'_, BTreeMap<String, Missing>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ColdReader for ColdTier {
    fn outage(&self) -> Option<ColdOutage> {
        let outage = self.shared.store.health().reads_outage()?;
        Some(ColdOutage { lasts: outage.lasts, why: outage.to_string().into() })
    }

    fn read_at_hand(&self, read: &ColdRead) -> Option<ColdRecords> {
        let records = self.shared.read_at_hand(read)?;
        self.shared.metrics.reads.inc();
        Some(records)
    }

    fn read(&self, read: ColdRead) -> ColdFuture<ColdRecords> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.metrics.reads.inc();
            let answer = shared.within(read.deadline, shared.read_records(&read)).await;
            if answer.is_err() {
                shared.metrics.failed_reads.inc();
            }
            answer
        })
    }

    fn first_batch_at_or_after(
        &self,
        place: ColdPlace,
        range: OffsetRange,
        time: Timestamp,
        deadline: Duration,
    ) -> ColdFuture<Option<Bytes>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.within(deadline, shared.first_at_or_after(&place, range, time)).await })
    }

    fn max_timestamp_batch(
        &self,
        place: ColdPlace,
        range: OffsetRange,
        deadline: Duration,
    ) -> ColdFuture<Option<Bytes>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.within(deadline, shared.largest(&place, range)).await })
    }

    fn epoch_end(
        &self,
        place: ColdPlace,
        epoch: LeaderEpoch,
        deadline: Duration,
    ) -> ColdFuture<Option<(LeaderEpoch, Offset)>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.within(deadline, shared.epoch_end(&place, epoch)).await })
    }

    fn epoch_of(
        &self,
        place: ColdPlace,
        offset: Offset,
        deadline: Duration,
    ) -> ColdFuture<Option<LeaderEpoch>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.within(deadline, shared.epoch_of(&place, offset)).await })
    }
}
