//! Settings of the broker that change what is answered, each with a value that is not its default.

use std::time::Duration;

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batches, fetch_request};
use tidelog_wire::{
    ErrorCode,
    messages::{
        DeleteTopicsRequest, DescribeTopicPartitionsRequest, FetchRequest, ListOffsetsRequest,
        delete_topics::DeleteTopicState,
        describe_topic_partitions::{Cursor, TopicRequest},
        list_offsets::{ListOffsetsPartition, ListOffsetsTopic},
    },
};

use crate::{
    cold::{Gate, tiered_with},
    groups::{QUICK, commit, coordinator, offsets, text},
    node::{Node, Options},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_topic_is_deleted_where_that_is_disabled() {
    let node = Node::start_with(Options::with(&[("delete.topic.enable", "false")])).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let by_name = DeleteTopicsRequest {
        topic_names: vec![text("t"), text("none")],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let topic_id = client.metadata(Some("t")).await.topics[0].topic_id;
    let by_id = DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: None, topic_id }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    // A version that does not know the code is told another one.
    let (disabled, invalid) = (ErrorCode::TopicDeletionDisabled.code(), ErrorCode::InvalidRequest.code());
    assert_eq!(disabled, 73);
    for (version, request, codes) in [
        (2, &by_name, vec![invalid; 2]),
        (3, &by_name, vec![disabled; 2]),
        (5, &by_name, vec![disabled; 2]),
        (6, &by_id, vec![disabled]),
    ] {
        let answer = client.call(version, request).await;
        let told: Vec<i16> = answer.responses.iter().map(|topic| topic.error_code).collect();
        assert_eq!(told, codes, "version {version}");
    }
    assert_eq!(client.metadata(Some("t")).await.topics[0].error_code, 0);
    node.stop().await;
}

/// The partitions that a page has, and where the next one begins.
async fn page(client: &mut RawClient, from: Option<Cursor>, limit: i32) -> (Vec<i32>, Option<Cursor>) {
    let request = DescribeTopicPartitionsRequest {
        topics: vec![TopicRequest { name: text("t") }],
        response_partition_limit: limit,
        cursor: from,
    };
    let answer = client.call(0, &request).await;
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    (partitions.map(|partition| partition.partition_index).collect(), answer.next_cursor)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_partitions_has_no_more_than_the_broker_allows() {
    let node = Node::start_with(Options::with(&[("max.request.partition.size.limit", "3")])).await;
    let mut client = node.client().await;
    client.create_topic("t", 5, &[]).await;
    let at = |partition_index| Some(Cursor { topic_name: text("t"), partition_index });
    assert_eq!(page(&mut client, None, 2_000).await, (vec![0, 1, 2], at(3)));
    assert_eq!(page(&mut client, at(3), 2_000).await, (vec![3, 4], None));
    assert_eq!(page(&mut client, None, 2).await, (vec![0, 1], at(2)), "less is granted");
    node.stop().await;
}

/// A fetch that begins a session, or goes on with one.
fn in_session(session_id: i32, session_epoch: i32, partitions: &[(&str, i32, i64)]) -> FetchRequest {
    FetchRequest { session_id, session_epoch, ..fetch_request(partitions) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_sessions_beyond_the_slots_are_not_made_and_their_fetches_answered_in_full() {
    for (slots, made) in [("0", 0), ("1", 1)] {
        let settings = [("max.incremental.fetch.session.cache.slots", slots)];
        let node = Node::start_with(Options::with(&settings)).await;
        let mut client = node.client().await;
        client.create_topic("t", 2, &[]).await;
        let mut ids = Vec::new();
        // The second is larger, which is no reason to take the place of one that is new.
        for partitions in [&[("t", 0, 0)][..], &[("t", 0, 0), ("t", 1, 0)]] {
            let answer = client.call(12, &in_session(0, 0, partitions)).await;
            assert_eq!(answer.error_code, 0);
            let told: usize = answer.responses.iter().map(|topic| topic.partitions.len()).sum();
            assert_eq!(told, partitions.len());
            ids.push(answer.session_id);
        }
        let kept: Vec<i32> = ids.iter().copied().filter(|id| *id != 0).collect();
        assert_eq!(kept.len(), made, "{slots} slots: {ids:?}");
        if let [kept] = kept[..] {
            assert_eq!(ids, [kept, 0], "the first has the slot");
            let answer = client.call(12, &in_session(kept, 1, &[])).await;
            assert_eq!((answer.error_code, answer.session_id, answer.responses.len()), (0, kept, 0));
            // Who ends a session makes room for another.
            assert_eq!(client.call(12, &in_session(kept, -1, &[])).await.session_id, 0);
            assert_ne!(client.call(12, &in_session(0, 0, &[("t", 1, 0)])).await.session_id, 0);
        }
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_are_written_with_the_codec_of_their_topic_and_read_again() {
    let codecs =
        [("0", Codec::None), ("1", Codec::Gzip), ("2", Codec::Snappy), ("3", Codec::Lz4), ("4", Codec::Zstd)];
    for (number, codec) in codecs {
        let own = [("offsets.topic.compression.codec", number), ("offsets.topic.num.partitions", "1")];
        let options = Options::with(&[QUICK, &own].concat());
        let node = Node::start_with(options.clone()).await;
        let mut client = node.client().await;
        client.create_topic("t", 1, &[]).await;
        coordinator(&mut client, "g").await;
        assert_eq!(commit(&mut client, "g", &[("t", 0, 7)]).await, [0]);
        let written = batches(&client.fetch("__consumer_offsets", 0, 0).await);
        let found: Vec<_> = written.iter().map(|batch| batch.header.attributes().codec()).collect();
        assert_eq!(found, [Ok(codec)]);
        let node = Node::start_in(node.stop().await, options).await;
        let mut client = node.client().await;
        coordinator(&mut client, "g").await;
        assert_eq!(offsets(&mut client, "g").await, [("t".to_owned(), 0, 7)], "{codec:?}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_by_time_in_a_bucket_that_hangs_is_answered_in_its_time() {
    const LIMIT: Duration = Duration::from_secs(2);
    let options = Options::with(&[("remote.list.offsets.request.timeout.ms", "2000")]);
    let (node, bucket) = tiered_with(options, Gate::Open).await;
    bucket.hang_look_ups(true);
    let mut client = node.client().await;
    let topic = |name: &str| {
        let partition = ListOffsetsPartition { partition_index: 0, current_leader_epoch: -1, timestamp: 1 };
        ListOffsetsTopic { name: text(name), partitions: vec![partition] }
    };
    let request = |timeout_ms| ListOffsetsRequest {
        replica_id: -1,
        topics: vec![topic("cold"), topic("hot")],
        timeout_ms,
        ..Default::default()
    };
    // What a client says counts where it is less, from the version on that says it.
    for (version, said, least, most) in [
        (9, 0, LIMIT, Duration::from_secs(10)),
        (10, 20_000, LIMIT, Duration::from_secs(10)),
        (10, 50, Duration::from_millis(50), LIMIT),
    ] {
        let (took, answer) = client.timed_call(version, &request(said)).await;
        let told = answer.topics.iter().map(|topic| &topic.partitions[0]);
        let told: Vec<_> = told.map(|told| (told.error_code, told.offset)).collect();
        assert_eq!(told, [(ErrorCode::RequestTimedOut.code(), -1), (0, 0)], "version {version}");
        assert!(took >= least && took < most, "version {version}, {said} ms: {took:?}");
    }
    bucket.hang_look_ups(false);
    let found = client.list_offset(9, "cold", 0, 1).await;
    assert_eq!((found.error_code, found.offset), (0, 0));
    node.stop().await;
}
