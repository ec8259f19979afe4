//! The chunk cache of a node: memory, then a folder on NVMe, by foyer.
//!
//! **Owns** the folder given to it: files of another shape or beyond the capacity are removed before it is opened, so
//! that a lowered capacity lowers the disk's use. **Does not own** admission: what one reader wants once should not be
//! inserted.
//!
//! Nothing is allocated, opened or recovered before the first look-up: a node that reads nothing cold pays nothing.
//! That first look-up and those during the opening are misses. If the folder cannot be used, memory alone serves, and
//! the reason is logged once. foyer drops disk writes while its flusher lags.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, PsyncIoEngineConfig, RecoverMode,
};
use futures::future::BoxFuture;
use tidelog_runtime::{Registry, Supervisor, watch};
use tidelog_types::{ByteSize, ClusterId, PartitionIndex, TopicId, UploadId};
use tokio::sync::OnceCell;

use crate::{CacheUsage, ChunkCache, ChunkKey, MapCache, cache::bytes_of, metrics::CacheMetrics};

/// The least capacity on disk: eight blocks of the smallest size.
const DISK_BYTES_MIN: u64 = 16 * MIB;
/// The least number of blocks: foyer writes one, keeps one clean and evicts whole ones.
const BLOCKS_MIN: u64 = 8;
const BLOCK_BYTES_MIN: u64 = 2 * MIB;
const BLOCK_BYTES_MAX: u64 = 16 * MIB;
/// The least capacity in memory: a few chunks.
const MEMORY_BYTES_MIN: u64 = 4 * MIB;
const MIB: u64 = 1024 * 1024;
/// The largest chunk: it must fit a block with its header.
const CHUNK_BYTES_MAX: u64 = BLOCK_BYTES_MIN - 64 * 1024;
/// The name of every file that foyer's folder device makes, before its number.
const FILE_PREFIX: &str = "foyer-storage-direct-fs-";
/// Names the shape of the files beside it.
const SHAPE_FILE: &str = "shape";

/// Where the cache is and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoyerConfig {
    /// The folder on disk; the cache alone uses it.
    pub dir: PathBuf,
    /// Bytes in memory, at least 4 MiB. 32 MiB is a good start.
    pub memory: ByteSize,
    /// Bytes on disk: none, or at least 16 MiB; rounded down to whole blocks.
    pub disk: ByteSize,
}

/// A configuration that cannot work, found before anything is opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoyerConfigError {
    /// Too little memory.
    #[error("the cache needs at least 4 MiB of memory, {given} bytes are given")]
    MemoryTooSmall {
        /// What is given.
        given: u64,
    },
    /// Too little disk.
    #[error("the cache on disk needs at least 16 MiB, or 0 for none; {given} bytes are given")]
    DiskTooSmall {
        /// What is given.
        given: u64,
    },
}

/// What the cache makes of its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    block_bytes: u64,
    blocks: u64,
}

impl Shape {
    fn disk_bytes(self) -> u64 {
        self.block_bytes * self.blocks
    }
}

impl FoyerConfig {
    /// Checks that it can work, before anything is opened.
    ///
    /// # Errors
    /// See [`FoyerConfigError`].
    pub fn check(&self) -> Result<(), FoyerConfigError> {
        self.shape().map(drop)
    }

    fn shape(&self) -> Result<Option<Shape>, FoyerConfigError> {
        if self.memory.get() < MEMORY_BYTES_MIN {
            return Err(FoyerConfigError::MemoryTooSmall { given: self.memory.get() });
        }
        let disk = self.disk.get();
        if disk == 0 {
            return Ok(None);
        }
        if disk < DISK_BYTES_MIN {
            return Err(FoyerConfigError::DiskTooSmall { given: disk });
        }
        let mut block_bytes = BLOCK_BYTES_MAX;
        while block_bytes > BLOCK_BYTES_MIN && disk / block_bytes < BLOCKS_MIN {
            block_bytes /= 2;
        }
        Ok(Some(Shape { block_bytes, blocks: disk / block_bytes }))
    }
}

/// A chunk in foyer's terms.
struct Chunk(Bytes);

type Hybrid = HybridCache<ChunkKey, Chunk>;

/// The one that serves: foyer, or memory where foyer cannot.
enum Opened {
    Hybrid(Hybrid),
    Memory(MapCache),
}

/// See the module.
pub struct FoyerCache {
    shared: Arc<Shared>,
    supervisor: Supervisor,
}

struct Shared {
    config: FoyerConfig,
    shape: Option<Shape>,
    opened: OnceCell<Opened>,
    opening: AtomicBool,
    done: watch::Sender<bool>,
    metrics: CacheMetrics,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl FoyerCache {
    /// Checks the configuration; opens nothing.
    ///
    /// # Errors
    /// Where a size cannot work.
    pub fn new(
        config: FoyerConfig,
        supervisor: Supervisor,
        registry: &Registry,
    ) -> Result<Self, FoyerConfigError> {
        let shape = config.shape()?;
        if let Some(shape) = shape
            && shape.disk_bytes() != config.disk.get()
        {
            tracing::info!(
                given = config.disk.get(),
                used = shape.disk_bytes(),
                "the cache on disk is rounded down to whole blocks"
            );
        }
        let shared = Shared {
            config,
            shape,
            opened: OnceCell::new(),
            opening: AtomicBool::new(false),
            done: watch::Sender::new(false),
            metrics: CacheMetrics::new(registry),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), supervisor })
    }

    /// Bytes that it takes on disk at most.
    #[must_use]
    pub fn disk_bytes_max(&self) -> u64 {
        self.shared.shape.map_or(0, Shape::disk_bytes)
    }

    /// Opens it now, if nothing did before, and waits until it serves.
    pub async fn open(&self) {
        self.begin_opening();
        let mut done = self.shared.done.subscribe();
        // The sender lives as long as this cache.
        let _ = done.wait_for(|done| *done).await;
    }

    fn begin_opening(&self) {
        if self.shared.opening.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.supervisor
            .spawn_back("chunk-cache-open", async move {
                let opened = shared.open().await;
                // Only this task sets it.
                let _ = shared.opened.set(opened);
                shared.done.send_replace(true);
            })
            .detach();
    }
}

impl Shared {
    async fn open(&self) -> Opened {
        let memory = || Opened::Memory(MapCache::with_metrics(self.config.memory, self.metrics.clone()));
        let Some(shape) = self.shape else { return memory() };
        match open_hybrid(&self.config, shape).await {
            Ok(hybrid) => Opened::Hybrid(hybrid),
            Err(reason) => {
                self.metrics.failures.inc();
                tracing::warn!(dir = %self.config.dir.display(), %reason, "the cache on disk cannot be used, memory alone serves");
                memory()
            }
        }
    }

    async fn look_up(&self, key: &ChunkKey) -> Option<Bytes> {
        match self.opened.get()? {
            Opened::Memory(map) => map.get(key).await,
            Opened::Hybrid(hybrid) => match hybrid.get(key).await {
                Ok(entry) => entry.map(|entry| entry.value().0.clone()),
                Err(error) => {
                    self.metrics.failures.inc();
                    tracing::debug!(%error, "the cache failed, which is a miss");
                    None
                }
            },
        }
    }
}

impl ChunkCache for FoyerCache {
    fn get<'a>(&'a self, key: &'a ChunkKey) -> BoxFuture<'a, Option<Bytes>> {
        self.begin_opening();
        Box::pin(async move {
            let shared = &*self.shared;
            let is_map = matches!(shared.opened.get(), Some(Opened::Memory(_)));
            let found = shared.look_up(key).await;
            let (count, metric) = match found {
                Some(_) => (&shared.hits, &shared.metrics.hits),
                None => (&shared.misses, &shared.metrics.misses),
            };
            count.fetch_add(1, Ordering::Relaxed);
            if !is_map {
                metric.inc();
            }
            found
        })
    }

    fn insert(&self, key: ChunkKey, chunk: Bytes) {
        if bytes_of(&chunk) > CHUNK_BYTES_MAX {
            return;
        }
        match self.shared.opened.get() {
            None => {}
            Some(Opened::Memory(map)) => map.insert(key, chunk),
            Some(Opened::Hybrid(hybrid)) => {
                self.shared.metrics.inserts.inc();
                drop(hybrid.insert(key, Chunk(chunk)));
            }
        }
    }

    fn clear(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match self.shared.opened.get() {
                None => {
                    // Nothing is open: what an earlier run left is found by nobody once its files are gone.
                    if !self.shared.opening.load(Ordering::Acquire)
                        && let Err(error) = remove_files(&self.shared.config.dir, 0)
                    {
                        tracing::warn!(%error, "the cache's files cannot be removed");
                    }
                }
                Some(Opened::Memory(map)) => map.clear().await,
                Some(Opened::Hybrid(hybrid)) => {
                    if let Err(error) = hybrid.clear().await {
                        self.shared.metrics.failures.inc();
                        tracing::warn!(%error, "the cache was not cleared");
                    }
                }
            }
        })
    }

    fn usage(&self) -> CacheUsage {
        let memory_bytes = match self.shared.opened.get() {
            None => 0,
            Some(Opened::Memory(map)) => map.usage().memory_bytes,
            Some(Opened::Hybrid(hybrid)) => u64::try_from(hybrid.memory().usage()).unwrap_or(u64::MAX),
        };
        CacheUsage {
            memory_bytes,
            hit_count: self.shared.hits.load(Ordering::Relaxed),
            miss_count: self.shared.misses.load(Ordering::Relaxed),
        }
    }

    fn disk_bytes(&self) -> u64 {
        // What an earlier run left counts too. foyer does not tell what is in its blocks, and makes each file at its full length;
        // the device has given it only what was written.
        self.shared.shape.map_or(0, |_| allocated(&self.shared.config.dir).unwrap_or(0))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(Opened::Hybrid(hybrid)) = self.shared.opened.get()
                && let Err(error) = hybrid.close().await
            {
                tracing::warn!(%error, "the cache was not closed");
            }
        })
    }
}

async fn open_hybrid(config: &FoyerConfig, shape: Shape) -> Result<Hybrid, String> {
    prepare(&config.dir, shape).map_err(|error| error.to_string())?;
    let size =
        |bytes: u64| usize::try_from(bytes).map_err(|_| format!("{bytes} bytes do not fit this machine"));
    let device = FsDeviceBuilder::new(&config.dir)
        .with_capacity(size(shape.disk_bytes())?)
        .build()
        .map_err(|error| error.to_string())?;
    // Chunks of 1 MiB: a block's index of 4 KiB names all that fit in one.
    let engine = BlockEngineConfig::new(device)
        .with_block_size(size(shape.block_bytes)?)
        .with_indexer_shards(16)
        .with_recover_concurrency(4)
        .with_buffer_pool_size(size(BLOCK_BYTES_MAX)?)
        .with_submit_queue_size_threshold(size(2 * BLOCK_BYTES_MAX)?);
    // A shard holds a few chunks at least, or the largest would never fit.
    let shards = (config.memory.get() / (16 * MIB)).clamp(1, 8);
    HybridCacheBuilder::new()
        .with_name("chunks")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        .memory(size(config.memory.get())?)
        .with_shards(size(shards)?)
        .with_weighter(|_: &ChunkKey, chunk: &Chunk| chunk.0.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(engine)
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
        .map_err(|error| error.to_string())
}

/// Makes the folder fit the shape: files of another block size go, and those beyond the capacity.
fn prepare(dir: &Path, shape: Shape) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let shape_path = dir.join(SHAPE_FILE);
    let shape_text = format!("1 {}\n", shape.block_bytes);
    let is_same = fs::read_to_string(&shape_path).is_ok_and(|text| text == shape_text);
    remove_files(dir, if is_same { shape.blocks } else { 0 })?;
    if !is_same {
        fs::write(&shape_path, shape_text)?;
    }
    Ok(())
}

/// Removes the files of blocks numbered `from` and up.
fn remove_files(dir: &Path, from: u64) -> io::Result<()> {
    for_each_file(dir, |number, file| if number >= from { fs::remove_file(file.path()) } else { Ok(()) })
}

/// Bytes that the files of blocks take on the device; a sparse one takes less than its length.
fn allocated(dir: &Path) -> io::Result<u64> {
    /// The unit of `st_blocks`, whatever the file system's own is.
    const UNIT_BYTES: u64 = 512;
    let mut bytes: u64 = 0;
    for_each_file(dir, |_, file| {
        bytes = bytes.saturating_add(file.metadata()?.blocks().saturating_mul(UNIT_BYTES));
        Ok(())
    })?;
    Ok(bytes)
}

/// Visits the files of blocks, with their numbers; none where there is no folder.
fn for_each_file(dir: &Path, mut visit: impl FnMut(u64, &fs::DirEntry) -> io::Result<()>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(FILE_PREFIX));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            visit(number, &entry)?;
        }
    }
    Ok(())
}

impl Code for Chunk {
    fn encode(&self, writer: &mut impl io::Write) -> foyer::Result<()> {
        writer.write_all(&bytes_of(&self.0).to_le_bytes()).map_err(foyer::Error::io_error)?;
        writer.write_all(&self.0).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl io::Read) -> foyer::Result<Self> {
        let length = u64::from_le_bytes(read_array(reader)?);
        let length = usize::try_from(length.min(CHUNK_BYTES_MAX + 1)).unwrap_or(usize::MAX);
        if bytes_over(length) {
            return Err(foyer::Error::io_error(io::Error::other("a chunk longer than any that was written")));
        }
        let mut chunk = vec![0; length];
        reader.read_exact(&mut chunk).map_err(foyer::Error::io_error)?;
        Ok(Self(Bytes::from(chunk)))
    }

    fn estimated_size(&self) -> usize {
        self.0.len().saturating_add(8)
    }
}

fn bytes_over(length: usize) -> bool {
    u64::try_from(length).is_ok_and(|length| length > CHUNK_BYTES_MAX)
}

fn read_array<const N: usize>(reader: &mut impl io::Read) -> foyer::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
    Ok(bytes)
}

impl Code for ChunkKey {
    fn encode(&self, writer: &mut impl io::Write) -> foyer::Result<()> {
        let mut bytes = Vec::with_capacity(self.estimated_size());
        bytes.extend_from_slice(self.cluster_id.as_bytes());
        bytes.extend_from_slice(self.topic_id.as_bytes());
        bytes.extend_from_slice(&self.partition.0.to_be_bytes());
        bytes.extend_from_slice(&self.upload.incarnation.0.to_be_bytes());
        bytes.extend_from_slice(&self.upload.sequence.0.to_be_bytes());
        bytes.extend_from_slice(&self.unit.to_be_bytes());
        writer.write_all(&bytes).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl io::Read) -> foyer::Result<Self> {
        Ok(Self {
            cluster_id: ClusterId::from_bytes(read_array(reader)?),
            topic_id: TopicId::from_bytes(read_array(reader)?),
            partition: PartitionIndex(i32::from_be_bytes(read_array(reader)?)),
            upload: UploadId {
                incarnation: tidelog_types::BrokerIncarnation(u64::from_be_bytes(read_array(reader)?)),
                sequence: tidelog_types::UploadSequence(u64::from_be_bytes(read_array(reader)?)),
            },
            unit: u64::from_be_bytes(read_array(reader)?),
        })
    }

    fn estimated_size(&self) -> usize {
        16 + 16 + 4 + 8 + 8 + 8
    }
}
