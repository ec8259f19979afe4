//! What a session tells of itself: everything of a partition that moved since the last answer that was sent.

use std::collections::BTreeMap;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batch};
use tidelog_wire::messages::{DeleteTopicsRequest, FetchRequest, fetch::PartitionData};

use crate::{
    asks::{delete_records, in_session},
    node::Node,
};

async fn told(client: &mut RawClient, request: &FetchRequest) -> BTreeMap<(String, i32), PartitionData> {
    let response = client.call(12, request).await;
    assert_eq!(response.error_code, 0);
    let mut told = BTreeMap::new();
    for topic in response.responses {
        for data in topic.partitions {
            told.insert((topic.topic.to_string(), data.partition_index), data);
        }
    }
    told
}

// B13: log starts and errors are news too, while a fetch waits and between fetches, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_log_start_and_an_error_are_told_once() {
    let node = Node::start().await;
    let (mut client, mut other) = (node.client().await, node.client().await);
    client.create_topic("t", 3, &[]).await;
    client.create_topic("gone", 1, &[]).await;
    for partition in 0..3 {
        let sent = batch(Codec::None, 1_000, &[b"a", b"b", b"c"]).to_bytes();
        assert_eq!(client.produce("t", partition, sent).await.error_code, 0);
    }
    let all = [("t", 0, 3), ("t", 1, 3), ("t", 2, 3), ("gone", 0, 0)];
    let opened = client.call(12, &in_session(0, 0, &all)).await;
    let session = opened.session_id;
    assert_ne!(session, 0);
    // Between two fetches.
    delete_records(&mut other, "t", 1, 2).await;
    let news = told(&mut client, &in_session(session, 1, &[])).await;
    assert_eq!(news.keys().cloned().collect::<Vec<_>>(), [("t".to_owned(), 1)]);
    assert_eq!(
        (news[&("t".to_owned(), 1)].log_start_offset, news[&("t".to_owned(), 1)].high_watermark),
        (2, 3)
    );
    assert!(told(&mut client, &in_session(session, 2, &[])).await.is_empty(), "once");
    // While a fetch waits for more than there will be: the log start of one, and the high watermark of another.
    let waiting = FetchRequest { min_bytes: 1024 * 1024, max_wait_ms: 1_500, ..in_session(session, 3, &[]) };
    let id = client.send(12, &waiting).await;
    delete_records(&mut other, "t", 2, 1).await;
    other.produce("t", 0, batch(Codec::None, 1_000, &[b"d"]).to_bytes()).await;
    let answer = client.receive::<FetchRequest>(12, id).await;
    let mut starts: Vec<(i32, i64, i64)> = answer.responses[0]
        .partitions
        .iter()
        .map(|data| (data.partition_index, data.log_start_offset, data.high_watermark))
        .collect();
    starts.sort_unstable();
    assert_eq!(starts, [(0, 0, 4), (2, 1, 3)]);
    // An error, as long as it is one.
    let delete = DeleteTopicsRequest {
        topic_names: vec!["gone".into()],
        timeout_ms: 10_000,
        ..DeleteTopicsRequest::default()
    };
    assert_eq!(other.call(5, &delete).await.responses[0].error_code, 0);
    for epoch in [4, 5] {
        let news = told(&mut client, &in_session(session, epoch, &[("t", 0, 4)])).await;
        assert_eq!(news.keys().cloned().collect::<Vec<_>>(), [("gone".to_owned(), 0)]);
        assert_eq!(news[&("gone".to_owned(), 0)].error_code, 3);
    }
    node.stop().await;
}

// B14: the address of the listener that the request came in on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_coordinator_of_groups_and_transactions_is_this_node_as_its_listener_says() {
    use tidelog_wire::{Str, messages::FindCoordinatorRequest};
    let node = Node::start().await;
    let mut client = node.client().await;
    for version in 0..=6 {
        for (key_type, code) in [(0, 0), (1, 0), (2, 42)] {
            if version == 0 && key_type > 0 {
                continue;
            }
            let mut request = FindCoordinatorRequest { key_type, ..FindCoordinatorRequest::default() };
            if version < 4 {
                request.key = Str::from_static("g");
            } else {
                request.coordinator_keys = vec![Str::from_static("g")];
            }
            let response = client.call(version, &request).await;
            let found = response.coordinators.first().map_or_else(
                || (response.error_code, response.node_id, response.host.to_string(), response.port),
                |one| (one.error_code, one.node_id, one.host.to_string(), one.port),
            );
            let (host, port) = (node.address().ip().to_string(), i32::from(node.address().port()));
            let expected = if code == 0 { (0, 1, host, port) } else { (code, -1, String::new(), -1) };
            assert_eq!(found, expected, "version {version}, type {key_type}");
        }
    }
    node.stop().await;
}
