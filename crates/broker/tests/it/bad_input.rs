//! Frames and batches that break a rule.

use bytes::{Bytes, BytesMut};
use tidelog_format::{
    batch::{BatchBuilder, RawBatch},
    codec::Codec,
};
use tidelog_testkit::raw_client::{RawClient, batch, produce_request, record, request_header, values};
use tidelog_types::Offset;
use tidelog_wire::{
    ApiKey, ErrorCode, Records, Str,
    messages::{
        ApiVersionsRequest, ProduceRequest,
        produce::{PartitionProduceData, TopicProduceData},
    },
};

use crate::node::{Node, Options};

/// A client that must not notice what others send.
async fn unharmed(bystander: &mut RawClient) {
    assert_eq!(bystander.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
}

// B05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_make_no_sense_close_their_connection_alone() {
    let node = Node::start().await;
    let mut bystander = node.client().await;
    let mut array_beyond = request_header(ApiKey::Fetch, 4, 1);
    // replica, wait, bytes, bytes, isolation, and 2^31 - 1 topics: 206 GB to a careless decoder.
    array_beyond.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    array_beyond.extend_from_slice(&i32::MAX.to_be_bytes());
    let mut cut = request_header(ApiKey::Metadata, 1, 1);
    cut.extend_from_slice(&[0, 0]);
    let mut unknown_key = 999_i16.to_be_bytes().to_vec();
    unknown_key.extend_from_slice(&[0, 0, 0, 0, 0, 1, 0xff, 0xff]);
    let mut cut_header = 3_i16.to_be_bytes().to_vec();
    cut_header.extend_from_slice(&[0, 1, 0, 0, 0, 1, 0, 99]);
    let frames: Vec<(&str, Vec<u8>)> = vec![
        ("an array beyond the frame", array_beyond),
        ("a frame that ends inside a field", cut),
        ("an unknown key", unknown_key),
        ("a header that ends inside a field", cut_header),
        ("a version above", request_header(ApiKey::Metadata, 14, 1)),
        ("a version below", request_header(ApiKey::Fetch, 3, 1)),
        ("OffsetCommit 0, which is not announced", request_header(ApiKey::OffsetCommit, 0, 1)),
        ("OffsetFetch 0, which is not announced", request_header(ApiKey::OffsetFetch, 0, 1)),
        ("a negative version", request_header(ApiKey::Metadata, -1, 1)),
        ("Produce of a negative version", request_header(ApiKey::Produce, -1, 1)),
        ("Produce above", request_header(ApiKey::Produce, 13, 1)),
        ("too short", vec![0; 7]),
        ("empty", Vec::new()),
    ];
    let count = u64::try_from(frames.len()).unwrap();
    for (what, frame) in frames {
        let mut client = node.client().await;
        // What was answered before stays answered.
        assert_eq!(client.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
        client.send_frame(&frame).await;
        assert_eq!(client.closed().await, Vec::<u8>::new(), "{what}");
        unharmed(&mut bystander).await;
    }
    assert_eq!(node.metric("broker_bad_frames_total"), count);
    node.stop().await;
}

// librdkafka sends three bytes behind its Metadata request for all topics, and Kafka does not mind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_behind_a_request_are_ignored() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let mut trailing = request_header(ApiKey::ApiVersions, 0, 1);
    trailing.extend_from_slice(&[0, 0, 0]);
    client.send_frame(&trailing).await;
    let answer = client.receive_frame().await;
    assert_eq!(answer[..6], [0, 0, 0, 1, 0, 0], "correlation id 1, error 0");
    unharmed(&mut client).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_out_of_bounds_and_other_protocols_close_their_connection_alone() {
    let node = Node::start_with(Options::with(&[("socket.request.max.bytes", "1000")])).await;
    let mut bystander = node.client().await;
    for size in [1001_i32, i32::MAX, -1, i32::MIN] {
        let mut client = node.client().await;
        client.send_bytes(&size.to_be_bytes()).await;
        assert_eq!(client.closed().await, Vec::<u8>::new(), "{size}");
        unharmed(&mut bystander).await;
    }
    assert_eq!(node.metric("broker_bad_frames_total"), 4);
    let openings: [&[u8]; 3] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /",
        &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc],
    ];
    for opening in openings {
        let mut client = node.client().await;
        client.send_bytes(opening).await;
        assert_eq!(client.closed().await, Vec::<u8>::new());
        unharmed(&mut bystander).await;
    }
    assert_eq!((node.metric("broker_not_kafka_total"), node.metric("broker_bad_frames_total")), (3, 4));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_size_reserves_nothing() {
    let node = Node::start_with(Options::with(&[("queued.max.request.bytes", "1048576")])).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut claiming = node.client().await;
        // The size of a frame, the key and version of Produce, and silence.
        claiming.send_bytes(&[&90_000_000_i32.to_be_bytes()[..], &[0, 0, 0, 9]].concat()).await;
        idle.push(claiming);
    }
    assert_eq!(client.produce("t", 0, batch(Codec::None, 1, &[b"x"]).to_bytes()).await.error_code, 0);
    drop(idle);
    node.stop().await;
}

fn broken(change: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut bytes = BytesMut::from(&batch(Codec::None, 1_000, &[b"a", b"b"]).to_bytes()[..]);
    change(&mut bytes);
    bytes.freeze()
}

/// As `broken`, with a CRC that is right for it.
fn dishonest(change: impl FnOnce(&mut BytesMut)) -> Bytes {
    broken(|bytes| {
        change(bytes);
        let crc = tidelog_format::crc::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    })
}

fn wide(name: &str, partitions: Vec<(i32, Bytes)>) -> ProduceRequest {
    let partition_data = partitions
        .into_iter()
        .map(|(index, records)| PartitionProduceData { index, records: Some(Records::from(records)) });
    ProduceRequest {
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![TopicProduceData {
            name: Str::from(name),
            partition_data: partition_data.collect(),
            ..TopicProduceData::default()
        }],
        ..ProduceRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_breaks_a_rule_gets_its_code_and_the_others_are_served() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[("max.message.bytes", "2000")]).await;
    let far: RawBatch = batch(Codec::None, 4_000_000_000_000, &[b"far"]);
    let cases: Vec<(&str, Bytes, ErrorCode)> = vec![
        ("crc", broken(|b| b[70] ^= 1), ErrorCode::CorruptMessage),
        ("magic 0", broken(|b| b[16] = 0), ErrorCode::InvalidRecord),
        ("magic 1", broken(|b| b[16] = 1), ErrorCode::InvalidRecord),
        ("magic 3", broken(|b| b[16] = 3), ErrorCode::CorruptMessage),
        ("plain records said to be zstd", dishonest(|b| b[22] = 4), ErrorCode::InvalidRecord),
        ("count", dishonest(|b| b[60] = 3), ErrorCode::InvalidRecord),
        ("last offset delta", dishonest(|b| b[26] = 5), ErrorCode::InvalidRecord),
        ("a record less than counted", dishonest(|b| (b[26], b[60]) = (2, 3)), ErrorCode::InvalidRecord),
        ("a record more than counted", dishonest(|b| (b[26], b[60]) = (0, 1)), ErrorCode::InvalidRecord),
        ("records that are none", dishonest(|b| b[61..].fill(0xff)), ErrorCode::InvalidRecord),
        ("codec 7", dishonest(|b| b[22] = 7), ErrorCode::UnsupportedCompressionType),
        ("control", dishonest(|b| b[22] |= 0x20), ErrorCode::InvalidRecord),
        ("length beyond", broken(|b| b[11] = b[11].wrapping_add(9)), ErrorCode::InvalidRecord),
        ("length below", broken(|b| b[8..12].fill(0)), ErrorCode::CorruptMessage),
        ("too large", batch(Codec::None, 1_000, &[&[0; 2_000]]).to_bytes(), ErrorCode::MessageTooLarge),
        ("a time far ahead", far.to_bytes(), ErrorCode::InvalidTimestamp),
        ("no batch", Bytes::new(), ErrorCode::InvalidRecord),
        (
            "two batches",
            broken(|b| {
                let again = b.clone();
                b.extend_from_slice(&again);
            }),
            ErrorCode::InvalidRecord,
        ),
    ];
    for ((what, records, code), served) in cases.into_iter().zip(0..) {
        let good = batch(Codec::None, 1_000, &[b"good"]).to_bytes();
        let mut response = client.call(9, &wide("t", vec![(0, records), (1, good)])).await;
        let partitions = response.responses.remove(0).partition_responses;
        assert_eq!((partitions[0].error_code, partitions[0].base_offset), (code.code(), -1), "{what}");
        assert_eq!((partitions[1].error_code, partitions[1].base_offset), (0, served), "{what}");
    }
    assert_eq!(client.fetch("t", 0, 0).await.high_watermark, 0, "nothing was appended");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_without_key_on_a_compacted_topic_is_named_by_its_index() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("c", 1, &[("cleanup.policy", "compact")]).await;
    let records = BatchBuilder::new(Offset::ZERO)
        .record(&record(1, Some(b"k"), Some(b"v")))
        .record(&record(1, None, Some(b"v")))
        .record(&record(1, Some(b""), None))
        .record(&record(1, None, None))
        .build()
        .unwrap();
    let response = client.produce("c", 0, records.to_bytes()).await;
    assert_eq!(response.error_code, ErrorCode::InvalidRecord.code());
    let indexes: Vec<i32> = response.record_errors.iter().map(|error| error.batch_index).collect();
    assert_eq!(indexes, [1, 3]);
    let good = BatchBuilder::new(Offset::ZERO).record(&record(1, Some(b"k"), None)).build().unwrap();
    assert_eq!(client.produce("c", 0, good.to_bytes()).await.error_code, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_places_and_acks_get_their_codes() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let good = batch(Codec::None, 1_000, &[b"x"]).to_bytes();
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(client.produce("t", 1, good.clone()).await.error_code, unknown);
    assert_eq!(client.produce("t", -1, good.clone()).await.error_code, unknown);
    assert_eq!(client.produce("none", 0, good.clone()).await.error_code, unknown);
    assert_eq!(client.produce("a/b", 0, good.clone()).await.error_code, unknown);
    let response = client.call(9, &produce_request("t", 0, 2, good)).await;
    assert_eq!(
        response.responses[0].partition_responses[0].error_code,
        ErrorCode::InvalidRequiredAcks.code()
    );
    assert_eq!(values(&client.fetch("t", 0, 0).await), []);
    node.stop().await;
}
