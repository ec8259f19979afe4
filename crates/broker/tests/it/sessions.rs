//! Incremental fetch sessions over the wire.

use std::collections::BTreeMap;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{batch, fetch_request, values};
use tidelog_wire::{
    ErrorCode,
    messages::{
        FetchRequest, FetchResponse,
        fetch::{ForgottenTopic, PartitionData},
    },
};

use crate::node::{Node, Options};

fn one(value: &[u8]) -> bytes::Bytes {
    batch(Codec::None, 1_000, &[value]).to_bytes()
}

fn full(partitions: &[(&str, i32, i64)]) -> FetchRequest {
    FetchRequest { session_id: 0, session_epoch: 0, ..fetch_request(partitions) }
}

fn next(session_id: i32, session_epoch: i32, partitions: &[(&str, i32, i64)]) -> FetchRequest {
    FetchRequest { session_id, session_epoch, ..fetch_request(partitions) }
}

fn by_partition(response: FetchResponse) -> BTreeMap<i32, PartitionData> {
    let partitions = response.responses.into_iter().flat_map(|topic| topic.partitions);
    partitions.map(|data| (data.partition_index, data)).collect()
}

// B13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moves_while_a_fetch_waits_is_in_its_answer() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 3, &[]).await;
    let opened = client.call(12, &full(&[("t", 0, 0), ("t", 1, 0), ("t", 2, 0)])).await;
    let session = opened.session_id;
    assert_ne!(session, 0);
    assert_eq!(by_partition(opened).len(), 3);
    let waiting = FetchRequest { min_bytes: 1024 * 1024, max_wait_ms: 1_500, ..next(session, 1, &[]) };
    let id = client.send(12, &waiting).await;
    let mut producer = node.client().await;
    for _ in 0..3 {
        producer.produce("t", 0, one(b"ten bytes!")).await;
    }
    let answer = by_partition(client.receive::<FetchRequest>(12, id).await);
    assert_eq!(answer.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!((answer[&0].high_watermark, values(&answer[&0]).len()), (3, 3));
    // Consumed: the session's next answer has nothing to tell.
    let answer = by_partition(client.call(12, &next(session, 2, &[("t", 0, 3)])).await);
    assert_eq!(answer.len(), 0);
    node.stop().await;
}

// B13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_epochs_and_lost_sessions_let_the_client_begin_anew() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let session = client.call(12, &full(&[("t", 0, 0)])).await.session_id;
    let wrong = client.call(12, &next(session, 6, &[])).await;
    assert_eq!((wrong.error_code, wrong.responses.len()), (ErrorCode::InvalidFetchSessionEpoch.code(), 0));
    assert_eq!(client.call(12, &next(session, 1, &[])).await.error_code, 0, "it is still there");
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::default()).await;
    let mut client = node.client().await;
    assert_eq!(
        client.call(12, &next(session, 2, &[])).await.error_code,
        ErrorCode::FetchSessionIdNotFound.code()
    );
    let opened = client.call(12, &full(&[("t", 0, 0)])).await;
    assert_eq!((opened.error_code, opened.responses.len()), (0, 1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_names_does_not_take_ids() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let session = client.call(12, &full(&[("t", 0, 0)])).await.session_id;
    let answer = client.call(13, &next(session, 1, &[])).await;
    assert_eq!(answer.error_code, ErrorCode::FetchSessionTopicIdError.code());
    node.stop().await;
}

// C2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_fetch_tells_every_partition_it_names() {
    const PARTITIONS: i32 = 400;
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", PARTITIONS, &[]).await;
    for partition in 0..PARTITIONS {
        if partition % 4 == 0 {
            client.produce("t", partition, one(&[1; 20_000])).await;
            client.produce("t", partition, one(b"end")).await;
        }
    }
    let id = client.metadata(Some("t")).await.topics[0].topic_id;
    let session = client.call(12, &full(&[("t", 1, 0)])).await.session_id;
    for (round, version) in [11, 12, 16].into_iter().cycle().take(12).enumerate() {
        let asked: Vec<(&str, i32, i64)> = (0..PARTITIONS)
            .map(|partition| ("t", partition, i64::from(partition % 4 == 0 && round % 2 == 1)))
            .collect();
        let mut request = fetch_request(&asked);
        (request.session_epoch, request.max_bytes) = (-1, 1024 * 1024);
        request.topics[0].topic_id = id;
        let answer = client.call(version, &request).await;
        assert_eq!((answer.error_code, answer.session_id), (0, 0));
        let answer = by_partition(answer);
        assert_eq!(answer.len(), usize::try_from(PARTITIONS).unwrap());
        for (partition, data) in answer {
            let full = partition % 4 == 0;
            let end = if full { 2 } else { 0 };
            assert_eq!(
                (data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset),
                (0, end, end, 0),
                "partition {partition} in version {version}"
            );
            let offset = asked[usize::try_from(partition).unwrap()].2;
            if let Some((first, _)) = values(&data).first() {
                assert_eq!(*first, offset, "partition {partition}");
            }
        }
        // A session beside it on the same connection.
        let epoch = i32::try_from(round).unwrap() + 1;
        assert_eq!(client.call(12, &next(session, epoch, &[])).await.error_code, 0);
    }
    node.stop().await;
}

// C2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_partition_that_is_added_again_is_told() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    client.produce("t", 0, one(b"x")).await;
    let session = client.call(12, &full(&[("t", 0, 1), ("t", 1, 0)])).await.session_id;
    assert_eq!(by_partition(client.call(12, &next(session, 1, &[])).await).len(), 0, "nothing moved");
    let forget = FetchRequest {
        forgotten_topics_data: vec![ForgottenTopic {
            topic: "t".into(),
            partitions: vec![0],
            ..ForgottenTopic::default()
        }],
        ..next(session, 2, &[])
    };
    assert_eq!(by_partition(client.call(12, &forget).await).len(), 0);
    client.produce("t", 0, one(b"y")).await;
    assert_eq!(
        by_partition(client.call(12, &next(session, 3, &[])).await).len(),
        0,
        "it is not wanted any more"
    );
    let answer = by_partition(client.call(12, &next(session, 4, &[("t", 0, 2)])).await);
    assert_eq!(answer.len(), 1);
    assert_eq!(
        (answer[&0].high_watermark, answer[&0].log_start_offset, values(&answer[&0]).len()),
        (2, 0, 0)
    );
    node.stop().await;
}
