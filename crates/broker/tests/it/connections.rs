//! Connections: how many, how long, and how they end.

use std::time::Duration;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{
    batch, fetch_request, partition_data, partition_of, produce_request, request_header, values,
};
use tidelog_wire::{
    ApiKey,
    messages::{
        ApiVersionsRequest, CreateTopicsRequest, FetchRequest, ProduceRequest, create_topics::CreatableTopic,
    },
};

use crate::node::{DEADLINE, Node, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_and_waiting_ones_are_not() {
    let node = Node::start_with(Options::with(&[("connections.max.idle.ms", "300")])).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let waiting = FetchRequest { min_bytes: 1, max_wait_ms: 1_000, ..fetch_request(&[("t", 0, 0)]) };
    let (took, _) = client.timed_call(12, &waiting).await;
    assert!(took >= Duration::from_secs(1), "a request in work keeps it open: {took:?}");
    assert_eq!(client.closed().await, Vec::<u8>::new());
    assert_eq!(node.metric("broker_idle_sockets_total"), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_above_the_limit_are_closed_at_once() {
    let node = Node::start_with(Options::with(&[("max.connections", "2")])).await;
    let mut one = node.client().await;
    let mut other = node.client().await;
    assert_eq!(one.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
    assert_eq!(other.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
    let mut third = node.client().await;
    assert_eq!(third.closed().await, Vec::<u8>::new());
    assert_eq!(one.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
    assert_eq!(node.metric("broker_connections_refused_total"), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_descriptors_of_the_process_are_closed_at_once() {
    let node = Node::start_with(Options { connections_max: 3, ..Options::default() }).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = node.client().await;
        assert_eq!(client.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
        open.push(client);
    }
    for refused in 1..=20 {
        let mut client = node.client().await;
        assert_eq!(client.closed().await, Vec::<u8>::new());
        assert_eq!(node.metric("broker_connections_refused_total"), refused);
    }
    drop(open.pop());
    loop {
        // Its place is free as soon as its task has seen the end.
        let mut client = node.client().await;
        client.finish_sending().await;
        if node.metric("broker_connections_opened_total") >= 4 {
            break;
        }
        client.closed().await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_answers_what_was_begun_and_ends_waits() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let produced =
        client.send(9, &produce_request("t", 0, -1, batch(Codec::None, 1, &[b"x"]).to_bytes())).await;
    let response = partition_of(client.receive::<ProduceRequest>(9, produced).await);
    assert_eq!((response.error_code, response.base_offset), (0, 0));
    let waiting = FetchRequest { min_bytes: 1, max_wait_ms: i32::MAX, ..fetch_request(&[("t", 0, 1)]) };
    let fetch = client.send(12, &waiting).await;
    // Whether the fetch is read before the drain begins or not, the connection ends; if it was, it is answered.
    assert_eq!(node.broker.drain(DEADLINE).await, Vec::<&str>::new());
    let _ = fetch;
    let rest = client.closed().await;
    assert!(rest.is_empty() || rest.len() > 20, "a whole answer, or none: {} bytes", rest.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_sending_half_gets_its_answers() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = client.send(9, &produce_request("t", 0, -1, batch(Codec::None, 1, &[b"x"]).to_bytes())).await;
    client.finish_sending().await;
    assert_eq!(partition_of(client.receive::<ProduceRequest>(9, id).await).error_code, 0);
    assert_eq!(client.closed().await, Vec::<u8>::new());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_behind_a_request_sees_its_effect() {
    let node = Node::start().await;
    let mut client = node.client().await;
    // Nothing is waited for between the three.
    let topic = CreatableTopic {
        name: "t".into(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false };
    let records = batch(Codec::None, 1, &[b"x"]).to_bytes();
    let created = client.send(7, &create).await;
    let produced = client.send(9, &produce_request("t", 0, -1, records)).await;
    let fetched = client.send(12, &fetch_request(&[("t", 0, 0)])).await;
    assert_eq!(client.receive::<CreateTopicsRequest>(7, created).await.topics[0].error_code, 0);
    assert_eq!(partition_of(client.receive::<ProduceRequest>(9, produced).await).error_code, 0);
    assert_eq!(
        values(&partition_data(client.receive::<FetchRequest>(12, fetched).await)),
        [(0, b"x".to_vec())]
    );
    node.stop().await;
}

/// The size of a frame and its first bytes; a large rest never comes.
fn begun(api: ApiKey, version: i16, come: usize) -> Vec<u8> {
    let mut bytes = 90_000_000_i32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&request_header(api, version, 1));
    bytes.resize(4 + come, 0);
    bytes
}

// D1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_trickles_large_requests_stops_nobody() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let mut tricklers = Vec::new();
    for (api, version) in [(ApiKey::Produce, 9), (ApiKey::Metadata, 12)] {
        for come in [20, 20, 3 << 20] {
            let mut trickler = node.client().await;
            trickler.send_bytes(&begun(api, version, come)).await;
            tricklers.push(trickler);
        }
    }
    for number in 0..20 {
        for trickler in &mut tricklers {
            trickler.send_bytes(&[0]).await;
        }
        let large = vec![7; 900_000];
        let (took, produced) = client
            .timed_call(9, &produce_request("t", 0, -1, batch(Codec::None, 1, &[&large]).to_bytes()))
            .await;
        let produced = partition_of(produced);
        assert_eq!((produced.error_code, produced.base_offset), (0, number));
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(client.metadata(Some("t")).await.topics[0].error_code, 0);
    }
    node.stop().await;
}

// D1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_waits_makes_way_for_what_is_sent_behind_it() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let waiting = FetchRequest { min_bytes: 1, max_wait_ms: 25_000, ..fetch_request(&[("t", 0, 0)]) };
    let first = client.send(12, &waiting).await;
    let second = client.send(12, &waiting).await;
    let records = batch(Codec::None, 1, &[b"x"]).to_bytes();
    let request = produce_request("t", 0, -1, records);
    let produced = client.send(9, &request).await;
    let answered = async {
        for fetch in [first, second] {
            let data = partition_data(client.receive::<FetchRequest>(12, fetch).await);
            assert_eq!((data.error_code, values(&data)), (0, vec![]));
        }
        assert_eq!(partition_of(client.receive::<ProduceRequest>(9, produced).await).error_code, 0);
    };
    tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap();
    // A fetch behind a fetch is no hurry: both wait as long as they asked.
    let waiting = FetchRequest { min_bytes: 1, max_wait_ms: 500, ..fetch_request(&[("t", 0, 1)]) };
    let begun = tokio::time::Instant::now();
    let (first, second) = (client.send(12, &waiting).await, client.send(12, &waiting).await);
    client.receive::<FetchRequest>(12, first).await;
    client.receive::<FetchRequest>(12, second).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    node.stop().await;
}
