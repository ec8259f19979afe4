use bytes::Bytes;
use tidelog_types::{LeaderEpoch, PartitionIndex, TopicId, TopicPartition};

use super::*;
use crate::batch::{BatchBuilder, NewRecord, RawBatch};

fn place() -> TopicPartition {
    TopicPartition { topic_id: TopicId::from_bytes([7; 16]), partition: PartitionIndex(2) }
}

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn batch(base: u64, epoch: i32, time: u64) -> RawBatch {
    let record = NewRecord {
        timestamp: Some(Timestamp::from_millis(time)),
        value: Some(&[3; 40]),
        ..NewRecord::default()
    };
    BatchBuilder::new(offset(base))
        .leader_epoch(LeaderEpoch::from_wire(epoch).unwrap())
        .record(&record)
        .record(&record)
        .build()
        .unwrap()
}

fn log(batches: &[RawBatch]) -> Bytes {
    batches.iter().flat_map(RawBatch::to_bytes).collect::<Vec<u8>>().into()
}

fn sample() -> Vec<RawBatch> {
    vec![batch(100, 1, 50), batch(102, 1, 70), batch(104, 3, 60), batch(110, 3, 90), batch(112, 4, 90)]
}

fn rebuild(bytes: &Bytes, chunk: usize) -> Rebuilt {
    let mut scan = SegmentScan::new(offset(100), 300);
    for start in (0..bytes.len()).step_by(chunk) {
        if !scan.push(bytes.slice(start..(start + chunk).min(bytes.len())), |_, _| {}) {
            break;
        }
    }
    scan.finish()
}

#[test]
fn a_log_gives_its_indexes_whatever_the_chunks() {
    let batches = sample();
    let bytes = log(&batches);
    let whole = rebuild(&bytes, bytes.len());
    assert_eq!(
        (whole.end, whole.bytes, &whole.walk_end),
        (offset(114), bytes.len() as u64, &WalkEnd::Complete)
    );
    let epochs: Vec<_> =
        whole.epochs.entries().iter().map(|entry| (entry.epoch.to_wire(), entry.start.get())).collect();
    assert_eq!(epochs, [(1, 100), (3, 104), (4, 112)]);
    let times: Vec<_> =
        whole.time_index.iter().map(|entry| (entry.max_timestamp.as_millis(), entry.offset.get())).collect();
    assert_eq!(times, [(50, 100), (70, 102), (90, 110)]);
    let bases: Vec<_> = whole.index.iter().map(|entry| entry.base_offset.get()).collect();
    assert_eq!(bases, [100, 104, 112]);
    for entry in &whole.index {
        let from = usize::try_from(entry.position).unwrap();
        let interval = &bytes[from..usize::try_from(entry.end_position()).unwrap()];
        assert!(entry.matches(interval));
        for byte in 0..interval.len() {
            let mut flipped = interval.to_vec();
            flipped[byte] ^= 1;
            assert!(!entry.matches(&flipped), "a flipped bit, headers included");
        }
    }
    for chunk in [1, 7, 61, 100, 1000] {
        assert_eq!(rebuild(&bytes, chunk), whole, "chunks of {chunk}");
    }
}

#[test]
fn look_ups_name_one_interval() {
    let index = rebuild(&log(&sample()), 1000).index;
    let by_offset = |raw| IndexEntry::find_offset(&index, offset(raw)).unwrap();
    assert_eq!(
        (by_offset(0), by_offset(103), by_offset(104), by_offset(111), by_offset(500)),
        (0, 0, 1, 1, 2)
    );
    let by_time = |millis| IndexEntry::find_time(&index, Timestamp::from_millis(millis));
    assert_eq!(
        (by_time(0), by_time(70), by_time(71), by_time(90), by_time(91)),
        (Some(0), Some(0), Some(1), Some(1), None)
    );
    assert_eq!(IndexEntry::find_offset(&[], offset(1)), None);
}

/// B107: a torn or zeroed tail ends the walk behind the last whole batch.
#[test]
fn a_torn_tail_ends_behind_the_last_whole_batch() {
    let batches = sample();
    let bytes = log(&batches);
    let last = batches[4].size();
    for cut in 1..last {
        let rebuilt = rebuild(&bytes.slice(..bytes.len() - cut), 1 << 20);
        assert_eq!((rebuilt.end, rebuilt.bytes), (offset(112), (bytes.len() - last) as u64), "cut by {cut}");
        assert!(matches!(rebuilt.walk_end, WalkEnd::Batch(_)));
    }
    let zeros: Bytes = [&bytes[..], &[0; 4096]].concat().into();
    assert_eq!(rebuild(&zeros, 1 << 20).end, offset(114));
    let garbage: Bytes = [&bytes[..], &[0xa5; 500]].concat().into();
    assert_eq!(rebuild(&garbage, 64).end, offset(114));
}

#[test]
fn offsets_and_epochs_that_go_back_end_the_walk() {
    for second in [batch(101, 1, 5), batch(99, 1, 5), batch(102, 0, 5)] {
        let rebuilt = rebuild(&log(&[batch(100, 1, 5), second]), 1 << 20);
        assert_eq!((rebuilt.end, rebuilt.walk_end), (offset(102), WalkEnd::Order));
    }
    assert_eq!(
        rebuild(&log(&[batch(98, 1, 5)]), 1 << 20).walk_end,
        WalkEnd::Order,
        "below the segment's base"
    );
}

fn check_file<T: FixedEntry + Clone + PartialEq + std::fmt::Debug>(entries: &[T]) {
    let file = EntryFile::<T>::new(place(), offset(100));
    let sealed = file.encode_sealed(entries);
    let good = file.decode(&sealed).unwrap();
    assert_eq!((&good.entries[..], good.sealed, good.damaged), (entries, true, false));
    let grown =
        [file.header(), &file.encode_entries(0, &entries[..1]), &file.encode_entries(1, &entries[1..])]
            .concat();
    let open = file.decode(&grown).unwrap();
    assert_eq!((&open.entries[..], open.sealed, open.damaged), (entries, false, false));
    assert_eq!(EntryFile::<T>::position(entries.len() as u64), grown.len() as u64);
    for bit in 0..sealed.len() * 8 {
        let mut flipped = sealed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(decoded) = file.decode(&flipped) {
            assert_eq!(decoded.entries, entries[..decoded.entries.len()], "bit {bit}");
            assert!(decoded.damaged && !decoded.sealed, "bit {bit}");
        } else {
            assert!(bit < 64 * 8, "bit {bit}");
        }
    }
    for cut in 0..sealed.len() {
        match file.decode(&sealed[..cut]) {
            Ok(decoded) => {
                assert_eq!(decoded.entries, entries[..decoded.entries.len()]);
                assert!(!decoded.sealed, "cut at {cut}");
            }
            Err(_) => assert!(cut < 64, "cut at {cut}"),
        }
    }
    let second = usize::try_from(EntryFile::<T>::position(1)).unwrap();
    let without_first = [file.header(), &sealed[second..]].concat();
    let moved = file.decode(&without_first).unwrap();
    assert_eq!((moved.entries.len(), moved.damaged), (0, true), "an entry at another place");
    let other = EntryFile::<T>::new(place(), offset(101));
    assert!(matches!(other.decode(&sealed), Err(DecodeError::Invalid { .. })), "another segment's file");
    let foreign = [other.header(), &sealed[64..]].concat();
    let moved = other.decode(&foreign).unwrap();
    assert_eq!((moved.entries.len(), moved.damaged), (0, true), "another segment's entries");
}

#[test]
fn files_of_entries_refuse_every_flipped_bit_and_cut() {
    let rebuilt = rebuild(&log(&sample()), 1000);
    check_file(&rebuilt.index);
    check_file(&rebuilt.time_index);
    let aborted = |producer, first, last| AbortedTransaction {
        producer_id: ProducerId(producer),
        first_offset: offset(first),
        last_offset: offset(last),
        last_stable_offset: offset(last),
    };
    check_file(&[aborted(1, 100, 105), aborted(2, 99, 110)]);
    let range = OffsetRange { base: offset(105), end: offset(106) };
    assert!(aborted(1, 100, 105).overlaps(range));
    assert!(!aborted(1, 100, 104).overlaps(range) && !aborted(1, 106, 109).overlaps(range));
}
