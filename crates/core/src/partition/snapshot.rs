//! What readers of a partition see, without its lock.

use std::sync::Arc;

use tidelog_types::{LeaderEpoch, Offset};

/// Where the records of a leader epoch begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// The offset of its first record.
    pub start: Offset,
}

/// A consistent view of one partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSnapshot {
    /// The current leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// Whether this node leads in it.
    pub leading: bool,
    /// Whether sealed records move to the bucket.
    pub tiered: bool,
    /// Nothing below it is served.
    pub log_start: Offset,
    /// The first offset on local disk.
    pub local_log_start: Offset,
    /// One past the last offset in the bucket.
    pub tiered_end: Offset,
    /// Nothing below it can still be aborted.
    pub last_stable_offset: Offset,
    /// One past the last offset that consumers see.
    pub high_watermark: Offset,
    /// One past the last offset.
    pub log_end: Offset,
    /// One past what the journal has written.
    pub written_end: Offset,
    /// One past what is durable.
    pub synced_end: Offset,
    /// The leader epochs of the log, ascending; they may begin above the log start where the local log was begun anew.
    pub epochs: Arc<[EpochStart]>,
}

impl PartitionSnapshot {
    /// The epoch under which the record at `offset` was written, as far as the local chain goes.
    #[must_use]
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        if offset >= self.log_end {
            return None;
        }
        self.epochs.iter().rev().find(|entry| entry.start <= offset).map(|entry| entry.epoch)
    }

    /// The first offset that is read from local disk; below it, from the log start on, the bucket is read.
    #[must_use]
    pub fn hot_start(&self) -> Offset {
        self.local_log_start.max(self.log_start)
    }
}
