//! Settings of the log engine and of one partition.

use std::{path::PathBuf, time::Duration};

use tidelog_types::{ByteSize, ClusterId, DirectoryId};

use crate::{data_dir::DirectoryLock, mistakes::Mistakes};

/// Settings of one node's log.
#[derive(Debug)]
pub struct LogConfig {
    /// The data directory; created where it is missing.
    pub directory: PathBuf,
    /// Held as long as the log is open, so that a second process is refused. `None` where the caller holds it.
    pub lock: Option<DirectoryLock>,
    /// The cluster that the directory belongs to; written at its first open, compared at every later one.
    pub cluster_id: Option<ClusterId>,
    /// The id that a new directory takes.
    pub directory_id: DirectoryId,
    /// `log.journal.bytes.max`: what the journal may hold before appends wait. 1 GiB, and the caller's cap of a tenth of
    /// the file system.
    pub journal_bytes_max: ByteSize,
    /// The size of one journal file. 32 MiB.
    pub journal_file_bytes: ByteSize,
    /// The most bytes of one round. 4 MiB: past that a larger write gains nothing.
    pub round_bytes_max: ByteSize,
    /// `log.flush.linger.ms`: how long written records wait for a sync that nobody asked for. 5 ms.
    pub flush_linger: Duration,
    /// `log.tail.bytes`: memory for received batches; half of it for those not yet in a segment. 256 MiB.
    pub tail_bytes: ByteSize,
    /// Unwritten bytes of one partition at which they are written behind. 1 MiB.
    pub write_behind_bytes: ByteSize,
    /// How long a record waits at most for its write to a segment. 10 s.
    pub write_behind_delay: Duration,
    /// Time between two checkpoints. 60 s; a quarter of the journal starts one sooner.
    pub checkpoint_interval: Duration,
    /// Files of segments that may be open at once.
    pub descriptors_max: usize,
    /// The file given up at a start on a full disk. 32 MiB; zero keeps none.
    pub reserve_bytes: ByteSize,
    /// Per cent of the file system that must be free for an append. 5.
    pub free_space_floor_percent: u8,
    /// Deliberate defects, for the tests that prove the checkers.
    #[doc(hidden)]
    pub mistakes: Mistakes,
}

impl LogConfig {
    /// The defaults, in `directory`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, directory_id: DirectoryId) -> Self {
        Self {
            directory: directory.into(),
            lock: None,
            cluster_id: None,
            directory_id,
            journal_bytes_max: ByteSize::mib(1024),
            journal_file_bytes: ByteSize::mib(32),
            round_bytes_max: ByteSize::mib(4),
            flush_linger: Duration::from_millis(5),
            tail_bytes: ByteSize::mib(256),
            write_behind_bytes: ByteSize::mib(1),
            write_behind_delay: Duration::from_secs(10),
            checkpoint_interval: Duration::from_secs(60),
            descriptors_max: 4096,
            reserve_bytes: ByteSize::mib(32),
            free_space_floor_percent: 5,
            mistakes: Mistakes::default(),
        }
    }
}

/// What an entry of an index counts for in `segment.index.bytes`, whatever it takes in the file: so much as one of Kafka's index by time,
/// the largest of its entries, so that what is right for Kafka is not too little here.
pub(crate) const COUNTED_ENTRY_BYTES: u64 = 12;

/// Settings of one partition, resolved from its topic's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionConfig {
    /// `segment.bytes`.
    pub segment_bytes: ByteSize,
    /// `segment.index.bytes`: a segment is sealed where its index has as many entries as fit in this, at 12 bytes each.
    pub segment_index_bytes: ByteSize,
    /// `segment.ms`, jitter subtracted; acts on appends.
    pub segment_age: Duration,
    /// The least distance of two index entries. Kafka's `index.interval.bytes` is 4 KiB; ours defaults to 32 KiB, since each
    /// entry of an active segment costs memory.
    pub index_interval_bytes: ByteSize,
}

impl Default for PartitionConfig {
    fn default() -> Self {
        Self {
            segment_bytes: ByteSize::mib(1024),
            segment_index_bytes: ByteSize::mib(10),
            segment_age: Duration::from_secs(7 * 24 * 3600),
            index_interval_bytes: ByteSize::kib(32),
        }
    }
}
