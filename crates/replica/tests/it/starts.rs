//! What a start keeps, and what it cuts.

use tidelog_core::cluster::Command;
use tidelog_replica::Acks;
use tidelog_sim::run;

use crate::{
    bucket::Bucket,
    node::{LOCAL, Node, append, append_all, numbered, offset, produced, read_values, sent, values},
};

#[test]
fn a_log_that_ends_below_the_bucket_begins_there_anew() {
    // T5
    run(1, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, produced(9, 0, 0, 3)).await;
                partition.roll().await.unwrap();
                append_all(&partition, sent(values(&["b"]))).await;
                let bucket = Bucket::new();
                assert_eq!(bucket.upload(&node, &partition, 1).await, 3);
                // A disk that lost its newest records behind our back.
                partition_log(&node, &partition).truncate(offset(0)).await.unwrap();
            })
            .await
            .unwrap();
        disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!((node.started.opened, node.started.reset), (1, 1));
                let partition = node.partition("t");
                let snapshot = partition.snapshot();
                assert_eq!((snapshot.log_start, snapshot.local_log_start), (offset(0), offset(3)));
                assert_eq!((snapshot.high_watermark, snapshot.log_end), (offset(3), offset(3)));
                assert_eq!(append_all(&partition, sent(values(&["c"]))).await, 3);
            })
            .await
            .unwrap();
    });
}

fn partition_log(node: &Node, partition: &tidelog_replica::PartitionHandle) -> tidelog_log::PartitionLog {
    node.log.partition(partition.place()).unwrap()
}

#[test]
fn a_topic_deleted_while_the_node_was_down_leaves_no_log() {
    run(2, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a"]))).await;
                assert!(node.replica.shutdown(crate::node::DEADLINE).await.is_empty());
                node.propose(Command::DeleteTopic { topic_id: partition.place().topic_id }).await;
                node.controller.shutdown().await;
                node.log.close().await.unwrap();
            })
            .await
            .unwrap();
        disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!((node.started.opened, node.started.deleted), (0, 1));
                assert_eq!(node.log.status().partitions, 0);
            })
            .await
            .unwrap();
    });
}

#[test]
fn acknowledged_records_survive_a_power_cut_at_any_moment() {
    // I1
    for seed in 0..20 {
        run(seed, |context| async move {
            let disk = context.disk.clone();
            let acknowledged = std::cell::RefCell::new(Vec::new());
            let created = std::cell::Cell::new(false);
            let ended = context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&context, &disk, supervisor).await;
                    let partition = node.create_topic("t", 1, &[LOCAL]).await;
                    created.set(true);
                    disk.crash_at(disk.operations() + 5 + seed * 3);
                    for index in 0..200 {
                        let name = format!("v{index}");
                        let appended = append(&partition, sent(values(&[&name])), Acks::All).await.unwrap();
                        let base = appended.base_offset.get();
                        appended.ack.wait().await.unwrap();
                        acknowledged.borrow_mut().push((base, name));
                    }
                })
                .await;
            assert!(ended.is_none() && created.get(), "the power was cut while appending");
            let disk = disk.reopen();
            context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&context, &disk, supervisor).await;
                    let read = read_values(&node.partition("t"), 0).await;
                    let acknowledged = acknowledged.borrow();
                    assert_eq!(read[..acknowledged.len()], acknowledged[..]);
                    assert_eq!(read.len() as u64, node.partition("t").snapshot().high_watermark.get());
                })
                .await
                .unwrap();
        });
    }
}

#[test]
fn a_start_with_nothing_creates_what_the_cluster_places_here() {
    run(3, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!(node.started, tidelog_replica::Started::default());
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                assert_eq!(read_values(&partition, 0).await, numbered(0, &[]));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_fence_is_lifted_by_whoever_names_the_loss_and_stays_lifted() {
    use tidelog_replica::LiftFenceError;
    use tidelog_runtime::Disk;
    run(40, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a", "b"]))).await;
                assert!(partition.fence().is_none());
                let refused = partition.lift_fence(offset(2)).await.unwrap_err();
                assert!(matches!(refused, LiftFenceError::NotFenced), "{refused:?}");
                node.stop().await;
            })
            .await
            .unwrap();
        let segment =
            disk.paths().into_iter().find(|path| path.extension().is_some_and(|kind| kind == "log"));
        disk.remove_file(&segment.unwrap()).await.unwrap();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                let fence = partition.fence().unwrap();
                assert_eq!((fence.local_log_start, fence.lost_from), (offset(0), offset(0)), "{}", fence.why);
                append(&partition, sent(values(&["c"])), Acks::All).await.unwrap_err();
                let refused = partition.lift_fence(offset(2)).await.unwrap_err();
                assert!(
                    matches!(refused, LiftFenceError::AnotherLoss { lost_from, .. } if lost_from == offset(0)),
                    "{refused:?}"
                );
                assert_eq!(partition.lift_fence(offset(0)).await.unwrap(), fence);
                assert!(partition.fence().is_none() && partition.failure().is_none());
                assert_eq!(append_all(&partition, sent(values(&["c"]))).await, 0);
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                assert!(partition.fence().is_none());
                assert_eq!(append_all(&partition, sent(values(&["d"]))).await, 1);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}
