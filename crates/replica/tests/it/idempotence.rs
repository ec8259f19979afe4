//! Retries, gaps and epochs of idempotent producers, before and after restarts.

use tidelog_core::{cluster::Command, partition::AppendRefusal, producers::ProducerError};
use tidelog_replica::{Acks, AppendError, PartitionHandle};
use tidelog_sim::{Context, Fault, FaultEffect, OperationKind, SimDisk, run};
use tidelog_types::{ProducerEpoch, ProducerId, TopicName};

use crate::node::{DEADLINE, LOCAL, Node, Options, append, append_all, offset, produced, read_values};

async fn refused(partition: &PartitionHandle, records: bytes::Bytes) -> ProducerError {
    match append(partition, records, Acks::All).await.unwrap_err() {
        AppendError::Refused(AppendRefusal::Producer(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Five batches of ten, sent again: each answers where the original is.
async fn repeat(partition: &PartitionHandle) {
    for batch in 0..5 {
        let appended = append(partition, produced(9, 0, batch * 10, 10), Acks::All).await.unwrap();
        assert!(appended.duplicate);
        assert_eq!(appended.base_offset, offset(u64::try_from(batch).unwrap() * 10));
        appended.ack.wait().await.unwrap();
    }
}

fn restarts_keep_producers(seed: u64, end: fn(&SimDisk) -> SimDisk, clean: bool) {
    run(seed, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                for batch in 0..5 {
                    append_all(&partition, produced(9, 0, batch * 10, 10)).await;
                }
                repeat(&partition).await;
                assert_eq!(partition.snapshot().log_end, offset(50));
                if clean {
                    node.stop().await;
                }
            })
            .await
            .unwrap();
        let disk = end(&disk);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                repeat(&partition).await;
                assert_eq!(
                    refused(&partition, produced(9, 0, 51, 1)).await,
                    ProducerError::OutOfOrder { producer_id: ProducerId(9), last: Some(49), given: 51 }
                );
                assert_eq!(append_all(&partition, produced(9, 0, 50, 1)).await, 50);
                assert_eq!(read_values(&partition, 0).await.len(), 51, "each record is there once");
            })
            .await
            .unwrap();
    });
}

// Found by the campaign of a full disk: librdkafka took a new epoch five times a second while it lasted.
#[test]
fn what_is_sent_behind_a_batch_that_found_no_space_is_to_be_sent_again_too() {
    run(21, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, produced(9, 0, 0, 10)).await;
                disk.inject(Fault::on(OperationKind::Write, FaultEffect::ENOSPC).where_path_ends(".log"));
                let try_append =
                    async |sequence| append(&partition, produced(9, 0, sequence, 10), Acks::All).await;
                let mut others = 0;
                while append(&partition, produced(8, 0, others, 10), Acks::All).await.is_ok() {
                    others += 10;
                    assert!(others < 1_000, "a full disk refuses");
                    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                }
                assert!(matches!(try_append(20).await, Err(AppendError::NoSpace)));
                assert!(matches!(try_append(10).await, Err(AppendError::NoSpace)));
                disk.clear_faults();
                tokio::time::sleep(std::time::Duration::from_secs(4)).await;
                let gap = ProducerError::OutOfOrder { producer_id: ProducerId(9), last: Some(9), given: 20 };
                assert_eq!(refused(&partition, produced(9, 0, 20, 10)).await, gap);
                let next = 10 + u64::try_from(others).unwrap();
                assert_eq!(append_all(&partition, produced(9, 0, 10, 10)).await, next);
                assert_eq!(append_all(&partition, produced(9, 0, 20, 10)).await, next + 10);
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_repeated_batch_is_recognised_after_a_clean_restart() {
    // B23, B28
    restarts_keep_producers(1, SimDisk::kill, true);
}

#[test]
fn a_repeated_batch_is_recognised_after_a_kill() {
    // B23
    restarts_keep_producers(2, SimDisk::kill, false);
}

#[test]
fn a_repeated_batch_is_recognised_after_a_power_cut() {
    // B23
    restarts_keep_producers(3, SimDisk::crash, false);
}

/// Flips a bit in every file of this kind, and answers how many there were.
fn damage(disk: &SimDisk, kind: &str) -> usize {
    let paths: Vec<_> =
        disk.paths().into_iter().filter(|path| path.extension().is_some_and(|found| found == kind)).collect();
    for path in &paths {
        let length = disk.contents(path).unwrap().len() as u64;
        disk.flip_bit(path, length - 1, 3).unwrap();
    }
    paths.len()
}

#[test]
fn a_repeated_batch_is_recognised_without_any_stored_state() {
    run(20, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                for batch in 0..5 {
                    append_all(&partition, produced(9, 0, batch * 10, 10)).await;
                }
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        assert!(damage(&disk, "snapshot") > 0, "{:?}", disk.paths());
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                repeat(&partition).await;
                assert_eq!(append_all(&partition, produced(9, 0, 50, 1)).await, 50);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_partition_whose_producers_cannot_be_known_takes_no_appends() {
    run(21, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, produced(9, 0, 0, 10)).await;
                partition.roll().await.unwrap();
                append_all(&partition, produced(9, 0, 10, 10)).await;
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        assert!(damage(&disk, "snapshot") > 0 && damage(&disk, "log") == 2, "{:?}", disk.paths());
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                let why = append(&partition, produced(9, 0, 0, 10), Acks::All).await.unwrap_err();
                assert!(matches!(why, AppendError::Storage(_)), "{why:?}");
                assert!(partition.failure().is_some());
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_duplicate_of_a_batch_in_flight_waits_for_the_original() {
    run(4, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let original = append(&partition, produced(9, 0, 0, 3), Acks::All).await.unwrap();
                let duplicate = append(&partition, produced(9, 0, 0, 3), Acks::All).await.unwrap();
                assert!(duplicate.duplicate && duplicate.base_offset == original.base_offset);
                let mut waiting = Box::pin(duplicate.ack.wait());
                assert!(futures::poll!(waiting.as_mut()).is_pending(), "the original is not durable yet");
                original.ack.wait().await.unwrap();
                waiting.await.unwrap();
                assert_eq!(partition.snapshot().high_watermark, offset(3));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_failed_sync_leaves_the_original_and_its_duplicate_unknown() {
    use tidelog_sim::{Fault, FaultEffect, OperationKind};
    run(5, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, produced(9, 0, 0, 1)).await;
                disk.inject(Fault::on(OperationKind::Sync, FaultEffect::Errno(5)));
                let original = append(&partition, produced(9, 0, 1, 1), Acks::All).await.unwrap();
                let duplicate = append(&partition, produced(9, 0, 1, 1), Acks::All).await.unwrap();
                assert!(original.ack.wait().await.is_err());
                assert!(duplicate.ack.wait().await.is_err());
                assert_eq!(
                    partition.snapshot().high_watermark,
                    offset(1),
                    "what is not synced is never shown"
                );
                let after = append(&partition, produced(9, 0, 2, 1), Acks::Leader).await.unwrap_err();
                assert!(matches!(after, AppendError::Storage(_)), "{after:?}");
            })
            .await
            .unwrap();
    });
}

#[test]
fn epochs_fence_as_kafkas_do() {
    // B26
    run(6, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, produced(9, 0, 0, 10)).await;
                assert_eq!(append_all(&partition, produced(9, 1, 0, 1)).await, 10);
                assert_eq!(
                    refused(&partition, produced(9, 0, 10, 1)).await,
                    ProducerError::Fenced {
                        producer_id: ProducerId(9),
                        current: ProducerEpoch(1),
                        given: ProducerEpoch(0)
                    }
                );
                assert_eq!(
                    refused(&partition, produced(9, 2, 5, 1)).await,
                    ProducerError::OutOfOrder { producer_id: ProducerId(9), last: Some(0), given: 5 }
                );
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

async fn idle_producer(
    context: &Context,
    disk: &SimDisk,
    between: impl AsyncFnOnce(&Node, &PartitionHandle),
) {
    context
        .life(disk, async |supervisor| {
            let options = Options::with("producer.id.expiration.ms", "10000");
            let node = Node::start_with(context, disk, supervisor, options).await;
            let partition = node.create_topic("t", 1, &[LOCAL]).await;
            append_all(&partition, produced(9, 0, 0, 2)).await;
            between(&node, &partition).await;
            assert_eq!(append_all(&partition, produced(9, 0, 2, 2)).await, 2);
            assert_eq!(append_all(&partition, produced(9, 0, 4, 2)).await, 4);
            node.stop().await;
        })
        .await
        .unwrap();
}

#[test]
fn an_idle_producer_that_expired_comes_back() {
    // B25
    run(7, |context| async move {
        let disk = context.disk.clone();
        idle_producer(&context, &disk, async |_, partition| {
            assert_eq!(partition.producers().len(), 1);
            tokio::time::sleep(std::time::Duration::from_secs(130)).await;
            assert_eq!(partition.producers().len(), 0, "it is forgotten");
        })
        .await;
    });
}

#[test]
fn an_idle_producer_comes_back_after_its_records_were_deleted() {
    // B25
    run(8, |context| async move {
        let disk = context.disk.clone();
        idle_producer(&context, &disk, async |_, partition| {
            assert_eq!(partition.delete_records(None).await.unwrap(), offset(2));
        })
        .await;
    });
}

#[test]
fn an_idle_producer_comes_back_after_a_restart_without_its_records() {
    // B25
    run(9, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, produced(9, 0, 0, 2)).await;
                partition.delete_records(None).await.unwrap();
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                assert_eq!(partition.snapshot().log_start, offset(2));
                assert_eq!(append_all(&partition, produced(9, 0, 2, 2)).await, 2);
                assert_eq!(partition.topic(), &TopicName::new("t").unwrap());
            })
            .await
            .unwrap();
    });
}

/// The batches that a producer's state could be rebuilt from leave the node, which is then killed: a retry is still one.
fn producers_outlive_their_records(
    seed: u64,
    leave: impl AsyncFnOnce(&Node, &PartitionHandle) + 'static,
    end: fn(&SimDisk) -> SimDisk,
) {
    run(seed, move |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                for batch in 0..3 {
                    append_all(&partition, produced(9, 0, batch * 10, 10)).await;
                }
                leave(&node, &partition).await;
            })
            .await
            .unwrap();
        let disk = end(&disk);
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                let appended = append(&partition, produced(9, 0, 20, 10), Acks::All).await.unwrap();
                assert_eq!((appended.duplicate, appended.base_offset), (true, offset(20)));
                assert_eq!(
                    refused(&partition, produced(9, 0, 31, 1)).await,
                    ProducerError::OutOfOrder { producer_id: ProducerId(9), last: Some(29), given: 31 }
                );
                let end = partition.snapshot().log_end.get();
                assert_eq!(append_all(&partition, produced(9, 0, 30, 1)).await, end);
            })
            .await
            .unwrap();
    });
}

async fn evict(_: &Node, partition: &PartitionHandle) {
    partition.roll().await.unwrap();
    append_all(partition, produced(10, 0, 0, 1)).await;
    assert_eq!(partition.delete_records(Some(offset(30))).await.unwrap(), offset(30));
    assert_eq!(partition.snapshot().local_log_start, offset(30), "their segment is gone");
}

#[test]
fn a_repeated_batch_is_recognised_after_its_segment_left_and_a_kill() {
    producers_outlive_their_records(11, evict, SimDisk::kill);
}

#[test]
fn a_repeated_batch_is_recognised_after_its_segment_left_and_a_power_cut() {
    producers_outlive_their_records(12, evict, SimDisk::crash);
}

#[test]
fn a_repeated_batch_is_recognised_after_its_records_were_deleted_from_the_journal_and_a_kill() {
    let deleted = async |_: &Node, partition: &PartitionHandle| {
        assert_eq!(partition.delete_records(None).await.unwrap(), offset(30));
    };
    producers_outlive_their_records(13, deleted, SimDisk::kill);
}

// The controller has the log start and the log's own entry is lost: the next start makes it, and must not lose the producers.
#[test]
fn a_repeated_batch_is_recognised_after_a_start_that_moved_the_log_start_over_it() {
    run(14, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                for batch in 0..3 {
                    append_all(&partition, produced(9, 0, batch * 10, 10)).await;
                }
                let (place, leader_epoch) = (partition.place(), partition.leading().unwrap());
                assert!(node.replica.shutdown(DEADLINE).await.is_empty());
                node.propose(Command::AdvanceLogStart { place, leader_epoch, to: offset(30) }).await;
                assert_eq!(node.log.partition(place).unwrap().offsets().log_start, offset(0));
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                assert_eq!(partition.snapshot().log_start, offset(30));
                let log = node.log.partition(partition.place()).unwrap();
                assert_eq!(log.offsets().log_start, offset(30));
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                let appended = append(&partition, produced(9, 0, 20, 10), Acks::All).await.unwrap();
                assert_eq!((appended.duplicate, appended.base_offset), (true, offset(20)));
                assert_eq!(append_all(&partition, produced(9, 0, 30, 1)).await, 30);
            })
            .await
            .unwrap();
    });
}
