//! Offsets by time and epoch.

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batch};
use tidelog_wire::messages::{
    DeleteRecordsRequest, OffsetForLeaderEpochRequest,
    delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
    offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic},
};

use crate::node::{Node, Options};

async fn listed(client: &mut RawClient, version: i16, timestamp: i64) -> (i16, i64, i64, i32) {
    let found = client.list_offset(version, "t", 0, timestamp).await;
    (found.error_code, found.offset, found.timestamp, found.leader_epoch)
}

async fn delete_records(client: &mut RawClient, offset: i64) {
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let response = client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 10_000 }).await;
    assert_eq!(response.topics[0].partitions[0].error_code, 0);
}

// librdkafka 0081, do_test_DeleteRecords
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_deleted_also_for_whom_does_not_wait() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(Codec::None, 1_000, &[b"a", b"b", b"c"]).to_bytes()).await;
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 2 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let response = client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 0 }).await;
    let deleted = &response.topics[0].partitions[0];
    assert_eq!((deleted.error_code, deleted.low_watermark), (0, 2));
    node.stop().await;
}

// B22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_without_a_record_is_no_offset_and_no_timestamp() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for version in 1..=11 {
        assert_eq!(listed(&mut client, version, 0).await, (0, -1, -1, -1), "empty, version {version}");
    }
    for (codec, base) in [(Codec::None, 1_000), (Codec::Zstd, 2_000)] {
        client.produce("t", 0, batch(codec, base, &[b"a", b"b", b"c"]).to_bytes()).await;
    }
    let mut at = Vec::new();
    for time in [0, 1_000, 1_001, 1_003, 2_002, 2_003] {
        let (error, offset, timestamp, _) = listed(&mut client, 5, time).await;
        assert!(offset == -1 || timestamp >= time, "a hit is at or after the time");
        at.push((error, offset, timestamp));
    }
    assert_eq!(at, [(0, 0, 1_000), (0, 0, 1_000), (0, 1, 1_001), (0, 3, 2_000), (0, 5, 2_002), (0, -1, -1)]);
    // The record with the largest timestamp, from version 7 on.
    let (error, offset, timestamp, _) = listed(&mut client, 7, -3).await;
    assert_eq!((error, offset, timestamp), (0, 5, 2_002));
    assert_eq!(listed(&mut client, 6, -3).await.0, 35);
    delete_records(&mut client, 6).await;
    assert_eq!(listed(&mut client, 5, 0).await, (0, -1, -1, -1), "emptied");
    let (error, earliest, _, _) = listed(&mut client, 5, -2).await;
    assert_eq!((error, earliest), (0, 6));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_special_timestamps_come_with_their_versions() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client
        .create_topic("t", 1, &[("remote.storage.enable", "false"), ("remote.log.delete.on.disable", "true")])
        .await;
    client.produce("t", 0, batch(Codec::None, 1_000, &[b"a", b"b"]).to_bytes()).await;
    for (timestamp, first, offset) in
        [(-1, 1, 2), (-2, 1, 0), (-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)]
    {
        for version in 1..=11 {
            let found = client.list_offset(version, "t", 0, timestamp).await;
            let expected = if version < first { (35, -1) } else { (0, offset) };
            assert_eq!((found.error_code, found.offset), expected, "{timestamp} in version {version}");
        }
    }
    assert_eq!(client.list_offset(11, "t", 0, -7).await.error_code, 35);
    assert_eq!(client.list_offset(11, "t", 1, -1).await.error_code, 3);
    node.stop().await;
}

// B20
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_offset_carries_the_epoch_it_was_written_under() {
    let mut node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let first = client.metadata(Some("t")).await.topics[0].partitions[0].leader_epoch;
    client.produce("t", 0, batch(Codec::None, 1_000, &[b"a", b"b"]).to_bytes()).await;
    let mut epochs = vec![first];
    for _ in 0..3 {
        let folder = node.stop().await;
        node = Node::start_in(folder, Options::default()).await;
        client = node.client().await;
        epochs.push(client.metadata(Some("t")).await.topics[0].partitions[0].leader_epoch);
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "each registration is a leadership: {epochs:?}");
    let current = epochs[3];
    for version in [4, 7, 11] {
        assert_eq!(listed(&mut client, version, -2).await, (0, 0, -1, first));
        assert_eq!(listed(&mut client, version, 1_001).await, (0, 1, 1_001, first));
        assert_eq!(listed(&mut client, version, -1).await, (0, 2, -1, current));
        let empty = client.list_offset(version, "t", 1, -2).await;
        // Of what comes next.
        assert_eq!((empty.error_code, empty.offset, empty.leader_epoch), (0, 0, current));
    }
    client.produce("t", 0, batch(Codec::None, 3_000, &[b"c"]).to_bytes()).await;
    let mut ends = Vec::new();
    for epoch in [first, epochs[1], current, current + 1] {
        let partition =
            OffsetForLeaderPartition { partition: 0, current_leader_epoch: current, leader_epoch: epoch };
        let topics = vec![OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] }];
        let response = client
            .call(2, &OffsetForLeaderEpochRequest { topics, ..OffsetForLeaderEpochRequest::default() })
            .await;
        let end = &response.topics[0].partitions[0];
        ends.push((end.error_code, end.leader_epoch, end.end_offset));
    }
    assert_eq!(ends, [(0, first, 2), (0, first, 2), (0, current, 3), (0, -1, -1)]);
    node.stop().await;
}
