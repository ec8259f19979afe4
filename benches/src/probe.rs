//! Waits until a broker takes appends on every partition of a topic: the end of a start, as a producer sees it.
//!
//! It speaks Kafka's protocol itself, since a client library waits between its tries. Any broker that knows Produce 9 is probed
//! the same way.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tidelog_format::{batch::RawBatch, codec::Codec};
use tidelog_testkit::raw_client::batch;
use tidelog_wire::ApiKey;
use tidelog_wire::{
    Message as _, Reader, Records, ResponseHeader, Str, encode_request_frame,
    messages::{
        ProduceRequest, ProduceResponse,
        produce::{PartitionProduceData, TopicProduceData},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The version of Produce: the last that names topics by name in every release since 2.4.
const PRODUCE_VERSION: i16 = 9;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// An answer is at most this large.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// When the broker was ready, from the start of the probe.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// A connection was accepted.
    pub connected_ms: f64,
    /// One partition took an append.
    pub first_append_ms: f64,
    /// Every partition had taken one.
    pub all_appends_ms: f64,
    /// Tries that were refused before.
    pub tries: u64,
}

/// Appends one record to each partition, until each has taken it.
///
/// # Errors
/// Where some have not within `limit`.
pub async fn run(
    address: SocketAddr,
    topic: &str,
    partitions: i32,
    acks: i16,
    limit: Duration,
) -> Result<Outcome> {
    let begun = Instant::now();
    let record = batch(Codec::None, 1_700_000_000_000, &[b"probe"]);
    let mut left: Vec<i32> = (0..partitions).collect();
    let (mut connected, mut first, mut tries) = (None, None, 0);
    let mut stream: Option<TcpStream> = None;
    let mut last_error = String::from("no connection was accepted");
    while !left.is_empty() {
        if begun.elapsed() > limit {
            bail!("{} of {partitions} partitions took no append within {limit:?}: {last_error}", left.len());
        }
        let mut socket = match stream.take() {
            Some(socket) => socket,
            None => match TcpStream::connect(address).await {
                Ok(socket) => socket,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let elapsed = || begun.elapsed().as_secs_f64() * 1e3;
        connected.get_or_insert_with(elapsed);
        tries += 1;
        match append(&mut socket, topic, &left, acks, &record).await {
            Ok(taken) => {
                if !taken.is_empty() {
                    first.get_or_insert_with(elapsed);
                } else {
                    "every partition answered with an error".clone_into(&mut last_error);
                }
                left.retain(|partition| !taken.contains(partition));
                stream = Some(socket);
            }
            Err(error) => last_error = format!("{error:#}"),
        }
        if !left.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    let all_appends_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(Outcome {
        connected_ms: connected.unwrap_or(all_appends_ms),
        first_append_ms: first.unwrap_or(all_appends_ms),
        all_appends_ms,
        tries,
    })
}

/// Sends one request for these partitions; answers those that took it.
async fn append(
    socket: &mut TcpStream,
    topic: &str,
    partitions: &[i32],
    acks: i16,
    record: &RawBatch,
) -> Result<Vec<i32>> {
    let mut records = BytesMut::from(record.header.as_bytes().as_slice());
    records.extend_from_slice(&record.body);
    let records = records.freeze();
    let partition_data = partitions
        .iter()
        .map(|index| PartitionProduceData { index: *index, records: Some(Records::from(records.clone())) })
        .collect();
    let request = ProduceRequest {
        acks,
        timeout_ms: 10_000,
        topic_data: vec![TopicProduceData {
            name: Str::from(topic),
            partition_data,
            ..TopicProduceData::default()
        }],
        ..ProduceRequest::default()
    };
    let client = Some(Str::from_static("probe"));
    let slices = encode_request_frame(PRODUCE_VERSION, 1, client, &request).context("encode the request")?;
    let frame: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
    let answer = tokio::time::timeout(Duration::from_secs(15), async {
        socket.write_all(&frame).await?;
        let size = usize::try_from(socket.read_i32().await?).unwrap_or(usize::MAX);
        if size > ANSWER_BYTES_MAX {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidData));
        }
        let mut answer = vec![0; size];
        socket.read_exact(&mut answer).await?;
        Ok(Bytes::from(answer))
    });
    let answer = answer.await.context("no answer within 15 s")?.context("the connection ended")?;
    let mut reader = Reader::new(answer);
    ResponseHeader::decode(&mut reader, ApiKey::Produce, PRODUCE_VERSION).context("the answer's header")?;
    let response = ProduceResponse::decode(&mut reader, PRODUCE_VERSION).context("the answer")?;
    Ok(response
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .filter(|partition| partition.error_code == 0)
        .map(|partition| partition.index)
        .collect())
}
