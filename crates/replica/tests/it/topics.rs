//! Partitions follow the cluster's metadata.

use std::time::Duration;

use tidelog_core::{
    cluster::Command,
    partition::{FlushPolicy, Visibility},
    read_plan::Isolation,
};
use tidelog_replica::{Acks, AppendError, ReadError, Waiter};
use tidelog_sim::{Fault, FaultEffect, OperationKind, run};
use tidelog_types::{PartitionIndex, TopicName};

use crate::node::{DEADLINE, LOCAL, Node, append, append_all, numbered, offset, read_values, sent, values};

#[test]
fn a_topic_created_again_under_its_name_is_empty() {
    // T10
    run(1, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let old = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&old, sent(values(&["old"]))).await;
                let waiter = Waiter::new();
                let _registration = old.register_wake(&waiter);
                node.propose(Command::DeleteTopic { topic_id: old.place().topic_id }).await;
                node.settled().await;
                assert!(waiter.moved().await.contains(&old.place()), "who waits looks again");
                assert!(node.replica.partition(&old.place()).is_none());
                let refused = append(&old, sent(values(&["late"])), Acks::Leader).await.unwrap_err();
                assert!(matches!(refused, AppendError::Deleted));
                let (_, read) = old.read(offset(0), 100, Isolation::ReadUncommitted, true, None).await;
                assert!(matches!(read, Err(ReadError::Leadership(_))));

                let new = node.create_topic("t", 2, &[LOCAL]).await;
                assert_eq!(read_values(&new, 0).await, []);
                assert_eq!(append_all(&new, sent(values(&["new"]))).await, 0);
                logs(&node, 1).await;
            })
            .await
            .unwrap();
        disk = disk.crash();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!(read_values(&node.partition("t"), 0).await, numbered(0, &["new"]));
                assert_eq!(node.replica.usage().len(), 1);
            })
            .await
            .unwrap();
    });
}

/// Waits until so many partitions have a log.
async fn logs(node: &Node, count: usize) {
    let deleted = async {
        while node.log.status().partitions != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, deleted).await.unwrap();
}

#[test]
fn metadata_is_followed_while_the_files_of_a_deleted_topic_go() {
    run(4, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let old = node.create_topic("a", 1, &[LOCAL]).await;
                append_all(&old, sent(values(&["a"]))).await;
                let folder = old.place().to_string();
                disk.inject(
                    Fault::on(OperationKind::RemoveDir, FaultEffect::Slow(Duration::from_secs(30)))
                        .where_path(move |path| path.ends_with(&folder)),
                );
                node.propose(Command::DeleteTopic { topic_id: old.place().topic_id }).await;
                node.settled().await;
                let second = Duration::from_secs(1);
                let new = tokio::time::timeout(second, node.create_topic("b", 2, &[LOCAL])).await.unwrap();
                assert_eq!(append_all(&new, sent(values(&["b"]))).await, 0);
                assert_eq!(node.log.status().partitions, 2, "the deletion goes on");
                tokio::time::sleep(Duration::from_secs(25)).await;
                logs(&node, 1).await;
                // Another, which a kill interrupts.
                node.propose(Command::DeleteTopic { topic_id: new.place().topic_id }).await;
                node.settled().await;
            })
            .await
            .unwrap();
        disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!(node.log.status().partitions, 0);
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_topic_is_visible_only_with_all_its_partitions() {
    run(2, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let topic_id = partition.place().topic_id;
                let mut images = node.replica.watch_applied();
                node.propose(Command::CreatePartitions {
                    topic_id,
                    partition_count: 40,
                    assignments: Vec::new(),
                })
                .await;
                let name = TopicName::new("t").unwrap();
                let image = images
                    .wait_for(|image| {
                        image.topic_by_name(&name).is_some_and(|topic| topic.partitions.len() == 40)
                    })
                    .await
                    .unwrap()
                    .clone();
                for partition in 0..40 {
                    let handle = node.replica.partition_by_name(&name, PartitionIndex(partition)).unwrap();
                    assert!(handle.leading().is_some());
                }
                assert_eq!(image.index, node.replica.applied_image().index);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn settings_take_effect_with_their_image() {
    run(3, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                assert_eq!(partition.settings().flush, FlushPolicy::default());
                node.configure(&partition, "flush.messages", "1000").await;
                let relaxed = FlushPolicy { visibility: Visibility::Written, messages: Some(1_000) };
                assert_eq!(partition.settings().flush, relaxed);
                append_all(&partition, sent(values(&["a"]))).await;
                node.configure(&partition, "max.message.bytes", "10").await;
                let refused = append(&partition, sent(values(&["b"])), Acks::All).await.unwrap_err();
                assert!(matches!(refused, AppendError::Batch(_)));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}
