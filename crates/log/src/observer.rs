//! What goes in and out of a partition's log.

use bytes::Bytes;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::LogFailure;

/// A validated batch with its offsets assigned.
#[derive(Debug, Clone)]
pub struct AppendBatch {
    /// The batch's header as it shall be stored: base offset and leader epoch set.
    pub header: [u8; 61],
    /// What follows the header: a slice of the received frame.
    pub body: Bytes,
    /// The batch's first offset.
    pub base_offset: Offset,
    /// The batch's last offset, inclusive.
    pub last_offset: Offset,
    /// The largest timestamp in it.
    pub max_timestamp: Option<Timestamp>,
    /// The epoch of the leader that took it.
    pub leader_epoch: LeaderEpoch,
    /// The allocation that `body` keeps alive: the received frame's. Zero means the body alone.
    pub frame_bytes: usize,
}

/// Who is told of a partition's progress. Called by the log outside of its locks; must not block.
pub trait LogObserver: Send + Sync {
    /// The journal's write of everything below `end` returned: a kill of the process does not lose it.
    fn written(&self, end: Offset);
    /// The sync of everything below `end` returned: a power cut does not lose it.
    fn synced(&self, end: Offset);
    /// The log stopped for good; nothing more will be acknowledged.
    fn failed(&self, why: &LogFailure);
    /// The producer state at the current log end, taken atomically with that end. Empty bytes say that no producer has any,
    /// which costs less to store.
    fn producer_snapshot(&self) -> (Offset, Bytes);
}

/// The offsets of one partition's log. `log_start <= log_end`, `synced_end <= written_end <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogOffsets {
    /// Nothing below it is served, by any tier.
    pub log_start: Offset,
    /// The first offset that is on this node's disk.
    pub local_log_start: Offset,
    /// One past the last appended offset.
    pub log_end: Offset,
    /// One past what the journal has written.
    pub written_end: Offset,
    /// One past what is durable.
    pub synced_end: Offset,
}

/// Whole batches, in order.
#[derive(Debug, Clone, Default)]
pub struct LogRead {
    /// The batches' bytes; a batch from memory is two chunks, its header and its body.
    pub chunks: Vec<Bytes>,
    /// The base offset of the first batch; at or below what was asked.
    pub base: Offset,
    /// One past the last offset read; where the next read goes on.
    pub next: Offset,
}

impl LogRead {
    /// The bytes of all chunks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// One segment, for retention and tiering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its offsets; the end is the next segment's base, for the active one the log end.
    pub range: OffsetRange,
    /// The bytes of its batches.
    pub bytes: u64,
    /// Whether no append goes to it any more.
    pub sealed: bool,
    /// The largest timestamp in it; `None` where no batch carries one.
    pub max_timestamp: Option<Timestamp>,
    /// Wall time of its first append; kept over restarts. Of records that only the journal held at a stop, that of the
    /// checkpoint before.
    pub created: Timestamp,
    /// The leader epochs of its first and last batch.
    pub leader_epochs: (LeaderEpoch, LeaderEpoch),
}

/// What recovery did to one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Where the segments were cut to before the journal was played.
    pub cut_to: Offset,
    /// Batches played from the journal.
    pub batches_played: u64,
    /// Set where the journal lost acknowledged records, an earlier start did, or a batch that producers' states need cannot be
    /// read: the log ends before what is lost and takes no append.
    pub fenced: Option<std::sync::Arc<str>>,
    /// Ascending: what is gone or damaged in the files. Below the log end it is quarantined: a read of it is
    /// [`crate::ReadError::Corrupt`]. Behind the log end only the last range lies, and then the log takes no append. Whoever
    /// knows another copy decides whether the partition may go on.
    pub lost: Vec<OffsetRange>,
}

/// The state of the node's log.
#[derive(Debug, Clone)]
pub struct LogStatus {
    /// Bytes of journal that a recovery would have to look at.
    pub journal_bytes: u64,
    /// Memory charged for received batches.
    pub tail_bytes: u64,
    /// Of these, not yet written to segments.
    pub unwritten_bytes: u64,
    /// Bytes that wait for a round of the journal, roughly.
    pub queued_bytes: u64,
    /// Open segment files.
    pub descriptors: usize,
    /// Partitions.
    pub partitions: usize,
    /// Whether the last stop was not a clean one.
    pub unclean: bool,
    /// Whether free space is above the floor.
    pub free_space_ok: bool,
    /// Bytes that this process may still write to the file system, when last looked.
    pub free_bytes: u64,
    /// Why the log stopped, if it did.
    pub failure: Option<LogFailure>,
}
