//! The same engine on this machine's files.

use std::sync::Arc;

use tidelog_log::{DirectoryLock, Log, LogConfig, PartitionConfig, ReadError};
use tidelog_runtime::{FileDisk, FileDiskConfig, Registry, Supervisor, SystemClock};
use tidelog_types::{ByteSize, DirectoryId, Offset, OffsetRange};

use crate::support::{append, joined, offset, place, read_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_survive_stops_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::for_test();
    let disk = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
    let clock = Arc::new(SystemClock::new());
    let mut expected = Vec::new();
    for life in 0..3_u32 {
        let mut config = LogConfig::new(folder.path(), DirectoryId::from_bytes([1; 16]));
        config.lock = Some(DirectoryLock::acquire(folder.path()).unwrap());
        config.journal_file_bytes = ByteSize::mib(1);
        config.reserve_bytes = ByteSize::mib(1);
        let group = supervisor.child("life");
        let (log, recovered) =
            Log::open(config, disk.clone(), clock.clone(), group.clone(), &Registry::new()).await.unwrap();
        let partition = match recovered.first() {
            Some(found) => found.log.clone(),
            None => log.create(place(1, 0), PartitionConfig::default(), Offset::ZERO).await.unwrap(),
        };
        assert_eq!(recovered.len(), usize::from(life > 0));
        let found: Vec<_> =
            read_all(&partition, offset(0)).await.into_iter().map(|(_, _, bytes)| bytes).collect();
        assert_eq!(found, expected);
        for _ in 0..20 {
            expected.extend(append(&partition, life, 5, 3000));
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
        }
        partition.roll().await.unwrap();
        expected.extend(append(&partition, life, 5, 300));
        if life == 1 {
            log.close().await.unwrap();
        } else {
            partition.wait_synced(partition.offsets().log_end).await.unwrap();
            group.abort_all();
        }
        group.shutdown(std::time::Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_file_that_was_lost_is_noticed_by_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::for_test();
    let disk = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
    let clock = Arc::new(SystemClock::new());
    let config = || {
        let mut config = LogConfig::new(folder.path(), DirectoryId::from_bytes([1; 16]));
        config.journal_file_bytes = ByteSize::mib(1);
        config.reserve_bytes = ByteSize::ZERO;
        config
    };
    let (log, _) =
        Log::open(config(), disk.clone(), clock.clone(), supervisor.child("life"), &Registry::new())
            .await
            .unwrap();
    let partition = log.create(place(1, 0), PartitionConfig::default(), Offset::ZERO).await.unwrap();
    for _ in 0..3 {
        append(&partition, 0, 2, 3000);
        partition.roll().await.unwrap();
    }
    log.close().await.unwrap();
    std::fs::remove_file(folder.path().join(place(1, 0).to_string()).join(format!("{:020}.log", 4))).unwrap();
    let (log, recovered) =
        Log::open(config(), disk.clone(), clock.clone(), supervisor.child("life"), &Registry::new())
            .await
            .unwrap();
    let range = OffsetRange { base: offset(4), end: offset(8) };
    assert_eq!(recovered[0].report.lost, [range]);
    let partition = &recovered[0].log;
    assert_eq!(partition.read(offset(2), 9, Offset::MAX, true).await.unwrap().next, offset(4));
    assert!(matches!(partition.read(offset(4), 9, Offset::MAX, true).await, Err(ReadError::Corrupt { .. })));
    assert_eq!(read_all(partition, offset(8)).await.len(), 2);
    log.close().await.unwrap();
}

// A consumer may ask for 50 MiB at once: others' reads have their turns in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_read_is_made_in_steps_and_gives_what_was_asked_for() {
    const STEP: usize = 1 << 20;
    const INTERVAL: usize = 32 << 10;
    let folder = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::for_test();
    let disk = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
    let mut config = LogConfig::new(folder.path(), DirectoryId::from_bytes([1; 16]));
    config.reserve_bytes = ByteSize::ZERO;
    // Nothing of it stays in memory.
    config.tail_bytes = ByteSize::kib(256);
    let (log, _) =
        Log::open(config, disk, Arc::new(SystemClock::new()), supervisor.child("life"), &Registry::new())
            .await
            .unwrap();
    let partition = log.create(place(1, 0), PartitionConfig::default(), Offset::ZERO).await.unwrap();
    let mut expected = Vec::new();
    while expected.len() < 6 * STEP {
        log.append_room().await;
        for batch in append(&partition, 0, 3, 7000) {
            expected.extend_from_slice(&batch);
        }
    }
    partition.roll().await.unwrap();
    let end = partition.offsets().log_end;
    for bytes_max in [STEP / 2, 2 * STEP + 12_345, 20 * STEP] {
        let (mut at, mut found) = (Offset::ZERO, Vec::new());
        while at < end {
            let read = partition.read(at, bytes_max, Offset::MAX, true).await.unwrap();
            let bytes = joined(&read);
            assert!(bytes.len() <= bytes_max && read.next > at);
            assert!(read.chunks.iter().all(|chunk| chunk.len() <= STEP + 2 * INTERVAL), "in steps");
            // As much as fits, where there is more.
            assert!(read.next == end || bytes.len() + 22_000 > bytes_max, "{} of {bytes_max}", bytes.len());
            assert_eq!(read.base, at);
            found.extend_from_slice(&bytes);
            at = read.next;
        }
        assert!(found == expected, "{bytes_max}");
    }
    log.close().await.unwrap();
}
