//! Fetches that name partitions of both tiers at once: budgets, order, and what is told of each partition.

use std::collections::BTreeMap;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batch, fetch_request, values};
use tidelog_wire::{
    Records,
    messages::{FetchRequest, FetchResponse, fetch::PartitionData},
};

use crate::{
    asks::{delete_records, in_session},
    cold::{Bucket, Gate, tiered},
    node::Node,
};

/// What every answer may take: the bucket of these tests answers at once.
const WAIT_MS: i32 = 20_000;

/// A topic of one partition with `count` batches of one record each.
async fn filled(client: &mut RawClient, topic: &str, count: u8, bytes: usize) {
    client.create_topic(topic, 1, &[]).await;
    for number in 0..count {
        let sent = batch(Codec::None, 1_000, &[&vec![number; bytes]]).to_bytes();
        assert_eq!(client.produce(topic, 0, sent).await.error_code, 0);
    }
}

fn by_topic(response: FetchResponse) -> BTreeMap<String, PartitionData> {
    response
        .responses
        .into_iter()
        .map(|mut topic| (topic.topic.to_string(), topic.partitions.remove(0)))
        .collect()
}

fn record_bytes(data: &PartitionData) -> usize {
    data.records.as_ref().map_or(0, |records: &Records| records.to_bytes().len())
}

/// Nodes whose topics lie in the bucket, on disk and in both, and are empty.
async fn of_every_kind(each: u64) -> (Node, std::sync::Arc<Bucket>, Vec<(String, i64)>) {
    let (node, bucket) = tiered(Gate::Open).await;
    let mut client = node.client().await;
    let mut topics = Vec::new();
    for number in 0..each {
        let (cold, hot, both, empty) = (
            format!("cold-{number}"),
            format!("hot-{number}"),
            format!("both-{number}"),
            format!("empty-{number}"),
        );
        filled(&mut client, &cold, 6, 3_000).await;
        assert_eq!(bucket.take(&node, &cold, 100 + number).await, 6);
        filled(&mut client, &hot, 6, 3_000).await;
        filled(&mut client, &both, 4, 3_000).await;
        assert_eq!(bucket.take(&node, &both, 200 + number).await, 4);
        for value in [4, 5] {
            client.produce(&both, 0, batch(Codec::None, 1_000, &[&[value; 3_000]]).to_bytes()).await;
        }
        client.create_topic(&empty, 1, &[]).await;
        topics.extend([(cold, 6), (hot, 6), (both, 6), (empty, 0)]);
    }
    (node, bucket, topics)
}

// C2: a full fetch tells every partition, whichever tier it is in, and begins with the batch that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_fetch_tells_partitions_of_every_tier() {
    let (node, _bucket, topics) = of_every_kind(5).await;
    let mut client = node.client().await;
    let session = client.call(12, &in_session(0, 0, &[("hot", 0, 0)])).await.session_id;
    let mut ids = BTreeMap::new();
    for (topic, _) in &topics {
        ids.insert(topic.clone(), client.metadata(Some(topic)).await.topics[0].topic_id);
    }
    let names: BTreeMap<_, _> = ids.iter().map(|(name, id)| (*id, name.clone())).collect();
    for (round, version) in (0..).zip([11, 12, 16].into_iter().cycle().take(18)) {
        let asked: Vec<(&str, i32, i64)> =
            topics.iter().map(|(topic, end)| (topic.as_str(), 0, i64::from(round % 7).min(*end))).collect();
        let mut request = FetchRequest { min_bytes: 1, max_wait_ms: WAIT_MS, ..fetch_request(&asked) };
        (request.session_epoch, request.max_bytes) = (-1, 20_000);
        for topic in &mut request.topics {
            topic.topic_id = ids[&*topic.topic.to_string()];
        }
        let mut response = client.call(version, &request).await;
        assert_eq!((response.error_code, response.session_id), (0, 0));
        if version >= 13 {
            for topic in &mut response.responses {
                topic.topic = names[&topic.topic_id].as_str().into();
            }
        }
        let answer = by_topic(response);
        assert_eq!(answer.len(), topics.len(), "version {version}");
        let mut some = 0;
        for ((topic, end), (_, _, offset)) in topics.iter().zip(&asked) {
            let data = &answer[topic];
            assert_eq!(
                (data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset),
                (0, *end, *end, 0),
                "{topic} in version {version}"
            );
            let found = values(data);
            some += found.len();
            for ((offset, value), expected) in found.into_iter().zip(*offset..) {
                assert_eq!(
                    (offset, value),
                    (expected, vec![u8::try_from(expected).unwrap(); 3_000]),
                    "{topic}"
                );
            }
        }
        assert!(some > 0 || round % 7 == 6, "round {round}");
        // A session beside it on the same connection.
        assert_eq!(client.call(12, &in_session(session, round + 1, &[])).await.error_code, 0);
    }
    node.stop().await;
}

/// What one request of the budget's test may bring: two batches.
const BUDGET: usize = 8_000;

fn within_budget(asked: &[(&str, i32, i64)]) -> FetchRequest {
    let mut request = FetchRequest { min_bytes: 1, max_wait_ms: WAIT_MS, ..fetch_request(asked) };
    (request.session_epoch, request.max_bytes) = (-1, i32::try_from(BUDGET).unwrap());
    request
}

// B97: the budget of a request holds over all partitions of both tiers, and all of them go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_of_all_partitions_of_both_tiers_and_all_go_on() {
    let (node, bucket, mut topics) = of_every_kind(4).await;
    topics.retain(|(_, end)| *end > 0);
    let mut client = node.client().await;
    let mut at: BTreeMap<String, i64> = topics.iter().map(|(topic, _)| (topic.clone(), 0)).collect();
    // As clients do: who was served stands last in the next request.
    let mut order: Vec<String> = at.keys().cloned().collect();
    let mut first_done = None;
    for request_number in 0.. {
        assert!(request_number < 200, "no progress: {at:?}");
        let asked: Vec<(&str, i32, i64)> = order.iter().map(|topic| (topic.as_str(), 0, at[topic])).collect();
        let answer = by_topic(client.call(12, &within_budget(&asked)).await);
        let sizes: Vec<usize> = answer.values().map(record_bytes).collect();
        let total: usize = sizes.iter().sum();
        assert!(total <= BUDGET, "{total} bytes were sent of {BUDGET}: {sizes:?}");
        for (topic, data) in &answer {
            assert_eq!(data.error_code, 0, "{topic}");
            for (offset, _) in values(data) {
                assert_eq!(offset, at[topic], "{topic}: each record once");
                *at.get_mut(topic).unwrap() += 1;
            }
        }
        let (served, others): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|topic| record_bytes(&answer[topic]) > 0);
        order = others.into_iter().chain(served).collect();
        if first_done.is_none() && at.values().any(|offset| *offset == 6) {
            let of = |kind: &str, hot: bool| {
                let offsets = at.iter().filter(|(topic, _)| topic.starts_with(kind) == hot);
                let (count, sum) =
                    offsets.fold((0, 0), |(count, sum), (_, offset)| (count + 1, sum + offset));
                (count, sum)
            };
            let ((hot_count, hot), (cold_count, cold)) = (of("hot", true), of("hot", false));
            assert!(
                cold * 3 * hot_count >= hot * cold_count,
                "less than a third of the others' progress: {at:?}"
            );
            first_done = Some(request_number);
        }
        if at.values().all(|offset| *offset == 6) {
            break;
        }
    }
    assert!(first_done.is_some());
    // One batch above the whole budget comes too, and then alone.
    filled(&mut client, "large", 1, 50_000).await;
    assert_eq!(bucket.take(&node, "large", 900).await, 1);
    let mut sizes = Vec::new();
    while sizes.first().is_none_or(|large| *large == 0) {
        assert!(bucket.reads() < 500, "the large one never comes");
        let asked = [("large", 0, 0), ("cold-0", 0, 0), ("hot-0", 0, 0)];
        let answer = by_topic(client.call(12, &within_budget(&asked)).await);
        sizes = ["large", "cold-0", "hot-0"].map(|topic| record_bytes(&answer[topic])).to_vec();
        assert!(sizes[0] > 0 || sizes[1] + sizes[2] <= BUDGET, "{sizes:?}");
    }
    assert_eq!((sizes[1], sizes[2]), (0, 0), "{sizes:?}");
    node.stop().await;
}

// B65, B91: below the start of one partition is an error of that one alone, on a connection that goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trimmed_head_is_an_error_of_its_partition_alone() {
    let (node, _bucket, topics) = of_every_kind(1).await;
    let mut client = node.client().await;
    for (topic, end) in &topics[..3] {
        assert_eq!(delete_records(&mut client, topic, 0, 3).await, 3);
        for version in [4, 11, 12] {
            let asked = [(topic.as_str(), 0, 2), ("hot", 0, 0)];
            let mut request = FetchRequest { min_bytes: 1, max_wait_ms: WAIT_MS, ..fetch_request(&asked) };
            request.session_epoch = -1;
            let answer = by_topic(client.call(version, &request).await);
            assert_eq!((answer[topic].error_code, record_bytes(&answer[topic])), (1, 0), "{topic}");
            assert_eq!(values(&answer["hot"]).len(), 1, "the others are served");
            request.topics[0].partitions[0].fetch_offset = 3;
            let answer = by_topic(client.call(version, &request).await);
            let expected: Vec<i64> = (3..*end).collect();
            let mut found: Vec<i64> = values(&answer[topic]).into_iter().map(|(offset, _)| offset).collect();
            if found.is_empty() {
                // The bucket was asked beside records that were there at once.
                request.topics.truncate(1);
                let answer = by_topic(client.call(version, &request).await);
                found = values(&answer[topic]).into_iter().map(|(offset, _)| offset).collect();
            }
            assert_eq!(found, expected[..found.len()], "{topic} in version {version}");
            assert!(!found.is_empty());
        }
    }
    node.stop().await;
}
