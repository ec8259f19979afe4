use proptest::prelude::*;
use tidelog_format::manifest::{Section, SegmentObjectId};
use tidelog_types::{UploadId, UploadSequence};

use super::*;

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn time(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn segment(base: u64, end: u64, sealed: bool) -> LocalSegment {
    LocalSegment {
        range: OffsetRange { base: offset(base), end: offset(end) },
        bytes: (end - base) * 100,
        sealed,
        max_timestamp: Some(time(base)),
        created: time(base),
    }
}

/// Two sealed segments of ten records, and five records in the active one.
fn view() -> UploadView {
    UploadView {
        leader_epoch: Some(LeaderEpoch::ZERO),
        tiered: true,
        copy_disabled: false,
        log_start: offset(0),
        tiered_end: offset(0),
        stable_end: offset(25),
        retained_from: offset(0),
        segments: vec![segment(0, 10, true), segment(10, 20, true), segment(20, 25, false)],
    }
}

fn range(base: u64, end: u64) -> Option<OffsetRange> {
    Some(OffsetRange { base: offset(base), end: offset(end) })
}

const NEVER: u64 = u64::MAX;

#[test]
fn sealed_segments_are_uploaded_and_the_active_one_is_not() {
    assert_eq!(view().plan(time(0), NEVER), UploadPlan { seal_active: false, range: range(0, 20) });
    let half = UploadView { tiered_end: offset(13), ..view() };
    assert_eq!(half.plan(time(0), NEVER).range, range(13, 20));
    let done = UploadView { tiered_end: offset(20), ..view() };
    assert_eq!(done.plan(time(0), NEVER).range, None);
}

#[test]
fn nothing_passes_the_last_stable_or_the_synced_offset() {
    // T2
    let pinned = UploadView { stable_end: offset(7), ..view() };
    assert_eq!(pinned.plan(time(0), NEVER).range, range(0, 7));
    let nothing = UploadView { stable_end: offset(0), ..view() };
    assert_eq!(nothing.plan(time(0), NEVER).range, None);
}

#[test]
fn an_upload_begins_anew_at_a_log_start_above_the_tiered_end() {
    // B62
    let moved = UploadView { log_start: offset(14), tiered_end: offset(3), ..view() };
    assert_eq!(moved.plan(time(0), NEVER).range, range(14, 20));
}

#[test]
fn what_retention_takes_is_not_uploaded() {
    // B68
    let expired = UploadView { retained_from: offset(10), ..view() };
    assert_eq!(expired.plan(time(0), NEVER).range, None, "the log start moves first");
    let moved = UploadView { retained_from: offset(10), log_start: offset(10), ..view() };
    assert_eq!(moved.plan(time(0), NEVER).range, range(10, 20));
}

#[test]
fn only_the_leader_of_a_tiered_partition_uploads() {
    for view in [
        UploadView { leader_epoch: None, ..view() },
        UploadView { tiered: false, ..view() },
        UploadView { copy_disabled: true, ..view() },
    ] {
        assert_eq!(view.plan(time(1_000_000), 1), UploadPlan::default());
    }
}

#[test]
fn an_idle_segment_is_sealed_after_its_lag_by_the_wall_clock() {
    assert!(!view().plan(time(20 + 999), 1_000).seal_active);
    assert!(view().plan(time(20 + 1_000), 1_000).seal_active);
    let empty = UploadView { segments: vec![segment(20, 20, false)], ..view() };
    assert!(!empty.plan(time(1_000_000), 1_000).seal_active, "an empty one has nothing to wait for");
    let held = UploadView { tiered_end: offset(25), ..view() };
    assert!(!held.plan(time(1_000_000), 1_000).seal_active);
}

#[test]
fn lag_is_of_sealed_bytes_and_exactly_zero_when_they_are_uploaded() {
    // C4
    let now = time(100);
    let lag = view().lag(now);
    assert_eq!((lag.bytes, lag.segments, lag.age_ms), (2_000, 2, 100));
    assert_eq!((lag.unsent_bytes, lag.unsent_age_ms), (2_500, 100));
    let half = UploadView { tiered_end: offset(15), ..view() }.lag(now);
    assert_eq!((half.bytes, half.segments, half.age_ms, half.unsent_bytes), (500, 1, 90, 1_000));
    let sealed = UploadView { tiered_end: offset(20), ..view() }.lag(now);
    assert_eq!((sealed.bytes, sealed.segments, sealed.age_ms), (0, 0, 0));
    assert_eq!((sealed.unsent_bytes, sealed.unsent_age_ms), (500, 80));
    let all = UploadView { tiered_end: offset(25), ..view() };
    assert_eq!(all.lag(now), Lag::default());
    let single = UploadView { tiered_end: offset(1), segments: vec![segment(0, 1, true)], ..view() };
    assert_eq!(single.lag(now), Lag::default(), "a segment of one record counts as uploaded");
}

fn entry(index: u64) -> ManifestEntry {
    ManifestEntry {
        range: OffsetRange { base: offset(index), end: offset(index + 1) },
        object: SegmentObjectId {
            base: offset(index),
            leader_epoch: LeaderEpoch::ZERO,
            upload: UploadId { sequence: UploadSequence(index), ..UploadId::default() },
        },
        position: 0,
        bytes: 10,
        object_bytes: 20,
        max_timestamp: None,
        index: Section::default(),
        leader_epoch: LeaderEpoch::ZERO,
    }
}

fn manifest(entries: u64) -> PartitionManifest {
    PartitionManifest {
        entries: (0..entries).map(entry).collect(),
        tiered_end: offset(entries),
        version: 5,
        ..PartitionManifest::default()
    }
}

#[test]
fn a_spill_begins_at_its_limit_and_moves_the_oldest() {
    assert_eq!(plan_spill(&manifest(limits::MANIFEST_ENTRIES_SPILL as u64 - 1)), None);
    let plan = plan_spill(&manifest(limits::MANIFEST_ENTRIES_SPILL as u64)).unwrap();
    assert_eq!(plan.last, None);
    assert_eq!(plan.moved, (0..12).map(entry).collect::<Vec<_>>());
}

#[test]
fn a_manifest_is_published_when_something_waits_for_it() {
    let periods = PublishPeriods { soon_ms: 100, daily_ms: 10_000 };
    let due = |published: u64, waited_ms, items_wait, log_start_moved| {
        let manifest = PartitionManifest { published: vec![published], ..manifest(1) };
        publish_due(&manifest, periods, waited_ms, items_wait, log_start_moved)
    };
    assert!(!due(5, 1_000_000, true, true), "it is published");
    assert!(due(4, 0, true, false));
    assert!(!due(4, 99, false, true));
    assert!(due(4, 100, false, true));
    assert!(!due(4, 9_999, false, false));
    assert!(due(4, 10_000, false, false));
}

proptest! {
    #[test]
    fn a_plan_stays_between_tiered_end_and_what_is_sealed_and_stable(
        lengths in prop::collection::vec(1_u64..20, 1..8),
        log_start in 0_u64..160,
        tiered_end in 0_u64..160,
        stable in 0_u64..160,
        now in 0_u64..1_000,
    ) {
        let mut base = 0;
        let count = lengths.len();
        let segments: Vec<LocalSegment> = lengths.iter().enumerate().map(|(index, length)| {
            let one = segment(base, base + length, index + 1 < count);
            base += length;
            one
        }).collect();
        let (log_end, sealed_end) = (base, segments[count - 1].range.base.get());
        let view = UploadView {
            log_start: offset(log_start.min(log_end)),
            tiered_end: offset(tiered_end.min(log_end)),
            stable_end: offset(stable.min(log_end)),
            segments,
            ..view()
        };
        if let Some(range) = view.plan(time(now), NEVER).range {
            prop_assert_eq!(range.base, view.log_start.max(view.tiered_end));
            prop_assert!(range.base < range.end);
            prop_assert!(range.end <= offset(sealed_end));
            prop_assert!(range.end <= view.stable_end);
        }
        let lag = view.lag(time(now));
        // Records are 100 bytes each, so that the shares are exact.
        prop_assert_eq!(lag.unsent_bytes, 100 * (log_end - view.base().get()));
        prop_assert_eq!(lag.bytes, 100 * sealed_end.saturating_sub(view.base().get()));
        prop_assert_eq!(lag.bytes == 0, lag.segments == 0);
    }

    #[test]
    fn shares_never_exceed_the_whole_and_end_at_zero(bytes in 0_u64..u64::MAX, base in 0_u64..1 << 40, length in 1_u64..1 << 40, at in 0_u64..1 << 42) {
        let range = OffsetRange { base: offset(base), end: offset(base + length) };
        let part = share(bytes, range, offset(at));
        prop_assert!(part <= bytes);
        prop_assert_eq!(share(bytes, range, range.base), bytes);
        prop_assert_eq!(share(bytes, range, range.end), 0);
    }
}
