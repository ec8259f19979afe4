//! Files that are gone, shorter than they were, or cannot be read: noticed, and never read over.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use tidelog_format::producers::ProducerSnapshot;
use tidelog_log::{
    AppendError, Log, LogConfig, LogFailure, LogObserver, PartitionLog, ReadError, RecoveredPartition,
    SegmentSummary,
};
use tidelog_runtime::{Clock, Disk, Lane, OpenMode, Supervisor};
use tidelog_sim::{Context, Fault, FaultEffect, OperationKind, SimDisk};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::{
    faults::on_disk,
    support::{append, batch, offset, open, place, read_all, segment_path, small_config, small_partition},
};

fn on_any_disk<F: Future<Output = ()>>(test: impl FnOnce(Context, Supervisor) -> F) {
    on_disk(|context| context.disk.clone(), test);
}

fn range(base: u64, end: u64) -> OffsetRange {
    OffsetRange { base: offset(base), end: offset(end) }
}

/// A log with sealed segments [0, 4), [4, 8), [8, 12) and an active one [12, 16).
async fn four_segments(context: &Context, supervisor: &Supervisor) -> (Log, PartitionLog) {
    let (log, _) = open(context, &context.disk, supervisor, small_config()).await.unwrap();
    let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
    // With snapshots a start reads no batch.
    partition.attach(std::sync::Arc::new(Nobody(partition.clone())));
    for segment in 0..4 {
        append(&partition, 0, 2, 1000);
        partition.wait_synced(partition.offsets().log_end).await.unwrap();
        if segment < 3 {
            partition.roll().await.unwrap();
        }
    }
    (log, partition)
}

async fn open_again(context: &Context, supervisor: &Supervisor) -> (Log, RecoveredPartition) {
    let (log, mut recovered) = open(context, &context.disk, supervisor, small_config()).await.unwrap();
    (log, recovered.remove(0))
}

fn is_corrupt(read: &Result<tidelog_log::LogRead, ReadError>, base: u64) -> bool {
    matches!(read, Err(ReadError::Corrupt { segment, .. }) if *segment == offset(base))
}

#[test]
fn a_lost_segment_is_quarantined_and_reported_by_the_start_and_by_every_later_one() {
    for lost in [0, 4, 8] {
        on_any_disk(|context, supervisor| async move {
            let (log, _) = four_segments(&context, &supervisor).await;
            log.close().await.unwrap();
            context.disk.remove_file(&segment_path(place(1, 0), lost, "log")).await.unwrap();
            for _ in 0..2 {
                let (log, found) = open_again(&context, &supervisor).await;
                assert_eq!(found.report.lost, [range(lost, lost + 4)]);
                assert_eq!(found.report.fenced, None);
                assert_eq!(found.log.offsets().log_end, offset(16));
                let ranges: Vec<_> = found.log.segments().iter().map(|segment| segment.range).collect();
                assert_eq!(ranges, [range(0, 4), range(4, 8), range(8, 12), range(12, 16)]);
                for base in [0, 4, 8, 12] {
                    let read = found.log.read(offset(base), 10_000, Offset::MAX, true).await;
                    assert_eq!(is_corrupt(&read, base), base == lost, "{base}: {read:?}");
                }
                log.close().await.unwrap();
            }
        });
    }
}

#[test]
fn a_sealed_segment_that_ends_at_an_earlier_batch_is_quarantined() {
    // Cut between two batches nothing in the file itself is wrong.
    on_any_disk(|context, supervisor| async move {
        let (log, partition) = four_segments(&context, &supervisor).await;
        let half = partition.segments()[1].bytes / 2;
        log.close().await.unwrap();
        let path = segment_path(place(1, 0), 4, "log");
        let file = context.disk.open(&path, OpenMode::ReadWrite, Lane::Background).await.unwrap();
        file.set_len(half).await.unwrap();
        context.disk.remove_file(&segment_path(place(1, 0), 4, "index")).await.unwrap();
        let (_log, found) = open_again(&context, &supervisor).await;
        assert_eq!(found.report.lost, [range(4, 8)]);
        assert!(is_corrupt(&found.log.read(offset(6), 10, Offset::MAX, true).await, 4));
    });
}

#[test]
fn a_log_whose_last_segment_is_lost_is_fenced() {
    on_any_disk(|context, supervisor| async move {
        let (log, _) = four_segments(&context, &supervisor).await;
        log.close().await.unwrap();
        for base in [8, 12] {
            context.disk.remove_file(&segment_path(place(1, 0), base, "log")).await.unwrap();
        }
        let (_log, found) = open_again(&context, &supervisor).await;
        assert_eq!((found.report.lost, found.report.fenced), (vec![range(8, 16)], None));
        let why = "records in [8, 16) are missing or damaged on disk";
        assert_eq!(found.log.fenced().as_deref(), Some(why));
        assert_eq!(found.log.lost(), []);
        assert_eq!(found.log.offsets().log_end, offset(8));
        let refused = found.log.append([batch(offset(8), 0, 0, 1, 10, 0)]);
        assert!(matches!(refused, Err(AppendError::Fenced { .. })), "{refused:?}");
    });
}

// Found by the campaign of flipped bits: a last interval that was damaged took what the journal held behind it.
#[test]
fn what_the_journal_holds_keeps_its_place_behind_an_end_that_is_lost() {
    tidelog_sim::run(21, |context| async move {
        let mut disk = context.disk.clone();
        let written = async |supervisor: Supervisor| {
            let (log, _) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            append(&partition, 0, 2, 1000);
            log.close().await.unwrap();
        };
        context.life(&disk, written).await.unwrap();
        let journaled = async |supervisor: Supervisor| {
            let (_log, found) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            append(&found[0].log, 0, 2, 1000);
            found[0].log.wait_synced(offset(8)).await.unwrap();
        };
        context.life(&disk, journaled).await.unwrap();
        disk = disk.kill();
        // The second batch of two, at the end of what the checkpoint covers.
        let path = segment_path(place(1, 0), 0, "log");
        disk.flip_bit(&path, disk.contents(&path).unwrap().len() as u64 - 10, 1).unwrap();
        disk.remove_file(&segment_path(place(1, 0), 0, "index")).await.unwrap();
        for life in 0..2 {
            let found = async |supervisor: Supervisor| {
                let (log, mut found) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
                let found = found.remove(0);
                assert_eq!((found.report.lost, found.log.fenced()), (vec![range(2, 4)], None));
                assert_eq!(found.log.lost(), [range(2, 4)]);
                assert_eq!((found.log.offsets().log_end, bases(&found.replay)), (offset(8), vec![4, 6]));
                assert_eq!(read_all(&found.log, offset(4)).await.len(), 2, "life {life}");
                assert!(is_corrupt(&found.log.read(offset(2), 10_000, Offset::MAX, true).await, 2));
                let before = found.log.read(offset(0), 10_000, Offset::MAX, true).await.unwrap();
                assert_eq!((before.base, before.next), (offset(0), offset(2)), "a read ends before the hole");
                log.close().await.unwrap();
            };
            context.life(&disk, found).await.unwrap();
        }
        let given_up = async |supervisor: Supervisor| {
            let (log, found) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
            // The bucket may have the first of the two: that is not read over.
            for (from, left) in [(4, vec![range(2, 4)]), (3, vec![range(2, 3)])] {
                found[0].log.give_up_lost(offset(from)).await.unwrap();
                assert_eq!(found[0].log.lost(), left);
                assert!(is_corrupt(&found[0].log.read(offset(2), 10_000, Offset::MAX, true).await, 2));
            }
            let behind = found[0].log.read(offset(3), 10_000, Offset::MAX, true).await.unwrap();
            assert_eq!((behind.base, behind.next), (offset(4), offset(8)));
            log.close().await.unwrap();
        };
        context.life(&disk, given_up).await.unwrap();
        let given_up = async |supervisor: Supervisor| {
            let (log, found) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
            assert_eq!((&found[0].report.lost, found[0].log.fenced()), (&vec![range(2, 3)], None));
            found[0].log.give_up_lost(Offset::ZERO).await.unwrap();
            assert_eq!(found[0].log.lost(), []);
            let over = found[0].log.read(offset(2), 10_000, Offset::MAX, true).await.unwrap();
            assert_eq!((over.base, over.next), (offset(4), offset(8)));
            drop(log);
        };
        context.life(&disk, given_up).await.unwrap();
        disk = disk.kill();
        let after = async |supervisor: Supervisor| {
            let (_log, found) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
            assert_eq!((&found[0].report.lost, found[0].log.fenced()), (&Vec::new(), None));
            assert_eq!(read_all(&found[0].log, offset(0)).await.len(), 3);
        };
        context.life(&disk, after).await.unwrap();
    });
}

#[test]
fn a_sealed_segment_below_an_end_that_is_lost_keeps_its_index() {
    tidelog_sim::run(22, |context| async move {
        let mut disk = context.disk.clone();
        let written = async |supervisor: Supervisor| {
            let (log, _) = four_segments(&context, &supervisor).await;
            log.close().await.unwrap();
        };
        context.life(&disk, written).await.unwrap();
        let journaled = async |supervisor: Supervisor| {
            let (_log, found) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            append(&found[0].log, 0, 1, 1000);
            found[0].log.wait_synced(offset(18)).await.unwrap();
        };
        context.life(&disk, journaled).await.unwrap();
        disk = disk.kill();
        let index = segment_path(place(1, 0), 8, "index");
        let before = disk.contents(&index).unwrap();
        // All of the last one's batches, so that nothing of it is left.
        disk.flip_bit(&segment_path(place(1, 0), 12, "log"), 70, 1).unwrap();
        disk.remove_file(&segment_path(place(1, 0), 12, "index")).await.unwrap();
        let found = async |supervisor: Supervisor| {
            let (_log, found) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            assert_eq!(
                (&found[0].report.lost, found[0].log.offsets().log_end),
                (&vec![range(12, 16)], offset(18))
            );
            assert_eq!(disk.contents(&index).unwrap(), before);
            assert_eq!(read_all(&found[0].log, offset(16)).await.len(), 1);
            let below = found[0].log.read(offset(8), 100_000, Offset::MAX, true).await.unwrap();
            assert_eq!((below.base, below.next), (offset(8), offset(12)));
        };
        context.life(&disk, found).await.unwrap();
    });
}

#[test]
fn a_fence_outlives_a_reset() {
    on_any_disk(|context, supervisor| async move {
        let (log, partition) = four_segments(&context, &supervisor).await;
        partition.fence("records are lost").await.unwrap();
        partition.reset(offset(20)).await.unwrap();
        assert!(partition.fenced().is_some());
        log.close().await.unwrap();
        let (_log, found) = open_again(&context, &supervisor).await;
        assert_eq!(found.log.fenced().as_deref(), Some("records are lost"));
        assert_eq!(found.log.offsets().log_end, offset(20));
        found.log.truncate(offset(20)).await.unwrap();
        assert_eq!(found.log.fenced(), None);
    });
}

#[test]
fn a_segment_removed_while_the_log_runs_is_quarantined_and_not_read_over() {
    for from in [4, 5] {
        on_any_disk(|context, supervisor| async move {
            let (log, _) = four_segments(&context, &supervisor).await;
            // After a start nothing of a sealed segment is in memory.
            log.close().await.unwrap();
            let (_log, found) = open_again(&context, &supervisor).await;
            for extension in ["log", "index"] {
                context.disk.remove_file(&segment_path(place(1, 0), 4, extension)).await.unwrap();
            }
            assert!(is_corrupt(&found.log.read(offset(from), 10, Offset::MAX, true).await, 4));
            let through = found.log.read(offset(0), 100_000, Offset::MAX, true).await.unwrap();
            assert_eq!(through.next, offset(4), "a read ends before the hole");
            assert_eq!(read_all(&found.log, offset(8)).await.len(), 4);
        });
    }
}

#[test]
fn a_hole_that_was_always_there_is_no_loss() {
    on_any_disk(|context, supervisor| async move {
        let (log, partition) = four_segments(&context, &supervisor).await;
        partition.roll().await.unwrap();
        // Too far for the segment before; and after a truncation, and below a local log start.
        partition.append([batch(offset(3_000_000_000), 0, 9_000_000, 2, 10, 0)]).unwrap();
        partition.roll().await.unwrap();
        partition.append([batch(offset(3_000_000_005), 0, 9_000_000, 1, 10, 0)]).unwrap();
        partition.roll().await.unwrap();
        partition.truncate(offset(3_000_000_002)).await.unwrap();
        partition.append([batch(offset(3_000_000_007), 0, 9_000_000, 1, 10, 0)]).unwrap();
        partition.roll().await.unwrap();
        partition.set_local_log_start(offset(4)).await.unwrap();
        log.close().await.unwrap();
        let (log, found) = open_again(&context, &supervisor).await;
        assert_eq!((found.report.lost, found.report.fenced), (Vec::new(), None));
        let read = found.log.read(offset(16), 10, Offset::MAX, true).await.unwrap();
        assert_eq!(read.base, offset(3_000_000_000));
        let read = found.log.read(offset(3_000_000_003), 10, Offset::MAX, true).await.unwrap();
        assert_eq!(read.base, offset(3_000_000_007));
        log.close().await.unwrap();
    });
}

#[test]
fn a_fence_of_the_owner_outlives_a_restart_until_a_truncation() {
    on_any_disk(|context, supervisor| async move {
        let (log, partition) = four_segments(&context, &supervisor).await;
        partition.fence("a segment is lost").await.unwrap();
        let next = batch(offset(16), 0, 0, 1, 10, 0);
        assert!(matches!(partition.append([next.clone()]), Err(AppendError::Fenced { .. })));
        log.close().await.unwrap();
        let (_log, found) = open_again(&context, &supervisor).await;
        assert_eq!(found.log.fenced().as_deref(), Some("a segment is lost"));
        found.log.truncate(offset(16)).await.unwrap();
        found.log.append([next]).unwrap();
    });
}

/// Says that no producer has any state.
struct Nobody(PartitionLog);

impl LogObserver for Nobody {
    fn written(&self, _end: Offset) {}
    fn synced(&self, _end: Offset) {}
    fn failed(&self, _why: &LogFailure) {}
    fn producer_snapshot(&self) -> (Offset, Bytes) {
        let end = self.0.offsets().log_end;
        (end, ProducerSnapshot { end, entries: Vec::new() }.encode().into())
    }
}

/// Snapshots at 2, 4 and 6, and the log ends at 8.
async fn three_snapshots(context: &Context, supervisor: &Supervisor) {
    let (log, _) = open(context, &context.disk, supervisor, small_config()).await.unwrap();
    let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
    partition.attach(std::sync::Arc::new(Nobody(partition.clone())));
    for _ in 0..3 {
        append(&partition, 0, 1, 1000);
        partition.wait_synced(partition.offsets().log_end).await.unwrap();
        partition.roll().await.unwrap();
    }
    struct Silent;
    impl LogObserver for Silent {
        fn written(&self, _end: Offset) {}
        fn synced(&self, _end: Offset) {}
        fn failed(&self, _why: &LogFailure) {}
        fn producer_snapshot(&self) -> (Offset, Bytes) {
            (Offset::ZERO, Bytes::new())
        }
    }
    partition.attach(std::sync::Arc::new(Silent));
    append(&partition, 0, 1, 1000);
    log.close().await.unwrap();
}

fn bases(replay: &[[u8; 61]]) -> Vec<u64> {
    replay.iter().map(|header| u64::from_be_bytes(header[..8].try_into().unwrap())).collect()
}

#[test]
fn a_producer_snapshot_that_cannot_be_read_gives_way_to_an_older_one() {
    type Damage = fn(&SimDisk, &Path);
    let damages: [Damage; 3] = [
        |disk, path| disk.flip_bit(path, 25, 1).unwrap(),
        |disk, path| {
            let path = path.to_owned();
            disk.inject(
                Fault::on(OperationKind::Read, FaultEffect::EIO).where_path(move |read| read == path),
            );
        },
        |disk, path| {
            let path = path.to_owned();
            disk.inject(
                Fault::on(OperationKind::Open, FaultEffect::EIO).where_path(move |read| read == path),
            );
        },
    ];
    for damage in damages {
        on_any_disk(|context, supervisor| async move {
            three_snapshots(&context, &supervisor).await;
            let snapshot = |at| segment_path(place(1, 0), at, "snapshot");
            damage(&context.disk, &snapshot(6));
            let (log, found) = open_again(&context, &supervisor).await;
            assert_eq!(found.producer_snapshot.as_ref().map(|(at, _)| at.get()), Some(4));
            assert_eq!(bases(&found.replay), [4, 6]);
            log.close().await.unwrap();
            damage(&context.disk, &snapshot(4));
            damage(&context.disk, &snapshot(2));
            let (_log, found) = open_again(&context, &supervisor).await;
            assert_eq!(found.producer_snapshot, None);
            assert_eq!(bases(&found.replay), [0, 2, 4, 6], "rebuilt from the log");
            assert_eq!(found.log.fenced(), None);
        });
    }
}

fn no_checkpoints() -> LogConfig {
    let mut config = small_config();
    config.checkpoint_interval = Duration::from_secs(3_600);
    config
}

/// Appends four segments of two offsets each.
async fn roll_four(partition: &PartitionLog) {
    for _ in 0..4 {
        append(partition, 0, 1, 1000);
        partition.wait_synced(partition.offsets().log_end).await.unwrap();
        partition.roll().await.unwrap();
    }
}

/// What a start after a kill finds: where the producers' state is, the batches behind it, and the local log start.
async fn found_after_a_kill(context: &Context, disk: &SimDisk) -> (Option<u64>, Vec<u64>, u64) {
    let disk = disk.kill();
    let found = async |supervisor: Supervisor| {
        let (_log, found) = open(context, &disk, &supervisor, no_checkpoints()).await.unwrap();
        let state = found[0].producer_snapshot.as_ref().map(|(at, _)| at.get());
        (state, bases(&found[0].replay), found[0].log.offsets().local_log_start.get())
    };
    context.life(&disk, found).await.unwrap()
}

// Found by the kill campaign: segments that were sealed, tiered and evicted since the last checkpoint took the producers with them.
#[test]
fn producers_are_known_after_a_kill_although_everything_since_the_checkpoint_was_evicted() {
    tidelog_sim::run(11, |context| async move {
        let disk = context.disk.clone();
        let at_checkpoint = async |supervisor: Supervisor| {
            let (log, _) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            partition.attach(std::sync::Arc::new(Nobody(partition.clone())));
            append(&partition, 0, 1, 1000);
            log.close().await.unwrap();
        };
        context.life(&disk, at_checkpoint).await.unwrap();
        let evicted = async |supervisor: Supervisor| {
            let (_log, found) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            let partition = found[0].log.clone();
            partition.attach(std::sync::Arc::new(Nobody(partition.clone())));
            roll_four(&partition).await;
            partition.set_local_log_start(offset(10)).await.unwrap();
            append(&partition, 0, 1, 1000);
            partition.wait_synced(offset(12)).await.unwrap();
        };
        context.life(&disk, evicted).await.unwrap();
        assert_eq!(found_after_a_kill(&context, &disk).await, (Some(10), vec![10], 10));
    });
}

// A stored state that a truncation removed is not counted on when the log start passes what was appended since.
#[test]
fn producers_are_known_after_a_kill_although_what_was_stored_was_truncated() {
    tidelog_sim::run(12, |context| async move {
        let disk = context.disk.clone();
        let truncated = async |supervisor: Supervisor| {
            let (log, _) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            partition.attach(std::sync::Arc::new(Nobody(partition.clone())));
            roll_four(&partition).await;
            // Has a checkpoint store the state at 8.
            partition.set_local_log_start(offset(2)).await.unwrap();
            partition.truncate(offset(4)).await.unwrap();
            roll_four(&partition).await;
            partition.set_local_log_start(offset(8)).await.unwrap();
        };
        context.life(&disk, truncated).await.unwrap();
        assert_eq!(found_after_a_kill(&context, &disk).await, (Some(12), Vec::new(), 8));
    });
}

#[test]
fn a_partition_whose_producer_state_cannot_be_rebuilt_is_fenced_and_not_empty() {
    on_any_disk(|context, supervisor| async move {
        three_snapshots(&context, &supervisor).await;
        for at in [2, 4, 6] {
            context.disk.flip_bit(&segment_path(place(1, 0), at, "snapshot"), 25, 1).unwrap();
        }
        let second = segment_path(place(1, 0), 2, "log");
        context
            .disk
            .inject(Fault::on(OperationKind::Read, FaultEffect::EIO).where_path(move |path| path == second));
        let (log, found) = open_again(&context, &supervisor).await;
        let why = found.report.fenced.unwrap();
        assert!(why.starts_with("producer state cannot be rebuilt from offset 0 on: "), "{why}");
        assert_eq!((found.producer_snapshot, found.replay.len()), (None, 0));
        let refused = found.log.append([batch(offset(8), 0, 0, 1, 10, 0)]);
        assert!(matches!(refused, Err(AppendError::Fenced { .. })), "{refused:?}");
        log.close().await.unwrap();
        // It was the device's mood: nothing is fenced any more.
        context.disk.clear_faults();
        let (_log, found) = open_again(&context, &supervisor).await;
        assert_eq!((found.log.fenced(), bases(&found.replay)), (None, vec![0, 2, 4, 6]));
    });
}

fn created(segments: &[SegmentSummary]) -> Vec<u64> {
    segments.iter().map(|segment| segment.created.as_millis()).collect()
}

#[test]
fn ages_of_segments_go_on_over_restarts_whatever_the_times_of_records_are() {
    on_any_disk(|context, supervisor| async move {
        let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
        let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
        let mut expected = Vec::new();
        for segment in 0..3_u64 {
            expected.push(context.clock.wall().as_millis());
            // The second falls back by 333 days, and one has no time at all.
            let day = 24 * 3_600_000;
            let time = if segment == 1 { 667 * day } else { 1_000 * day };
            partition.append([batch(partition.offsets().log_end, 0, time, 2, 100, segment)]).unwrap();
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
            // In memory alone the age counts as well.
            assert_eq!(created(&partition.segments()), expected);
            tokio::time::sleep(Duration::from_secs(5)).await;
            if segment < 2 {
                partition.roll().await.unwrap();
            }
        }
        let before = partition.segments();
        assert_eq!(created(&before), expected);
        log.close().await.unwrap();
        for _ in 0..3 {
            context.clock.jump_ms(3_600_000);
            let (log, found) = open_again(&context, &supervisor).await;
            // All that retention and the upload ask for, before anything is read.
            assert_eq!(found.log.segments(), before);
            log.close().await.unwrap();
        }
    });
}

#[test]
fn records_that_only_the_journal_had_are_not_younger_for_the_time_that_the_node_was_down() {
    tidelog_sim::run(4, |context| async move {
        let mut disk = context.disk.clone();
        let config = || {
            let mut config = small_config();
            config.write_behind_delay = Duration::from_secs(3_600);
            config.checkpoint_interval = Duration::from_secs(60);
            config
        };
        let appended = context
            .life(&disk, |supervisor| {
                let (context, disk) = (context.clone(), disk.clone());
                async move {
                    let (log, _) = open(&context, &disk, &supervisor, config()).await.unwrap();
                    let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                    append(&partition, 0, 1, 100);
                    partition.wait_synced(offset(2)).await.unwrap();
                    context.clock.wall().as_millis()
                }
            })
            .await
            .unwrap();
        for _ in 0..3 {
            disk = disk.kill();
            context.clock.jump_ms(86_400_000);
            let found = context
                .life(&disk, |supervisor| {
                    let (context, disk) = (context.clone(), disk.clone());
                    async move {
                        let (_log, found) = open(&context, &disk, &supervisor, config()).await.unwrap();
                        found[0].log.segments()[0].created.as_millis()
                    }
                })
                .await
                .unwrap();
            assert!(found <= appended && appended - found < 60_000, "{found}, appended at {appended}");
        }
    });
}

#[test]
fn segment_ms_counts_from_the_first_batch_over_restarts() {
    on_any_disk(|context, supervisor| async move {
        let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
        let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
        partition.append([batch(offset(0), 0, 1_000, 1, 10, 0)]).unwrap();
        log.close().await.unwrap();
        let (_log, found) = open_again(&context, &supervisor).await;
        found.log.set_config(small_partition());
        // Half of segment.ms behind the first, and then just past it: alone the second is not old enough for the third.
        found.log.append([batch(offset(1), 0, 1_800_000, 1, 10, 0)]).unwrap();
        found.log.append([batch(offset(2), 0, 3_601_001, 1, 10, 0)]).unwrap();
        found.log.roll().await.unwrap();
        let ranges: Vec<_> = found.log.segments().iter().map(|segment| segment.range).collect();
        assert_eq!(ranges, [range(0, 2), range(2, 3)]);
        assert_eq!(found.log.segments()[0].leader_epochs, (LeaderEpoch::ZERO, LeaderEpoch::ZERO));
        assert_eq!(found.log.segments()[0].max_timestamp, Some(Timestamp::from_millis(1_800_000)));
    });
}

// Found by the campaign of flipped bits: the newest records of a node that was killed went without a word.
#[test]
fn a_flipped_bit_in_the_last_round_of_a_journal_that_rested_is_no_torn_tail() {
    for (rests, expected) in
        [(Duration::from_millis(1200), (2, true)), (Duration::from_millis(100), (2, false))]
    {
        tidelog_sim::run(13, |context| async move {
            let disk = context.disk.clone();
            let last = std::sync::Arc::new(std::sync::Mutex::new(Bytes::new()));
            let written = |supervisor: Supervisor| {
                let (context, disk, last) = (context.clone(), disk.clone(), last.clone());
                async move {
                    let (log, _) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
                    let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                    append(&partition, 0, 1, 1000);
                    partition.wait_synced(offset(2)).await.unwrap();
                    let newest = append(&partition, 0, 1, 1000).remove(0);
                    partition.wait_synced(offset(4)).await.unwrap();
                    *last.lock().unwrap() = newest;
                    tokio::time::sleep(rests).await;
                }
            };
            context.life(&disk, written).await.unwrap();
            let disk = disk.kill();
            let body = last.lock().unwrap().slice(100..400);
            let holds = |path: &std::path::PathBuf| {
                let content = disk.contents(path).ok()?;
                let at = content.windows(body.len()).position(|window| window == &body[..])?;
                path.to_string_lossy().ends_with(".journal").then(|| (path.clone(), at as u64))
            };
            let (path, at) = disk.paths().iter().find_map(holds).unwrap();
            disk.flip_bit(&path, at, 3).unwrap();
            let found = |supervisor: Supervisor| {
                let (context, disk) = (context.clone(), disk.clone());
                async move {
                    let (_log, found) = open(&context, &disk, &supervisor, no_checkpoints()).await.unwrap();
                    let found = &found[0];
                    let outcome = (found.log.offsets().log_end.get(), found.log.fenced().is_some());
                    assert_eq!(outcome, expected, "{:?}", found.report);
                }
            };
            context.life(&disk, found).await.unwrap();
        });
    }
}

#[test]
fn a_journal_that_rests_is_marked_once() {
    on_any_disk(|context, supervisor| async move {
        let (log, _) = open(&context, &context.disk, &supervisor, no_checkpoints()).await.unwrap();
        let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
        append(&partition, 0, 1, 1000);
        partition.wait_synced(offset(2)).await.unwrap();
        let before = log.status().journal_bytes;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(log.status().journal_bytes, before + 4096);
    });
}
