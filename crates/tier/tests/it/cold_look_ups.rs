//! Look-ups by time and by leader epoch in the bucket, compared with a log in memory.

use std::time::Duration;

use tidelog_replica::ColdReader;
use tidelog_runtime::{Rng, SeededRng};
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_types::{Offset, OffsetRange, Timestamp};

use crate::cold_rig::{Batch, DEADLINE, Partition, Rig, at, batch, epoch, random_partition, range};

fn inside(partition: &Partition, range: OffsetRange) -> impl Iterator<Item = &Batch> {
    partition.batches.iter().filter(move |batch| batch.end > range.base && batch.base < range.end)
}

fn random_range(rng: &SeededRng, partition: &Partition) -> OffsetRange {
    let (start, end) = (partition.image.log_start.get(), partition.end().get());
    let base = if rng.chance(1, 2) { start } else { start + rng.below(end - start) };
    let to = if rng.chance(1, 2) { end } else { base + 1 + rng.below(end - base) };
    range(base, to)
}

/// ListOffsets by time and of the largest timestamp (B22, B64): exact, over pages, objects and parts of objects.
#[tokio::test(start_paused = true)]
async fn look_ups_by_time_answer_as_a_log_would() {
    for seed in 0..15 {
        let rng = SeededRng::new(100 + seed);
        let rig = Rig::new();
        let partition = random_partition(&rig, &rng, 0).await;
        let place = partition.cold_place();
        for _ in 0..30 {
            let range = random_range(&rng, &partition);
            let time = Timestamp::from_millis(rng.below(3_500));
            let expected = inside(&partition, range).find(|batch| batch.time >= time);
            let found = rig.tier.first_batch_at_or_after(place.clone(), range, time, DEADLINE).await.unwrap();
            assert_eq!(found, expected.map(|batch| batch.bytes.clone()), "seed {seed}: {time:?} in {range}");

            let largest = inside(&partition, range).map(|batch| batch.time).max();
            let expected = inside(&partition, range).find(|batch| Some(batch.time) == largest);
            let found = rig.tier.max_timestamp_batch(place.clone(), range, DEADLINE).await.unwrap();
            assert_eq!(found, expected.map(|batch| batch.bytes.clone()), "seed {seed}: largest in {range}");
        }
        assert_eq!(rig.store.count(StoreOperation::List, ""), 0);
        assert_eq!(rig.tier.usage().look_up_bytes, 0);
    }
}

/// OffsetForLeaderEpoch and the epoch of a record (B20, B61), over pages and objects.
#[tokio::test(start_paused = true)]
async fn look_ups_by_epoch_answer_as_a_log_would() {
    for seed in 0..25 {
        let rng = SeededRng::new(500 + seed);
        let rig = Rig::new();
        let mut partition = random_partition(&rig, &rng, 0).await;
        if partition.entries().len() > 2 && rng.chance(1, 2) {
            partition.spill(&rig, 1).await;
        }
        let place = partition.cold_place();
        let last = partition.batches.last().unwrap().epoch;
        for number in 0..=last.to_wire() + 1 {
            let wanted = epoch(number);
            let floor = partition.batches.iter().map(|batch| batch.epoch).filter(|at| *at <= wanted).max();
            let expected = floor.map(|floor| {
                let next = partition.batches.iter().find(|batch| batch.epoch > wanted);
                (floor, next.map_or(partition.end(), |batch| batch.base))
            });
            let found = rig.tier.epoch_end(place.clone(), wanted, DEADLINE).await.unwrap();
            assert_eq!(found, expected, "seed {seed}: epoch {number}");
        }
        for batch in &partition.batches {
            let found = rig.tier.epoch_of(place.clone(), batch.base, DEADLINE).await.unwrap();
            assert_eq!(found, Some(batch.epoch), "seed {seed}: offset {}", batch.base);
        }
        assert_eq!(rig.tier.epoch_of(place, partition.end(), DEADLINE).await.unwrap(), None);
    }
}

/// B61: an epoch of which nothing is left above the log start is not known.
#[tokio::test(start_paused = true)]
async fn an_epoch_that_ends_at_the_log_start_is_not_known() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    let batches: Vec<_> =
        (0..6).map(|number| batch(number * 100, 100, 500, 1, i32::try_from(number).unwrap(), 1)).collect();
    for batch in &batches {
        partition.put(&rig, std::slice::from_ref(batch), None).await;
    }
    for number in 0..6 {
        let end = at(u64::try_from(number + 1).unwrap() * 100);
        let found = rig.tier.epoch_end(partition.cold_place(), epoch(number), DEADLINE).await.unwrap();
        assert_eq!(found, Some((epoch(number), end)));
    }
    partition.image.log_start = at(300);
    partition.manifest().entries.drain(..2);
    for number in 0..3 {
        assert_eq!(rig.tier.epoch_end(partition.cold_place(), epoch(number), DEADLINE).await.unwrap(), None);
    }
    let found = rig.tier.epoch_end(partition.cold_place(), epoch(3), DEADLINE).await.unwrap();
    assert_eq!(found, Some((epoch(3), at(400))));
}

/// A look-up by time reads one index and one interval; equal ones share them; what cannot hold the time is not read.
#[tokio::test(start_paused = true)]
async fn equal_look_ups_share_one_small_request() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    for _ in 0..4 {
        partition.put_even(&rig, 50, 100_000).await;
    }
    let all = OffsetRange { base: Offset::ZERO, end: partition.end() };
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Delay(Duration::from_secs(1)));
    let time = Timestamp::from_millis(130);
    let look_up = || rig.tier.first_batch_at_or_after(partition.cold_place(), all, time, DEADLINE);
    let (found, gets, took) = rig.measured(futures::future::join_all((0..20).map(|_| look_up()))).await;
    for found in found {
        assert_eq!(found.unwrap().as_ref(), Some(&partition.batches[130].bytes));
    }
    assert_eq!((gets, took), (2, Duration::from_secs(2)), "an index and an interval");
    let brought = rig.tier.usage().get_bytes;
    assert!(brought < 200_000, "{brought} bytes");

    // Later than everything: known from the manifest alone (B22).
    let later = Timestamp::from_millis(200);
    let none = rig.tier.first_batch_at_or_after(partition.cold_place(), all, later, DEADLINE);
    let (none, gets, _) = rig.measured(none).await;
    assert_eq!((none.unwrap(), gets), (None, 0));
    // Equal epochs on both sides of an object tell that of its offsets.
    let (found, gets, _) = rig.measured(rig.tier.epoch_of(partition.cold_place(), at(120), DEADLINE)).await;
    assert_eq!((found.unwrap(), gets), (Some(epoch(1)), 0));
}
