//! Requests that several modules make.

use tidelog_testkit::raw_client::{RawClient, fetch_request};
use tidelog_wire::messages::{
    DeleteRecordsRequest, FetchRequest, InitProducerIdRequest,
    delete_records::{DeleteRecordsPartition, DeleteRecordsTopic},
};

/// Deletes records and gives the low watermark.
pub(crate) async fn delete_records(client: &mut RawClient, topic: &str, partition: i32, offset: i64) -> i64 {
    let partitions = vec![DeleteRecordsPartition { partition_index: partition, offset }];
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic { name: topic.into(), partitions }],
        timeout_ms: 10_000,
    };
    let deleted = client.call(2, &request).await;
    let deleted = &deleted.topics[0].partitions[0];
    assert_eq!(deleted.error_code, 0, "{topic}-{partition}");
    deleted.low_watermark
}

/// A fresh id of an idempotent producer.
pub(crate) async fn producer_id(client: &mut RawClient) -> i64 {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..InitProducerIdRequest::default()
    };
    let response = client.call(4, &request).await;
    assert_eq!((response.error_code, response.producer_epoch), (0, 0));
    response.producer_id
}

/// A fetch in a session.
pub(crate) fn in_session(
    session_id: i32,
    session_epoch: i32,
    partitions: &[(&str, i32, i64)],
) -> FetchRequest {
    FetchRequest { session_id, session_epoch, ..fetch_request(partitions) }
}
