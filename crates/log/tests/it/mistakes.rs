//! Deliberate mistakes: the unmodified workload finds each within 100 seeds.

use tidelog_log::Mistakes;
use tidelog_sim::{Fault, FaultEffect, OperationKind};

use crate::{
    crash::{Plan, simulate},
    workload::Size,
};

/// A run that nothing ends is over 10,000 events long.
const SIZE: Size = Size { partitions: 6, steps: 420, cuts: true };

/// The number of the first seed that finds it.
fn found_by(change: impl Fn(&mut Plan)) -> Option<(u64, String)> {
    (0..100).find_map(|seed| {
        let mut plan = Plan::new(SIZE);
        change(&mut plan);
        simulate(seed, &plan).finding.map(|finding| (seed, finding))
    })
}

#[test]
fn without_a_mistake_nothing_is_found() {
    // The other tests of this file mean something only together with this one.
    let mut events = 0;
    for seed in 0..3 {
        let run = simulate(seed, &Plan::new(SIZE));
        assert_eq!(run.finding, None, "seed {seed}");
        events = run.trace_events.max(events);
    }
    assert!(events >= 10_000, "{events}");
}

#[test]
fn an_acknowledgement_before_the_sync_is_found() {
    let (_, finding) =
        found_by(|plan| plan.mistakes = Mistakes { ack_before_sync: true, ..Mistakes::default() }).unwrap();
    assert!(finding.contains("I1") || finding.contains("is gone"), "{finding}");
}

#[test]
fn a_journal_sync_that_does_nothing_is_found() {
    found_by(|plan| plan.faults = vec![Fault::sync_lies().where_path_ends(".journal")]).unwrap();
}

#[test]
fn a_directory_that_is_not_synced_is_found() {
    found_by(|plan| plan.faults = vec![Fault::dir_sync_lies()]).unwrap();
}

#[test]
fn a_partition_folder_that_is_not_synced_is_found() {
    found_by(|plan| {
        plan.faults = vec![Fault::dir_sync_lies().where_path(|path| path.to_string_lossy().contains("-0"))];
    })
    .unwrap();
}

#[test]
fn a_checkpoint_that_frees_the_journal_early_is_found() {
    found_by(|plan| plan.mistakes = Mistakes { free_journal_early: true, ..Mistakes::default() }).unwrap();
}

#[test]
fn a_checkpoint_of_segments_that_are_not_synced_is_found() {
    found_by(|plan| plan.mistakes = Mistakes { checkpoint_without_sync: true, ..Mistakes::default() })
        .unwrap();
}

#[test]
fn checksums_that_are_not_compared_are_found() {
    let flips =
        || Fault::on(OperationKind::Read, FaultEffect::FlipBit).where_path_ends(".log").after(3).times(2);
    let (_, finding) = found_by(|plan| {
        plan.faults = vec![flips()];
        plan.mistakes = Mistakes { ignore_interval_crc: true, ..Mistakes::default() };
    })
    .unwrap();
    assert!(!finding.contains("corrupt"), "{finding}");
}

#[test]
fn an_offset_used_again_after_a_truncation_that_was_not_journaled_is_found() {
    found_by(|plan| plan.mistakes = Mistakes { truncate_without_entry: true, ..Mistakes::default() })
        .unwrap();
}
