//! Cold reads of a bucket that fails.

use std::time::Duration;

use futures::future::join_all;
use tidelog_replica::{ColdError, ColdReader};
use tidelog_runtime::{Rng, SeededRng};
use tidelog_testkit::{StoreFault, StoreOperation};
use tidelog_tier::ColdConfig;
use tidelog_types::ByteSize;

use crate::cold_rig::{DEADLINE, MIB, Partition, Rig, at, batch, random_partition, range};

pub(crate) fn is_damaged(error: &ColdError) -> bool {
    matches!(error, ColdError::Damaged { .. })
}

pub(crate) fn is_unavailable(error: &ColdError) -> bool {
    matches!(error, ColdError::Unavailable { .. })
}

/// B101: cut bodies are completed, changed bytes are asked for again, and neither is ever served or cached.
#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_what_was_written_are_never_served() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 60, 100_000).await;
    let key = partition.key(&partition.entries()[0]);
    let plan = |skip, count, fault| rig.store.plan(StoreOperation::Get, &key, skip, count, fault);

    plan(0, 3, StoreFault::ShortBody(10_000));
    partition.check(&rig, partition.request(30, MIB)).await;
    assert_eq!(rig.tier.usage().corrupt_count, 0);

    plan(0, 1, StoreFault::WrongByte(200_000));
    let (_, gets, _) = rig.measured(partition.check(&rig, partition.request(50, 1))).await;
    assert_eq!((gets, rig.tier.usage().corrupt_count), (2, 1), "asked for once more");

    plan(0, 2, StoreFault::WrongByte(200_000));
    let (answer, gets, _) = rig.measured(partition.read(&rig, 0, 1)).await;
    assert_eq!((is_damaged(&answer.unwrap_err()), gets), (true, 2), "asked for twice, then reported");
    let (_, gets, _) = rig.measured(partition.check(&rig, partition.request(0, 1))).await;
    assert_eq!(gets, 1, "nothing of it was kept");

    // A base offset is covered by no batch's checksum, but by its interval's.
    rig.tier.clear().await;
    plan(1, 2, StoreFault::WrongByte(7));
    let answer = partition.read(&rig, 0, 1).await;
    assert!(answer.is_err() || answer.unwrap().base == at(0));
}

/// B101: the index is checked too.
#[tokio::test(start_paused = true)]
async fn a_damaged_index_is_asked_for_again_and_then_reported() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 60, 100_000).await;
    let key = partition.key(&partition.entries()[0]);
    rig.store.plan(StoreOperation::Get, &key, 0, 1, StoreFault::WrongByte(100));
    partition.check(&rig, partition.request(30, 1)).await;
    assert_eq!(rig.tier.usage().corrupt_count, 1);
    rig.tier.clear().await;
    rig.store.plan(StoreOperation::Get, &key, 0, 2, StoreFault::WrongByte(100));
    let (answer, gets, _) = rig.measured(partition.read(&rig, 30, 1)).await;
    assert_eq!((is_damaged(&answer.unwrap_err()), gets), (true, 2));
    partition.check(&rig, partition.request(30, 1)).await;
}

/// B101: an object of another length is an error of its partition alone, and not asked for again and again.
#[tokio::test(start_paused = true)]
async fn an_object_of_another_length_spoils_its_partition_alone() {
    let rig = Rig::new();
    let (mut short, mut sound) = (Partition::new(0), Partition::new(1));
    short.put_even(&rig, 30, 100_000).await;
    sound.put_even(&rig, 30, 100_000).await;
    let key = short.key(&short.entries()[0]);
    let bytes = rig.client.get(&key, 1 << 30).await.unwrap().bytes;
    rig.client.delete(&key).await.unwrap();
    rig.client.put_new(&key, vec![bytes.slice(..bytes.len() / 2)]).await.unwrap();
    let (answer, gets, time) = rig.measured(short.read(&rig, 15, 1)).await;
    assert_eq!((is_damaged(&answer.unwrap_err()), gets, time), (true, 1, Duration::ZERO));
    sound.replay(&rig, 0, MIB).await;
    assert_eq!(rig.tier.stop(Duration::from_secs(30)).await, Vec::<&str>::new());
}

/// B92: on a 404 the reader is sent to a newer manifest; two tries of a key at most.
#[tokio::test(start_paused = true)]
async fn a_missing_object_sends_the_reader_to_a_newer_manifest() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 5, 1_000).await;
    partition.put_even(&rig, 5, 1_000).await;
    let old = partition.entries()[1];
    rig.client.delete(&partition.key(&old)).await.unwrap();
    let (answer, gets, _) = rig.measured(partition.read(&rig, 7, 1)).await;
    assert_eq!((answer.unwrap_err(), gets), (ColdError::NotHeld { offset: at(7) }, 1));
    // What is before it is served.
    assert_eq!(partition.read(&rig, 3, MIB).await.unwrap().next, at(5));
    for gets_expected in [1, 0] {
        let (answer, gets, _) = rig.measured(partition.read(&rig, 7, 1)).await;
        assert!(is_damaged(&answer.unwrap_err()), "the manifest names what is not there");
        assert_eq!(gets, gets_expected, "two tries, then it is believed");
    }
    rig.clock.sleep(Duration::from_secs(30)).await;
    let (answer, gets, _) = rig.measured(partition.read(&rig, 7, 1)).await;
    assert!(is_damaged(&answer.unwrap_err()));
    assert_eq!(gets, 1, "and looked at again in time");

    // The newer manifest names a replacement.
    let batches: Vec<_> =
        (5..10).map(|offset| batch(offset, 1, 1_000, offset, 1, u8::try_from(offset).unwrap())).collect();
    let (entry, bytes) = partition.object(&batches, range(5, 10), &[]);
    rig.client.put_new(&partition.key(&entry), vec![bytes]).await.unwrap();
    partition.manifest().entries[1] = entry;
    partition.check(&rig, partition.request(7, MIB)).await;
    assert_eq!(rig.store.count(StoreOperation::List, ""), 0);
}

/// B92: a page that was swapped meanwhile.
#[tokio::test(start_paused = true)]
async fn a_missing_page_sends_the_reader_to_a_newer_manifest() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 5, 1_000).await;
    partition.put_even(&rig, 5, 1_000).await;
    let mut newer = partition.clone();
    partition.spill(&rig, 1).await;
    rig.store.plan(StoreOperation::Get, "pages", 0, 1, StoreFault::NotFound);
    let failed = partition.read(&rig, 2, 1).await.unwrap_err();
    assert_eq!(failed, ColdError::NotHeld { offset: at(2) });
    newer.sequence = 50;
    newer.spill(&rig, 2).await;
    newer.check(&rig, newer.request(2, MIB)).await;
}

/// B94: impatient readers of a slow store: a fixed number of requests at once, each key once; stopping takes no time.
#[tokio::test(start_paused = true)]
async fn impatient_readers_share_a_bounded_number_of_requests() {
    let config = ColdConfig { requests_max: 8, ..ColdConfig::default() };
    let rig = Rig::with(&config);
    let mut partition = Partition::new(0);
    for _ in 0..20 {
        partition.put_even(&rig, 20, 100_000).await;
    }
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Delay(Duration::from_secs(19)));
    let mut most = 0;
    let readers = join_all((0..100_u64).map(|reader| {
        let (rig, partition) = (&rig, &partition);
        async move {
            for _ in 0..30 {
                let read = partition.read(rig, reader % 20 * 20, MIB);
                let _ = tokio::time::timeout(Duration::from_secs(2), read).await;
            }
        }
    }));
    let watch = async {
        loop {
            most = most.max(rig.tier.usage().gets_in_flight);
            rig.clock.sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        // What is watched first: the other never ends.
        biased;
        _ = readers => {}
        () = watch => {}
    }
    assert_eq!(most, 8);
    for entry in partition.entries() {
        let gets = rig.store.count(StoreOperation::Get, &partition.key(entry));
        assert!(gets <= 5, "{gets} requests of one object");
    }

    // The store is a black hole: stopping does not wait for it, and tells those who do.
    rig.store.clear_plan();
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Hang);
    rig.tier.clear().await;
    let reads = join_all((0..20).map(|object| partition.read(&rig, object * 20 + 10, 1)));
    let stop = async {
        rig.clock.sleep(Duration::from_secs(1)).await;
        rig.tier.stop(Duration::from_secs(30)).await
    };
    let ((answers, late), _, time) = rig.measured(async { tokio::join!(reads, stop) }).await;
    assert!(answers.iter().all(|answer| is_unavailable(answer.as_ref().unwrap_err())));
    assert_eq!((late, time), (Vec::new(), Duration::from_secs(1)));
    let after = partition.read(&rig, 0, 1).await.unwrap_err();
    assert!(is_unavailable(&after));
    let usage = rig.tier.usage();
    assert_eq!((usage.memory_bytes, usage.flight_count, usage.gets_in_flight), (0, 0, 0));
}

/// A store that does not answer is an error that may be retried, in time.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_unavailable_at_the_deadline() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 20, 100_000).await;
    // One request that hangs costs the time of a first byte.
    rig.store.plan(StoreOperation::Get, "", 0, 1, StoreFault::Hang);
    let (_, gets, time) = rig.measured(partition.check(&rig, partition.request(19, 1))).await;
    assert!(gets >= 2);
    assert!(time >= Duration::from_secs(5) && time < Duration::from_secs(6), "{time:?}");
    // A store that hangs is known to be away soon after; without that the deadline would end it.
    rig.tier.clear().await;
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Hang);
    for deadline in [2, 15] {
        let mut read = partition.request(10, 1);
        read.deadline = Duration::from_secs(deadline);
        let (answer, _, time) = rig.measured(rig.tier.read(read)).await;
        assert!(is_unavailable(&answer.unwrap_err()));
        assert!(time <= Duration::from_secs(deadline.min(6)), "{time:?}");
    }
    rig.store.clear_plan();
    rig.clock.sleep(Duration::from_secs(30)).await;
    partition.check(&rig, partition.request(10, 1)).await;
}

/// B95: after a storm of failures and readers that leave, every permit is back and a read works.
#[tokio::test(start_paused = true)]
async fn after_a_storm_every_permit_is_back() {
    for seed in 0..6 {
        let rng = SeededRng::new(seed);
        let memory = ByteSize::mib([4, 32][usize::try_from(seed % 2).unwrap()]);
        let rig = Rig::with(&ColdConfig { memory, requests_max: 4, ..ColdConfig::default() });
        let partition = random_partition(&rig, &rng, 0).await;
        let (base, end) = (partition.image.log_start.get(), partition.end().get());
        // Three of ten requests fail, in every way.
        for request in 0..600 {
            if rng.chance(3, 10) {
                let fault = match rng.below(5) {
                    0 => StoreFault::FailBefore,
                    1 => StoreFault::ShortBody(rng.below(100_000)),
                    2 => StoreFault::WrongByte(rng.below(100_000)),
                    3 => StoreFault::Hang,
                    _ => StoreFault::Delay(Duration::from_secs(rng.below(30))),
                };
                rig.store.plan(StoreOperation::Get, "", request, 1, fault);
            }
        }
        let mut served = 0;
        for _ in 0..40 {
            let reads = join_all((0..5).map(|_| {
                let offset = base + rng.below(end - base);
                let patience = Duration::from_millis(rng.below(40_000));
                let read = partition.request(offset, usize::try_from(rng.below(4_000_000)).unwrap());
                let expected = partition.expected(&read);
                let tier = &rig.tier;
                async move {
                    let answer = tokio::time::timeout(patience, tier.read(read)).await;
                    match answer {
                        // A failure behind the first records cuts the answer.
                        Ok(Ok(records)) => {
                            assert!(expected.0.starts_with(&records.chunks.concat()));
                            1
                        }
                        Ok(Err(_)) | Err(_) => 0,
                    }
                }
            }));
            served += reads.await.into_iter().sum::<u32>();
            if rng.chance(1, 5) {
                rig.tier.clear().await;
            }
        }
        assert!(served > 20, "seed {seed}: {served} served");
        rig.store.clear_plan();
        rig.clock.sleep(Duration::from_secs(600)).await;
        let usage = rig.tier.usage();
        assert_eq!(
            (
                usage.memory_bytes,
                usage.ring_bytes,
                usage.look_up_bytes,
                usage.gets_in_flight,
                usage.flight_count
            ),
            (0, 0, 0, 0, 0),
            "seed {seed}"
        );
        assert_eq!(usage.reader_count, 0, "seed {seed}");
        let (_, _, time) = rig.measured(partition.check(&rig, partition.request(base, MIB))).await;
        assert!(time < Duration::from_secs(2), "seed {seed}");
    }
}

/// C1: an object without transactions is served, and nothing is asked for to learn that.
#[tokio::test(start_paused = true)]
async fn that_nothing_was_aborted_is_known_without_a_request() {
    use tidelog_format::segment::AbortedTransaction;
    use tidelog_types::ProducerId;
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    let aborted = AbortedTransaction {
        producer_id: ProducerId(3),
        first_offset: at(1),
        last_offset: at(6),
        last_stable_offset: at(7),
    };
    let batches =
        |base: u64| (base..base + 5).map(|offset| batch(offset, 1, 500, 1, 1, 1)).collect::<Vec<_>>();
    partition.put_with(&rig, &batches(0), None, &[aborted]).await;
    partition.put_with(&rig, &batches(5), None, &[aborted]).await;
    partition.put(&rig, &batches(10), None).await;
    partition.replay(&rig, 0, MIB).await;
    let place = partition.cold_place();
    let (found, gets, _) = rig.measured(rig.tier.aborted(&place, range(0, 15), DEADLINE)).await;
    assert_eq!((found.unwrap(), gets), (vec![aborted], 0), "once, though two objects tell it");
    assert_eq!(rig.tier.aborted(&place, range(10, 15), DEADLINE).await.unwrap(), []);
    assert_eq!(rig.tier.aborted(&place, range(6, 15), DEADLINE).await.unwrap(), [aborted]);
    // An index that cannot be loaded is an error to be retried, never an empty list.
    rig.tier.clear().await;
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::Hang);
    let failed = rig.tier.aborted(&place, range(0, 5), Duration::from_secs(5)).await.unwrap_err();
    assert!(is_unavailable(&failed));
}

/// D4: a read of a bucket that went away is an error to come back with, soon, and no empty answer; memory still serves, and
/// the first read after its return finds out.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_away_is_told_at_once_and_its_return_is_noticed() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 60, 100_000).await;
    assert_eq!(rig.tier.outage(), None);
    partition.check(&rig, partition.request(0, 1)).await;
    rig.store.plan(StoreOperation::Get, "", 0, u32::MAX, StoreFault::FailBefore);
    let (answer, _, time) = rig.measured(partition.read(&rig, 30, 1)).await;
    assert!(is_unavailable(&answer.unwrap_err()));
    assert!(time < Duration::from_secs(2), "{time:?}");
    let outage = rig.tier.outage().unwrap();
    assert!(outage.why.contains("injected"), "{outage:?}");
    // What was read is served, and a second reader is not kept waiting either.
    partition.check(&rig, partition.request(0, 1)).await;
    let (answer, _, time) = rig.measured(partition.read(&rig, 40, 1)).await;
    assert!(is_unavailable(&answer.unwrap_err()));
    assert_eq!(time, Duration::from_millis(500));
    rig.store.clear_plan();
    rig.clock.sleep(Duration::from_secs(10)).await;
    partition.check(&rig, partition.request(40, 1)).await;
    assert_eq!(rig.tier.outage(), None);
}

/// D4: one slow or failing request is no outage: a read waits for it as long as it may.
#[tokio::test(start_paused = true)]
async fn a_read_of_a_bucket_that_stumbles_is_waited_for() {
    let rig = Rig::new();
    let mut partition = Partition::new(0);
    partition.put_even(&rig, 60, 100_000).await;
    rig.store.plan(StoreOperation::Get, "", 0, 2, StoreFault::FailBefore);
    rig.store.plan(StoreOperation::Get, "", 0, 2, StoreFault::Delay(Duration::from_secs(4)));
    partition.check(&rig, partition.request(30, 1)).await;
    assert_eq!(rig.tier.outage(), None);
}
