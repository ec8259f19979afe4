//! What retention takes: from the log as a whole, and from local disk alone.
//!
//! **Owns** three decisions. *Retention* moves the log start: by age and by the size of both tiers, each byte counted once
//! (T8). *Local retention* deletes local segments that the bucket holds. *The disk limit* does the same across partitions,
//! oldest first, when the disk is fuller than it may be.
//!
//! **Does not own** carrying any of it out; a log start is committed, then applied.
//!
//! ```text
//!  log start          tiered end                               high watermark
//!   [ page ][ page ][ entry ][ entry )[ rest of a segment )[ segment )[ active |    )
//!   `---- counted from the manifest --'`---- counted from local disk ----------'
//! ```
//!
//! Retention goes by whole pieces, from the oldest on, and stops at the first one that stays. A piece that reaches above the
//! high watermark stays (B67). Whether a piece was uploaded makes no difference to its age (B68).

use std::collections::BTreeMap;

use tidelog_format::manifest::{PageId, PageLine};
use tidelog_types::{Offset, OffsetRange, Timestamp, TopicPartition};

use crate::{
    cluster::PartitionManifest,
    upload::{LocalSegment, PageEntries, share},
};

/// What a topic keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// `retention.ms` or `local.retention.ms`; `None` is without limit.
    pub age_ms: Option<u64>,
    /// `retention.bytes` or `local.retention.bytes`; `None` is without limit.
    pub bytes: Option<u64>,
}

/// One partition as the planner of retention sees it.
#[derive(Debug, Clone, Copy)]
pub struct RetentionView<'a> {
    /// The log start offset.
    pub log_start: Offset,
    /// The high watermark.
    pub high_watermark: Offset,
    /// What is in the bucket.
    pub manifest: &'a PartitionManifest,
    /// Pages that were read, with what they list.
    pub pages: &'a PageEntries,
    /// What is known of the page at the log start, for where that is not at hand.
    pub known: Option<PageStart>,
    /// The local segments, oldest first.
    pub segments: &'a [LocalSegment],
}

/// What of a page stays, once it was looked into: enough to tell when it has to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageStart {
    /// Which.
    pub page: PageId,
    /// Where that begins. A log start anywhere else makes this void.
    pub from: Offset,
    /// How old the first entry that stays is.
    pub newest: Option<Timestamp>,
    /// Bytes of that entry, from `from` on.
    pub entry_bytes: u64,
    /// Bytes of all that the page lists from `from` on.
    pub bytes: u64,
}

/// What is to be done for retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionPlan {
    /// Everything below goes; `None`: nothing does.
    pub log_start: Option<Offset>,
    /// The active segment is past its age and is sealed first.
    pub seal_active: bool,
    /// Bytes that go, each counted once.
    pub bytes: u64,
    /// A page that must be read before more can be decided: only a part of what it lists may have to go.
    pub look_into: Option<PageId>,
    /// A page that was read and whose rest stays: it is not needed before this says so ([`RetentionView::known`]).
    pub stays: Option<PageStart>,
}

/// A part of the log that goes or stays as a whole.
#[derive(Debug, Clone, Copy)]
struct Piece {
    range: OffsetRange,
    bytes: u64,
    newest: Option<Timestamp>,
    kind: PieceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    /// A page that was not read: it goes as a whole or has to be looked into.
    Page(PageId),
    /// An entry of a page that was read.
    Listed(PageId),
    Entry,
    Sealed,
    Active,
}

impl RetentionView<'_> {
    /// Bytes at or above the log start, each counted once whichever tiers hold it (T8). An upload that is not committed
    /// counts nothing (B58).
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.pieces().iter().fold(0, |sum, piece| sum.saturating_add(piece.bytes))
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut push = |range: OffsetRange, bytes: u64, newest, kind| {
            if range.end > self.log_start && !range.is_empty() {
                pieces.push(Piece { range, bytes: share(bytes, range, self.log_start), newest, kind });
            }
        };
        for line in &self.manifest.lines {
            match self.pages.get(&line.page) {
                Some(entries) => {
                    for entry in entries.iter() {
                        let kind = PieceKind::Listed(line.page);
                        push(entry.range, entry.bytes, entry.max_timestamp, kind);
                    }
                }
                None => {
                    let known = self.known_of(line);
                    let range =
                        known.map_or(line.range, |known| OffsetRange { base: known.from, ..line.range });
                    let bytes = known.map_or(line.bytes, |known| known.bytes);
                    push(range, bytes, line.max_timestamp, PieceKind::Page(line.page));
                }
            }
        }
        for entry in &self.manifest.entries {
            push(entry.range, entry.bytes, entry.max_timestamp, PieceKind::Entry);
        }
        let tiered_end = self.manifest.tiered_end.max(self.log_start);
        for segment in self.segments.iter().filter(|segment| segment.range.end > tiered_end) {
            let range = OffsetRange { base: segment.range.base.max(tiered_end), end: segment.range.end };
            let kind = if segment.sealed { PieceKind::Sealed } else { PieceKind::Active };
            push(range, segment.bytes_from(range.base), Some(segment.newest()), kind);
        }
        pieces
    }

    fn known_of(&self, line: &PageLine) -> Option<PageStart> {
        let from = self.log_start.max(line.range.base);
        self.known.filter(|known| known.page == line.page && known.from == from)
    }

    /// Whether something that a page lists may go. Without the page nobody knows, but for what it said when it was read.
    fn has_to_look_into(&self, page: PageId, now: Timestamp, keep: Keep, excess: u64) -> bool {
        let mut lines = self.manifest.lines.iter();
        let Some(known) = lines.find(|line| line.page == page).and_then(|line| self.known_of(line)) else {
            return excess > 0 || keep.age_ms.is_some();
        };
        let expired = |age_ms| known.newest.is_some_and(|newest| now.millis_since(newest) > age_ms);
        keep.age_ms.is_some_and(expired) || (excess > 0 && known.entry_bytes <= excess)
    }

    /// Decides which of the oldest pieces go: those past their age, then as many as bring the size down to the limit
    /// without going below it, as Kafka does.
    #[must_use]
    pub fn plan(&self, now: Timestamp, keep: Keep) -> RetentionPlan {
        let pieces = self.pieces();
        let total = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.bytes));
        let mut excess = keep.bytes.map_or(0, |most| total.saturating_sub(most));
        let mut plan = RetentionPlan::default();
        for (index, piece) in pieces.iter().enumerate() {
            // Records without a timestamp are as old as the next ones that have one.
            let newest = pieces[index..].iter().find_map(|piece| piece.newest);
            let expired = keep
                .age_ms
                .is_some_and(|age_ms| newest.is_some_and(|newest| now.millis_since(newest) > age_ms));
            let too_much = excess > 0 && piece.bytes <= excess && piece.kind != PieceKind::Active;
            if piece.range.end > self.high_watermark {
                break;
            }
            if !(expired || too_much) {
                match piece.kind {
                    PieceKind::Page(page) if self.has_to_look_into(page, now, keep, excess) => {
                        plan.look_into = Some(page);
                    }
                    PieceKind::Listed(page) => {
                        let rest =
                            pieces[index..].iter().take_while(|piece| piece.kind == PieceKind::Listed(page));
                        plan.stays = Some(PageStart {
                            page,
                            from: piece.range.base.max(self.log_start),
                            newest,
                            entry_bytes: piece.bytes,
                            bytes: rest.fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes)),
                        });
                    }
                    _ => {}
                }
                break;
            }
            plan.seal_active = piece.kind == PieceKind::Active;
            plan.log_start = Some(piece.range.end);
            plan.bytes = plan.bytes.saturating_add(piece.bytes);
            excess = excess.saturating_sub(piece.bytes);
        }
        plan
    }
}

/// Where the local log of a tiered partition may begin at the latest: below it the bucket holds everything, or nobody wants
/// it (T4).
#[must_use]
pub fn evictable_end(log_start: Offset, tiered_end: Offset) -> Offset {
    log_start.max(tiered_end)
}

/// Decides the new local log start of one partition by `local.retention.*`; `None`: nothing goes. Only whole sealed segments
/// below `evictable_end` go, the oldest first, and what lies below the log start always does.
#[must_use]
pub fn plan_local(
    segments: &[LocalSegment],
    log_start: Offset,
    evictable_end: Offset,
    now: Timestamp,
    keep: Keep,
) -> Option<Offset> {
    let local = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    let mut excess = keep.bytes.map_or(0, |most| local.saturating_sub(most));
    let mut start = None;
    for segment in segments {
        let whole = segment.sealed && !segment.range.is_empty() && segment.range.end <= evictable_end;
        let dead = segment.range.end <= log_start;
        let expired = keep.age_ms.is_some_and(|age_ms| now.millis_since(segment.newest()) > age_ms);
        let too_much = excess > 0 && segment.bytes <= excess;
        if !whole || !(dead || expired || too_much) {
            break;
        }
        start = Some(segment.range.end);
        excess = excess.saturating_sub(segment.bytes);
    }
    start
}

/// What one partition could give up for the disk limit.
#[derive(Debug, Clone)]
pub struct DiskView {
    /// Which.
    pub place: TopicPartition,
    /// Its local segments, oldest first.
    pub segments: Vec<LocalSegment>,
    /// What may go lies below; the log start where nothing else may.
    pub evictable_end: Offset,
}

/// Decides which local segments go so that all partitions together keep at most `bytes_max`: the oldest first, across
/// partitions. Answers the new local log start of each partition that gives something.
#[must_use]
pub fn plan_disk(views: &[DiskView], bytes_max: u64) -> BTreeMap<TopicPartition, Offset> {
    let all = views.iter().flat_map(|view| &view.segments);
    let used = all.fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    let mut excess = used.saturating_sub(bytes_max);
    let mut plan = BTreeMap::new();
    if excess == 0 {
        return plan;
    }
    let mut evictable = Vec::new();
    for view in views {
        let whole = |segment: &&LocalSegment| segment.sealed && segment.range.end <= view.evictable_end;
        // Within a partition the order is that of the log, whatever its timestamps say.
        let mut newest = Timestamp::default();
        for segment in view.segments.iter().take_while(whole) {
            newest = newest.max(segment.newest());
            evictable.push((newest, view.place, segment.range.end, segment.bytes));
        }
    }
    evictable.sort_unstable_by_key(|(newest, place, end, _)| (*newest, *place, *end));
    for (_, place, end, bytes) in evictable {
        if excess == 0 {
            break;
        }
        plan.insert(place, end);
        excess = excess.saturating_sub(bytes);
    }
    plan
}

#[cfg(test)]
mod tests;
