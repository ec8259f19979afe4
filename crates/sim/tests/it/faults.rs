use std::{io, path::Path, time::Duration};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskSpace, Lane, OpenMode};
use tidelog_sim::{Fault, FaultEffect, OperationKind, run};

const F: &str = "/f";

fn chunk(length: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![b'x'; length])]
}

#[test]
fn a_failed_sync_is_not_made_good_by_a_later_one() {
    let mut lost = 0;
    for seed in 0..50 {
        lost += run(seed, |context| async move {
            let disk = context.disk.clone();
            let file = disk.open(Path::new(F), OpenMode::CreateNew, Lane::Journal).await.unwrap();
            disk.sync_dir(Path::new("/")).await.unwrap();
            disk.inject(Fault::on(OperationKind::Sync, FaultEffect::EIO).after(1).times(1));
            file.write_at(0, chunk(512)).await.unwrap();
            file.sync_data().await.unwrap();
            file.write_at(512, chunk(512)).await.unwrap();
            assert_eq!(file.sync_data().await.unwrap_err().raw_os_error(), Some(5));
            file.sync_data().await.unwrap();
            assert_eq!(disk.contents(Path::new(F)).unwrap().len(), 1024, "the page cache still has it");
            let survived = disk.crash().contents(Path::new(F)).unwrap();
            assert_eq!(survived[..512], [b'x'; 512]);
            u32::from(survived != [b'x'; 1024])
        });
    }
    assert!(lost > 10, "{lost} of 50 lost what the failed sync had covered");
}

#[test]
fn a_full_disk_takes_what_fits_and_gives_room_back() {
    run(1, |context| async move {
        let disk = context.disk.clone();
        disk.set_capacity(Some(1_000));
        let file = disk.open(Path::new(F), OpenMode::CreateNew, Lane::Background).await.unwrap();
        file.allocate(600).await.unwrap();
        assert_eq!(disk.space(Path::new("/")).await.unwrap(), DiskSpace { total: 1_000, free: 400 });
        file.write_at(0, chunk(600)).await.unwrap();
        let refused = file.write_at(500, chunk(700)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len().await.unwrap(), 1_000, "what fits was written");
        assert_eq!(file.allocate(1_001).await.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let other = disk.open(Path::new("/g"), OpenMode::CreateNew, Lane::Background).await.unwrap();
        assert_eq!(other.write_at(0, chunk(1)).await.unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.remove_file(Path::new(F)).await.unwrap();
        assert_eq!(disk.space(Path::new("/")).await.unwrap().free, 0, "an open file keeps its blocks");
        drop(file);
        assert_eq!(disk.space(Path::new("/")).await.unwrap().free, 1_000);
        other.write_at(0, chunk(1)).await.unwrap();
    });
}

#[test]
fn faults_meet_the_operations_they_name() {
    run(2, |context| async move {
        let disk = context.disk.clone();
        disk.inject(
            Fault::on(OperationKind::Write, FaultEffect::ENOSPC).where_path_ends(".log").after(1).times(2),
        );
        let log = disk.open(Path::new("/0.log"), OpenMode::CreateNew, Lane::Background).await.unwrap();
        let index = disk.open(Path::new("/0.index"), OpenMode::CreateNew, Lane::Background).await.unwrap();
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            index.write_at(0, chunk(1)).await.unwrap();
            outcomes.push(log.write_at(0, chunk(1)).await.is_ok());
        }
        assert_eq!(outcomes, [true, false, false, true]);
        disk.inject(Fault::on(OperationKind::Open, FaultEffect::EIO));
        assert!(disk.open(Path::new("/0.log"), OpenMode::Read, Lane::Read).await.is_err());
        disk.clear_faults();
        assert!(disk.open(Path::new("/0.log"), OpenMode::Read, Lane::Read).await.is_ok());
    });
}

#[test]
fn a_failed_write_may_have_written_a_part() {
    let lengths: std::collections::BTreeSet<usize> = (0..50)
        .map(|seed| {
            run(seed, |context| async move {
                let file = context.disk.open(Path::new(F), OpenMode::CreateNew, Lane::Journal).await.unwrap();
                context.disk.inject(Fault::on(OperationKind::Write, FaultEffect::EIO));
                file.write_at(0, chunk(3)).await.unwrap_err();
                context.disk.contents(Path::new(F)).unwrap().len()
            })
        })
        .collect();
    assert_eq!(lengths, (0..=3).collect());
}

#[test]
fn a_read_may_be_rotten_once_and_a_stored_bit_for_good() {
    run(4, |context| async move {
        let disk = context.disk.clone();
        let file = disk.open(Path::new(F), OpenMode::CreateNew, Lane::Read).await.unwrap();
        file.write_at(0, vec![Bytes::from_static(&[0; 8])]).await.unwrap();
        disk.inject(Fault::on(OperationKind::Read, FaultEffect::FlipBit).times(1));
        let flipped = |bytes: Bytes| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        assert_eq!(flipped(file.read_at(0, 8).await.unwrap()), 1);
        assert_eq!(flipped(file.read_at(0, 8).await.unwrap()), 0);
        disk.flip_bit(Path::new(F), 5, 3).unwrap();
        assert_eq!(file.read_at(0, 8).await.unwrap()[..], [0, 0, 0, 0, 0, 8, 0, 0]);
        file.sync_data().await.unwrap();
        assert_eq!(disk.durable_contents(Path::new(F)).unwrap(), [0, 0, 0, 0, 0, 8, 0, 0]);
        assert_eq!(disk.flip_bit(Path::new(F), 8, 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_slow_operation_holds_up_the_journal_and_a_lost_write_is_answered() {
    run(5, |context| async move {
        let disk = context.disk.clone();
        let file = disk.open(Path::new(F), OpenMode::CreateNew, Lane::Journal).await.unwrap();
        disk.inject(Fault::on(OperationKind::Write, FaultEffect::Slow(Duration::from_secs(60))).times(1));
        disk.inject(Fault::on(OperationKind::Write, FaultEffect::Lie).times(1));
        let start = tokio::time::Instant::now();
        drop(file.write_at(0, chunk(1)));
        file.write_at(1, chunk(9)).await.unwrap();
        assert!(start.elapsed() > Duration::from_secs(60));
        assert_eq!(disk.contents(Path::new(F)).unwrap(), b"x", "the second write was lost");
    });
}
