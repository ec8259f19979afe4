use tidelog_types::{PartitionIndex, TopicId};

use super::*;

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn place(partition: i32) -> TopicPartition {
    TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(partition) }
}

fn checkpointed(partition: i32, end: u64, position: u64) -> CheckpointEntry {
    CheckpointEntry {
        place: place(partition),
        synced_end: offset(end),
        position: JournalPosition(position),
        log_start: offset(0),
        local_log_start: offset(0),
        segments: Vec::new(),
    }
}

fn replays(entries: Vec<CheckpointEntry>) -> Replays {
    Replays::new(&Checkpoint { entries, ..Checkpoint::default() })
}

fn append(base: u64, end: u64) -> Change {
    let header = tidelog_format::batch::BatchHeader::from_bytes([0; 61]);
    Change::Append {
        leader_epoch: LeaderEpoch::ZERO,
        range: OffsetRange { base: offset(base), end: offset(end) },
        batch: RawBatch { header, body: Bytes::new() },
    }
}

fn play(replays: &mut Replays, partition: i32, entries: &[(u64, Change)]) {
    for (position, change) in entries {
        replays.entry(&ScannedEntry {
            position: JournalPosition(*position),
            place: place(partition),
            change: change.clone(),
        });
    }
}

fn bases(replay: &Replay) -> Vec<u64> {
    replay.survivors.iter().map(|survivor| survivor.position).collect()
}

#[test]
fn entries_before_the_checkpoint_are_skipped_and_the_rest_survives() {
    let mut replays = replays(vec![checkpointed(0, 10, 100)]);
    play(&mut replays, 0, &[(50, append(5, 10)), (100, append(10, 12)), (200, append(12, 15))]);
    let replay = &replays.partitions[&place(0)];
    assert_eq!((bases(replay), replay.end, replay.cut), (vec![100, 200], offset(15), offset(10)));
}

#[test]
fn a_truncation_cuts_below_the_checkpoint_and_what_it_removed_does_not_survive() {
    let mut replays = replays(vec![checkpointed(0, 10, 100)]);
    let cut = Change::Truncate { to: offset(7) };
    play(&mut replays, 0, &[(100, append(10, 12)), (150, cut), (200, append(7, 9)), (250, append(9, 11))]);
    let replay = &replays.partitions[&place(0)];
    assert_eq!((bases(replay), replay.end, replay.cut), (vec![200, 250], offset(11), offset(7)));
    assert_eq!(replay.fenced, None);
}

#[test]
fn a_truncation_before_the_checkpoint_was_done_already() {
    let mut replays = replays(vec![checkpointed(0, 10, 100)]);
    play(&mut replays, 0, &[(50, Change::Truncate { to: offset(3) })]);
    assert_eq!(replays.partitions[&place(0)].cut, offset(10));
}

#[test]
fn a_reset_and_a_deletion_remove_what_was_before() {
    let mut replays = replays(vec![checkpointed(0, 10, 100), checkpointed(1, 10, 100)]);
    play(
        &mut replays,
        0,
        &[(100, append(10, 12)), (150, Change::Reset { start: offset(50) }), (200, append(50, 51))],
    );
    play(&mut replays, 1, &[(100, append(10, 12)), (150, Change::Delete), (200, append(12, 13))]);
    let replay = &replays.partitions[&place(0)];
    assert_eq!((replay.reset, bases(replay), replay.log_start), (Some(offset(50)), vec![200], offset(50)));
    assert!(replays.partitions[&place(1)].deleted);
    play(&mut replays, 1, &[(250, Change::Reset { start: offset(0) })]);
    assert!(!replays.partitions[&place(1)].deleted);
}

#[test]
fn starts_only_grow() {
    let mut replays = replays(vec![checkpointed(0, 10, 100)]);
    let (log_start, local) =
        (|to| Change::LogStart { to: offset(to) }, |to| Change::LocalLogStart { to: offset(to) });
    play(&mut replays, 0, &[(100, log_start(5)), (101, log_start(3)), (102, local(4)), (103, local(2))]);
    let replay = &replays.partitions[&place(0)];
    assert_eq!((replay.log_start, replay.local_log_start), (offset(5), offset(4)));
}

#[test]
fn a_damaged_entry_fences_its_partition_until_it_is_cut_there() {
    let rot = |place| Rot { position: JournalPosition(110), bytes: 20, place, range: None };
    let mut hurt =
        replays(vec![checkpointed(0, 10, 100), checkpointed(1, 10, 100), checkpointed(2, 10, 500)]);
    hurt.rot(rot(Some(place(0))));
    play(&mut hurt, 0, &[(150, append(12, 13))]);
    play(&mut hurt, 1, &[(160, append(10, 13))]);
    hurt.finish();
    assert!(hurt.partitions[&place(0)].fenced.is_some());
    assert_eq!(hurt.partitions[&place(0)].end, offset(10), "nothing behind the hole survives");
    assert_eq!(hurt.partitions[&place(1)].fenced, None);
    play(&mut hurt, 0, &[(170, Change::Truncate { to: offset(10) })]);
    assert_eq!(hurt.partitions[&place(0)].fenced, None);

    // Nobody knows whose it was: whoever goes on without a gap is whole, and so is who was checkpointed behind it.
    let mut hurt =
        replays(vec![checkpointed(0, 10, 100), checkpointed(1, 10, 100), checkpointed(2, 10, 500)]);
    hurt.rot(rot(None));
    play(&mut hurt, 0, &[(150, append(10, 13))]);
    hurt.finish();
    let fenced: Vec<bool> = hurt.partitions.values().map(|replay| replay.fenced.is_some()).collect();
    assert_eq!(fenced, [false, true, false]);
}

#[test]
fn offsets_that_are_there_twice_fence_the_partition() {
    let mut replays = replays(vec![checkpointed(0, 10, 100)]);
    play(&mut replays, 0, &[(100, append(9, 12))]);
    assert!(replays.partitions[&place(0)].fenced.is_some());
}
