//! Cold reads of records: the bytes, the requests, and what stays in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_object::{ChunkCache, ChunkKey};
use tidelog_replica::{ColdError, ColdReader};
use tidelog_runtime::{Rng, SeededRng};
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_tier::ColdConfig;
use tidelog_types::{
    BrokerIncarnation, ByteSize, ClusterId, PartitionIndex, TopicId, UploadId, UploadSequence,
};

use crate::cold_rig::{MIB, Partition, Rig, at, batch, random_partition};

/// Reads at random places, in sequence, and again: the answers are those of a log in memory.
#[tokio::test(start_paused = true)]
async fn cold_reads_give_the_bytes_that_a_log_would() {
    for seed in 0..20 {
        let rng = SeededRng::new(seed);
        let memory = ByteSize::mib([2, 16, 128][usize::try_from(seed % 3).unwrap()]);
        let rig = Rig::with(&ColdConfig { memory, ..ColdConfig::default() });
        let partition = random_partition(&rig, &rng, 0).await;
        let (base, end) = (partition.image.log_start.get(), partition.end().get());
        for _ in 0..25 {
            let mut read = partition.request(base + rng.below(end - base), 0);
            read.bytes_max = usize::try_from(rng.below(3) * rng.below(2_000_000)).unwrap();
            read.end = at(read.offset.get() + 1 + rng.below(end - read.offset.get()));
            read.one_at_least = rng.chance(3, 4);
            partition.check(&rig, read).await;
        }
        partition.replay(&rig, base, 300_000).await;
        partition.replay(&rig, base, 3_000_000).await;
        rig.tier.clear().await;
        partition.replay(&rig, base, 100).await;
        assert_eq!(rig.store.count(StoreOperation::List, ""), 0, "seed {seed}");
        rig.rest().await;
        let usage = rig.tier.usage();
        assert_eq!((usage.memory_bytes, usage.ring_bytes, usage.flight_count), (0, 0, 0), "seed {seed}");
    }
}

/// B91: an offset whose record is gone leads to the next record, in the next object too.
#[tokio::test(start_paused = true)]
async fn a_hole_leads_on_to_the_next_record() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    let small = |base, fill| batch(base, 1, 500, base, 1, fill);
    partition.put(&rig, &[small(0, 1), small(5, 2)], Some(10)).await;
    partition.put(&rig, &[small(12, 3)], Some(20)).await;
    partition.put(&rig, &[small(25, 4), small(29, 5)], None).await;
    for (offset, found) in [
        (0, 0),
        (1, 5),
        (4, 5),
        (5, 5),
        (6, 12),
        (9, 12),
        (10, 12),
        (12, 12),
        (13, 25),
        (19, 25),
        (20, 25),
        (26, 29),
    ] {
        let records = partition.read(&rig, offset, 1).await.unwrap();
        assert_eq!((records.base, records.next), (at(found), at(found + 1)), "offset {offset}");
    }
    // Nothing but a hole up to the end: the reader is led behind it.
    let mut read = partition.request(6, 1);
    read.end = at(12);
    let records = rig.tier.read(read).await.unwrap();
    assert_eq!((records.chunks.len(), records.next), (0, at(12)));
    let outside = partition.read(&rig, 30, 1).await.unwrap_err();
    assert_eq!(outside, ColdError::NotHeld { offset: at(30) });
    partition.image.log_start = at(5);
    let below = partition.read(&rig, 4, 1).await.unwrap_err();
    assert_eq!(below, ColdError::NotHeld { offset: at(4) });
}

/// The first record costs one first byte where the index is at hand or the read begins at an object's base, two otherwise,
/// one more for a page.
#[tokio::test(start_paused = true)]
async fn the_first_record_costs_the_promised_round_trips() {
    let second = Duration::from_secs(1);
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 40, 100_000).await;
    partition.put_even(&rig, 40, 100_000).await;
    partition.put_even(&rig, 5, 1_000).await;
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Delay(second));

    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(0, 1000))).await;
    assert_eq!((gets, time), (2, second), "at an object's base: index and first range at once");
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(30, 1000))).await;
    assert_eq!((gets, time), (1, second), "the index is at hand");
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(70, 1000))).await;
    assert_eq!((gets, time), (2, 2 * second), "within an object: its index, then the unit");
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(83, 1000))).await;
    assert_eq!((gets, time), (1, second), "a small object comes whole");
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(84, 1000))).await;
    assert_eq!((gets, time), (0, Duration::ZERO), "what is in memory costs nothing");

    partition.spill(&rig, 1).await;
    rig.tier.clear().await;
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(0, 1000))).await;
    assert_eq!((gets, time), (3, 2 * second), "one more for the page");
    let (_, gets, _) = rig.measured(partition.check(&rig, partition.request(30, 1000))).await;
    assert_eq!(gets, 1, "pages are kept");
}

fn foreign_key(unit: u64) -> ChunkKey {
    let upload = UploadId { incarnation: BrokerIncarnation(99), sequence: UploadSequence(1) };
    let (cluster_id, topic_id) = (ClusterId::from_bytes([5; 16]), TopicId::from_bytes([77; 16]));
    ChunkKey { cluster_id, topic_id, partition: PartitionIndex(0), upload, unit }
}

/// What is in memory is served without a wait, and what is not is not begun.
#[tokio::test(start_paused = true)]
async fn what_is_at_hand_is_served_at_once() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 40, 100_000).await;
    let read = partition.request(3, 250_000);
    assert!(rig.tier.read_at_hand(&read).is_none(), "its index is not read");
    partition.check(&rig, partition.request(0, 1_000)).await;
    let gets = rig.gets();
    let records = rig.tier.read_at_hand(&read).unwrap();
    let (expected, base, next) = partition.expected(&read);
    assert_eq!((records.chunks.concat(), records.base, records.next), (expected, base, next));
    for beyond in [partition.request(20, 1_000), partition.request(40, 1_000)] {
        assert!(rig.tier.read_at_hand(&beyond).is_none(), "{}", beyond.offset);
    }
    rig.rest().await;
    assert_eq!(rig.gets(), gets);
}

/// Who waits for the first unit of a large request does not wait for its last.
#[tokio::test(start_paused = true)]
async fn units_are_served_as_they_come() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 160, 100_000).await;
    partition.check(&rig, partition.request(0, 1_000)).await;
    let pause = Duration::from_secs(4);
    rig.store.plan(StoreOperation::Get, "", 0, 1, StoreFault::Pause(2_600_000, pause));
    let (next, gets, time) = rig.measured(partition.check(&rig, partition.request(12, 8 * MIB))).await;
    assert_eq!((gets, time), (1, Duration::ZERO), "two units came before the pause");
    assert!((30..35).contains(&next.get()), "{next}");
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(next.get(), MIB))).await;
    assert_eq!((gets, time), (0, pause), "the rest is under way");
    assert_eq!(rig.tier.usage().corrupt_count, 0);
}

/// A replay reads ahead across objects with few large requests, and evicts nothing from the cache.
#[tokio::test(start_paused = true)]
async fn a_replay_reads_ahead_across_objects_and_evicts_nothing() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    for _ in 0..3 {
        partition.put_even(&rig, 320, 100_000).await;
    }
    // The cache is full of what others want.
    let others = 64;
    for unit in 0..others {
        rig.cache.insert(foreign_key(unit), Bytes::from(vec![1; MIB]));
    }
    let (reads, gets, _) = rig.measured(partition.replay(&rig, 0, MIB)).await;
    assert_eq!(reads, 96);
    let usage = rig.tier.usage();
    assert_eq!(usage.admitted_count, 0);
    assert_eq!(usage.cache.memory_bytes, others * u64::try_from(MIB).unwrap());
    for unit in 0..others {
        assert!(rig.cache.get(&foreign_key(unit)).await.is_some(), "unit {unit} stays");
    }
    // 96 MB in 16 MiB requests would be 6. Here are 3 indexes, 7 requests until the window is open, and 5 more, since each
    // object's last ends with it.
    assert_eq!(gets, 15, "{usage:?}");
    let data: u64 = partition.entries().iter().map(|entry| entry.bytes + entry.index.bytes).sum();
    // But what lies in the first MiB, which is asked for before the index is known, behind its last whole interval.
    assert_eq!(usage.get_bytes - data, 48_656, "nothing is read twice");
    assert_eq!(usage.ahead_dropped_bytes, 0);
    assert!(usage.ahead_used_bytes > data * 9 / 10, "{usage:?}");
    assert!(usage.store_hit_count <= 4, "{usage:?}");

    // The second time it is wanted twice.
    partition.replay(&rig, 0, MIB).await;
    assert!(rig.tier.usage().admitted_count > 80);
    rig.rest().await;
    let (_, gets, _) = rig.measured(partition.replay(&rig, 640, MIB)).await;
    assert_eq!(gets, 0, "from the cache");
    assert!(rig.tier.usage().cache_hit_count > 0);
    rig.tier.clear().await;
    let (_, gets, _) = rig.measured(partition.check(&rig, partition.request(640, MIB))).await;
    assert_eq!(gets, 2, "nothing is left after a clear");
}

/// One request covers at most 16 MiB; several readers of a unit make one.
#[tokio::test(start_paused = true)]
async fn equal_reads_share_one_request() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 200, 100_000).await;
    let delay = StoreFault::Delay(Duration::from_secs(1));
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, delay);
    let reads = (0..50).map(|_| partition.check(&rig, partition.request(100, MIB)));
    let (_, gets, time) = rig.measured(futures::future::join_all(reads)).await;
    assert_eq!((gets, time), (2, Duration::from_secs(2)), "the index and the units");
    rig.tier.clear().await;
    partition.check(&rig, partition.request(199, 1)).await;
    let (next, gets, _) = rig.measured(partition.check(&rig, partition.request(0, 20 * MIB))).await;
    assert_eq!((next, gets), (at(167), 1), "16 MiB at a time");
}

/// A reader that leaves does not take with it what is on the wire; what waits for its turn goes with it.
#[tokio::test(start_paused = true)]
async fn a_request_on_the_wire_finishes_and_one_that_waits_does_not_begin() {
    let config = ColdConfig { requests_max: 2, ..ColdConfig::default() };
    let rig = Rig::with(&config);
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 100, 100_000).await;
    partition.check(&rig, partition.request(99, 1)).await;
    let delay = StoreFault::Delay(Duration::from_secs(4));
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, delay);
    let before = rig.gets();
    let mut reads: Vec<_> =
        [0, 30, 60].map(|offset| Box::pin(partition.read(&rig, offset, 1))).into_iter().collect();
    for read in &mut reads {
        assert!(futures::poll!(read).is_pending());
    }
    rig.clock.sleep(Duration::from_secs(1)).await;
    let usage = rig.tier.usage();
    assert_eq!((usage.gets_in_flight, usage.flight_count), (2, 3));
    drop(reads);
    rig.clock.sleep(Duration::from_secs(15)).await;
    assert_eq!(rig.gets() - before, 2, "the third did not begin");
    assert_eq!(rig.tier.usage().flight_count, 0);
    let (_, gets, _) = rig.measured(partition.check(&rig, partition.request(0, 1))).await;
    assert_eq!(gets, 0, "what was on the wire is here");
    rig.rest().await;
    assert_eq!(rig.tier.usage().memory_bytes, 0);
}

/// B97: several partitions under a small budget: memory stays within it, and all go on alike.
#[tokio::test(start_paused = true)]
async fn many_partitions_share_a_small_budget() {
    let memory = ByteSize::mib(8);
    let rig = Arc::new(Rig::with(&ColdConfig { memory, ..ColdConfig::default() }));
    let mut partitions = Vec::new();
    for number in 0..10 {
        let mut partition = Partition::new(number);
        partition.put_even(&rig, 60, 100_000).await;
        partitions.push(partition);
    }
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Delay(Duration::from_millis(50)));
    let progress: Vec<_> = partitions.iter().map(|_| std::cell::Cell::new(0_u64)).collect();
    let mut most = 0;
    {
        let replays = partitions.iter().zip(&progress).map(|(partition, progress)| {
            let rig = Arc::clone(&rig);
            async move {
                while progress.get() < 60 {
                    let next = partition.check(&rig, partition.request(progress.get(), MIB)).await;
                    progress.set(next.get());
                }
            }
        });
        let mut all = futures::stream::FuturesUnordered::from_iter(replays);
        let watch = async {
            loop {
                most = most.max(rig.tier.usage().memory_bytes);
                rig.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        let first = async {
            use futures::StreamExt;
            all.next().await;
            let slowest = progress.iter().map(std::cell::Cell::get).min().unwrap();
            assert!(slowest * 3 >= 60, "the slowest is at {slowest} of 60 when the first is done");
            while all.next().await.is_some() {}
        };
        tokio::select! {
            // It never ends.
            biased;
            () = watch => {}
            () = first => {}
        }
    }
    assert!(most <= memory.get(), "{most} bytes were held");
    assert!(most > 4 << 20, "{most} bytes were held");
}

#[tokio::test(start_paused = true)]
async fn a_seek_begins_without_readahead() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 300, 100_000).await;
    for offset in [0, 200, 100, 250, 50] {
        partition.check(&rig, partition.request(offset, 1)).await;
    }
    rig.clock.sleep(Duration::from_secs(1)).await;
    let usage = rig.tier.usage();
    assert_eq!(usage.get_count, 6, "the index and five units");
    assert_eq!(usage.ahead_dropped_bytes + usage.ahead_used_bytes, 0);
}
