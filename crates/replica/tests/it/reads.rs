//! Regions of the offset space, and waiting for records.

use std::collections::BTreeSet;

use tidelog_core::read_plan::{Isolation, LeadershipMismatch};
use tidelog_replica::{Acks, Fetched, ReadError, Waiter};
use tidelog_sim::run;

use crate::node::{LOCAL, Node, append, append_all, epoch, offset, sent, values};

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
