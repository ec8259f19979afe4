use proptest::prelude::*;

use super::*;

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

fn at(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn chain(entries: &[(i32, u64)]) -> EpochChain {
    let entries: Vec<_> =
        entries.iter().map(|(e, start)| EpochStart { epoch: epoch(*e), start: at(*start) }).collect();
    EpochChain::try_from(entries).unwrap()
}

#[test]
fn end_offsets_are_kafkas() {
    let chain = chain(&[(2, 10), (5, 30), (6, 50)]);
    let ask = |e| chain.end_offset_for(epoch(e), at(80)).map(|(e, end)| (e.to_wire(), end.get()));
    assert_eq!(ask(0), Some((0, 10)), "older than everything: where the log begins");
    assert_eq!(ask(2), Some((2, 30)));
    assert_eq!(ask(4), Some((2, 30)), "an epoch that wrote nothing ends with the one before");
    assert_eq!(ask(5), Some((5, 50)));
    assert_eq!(ask(6), Some((6, 80)));
    assert_eq!(ask(7), None, "newer than everything");
    assert_eq!(EpochChain::default().end_offset_for(epoch(0), at(0)), None);
}

#[test]
fn offsets_know_their_epoch() {
    let chain = chain(&[(2, 10), (5, 30)]);
    let ask = |offset| chain.epoch_at(at(offset)).map(LeaderEpoch::to_wire);
    assert_eq!((ask(9), ask(10), ask(29), ask(30), ask(1000)), (None, Some(2), Some(2), Some(5), Some(5)));
}

#[test]
fn a_new_epoch_takes_the_place_of_empty_ones() {
    let mut chain = chain(&[(2, 10), (5, 30)]);
    chain.assign(epoch(5), at(99));
    assert_eq!(chain.latest(), Some(epoch(5)));
    assert_eq!(chain.try_assign(epoch(6), at(30)), Ok(true));
    assert_eq!(chain, self::chain(&[(2, 10), (6, 30)]));
    let error = chain.try_assign(epoch(5), at(40)).unwrap_err();
    assert_eq!((error.latest.epoch, error.next.start), (epoch(6), at(40)));
}

#[test]
fn cutting_keeps_what_is_left() {
    let mut cut = chain(&[(2, 10), (5, 30), (6, 50)]);
    cut.truncate_from_end(at(30));
    assert_eq!(cut, chain(&[(2, 10)]));
    let mut start = chain(&[(2, 10), (5, 30), (6, 50)]);
    start.truncate_from_start(at(35));
    assert_eq!(start, chain(&[(5, 35), (6, 50)]));
    start.truncate_from_start(at(10));
    assert_eq!(start, chain(&[(5, 35), (6, 50)]));
    let part = chain(&[(2, 10), (5, 30), (6, 50)]).slice(OffsetRange { base: at(20), end: at(50) });
    assert_eq!(part, chain(&[(2, 20), (5, 30)]));
}

#[test]
fn lineages_part_at_the_lesser_end_of_the_newest_shared_epoch() {
    let bucket = chain(&[(1, 0), (3, 40)]);
    assert_eq!(chain(&[(1, 0), (3, 40), (4, 70)]).common_end(at(90), &bucket, at(60)), Some(at(60)));
    // A local tail that an unclean election dropped: it wrote on in epoch 1.
    assert_eq!(chain(&[(1, 0)]).common_end(at(55), &bucket, at(60)), Some(at(40)));
    assert_eq!(chain(&[(3, 45)]).common_end(at(50), &bucket, at(60)), Some(at(50)), "starts may differ");
    assert_eq!(chain(&[(2, 0)]).common_end(at(55), &bucket, at(60)), None);
}

#[test]
fn chains_that_do_not_ascend_are_refused() {
    let entry = |e, start| EpochStart { epoch: epoch(e), start: at(start) };
    assert!(EpochChain::try_from(vec![entry(1, 0), entry(1, 5)]).is_err());
    assert!(EpochChain::try_from(vec![entry(1, 5), entry(2, 5)]).is_err());
    let json = serde_json::to_string(&chain(&[(1, 0), (2, 5)])).unwrap();
    assert_eq!(serde_json::from_str::<EpochChain>(&json).unwrap(), chain(&[(1, 0), (2, 5)]));
    assert!(serde_json::from_str::<EpochChain>(&json.replace("\"start\":5", "\"start\":0")).is_err());
}

proptest! {
    #[test]
    fn chains_round_trip(steps in prop::collection::vec((1_i32..100, 1_u64..1_000_000), 0..50)) {
        let (mut chain, mut e, mut start) = (EpochChain::default(), 0, 0);
        for (more_epochs, more_offsets) in steps {
            e += more_epochs;
            start += more_offsets;
            chain.assign(epoch(e), at(start));
        }
        prop_assert_eq!(EpochChain::decode(&chain.encode()), Ok(chain));
    }
}
