//! Requests that Kafka's own classes wrote, whole and with bytes changed: each is answered or closes its connection, at once,
//! and nobody else notices.

use std::{collections::BTreeMap, time::Duration};

use tidelog_testkit::raw_client::request_header;
use tidelog_wire::{ApiKey, messages::ApiVersionsRequest};

use crate::node::Node;

/// Bodies of requests: API, version, bytes.
const MESSAGES: &str = include_str!("../../../wire/tests/golden/messages-4.3.1.txt");

/// Changed copies of each body.
const CHANGED: usize = 6;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }
}

fn bodies() -> Vec<(ApiKey, i16, Vec<u8>)> {
    let apis: BTreeMap<&str, ApiKey> =
        (0..=100).filter_map(ApiKey::from_key).map(|api| (api.name(), api)).collect();
    let mut bodies = Vec::new();
    for line in MESSAGES.lines() {
        let [name, version, "request", hex] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let digits = hex.as_bytes().chunks(2);
        let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        bodies.push((apis[name], version.parse().unwrap(), bytes.collect()));
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_requests_are_answered_or_closed_and_harm_nobody() {
    let node = Node::start().await;
    let mut bystander = node.client().await;
    let mut announced = BTreeMap::new();
    for range in bystander.call(0, &ApiVersionsRequest::default()).await.api_keys {
        announced.insert(range.api_key, range.min_version..=range.max_version);
    }
    let (mut numbers, mut sent) = (Numbers(7), 0);
    for (api, version, body) in bodies() {
        if !announced.get(&api.key()).is_some_and(|versions| versions.contains(&version)) {
            continue;
        }
        for copy in 0..=CHANGED {
            let mut body = body.clone();
            // The first copy is whole; others have a few bytes changed, and some are cut.
            for _ in 0..copy.min(3) {
                let at = numbers.below(body.len());
                if let Some(byte) = body.get_mut(at) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)];
                }
            }
            if copy > 4 {
                body.truncate(numbers.below(body.len()));
            }
            let mut frame = request_header(api, version, 5);
            frame.extend_from_slice(&body);
            let mut client = node.client().await;
            client.send_frame(&frame).await;
            client.finish_sending().await;
            let answer = tokio::time::timeout(Duration::from_secs(15), client.closed()).await;
            let answer = answer.unwrap_or_else(|_| panic!("{api} {version} hangs: {body:?}"));
            assert!(answer.is_empty() || answer[4..8] == [0, 0, 0, 5], "{api} {version}: {answer:?}");
            sent += 1;
        }
    }
    assert!(sent > 500, "{sent}");
    assert_eq!(node.metric("runtime_task_panics_total"), 0);
    assert_eq!(bystander.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
    node.stop().await;
}
