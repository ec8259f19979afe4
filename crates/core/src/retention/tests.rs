use std::sync::Arc;

use proptest::prelude::*;
use tidelog_format::manifest::{ManifestEntry, PageLine, Section, SegmentObjectId};
use tidelog_types::{LeaderEpoch, PartitionIndex, TopicId, UploadId, UploadSequence};

use super::*;

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn time(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// Ten records of ten bytes; the n-th is from second 10 + n.
fn entry(index: u64) -> ManifestEntry {
    ManifestEntry {
        range: OffsetRange { base: offset(index * 10), end: offset(index * 10 + 10) },
        object: SegmentObjectId {
            base: offset(index * 10),
            leader_epoch: LeaderEpoch::ZERO,
            upload: UploadId { sequence: UploadSequence(index), ..UploadId::default() },
        },
        position: 0,
        bytes: 100,
        object_bytes: 1_000,
        max_timestamp: Some(time(10_000 + index * 1_000)),
        index: Section::default(),
        leader_epoch: LeaderEpoch::ZERO,
    }
}

fn local(index: u64, sealed: bool) -> LocalSegment {
    let entry = entry(index);
    LocalSegment {
        range: entry.range,
        bytes: entry.bytes,
        sealed,
        max_timestamp: entry.max_timestamp,
        created: time(0),
    }
}

fn page_id(index: u64) -> PageId {
    PageId {
        base: offset(index),
        upload: UploadId { sequence: UploadSequence(900 + index), ..UploadId::default() },
    }
}

/// A page of the segments `from..to`.
fn line(from: u64, to: u64) -> (PageLine, Arc<[ManifestEntry]>) {
    let entries: Vec<ManifestEntry> = (from..to).map(entry).collect();
    let line = PageLine {
        page: page_id(from),
        range: OffsetRange { base: entries[0].range.base, end: entries.last().unwrap().range.end },
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
        max_timestamp: entries.last().unwrap().max_timestamp,
    };
    (line, entries.into())
}

/// Segments 0..4 in a page, 4..6 as entries, 5..8 on local disk, the last one active.
struct Log {
    manifest: PartitionManifest,
    pages: PageEntries,
    segments: Vec<LocalSegment>,
    log_start: u64,
    high_watermark: u64,
}

fn log() -> Log {
    let (line, entries) = line(0, 4);
    Log {
        manifest: PartitionManifest {
            lines: vec![line],
            entries: vec![entry(4), entry(5)],
            tiered_end: offset(60),
            ..PartitionManifest::default()
        },
        pages: PageEntries::from([(line.page, entries)]),
        segments: vec![local(5, true), local(6, true), local(7, false)],
        log_start: 0,
        high_watermark: 80,
    }
}

impl Log {
    fn view(&self) -> RetentionView<'_> {
        RetentionView {
            log_start: offset(self.log_start),
            high_watermark: offset(self.high_watermark),
            manifest: &self.manifest,
            pages: &self.pages,
            known: None,
            segments: &self.segments,
        }
    }

    fn start(&self, now_ms: u64, age_ms: Option<u64>, bytes: Option<u64>) -> Option<u64> {
        self.view().plan(time(now_ms), Keep { age_ms, bytes }).log_start.map(Offset::get)
    }
}

#[test]
fn every_byte_counts_once_whichever_tiers_hold_it() {
    // T8: segment 5 is in both tiers.
    assert_eq!(log().view().total_bytes(), 800);
    let trimmed = Log { log_start: 15, ..log() };
    assert_eq!(trimmed.view().total_bytes(), 650);
}

#[test]
fn an_upload_that_is_not_committed_counts_nothing() {
    // B58: only the manifest says what is in the bucket, and retention.bytes just above the data deletes nothing.
    assert_eq!(log().start(0, None, Some(800)), None);
    assert_eq!(log().start(0, None, Some(700)), Some(10));
}

#[test]
fn size_takes_whole_pieces_and_never_goes_below_the_limit() {
    assert_eq!(log().start(0, None, Some(799)), None);
    assert_eq!(log().start(0, None, Some(500)), Some(30));
    assert_eq!(log().start(0, None, Some(0)), Some(70), "the active segment stays");
}

#[test]
fn a_segment_of_many_leader_epochs_is_taken_once() {
    // B59: forty segments, each with another last epoch, come down to exactly the newest ten.
    let entries: Vec<ManifestEntry> = (0..40)
        .map(|index| ManifestEntry {
            leader_epoch: LeaderEpoch::from_wire(i32::try_from(index * 5).unwrap()).unwrap(),
            ..entry(index)
        })
        .collect();
    let log = Log {
        manifest: PartitionManifest { entries, tiered_end: offset(400), ..PartitionManifest::default() },
        segments: Vec::new(),
        high_watermark: 400,
        ..log()
    };
    assert_eq!(log.start(0, None, Some(1_000)), Some(300));
}

#[test]
fn age_takes_the_oldest_of_both_tiers() {
    assert_eq!(log().start(13_500, Some(2_000), None), Some(20));
    assert_eq!(log().start(13_000, Some(2_000), None), Some(10), "exactly at its age a segment stays");
    assert_eq!(log().start(13_500, None, None), None);
}

#[test]
fn what_was_never_uploaded_expires_too() {
    // B68
    let unsent = Log {
        manifest: PartitionManifest::default(),
        segments: vec![local(0, true), local(1, true), local(2, false)],
        high_watermark: 30,
        ..log()
    };
    assert_eq!(unsent.start(12_500, Some(2_000), None), Some(10));
    let plan = unsent.view().plan(time(100_000), Keep { age_ms: Some(2_000), bytes: None });
    assert_eq!((plan.log_start, plan.seal_active, plan.bytes), (Some(offset(30)), true, 300));
    assert_eq!(unsent.start(0, None, Some(150)), Some(10));
}

#[test]
fn nothing_above_the_high_watermark_goes() {
    // B67
    assert_eq!(Log { high_watermark: 79, ..log() }.start(100_000, Some(1), Some(0)), Some(70));
    assert_eq!(Log { high_watermark: 9, ..log() }.start(100_000, Some(1), Some(0)), None);
}

#[test]
fn a_page_goes_as_a_whole_or_is_looked_into() {
    let unread = Log { pages: PageEntries::new(), ..log() };
    let plan = |keep| unread.view().plan(time(14_500), keep);
    let whole = plan(Keep { age_ms: Some(100), bytes: None });
    assert_eq!((whole.log_start, whole.look_into), (Some(offset(50)), None), "all that it lists is too old");
    let part = plan(Keep { age_ms: Some(2_000), bytes: None });
    assert_eq!((part.log_start, part.look_into), (None, Some(page_id(0))));
    let by_size = plan(Keep { age_ms: None, bytes: Some(750) });
    assert_eq!((by_size.log_start, by_size.look_into), (None, Some(page_id(0))));
    let none = plan(Keep { age_ms: None, bytes: Some(800) });
    assert_eq!(none, RetentionPlan::default());
}

#[test]
fn a_page_that_was_read_is_looked_into_again_only_when_its_first_entry_may_go() {
    let read = log();
    let by_age = |age_ms| Keep { age_ms: Some(age_ms), bytes: None };
    let first = read.view().plan(time(12_500), by_age(2_000));
    assert_eq!((first.log_start, first.look_into), (Some(offset(10)), None));
    let known = first.stays.unwrap();
    assert_eq!((known.from, known.newest), (offset(10), Some(time(11_000))));
    assert_eq!((known.entry_bytes, known.bytes), (100, 300));
    // It is at hand no more.
    let moved = Log { log_start: 10, pages: PageEntries::default(), ..log() };
    let view = |log_start| RetentionView { known: Some(known), log_start: offset(log_start), ..moved.view() };
    let looks = |log_start, now_ms, keep| view(log_start).plan(time(now_ms), keep).look_into.is_some();
    assert!(!looks(10, 13_000, by_age(2_000)), "the next one is just as old as it may be");
    assert!(looks(10, 13_001, by_age(2_000)));
    assert!(looks(10, 13_000, by_age(1_999)), "a limit that was changed counts at once");
    assert!(looks(15, 12_500, by_age(2_000)), "the log start is elsewhere");
    assert!(RetentionView { known: None, ..view(10) }.plan(time(0), by_age(1)).look_into.is_some());
    // Seven pieces of a hundred bytes.
    let by_size = |bytes| Keep { age_ms: None, bytes: Some(bytes) };
    assert_eq!(view(10).total_bytes(), 700);
    assert!(!looks(10, 0, by_size(601)));
    assert!(looks(10, 0, by_size(600)));
    // As a whole it goes unread.
    assert_eq!(view(10).plan(time(15_001), by_age(2_000)).log_start, Some(offset(40)));
    assert_eq!(view(10).plan(time(0), by_size(400)).log_start, Some(offset(40)));
}

#[test]
fn records_without_a_timestamp_are_as_old_as_the_next_that_have_one() {
    let mut log = log();
    log.manifest.lines.clear();
    log.manifest.entries = vec![ManifestEntry { max_timestamp: None, ..entry(0) }, entry(1)];
    log.manifest.tiered_end = offset(20);
    log.segments.clear();
    assert_eq!(log.start(12_000, Some(1_000), None), None);
    assert_eq!(log.start(12_001, Some(1_000), None), Some(20));
}

#[test]
fn a_log_without_a_bucket_goes_by_its_segments() {
    let start = |high_watermark, now_ms, age_ms, bytes| {
        let view = RetentionView {
            log_start: Offset::ZERO,
            high_watermark: offset(high_watermark),
            manifest: &PartitionManifest::default(),
            pages: &PageEntries::default(),
            known: None,
            segments: &(0..5).map(|index| local(index, index < 4)).collect::<Vec<_>>(),
        };
        let plan = view.plan(time(now_ms), Keep { age_ms, bytes });
        (plan.log_start.map(Offset::get), plan.seal_active)
    };
    assert_eq!(start(50, 13_500, Some(2_000), None), (Some(20), false));
    assert_eq!(start(50, 13_000, Some(2_000), None), (Some(10), false), "exactly at its age a segment stays");
    assert_eq!(start(50, 100_000, Some(2_000), None), (Some(50), true), "the active one is sealed and goes");
    assert_eq!(start(50, 13_500, None, None), (None, false));
    assert_eq!(start(50, 0, None, Some(300)), (Some(20), false));
    assert_eq!(start(50, 0, None, Some(301)), (Some(10), false));
    assert_eq!(start(50, 0, None, Some(0)), (Some(40), false), "size never takes the active one");
    // B67
    assert_eq!(start(29, 100_000, Some(1), Some(0)), (Some(20), false));
    assert_eq!(start(9, 100_000, Some(1), Some(0)), (None, false));
}

#[test]
fn local_retention_takes_only_what_the_bucket_holds() {
    let segments = [local(0, true), local(1, true), local(2, true), local(3, false)];
    let plan = |log_start, end, age_ms, bytes| {
        plan_local(&segments, offset(log_start), offset(end), time(100_000), Keep { age_ms, bytes })
            .map(Offset::get)
    };
    assert_eq!(plan(0, 20, Some(1), None), Some(20));
    assert_eq!(plan(0, 19, Some(1), None), Some(10), "a segment that is not wholly uploaded stays");
    assert_eq!(plan(0, 0, Some(1), Some(0)), None, "T4");
    assert_eq!(plan(0, 40, Some(1), Some(0)), Some(30), "the active segment stays");
    assert_eq!(plan(0, 40, None, Some(250)), Some(10));
    assert_eq!(plan(0, 40, None, Some(301)), None);
    assert_eq!(plan(20, 20, None, None), Some(20), "what lies below the log start goes always");
}

fn place(number: u8) -> TopicPartition {
    TopicPartition { topic_id: TopicId::from_bytes([number; 16]), partition: PartitionIndex(0) }
}

#[test]
fn the_disk_limit_evicts_the_oldest_across_partitions() {
    let one = DiskView {
        place: place(1),
        segments: vec![local(0, true), local(4, true)],
        evictable_end: offset(50),
    };
    let other = DiskView {
        place: place(2),
        segments: vec![local(2, true), local(3, false)],
        evictable_end: offset(30),
    };
    let plan = |most| plan_disk(&[one.clone(), other.clone()], most);
    assert_eq!(plan(400), BTreeMap::new());
    assert_eq!(plan(399), BTreeMap::from([(place(1), offset(10))]));
    assert_eq!(plan(250), BTreeMap::from([(place(1), offset(10)), (place(2), offset(30))]));
    assert_eq!(plan(0), BTreeMap::from([(place(1), offset(50)), (place(2), offset(30))]));
    let unsent = DiskView { evictable_end: offset(0), ..one.clone() };
    assert_eq!(plan_disk(&[unsent], 0), BTreeMap::new(), "T4: what the bucket does not hold stays");
}

proptest! {
    #[test]
    fn retention_never_takes_more_than_it_may(
        tiered in 0_u64..8,
        paged in 0_u64..8,
        count in 1_u64..10,
        log_start in 0_u64..100,
        high_watermark in 0_u64..100,
        now in 0_u64..30_000,
        age_ms in prop::option::of(0_u64..10_000),
        bytes in prop::option::of(0_u64..1_200),
    ) {
        let tiered = tiered.min(count);
        let paged = paged.min(tiered);
        let mut manifest = PartitionManifest { tiered_end: offset(tiered * 10), ..PartitionManifest::default() };
        let mut pages = PageEntries::new();
        if paged > 0 {
            let (line, entries) = line(0, paged);
            manifest.lines.push(line);
            pages.insert(line.page, entries);
        }
        manifest.entries = (paged..tiered).map(entry).collect();
        let log = Log {
            manifest,
            pages,
            segments: (0..count).map(|index| local(index, index + 1 < count)).collect(),
            log_start: log_start.min(count * 10),
            high_watermark: high_watermark.min(count * 10),
        };
        let view = log.view();
        let total = count * 100 - log.log_start * 10;
        prop_assert_eq!(view.total_bytes(), total, "T8");
        let plan = view.plan(time(now), Keep { age_ms, bytes });
        if let Some(to) = plan.log_start {
            prop_assert!(to > offset(log.log_start) && to <= offset(log.high_watermark), "T6, B67");
            prop_assert_eq!(plan.bytes, 10 * (to.get() - log.log_start));
            let newest_gone = 10_000 + (to.get() / 10 - 1) * 1_000;
            let expired = age_ms.is_some_and(|age_ms| now.saturating_sub(newest_gone) > age_ms);
            let room = bytes.is_some_and(|most| total - plan.bytes >= most);
            prop_assert!(expired || room, "what is left is what is to be kept");
        }
    }

    #[test]
    fn eviction_never_passes_what_is_committed(
        end in 0_u64..60, log_start in 0_u64..60, now in 0_u64..40_000, age_ms in prop::option::of(0_u64..20_000), bytes in prop::option::of(0_u64..700),
    ) {
        let segments: Vec<LocalSegment> = (0..6).map(|index| local(index, index < 5)).collect();
        let end = end.max(log_start);
        let limit = offset(end);
        if let Some(to) = plan_local(&segments, offset(log_start), limit, time(now), Keep { age_ms, bytes }) {
            prop_assert!(to <= limit && to.get() % 10 == 0 && to <= offset(50));
        }
        for to in plan_disk(&[DiskView { place: place(1), segments, evictable_end: limit }], bytes.unwrap_or(0)).values() {
            prop_assert!(*to <= limit && *to <= offset(50));
        }
    }
}
