use super::*;

fn batch(base: u64, last: u64) -> TailBatch {
    TailBatch {
        sequence: 0,
        base: Offset::new(base).unwrap(),
        last: Offset::new(last).unwrap(),
        header: Bytes::from_static(&[0; 61]),
        body: Bytes::from_static(&[1; 10]),
        max_timestamp: None,
        leader_epoch: LeaderEpoch::ZERO,
        charge: 100,
        journal_position: None,
        appended: Duration::ZERO,
    }
}

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn bases<'a>(batches: impl Iterator<Item = &'a TailBatch>) -> Vec<u64> {
    batches.map(|batch| batch.base.get()).collect()
}

#[test]
fn batches_are_found_by_any_offset_in_them_and_by_gaps() {
    let mut tail = Tail::default();
    for (base, last) in [(0, 4), (5, 9), (20, 29)] {
        tail.push(batch(base, last));
    }
    assert_eq!(bases(tail.from(offset(0))), [0, 5, 20]);
    assert_eq!(bases(tail.from(offset(7))), [5, 20]);
    assert_eq!(bases(tail.from(offset(12))), [20]);
    assert_eq!(bases(tail.from(offset(30))), [] as [u64; 0]);
}

#[test]
fn only_what_is_in_a_segment_is_dropped_and_only_from_the_front() {
    let mut tail = Tail::default();
    let first = tail.push(batch(0, 4));
    let second = tail.push(batch(5, 9));
    assert_eq!(tail.drop_front(first), Dropped::Unwritten);
    assert_eq!(tail.mark_behind(offset(5)), 100);
    assert_eq!(tail.drop_front(second), Dropped::Unwritten, "the first is to go before it");
    assert_eq!(tail.drop_front(first), Dropped::Freed(100));
    assert_eq!(tail.drop_front(first), Dropped::Gone);
    assert_eq!(tail.drop_front(second), Dropped::Unwritten);
    assert_eq!(bases(tail.unwritten()), [5]);
}

#[test]
fn truncation_removes_whole_batches_and_accounts_for_the_unwritten() {
    let mut tail = Tail::default();
    for (base, last) in [(0, 4), (5, 9), (10, 14)] {
        tail.push(batch(base, last));
    }
    assert_eq!(tail.mark_behind(offset(10)), 200);
    assert_eq!(tail.truncate(offset(7)), (200, 100));
    assert_eq!(bases(tail.from(offset(0))), [0]);
    let again = tail.push(batch(5, 6));
    assert_eq!(again, 3, "a sequence is never used twice");
    assert_eq!(bases(tail.unwritten()), [5]);
    assert_eq!(tail.clear(), (200, 100));
}

#[test]
fn a_slice_under_a_quarter_of_its_frame_is_copied_and_others_share_its_charge() {
    let frame = Bytes::from(vec![7; 1000]);
    let (small, charge) = keep(frame.slice(0..100), 1000, 100);
    assert_eq!((small.len(), charge), (100, 100 + HEADER_COST));
    assert_ne!(small.as_ptr(), frame.as_ptr());
    let (large, charge) = keep(frame.slice(0..200), 1000, 400);
    assert_eq!((large.as_ptr(), charge), (frame.as_ptr(), 500 + HEADER_COST));
    let (whole, charge) = keep(frame.clone(), 0, 1000);
    assert_eq!((whole.as_ptr(), charge), (frame.as_ptr(), 1000 + HEADER_COST));
}
