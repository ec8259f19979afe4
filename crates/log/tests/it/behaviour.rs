//! What a caller sees.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tidelog_log::{
    AppendError, CreateError, Log, LogFailure, LogObserver, PartitionConfig, PartitionLog, ReadError,
};
use tidelog_sim::{Context, SimDisk, run};
use tidelog_types::{ByteSize, LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::support::{
    append, batch, fill, joined, offset, open, place, read_all, segment_path, small_config, small_partition,
    stored,
};

/// Runs `test` on a fresh log with one partition, in a life of its own.
pub(crate) fn with_partition<F>(test: impl FnOnce(Context, Log, PartitionLog) -> F)
where
    F: Future<Output = ()>,
{
    run(5, |context| async move {
        let disk = context.disk.clone();
        let life = context.life(&disk, |supervisor| {
            let context = context.clone();
            async move {
                let (log, recovered) =
                    open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                assert!(recovered.is_empty());
                let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                test(context.clone(), log, partition).await;
            }
        });
        life.await.unwrap();
    });
}

#[derive(Default)]
struct Told {
    events: Mutex<Vec<(&'static str, u64)>>,
}

impl LogObserver for Told {
    fn written(&self, end: Offset) {
        self.events.lock().unwrap().push(("written", end.get()));
    }
    fn synced(&self, end: Offset) {
        self.events.lock().unwrap().push(("synced", end.get()));
    }
    fn failed(&self, _why: &LogFailure) {
        self.events.lock().unwrap().push(("failed", 0));
    }
    fn producer_snapshot(&self) -> (Offset, Bytes) {
        (Offset::ZERO, Bytes::new())
    }
}

#[test]
fn an_append_is_written_then_synced_and_both_are_told() {
    with_partition(|_, _, partition| async move {
        let told = Arc::new(Told::default());
        partition.attach(told.clone());
        let batches = append(&partition, 0, 1, 100);
        assert_eq!(partition.offsets().log_end, offset(2));
        assert_eq!(partition.offsets().written_end, offset(0));
        partition.wait_synced(offset(2)).await.unwrap();
        assert_eq!(*told.events.lock().unwrap(), [("written", 2), ("synced", 2)]);
        assert_eq!(partition.offsets().synced_end, offset(2));
        let read = partition.read(offset(1), 10, Offset::MAX, true).await.unwrap();
        assert_eq!((read.base, read.next, joined(&read)), (offset(0), offset(2), batches[0].clone()));
        assert_eq!(
            read.chunks[1].as_ptr(),
            partition.read(offset(0), 10, Offset::MAX, true).await.unwrap().chunks[1].as_ptr()
        );
    });
}

#[test]
fn a_sync_comes_within_the_linger_although_nobody_asks() {
    with_partition(|context, _, partition| async move {
        // The first round makes its file.
        append(&partition, 0, 1, 100);
        partition.wait_synced(offset(2)).await.unwrap();
        append(&partition, 0, 1, 100);
        let before = tokio::time::Instant::now();
        while partition.offsets().synced_end < offset(4) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = before.elapsed();
        // A write of up to 4 ms, the linger of 5, a sync of up to 10.
        assert!(took >= Duration::from_millis(5) && took <= Duration::from_millis(25), "{took:?}");
        drop(context);
    });
}

#[test]
fn what_arrives_during_a_sync_shares_the_next_one() {
    with_partition(|_, _, partition| async move {
        let told = Arc::new(Told::default());
        partition.attach(told.clone());
        append(&partition, 0, 1, 100);
        partition.request_sync();
        tokio::time::sleep(Duration::from_millis(5)).await;
        for _ in 0..5 {
            append(&partition, 0, 1, 100);
        }
        partition.wait_synced(offset(12)).await.unwrap();
        let syncs: Vec<u64> = told
            .events
            .lock()
            .unwrap()
            .iter()
            .filter(|(kind, _)| *kind == "synced")
            .map(|(_, end)| *end)
            .collect();
        assert_eq!(syncs, [2, 12]);
    });
}

#[test]
fn reads_stop_at_the_asked_end_and_size_but_give_one_batch() {
    with_partition(|_, log, partition| async move {
        let batches = append(&partition, 0, 6, 300);
        partition.wait_synced(offset(12)).await.unwrap();
        log.checkpoint().await.unwrap();
        let one = batches[0].len();
        for from_disk in [false, true] {
            if from_disk {
                // Push everything out of the tail.
                fill(&log, &partition, 0, 60, 1000).await;
                partition.wait_synced(partition.offsets().log_end).await.unwrap();
                log.checkpoint().await.unwrap();
                append(&partition, 0, 1, 1000);
            }
            let read = partition.read(offset(0), 2 * one, Offset::MAX, true).await.unwrap();
            assert_eq!((read.next, read.bytes()), (offset(4), 2 * one), "from disk: {from_disk}");
            let read = partition.read(offset(3), 2 * one, Offset::MAX, true).await.unwrap();
            assert_eq!((read.base, read.next), (offset(2), offset(6)));
            let read = partition.read(offset(0), 10, Offset::MAX, true).await.unwrap();
            assert_eq!((read.next, joined(&read)), (offset(2), batches[0].clone()));
            let read = partition.read(offset(0), 10, Offset::MAX, false).await.unwrap();
            assert_eq!((read.next, read.chunks.len()), (offset(0), 0));
            let read = partition.read(offset(0), 100_000, offset(5), true).await.unwrap();
            assert_eq!(read.next, offset(4), "a batch that reaches the end is left out");
        }
        let beyond = offset(partition.offsets().log_end.get() + 1);
        assert!(matches!(
            partition.read(beyond, 10, Offset::MAX, true).await,
            Err(ReadError::OutOfRange { .. })
        ));
    });
}

#[test]
fn batches_that_do_not_follow_are_refused_whole() {
    with_partition(|_, _, partition| async move {
        append(&partition, 3, 1, 10);
        let back = batch(offset(1), 3, 0, 1, 10, 0);
        assert!(matches!(partition.append(vec![back]), Err(AppendError::OutOfOrder { .. })));
        let old_epoch = batch(offset(2), 2, 0, 1, 10, 0);
        assert!(matches!(partition.append(vec![old_epoch]), Err(AppendError::OutOfOrder { .. })));
        let good = batch(offset(2), 3, 0, 1, 10, 0);
        let mut lying = batch(offset(3), 3, 0, 1, 10, 0);
        lying.last_offset = offset(9);
        assert!(matches!(partition.append(vec![good, lying]), Err(AppendError::OutOfOrder { .. })));
        assert_eq!(partition.offsets().log_end, offset(2));
        // A gap is legal: a compacted log has them.
        partition.append(vec![batch(offset(7), 3, 0, 1, 10, 0)]).unwrap();
        assert_eq!(partition.read(offset(3), 9999, Offset::MAX, true).await.unwrap().base, offset(7));
    });
}

#[test]
fn segments_roll_by_size_time_distance_and_on_request() {
    with_partition(|_, log, partition| async move {
        append(&partition, 0, 20, 1000);
        partition.wait_synced(offset(40)).await.unwrap();
        log.checkpoint().await.unwrap();
        let segments = partition.segments();
        assert!(segments.len() >= 4, "{segments:?}");
        assert!(segments.iter().all(|segment| segment.bytes <= 8192), "{segments:?}");
        assert!(segments.windows(2).all(|pair| pair[0].range.end == pair[1].range.base && pair[0].sealed));
        let last = segments.last().unwrap();
        assert_eq!((last.range.end, last.sealed), (offset(40), false));
        partition.roll().await.unwrap();
        let rolled = partition.segments();
        assert_eq!((rolled.len(), rolled.last().unwrap().sealed), (segments.len(), true));
        assert_eq!(rolled.last().unwrap().max_timestamp, Some(Timestamp::from_millis(38_001)));
        // By time: the batch's, as Kafka counts.
        partition.append(vec![batch(offset(40), 0, 100_000, 1, 10, 0)]).unwrap();
        partition.append(vec![batch(offset(41), 0, 100_000 + 3_600_001, 1, 10, 0)]).unwrap();
        // By distance (B74): a relative offset has 31 bits.
        partition.append(vec![batch(offset(3_000_000_000), 0, 3_700_002, 1, 10, 0)]).unwrap();
        partition.roll().await.unwrap();
        let ranges: Vec<(u64, u64)> = partition.segments()[segments.len()..]
            .iter()
            .map(|segment| (segment.range.base.get(), segment.range.end.get()))
            .collect();
        assert_eq!(ranges, [(40, 41), (41, 3_000_000_000), (3_000_000_000, 3_000_000_001)]);
        let read = partition.read(offset(42), 10, Offset::MAX, true).await.unwrap();
        assert_eq!(read.base, offset(3_000_000_000));
    });
}

#[test]
fn times_are_found_in_segments_and_in_memory() {
    with_partition(|_, log, partition| async move {
        // Times 0, 2000, 4000, … of batches of two offsets.
        append(&partition, 0, 12, 1000);
        partition.wait_synced(offset(24)).await.unwrap();
        log.checkpoint().await.unwrap();
        append(&partition, 0, 2, 1000);
        let find = async |time: u64, from: u64| {
            let found =
                partition.first_batch_at_or_after(Timestamp::from_millis(time), offset(from)).await.unwrap();
            found.map(|bytes| u64::from_be_bytes(bytes[..8].try_into().unwrap()))
        };
        assert_eq!(find(0, 0).await, Some(0));
        assert_eq!(find(2, 0).await, Some(2));
        assert_eq!(find(9_500, 0).await, Some(10));
        assert_eq!(find(9_500, 15).await, Some(14));
        assert_eq!(find(24_001, 0).await, Some(24));
        assert_eq!(find(26_002, 0).await, None);
        let range = OffsetRange { base: offset(3), end: offset(9) };
        let latest = partition.max_timestamp_batch(range).await.unwrap().unwrap();
        assert_eq!(latest[..8], 8_u64.to_be_bytes());
    });
}

#[test]
fn look_ups_by_time_are_exact_where_times_fall_back_by_333_days() {
    with_partition(|context, log, partition| async move {
        const DAY: u64 = 24 * 3_600_000;
        // A day rises in minutes; then the next of the year before begins; each time is there twice.
        let time = |index: u64| (1_000 - 333 * (index / 12)) * DAY + index % 12 / 2 * 60_000;
        let mut times = Vec::new();
        for index in 0..36 {
            log.append_room().await;
            let base = partition.offsets().log_end;
            partition.append([batch(base, 0, time(index), 2, 500, index)]).unwrap();
            times.push((base, time(index) + 1));
        }
        partition.wait_synced(partition.offsets().log_end).await.unwrap();
        log.close().await.unwrap();
        let registry = tidelog_runtime::Registry::new();
        let supervisor = tidelog_runtime::Supervisor::for_test();
        let (log, found) =
            crate::support::open_measured(&context, &context.disk, &supervisor, small_config(), &registry)
                .await
                .unwrap();
        let partition = found[0].log.clone();
        assert!(partition.segments().len() >= 4, "{:?}", partition.segments());
        // The last two are in memory alone.
        for index in 36..38 {
            let base = partition.offsets().log_end;
            partition.append([batch(base, 0, time(index), 2, 500, index)]).unwrap();
            times.push((base, time(index) + 1));
        }
        let base_of = |bytes: Bytes| Offset::new(u64::from_be_bytes(bytes[..8].try_into().unwrap())).unwrap();
        for (from, _) in &times {
            for (_, wanted) in &times {
                for wanted in [wanted - 1, *wanted, wanted + 1] {
                    let wanted = Timestamp::from_millis(wanted);
                    let expected = times
                        .iter()
                        .find(|(base, max)| base >= from && Timestamp::from_millis(*max) >= wanted)
                        .map(|(base, _)| *base);
                    let found = partition.first_batch_at_or_after(wanted, *from).await.unwrap();
                    assert_eq!(found.map(base_of), expected, "{wanted} from {from}");
                }
            }
            for (end, _) in times.iter().filter(|(end, _)| end > from) {
                let part = || times.iter().filter(|(base, _)| base >= from && base < end);
                let largest = part().map(|(_, max)| *max).max().unwrap();
                let expected = part().find(|(_, max)| *max == largest).map(|(base, _)| *base);
                let range = OffsetRange { base: *from, end: *end };
                let found = partition.max_timestamp_batch(range).await.unwrap();
                assert_eq!(found.map(base_of), expected, "{range:?}");
            }
        }
        log.close().await.unwrap();
    });
}

#[test]
fn a_segment_ends_where_its_index_is_full() {
    with_partition(|_, log, partition| async move {
        // Each batch gets an entry, and four of them fit.
        partition.set_config(PartitionConfig {
            segment_index_bytes: ByteSize::bytes(4 * 12 + 11),
            index_interval_bytes: ByteSize::bytes(1),
            ..small_partition()
        });
        append(&partition, 0, 10, 100);
        log.checkpoint().await.unwrap();
        append(&partition, 1, 1, 100);
        log.checkpoint().await.unwrap();
        let ranges: Vec<_> = partition.segments().iter().map(|one| (one.range.base, one.range.end)).collect();
        assert_eq!(ranges, [(offset(0), offset(8)), (offset(8), offset(16)), (offset(16), offset(22))]);
        // Each checkpoint saves the entries, and what comes then has another one, however far apart entries are to be.
        partition.set_config(PartitionConfig {
            segment_index_bytes: ByteSize::bytes(4 * 12),
            index_interval_bytes: ByteSize::mib(1),
            ..small_partition()
        });
        for _ in 0..4 {
            append(&partition, 1, 2, 100);
            log.checkpoint().await.unwrap();
        }
        let ranges: Vec<_> =
            partition.segments()[2..].iter().map(|one| (one.range.base, one.range.end)).collect();
        assert_eq!(ranges, [(offset(16), offset(24)), (offset(24), offset(36)), (offset(36), offset(38))]);
        // As large as an index may be, and the size of the segment says where it ends.
        partition.set_config(small_partition());
        append(&partition, 2, 20, 100);
        log.checkpoint().await.unwrap();
        assert_eq!(partition.segments().len(), 5);
        log.close().await.unwrap();
    });
}

#[test]
fn the_largest_timestamp_of_a_segment_is_found_without_reading_all_of_it() {
    with_partition(|context, log, partition| async move {
        let mut settings = small_partition();
        settings.segment_bytes = tidelog_types::ByteSize::mib(8);
        partition.set_config(settings);
        for index in 0..3_000 {
            log.append_room().await;
            let time = if index == 2_900 { 9_000_000 } else { index };
            let next = batch(partition.offsets().log_end, 0, time, 1, 2000, index);
            partition.append([next]).unwrap();
        }
        log.close().await.unwrap();
        let registry = tidelog_runtime::Registry::new();
        let supervisor = tidelog_runtime::Supervisor::for_test();
        let (log, found) =
            crate::support::open_measured(&context, &context.disk, &supervisor, small_config(), &registry)
                .await
                .unwrap();
        let partition = &found[0].log;
        let read = || {
            let metrics = registry.encode();
            let line = metrics.lines().find(|line| line.starts_with("log_disk_read_bytes_total ")).unwrap();
            line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
        };
        // The replay of producers read it all.
        let before = read();
        let range = OffsetRange { base: offset(0), end: offset(3_000) };
        let largest = partition.max_timestamp_batch(range).await.unwrap().unwrap();
        assert_eq!(largest[..8], 2_900_u64.to_be_bytes());
        assert!(read() - before < 1_100_000, "{} bytes of 6 MB were read", read() - before);
        log.close().await.unwrap();
    });
}

#[test]
fn truncation_cuts_whole_batches_in_memory_and_on_disk() {
    with_partition(|_, log, partition| async move {
        append(&partition, 0, 10, 1000);
        append(&partition, 1, 10, 1000);
        partition.wait_synced(offset(40)).await.unwrap();
        log.checkpoint().await.unwrap();
        append(&partition, 2, 3, 1000);
        // Inside of the batch at 44, which is in memory.
        partition.truncate(offset(45)).await.unwrap();
        assert_eq!(partition.offsets().log_end, offset(44));
        // Inside of the batch at 16, which is in a sealed segment.
        partition.truncate(offset(17)).await.unwrap();
        let offsets = partition.offsets();
        assert_eq!((offsets.log_end, offsets.synced_end), (offset(16), offset(16)));
        assert_eq!(partition.epochs().latest(), LeaderEpoch::from_wire(0));
        let again = append(&partition, 5, 1, 50);
        partition.wait_synced(offset(18)).await.unwrap();
        partition.roll().await.unwrap();
        assert_eq!(joined(&partition.read(offset(16), 9, Offset::MAX, true).await.unwrap()), again[0]);
        assert_eq!(read_all(&partition, offset(0)).await.len(), 9);
    });
}

#[test]
fn log_start_and_local_log_start_only_grow_and_free_whole_segments() {
    // B62: nothing below the log start is served, whatever is still on disk.
    with_partition(|context, log, partition| async move {
        append(&partition, 0, 20, 1000);
        partition.wait_synced(offset(40)).await.unwrap();
        log.checkpoint().await.unwrap();
        partition.set_log_start(offset(13)).await.unwrap();
        partition.set_log_start(offset(5)).await.unwrap();
        assert_eq!(partition.offsets().log_start, offset(13));
        assert!(matches!(
            partition.read(offset(12), 10, Offset::MAX, true).await,
            Err(ReadError::OutOfRange { .. })
        ));
        assert_eq!(partition.read(offset(13), 10, Offset::MAX, true).await.unwrap().base, offset(12));
        let before = partition.segments();
        let gone: Vec<u64> = before
            .iter()
            .filter(|segment| segment.range.end <= offset(13))
            .map(|segment| segment.range.base.get())
            .collect();
        assert!(!gone.is_empty());
        partition.set_local_log_start(offset(13)).await.unwrap();
        assert_eq!(partition.segments(), before[gone.len()..]);
        assert_eq!(partition.offsets().local_log_start, before[gone.len()].range.base);
        for base in gone {
            assert!(context.disk.contents(&segment_path(place(1, 0), base, "log")).is_err());
        }
        // Above the end there is nothing to start at; B67: the owner asks for no more than the high watermark.
        partition.set_log_start(offset(1000)).await.unwrap();
        assert_eq!(partition.offsets().log_start, offset(40));
    });
}

#[test]
fn a_reset_starts_anew_even_below() {
    with_partition(|_, log, partition| async move {
        append(&partition, 4, 10, 1000);
        partition.wait_synced(offset(20)).await.unwrap();
        log.checkpoint().await.unwrap();
        partition.reset(offset(5)).await.unwrap();
        let offsets = partition.offsets();
        assert_eq!(
            (offsets.log_start, offsets.local_log_start, offsets.log_end),
            (offset(5), offset(5), offset(5))
        );
        assert_eq!(partition.segments(), []);
        assert!(partition.epochs().is_empty());
        let batches = append(&partition, 1, 2, 10);
        assert_eq!(read_all(&partition, offset(5)).await[1].2, batches[1]);
    });
}

#[test]
fn a_deleted_partition_is_gone_and_may_come_again() {
    with_partition(|context, log, partition| async move {
        append(&partition, 0, 10, 1000);
        partition.roll().await.unwrap();
        assert!(matches!(
            log.create(place(1, 0), small_partition(), Offset::ZERO).await,
            Err(CreateError::Exists)
        ));
        log.delete(place(1, 0)).await.unwrap();
        log.delete(place(1, 0)).await.unwrap();
        assert!(matches!(
            partition.append(vec![batch(offset(20), 0, 0, 1, 10, 0)]),
            Err(AppendError::Failed(LogFailure::Deleted))
        ));
        assert!(context.disk.paths().iter().all(|path| !path.to_string_lossy().contains("-0/")));
        assert_eq!(log.status().unwritten_bytes, 0);
        let again = log.create(place(1, 0), small_partition(), offset(3)).await.unwrap();
        assert_eq!(again.offsets().log_end, offset(3));
        append(&again, 0, 1, 10);
        assert_eq!(read_all(&again, offset(3)).await.len(), 1);
    });
}

#[test]
fn memory_stays_within_its_budget_and_room_is_waited_for() {
    with_partition(|_, log, partition| async move {
        for _ in 0..200 {
            log.append_room().await;
            append(&partition, 0, 1, 1500);
            assert!(log.status().unwritten_bytes <= 64 * 1024);
        }
        partition.wait_synced(offset(400)).await.unwrap();
        log.checkpoint().await.unwrap();
        let status = log.status();
        assert!(status.tail_bytes <= 64 * 1024, "{status:?}");
        assert_eq!(status.unwritten_bytes, 0);
        assert!(status.descriptors <= 8, "{status:?}");
        assert_eq!(read_all(&partition, offset(0)).await.len(), 200);
        assert!(log.status().descriptors <= 8);
    });
}

#[test]
fn a_journal_that_is_full_refuses_whoever_did_not_wait() {
    with_partition(|_, log, partition| async move {
        let mut refused = 0;
        for _ in 0..100 {
            let base = partition.offsets().log_end;
            match partition.append(vec![batch(base, 0, 0, 2, 1500, 1)]) {
                Ok(_) => {}
                Err(AppendError::Backpressure) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0);
        log.append_room().await;
        append(&partition, 0, 1, 10);
    });
}

#[test]
fn journal_files_are_recycled_and_stay_few() {
    with_partition(|context, log, partition| async move {
        for _ in 0..60 {
            log.append_room().await;
            append(&partition, 0, 10, 1500);
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
        }
        log.checkpoint().await.unwrap();
        let files = context
            .disk
            .paths()
            .iter()
            .filter(|path| path.extension().is_some_and(|name| name == "journal"))
            .count();
        // 1.8 MB went through a journal of at most 512 KiB in files of 64 KiB.
        assert!(files <= 10, "{files} files");
        assert!(log.status().journal_bytes < 64 * 1024);
    });
}

fn two_lives<F, G>(
    first: impl FnOnce(Context, Log, PartitionLog) -> F,
    between: impl FnOnce(&SimDisk),
    second: impl FnOnce(Context, Log, Vec<tidelog_log::RecoveredPartition>) -> G,
) where
    F: Future<Output = ()>,
    G: Future<Output = ()>,
{
    run(6, |context| async move {
        let disk = context.disk.clone();
        let life = context.life(&disk, |supervisor| {
            let context = context.clone();
            async move {
                let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                first(context.clone(), log, partition).await;
            }
        });
        life.await.unwrap();
        between(&disk);
        let disk = disk.kill();
        let context = Context { disk: disk.clone(), ..context };
        let life = context.life(&disk, |supervisor| {
            let context = context.clone();
            async move {
                let (log, recovered) =
                    open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                second(context.clone(), log, recovered).await;
            }
        });
        life.await.unwrap();
    });
}

#[test]
fn a_clean_stop_is_told_from_an_unclean_one() {
    two_lives(
        |_, log, partition| async move {
            append(&partition, 0, 3, 100);
            log.close().await.unwrap();
            assert!(matches!(
                partition.append(vec![batch(offset(6), 0, 0, 1, 10, 0)]),
                Err(AppendError::Failed(LogFailure::Closed))
            ));
        },
        |_| (),
        |_, log, recovered| async move {
            assert!(!log.status().unclean);
            assert_eq!((recovered.len(), recovered[0].report.batches_played), (1, 0));
            assert_eq!(recovered[0].log.offsets().synced_end, offset(6));
        },
    );
    two_lives(
        |_, log, partition| async move {
            append(&partition, 0, 3, 100);
            partition.wait_synced(offset(6)).await.unwrap();
            drop(log);
        },
        |_| (),
        |_, log, recovered| async move {
            assert!(log.status().unclean);
            assert_eq!(recovered[0].report.batches_played, 3);
            assert_eq!(recovered[0].replay.len(), 3);
            assert_eq!(read_all(&recovered[0].log, offset(0)).await.len(), 3);
        },
    );
}

#[test]
fn garbage_zeros_and_torn_batches_behind_the_checkpoint_are_cut() {
    // B107: whatever a crash leaves at the end of a segment, the start succeeds and nothing acknowledged is missing.
    let tails: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes.truncate(bytes.len() - 40),
        |bytes| bytes.extend([0; 4096]),
        |bytes| {
            bytes.extend((0..700_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()))
        },
        |bytes| bytes.extend_from_within(..30),
        |bytes| {
            let last = bytes.len() - 10;
            bytes[last] ^= 4;
        },
    ];
    for damage in tails {
        let path = segment_path(place(1, 0), 0, "log");
        two_lives(
            |context, log, partition| async move {
                append(&partition, 0, 1, 100);
                partition.wait_synced(offset(2)).await.unwrap();
                log.checkpoint().await.unwrap();
                append(&partition, 0, 3, 100);
                partition.wait_synced(offset(8)).await.unwrap();
                // Written behind, in no checkpoint.
                tokio::time::sleep(Duration::from_millis(150)).await;
                let mut bytes = context.disk.contents(&path).unwrap();
                assert!(bytes.len() > 900);
                damage(&mut bytes);
                let file = tidelog_runtime::Disk::open(
                    &context.disk,
                    &path,
                    tidelog_runtime::OpenMode::CreateOrTruncate,
                    tidelog_runtime::Lane::Background,
                );
                file.await.unwrap().write_at(0, vec![Bytes::from(bytes)]).await.unwrap();
            },
            |_| (),
            |_, _, recovered| async move {
                let log = &recovered[0].log;
                assert_eq!(log.fenced(), None);
                assert_eq!(log.offsets().log_end, offset(8));
                assert_eq!(read_all(log, offset(0)).await.len(), 4);
                append(log, 1, 1, 10);
                log.wait_synced(offset(10)).await.unwrap();
            },
        );
    }
}

#[test]
fn records_that_are_missing_below_the_checkpoint_fence_the_partition_and_a_truncation_lifts_it() {
    two_lives(
        |_, log, partition| async move {
            append(&partition, 0, 4, 100);
            let other = log.create(place(2, 0), small_partition(), Offset::ZERO).await.unwrap();
            append(&other, 0, 4, 100);
            log.close().await.unwrap();
        },
        |disk| {
            let path = segment_path(place(1, 0), 0, "log");
            let length = disk.contents(&path).unwrap().len() as u64;
            disk.flip_bit(&path, length - 20, 3).unwrap();
        },
        |_, _, recovered| async move {
            let log = &recovered[0].log;
            assert!(log.fenced().is_some());
            let lost = OffsetRange { base: log.offsets().log_end, end: offset(8) };
            assert_eq!(recovered[0].report.lost, [lost]);
            // The interval of the damaged batch is not believed; nothing of it is served.
            let end = log.offsets().log_end;
            assert!(end < offset(8));
            let next = batch(end, 1, 0, 1, 10, 0);
            assert!(matches!(log.append(vec![next.clone()]), Err(AppendError::Fenced { .. })));
            assert_eq!(recovered[1].log.fenced(), None);
            assert_eq!(read_all(&recovered[1].log, offset(0)).await.len(), 4);
            log.truncate(end).await.unwrap();
            log.append(vec![next]).unwrap();
        },
    );
}

#[test]
fn a_partition_that_is_not_in_memory_any_more_is_read_through_few_descriptors() {
    with_partition(|_, log, first| async move {
        let mut logs = vec![first];
        for index in 2..12 {
            logs.push(log.create(place(index, 0), PartitionConfig::default(), Offset::ZERO).await.unwrap());
        }
        for log in &logs {
            append(log, 0, 4, 1500);
            log.wait_synced(offset(8)).await.unwrap();
        }
        log.checkpoint().await.unwrap();
        for partition in &logs {
            assert_eq!(read_all(partition, offset(0)).await.len(), 4);
            assert!(log.status().descriptors <= 8);
        }
    });
}

#[test]
fn small_slices_of_a_large_frame_do_not_keep_it() {
    with_partition(|_, log, partition| async move {
        let mut small = batch(offset(0), 0, 0, 1, 100, 1);
        small.frame_bytes = 40_000;
        let expected = stored(&small);
        partition.append(vec![small]).unwrap();
        assert!(log.status().tail_bytes < 1000, "{:?}", log.status());
        let mut large = batch(offset(1), 0, 0, 1, 1000, 1);
        large.frame_bytes = 4000;
        partition.append(vec![large]).unwrap();
        assert!(log.status().tail_bytes > 4000, "{:?}", log.status());
        assert_eq!(joined(&partition.read(offset(0), 1, Offset::MAX, true).await.unwrap()), expected);
    });
}
