//! Regions of the offset space, and waiting for records.

use std::collections::BTreeSet;

use tidelog_core::read_plan::{Isolation, LeadershipMismatch};
use tidelog_replica::{Acks, Fetched, ReadError, TieringError, Waiter};
use tidelog_sim::{SimDisk, run};

use crate::{
    bucket::Bucket,
    node::{
        DEADLINE, LOCAL, Node, append, append_all, batches, decoded, epoch, numbered, offset, sent, timed,
        values,
    },
};

#[test]
fn only_offsets_outside_of_the_log_are_out_of_range() {
    // B56, B65
    run(1, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a", "b", "c", "d"]))).await;
                partition.delete_records(Some(offset(2))).await.unwrap();
                let read = async |at| {
                    let (snapshot, fetched) =
                        partition.read(offset(at), 1_000, Isolation::ReadUncommitted, true, None).await;
                    assert_eq!((snapshot.log_start, snapshot.high_watermark), (offset(2), offset(4)));
                    fetched
                };
                assert!(matches!(read(1).await, Err(ReadError::OutOfRange { .. })));
                assert!(matches!(read(2).await, Ok(Fetched::Hot(_))));
                assert!(matches!(read(4).await, Ok(Fetched::AtEnd)));
                assert!(matches!(read(5).await, Err(ReadError::OutOfRange { .. })));
                let (_, newer) =
                    partition.read(offset(2), 1_000, Isolation::ReadUncommitted, true, Some(epoch(99))).await;
                assert!(matches!(newer, Err(ReadError::Leadership(LeadershipMismatch::UnknownEpoch))));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_batch_larger_than_the_limit_is_answered_when_one_is_asked_for() {
    run(2, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&[&"x".repeat(500)]))).await;
                let read = async |one| {
                    let (_, fetched) =
                        partition.read(offset(0), 100, Isolation::ReadUncommitted, one, None).await;
                    let Ok(Fetched::Hot(records)) = fetched else { panic!("{fetched:?}") };
                    records.bytes()
                };
                assert!(read(true).await > 500);
                assert_eq!(read(false).await, 0);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn one_waiter_is_told_which_of_its_partitions_moved() {
    run(3, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let first = node.create_topic("a", 1, &[LOCAL]).await;
                let second = node.create_topic("b", 2, &[LOCAL]).await;
                let waiter = Waiter::new();
                let registrations = [first.register_wake(&waiter), second.register_wake(&waiter)];
                let mut moved = Box::pin(waiter.moved());
                assert!(futures::poll!(moved.as_mut()).is_pending());
                append(&second, sent(values(&["a"])), Acks::None).await.unwrap().ack.wait().await.unwrap();
                assert_eq!(moved.await, BTreeSet::from([second.place()]));
                assert_eq!(second.snapshot().high_watermark, offset(1), "it is told of what can be read");

                append_all(&first, sent(values(&["a"]))).await;
                append_all(&second, sent(values(&["b"]))).await;
                assert_eq!(waiter.moved().await, BTreeSet::from([first.place(), second.place()]));
                drop(registrations);
                append_all(&first, sent(values(&["b"]))).await;
                assert!(futures::poll!(Box::pin(waiter.moved())).is_pending());
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

/// Flips a bit in the newest bytes of every sealed segment of the node.
fn damage_sealed_segments(disk: &SimDisk) {
    let segments: Vec<_> = disk
        .paths()
        .into_iter()
        .filter(|path| path.to_string_lossy().ends_with("00000000000000000000.log"))
        .collect();
    assert!(!segments.is_empty(), "{:?}", disk.paths());
    for segment in segments {
        let length = disk.contents(&segment).unwrap().len() as u64;
        disk.flip_bit(&segment, length - 1, 3).unwrap();
    }
}

#[test]
fn a_damaged_segment_is_read_from_the_bucket_and_never_served_or_uploaded() {
    // I2
    run(4, |context| async move {
        let disk = context.disk.clone();
        let bucket = Bucket::new();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let tiered = node.create_topic("tiered", 1, &[]).await;
                let local = node.create_topic("local", 2, &[LOCAL]).await;
                let waiting = node.create_topic("waiting", 3, &[]).await;
                for partition in [&tiered, &local, &waiting] {
                    append_all(partition, sent(timed(&[(100, "a"), (200, "b")]))).await;
                    partition.roll().await.unwrap();
                    append_all(partition, sent(timed(&[(300, "c")]))).await;
                }
                bucket.upload(&node, &tiered, 1).await;
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        damage_sealed_segments(&disk);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                node.replica.set_cold_reader(bucket.clone());
                let tiered = node.partition("tiered");
                let (_, fetched) =
                    tiered.read(offset(0), 1_000, Isolation::ReadUncommitted, true, None).await;
                let Ok(Fetched::Cold { end }) = fetched else { panic!("{fetched:?}") };
                assert_eq!(end, offset(2));
                let records = tiered.read_cold(offset(0), end, 1_000, true, DEADLINE).await.unwrap();
                assert_eq!(decoded(&batches(&records)), numbered(0, &["a", "b"]));
                let (_, fetched) =
                    tiered.read(offset(2), 1_000, Isolation::ReadUncommitted, true, None).await;
                assert!(matches!(fetched, Ok(Fetched::Hot(_))), "{fetched:?}");

                let local = node.partition("local");
                let (_, fetched) = local.read(offset(0), 1_000, Isolation::ReadUncommitted, true, None).await;
                assert!(matches!(fetched, Err(ReadError::Storage(_))), "{fetched:?}");
                let waiting = node.partition("waiting");
                let range = waiting.upload_state().unwrap().range;
                let refused = waiting.read_for_upload(range, 1_000).await.unwrap_err();
                assert!(matches!(refused, TieringError::Read(_)), "{refused:?}");
            })
            .await
            .unwrap();
    });
}
