//! From a sealed segment to an entry of the manifest, and then off the local disk.

use std::time::Duration;

use tidelog_replica::PartitionHandle;
use tidelog_types::{ByteSize, TopicName};

use crate::node::{Node, Setup, append, batch, now, offset, sealed, with_node};

#[test]
fn sealed_records_go_to_the_bucket_and_then_leave_the_disk() {
    with_node(1, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[("local.retention.ms", "1000")]).await;
        let time = now(context);
        append(&partition, batch(time, &["a", "b"])).await;
        append(&partition, batch(time, &["c"])).await;
        partition.roll().await.unwrap();
        append(&partition, batch(time, &["d"])).await;

        node.until_tiered(&partition, 3).await;
        let expected = [(0, "a"), (1, "b"), (2, "c")].map(|(at, value)| (at, value.to_owned()));
        assert_eq!(node.records(&partition).await, expected);
        let entries = node.entries(&partition).await;
        assert_eq!(entries.iter().map(|entry| entry.range.base.get()).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(entries[0].max_timestamp, Some(time));

        node.until("the segment leaves the disk", || partition.snapshot().local_log_start == offset(3)).await;
        let status = node.status("t").await;
        assert_eq!(status.log_start, offset(0));
        assert_eq!((status.local_log_start, status.tiered_end), (offset(3), offset(3)));
        assert_eq!((status.high_watermark, status.log_end), (offset(4), offset(4)));
        assert_eq!(status.bucket_bytes, entries.iter().map(|entry| entry.bytes).sum::<u64>());
        assert_eq!(status.bucket_objects, Some(2));
        assert_eq!((status.lag_bytes, status.lag_seconds), (0, 0));
        assert_eq!(status.local_bytes, partition.local_bytes());

        let segments = node.tier.segments(&TopicName::new("t").unwrap()).await.unwrap().segments;
        let keys: Vec<&str> = segments.iter().map(|segment| segment.key.as_str()).collect();
        assert_eq!(keys, node.keys(".seg").await.keys().collect::<Vec<_>>());
        assert_eq!((segments[1].base_offset, segments[1].end_offset), (offset(2), offset(3)));
        assert_eq!(node.metric("tier_uploads_total"), 2);
        assert!(node.metric("tier_evicted_bytes_total") > 0);
        node.stop().await;
    });
}

#[test]
fn the_status_has_the_form_that_tools_read() {
    with_node(2, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        sealed(context, &partition, 1).await;
        node.until_tiered(&partition, 1).await;
        let bytes = node.entries(&partition).await[0].bytes;
        let status = serde_json::to_value(node.tier.status().await).unwrap();
        let expected = serde_json::json!({
            "topics": [{
                "topic": "t",
                "topic_id": partition.place().topic_id.to_string(),
                "partitions": [{
                    "partition": 0, "log_start": 0, "local_log_start": 0, "tiered_end": 1,
                    "high_watermark": 1, "log_end": 1, "local_bytes": bytes, "bucket_bytes": bytes,
                    "bucket_objects": 1, "lag_bytes": 0, "lag_seconds": 0,
                }],
            }],
            "bucket_bytes": bytes, "bucket_objects": 1, "cache_memory_bytes": 0,
            "cache_disk_bytes": 0,
        });
        assert_eq!(status, expected);
        let segments = node.tier.segments(partition.topic()).await.unwrap();
        let segments = serde_json::to_value(segments).unwrap();
        let names: Vec<&String> = segments["segments"][0].as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            [
                "base_offset",
                "bytes",
                "end_offset",
                "key",
                "leader_epoch",
                "max_timestamp",
                "object_bytes",
                "partition"
            ]
        );
        let unknown = node.tier.segments(&TopicName::new("other").unwrap()).await;
        assert!(unknown.is_err());
    });
}

#[test]
fn small_segments_share_an_object_and_large_ones_are_cut() {
    tidelog_sim::run(3, |context| async move {
        let mut setup = Setup::new(&context);
        setup.tier.object_target = ByteSize::bytes(300);
        context
            .life(&context.disk, async |supervisor| {
                let node = Node::start(&setup, &context.disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[]).await;
                node.commands.hold(|_| true);
                sealed(&context, &partition, 1).await;
                sealed(&context, &partition, 5).await;
                node.commands.release();
                node.until_tiered(&partition, 6).await;
                let entries = node.entries(&partition).await;
                assert!(entries.iter().all(|entry| entry.bytes <= 300), "{entries:?}");
                assert!(entries.len() < 6 && entries.len() > 1, "{} objects", entries.len());
                assert_eq!(node.records(&partition).await.len(), 6);
            })
            .await
            .unwrap();
    });
}

#[test]
fn a_quiet_partition_is_sealed_and_uploaded_by_the_wall_clock() {
    with_node(4, async |context, _, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        append(&partition, batch(now(context), &["lonely"])).await;
        node.pass(Duration::from_secs(60)).await;
        assert_eq!(partition.snapshot().tiered_end, offset(0));
        assert!(node.metric("tier_unsent_bytes{topic=\"t\"}") > 0);
        // The log counts from when the segment's file began, some seconds after the append.
        assert!((50..=60).contains(&node.metric("tier_unsent_seconds{topic=\"t\"}")));
        assert_eq!(node.metric("tier_upload_lag_bytes{topic=\"t\"}"), 0, "nothing sealed waits");
        context.clock.jump_ms(3_600_000);
        node.until_tiered(&partition, 1).await;
        node.pass(Duration::from_secs(2)).await;
        assert_eq!(node.metric("tier_unsent_bytes{topic=\"t\"}"), 0);
        assert_eq!(node.metric("tier_unsent_seconds{topic=\"t\"}"), 0);
    });
}

async fn lag(node: &Node, partition: &PartitionHandle) -> (u64, u64) {
    node.pass(Duration::from_secs(2)).await;
    let topic = partition.topic();
    let of = |name: &str| node.metric(&format!("{name}{{topic=\"{topic}\"}}"));
    assert_eq!(of("tier_upload_lag_segments") == 0, of("tier_upload_lag_bytes") == 0);
    (of("tier_upload_lag_bytes"), of("tier_upload_lag_seconds"))
}

#[test]
fn lag_grows_while_uploads_fail_and_is_exactly_zero_after() {
    // C4
    with_node(5, async |context, setup, node| {
        let partition = node.create_topic("t", 1, &[]).await;
        setup.store.plan(
            tidelog_testkit::StoreOperation::Put,
            "",
            0,
            u32::MAX,
            tidelog_testkit::StoreFault::FailBefore,
        );
        sealed(context, &partition, 1).await;
        let first = lag(&node, &partition).await;
        sealed(context, &partition, 1).await;
        let second = lag(&node, &partition).await;
        assert!(first.0 > 0 && second.0 == 2 * first.0, "{first:?} {second:?}");
        assert!(second.1 > first.1);
        assert_eq!(node.status("t").await.lag_bytes, second.0);
        node.until("the failure is counted", || node.metric("tier_upload_failures_total") > 0).await;
        setup.store.clear_plan();
        node.until_tiered(&partition, 2).await;
        assert_eq!(lag(&node, &partition).await, (0, 0));
        assert_eq!(node.records(&partition).await.len(), 2);
        node.propose(tidelog_core::cluster::Command::DeleteTopic { topic_id: partition.place().topic_id })
            .await;
        node.pass(Duration::from_secs(2)).await;
        assert!(
            !node.registry.encode().contains("tier_upload_lag_bytes{"),
            "a deleted topic leaves no figures"
        );
    });
}

#[test]
fn a_topic_that_stays_local_and_one_whose_copies_are_disabled_upload_nothing() {
    with_node(6, async |context, _, node| {
        let local = node.create_topic("l", 1, &[("remote.storage.enable", "false")]).await;
        let disabled = node.create_topic("d", 2, &[("remote.log.copy.disable", "true")]).await;
        sealed(context, &local, 2).await;
        sealed(context, &disabled, 2).await;
        node.pass(Duration::from_secs(30)).await;
        assert_eq!(node.keys("").await.len(), 0);
        assert_eq!(
            (local.snapshot().local_log_start, disabled.snapshot().local_log_start),
            (offset(0), offset(0))
        );
    });
}
