//! Records in.

use tidelog_format::{
    batch::{BatchBuilder, DecodedBatch, NewHeader, NewRecord},
    codec::Codec,
};
use tidelog_testkit::raw_client::{batch, batches, idempotent_batch, partition_of, produce_request, values};
use tidelog_types::{Offset, Timestamp};
use tidelog_wire::{
    ErrorCode, Str,
    messages::{ApiVersionsRequest, InitProducerIdRequest, ProduceRequest},
};

use crate::node::Node;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_produced_is_fetched_in_every_version() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let mut expected = Vec::new();
    for version in 3..=12 {
        for acks in [-1, 1] {
            let value = format!("{version} {acks}");
            let sent = batch(Codec::None, 1_000, &[value.as_bytes()]);
            let produced =
                partition_of(client.call(version, &produce_request("t", 0, acks, sent.to_bytes())).await);
            let offset = i64::try_from(expected.len()).unwrap();
            assert_eq!(
                (produced.error_code, produced.base_offset, produced.log_append_time_ms),
                (0, offset, -1)
            );
            assert_eq!(produced.log_start_offset, if version >= 5 { 0 } else { -1 });
            expected.push((offset, value.into_bytes()));
        }
    }
    // Acks=1 is visible once it is synced, which acks=all here has waited for but for the last.
    let last = client.produce("t", 0, batch(Codec::None, 1, &[b"end"]).to_bytes()).await;
    expected.push((last.base_offset, b"end".to_vec()));
    assert_eq!(values(&client.fetch("t", 0, 0).await), expected);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_controller_is_asked_by_a_produce_or_a_hot_fetch() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = producer_id(&mut client).await;
    node.stop_controller().await;
    for sequence in 0..20 {
        let sent = idempotent_batch(id, 0, sequence, 1_000, &[b"x"]);
        let produced = client.produce("t", 0, sent.to_bytes()).await;
        assert_eq!((produced.error_code, produced.base_offset), (0, i64::from(sequence)));
        assert_eq!(values(&client.fetch("t", 0, i64::from(sequence)).await).len(), 1);
    }
    // It is away: what needs it says so.
    let asked = InitProducerIdRequest { transaction_timeout_ms: 1_000, ..InitProducerIdRequest::default() };
    assert_ne!(client.call(4, &asked).await.error_code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_and_empty_come_back_as_they_were_sent() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let headers = [
        NewHeader { key: "h", value: None },
        NewHeader { key: "h", value: Some(b"") },
        NewHeader { key: "", value: Some(b"x") },
    ];
    let parts: [Option<&[u8]>; 3] = [None, Some(b""), Some(b"v")];
    let mut builder = BatchBuilder::new(Offset::ZERO);
    for key in parts {
        for value in parts {
            builder = builder.record(&NewRecord {
                timestamp: Some(Timestamp::from_millis(5)),
                key,
                value,
                headers: &headers,
            });
        }
    }
    client.produce("t", 0, builder.build().unwrap().to_bytes()).await;
    let fetched = client.fetch("t", 0, 0).await;
    let stored = batches(&fetched).remove(0);
    let decoded = DecodedBatch::new(&stored, 1 << 20).unwrap();
    let mut records = decoded.iter();
    for key in parts {
        for value in parts {
            let record = records.next().unwrap().unwrap();
            assert_eq!((record.key, record.value), (key, value));
            let back: Vec<_> = record.headers.iter().map(|header| header.value).collect();
            assert_eq!(back, [None, Some(&b""[..]), Some(&b"x"[..])]);
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_zero_gets_no_byte_and_an_error_closes() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.send(9, &produce_request("t", 0, 0, batch(Codec::None, 1, &[b"quiet"]).to_bytes())).await;
    // The next answer is the next request's: nothing came before it.
    assert_eq!(client.call(0, &ApiVersionsRequest::default()).await.error_code, 0);
    let next = client.produce("t", 0, batch(Codec::None, 1, &[b"next"]).to_bytes()).await;
    assert_eq!(next.base_offset, 1);
    client.send(9, &produce_request("none", 0, 0, batch(Codec::None, 1, &[b"lost"]).to_bytes())).await;
    assert_eq!(client.closed().await, Vec::<u8>::new());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_appended_and_answered_in_order() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    // More than may be in flight: the broker reads on as it answers.
    let mut sent = Vec::new();
    for number in 0..40_u8 {
        let records = batch(Codec::None, 1, &[&[number]]).to_bytes();
        let acks = if number % 3 == 0 { 1 } else { -1 };
        sent.push(client.send(9, &produce_request("t", 0, acks, records)).await);
        if number % 10 == 9 {
            // Another request among them keeps its place.
            let id = client.send(0, &ApiVersionsRequest::default()).await;
            sent.push(-id);
        }
    }
    let mut offset = 0;
    for id in sent {
        if id < 0 {
            client.receive::<ApiVersionsRequest>(0, -id).await;
            continue;
        }
        let response = partition_of(client.receive::<ProduceRequest>(9, id).await);
        assert_eq!((response.error_code, response.base_offset), (0, offset));
        offset += 1;
    }
    let last = client.produce("t", 0, batch(Codec::None, 1, &[&[40]]).to_bytes()).await;
    assert_eq!(last.base_offset, 40);
    let values: Vec<u8> =
        values(&client.fetch("t", 0, 0).await).into_iter().map(|(_, value)| value[0]).collect();
    assert_eq!(values, (0..=40).collect::<Vec<u8>>());
    node.stop().await;
}

async fn producer_id(client: &mut tidelog_testkit::raw_client::RawClient) -> i64 {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..InitProducerIdRequest::default()
    };
    let response = client.call(4, &request).await;
    assert_eq!((response.error_code, response.producer_epoch), (0, 0));
    response.producer_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producer_ids_are_never_given_twice_and_transactions_have_no_coordinator() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let first = producer_id(&mut client).await;
    assert_eq!(producer_id(&mut client).await, first + 1);
    let request = InitProducerIdRequest {
        transactional_id: Some(Str::from_static("t")),
        transaction_timeout_ms: 60_000,
        ..InitProducerIdRequest::default()
    };
    assert_eq!(client.call(4, &request).await.error_code, ErrorCode::CoordinatorNotAvailable.code());
    let folder = node.stop().await;
    let node = Node::start_in(folder, crate::node::Options::default()).await;
    let mut client = node.client().await;
    assert!(producer_id(&mut client).await > first + 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_batch_answers_with_its_first_offset() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = producer_id(&mut client).await;
    let one = idempotent_batch(id, 0, 0, 1_000, &[b"a", b"b"]).to_bytes();
    // The retry overtakes nothing: both are in flight.
    let ids = [
        client.send(9, &produce_request("t", 0, -1, one.clone())).await,
        client.send(9, &produce_request("t", 0, -1, one)).await,
    ];
    for sent in ids {
        let response = partition_of(client.receive::<ProduceRequest>(9, sent).await);
        assert_eq!((response.error_code, response.base_offset), (0, 0));
    }
    let gap = client.produce("t", 0, idempotent_batch(id, 0, 5, 1_000, &[b"gap"]).to_bytes()).await;
    assert_eq!(gap.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    let next = client.produce("t", 0, idempotent_batch(id, 0, 2, 1_000, &[b"c"]).to_bytes()).await;
    assert_eq!((next.error_code, next.base_offset), (0, 2));
    assert_eq!(values(&client.fetch("t", 0, 0).await).len(), 3);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_append_time_is_told_and_stored() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    let produced = client.produce("t", 0, batch(Codec::None, 1_000, &[b"x"]).to_bytes()).await;
    assert!(produced.log_append_time_ms > 1_700_000_000_000);
    let stored = batches(&client.fetch("t", 0, 0).await).remove(0);
    assert_eq!(stored.header.max_timestamp_raw(), produced.log_append_time_ms);
    assert_eq!(stored.header.attributes().0 & 8, 8);
    assert!(stored.crc_is_valid());
    node.stop().await;
}
