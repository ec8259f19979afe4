//! Reading one partition from an offset on.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tidelog_format::batch::{BatchLimits, DecodedBatch, RawBatch, split_batches};
use tidelog_types::{Timestamp, TopicName};
use tidelog_wire::messages::{FetchRequest, ListOffsetsRequest, fetch, list_offsets};

use super::{ADMIN_TIMEOUT, ClientError, Connection, TopicMetadata, check};

const FETCH_VERSION: i16 = 12;
const LIST_OFFSETS_VERSION: i16 = 7;

/// Bytes that one fetch asks for.
const FETCH_BYTES: i32 = 8 * 1024 * 1024;

/// The largest that the records of one batch become when they are decompressed.
const DECODED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Where reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest record.
    Beginning,
    /// After the newest record.
    End,
    /// This offset.
    Offset(i64),
    /// The first record at or after this time.
    Time(Timestamp),
}

/// One record as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    /// Its offset.
    pub offset: i64,
    /// Its time in milliseconds; −1 for none.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// A reader of one partition.
#[derive(Debug)]
pub struct PartitionReader {
    connection: Connection,
    topic: TopicName,
    partition: i32,
    position: i64,
    high_watermark: i64,
}

impl PartitionReader {
    /// Connects to a partition's leader and finds where to start.
    ///
    /// # Errors
    /// Where the leader does not answer, or refuses.
    ///
    /// # Panics
    /// Where the topic has no such partition.
    pub async fn open(topic: &TopicMetadata, partition: usize, start: StartAt) -> Result<Self, ClientError> {
        let mut connection = Connection::open(&topic.leaders[partition]).await?;
        let index = i32::try_from(partition).unwrap_or(i32::MAX);
        let name = topic.name.clone();
        let position = match start {
            StartAt::Offset(offset) => offset,
            StartAt::Beginning => look_up(&mut connection, &name, index, -2).await?,
            StartAt::End => look_up(&mut connection, &name, index, -1).await?,
            StartAt::Time(time) => match look_up(&mut connection, &name, index, time.to_wire()).await? {
                -1 => look_up(&mut connection, &name, index, -1).await?,
                found => found,
            },
        };
        Ok(Self { connection, topic: name, partition: index, position, high_watermark: -1 })
    }

    /// The offset of the next record.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.position
    }

    /// The end of what could be read at the last fetch; −1 before the first one.
    #[must_use]
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// The end of the partition, asked now.
    ///
    /// # Errors
    /// Where the leader does not answer, or refuses.
    pub async fn end(&mut self) -> Result<i64, ClientError> {
        let topic = self.topic.clone();
        look_up(&mut self.connection, &topic, self.partition, -1).await
    }

    /// Fetches what comes next, waiting up to `wait` where there is nothing. Not cancel safe.
    ///
    /// # Errors
    /// Where the leader does not answer or refuses (a retriable refusal may pass), or gives what does not decode.
    pub async fn fetch(&mut self, wait: Duration) -> Result<Vec<ReadRecord>, ClientError> {
        let request = FetchRequest {
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            topics: vec![fetch::FetchTopic {
                topic: self.topic.as_str().into(),
                partitions: vec![fetch::FetchPartition {
                    partition: self.partition,
                    fetch_offset: self.position,
                    partition_max_bytes: FETCH_BYTES,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer = self.connection.call(FETCH_VERSION, &request, wait).await?;
        let what = || format!("read partition {} of {}", self.partition, self.topic);
        check(what, answer.error_code, None)?;
        let partition = answer.responses.into_iter().flat_map(|topic| topic.partitions).next();
        let partition = partition.ok_or(ClientError::Incomplete("the partition"))?;
        check(what, partition.error_code, None)?;
        self.high_watermark = partition.high_watermark;
        let bytes = partition.records.map(|records| records.to_bytes()).unwrap_or_default();
        self.decode(bytes)
    }

    /// Takes batches apart. The last one may be cut short where the broker's limit was reached.
    fn decode(&mut self, mut bytes: Bytes) -> Result<Vec<ReadRecord>, ClientError> {
        let mut records = Vec::new();
        while let Some(whole) = whole_batch(&bytes) {
            let one = bytes.slice(..whole);
            bytes.advance(whole);
            for batch in split_batches(one, &BatchLimits::log()) {
                let batch = batch.map_err(|error| self.bad(&error))?;
                self.decode_batch(&batch, &mut records)?;
            }
        }
        Ok(records)
    }

    fn decode_batch(&mut self, batch: &RawBatch, records: &mut Vec<ReadRecord>) -> Result<(), ClientError> {
        let end = batch.header.end_offset().ok_or(ClientError::Incomplete("a batch's end"))?.to_wire();
        if !batch.header.attributes().is_control() {
            let decoded = DecodedBatch::new(batch, DECODED_BYTES_MAX).map_err(|error| self.bad(&error))?;
            for record in decoded.iter() {
                let record = record.map_err(|error| self.bad(&error))?;
                let offset = record.offset.to_wire();
                if offset < self.position {
                    continue;
                }
                let header = |one: tidelog_format::batch::Header<'_>| {
                    (String::from_utf8_lossy(one.key).into_owned(), one.value.map(Bytes::copy_from_slice))
                };
                records.push(ReadRecord {
                    offset,
                    timestamp: record.timestamp.map_or(-1, Timestamp::to_wire),
                    key: record.key.map(Bytes::copy_from_slice),
                    value: record.value.map(Bytes::copy_from_slice),
                    headers: record.headers.iter().map(header).collect(),
                });
            }
        }
        self.position = self.position.max(end);
        Ok(())
    }

    fn bad(&self, error: &dyn std::fmt::Display) -> ClientError {
        ClientError::BadBatch { partition: self.partition, offset: self.position, reason: error.to_string() }
    }
}

/// The length of the batch at the front, if all of it is there.
fn whole_batch(bytes: &Bytes) -> Option<usize> {
    const PREFIX: usize = 12;
    let length = bytes.get(8..PREFIX)?;
    let length = usize::try_from(i32::from_be_bytes(length.try_into().ok()?)).ok()?;
    let whole = length.checked_add(PREFIX)?;
    (whole <= bytes.len()).then_some(whole)
}

/// Asks for the offset of a time, or of one of Kafka's special ones.
async fn look_up(
    connection: &mut Connection,
    topic: &TopicName,
    partition: i32,
    timestamp: i64,
) -> Result<i64, ClientError> {
    let request = ListOffsetsRequest {
        replica_id: -1,
        topics: vec![list_offsets::ListOffsetsTopic {
            name: topic.as_str().into(),
            partitions: vec![list_offsets::ListOffsetsPartition {
                partition_index: partition,
                timestamp,
                ..Default::default()
            }],
        }],
        ..Default::default()
    };
    let answer = connection.call(LIST_OFFSETS_VERSION, &request, ADMIN_TIMEOUT).await?;
    let found = answer.topics.into_iter().flat_map(|topic| topic.partitions).next();
    let found = found.ok_or(ClientError::Incomplete("the partition"))?;
    check(|| format!("look up an offset of partition {partition} of {topic}"), found.error_code, None)?;
    Ok(found.offset)
}
