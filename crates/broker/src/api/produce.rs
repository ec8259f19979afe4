//! Produce (key 0): batches into partitions.
//!
//! In two steps, so that several requests of one connection share a sync: [`start`] appends, in the order of the
//! connection, and [`finish`] waits for the acks. The records stay slices of the received frame all the way.

use std::time::Duration;

use bytes::Bytes;
use tidelog_format::{
    batch::{Attributes, BatchHeader},
    codec::Codec,
};
use tidelog_replica::{AckFuture, Acks, AppendRequest, Appended};
use tidelog_types::{PartitionIndex, Timestamp, TopicName};
use tidelog_wire::{
    ApiKey, Context, ErrorCode, Records, RequestHeader, ResponseHeader, Value, encode_frame,
    messages::{
        ProduceRequest, ProduceResponse,
        produce::{
            LeaderIdAndEpoch, NodeEndpoint, PartitionProduceData, PartitionProduceResponse, TopicProduceData,
            TopicProduceResponse,
        },
    },
};

use super::metadata;
use crate::{
    connection::{Answer, Caller},
    error_code::{self, ApiError},
    handlers::{self, BadRequest, Request},
    node::{Node, is_internal},
};

/// The lowest version that is served; 0 to 2 are answered with an error, see
/// [`tidelog_wire::PRODUCE_ANNOUNCED_VERSION_MIN`].
pub(crate) const VERSION_MIN: i16 = 3;

/// The highest: 13 has topic ids, and comes when every API has them.
pub(crate) const VERSION_MAX: i16 = 12;

/// The first version whose clients know zstd.
const ZSTD_VERSION_MIN: i16 = 7;

/// A request whose batches are appended, or refused.
#[derive(Debug)]
pub(crate) struct Started {
    header: RequestHeader,
    acks: Option<Acks>,
    timeout: Duration,
    /// The answer as it is if every ack comes.
    response: ProduceResponse,
    /// One for each partition of the answer, in its order: the ack to wait for, where something was appended.
    waits: Vec<Option<AckFuture>>,
    /// When its last byte came.
    began: Duration,
}

impl Started {
    /// Whether [`finish`] would not wait.
    pub(crate) fn is_done(&self) -> bool {
        self.waits.iter().flatten().all(AckFuture::is_done)
    }
}

/// Appends the batches of a request, in its order. [`finish`] waits for the acks and makes the answer.
///
/// One partition after the other: an append is short and does not wait for its sync, so all of them share the next round.
pub(crate) async fn start(node: &Node, mut request: Request) -> Result<Box<Started>, BadRequest> {
    let (version, began) = (request.header.version, node.clock.monotonic());
    let body =
        if version < VERSION_MIN { read_old(&mut request)? } else { request.body::<ProduceRequest>()? };
    let frame_bytes = usize::try_from(request.permit.bytes()).unwrap_or(usize::MAX);
    let acks = match body.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Leader),
        -1 => Some(Acks::All),
        _ => None,
    };
    let mut waits = Vec::with_capacity(body.topic_data.iter().map(|topic| topic.partition_data.len()).sum());
    let mut responses = Vec::with_capacity(body.topic_data.len());
    let foreign = body.transactional_id.is_none() && body.topic_data.iter().any(is_transactional);
    for topic in body.topic_data {
        // Kafka answers for partitions, and for a topic only where it has some.
        if topic.partition_data.is_empty() {
            continue;
        }
        let name = TopicName::new(&topic.name);
        let mut partition_responses = Vec::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data {
            let index = partition.index;
            let outcome = match &name {
                _ if version < VERSION_MIN => {
                    Err(refused(index, ApiError::new(ErrorCode::UnsupportedVersion, "")))
                }
                _ if foreign => {
                    Err(refused(index, ApiError::new(ErrorCode::TransactionalIdAuthorizationFailed, "")))
                }
                Err(error) => {
                    Err(refused(index, ApiError::new(ErrorCode::UnknownTopicOrPartition, error.to_string())))
                }
                Ok(name) => append(node, version, name, partition, acks, frame_bytes).await,
            };
            let (response, wait) = match outcome {
                Ok(appended) => (answer_of(index, &appended), Some(appended.ack)),
                Err(refused) => (refused, None),
            };
            partition_responses.push(response);
            waits.push(wait);
        }
        responses.push(TopicProduceResponse {
            name: topic.name,
            partition_responses,
            ..TopicProduceResponse::default()
        });
    }
    // From here on the tail accounts for the records: the frame's charge ends with the request.
    let timeout = Duration::from_millis(u64::try_from(body.timeout_ms).unwrap_or(0));
    let response = ProduceResponse { responses, ..ProduceResponse::default() };
    Ok(Box::new(Started { header: request.header, acks, timeout, response, waits, began }))
}

/// Waits for the acks of a request and makes its answer.
pub(crate) async fn finish(
    node: &Node,
    caller: &Caller,
    started: Box<Started>,
) -> Result<Answer, BadRequest> {
    let Started { header, acks, timeout, mut response, waits, began } = *started;
    acknowledge(&mut response, waits, acks, timeout).await;
    let mut partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    if partitions.any(|partition| partition.error_code == ErrorCode::NotLeaderOrFollower.code()) {
        response.node_endpoints = endpoints(node, caller);
    }
    handlers::count(node, ApiKey::Produce, began);
    if acks == Some(Acks::None) {
        let partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        // No byte is sent for acks=0: closing is the only way to make such a producer look again.
        let close = partitions.into_iter().any(|partition| partition.error_code != 0);
        return Ok(Answer { close, ..Answer::default() });
    }
    if header.version < VERSION_MIN {
        return encode_old(&header, &response);
    }
    handlers::encode(&header, &response)
}

async fn append(
    node: &Node,
    version: i16,
    topic: &TopicName,
    partition: PartitionProduceData,
    acks: Option<Acks>,
    frame_bytes: usize,
) -> Result<Appended, PartitionProduceResponse> {
    let index = partition.index;
    let records = partition.records.map(|records| records.to_bytes()).unwrap_or_default();
    let Some(handle) = node.replicas.partition_by_name(topic, PartitionIndex(index)) else {
        let why = "This server does not host this topic-partition.";
        return Err(refused(index, ApiError::new(ErrorCode::UnknownTopicOrPartition, why)));
    };
    let Some(acks) = acks else {
        let why = "acks is not -1, 0 or 1";
        return Err(refused(index, ApiError::new(ErrorCode::InvalidRequiredAcks, why)));
    };
    if is_internal(topic) {
        let why = format!("Cannot append to internal topic {topic}");
        return Err(refused(index, ApiError::new(ErrorCode::InvalidTopicException, why)));
    }
    if version < ZSTD_VERSION_MIN && is_zstd(&records) {
        let why = "Produce requests below version 7 may not carry zstd.";
        return Err(refused(index, ApiError::new(ErrorCode::UnsupportedCompressionType, why)));
    }
    let request = AppendRequest { records, frame_bytes, acks, internal: false };
    handle.append(request).await.map_err(|error| {
        let code = error_code::append(&error);
        let image = handle.image();
        let current_leader = match code {
            ErrorCode::NotLeaderOrFollower => LeaderIdAndEpoch {
                leader_id: image.leader.map_or(-1, |leader| leader.0),
                leader_epoch: image.leader_epoch.to_wire(),
            },
            _ => LeaderIdAndEpoch::default(),
        };
        PartitionProduceResponse {
            record_errors: error_code::record_errors(&error, topic, index),
            log_start_offset: if error_code::tells_log_start(code, &error) {
                handle.snapshot().log_start.to_wire()
            } else {
                -1
            },
            current_leader,
            ..refused(index, ApiError::new(code, error.to_string()))
        }
    })
}

/// The answer for a partition to which nothing was appended.
fn refused(index: i32, error: ApiError) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: error.code.code(),
        base_offset: -1,
        error_message: error.into_message(),
        ..PartitionProduceResponse::default()
    }
}

/// The answer for a batch that was appended, if its ack comes.
fn answer_of(index: i32, appended: &Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        base_offset: appended.base_offset.to_wire(),
        log_append_time_ms: appended.log_append_time.map_or(-1, Timestamp::to_wire),
        log_start_offset: appended.log_start.to_wire(),
        ..PartitionProduceResponse::default()
    }
}

fn is_zstd(records: &Bytes) -> bool {
    attributes(records).is_some_and(|attributes| attributes.codec() == Ok(Codec::Zstd))
}

/// Whether a batch of a topic belongs to a transaction. Where the request names none that is nobody's, and Kafka refuses all of the
/// request.
fn is_transactional(topic: &TopicProduceData) -> bool {
    topic.partition_data.iter().any(|partition| {
        let records = partition.records.as_ref().map(Records::to_bytes).unwrap_or_default();
        attributes(&records).is_some_and(Attributes::is_transactional)
    })
}

fn attributes(records: &Bytes) -> Option<Attributes> {
    let header = BatchHeader::peek(records).filter(|header| header.magic() == BatchHeader::MAGIC)?;
    Some(header.attributes())
}

/// Waits for the acks, and sets the error of a partition whose ack does not come.
async fn acknowledge(
    response: &mut ProduceResponse,
    waits: Vec<Option<AckFuture>>,
    acks: Option<Acks>,
    timeout: Duration,
) {
    let deadline = tokio::time::Instant::now() + timeout;
    let partitions = response.responses.iter_mut().flat_map(|topic| &mut topic.partition_responses);
    // One after the other: all wait for the same rounds of the journal, so the last is not later for it.
    for (partition, wait) in partitions.zip(waits) {
        let Some(wait) = wait else { continue };
        let waited = match acks {
            Some(Acks::All) => match tokio::time::timeout_at(deadline, wait.wait()).await {
                Ok(waited) => waited.map_err(|error| error_code::ack(&error)),
                Err(_) => Err(ErrorCode::RequestTimedOut),
            },
            _ => wait.wait().await.map_err(|error| error_code::ack(&error)),
        };
        if let Err(code) = waited {
            partition.error_code = code.code();
        }
    }
}

/// Where the brokers are, for a producer that must look elsewhere.
fn endpoints(node: &Node, caller: &Caller) -> Vec<NodeEndpoint> {
    metadata::brokers(node, caller, &node.image())
        .into_iter()
        .map(|(id, host, port, rack)| NodeEndpoint { node_id: id.0, host, port, rack })
        .collect()
}

/// The versions below 3 differ in nothing that matters to an error, and have no other answer.
fn old(version: i16) -> Context {
    Context { version, flexible: false, nullable: false, tagged: false, field: "ProduceRequest" }
}

fn read_old(request: &mut Request) -> Result<ProduceRequest, BadRequest> {
    Ok(ProduceRequest::read(&mut request.body, old(request.header.version))?)
}

fn encode_old(header: &RequestHeader, response: &ProduceResponse) -> Result<Answer, BadRequest> {
    let (api, version) = (header.api, header.version);
    let slices = encode_frame(|writer| {
        ResponseHeader { correlation_id: header.correlation_id }.encode(writer, api, version);
        response.write(writer, old(version))
    })
    .map_err(|source| BadRequest::Encode { api, version, source })?;
    Ok(Answer { slices, ..Answer::default() })
}
