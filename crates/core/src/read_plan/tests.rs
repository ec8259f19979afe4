//! Every region of the offset space, every special timestamp, every epoch.

use super::*;
use crate::partition::EpochStart;

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

/// Log start 100, bucket to 400, local from 300, stable 550, high watermark 600, end 620; a hundred records an epoch.
fn snapshot() -> PartitionSnapshot {
    PartitionSnapshot {
        leader_epoch: epoch(6),
        leading: true,
        tiered: true,
        log_start: offset(100),
        local_log_start: offset(300),
        tiered_end: offset(400),
        last_stable_offset: offset(550),
        high_watermark: offset(600),
        log_end: offset(620),
        written_end: offset(620),
        synced_end: offset(600),
        epochs: (1..=6)
            .map(|number| EpochStart { epoch: epoch(number), start: offset(number.unsigned_abs().into()) })
            .map(|entry| EpochStart { start: offset(entry.start.get() * 100), ..entry })
            .collect(),
    }
}

fn plan(at: u64, isolation: Isolation) -> ReadPlan {
    plan_read(&snapshot(), offset(at), isolation, None)
}

#[test]
fn a_read_goes_where_its_offset_lies() {
    use Isolation::{ReadCommitted, ReadUncommitted};
    assert_eq!(plan(99, ReadUncommitted), ReadPlan::OutOfRange);
    assert_eq!(plan(100, ReadUncommitted), ReadPlan::Cold { end: offset(400) });
    assert_eq!(plan(299, ReadUncommitted), ReadPlan::Cold { end: offset(400) });
    assert_eq!(plan(300, ReadUncommitted), ReadPlan::Hot { end: offset(600) });
    assert_eq!(plan(300, ReadCommitted), ReadPlan::Hot { end: offset(550) });
    assert_eq!(plan(550, ReadCommitted), ReadPlan::AtEnd);
    assert_eq!(plan(599, ReadUncommitted), ReadPlan::Hot { end: offset(600) });
}

#[test]
fn out_of_range_is_only_below_the_log_start_and_above_the_log_end() {
    // B56
    for not_yet_visible in [600, 610, 620] {
        assert_eq!(plan(not_yet_visible, Isolation::ReadUncommitted), ReadPlan::AtEnd);
    }
    assert_eq!(plan(621, Isolation::ReadUncommitted), ReadPlan::OutOfRange);
    let quiet =
        PartitionSnapshot { high_watermark: offset(620), last_stable_offset: offset(620), ..snapshot() };
    let codes: Vec<ReadPlan> = [99, 100, 620, 621]
        .into_iter()
        .map(|at| plan_read(&quiet, offset(at), Isolation::ReadUncommitted, None))
        .collect();
    assert_eq!(
        codes,
        [ReadPlan::OutOfRange, ReadPlan::Cold { end: offset(400) }, ReadPlan::AtEnd, ReadPlan::OutOfRange]
    );
}

#[test]
fn a_cold_offset_is_never_out_of_range() {
    // B98: a log begun anew at the tiered end, the rest in the bucket
    let moved = PartitionSnapshot { local_log_start: offset(400), ..snapshot() };
    assert_eq!(
        plan_read(&moved, offset(105), Isolation::ReadUncommitted, None),
        ReadPlan::Cold { end: offset(400) }
    );
    let hole = PartitionSnapshot { tiered_end: offset(100), ..moved };
    assert_eq!(plan_read(&hole, offset(105), Isolation::ReadUncommitted, None), ReadPlan::NotAvailable);
}

#[test]
fn the_wrong_leadership_is_named() {
    let with = |given| plan_read(&snapshot(), offset(300), Isolation::ReadUncommitted, Some(epoch(given)));
    assert_eq!(with(5), ReadPlan::Refused(LeadershipMismatch::FencedEpoch));
    assert_eq!(with(7), ReadPlan::Refused(LeadershipMismatch::UnknownEpoch));
    assert_eq!(with(6), ReadPlan::Hot { end: offset(600) });
    let follower = PartitionSnapshot { leading: false, ..snapshot() };
    assert_eq!(
        plan_read(&follower, offset(300), Isolation::ReadUncommitted, None),
        ReadPlan::Refused(LeadershipMismatch::NotLeader)
    );
}

fn known(at: Option<u64>, leader_epoch: Option<i32>) -> Result<ListOffsetsPlan, LeadershipMismatch> {
    Ok(ListOffsetsPlan::Known(ListedOffset {
        offset: at.map(offset),
        timestamp: None,
        leader_epoch: leader_epoch.map(epoch),
    }))
}

fn list(snapshot: &PartitionSnapshot, target: i64) -> Result<ListOffsetsPlan, LeadershipMismatch> {
    plan_list_offsets(
        snapshot,
        ListOffsetsTarget::from_wire(target).unwrap(),
        Isolation::ReadUncommitted,
        None,
    )
}

#[test]
fn special_timestamps_carry_the_epoch_of_their_record() {
    // B20, B64
    let snapshot = snapshot();
    assert_eq!(list(&snapshot, -1), known(Some(600), Some(6)));
    assert_eq!(list(&snapshot, -2), known(Some(100), Some(1)));
    assert_eq!(list(&snapshot, -4), known(Some(300), Some(3)));
    assert_eq!(list(&snapshot, -5), known(Some(399), Some(3)));
    assert_eq!(list(&snapshot, -6), known(Some(400), Some(4)));
    assert_eq!(
        plan_list_offsets(&snapshot, ListOffsetsTarget::Latest, Isolation::ReadCommitted, None),
        known(Some(550), Some(6))
    );
    assert_eq!(ListOffsetsTarget::from_wire(-7), None);
}

#[test]
fn an_empty_partition_has_the_epoch_of_what_comes_next() {
    // B20
    let empty = PartitionSnapshot {
        leader_epoch: epoch(3),
        leading: true,
        tiered: true,
        log_start: Offset::ZERO,
        local_log_start: Offset::ZERO,
        tiered_end: Offset::ZERO,
        last_stable_offset: Offset::ZERO,
        high_watermark: Offset::ZERO,
        log_end: Offset::ZERO,
        written_end: Offset::ZERO,
        synced_end: Offset::ZERO,
        epochs: [].into(),
    };
    assert_eq!(list(&empty, -1), known(Some(0), Some(3)));
    assert_eq!(list(&empty, -2), known(Some(0), Some(3)));
    assert_eq!(list(&empty, -5), known(None, None));
    assert_eq!(list(&empty, -6), known(Some(0), Some(3)));
    let nothing = Ok(ListOffsetsPlan::Search { cold: None, hot: None, time: None });
    assert_eq!(list(&empty, -3), nothing, "B22");
    let local_only = PartitionSnapshot { tiered: false, ..snapshot() };
    assert_eq!(list(&local_only, -5), known(None, None));
    assert_eq!(list(&local_only, -6), known(None, None));
}

#[test]
fn a_look_up_by_time_covers_both_tiers_up_to_what_is_visible() {
    // B64
    let range = |base, end| OffsetRange::new(offset(base), offset(end));
    let searched = |cold, hot, time| Ok(ListOffsetsPlan::Search { cold, hot, time });
    let time = Some(Timestamp::from_millis(77));
    assert_eq!(list(&snapshot(), 77), searched(range(100, 300), range(300, 600), time));
    assert_eq!(list(&snapshot(), -3), searched(range(100, 300), range(300, 600), None));
    let hot_only = PartitionSnapshot { local_log_start: offset(50), ..snapshot() };
    assert_eq!(list(&hot_only, 77), searched(None, range(100, 600), time));
    let cold_only = PartitionSnapshot { local_log_start: offset(600), ..snapshot() };
    assert_eq!(list(&cold_only, 77), searched(range(100, 600), None, time));
}

fn end_of(snapshot: &PartitionSnapshot, number: i32) -> EpochEndPlan {
    plan_epoch_end(snapshot, epoch(number), None).unwrap()
}

#[test]
fn an_epoch_ends_where_the_next_one_begins() {
    // B61: epochs 1 to 6, log start 100
    let snapshot = snapshot();
    for number in 1..6_i32 {
        let end = offset(u64::from(number.unsigned_abs()) * 100 + 100);
        assert_eq!(end_of(&snapshot, number), EpochEndPlan::Known { epoch: epoch(number), end });
    }
    assert_eq!(end_of(&snapshot, 6), EpochEndPlan::Known { epoch: epoch(6), end: offset(620) });
    assert_eq!(end_of(&snapshot, 7), EpochEndPlan::Undefined);
    // Deleted by retention: the start of the first known epoch, the log start.
    assert_eq!(end_of(&snapshot, 0), EpochEndPlan::Known { epoch: epoch(0), end: offset(100) });
}

#[test]
fn an_epoch_that_wrote_nothing_answers_for_the_one_before() {
    let mut snapshot = snapshot();
    snapshot.leader_epoch = epoch(9);
    assert_eq!(end_of(&snapshot, 9), EpochEndPlan::Known { epoch: epoch(9), end: offset(620) });
    assert_eq!(end_of(&snapshot, 8), EpochEndPlan::Known { epoch: epoch(6), end: offset(620) });
    assert_eq!(end_of(&snapshot, 10), EpochEndPlan::Undefined);
}

#[test]
fn an_epoch_older_than_the_local_chain_is_asked_of_the_bucket() {
    // B61, B98
    let mut snapshot = snapshot();
    snapshot.epochs = snapshot.epochs[3..].into();
    assert_eq!(end_of(&snapshot, 2), EpochEndPlan::Cold { fallback: offset(400) });
    assert_eq!(end_of(&snapshot, 4), EpochEndPlan::Known { epoch: epoch(4), end: offset(500) });
}
