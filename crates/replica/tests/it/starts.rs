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

/// The only segment file of a node's one partition.
fn segment_file(disk: &tidelog_sim::SimDisk) -> std::path::PathBuf {
    let mut files =
        disk.paths().into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "log"));
    let file = files.next().unwrap();
    assert_eq!(files.next(), None);
    file
}

/// A partition with three records in a segment that is damaged, and two more that only the journal has.
async fn journal_behind_damage(
    context: &tidelog_sim::Context,
    bucket: Option<&Bucket>,
) -> tidelog_sim::SimDisk {
    let disk = context.disk.clone();
    let written = async |supervisor| {
        let node = Node::start(context, &disk, supervisor).await;
        let local = [LOCAL];
        let partition = node.create_topic("t", 1, if bucket.is_some() { &[] } else { &local }).await;
        append_all(&partition, produced(9, 0, 0, 3)).await;
        partition.roll().await.unwrap();
        if let Some(bucket) = bucket {
            assert_eq!(bucket.upload(&node, &partition, 1).await, 3);
        }
        node.stop().await;
    };
    context.life(&disk, written).await.unwrap();
    let journaled = async |supervisor| {
        let node = Node::start(context, &disk, supervisor).await;
        append_all(&node.partition("t"), sent(values(&["d", "e"]))).await;
    };
    context.life(&disk, journaled).await.unwrap();
    let disk = disk.kill();
    disk.flip_bit(&segment_file(&disk), 100, 3).unwrap();
    disk
}

// Found by the campaign of flipped bits: the local log began anew where the bucket ends, and what the journal held behind that
// was gone.
#[test]
fn what_the_journal_holds_survives_damage_of_what_the_bucket_holds() {
    run(41, |context| async move {
        let bucket = Bucket::new();
        let disk = journal_behind_damage(&context, Some(&bucket)).await;
        for expected in 5..7 {
            let found = async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.partition("t");
                assert_eq!((node.started.reset, partition.fence()), (0, None));
                assert_eq!(read_values(&partition, 3).await[..2], numbered(3, &["d", "e"]));
                let records =
                    partition.read_cold(offset(0), offset(3), 1_000, true, crate::node::DEADLINE).await;
                assert_eq!(records.unwrap().next, offset(3), "the bucket has them");
                assert_eq!(append_all(&partition, sent(values(&["f"]))).await, expected);
                partition.roll().await.unwrap();
                assert_eq!(bucket.upload(&node, &partition, expected).await, expected + 1);
                partition.producer_snapshot_at(offset(expected + 1)).await.unwrap();
                node.stop().await;
            };
            context.life(&disk, found).await.unwrap();
        }
    });
}

#[test]
fn what_the_journal_holds_behind_what_is_nowhere_is_read_and_stays_when_the_loss_is_accepted() {
    run(42, |context| async move {
        let disk = journal_behind_damage(&context, None).await;
        let accepted = async |supervisor| {
            let node = Node::start(&context, &disk, supervisor).await;
            let partition = node.partition("t");
            let fence = partition.fence().unwrap();
            assert_eq!((fence.lost_from, fence.lost_to), (offset(0), Some(offset(3))));
            assert_eq!(read_values(&partition, 3).await, numbered(3, &["d", "e"]));
            append(&partition, sent(values(&["f"])), Acks::All).await.unwrap_err();
            assert_eq!(partition.lift_fence(offset(0)).await.unwrap(), fence);
            assert_eq!(append_all(&partition, sent(values(&["f"]))).await, 5);
            assert_eq!(read_values(&partition, 0).await, numbered(3, &["d", "e", "f"]), "over the hole");
        };
        context.life(&disk, accepted).await.unwrap();
        let disk = disk.kill();
        let after = async |supervisor| {
            let node = Node::start(&context, &disk, supervisor).await;
            let partition = node.partition("t");
            assert_eq!(partition.fence(), None);
            assert_eq!(read_values(&partition, 0).await, numbered(3, &["d", "e", "f"]));
        };
        context.life(&disk, after).await.unwrap();
    });
}

#[test]
fn a_log_that_lost_more_than_the_bucket_holds_is_fenced_where_the_bucket_ends() {
    use tidelog_runtime::Disk;
    for more in [0, 2] {
        run(43, |context| async move {
            let (disk, bucket) = (context.disk.clone(), Bucket::new());
            let written = async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, sent(values(&["a", "b", "c"]))).await;
                partition.roll().await.unwrap();
                assert_eq!(bucket.upload(&node, &partition, 1).await, 3);
                if more > 0 {
                    append_all(&partition, sent(values(&["d", "e"]))).await;
                }
                node.stop().await;
            };
            context.life(&disk, written).await.unwrap();
            for path in disk.paths().iter().filter(|path| path.extension().is_some_and(|kind| kind == "log"))
            {
                disk.remove_file(path).await.unwrap();
            }
            for life in 0..2 {
                let found = async |supervisor| {
                    let node = Node::start(&context, &disk, supervisor).await;
                    let partition = node.partition("t");
                    assert_eq!(node.started.reset, usize::from(life == 0));
                    let fence = partition.fence().map(|fence| (fence.lost_from, fence.lost_to));
                    assert_eq!(fence, (more > 0).then_some((offset(3), None)), "life {life}");
                    node.stop().await;
                };
                context.life(&disk, found).await.unwrap();
            }
        });
    }
}

// Lifting a fence once gave up every hole, also what the bucket has: a read went over it.
#[test]
fn what_the_bucket_holds_of_a_hole_is_read_after_the_rest_of_it_is_given_up() {
    use tidelog_runtime::Disk;
    run(44, |context| async move {
        let (disk, bucket) = (context.disk.clone(), Bucket::new());
        let written = async |supervisor| {
            let node = Node::start(&context, &disk, supervisor).await;
            let partition = node.create_topic("t", 1, &[]).await;
            for names in [["a", "b"], ["c", "d"], ["e", "f"]] {
                append_all(&partition, sent(values(&names))).await;
                partition.roll().await.unwrap();
                if names[0] == "a" {
                    assert_eq!(bucket.upload(&node, &partition, 1).await, 2);
                }
            }
            node.stop().await;
        };
        context.life(&disk, written).await.unwrap();
        let mut files: Vec<_> = disk.paths();
        files.retain(|path| path.extension().is_some_and(|kind| kind == "log"));
        files.sort();
        for path in &files[..2] {
            disk.remove_file(path).await.unwrap();
        }
        let lifted = async |supervisor| {
            let node = Node::start(&context, &disk, supervisor).await;
            node.replica.set_cold_reader(bucket.clone());
            let partition = node.partition("t");
            let fence = partition.fence().unwrap();
            assert_eq!((fence.lost_from, fence.lost_to), (offset(2), Some(offset(4))));
            partition.lift_fence(offset(2)).await.unwrap();
            assert_eq!(append_all(&partition, sent(values(&["g"]))).await, 6);
            node.stop().await;
        };
        context.life(&disk, lifted).await.unwrap();
        let disk = disk.kill();
        let after = async |supervisor| {
            let node = Node::start(&context, &disk, supervisor).await;
            node.replica.set_cold_reader(bucket.clone());
            let partition = node.partition("t");
            assert_eq!(partition.fence(), None);
            let isolation = tidelog_core::read_plan::Isolation::ReadUncommitted;
            let (_, fetched) = partition.read(offset(0), 1_000, isolation, true, None).await;
            let fetched = fetched.unwrap();
            let tidelog_replica::Fetched::Cold { end } = fetched else { panic!("{fetched:?}") };
            assert_eq!(end, offset(2));
            assert_eq!(read_values(&partition, 2).await, numbered(4, &["e", "f", "g"]));
        };
        context.life(&disk, after).await.unwrap();
    });
}
