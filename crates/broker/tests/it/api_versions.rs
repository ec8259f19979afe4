//! What is announced, and what is answered to those who ask in another version.

use bytes::Bytes;
use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{batch, batches, produce_request, request_header};
use tidelog_wire::{
    ApiKey, Context, ErrorCode, Reader, Str, Value,
    messages::{ApiVersionsRequest, ProduceResponse},
};

use crate::node::Node;

fn software() -> ApiVersionsRequest {
    ApiVersionsRequest {
        client_software_name: Str::from_static("raw"),
        client_software_version: Str::from_static("1.0"),
    }
}

// B01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_version_is_told_which_there_are_on_the_same_connection() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let mut frame = 18_i16.to_be_bytes().to_vec();
    frame.extend_from_slice(&127_i16.to_be_bytes());
    frame.extend_from_slice(&77_i32.to_be_bytes());
    // A flexible header and some body of the future.
    frame.extend_from_slice(&[0xff, 0xff, 0, 9, 9, 9, 9]);
    client.send_frame(&frame).await;
    let answer = client.receive_frame().await;
    assert_eq!(answer[..4], 77_i32.to_be_bytes());
    assert_eq!(answer[4..6], 35_i16.to_be_bytes());
    let count = usize::try_from(i32::from_be_bytes(answer[6..10].try_into().unwrap())).unwrap();
    assert_eq!(answer.len(), 10 + 6 * count, "the body of version 0, without tagged fields or throttle time");
    let ranges: Vec<[i16; 3]> = answer[10..]
        .chunks(6)
        .map(|range| [0, 2, 4].map(|at| i16::from_be_bytes([range[at], range[at + 1]])))
        .collect();
    assert_eq!(ranges, [[18, 0, 4]], "its own range alone, as Kafka answers");
    for version in [3, 0, 4, 1, 2] {
        let response = client.call(version, &software()).await;
        assert_eq!(response.error_code, 0, "version {version}");
        assert!(response.api_keys.len() > 30);
    }
    node.stop().await;
}

// B02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_is_announced_from_zero_and_its_oldest_versions_are_refused_in_words() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let announced = client.call(0, &ApiVersionsRequest::default()).await;
    let produce = announced.api_keys.iter().find(|range| range.api_key == 0).unwrap();
    assert_eq!((produce.min_version, produce.max_version), (0, 12));
    for version in 0..3 {
        let mut frame = request_header(ApiKey::Produce, version, 5);
        frame.extend_from_slice(&(-1_i16).to_be_bytes());
        frame.extend_from_slice(&1_000_i32.to_be_bytes());
        frame.extend_from_slice(&1_i32.to_be_bytes());
        frame.extend_from_slice(&[0, 1, b't']);
        frame.extend_from_slice(&1_i32.to_be_bytes());
        frame.extend_from_slice(&0_i32.to_be_bytes());
        frame.extend_from_slice(&3_i32.to_be_bytes());
        frame.extend_from_slice(b"old");
        client.send_frame(&frame).await;
        let mut reader = Reader::new(client.receive_frame().await);
        let context = Context { version, flexible: false, nullable: false, tagged: false, field: "answer" };
        assert_eq!(i32::read(&mut reader, context).unwrap(), 5);
        let response = ProduceResponse::read(&mut reader, context).unwrap();
        reader.finish().unwrap();
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.index, partition.error_code), (0, 35), "version {version}");
    }
    node.stop().await;
}

// B02, B10, B19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_codec_is_stored_as_it_was_sent() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let codecs = [(Codec::None, 0), (Codec::Gzip, 1), (Codec::Snappy, 2), (Codec::Lz4, 3), (Codec::Zstd, 4)];
    for (codec, number) in codecs {
        let sent = batch(codec, 1_000, &[&[b'x'; 1_000], &[b'y'; 1_000]]);
        let produced = client.produce("t", 0, sent.to_bytes()).await;
        assert_eq!((produced.error_code, produced.base_offset), (0, 2 * number));
        let fetched = client.fetch("t", 0, produced.base_offset).await;
        let stored = batches(&fetched).remove(0);
        assert_eq!(i64::from(stored.header.attributes().0 & 7), number);
        assert_eq!(
            (stored.body, stored.header.crc()),
            (sent.body, sent.header.crc()),
            "nothing was re-encoded"
        );
    }
    node.stop().await;
}

// B19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topics_codec_is_forced_by_the_broker() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (name, number) in [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("uncompressed", 0)] {
        client.create_topic(name, 1, &[("compression.type", name)]).await;
        let sent = batch(if number == 0 { Codec::Gzip } else { Codec::None }, 1_000, &[&[b'x'; 1_000]]);
        assert_eq!(client.produce(name, 0, sent.to_bytes()).await.error_code, 0);
        let fetched = client.fetch(name, 0, 0).await;
        assert_eq!(batches(&fetched)[0].header.attributes().0 & 7, number, "{name}");
        assert_eq!(tidelog_testkit::raw_client::values(&fetched), [(0, vec![b'x'; 1_000])]);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zstd_needs_a_version_that_knows_it() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let zstd: Bytes = batch(Codec::Zstd, 1_000, &[b"x"]).to_bytes();
    for (version, code) in [
        (3, ErrorCode::UnsupportedCompressionType),
        (6, ErrorCode::UnsupportedCompressionType),
        (7, ErrorCode::None),
    ] {
        let response = client.call(version, &produce_request("t", 0, 1, zstd.clone())).await;
        assert_eq!(response.responses[0].partition_responses[0].error_code, code.code(), "version {version}");
    }
    node.stop().await;
}
