//! Records out: limits, waits, errors.

use std::time::Duration;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batch, batches, fetch_request, partition_data, values};
use tidelog_wire::{
    ErrorCode, Uuid,
    messages::{
        DeleteRecordsRequest, DeleteTopicsRequest, FetchRequest, ProduceRequest,
        delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
    },
};

use crate::node::Node;

/// A fetch of one partition that waits.
fn waiting(topic: &str, offset: i64, min_bytes: i32, max_wait_ms: i32) -> FetchRequest {
    FetchRequest { min_bytes, max_wait_ms, ..fetch_request(&[(topic, 0, offset)]) }
}

async fn topic_id(client: &mut RawClient, topic: &str) -> Uuid {
    client.metadata(Some(topic)).await.topics[0].topic_id
}

fn one(value: &[u8]) -> bytes::Bytes {
    batch(Codec::None, 1_000, &[value]).to_bytes()
}

// B07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_is_answered_with_records() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, one(b"x")).await;
    let id = topic_id(&mut client, "t").await;
    let epoch = client.metadata(Some("t")).await.topics[0].partitions[0].leader_epoch;
    for version in 4..=17 {
        for leader_epoch in [-1, epoch] {
            let mut request = waiting("t", 0, 1, 500);
            request.session_epoch = -1;
            request.topics[0].topic_id = id;
            request.topics[0].partitions[0].current_leader_epoch = leader_epoch;
            let (took, response) = client.timed_call(version, &request).await;
            assert!(took < Duration::from_secs(1), "version {version}: {took:?}");
            let data = partition_data(response);
            assert_eq!(values(&data), [(0, b"x".to_vec())], "version {version}");
            assert_eq!((data.error_code, data.high_watermark, data.last_stable_offset), (0, 1, 1));
            assert_eq!(data.aborted_transactions, None, "for read_committed only");
        }
    }
    let mut committed = waiting("t", 0, 1, 500);
    committed.isolation_level = 1;
    assert_eq!(partition_data(client.call(11, &committed).await).aborted_transactions, Some(Vec::new()));
    node.stop().await;
}

// B07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_give_up_leave_nothing_behind() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for _ in 0..100 {
        let mut impatient = node.client().await;
        impatient.send(12, &waiting("t", 0, 1, i32::MAX)).await;
        drop(impatient);
    }
    // Each of them is gone when the broker has seen its end; the drain would name those that are not.
    for _ in 0..10_000 {
        if node.broker.connections() == 1 {
            break;
        }
        client.call(0, &tidelog_wire::messages::ApiVersionsRequest::default()).await;
    }
    assert_eq!(node.broker.connections(), 1);
    node.stop().await;
}

// B08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_partition_is_waited_for_and_records_end_the_wait() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let (took, response) = client.timed_call(12, &waiting("t", 0, 1, 600)).await;
    assert!((600..900).contains(&took.as_millis()), "{took:?}");
    assert_eq!((partition_data(response).high_watermark, node.metric("broker_fetch_wakeups_total")), (0, 0));

    let id = client.send(12, &waiting("t", 0, 1, 20_000)).await;
    let mut producer = node.client().await;
    producer.produce("t", 0, one(b"x")).await;
    let data = partition_data(client.receive::<FetchRequest>(12, id).await);
    assert_eq!(values(&data), [(0, b"x".to_vec())]);

    // Less than min_bytes: what there is, when the time is up.
    let (took, response) = client.timed_call(12, &waiting("t", 0, 1024 * 1024, 600)).await;
    assert!((600..900).contains(&took.as_millis()), "{took:?}");
    assert_eq!(values(&partition_data(response)), [(0, b"x".to_vec())]);
    node.stop().await;
}

// B08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_any_partition_ends_the_wait() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for bad in [("none", 0, 0), ("t", 7, 0), ("t", 0, 5)] {
        let mut request = fetch_request(&[("t", 0, 0), bad]);
        (request.min_bytes, request.max_wait_ms) = (1, 20_000);
        let (took, _) = client.timed_call(12, &request).await;
        assert!(took < Duration::from_secs(5), "{bad:?}: {took:?}");
    }
    node.stop().await;
}

// B11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_the_limits_comes_whole_and_alone() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[("max.message.bytes", "5242880")]).await;
    let large = vec![7; 3 * 1024 * 1024];
    for partition in 0..2 {
        client.produce("t", partition, one(&large)).await;
        for number in 0..10_u8 {
            client.produce("t", partition, one(&[number])).await;
        }
    }
    let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]);
    request.max_bytes = 1024;
    for partition in &mut request.topics[0].partitions {
        partition.partition_max_bytes = 1024;
    }
    let mut read = Vec::new();
    let mut second = 0;
    while read.len() < 11 {
        request.topics[0].partitions[0].fetch_offset = i64::try_from(read.len()).unwrap();
        let response = client.call(12, &request).await;
        let found = values(&response.responses[0].partitions[0]);
        assert!(!found.is_empty(), "stuck at {}", read.len());
        if found[0].0 == 0 {
            assert_eq!(found.len(), 1, "the large one alone");
            second += values(&response.responses[0].partitions[1]).len();
        }
        read.extend(found);
    }
    assert_eq!(second, 0, "the limit holds for the partitions after the first");
    assert_eq!(read[0].1.len(), large.len());
    assert_eq!(read.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), (0..11).collect::<Vec<i64>>());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_inside_a_batch_gets_the_whole_batch() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(Codec::Zstd, 1, &[b"a", b"b", b"c"]).to_bytes()).await;
    let data = client.fetch("t", 0, 2).await;
    assert_eq!(batches(&data)[0].header.base_offset_raw(), 0);
    assert_eq!(values(&data).len(), 3);
    node.stop().await;
}

// B56
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_out_of_range_tells_nothing_else() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for _ in 0..5 {
        client.produce("t", 0, one(b"x")).await;
    }
    let delete = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "t".into(),
            partitions: vec![DeleteRecordsPartition { partition_index: 0, offset: 3 }],
        }],
        timeout_ms: 10_000,
    };
    let deleted = client.call(2, &delete).await;
    let deleted = &deleted.topics[0].partitions[0];
    assert_eq!((deleted.error_code, deleted.low_watermark), (0, 3));
    for (offset, code) in [(0, 1), (2, 1), (3, 0), (5, 0), (6, 1), (-1, 1)] {
        let data = client.fetch("t", 0, offset).await;
        assert_eq!(data.error_code, code, "offset {offset}");
        // As Kafka has it: who is out of range asks ListOffsets.
        let told = if code == 0 { (3, 5) } else { (-1, -1) };
        assert_eq!((data.log_start_offset, data.high_watermark), told, "offset {offset}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_epochs_are_told_apart_and_name_the_leader() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let folder = node.stop().await;
    let node = Node::start_in(folder, crate::node::Options::default()).await;
    let mut client = node.client().await;
    let epoch = client.metadata(Some("t")).await.topics[0].partitions[0].leader_epoch;
    assert!(epoch >= 1, "registering again raises the epoch");
    for (given, code) in [
        (epoch - 1, ErrorCode::FencedLeaderEpoch),
        (epoch, ErrorCode::None),
        (epoch + 1, ErrorCode::UnknownLeaderEpoch),
    ] {
        let id = topic_id(&mut client, "t").await;
        let mut request = waiting("t", 0, 1, 0);
        request.topics[0].topic_id = id;
        request.topics[0].partitions[0].current_leader_epoch = given;
        let response = client.call(16, &request).await;
        let endpoints = response.node_endpoints.len();
        let data = partition_data(response);
        assert_eq!(data.error_code, code.code(), "epoch {given} of {epoch}");
        if code == ErrorCode::FencedLeaderEpoch {
            assert_eq!(
                (data.current_leader.leader_id, data.current_leader.leader_epoch, endpoints),
                (1, epoch, 1)
            );
        }
    }
    node.stop().await;
}

// B55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_created_again_is_another_topic() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, one(b"old")).await;
    let old = topic_id(&mut client, "t").await;
    let mut request = waiting("t", 0, 1, 0);
    request.session_epoch = 0;
    request.topics[0].topic_id = old;
    let session = client.call(13, &request).await.session_id;
    assert_ne!(session, 0);
    let delete = DeleteTopicsRequest {
        topic_names: vec!["t".into()],
        timeout_ms: 10_000,
        ..DeleteTopicsRequest::default()
    };
    assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    client.create_topic("t", 1, &[]).await;
    let new = topic_id(&mut client, "t").await;
    assert_ne!(new, old);
    assert_eq!(client.produce("t", 0, one(b"new")).await.base_offset, 0);
    // In the session that knew the name: 103. For anyone else: 100.
    let next = FetchRequest { session_id: session, session_epoch: 1, topics: Vec::new(), ..request.clone() };
    assert_eq!(
        partition_data(client.call(13, &next).await).error_code,
        ErrorCode::InconsistentTopicId.code()
    );
    let sessionless = FetchRequest { session_epoch: -1, ..request };
    assert_eq!(
        partition_data(client.call(13, &sessionless).await).error_code,
        ErrorCode::UnknownTopicId.code()
    );
    assert_eq!(values(&client.fetch("t", 0, 0).await), [(0, b"new".to_vec())]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_its_topic_is_deleted() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = client.send(12, &waiting("t", 0, 1, 20_000)).await;
    let mut admin = node.client().await;
    let delete = DeleteTopicsRequest {
        topic_names: vec!["t".into()],
        timeout_ms: 10_000,
        ..DeleteTopicsRequest::default()
    };
    assert_eq!(admin.call(5, &delete).await.responses[0].error_code, 0);
    let data = partition_data(client.receive::<FetchRequest>(12, id).await);
    assert_ne!(data.error_code, 0);
    let produced = client.send(9, &tidelog_testkit::raw_client::produce_request("t", 0, -1, one(b"x"))).await;
    let response = client.receive::<ProduceRequest>(9, produced).await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, 3);
    node.stop().await;
}
