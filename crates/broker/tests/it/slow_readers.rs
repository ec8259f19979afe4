//! Clients that ask for much and read nothing: what they hold is bounded, and who reads gets his answer.

use std::time::Duration;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{batch, fetch_request, partition_data, values};
use tidelog_wire::messages::FetchRequest;

use crate::node::Node;

/// One batch of the large topic: 22 of them are more than fetches' answers may hold in all.
const LARGE: usize = 12 << 20;

fn greedy(topic: &str) -> FetchRequest {
    let mut request = fetch_request(&[(topic, 0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_reads_keeps_nobody_from_reading() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("large", 1, &[("max.message.bytes", "16777216")]).await;
    client.create_topic("small", 1, &[]).await;
    let large = vec![7; LARGE];
    let produced = client.produce("large", 0, batch(Codec::None, 1, &[&large]).to_bytes()).await;
    assert_eq!(produced.error_code, 0);
    assert_eq!(client.produce("small", 0, batch(Codec::None, 1, &[b"x"]).to_bytes()).await.error_code, 0);
    let mut greedies = Vec::new();
    for _ in 0..60 {
        let mut one = node.client().await;
        one.send(12, &greedy("large")).await;
        greedies.push(one);
    }
    // Once some of them wait, what may be held is held.
    node.until("twenty wait", || node.metric("broker_fetch_memory_waits_total") >= 20).await;
    // What is small is answered at once, whoever holds what.
    let (took, fetched) = client.timed_call(12, &fetch_request(&[("small", 0, 0)])).await;
    assert_eq!(values(&partition_data(fetched)), [(0, b"x".to_vec())]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // What is large has its turn, since those before it do not read and are closed.
    let (took, fetched) = client.timed_call(12, &greedy("large")).await;
    assert_eq!(values(&partition_data(fetched)).len(), 1);
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert!(node.metric("broker_slow_sockets_total") >= 20);
    drop(greedies);
    node.stop().await;
}
