//! Where an answer lies: the tail, local disk, or the bucket.
//!
//! **Owns** the decision, as pure functions over a [`PartitionSnapshot`]. **Does not own** the reading.
//!
//! ```text
//!   log start      local log start     tiered end    last stable   high watermark   log end
//!       |--- cold ------|---------------- hot --------------|-- read_uncommitted -|- at end -|
//!  out of range                                                                         out of range
//! ```

use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::partition::PartitionSnapshot;

#[cfg(test)]
mod tests;

/// Which records a consumer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Everything below the high watermark.
    #[default]
    ReadUncommitted,
    /// Everything below the last stable offset.
    ReadCommitted,
}

impl PartitionSnapshot {
    /// One past the last offset that a reader of this isolation sees.
    #[must_use]
    pub const fn fetchable_end(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::ReadUncommitted => self.high_watermark,
            Isolation::ReadCommitted => self.last_stable_offset,
        }
    }
}

/// A request that names the wrong leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadershipMismatch {
    /// This node does not lead: `NOT_LEADER_OR_FOLLOWER`.
    NotLeader,
    /// The client's epoch is old: `FENCED_LEADER_EPOCH`.
    FencedEpoch,
    /// The client's epoch is newer than what is known here: `UNKNOWN_LEADER_EPOCH`.
    UnknownEpoch,
}

/// Compares a request's view of the leadership with ours. `None` asks for no comparison of epochs.
///
/// # Errors
/// How they differ.
pub fn check_leadership(
    snapshot: &PartitionSnapshot,
    given: Option<LeaderEpoch>,
) -> Result<(), LeadershipMismatch> {
    if let Some(given) = given {
        if given < snapshot.leader_epoch {
            return Err(LeadershipMismatch::FencedEpoch);
        }
        if given > snapshot.leader_epoch {
            return Err(LeadershipMismatch::UnknownEpoch);
        }
    }
    if snapshot.leading { Ok(()) } else { Err(LeadershipMismatch::NotLeader) }
}

/// Where a fetch is served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPlan {
    /// From memory or local disk, up to `end`, exclusive.
    Hot {
        /// Where to stop.
        end: Offset,
    },
    /// From the bucket, up to `end`, exclusive: the tiered end, or the reader's limit.
    Cold {
        /// Where to stop.
        end: Offset,
    },
    /// Nothing there yet: an empty answer, or a wait.
    AtEnd,
    /// Below the log start or above the log end: `OFFSET_OUT_OF_RANGE`.
    OutOfRange,
    /// It is neither on local disk nor in the bucket, although the log holds it: a moment of a log begun anew, to be
    /// asked again (`OFFSET_NOT_AVAILABLE`), never out of range.
    NotAvailable,
    /// Wrong leadership.
    Refused(LeadershipMismatch),
}

/// Plans a consumer's fetch at `offset`.
#[must_use]
pub fn plan_read(
    snapshot: &PartitionSnapshot,
    offset: Offset,
    isolation: Isolation,
    current_leader_epoch: Option<LeaderEpoch>,
) -> ReadPlan {
    if let Err(mismatch) = check_leadership(snapshot, current_leader_epoch) {
        return ReadPlan::Refused(mismatch);
    }
    if offset < snapshot.log_start || offset > snapshot.log_end {
        return ReadPlan::OutOfRange;
    }
    let limit = snapshot.fetchable_end(isolation);
    if offset >= limit {
        return ReadPlan::AtEnd;
    }
    if offset >= snapshot.local_log_start {
        return ReadPlan::Hot { end: limit };
    }
    plan_below_local(snapshot, offset, limit)
}

/// Plans the read of an offset that local disk cannot serve: it lies below the local log start, or its segment is
/// damaged.
#[must_use]
pub fn plan_below_local(snapshot: &PartitionSnapshot, offset: Offset, limit: Offset) -> ReadPlan {
    if snapshot.tiered_end > offset {
        ReadPlan::Cold { end: snapshot.tiered_end.min(limit) }
    } else {
        ReadPlan::NotAvailable
    }
}

/// An answer of ListOffsets. `None`s are the wire's −1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListedOffset {
    /// The offset.
    pub offset: Option<Offset>,
    /// The timestamp of the record there, for look-ups by time.
    pub timestamp: Option<Timestamp>,
    /// The epoch under which the record there was written; the current one for the latest offset.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// What ListOffsets asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOffsetsTarget {
    /// −1.
    Latest,
    /// −2.
    Earliest,
    /// −3: the record with the largest timestamp.
    MaxTimestamp,
    /// −4: the first offset on local disk.
    EarliestLocal,
    /// −5: the last offset in the bucket.
    LatestTiered,
    /// −6: the first offset that is not in the bucket yet.
    EarliestPendingUpload,
    /// The first record at or after a time.
    Time(Timestamp),
}

impl ListOffsetsTarget {
    /// Reads the wire form. `None`: a negative number without a meaning.
    #[must_use]
    pub const fn from_wire(raw: i64) -> Option<Self> {
        match raw {
            -1 => Some(Self::Latest),
            -2 => Some(Self::Earliest),
            -3 => Some(Self::MaxTimestamp),
            -4 => Some(Self::EarliestLocal),
            -5 => Some(Self::LatestTiered),
            -6 => Some(Self::EarliestPendingUpload),
            _ => match Timestamp::from_wire(raw) {
                Some(time) => Some(Self::Time(time)),
                None => None,
            },
        }
    }
}

/// How ListOffsets is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOffsetsPlan {
    /// At once, from the snapshot. Where the epoch is `None` although a record is there, only the manifest may know it.
    Known(ListedOffset),
    /// By reading: first `cold` in the bucket, then `hot` on local disk; either may be absent.
    Search {
        /// The offsets to search in the bucket.
        cold: Option<OffsetRange>,
        /// The offsets to search on local disk.
        hot: Option<OffsetRange>,
        /// What is searched for; `None`: the largest timestamp.
        time: Option<Timestamp>,
    },
}

/// Plans one partition of ListOffsets.
///
/// # Errors
/// The request names the wrong leadership.
pub fn plan_list_offsets(
    snapshot: &PartitionSnapshot,
    target: ListOffsetsTarget,
    isolation: Isolation,
    current_leader_epoch: Option<LeaderEpoch>,
) -> Result<ListOffsetsPlan, LeadershipMismatch> {
    check_leadership(snapshot, current_leader_epoch)?;
    let end = snapshot.fetchable_end(isolation);
    let at = |offset: Offset| {
        ListOffsetsPlan::Known(ListedOffset {
            offset: Some(offset),
            timestamp: None,
            leader_epoch: snapshot
                .epoch_of(offset)
                // What comes next is of the epoch that is.
                .or_else(|| (offset >= snapshot.log_end).then_some(snapshot.leader_epoch)),
        })
    };
    let none = ListOffsetsPlan::Known(ListedOffset::default());
    Ok(match target {
        ListOffsetsTarget::Latest => ListOffsetsPlan::Known(ListedOffset {
            offset: Some(end),
            timestamp: None,
            leader_epoch: Some(snapshot.leader_epoch),
        }),
        ListOffsetsTarget::Earliest => at(snapshot.log_start),
        ListOffsetsTarget::EarliestLocal => at(snapshot.hot_start()),
        ListOffsetsTarget::LatestTiered => match snapshot.tiered_end.prev() {
            Some(last) if snapshot.tiered && last >= snapshot.log_start => at(last),
            _ => none,
        },
        ListOffsetsTarget::EarliestPendingUpload if snapshot.tiered => {
            at(snapshot.tiered_end.max(snapshot.log_start))
        }
        ListOffsetsTarget::EarliestPendingUpload => none,
        ListOffsetsTarget::MaxTimestamp => search(snapshot, end, None),
        ListOffsetsTarget::Time(time) => search(snapshot, end, Some(time)),
    })
}

fn search(snapshot: &PartitionSnapshot, end: Offset, time: Option<Timestamp>) -> ListOffsetsPlan {
    let border = snapshot.hot_start().min(end);
    let part = |base, end| OffsetRange::new(base, end).filter(|range| !range.is_empty());
    ListOffsetsPlan::Search { cold: part(snapshot.log_start, border), hot: part(border, end), time }
}

/// How OffsetForLeaderEpoch is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochEndPlan {
    /// The largest epoch at or below the asked one, and where it ends, exclusive.
    Known {
        /// The epoch; the asked one where nothing older is known.
        epoch: LeaderEpoch,
        /// Where it ends.
        end: Offset,
    },
    /// The epoch is newer than any known here: −1 for both.
    Undefined,
    /// The local chain begins above it: the bucket knows. Where it does not, the epoch ended at `fallback`.
    Cold {
        /// Where the local chain begins.
        fallback: Offset,
    },
}

/// Plans one partition of OffsetForLeaderEpoch: where did `epoch` end?
///
/// # Errors
/// The request names the wrong leadership.
pub fn plan_epoch_end(
    snapshot: &PartitionSnapshot,
    epoch: LeaderEpoch,
    current_leader_epoch: Option<LeaderEpoch>,
) -> Result<EpochEndPlan, LeadershipMismatch> {
    check_leadership(snapshot, current_leader_epoch)?;
    if epoch > snapshot.leader_epoch {
        return Ok(EpochEndPlan::Undefined);
    }
    if epoch == snapshot.leader_epoch {
        return Ok(EpochEndPlan::Known { epoch, end: snapshot.log_end });
    }
    // An epoch that wrote nothing yet begins at the log end.
    let next = snapshot
        .epochs
        .iter()
        .find(|entry| entry.epoch > epoch)
        .map_or(snapshot.log_end, |entry| entry.start);
    let floor = snapshot.epochs.iter().rev().find(|entry| entry.epoch <= epoch);
    Ok(match floor {
        Some(entry) => EpochEndPlan::Known { epoch: entry.epoch, end: next },
        None if next > snapshot.log_start && snapshot.tiered_end > snapshot.log_start => {
            EpochEndPlan::Cold { fallback: next }
        }
        None => EpochEndPlan::Known { epoch, end: next },
    })
}
