//! What is stored of what was sent, and what is refused.

use std::time::Duration;

use tidelog_core::{
    partition::AppendRefusal,
    read_plan::{Isolation, ListOffsetsTarget},
};
use tidelog_format::{
    batch::{
        BATCH_HEADER_BYTES, BatchBuilder, BatchError, BatchErrorKind, BatchHeader, DecodedBatch, NewRecord,
        RawBatch,
    },
    codec::Codec,
};
use tidelog_replica::{Acks, AppendError};
use tidelog_runtime::Clock;
use tidelog_sim::{Fault, FaultEffect, OperationKind, run};
use tidelog_types::{ByteSize, Offset};

use crate::node::{
    DEADLINE, LOCAL, Node, Options, append, append_all, numbered, offset, read_batches, read_values, sent,
    time, timed, values,
};

#[test]
fn acknowledged_records_are_read_back_before_and_after_restarts() {
    run(1, |context| async move {
        let mut disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                assert_eq!(append_all(&partition, sent(values(&["a", "b"]))).await, 0);
                assert_eq!(append_all(&partition, sent(values(&["c"]))).await, 2);
                assert_eq!(read_values(&partition, 0).await, numbered(0, &["a", "b", "c"]));
                assert_eq!(
                    read_values(&partition, 1).await,
                    numbered(0, &["a", "b", "c"]),
                    "a whole batch is answered"
                );
                assert_eq!(read_values(&partition, 2).await, numbered(2, &["c"]));
                node.stop().await;
            })
            .await
            .unwrap();
        disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!((node.started.opened, node.started.created), (1, 0));
                let partition = node.partition("t");
                assert_eq!(read_values(&partition, 0).await, numbered(0, &["a", "b", "c"]));
                assert_eq!(append_all(&partition, sent(values(&["d"]))).await, 3);
            })
            .await
            .unwrap();
        disk = disk.crash();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                assert_eq!(read_values(&node.partition("t"), 0).await, numbered(0, &["a", "b", "c", "d"]));
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_record_acknowledged_by_the_leader_survives_a_kill() {
    run(2, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let appended = append(&partition, sent(values(&["a"])), Acks::Leader).await.unwrap();
                appended.ack.wait().await.unwrap();
                let unasked = append(&partition, sent(values(&["b"])), Acks::None).await.unwrap();
                assert_eq!(unasked.base_offset, offset(1));
                unasked.ack.wait().await.unwrap();
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let read = read_values(&node.partition("t"), 0).await;
                assert_eq!(read.first(), Some(&(0, "a".to_owned())));
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_topic_can_stamp_its_records_with_the_time_of_the_append() {
    run(3, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let stamped = [LOCAL, ("message.timestamp.type", "LogAppendTime")];
                let partition = node.create_topic("t", 1, &stamped).await;
                let sent = timed(&[(5, "a"), (9, "b")]).codec(Codec::Zstd).build().unwrap().to_bytes();
                let appended = append(&partition, sent, Acks::All).await.unwrap();
                let stamp = appended.log_append_time.unwrap();
                assert!(context.clock.wall().millis_since(stamp) < 1_000);
                appended.ack.wait().await.unwrap();
                let stored = read_batches(&partition, 0).await;
                assert!(stored[0].crc_is_valid() && stored[0].header.attributes().is_log_append_time());
                for record in DecodedBatch::new(&stored[0], 1_000).unwrap().iter() {
                    assert_eq!(record.unwrap().timestamp, Some(stamp));
                }
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_record_without_key_is_refused_on_a_compacted_topic_with_every_codec() {
    // B31
    run(4, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                for (number, policy) in [(1, "compact"), (2, "compact,delete")] {
                    let name = format!("t{number}");
                    let partition =
                        node.create_topic(&name, number, &[LOCAL, ("cleanup.policy", policy)]).await;
                    for codec in Codec::ALL {
                        let key =
                            |key| NewRecord { key, value: Some(b"v".as_slice()), ..NewRecord::default() };
                        let batch = BatchBuilder::new(Offset::ZERO)
                            .codec(codec)
                            .record(&key(Some(b"k".as_slice())))
                            .record(&key(None))
                            .record(&key(Some(b"".as_slice())))
                            .record(&key(None));
                        let refused = append(&partition, sent(batch), Acks::All).await;
                        let Err(AppendError::WithoutKey { indexes }) = refused else { panic!("{refused:?}") };
                        assert_eq!(indexes, [1, 3]);
                        assert_eq!(partition.snapshot().log_end, Offset::ZERO);
                    }
                    assert_eq!(append_all(&partition, sent(values(&["a"]).codec(Codec::Gzip))).await, 0);
                }
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_topic_with_a_codec_of_its_own_stores_that_codec() {
    // B19
    run(5, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let stored = [("zstd", Codec::Zstd), ("uncompressed", Codec::None), ("gzip", Codec::Gzip)];
                for (number, (setting, codec)) in (1..).zip(stored) {
                    let name = format!("t{number}");
                    let partition =
                        node.create_topic(&name, number, &[LOCAL, ("compression.type", setting)]).await;
                    for sender in Codec::ALL {
                        append_all(&partition, sent(values(&["a", "b"]).codec(sender))).await;
                    }
                    let batches = read_batches(&partition, 0).await;
                    assert!(batches.iter().all(|batch| batch.header.attributes().codec() == Ok(codec)));
                    let expected: Vec<&str> = ["a", "b"].into_iter().cycle().take(10).collect();
                    assert_eq!(read_values(&partition, 0).await, numbered(0, &expected));
                }
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn what_breaks_a_rule_is_refused_and_leaves_nothing() {
    run(6, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let limited = [LOCAL, ("max.message.bytes", "200"), ("message.timestamp.before.max.ms", "1000")];
                let partition = node.create_topic("t", 1, &limited).await;
                let now = context.clock.wall().as_millis();
                let refused = async |bytes| append(&partition, bytes, Acks::All).await.unwrap_err();

                let large = refused(sent(timed(&[(now, &"x".repeat(200))]))).await;
                assert!(matches!(&large, AppendError::Batch(error) if error.kind() == BatchErrorKind::TooLarge));
                let mut flipped = sent(timed(&[(now, "a")])).to_vec();
                *flipped.last_mut().unwrap() ^= 1;
                let corrupt = refused(flipped.into()).await;
                assert!(matches!(&corrupt, AppendError::Batch(error) if error.kind() == BatchErrorKind::Corrupt));
                assert!(matches!(refused(bytes::Bytes::new()).await, AppendError::Batch(BatchError::NotOne { count: 0 })));
                let two = [sent(timed(&[(now, "a")])), sent(timed(&[(now, "b")]))].concat();
                assert!(matches!(refused(two.into()).await, AppendError::Batch(BatchError::NotOne { count: 2 })));
                // The second record is too old, the first one is not.
                let old = refused(sent(timed(&[(now, "a"), (now - 60_000, "b")]))).await;
                let AppendError::OutOfTime { refusal, indexes } = old else { panic!("{old:?}") };
                assert!(matches!(
                    refusal,
                    AppendRefusal::TimestampOutOfBounds { timestamp_ms, .. } if timestamp_ms == time(now - 60_000).to_wire()
                ));
                assert_eq!(indexes, [1]);
                let future = refused(sent(timed(&[(now + 7_200_000, "a")]))).await;
                assert!(matches!(&future, AppendError::OutOfTime { indexes, .. } if *indexes == [0]), "{future:?}");
                // A producer's claim that the broker set the time does not hide what the record says.
                let mut claims = sent(timed(&[(now + 7_200_000, "a")])).to_vec();
                claims[22] |= 8;
                claims[35..43].copy_from_slice(&(-1_i64).to_be_bytes());
                let crc = tidelog_format::crc::crc32c(&claims[21..]);
                claims[17..21].copy_from_slice(&crc.to_be_bytes());
                let hidden = refused(claims.into()).await;
                assert!(matches!(&hidden, AppendError::OutOfTime { indexes, .. } if *indexes == [0]), "{hidden:?}");
                assert_eq!(partition.snapshot().log_end, Offset::ZERO);

                node.configure(&partition, "min.insync.replicas", "2").await;
                let few = refused(sent(timed(&[(now, "a")]))).await;
                assert!(matches!(few, AppendError::Refused(AppendRefusal::TooFewInSync { in_sync: 1, min: 2 })));
                let one = append(&partition, sent(timed(&[(now, "a")])), Acks::Leader).await.unwrap();
                assert_eq!(one.base_offset, Offset::ZERO, "acks=1 does not ask for replicas");
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

/// A batch whose header states another largest timestamp than its records have.
fn stating(builder: BatchBuilder, max_timestamp_ms: i64) -> bytes::Bytes {
    let mut bytes = sent(builder).to_vec();
    bytes[35..43].copy_from_slice(&max_timestamp_ms.to_be_bytes());
    let header = BatchHeader::peek(&bytes).unwrap();
    let batch = RawBatch { header, body: bytes[BATCH_HEADER_BYTES..].to_vec().into() };
    bytes[17..21].copy_from_slice(&batch.computed_crc().to_be_bytes());
    bytes.into()
}

#[test]
fn what_a_header_states_of_its_records_timestamps_is_not_believed() {
    run(8, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let now = context.clock.wall().as_millis();
                let stated = i64::try_from(now).unwrap();
                let list = async |target| {
                    let listed = partition
                        .list_offsets(target, Isolation::ReadUncommitted, None, DEADLINE)
                        .await
                        .unwrap();
                    (listed.offset.map(Offset::get), listed.timestamp.map(|at| at.as_millis()))
                };
                let at = |millis| ListOffsetsTarget::Time(time(millis));

                let low = stating(timed(&[(now, "a"), (now + 1_000, "b")]), stated - 5_000);
                assert_eq!(append_all(&partition, low).await, 0);
                assert_eq!(list(at(now + 1_000)).await, (Some(1), Some(now + 1_000)));
                let high = stating(timed(&[(now, "c")]), stated + 600_000);
                assert_eq!(append_all(&partition, high).await, 2);
                assert_eq!(list(ListOffsetsTarget::MaxTimestamp).await, (Some(1), Some(now + 1_000)));
                assert_eq!(list(at(now + 1_001)).await, (None, None));
                let right = sent(timed(&[(now, "d"), (now + 5, "e")]));
                assert_eq!(append_all(&partition, right.clone()).await, 3);

                let stored = read_batches(&partition, 0).await;
                let max_of = |batch: &RawBatch| batch.header.max_timestamp().map(|at| at.as_millis());
                assert_eq!(
                    stored.iter().map(max_of).collect::<Vec<_>>(),
                    [Some(now + 1_000), Some(now), Some(now + 5)]
                );
                assert!(stored.iter().all(RawBatch::crc_is_valid));
                assert_eq!(stored[2].header.crc(), BatchHeader::peek(&right).unwrap().crc());

                let far = time(now + 3_600_000 + 60_000).as_millis();
                let refused =
                    append(&partition, stating(timed(&[(now, "f"), (far, "g")]), stated), Acks::All).await;
                assert!(matches!(
                    refused,
                    Err(AppendError::OutOfTime { indexes, .. }) if indexes == [1]
                ));
                assert_eq!(partition.snapshot().log_end, offset(5));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn records_are_visible_only_once_they_are_synced() {
    // B32
    run(7, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let appended = append(&partition, sent(values(&["a"])), Acks::Leader).await.unwrap();
                appended.ack.wait().await.unwrap();
                let snapshot = partition.snapshot();
                assert_eq!(snapshot.written_end, offset(1));
                assert!(snapshot.high_watermark <= snapshot.synced_end);
                // Nobody asked for a sync; one comes all the same.
                let waiter = tidelog_replica::Waiter::new();
                let _registration = partition.register_wake(&waiter);
                if partition.snapshot().high_watermark < offset(1) {
                    tokio::time::timeout(DEADLINE, waiter.moved()).await.unwrap();
                }
                assert_eq!(partition.snapshot().high_watermark, offset(1));
                assert_eq!(partition.snapshot().synced_end, offset(1));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

// Nothing drains on a full disk: who waits for his share would wait as long as it lasts, and his client comes again meanwhile.
#[test]
fn a_producer_above_its_share_is_refused_on_a_full_disk() {
    run(30, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let options = Options { tail_bytes: Some(ByteSize::mib(4)), ..Options::default() };
                let node = Node::start_with(&context, &disk, supervisor, options).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a"]))).await;
                disk.inject(Fault::on(OperationKind::Write, FaultEffect::ENOSPC).where_path_ends(".log"));
                // More than a quarter of the memory.
                let large = "x".repeat(300_000);
                for _ in 0..4 {
                    let _ = append(&partition, sent(values(&[&large])), Acks::Leader).await.unwrap().ack;
                }
                let waiting = append(&partition, sent(values(&["b"])), Acks::All);
                let refused = tokio::time::timeout(Duration::from_secs(2), waiting).await;
                assert!(matches!(refused, Ok(Err(AppendError::NoSpace))), "{refused:?}");
                disk.clear_faults();
                tokio::time::sleep(Duration::from_secs(4)).await;
                assert_eq!(append_all(&partition, sent(values(&["c"]))).await, 5);
                node.stop().await;
            })
            .await
            .unwrap();
    });
}
