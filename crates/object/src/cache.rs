//! The cache of chunks read from the bucket: the seam, and a plain map behind it.
//!
//! **Owns** bytes that were read and verified, under keys that name their content: cluster, topic, partition, upload
//! and unit. An object never changes, so a chunk never goes stale. **Never** the only copy of anything: every entry
//! may vanish at any time, and an error of the cache is a miss.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use tidelog_runtime::Registry;
use tidelog_types::{ByteSize, ClusterId, PartitionIndex, TopicId, UploadId};

use crate::metrics::CacheMetrics;

/// What a chunk is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    /// The cluster that wrote it.
    pub cluster_id: ClusterId,
    /// The topic, by this life of it.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionIndex,
    /// The upload: unique in the cluster, so that it names the object.
    pub upload: UploadId,
    /// The index of the unit within the object.
    pub unit: u64,
}

/// What a cache holds and how often it helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct CacheUsage {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Chunks found.
    pub hit_count: u64,
    /// Chunks not found.
    pub miss_count: u64,
}

/// A cache of chunks.
pub trait ChunkCache: Send + Sync + 'static {
    /// The chunk, if it is here. Never fails and never waits for a slow start: both are a miss.
    fn get<'a>(&'a self, key: &'a ChunkKey) -> BoxFuture<'a, Option<Bytes>>;
    /// Offers a chunk; it may be dropped.
    fn insert(&self, key: ChunkKey, chunk: Bytes);
    /// Drops everything.
    fn clear(&self) -> BoxFuture<'_, ()>;
    /// What it holds in memory.
    fn usage(&self) -> CacheUsage;
    /// Bytes that its files take on the device now. Looks at each file: for people who ask, not for every read.
    fn disk_bytes(&self) -> u64 {
        0
    }
    /// Writes out what a restart may find again, and stops its work.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A cache in memory that drops the least recently used chunk: deterministic, for the simulator and for nodes without a
/// disk cache.
pub struct MapCache {
    bytes_max: u64,
    state: Mutex<Entries>,
    metrics: CacheMetrics,
}

#[derive(Default)]
struct Entries {
    chunks: BTreeMap<ChunkKey, (Bytes, u64)>,
    /// By the time of the last use, oldest first.
    by_use: BTreeMap<u64, ChunkKey>,
    uses: u64,
    bytes: u64,
    hits: u64,
    misses: u64,
}

impl Entries {
    fn used(&mut self) -> u64 {
        self.uses = self.uses.saturating_add(1);
        self.uses
    }

    fn remove(&mut self, key: &ChunkKey) {
        if let Some((chunk, used)) = self.chunks.remove(key) {
            self.by_use.remove(&used);
            self.bytes = self.bytes.saturating_sub(bytes_of(&chunk));
        }
    }
}

impl MapCache {
    /// A cache of at most this many bytes; keys are not counted.
    #[must_use]
    pub fn new(capacity: ByteSize, registry: &Registry) -> Self {
        Self { bytes_max: capacity.get(), state: Mutex::default(), metrics: CacheMetrics::new(registry) }
    }

    pub(crate) fn with_metrics(capacity: ByteSize, metrics: CacheMetrics) -> Self {
        Self { bytes_max: capacity.get(), state: Mutex::default(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_up(&self, key: &ChunkKey) -> Option<Bytes> {
        let mut entries = self.lock();
        let used = entries.used();
        let found =
            entries.chunks.get_mut(key).map(|(chunk, last)| (chunk.clone(), std::mem::replace(last, used)));
        match found {
            Some((chunk, last)) => {
                entries.by_use.remove(&last);
                entries.by_use.insert(used, *key);
                entries.hits += 1;
                self.metrics.hits.inc();
                Some(chunk)
            }
            None => {
                entries.misses += 1;
                self.metrics.misses.inc();
                None
            }
        }
    }
}

impl ChunkCache for MapCache {
    fn get<'a>(&'a self, key: &'a ChunkKey) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(std::future::ready(self.look_up(key)))
    }

    fn insert(&self, key: ChunkKey, chunk: Bytes) {
        let bytes = bytes_of(&chunk);
        if bytes > self.bytes_max {
            return;
        }
        self.metrics.inserts.inc();
        let mut entries = self.lock();
        entries.remove(&key);
        while entries.bytes.saturating_add(bytes) > self.bytes_max {
            let Some((_, oldest)) = entries.by_use.first_key_value() else { break };
            let oldest = *oldest;
            entries.remove(&oldest);
        }
        let used = entries.used();
        entries.bytes += bytes;
        entries.by_use.insert(used, key);
        entries.chunks.insert(key, (chunk, used));
    }

    fn clear(&self) -> BoxFuture<'_, ()> {
        let mut entries = self.lock();
        (entries.chunks, entries.by_use, entries.bytes) = (BTreeMap::new(), BTreeMap::new(), 0);
        Box::pin(std::future::ready(()))
    }

    fn usage(&self) -> CacheUsage {
        let entries = self.lock();
        CacheUsage { memory_bytes: entries.bytes, hit_count: entries.hits, miss_count: entries.misses }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

pub(crate) fn bytes_of(chunk: &Bytes) -> u64 {
    u64::try_from(chunk.len()).unwrap_or(u64::MAX)
}
