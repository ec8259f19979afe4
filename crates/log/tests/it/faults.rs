//! Disks that fail, fill up and rot.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidelog_log::{AppendError, DirectoryLock, LogFailure, LogObserver, OpenError, ReadError};
use tidelog_sim::{Context, Fault, FaultEffect, OperationKind, SimDisk, SimDiskConfig, run};
use tidelog_types::{ByteSize, ClusterId, Offset};

use crate::support::{
    append, batch, fill, joined, offset, open, place, read_all, segment_path, small_config, small_partition,
};

pub(crate) fn on_disk<F>(
    disk: impl FnOnce(&Context) -> SimDisk,
    test: impl FnOnce(Context, tidelog_runtime::Supervisor) -> F,
) where
    F: Future<Output = ()>,
{
    run(9, |context| async move {
        let disk = disk(&context);
        let context = Context { disk: disk.clone(), ..context };
        context.life(&disk, |supervisor| test(context.clone(), supervisor)).await.unwrap();
    });
}

#[derive(Default)]
struct Failures {
    failed: AtomicU64,
    synced: AtomicU64,
}

impl LogObserver for Failures {
    fn written(&self, _end: Offset) {}
    fn synced(&self, end: Offset) {
        self.synced.store(end.get(), Ordering::Relaxed);
    }
    fn failed(&self, _why: &LogFailure) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
    fn producer_snapshot(&self) -> (Offset, Bytes) {
        (Offset::ZERO, Bytes::new())
    }
}

#[test]
fn a_failed_sync_of_the_journal_is_final() {
    for kind in [OperationKind::Sync, OperationKind::Write] {
        on_disk(
            |context| context.disk.clone(),
            |context, supervisor| async move {
                let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                let failures = Arc::new(Failures::default());
                partition.attach(failures.clone());
                append(&partition, 0, 1, 100);
                partition.wait_synced(offset(2)).await.unwrap();
                // The next file is made meanwhile; a fault of that one would cost nothing.
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
                context.disk.inject(Fault::on(kind, FaultEffect::EIO).where_path_ends(".journal").times(1));
                append(&partition, 0, 1, 100);
                assert!(matches!(partition.wait_synced(offset(4)).await, Err(LogFailure::Journal { .. })));
                assert_eq!(failures.failed.load(Ordering::Relaxed), 1);
                assert_eq!(failures.synced.load(Ordering::Relaxed), 2);
                // A later sync would succeed, and be believed by a naive program.
                let again = batch(offset(4), 0, 0, 1, 10, 0);
                assert!(matches!(partition.append(vec![again]), Err(AppendError::Failed(_))));
                assert!(partition.set_log_start(offset(1)).await.is_err());
                assert!(log.checkpoint().await.is_err());
                assert!(log.status().failure.is_some());
                assert!(partition.read(offset(0), 10, Offset::MAX, true).await.is_ok(), "reads go on");
            },
        );
    }
}

#[test]
fn a_flipped_bit_in_a_sealed_segment_is_never_served() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            let batches = fill(&log, &partition, 0, 30, 1000).await;
            partition.wait_synced(offset(60)).await.unwrap();
            partition.roll().await.unwrap();
            // Out of memory.
            fill(&log, &partition, 0, 30, 1500).await;
            partition.roll().await.unwrap();
            // A bit of a base offset, which the batch's own checksum does not cover: of the second batch.
            let second = batches[0].len() as u64;
            context.disk.flip_bit(&segment_path(place(1, 0), 0, "log"), second + 7, 0).unwrap();
            let read = partition.read(offset(2), 100, Offset::MAX, true).await;
            assert!(
                matches!(&read, Err(ReadError::Corrupt { segment, .. }) if *segment == offset(0)),
                "{read:?}"
            );
            // It stays quarantined, also where its bytes are good; other segments are served.
            assert!(matches!(
                partition.read(offset(0), 100, Offset::MAX, true).await,
                Err(ReadError::Corrupt { .. })
            ));
            let next = partition.segments()[1].range.base;
            assert!(partition.read(next, 100, Offset::MAX, true).await.is_ok());
        },
    );
}

#[test]
fn a_missing_or_damaged_index_is_rebuilt() {
    for damage in [0, 1, 2] {
        on_disk(
            |context| context.disk.clone(),
            |context, supervisor| async move {
                let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                let batches = fill(&log, &partition, 0, 30, 1000).await;
                partition.wait_synced(offset(60)).await.unwrap();
                log.close().await.unwrap();
                let index = segment_path(place(1, 0), 0, "index");
                match damage {
                    0 => tidelog_runtime::Disk::remove_file(&context.disk, &index).await.unwrap(),
                    1 => context.disk.flip_bit(&index, 3, 1).unwrap(),
                    _ => context.disk.flip_bit(&index, 64 + 36 + 5, 1).unwrap(),
                }
                let (_log, recovered) =
                    open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
                let found = read_all(&recovered[0].log, offset(0)).await;
                assert_eq!(found.into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>(), batches);
                assert!(context.disk.contents(&index).is_ok());
            },
        );
    }
}

#[test]
fn a_damaged_journal_entry_fences_its_partition_alone() {
    // Rot, not a tear: the entry lies below a position that a later round names as synced.
    run(9, |context| async move {
        let disk = context.disk.clone();
        let first_life = context.life(&disk, |supervisor| {
            let context = context.clone();
            async move {
                let mut config = small_config();
                config.checkpoint_interval = std::time::Duration::from_secs(3600);
                config.write_behind_delay = std::time::Duration::from_secs(3600);
                let (log, _) = open(&context, &context.disk, &supervisor, config).await.unwrap();
                let first = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
                let second = log.create(place(2, 0), small_partition(), Offset::ZERO).await.unwrap();
                for _ in 0..3 {
                    for partition in [&first, &second] {
                        append(partition, 0, 1, 100);
                        partition.wait_synced(partition.offsets().log_end).await.unwrap();
                    }
                }
                // The body of the first partition's second batch.
                joined(&first.read(offset(2), 1, Offset::MAX, true).await.unwrap()).slice(61..)
            }
        });
        let wanted = first_life.await.unwrap();
        let found = disk.paths().into_iter().find_map(|path| {
            let bytes = disk.contents(&path).unwrap();
            let at = bytes.windows(wanted.len()).position(|window| window == &wanted[..])?;
            path.extension().is_some_and(|name| name == "journal").then_some((path, at))
        });
        let (journal, at) = found.unwrap();
        disk.flip_bit(&journal, at as u64 + 50, 2).unwrap();
        let disk = disk.kill();
        let second_life = context.life(&disk, |supervisor| {
            let (context, disk) = (context.clone(), disk.clone());
            async move {
                let (log, recovered) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
                assert!(recovered[0].log.fenced().is_some());
                assert_eq!(recovered[0].log.offsets().log_end, offset(2));
                assert_eq!(recovered[1].log.fenced(), None);
                assert_eq!(read_all(&recovered[1].log, offset(0)).await.len(), 3);
                assert!(log.status().unclean);
            }
        });
        second_life.await.unwrap();
        // A start begins at a new checkpoint and sees nothing wrong: the fence must have outlived it, or the lost offsets
        // would be used again.
        let disk = disk.crash();
        let third_life = context.life(&disk, |supervisor| {
            let (context, disk) = (context.clone(), disk.clone());
            async move {
                let (_log, recovered) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
                let fenced = &recovered[0].log;
                assert!(fenced.fenced().is_some());
                let refused = fenced.append(vec![batch(offset(2), 0, 0, 1, 10, 0)]);
                assert!(matches!(refused, Err(AppendError::Fenced { .. })), "{refused:?}");
                fenced.truncate(offset(2)).await.unwrap();
                assert_eq!(fenced.fenced(), None);
            }
        });
        third_life.await.unwrap();
        let disk = disk.crash();
        let fourth_life = context.life(&disk, |supervisor| {
            let (context, disk) = (context.clone(), disk.clone());
            async move {
                let (_log, recovered) = open(&context, &disk, &supervisor, small_config()).await.unwrap();
                assert_eq!(recovered[0].log.fenced(), None);
            }
        });
        fourth_life.await.unwrap();
    });
}

#[test]
fn a_full_disk_refuses_appends_and_a_start_gives_the_reserve_up() {
    let mut capacity = SimDiskConfig::seeded(1);
    capacity.capacity = Some(4 * 1024 * 1024);
    on_disk(
        |_| SimDisk::new(capacity),
        |context, supervisor| async move {
            let config = || {
                let mut config = small_config();
                config.reserve_bytes = ByteSize::kib(256);
                config
            };
            let (log, _) = open(&context, &context.disk, &supervisor, config()).await.unwrap();
            assert!(context.disk.contents(Path::new("/data/reserve")).is_ok());
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            append(&partition, 0, 1, 100);
            partition.wait_synced(offset(2)).await.unwrap();
            let used: u64 = context
                .disk
                .paths()
                .iter()
                .map(|path| context.disk.contents(path).unwrap().len() as u64)
                .sum();
            context.disk.set_capacity(Some(used + 12 * 1024));
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            assert!(!log.status().free_space_ok);
            let next = batch(offset(2), 0, 0, 1, 10, 0);
            assert!(matches!(partition.append(vec![next.clone()]), Err(AppendError::NoSpace)));
            log.close().await.unwrap();
            let (log, recovered) = open(&context, &context.disk, &supervisor, config()).await.unwrap();
            assert!(context.disk.contents(Path::new("/data/reserve")).is_err(), "the reserve was given up");
            assert_eq!(recovered[0].log.offsets().log_end, offset(2));
            context.disk.set_capacity(None);
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            assert!(log.status().free_space_ok);
            recovered[0].log.append(vec![next]).unwrap();
        },
    );
}

#[test]
fn a_directory_of_another_cluster_is_refused() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let config = |cluster: u8| {
                let mut config = small_config();
                config.cluster_id = Some(ClusterId::from_bytes([cluster; 16]));
                config
            };
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            log.close().await.unwrap();
            let (log, _) = open(&context, &context.disk, &supervisor, config(1)).await.unwrap();
            let id = log.directory_id();
            log.close().await.unwrap();
            let other = open(&context, &context.disk, &supervisor, config(2)).await;
            assert!(matches!(other, Err(OpenError::OtherCluster { .. })));
            let mut renamed = config(1);
            renamed.directory_id = tidelog_types::DirectoryId::from_bytes([77; 16]);
            let (log, _) = open(&context, &context.disk, &supervisor, renamed).await.unwrap();
            assert_eq!(log.directory_id(), id, "a directory keeps its id");
        },
    );
}

#[test]
fn a_damaged_checkpoint_stops_the_start() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            log.close().await.unwrap();
            context.disk.flip_bit(Path::new("/data/log.checkpoint"), 30, 0).unwrap();
            let opened = open(&context, &context.disk, &supervisor, small_config()).await;
            assert!(matches!(opened, Err(OpenError::Damaged { .. })));
        },
    );
}

#[test]
fn a_missing_checkpoint_stops_the_start_where_there_are_partitions() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            append(&partition, 0, 1, 100);
            partition.wait_synced(offset(2)).await.unwrap();
            log.close().await.unwrap();
            tidelog_runtime::Disk::remove_file(&context.disk, Path::new("/data/log.checkpoint"))
                .await
                .unwrap();
            let opened = open(&context, &context.disk, &supervisor, small_config()).await;
            assert!(
                matches!(opened, Err(OpenError::Damaged { .. })),
                "its partitions would be taken for new ones"
            );
        },
    );
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _first = DirectoryLock::acquire(folder.path()).unwrap();
    assert!(matches!(DirectoryLock::acquire(folder.path()), Err(OpenError::Locked { .. })));
}

/// Bytes that a disk of 4 MiB must keep free.
const FLOOR_BYTES: u64 = 4 * 1024 * 1024 / 20;

#[test]
fn a_fast_fill_is_refused_before_the_floor_of_free_space_is_used() {
    // D5: a look a second sees nothing of what a fast producer writes in between.
    let mut capacity = SimDiskConfig::seeded(1);
    capacity.capacity = Some(4 * 1024 * 1024);
    on_disk(
        |_| SimDisk::new(capacity),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            let begun = tokio::time::Instant::now();
            let mut batches = 0;
            let refused = loop {
                log.append_room().await;
                let next = batch(partition.offsets().log_end, 0, 0, 2, 2000, batches);
                match partition.append([next]) {
                    Ok(_) => batches += 1,
                    Err(AppendError::Backpressure) => {}
                    Err(refused) => break refused,
                }
            };
            assert!(matches!(refused, AppendError::NoSpace), "{refused:?}");
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            let space = tidelog_runtime::Disk::space(&context.disk, Path::new("/data")).await.unwrap();
            assert!(space.free >= FLOOR_BYTES, "{} of {FLOOR_BYTES} bytes are free", space.free);
            // Not refused long before either: the journal takes half a mebibyte, and each byte is counted twice for moments.
            assert!(space.free <= 4 * FLOOR_BYTES, "{} of {FLOOR_BYTES} bytes are free", space.free);
            assert!(batches > 300, "{batches} batches in {:?}", begun.elapsed());
            assert!(log.status().failure.is_none());
        },
    );
}

#[test]
fn a_disk_that_stays_full_refuses_appends_and_is_told_a_few_times_a_minute() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            // A quota: the file system says that there is space.
            context
                .disk
                .inject(Fault::on(OperationKind::Write, FaultEffect::ENOSPC).where_path_ends("00.log"));
            append(&partition, 0, 1, 100);
            let (mut refused, mut taken) = (0, 0);
            for _ in 0..600 {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                match partition.append([batch(partition.offsets().log_end, 0, 0, 1, 10, 0)]) {
                    Err(AppendError::NoSpace) => refused += 1,
                    Ok(_) => taken += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(refused > 500 && taken < 100, "{refused} refused, {taken} taken");
            context.disk.clear_faults();
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            assert!(log.status().free_space_ok && log.status().unwritten_bytes == 0);
            let end = partition.offsets().log_end;
            partition.append([batch(end, 0, 0, 1, 10, 0)]).unwrap();
            partition.wait_synced(end.next()).await.unwrap();
        },
    );
}

#[test]
fn a_sync_that_ended_is_told_while_the_next_round_waits_for_its_file() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let (log, _) = open(&context, &context.disk, &supervisor, small_config()).await.unwrap();
            let partition = log.create(place(1, 0), small_partition(), Offset::ZERO).await.unwrap();
            append(&partition, 0, 1, 100);
            partition.wait_synced(offset(2)).await.unwrap();
            let slow = FaultEffect::Slow(std::time::Duration::from_secs(60));
            context.disk.inject(Fault::on(OperationKind::Allocate, slow));
            // Rounds of a block each, until no file is left; 16 blocks are in one.
            let mut told = 0;
            loop {
                let end = partition.offsets().log_end;
                append(&partition, 0, 1, 3000);
                tokio::time::sleep(std::time::Duration::from_millis(40)).await;
                let offsets = partition.offsets();
                if offsets.synced_end == end {
                    assert_eq!(
                        offsets.written_end, end,
                        "the last append waits for its file, and nothing else does"
                    );
                    break;
                }
                told += 1;
            }
            assert!((15..=48).contains(&told), "{told} rounds until no file was left");
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
            drop(log);
        },
    );
}

#[test]
fn a_journal_in_steady_use_fills_no_file_anew() {
    on_disk(
        |context| context.disk.clone(),
        |context, supervisor| async move {
            let mut config = small_config();
            config.journal_bytes_max = ByteSize::mib(1);
            let (log, _) = open(&context, &context.disk, &supervisor, config).await.unwrap();
            let mut settings = small_partition();
            settings.segment_bytes = ByteSize::mib(1);
            let partition = log.create(place(1, 0), settings, Offset::ZERO).await.unwrap();
            let made = || {
                let trace = context.disk.trace();
                trace.iter().filter(|line| line.contains("Allocate") && line.contains(".journal")).count()
            };
            fill(&log, &partition, 0, 500, 1500).await;
            let warm = made();
            assert!(warm >= 4, "{warm}");
            fill(&log, &partition, 0, 1500, 1500).await;
            // The warm-up need not have seen the most that is live at once; the limit allows 16.
            assert!(
                made() <= 16,
                "4 MiB in files of 64 KiB, nearly each of which was used before: {} made",
                made()
            );
        },
    );
}

#[test]
fn a_log_start_that_is_asked_for_again_is_durable_too_once_that_is_answered() {
    crate::behaviour::with_partition(|context, _log, partition| async move {
        append(&partition, 0, 20, 100);
        partition.wait_synced(offset(40)).await.unwrap();
        let second = std::time::Duration::from_secs(1);
        let slow = FaultEffect::Slow(10 * second);
        context.disk.inject(Fault::on(OperationKind::Sync, slow).where_path_ends(".journal").times(1));
        // Whoever asked first has enough of it while its sync is under way.
        assert!(tokio::time::timeout(second, partition.set_log_start(offset(13))).await.is_err());
        assert!(tokio::time::timeout(second, partition.set_log_start(offset(13))).await.is_err());
        partition.set_log_start(offset(5)).await.unwrap();
        assert_eq!(partition.offsets().log_start, offset(13));
    });
}
