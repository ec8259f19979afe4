//! Reading one partition from an offset on.

use std::{collections::BTreeMap, time::Duration};

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

/// Where reading a partition is.
#[derive(Debug)]
struct Cursor {
    topic: TopicName,
    partition: i32,
    position: i64,
    high_watermark: i64,
}

/// A reader of one partition.
#[derive(Debug)]
pub struct PartitionReader {
    connection: Connection,
    cursor: Cursor,
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
        let cursor = Cursor::find(&mut connection, &topic.name, partition, start).await?;
        Ok(Self { connection, cursor })
    }

    /// The offset of the next record.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.cursor.position
    }

    /// The end of what could be read at the last fetch; −1 before the first one.
    #[must_use]
    pub fn high_watermark(&self) -> i64 {
        self.cursor.high_watermark
    }

    /// The end of the partition, asked now.
    ///
    /// # Errors
    /// Where the leader does not answer, or refuses.
    pub async fn end(&mut self) -> Result<i64, ClientError> {
        look_up(&mut self.connection, &self.cursor.topic, self.cursor.partition, -1).await
    }

    /// Fetches what comes next, waiting up to `wait` where there is nothing. Not cancel safe.
    ///
    /// # Errors
    /// Where the leader does not answer or refuses (a retriable refusal may pass), or gives what does not decode.
    pub async fn fetch(&mut self, wait: Duration) -> Result<Vec<ReadRecord>, ClientError> {
        let request = fetch_request(&self.cursor.topic, [&self.cursor], wait);
        let answer = self.connection.call(FETCH_VERSION, &request, wait).await?;
        check(|| self.cursor.what(), answer.error_code, None)?;
        let partition = answer.responses.into_iter().flat_map(|topic| topic.partitions).next();
        self.cursor.take(partition.ok_or(ClientError::Incomplete("the partition"))?)
    }
}

/// A reader of all partitions that one broker leads: one request asks for all of them, so that none waits for another.
#[derive(Debug)]
pub struct LeaderReader {
    connection: Connection,
    topic: TopicName,
    /// With the end, where reading stops there.
    cursors: Vec<(Cursor, Option<i64>)>,
}

/// What one fetch of several partitions gave.
#[derive(Debug)]
pub struct LeaderFetch {
    /// Records by partition, in order.
    pub records: Vec<(i32, Vec<ReadRecord>)>,
    /// A partition that was refused, the others notwithstanding.
    pub refused: Option<ClientError>,
}

impl LeaderReader {
    /// Connects to the leaders of `partitions` and finds where to start; one reader for each leader. Reading stops at what
    /// the end is now unless `follow`.
    ///
    /// # Errors
    /// Where a leader does not answer, or refuses.
    ///
    /// # Panics
    /// Where the topic has no such partition.
    pub async fn open(
        topic: &TopicMetadata,
        partitions: &[usize],
        start: StartAt,
        follow: bool,
    ) -> Result<Vec<Self>, ClientError> {
        let mut leaders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for partition in partitions {
            leaders.entry(&topic.leaders[*partition]).or_default().push(*partition);
        }
        let mut readers = Vec::with_capacity(leaders.len());
        for (leader, partitions) in leaders {
            let mut connection = Connection::open(leader).await?;
            let mut cursors = Vec::with_capacity(partitions.len());
            for partition in partitions {
                let cursor = Cursor::find(&mut connection, &topic.name, partition, start).await?;
                let end = match follow {
                    true => None,
                    false => Some(look_up(&mut connection, &topic.name, cursor.partition, -1).await?),
                };
                cursors.push((cursor, end));
            }
            readers.push(Self { connection, topic: topic.name.clone(), cursors });
        }
        Ok(readers)
    }

    /// Whether everything up to the ends was read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.cursors.iter().all(is_read)
    }

    /// Fetches what comes next of all partitions, waiting up to `wait` where none has anything. Not cancel safe.
    ///
    /// # Errors
    /// Where the leader does not answer, or gives what does not decode.
    pub async fn fetch(&mut self, wait: Duration) -> Result<LeaderFetch, ClientError> {
        // Each comes first in its turn: the limit of an answer would starve the last ones.
        if !self.cursors.is_empty() {
            self.cursors.rotate_left(1);
        }
        let open = self.cursors.iter().filter(|one| !is_read(one)).map(|(cursor, _)| cursor);
        let request = fetch_request(&self.topic, open, wait);
        let answer = self.connection.call(FETCH_VERSION, &request, wait).await?;
        check(|| format!("read {}", self.topic), answer.error_code, None)?;
        let mut fetched = LeaderFetch { records: Vec::new(), refused: None };
        for partition in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let index = partition.partition_index;
            let Some((cursor, end)) = self.cursors.iter_mut().find(|(cursor, _)| cursor.partition == index)
            else {
                continue;
            };
            match cursor.take(partition) {
                Ok(mut records) => {
                    records.retain(|record| end.is_none_or(|end| record.offset < end));
                    if !records.is_empty() {
                        fetched.records.push((index, records));
                    }
                }
                Err(refused @ ClientError::Refused { .. }) => fetched.refused = Some(refused),
                Err(error) => return Err(error),
            }
        }
        Ok(fetched)
    }
}

fn is_read((cursor, end): &(Cursor, Option<i64>)) -> bool {
    end.is_some_and(|end| cursor.position >= end)
}

fn fetch_request<'a>(
    topic: &TopicName,
    cursors: impl IntoIterator<Item = &'a Cursor>,
    wait: Duration,
) -> FetchRequest {
    let partition = |cursor: &Cursor| fetch::FetchPartition {
        partition: cursor.partition,
        fetch_offset: cursor.position,
        partition_max_bytes: FETCH_BYTES,
        ..Default::default()
    };
    FetchRequest {
        max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
        min_bytes: 1,
        max_bytes: FETCH_BYTES,
        topics: vec![fetch::FetchTopic {
            topic: topic.as_str().into(),
            partitions: cursors.into_iter().map(partition).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

impl Cursor {
    async fn find(
        connection: &mut Connection,
        topic: &TopicName,
        partition: usize,
        start: StartAt,
    ) -> Result<Self, ClientError> {
        let index = i32::try_from(partition).unwrap_or(i32::MAX);
        let position = match start {
            StartAt::Offset(offset) => offset,
            StartAt::Beginning => look_up(connection, topic, index, -2).await?,
            StartAt::End => look_up(connection, topic, index, -1).await?,
            StartAt::Time(time) => match look_up(connection, topic, index, time.to_wire()).await? {
                -1 => look_up(connection, topic, index, -1).await?,
                found => found,
            },
        };
        Ok(Self { topic: topic.clone(), partition: index, position, high_watermark: -1 })
    }

    fn what(&self) -> String {
        format!("read partition {} of {} from offset {}", self.partition, self.topic, self.position)
    }

    /// Takes the answer for this partition.
    fn take(&mut self, partition: fetch::PartitionData) -> Result<Vec<ReadRecord>, ClientError> {
        check(|| self.what(), partition.error_code, None)?;
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

/// As a reader takes the records of a fetch's answer, from offset 0 on.
///
/// # Errors
/// As its.
#[doc(hidden)]
pub fn fetched(topic: &TopicName, records: Bytes) -> Result<Vec<ReadRecord>, ClientError> {
    let mut cursor = Cursor { topic: topic.clone(), partition: 0, position: 0, high_watermark: -1 };
    cursor.decode(records)
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
