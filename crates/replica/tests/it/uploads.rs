//! What tiering reads, what may be deleted locally, and log starts of tiered partitions.

use tidelog_core::read_plan::{Isolation, ListOffsetsTarget};
use tidelog_format::{batch::BatchHeader, producers::ProducerSnapshot};
use tidelog_replica::{Acks, DeleteRecordsError, Fetched, PartitionHandle, ReadError, TieringError};
use tidelog_runtime::Clock;
use tidelog_sim::run;
use tidelog_types::{OffsetRange, ProducerId};

use crate::{
    bucket::Bucket,
    node::{
        DEADLINE, LOCAL, Node, append, append_all, batches, decoded, epoch, numbered, offset, produced,
        read_values, sent, timed, values,
    },
};

/// Reads everything from `from` on, from the bucket where it must.
async fn read_anywhere(partition: &PartitionHandle, from: u64) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    let mut at = offset(from);
    loop {
        let (_, fetched) = partition.read(at, 1 << 20, Isolation::ReadUncommitted, true, None).await;
        let records = match fetched.unwrap() {
            Fetched::Hot(records) => records,
            Fetched::Cold { end } => partition.read_cold(at, end, 1 << 20, true, DEADLINE).await.unwrap(),
            Fetched::AtEnd => return found,
        };
        found.extend(decoded(&batches(&records)).into_iter().filter(|(offset, _)| *offset >= at.get()));
        at = records.next;
    }
}

#[test]
fn only_sealed_synced_records_are_uploaded_and_only_uploaded_ones_leave_the_disk() {
    run(1, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let bucket = Bucket::new();
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, sent(values(&["a", "b"]))).await;
                append_all(&partition, sent(values(&["c"]))).await;
                let state = partition.upload_state().unwrap();
                assert!(state.range.is_empty(), "nothing is sealed");
                assert_eq!((state.pending.base, state.pending.end), (offset(0), offset(3)));

                partition.roll().await.unwrap();
                append_all(&partition, sent(values(&["d"]))).await;
                let range = partition.upload_state().unwrap().range;
                assert_eq!(range, OffsetRange { base: offset(0), end: offset(3) });

                let early = partition.set_local_log_start(offset(3)).await.unwrap_err();
                assert!(matches!(early, TieringError::NotTiered { allowed, .. } if allowed == offset(0)));
                assert_eq!(bucket.upload(&node, &partition, 1).await, 3);
                assert_eq!(partition.snapshot().tiered_end, offset(3));
                assert_eq!(partition.set_local_log_start(offset(3)).await.unwrap(), offset(3));
                let late = partition.set_local_log_start(offset(4)).await.unwrap_err();
                assert!(matches!(late, TieringError::NotTiered { .. }));
                assert_eq!(read_anywhere(&partition, 0).await, numbered(0, &["a", "b", "c", "d"]));
                assert_eq!(read_anywhere(&partition, 1).await, numbered(1, &["b", "c", "d"]));
                assert!(partition.upload_state().unwrap().range.is_empty());
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_producer_snapshot_holds_exactly_what_lies_below_its_end() {
    run(2, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, produced(9, 0, 0, 2)).await;
                append_all(&partition, produced(9, 0, 2, 3)).await;
                append_all(&partition, produced(8, 0, 0, 1)).await;
                for (end, expected) in
                    [(2, vec![(9, 1)]), (5, vec![(9, 4)]), (6, vec![(8, 0), (9, 4)]), (5, vec![(9, 4)])]
                {
                    let stored = partition.producer_snapshot_at(offset(end)).await.unwrap();
                    // The same from the batches at hand, where the state below them is as well.
                    let base = if end == 6 { 2 } else { 0 };
                    for at_hand in [base, 5] {
                        let range = OffsetRange { base: offset(base), end: offset(end) };
                        partition.producer_snapshot_at(offset(at_hand)).await.unwrap();
                        let read = partition.read_for_upload(range, 1 << 20).await.unwrap();
                        // In memory a header lies apart from its body.
                        let headers =
                            read.chunks.iter().step_by(2).map(|chunk| BatchHeader::peek(chunk).unwrap());
                        let behind = partition.producer_snapshot_behind(range, headers);
                        assert_eq!(
                            behind,
                            (at_hand == base).then(|| stored.clone()),
                            "{base} to {end}, at hand {at_hand}"
                        );
                    }
                    let snapshot = ProducerSnapshot::decode(&stored).unwrap();
                    assert_eq!(snapshot.end, offset(end));
                    let last = |entry: &tidelog_format::producers::ProducerEntry| {
                        entry.batches.last().unwrap().last_sequence
                    };
                    let found: Vec<(ProducerId, i32)> =
                        snapshot.entries.iter().map(|entry| (entry.producer_id, last(entry))).collect();
                    let expected: Vec<(ProducerId, i32)> =
                        expected.into_iter().map(|(id, last)| (ProducerId(id), last)).collect();
                    assert_eq!(found, expected, "below {end}");
                }
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn records_are_deleted_inside_a_segment_before_it_is_uploaded() {
    // B62
    run(3, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, sent(values(&["a", "b", "c"]))).await;
                append_all(&partition, sent(values(&["d"]))).await;
                let above = partition.delete_records(Some(offset(5))).await.unwrap_err();
                assert!(matches!(above, DeleteRecordsError::OutOfRange { high_watermark, .. } if high_watermark == offset(4)));
                assert_eq!(partition.delete_records(Some(offset(2))).await.unwrap(), offset(2));
                assert_eq!(partition.delete_records(Some(offset(1))).await.unwrap(), offset(2), "it never goes back");
                node.settled().await;
                assert_eq!(partition.image().log_start, offset(2), "it is committed");
                let (_, below) = partition.read(offset(1), 1_000, Isolation::ReadUncommitted, true, None).await;
                assert!(matches!(below, Err(ReadError::OutOfRange { .. })));
            })
            .await
            .unwrap();
        disk = disk.crash();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let bucket = Bucket::new();
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.partition("t");
                assert_eq!(partition.snapshot().log_start, offset(2));
                let earliest = partition
                    .list_offsets(ListOffsetsTarget::Earliest, Isolation::ReadUncommitted, None, DEADLINE)
                    .await;
                assert_eq!(earliest.unwrap().offset, Some(offset(2)));
                partition.roll().await.unwrap();
                let range = partition.upload_state().unwrap().range;
                assert_eq!(
                    range,
                    OffsetRange { base: offset(2), end: offset(4) },
                    "uploads go on from the log start"
                );
                assert_eq!(bucket.upload(&node, &partition, 1).await, 4);
                append_all(&partition, sent(values(&["e"]))).await;
                partition.set_local_log_start(offset(4)).await.unwrap();
                assert_eq!(read_anywhere(&partition, 2).await, numbered(2, &["c", "d", "e"]));
                assert_eq!(partition.delete_records(None).await.unwrap(), offset(5));
                node.settled().await;
                assert_eq!(partition.image().manifest.tiered_end, offset(5));
                assert_eq!(partition.upload_state().unwrap().pending.end, offset(5));
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_local_topic_deletes_records_durably_and_a_compacted_one_never() {
    // B62
    run(4, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a", "b", "c"]))).await;
                assert_eq!(partition.delete_records(Some(offset(1))).await.unwrap(), offset(1));
                let compacted = node.create_topic("c", 2, &[LOCAL, ("cleanup.policy", "compact")]).await;
                append_all(&compacted, sent(values(&["a"]))).await;
                assert!(matches!(compacted.delete_records(None).await, Err(DeleteRecordsError::Policy)));
            })
            .await
            .unwrap();
        disk = disk.crash();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                assert_eq!(partition.snapshot().log_start, offset(1));
                assert_eq!(
                    read_values(&partition, 1).await,
                    numbered(0, &["a", "b", "c"]),
                    "a batch is answered whole"
                );
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_topic_that_becomes_tiered_commits_its_log_start_first() {
    run(5, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a", "b", "c"]))).await;
                partition.delete_records(Some(offset(2))).await.unwrap();
                assert_eq!(partition.image().log_start, offset(0));
                node.configure(&partition, "remote.storage.enable", "true").await;
                node.replica
                    .wait_applied_until(|image| {
                        image.partition(&partition.place()).unwrap().log_start == offset(2)
                    })
                    .await;
                assert_eq!(partition.image().log_start, offset(2));
                assert!(partition.snapshot().tiered);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn look_ups_answer_across_the_seam_of_bucket_and_disk() {
    // B20, B64
    run(6, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let bucket = Bucket::new();
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, sent(timed(&[(100, "a"), (900, "b"), (200, "c")]))).await;
                append_all(&partition, sent(timed(&[(300, "d")]))).await;
                partition.roll().await.unwrap();
                append_all(&partition, sent(timed(&[(50, "e"), (400, "f"), (900, "g")]))).await;
                bucket.upload(&node, &partition, 1).await;
                partition.set_local_log_start(offset(4)).await.unwrap();
                let list = async |target| {
                    let listed = partition
                        .list_offsets(target, Isolation::ReadUncommitted, None, DEADLINE)
                        .await
                        .unwrap();
                    (listed.offset.map(|at| at.get()), listed.timestamp.map(|at| at.as_millis()))
                };
                let at = |millis| ListOffsetsTarget::Time(crate::node::time(millis));
                assert_eq!(list(at(0)).await, (Some(0), Some(100)));
                assert_eq!(list(at(101)).await, (Some(1), Some(900)));
                assert_eq!(list(at(901)).await, (None, None));
                assert_eq!(
                    list(ListOffsetsTarget::MaxTimestamp).await,
                    (Some(1), Some(900)),
                    "of equals the first"
                );
                assert_eq!(list(ListOffsetsTarget::EarliestLocal).await, (Some(4), None));
                assert_eq!(list(ListOffsetsTarget::LatestTiered).await, (Some(3), None));
                assert_eq!(list(ListOffsetsTarget::EarliestPendingUpload).await, (Some(4), None));

                // A log start that cuts the cold batch: what lies below it is no answer any more.
                partition.delete_records(Some(offset(2))).await.unwrap();
                assert_eq!(list(at(101)).await, (Some(2), Some(200)));
                assert_eq!(list(at(301)).await, (Some(5), Some(400)));
                assert_eq!(list(ListOffsetsTarget::MaxTimestamp).await, (Some(6), Some(900)));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_tiered_log_that_lost_its_disk_begins_at_the_tiered_end() {
    // T5, B98
    run(7, |context| async move {
        let mut disk = context.disk.clone();
        let bucket = Bucket::new();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.create_topic("t", 1, &[]).await;
                append_all(&partition, sent(values(&["a", "b"]))).await;
                partition.roll().await.unwrap();
                append_all(&partition, sent(values(&["c"]))).await;
                bucket.upload(&node, &partition, 1).await;
                // The node forgets the partition's log: a disk of its own would be lost like that.
                node.log.delete(partition.place()).await.unwrap();
            })
            .await
            .unwrap();
        disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                node.replica.set_cold_reader(bucket.clone());
                let partition = node.partition("t");
                assert_eq!(node.started.created, 1);
                let snapshot = partition.snapshot();
                assert_eq!(
                    (snapshot.log_start, snapshot.local_log_start, snapshot.log_end),
                    (offset(0), offset(2), offset(2))
                );
                assert_eq!(append_all(&partition, sent(values(&["d"]))).await, 2);
                assert_eq!(read_anywhere(&partition, 0).await, numbered(0, &["a", "b", "d"]));
                let end = partition.offset_for_leader_epoch(epoch(0), None, DEADLINE).await.unwrap();
                assert_eq!(end, Some((epoch(0), offset(2))), "the bucket knows older epochs (B61)");
            })
            .await
            .unwrap();
    });
}

#[test]
fn retention_of_a_local_topic_never_passes_the_high_watermark() {
    // B67
    run(8, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL, ("retention.ms", "1000")]).await;
                let now = context.clock.wall().as_millis();
                append_all(&partition, sent(timed(&[(now, "a")]))).await;
                partition.roll().await.unwrap();
                append_all(&partition, sent(timed(&[(now, "b")]))).await;
                assert_eq!(partition.apply_retention().await.unwrap(), 0);
                context.clock.jump_ms(10_000);
                assert!(partition.apply_retention().await.unwrap() > 0);
                let snapshot = partition.snapshot();
                assert_eq!((snapshot.log_start, snapshot.high_watermark), (offset(2), offset(2)));
                let appended = append(&partition, sent(timed(&[(now, "c")])), Acks::All).await.unwrap();
                assert_eq!(appended.base_offset, offset(2));
                appended.ack.wait().await.unwrap();
                node.stop().await;
            })
            .await
            .unwrap();
    });
}
