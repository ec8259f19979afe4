//! What of a partition goes to the bucket next, and how much has not gone yet.
//!
//! **Owns** the choice of the next range, the sealing of idle segments, the lag, and the move of manifest entries into pages.
//!
//! **Does not own** where an object ends inside the range: that is a border of batches, and the reader of the log finds it.
//!
//! ```text
//!  log start     tiered end                 sealed end      stable, synced     log end
//!      |  in the bucket  |  one object after another  |  active segment  |          |
//!                        `-------- range -------------'
//! ```
//!
//! Everything here is computed from offsets at the moment of asking: no counter is kept that could drift (C4).

use std::{collections::BTreeMap, sync::Arc};

use tidelog_format::manifest::{ManifestEntry, PageId, PageLine};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, limits};

use crate::cluster::PartitionManifest;

/// Entries that a spill leaves in the replicated state: the newest, which are looked for most.
pub const SPILL_KEEPS: usize = 4;

/// Pages that were read, with what each lists.
pub type PageEntries = BTreeMap<PageId, Arc<[ManifestEntry]>>;

/// One segment of the local log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSegment {
    /// Its offsets.
    pub range: OffsetRange,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Whether no append goes to it any more.
    pub sealed: bool,
    /// The largest timestamp in it; `None` where no batch carries one.
    pub max_timestamp: Option<Timestamp>,
    /// The wall time of its first append, as far as it is known.
    pub created: Timestamp,
}

impl LocalSegment {
    /// The time from which its age counts for retention.
    #[must_use]
    pub fn newest(&self) -> Timestamp {
        self.max_timestamp.unwrap_or(self.created)
    }

    /// Its bytes from `from` on, by the share of its offsets: exact where `from` is one of its ends.
    #[must_use]
    pub fn bytes_from(&self, from: Offset) -> u64 {
        share(self.bytes, self.range, from)
    }
}

/// The share of `bytes` that lies at or above `from`, rounded up.
pub(crate) fn share(bytes: u64, range: OffsetRange, from: Offset) -> u64 {
    if from <= range.base {
        return bytes;
    }
    let (whole, left) = (range.end.distance_from(range.base), range.end.distance_from(from));
    if whole == 0 || left == 0 {
        return 0;
    }
    let part = (u128::from(bytes) * u128::from(left)).div_ceil(u128::from(whole));
    u64::try_from(part).unwrap_or(bytes)
}

/// One partition as the planner of uploads sees it.
#[derive(Debug, Clone)]
pub struct UploadView {
    /// The epoch that this node leads in; `None` where it does not.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Whether its segments go to the bucket.
    pub tiered: bool,
    /// `remote.log.copy.disable`.
    pub copy_disabled: bool,
    /// The log start offset.
    pub log_start: Offset,
    /// One past the last offset in the bucket.
    pub tiered_end: Offset,
    /// One past what may be uploaded: the lesser of last stable offset and synced end.
    pub stable_end: Offset,
    /// Where retention wants the log start: what lies below is not worth an upload (B68).
    pub retained_from: Offset,
    /// The local segments, oldest first.
    pub segments: Vec<LocalSegment>,
}

/// What to do for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UploadPlan {
    /// The active segment has waited too long by the wall clock and is sealed first.
    pub seal_active: bool,
    /// What may be uploaded now; objects are cut from its front.
    pub range: Option<OffsetRange>,
}

/// How much of a partition is not in the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// Bytes in sealed segments.
    pub bytes: u64,
    /// Sealed segments.
    pub segments: u64,
    /// Milliseconds since the oldest byte in a sealed segment was written; 0 where there is none.
    pub age_ms: u64,
    /// Bytes in all segments, the active one included.
    pub unsent_bytes: u64,
    /// Milliseconds since the oldest byte in any segment was written; 0 where there is none.
    pub unsent_age_ms: u64,
}

impl UploadView {
    /// The first offset that is not in the bucket and still wanted.
    #[must_use]
    pub fn base(&self) -> Offset {
        self.tiered_end.max(self.log_start)
    }

    /// Decides on the next upload. An active segment older than `lag_ms_max` is sealed although nobody appends.
    #[must_use]
    pub fn plan(&self, now: Timestamp, lag_ms_max: u64) -> UploadPlan {
        if !self.tiered || self.copy_disabled || self.leader_epoch.is_none() {
            return UploadPlan::default();
        }
        let base = self.base();
        let active = self.segments.last().filter(|segment| !segment.sealed);
        let seal_active = active.is_some_and(|segment| {
            !segment.range.is_empty()
                && segment.range.end > base
                && now.millis_since(segment.created) >= lag_ms_max
        });
        if self.retained_from > base {
            // Retention moves the log start first; what is uploaded before that would only be deleted.
            return UploadPlan { seal_active, range: None };
        }
        let sealed_end =
            self.segments.iter().rev().find(|segment| segment.sealed).map(|segment| segment.range.end);
        let end = sealed_end.unwrap_or(base).min(self.stable_end);
        let range = OffsetRange::new(base, end).filter(|range| !range.is_empty());
        UploadPlan { seal_active, range }
    }

    /// How much is not in the bucket. Exactly zero once everything sealed is there, whatever the last upload did.
    #[must_use]
    pub fn lag(&self, now: Timestamp) -> Lag {
        let mut lag = Lag::default();
        if !self.tiered {
            return lag;
        }
        let base = self.base();
        for segment in self.segments.iter().filter(|segment| segment.range.end > base) {
            let bytes = segment.bytes_from(base);
            if bytes == 0 {
                continue;
            }
            let age_ms = now.millis_since(segment.created);
            lag.unsent_bytes = lag.unsent_bytes.saturating_add(bytes);
            lag.unsent_age_ms = lag.unsent_age_ms.max(age_ms);
            if segment.sealed {
                lag.bytes = lag.bytes.saturating_add(bytes);
                lag.segments += 1;
                lag.age_ms = lag.age_ms.max(age_ms);
            }
        }
        lag
    }
}

/// A move of the oldest entries into a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillPlan {
    /// The last line, whose page is appended to where it has room.
    pub last: Option<PageLine>,
    /// The entries that move, oldest first.
    pub moved: Vec<ManifestEntry>,
}

/// Decides whether entries move into a page. A spill begins at [`limits::MANIFEST_ENTRIES_SPILL`] entries.
#[must_use]
pub fn plan_spill(manifest: &PartitionManifest) -> Option<SpillPlan> {
    let count = manifest.entries.len();
    if count < limits::MANIFEST_ENTRIES_SPILL {
        return None;
    }
    let moved = manifest.entries[..count - SPILL_KEEPS].to_vec();
    Some(SpillPlan { last: manifest.lines.last().copied(), moved })
}

/// When a manifest is published again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishPeriods {
    /// After DeleteRecords: `manifest.publish.ms`.
    pub soon_ms: u64,
    /// Where only the newest entries changed.
    pub daily_ms: u64,
}

/// Decides whether a manifest is published. `waited_ms` is how long the current version has differed from the published
/// one, as far as this node saw; `items_wait` says that a deletion waits for a publication; `log_start_moved` that it moved
/// since the published version.
#[must_use]
pub fn publish_due(
    manifest: &PartitionManifest,
    periods: PublishPeriods,
    waited_ms: u64,
    items_wait: bool,
    log_start_moved: bool,
) -> bool {
    if manifest.version == manifest.published_version() {
        return false;
    }
    items_wait || (log_start_moved && waited_ms >= periods.soon_ms) || waited_ms >= periods.daily_ms
}

#[cfg(test)]
mod tests;
