//! Produce (key 0): batches into partitions.
//!
//! In two steps, so that several requests of one connection share a sync: [`start`] appends, in the order of the
//! connection, and [`finish`] waits for the acks. The records stay slices of the received frame all the way.

use std::time::Duration;

use bytes::Bytes;
use tidelog_replica::{Acks, AppendRequest, Appended};
use tidelog_types::{Offset, PartitionIndex, TopicName};
use tidelog_wire::{
    ApiKey, Context, ErrorCode, RequestHeader, ResponseHeader, Str, Value, encode_frame,
    messages::{
        ProduceRequest, ProduceResponse,
        produce::{
            BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceData,
            PartitionProduceResponse, TopicProduceResponse,
        },
    },
};

use super::metadata;
use crate::{
    connection::{Answer, Caller},
    error_code::{self, ApiError},
    handlers::{self, BadRequest, Request},
    node::Node,
};

/// The lowest version that is served; 0 to 2 are answered with an error, see
/// [`tidelog_wire::PRODUCE_ANNOUNCED_VERSION_MIN`].
pub(crate) const VERSION_MIN: i16 = 3;

/// The highest: 13 has topic ids, and comes when every API has them.
pub(crate) const VERSION_MAX: i16 = 12;

/// The first version whose clients know zstd.
const ZSTD_VERSION_MIN: i16 = 7;

/// Where zstd stands in a batch's attributes, and where these stand in a batch.
const CODEC_MASK: u8 = 7;
const CODEC_ZSTD: u8 = 4;
const ATTRIBUTES_LOW_BYTE: usize = 22;

/// The outcome for one partition, before its ack.
#[derive(Debug)]
enum Outcome {
    Appended(Appended),
    // Boxed: appends are what there is many of.
    Refused(Box<Refused>),
}

/// Why nothing was appended to a partition.
#[derive(Debug)]
struct Refused {
    error: ApiError,
    records: Vec<BatchIndexAndErrorMessage>,
    leader: LeaderIdAndEpoch,
    log_start: Option<Offset>,
}

impl Outcome {
    fn refused(error: ApiError) -> Self {
        let leader = LeaderIdAndEpoch::default();
        Self::Refused(Box::new(Refused { error, records: Vec::new(), leader, log_start: None }))
    }
}

#[derive(Debug)]
struct PartitionOutcome {
    index: i32,
    outcome: Outcome,
}

#[derive(Debug)]
struct TopicOutcome {
    name: Str,
    partitions: Vec<PartitionOutcome>,
}

/// A request whose batches are appended, or refused.
#[derive(Debug)]
pub(crate) struct Started {
    header: RequestHeader,
    acks: Option<Acks>,
    timeout: Duration,
    topics: Vec<TopicOutcome>,
    /// When its last byte came.
    began: Duration,
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
    let mut topics = Vec::with_capacity(body.topic_data.len());
    for topic in body.topic_data {
        let name = TopicName::new(&topic.name);
        let mut partitions = Vec::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data {
            let index = partition.index;
            let outcome = match (acks, &name) {
                _ if version < VERSION_MIN => {
                    Outcome::refused(ApiError::new(ErrorCode::UnsupportedVersion, ""))
                }
                (None, _) => {
                    Outcome::refused(ApiError::new(ErrorCode::InvalidRequiredAcks, "acks is not -1, 0 or 1"))
                }
                (_, Err(error)) => {
                    Outcome::refused(ApiError::new(error_code::topic_name(error), error.to_string()))
                }
                (Some(acks), Ok(name)) => append(node, version, name, partition, acks, frame_bytes).await,
            };
            partitions.push(PartitionOutcome { index, outcome });
        }
        topics.push(TopicOutcome { name: topic.name, partitions });
    }
    // From here on the tail accounts for the records: the frame's charge ends with the request.
    let timeout = Duration::from_millis(u64::try_from(body.timeout_ms).unwrap_or(0));
    Ok(Box::new(Started { header: request.header, acks, timeout, topics, began }))
}

/// Waits for the acks of a request and makes its answer.
pub(crate) async fn finish(
    node: &Node,
    caller: &Caller,
    started: Box<Started>,
) -> Result<Answer, BadRequest> {
    let Started { header, acks, timeout, topics, began } = *started;
    let response = acknowledge(node, caller, topics, acks, timeout).await;
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
    acks: Acks,
    frame_bytes: usize,
) -> Outcome {
    let records = partition.records.map(|records| records.to_bytes()).unwrap_or_default();
    let Some(handle) = node.replicas.partition_by_name(topic, PartitionIndex(partition.index)) else {
        return Outcome::refused(ApiError::new(
            ErrorCode::UnknownTopicOrPartition,
            "This server does not host this topic-partition.",
        ));
    };
    if version < ZSTD_VERSION_MIN && is_zstd(&records) {
        return Outcome::refused(ApiError::new(
            ErrorCode::UnsupportedCompressionType,
            "Produce requests below version 7 may not carry zstd.",
        ));
    }
    match handle.append(AppendRequest { records, frame_bytes, acks, internal: false }).await {
        Ok(appended) => Outcome::Appended(appended),
        Err(error) => {
            let code = error_code::append(&error);
            let image = handle.image();
            let leader = match code {
                ErrorCode::NotLeaderOrFollower => LeaderIdAndEpoch {
                    leader_id: image.leader.map_or(-1, |leader| leader.0),
                    leader_epoch: image.leader_epoch.to_wire(),
                },
                _ => LeaderIdAndEpoch::default(),
            };
            Outcome::Refused(Box::new(Refused {
                records: error_code::record_errors(&error, topic, partition.index),
                error: ApiError::new(code, error.to_string()),
                leader,
                log_start: Some(handle.snapshot().log_start),
            }))
        }
    }
}

fn is_zstd(records: &Bytes) -> bool {
    records.get(ATTRIBUTES_LOW_BYTE).is_some_and(|attributes| attributes & CODEC_MASK == CODEC_ZSTD)
}

async fn acknowledge(
    node: &Node,
    caller: &Caller,
    topics: Vec<TopicOutcome>,
    acks: Option<Acks>,
    timeout: Duration,
) -> ProduceResponse {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut responses = Vec::with_capacity(topics.len());
    let mut moved = false;
    for topic in topics {
        let mut partition_responses = Vec::with_capacity(topic.partitions.len());
        // One after the other: all wait for the same rounds of the journal, so the last is not later for it.
        for PartitionOutcome { index, outcome } in topic.partitions {
            let response = match outcome {
                Outcome::Appended(appended) => acknowledged(index, appended, acks, deadline).await,
                Outcome::Refused(refused) => {
                    let Refused { error, records, leader, log_start } = *refused;
                    moved |= error.code == ErrorCode::NotLeaderOrFollower;
                    PartitionProduceResponse {
                        index,
                        error_code: error.code.code(),
                        base_offset: -1,
                        log_start_offset: log_start.map_or(-1, Offset::to_wire),
                        record_errors: records,
                        error_message: error.into_message(),
                        current_leader: leader,
                        ..PartitionProduceResponse::default()
                    }
                }
            };
            partition_responses.push(response);
        }
        responses.push(TopicProduceResponse {
            name: topic.name,
            partition_responses,
            ..TopicProduceResponse::default()
        });
    }
    let endpoints = if moved { metadata::brokers(node, caller, &node.image()) } else { Vec::new() };
    ProduceResponse {
        responses,
        node_endpoints: endpoints
            .into_iter()
            .map(|(id, host, port, rack)| NodeEndpoint { node_id: id.0, host, port, rack })
            .collect(),
        ..ProduceResponse::default()
    }
}

async fn acknowledged(
    index: i32,
    appended: Appended,
    acks: Option<Acks>,
    deadline: tokio::time::Instant,
) -> PartitionProduceResponse {
    let waited = match acks {
        Some(Acks::All) => match tokio::time::timeout_at(deadline, appended.ack.wait()).await {
            Ok(waited) => waited.map_err(|error| error_code::ack(&error)),
            Err(_) => Err(ErrorCode::RequestTimedOut),
        },
        _ => appended.ack.wait().await.map_err(|error| error_code::ack(&error)),
    };
    PartitionProduceResponse {
        index,
        error_code: waited.err().unwrap_or(ErrorCode::None).code(),
        base_offset: appended.base_offset.to_wire(),
        log_append_time_ms: appended.log_append_time.map_or(-1, tidelog_types::Timestamp::to_wire),
        log_start_offset: appended.log_start.to_wire(),
        error_message: None,
        ..PartitionProduceResponse::default()
    }
}

/// The versions below 3 differ in nothing that matters to an error, and have no other answer.
fn old(version: i16) -> Context {
    Context { version, flexible: false, nullable: false, field: "ProduceRequest" }
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
