//! An idempotent producer: batches by partition, several requests in flight, each record stored once.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tidelog_format::{
    batch::{self, BatchBuilder},
    codec::Codec,
};
use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp, TopicName};
use tidelog_wire::{
    ErrorCode, Records,
    messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse, produce},
};

use super::{ClientError, Connection, TopicMetadata, check, partition_of};

/// Requests in flight on a connection: as many batches as a broker remembers of a producer.
const IN_FLIGHT_MAX: usize = 5;
/// Rounds of sending a batch again before its error is the caller's.
const RETRIES_MAX: u32 = 20;
const PRODUCE_VERSION: i16 = 9;
const PRODUCE_TIMEOUT: Duration = Duration::from_secs(30);

/// How batches are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// snappy.
    Snappy,
    /// lz4.
    Lz4,
    /// zstd.
    Zstd,
}

impl From<Compression> for Codec {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::None,
            Compression::Gzip => Self::Gzip,
            Compression::Snappy => Self::Snappy,
            Compression::Lz4 => Self::Lz4,
            Compression::Zstd => Self::Zstd,
        }
    }
}

/// How a producer sends.
#[derive(Debug, Clone, Copy)]
pub struct ProducerOptions {
    /// How batches are compressed.
    pub compression: Compression,
    /// The size at which a batch is sent, uncompressed.
    pub batch_bytes: usize,
    /// −1 for all in-sync replicas (with a sync before the answer, by the product's defaults), or 1.
    pub acks: i16,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self { compression: Compression::None, batch_bytes: 64 * 1024, acks: -1 }
    }
}

/// A record to send.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// Its key, which also chooses the partition where none is said.
    pub key: Option<&'a [u8]>,
    /// Its value; none is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Its time.
    pub timestamp: Timestamp,
}

/// A batch on its way.
#[derive(Debug)]
struct Sent {
    partition: usize,
    batch: Bytes,
}

#[derive(Debug)]
struct Open {
    builder: BatchBuilder,
    record_count: i32,
}

/// A producer to one topic.
#[derive(Debug)]
pub struct Producer {
    topic: TopicMetadata,
    options: ProducerOptions,
    connections: BTreeMap<String, Connection>,
    in_flight: BTreeMap<String, VecDeque<Sent>>,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    open: BTreeMap<usize, Open>,
    next_sequence: Vec<i32>,
    round_robin: usize,
    acknowledged: u64,
}

impl Producer {
    /// Finds a topic's partitions and takes a producer id.
    ///
    /// # Errors
    /// Where the node does not answer or the topic does not exist.
    pub async fn connect(
        address: &str,
        topic: &TopicName,
        options: ProducerOptions,
    ) -> Result<Self, ClientError> {
        let mut connection = Connection::open(address).await?;
        let topic = super::topic_metadata(&mut connection, topic).await?;
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let granted = connection.call(4, &request, super::ADMIN_TIMEOUT).await?;
        check(|| "take a producer id".to_owned(), granted.error_code, None)?;
        let next_sequence = vec![0; topic.leaders.len()];
        Ok(Self {
            topic,
            options,
            connections: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            producer_id: ProducerId(granted.producer_id),
            producer_epoch: ProducerEpoch(granted.producer_epoch),
            open: BTreeMap::new(),
            next_sequence,
            round_robin: 0,
            acknowledged: 0,
        })
    }

    /// Records that the broker has acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The partition that a key goes to; the next in turn where there is none.
    pub fn partition_for(&mut self, key: Option<&[u8]>) -> usize {
        let count = self.topic.leaders.len().max(1);
        match (key, u32::try_from(count)) {
            (Some(key), Ok(count)) => usize::try_from(partition_of(key, count)).unwrap_or(0),
            _ => {
                self.round_robin = (self.round_robin + 1) % count;
                self.round_robin
            }
        }
    }

    /// Adds a record to its partition's batch, and sends the batch when it is full. Not cancel safe.
    ///
    /// # Errors
    /// Of a batch sent before, or of this one. What was not acknowledged may have been stored.
    pub async fn send(&mut self, record: &NewRecord<'_>) -> Result<(), ClientError> {
        let partition = self.partition_for(record.key);
        let Open { builder, record_count } = match self.open.remove(&partition) {
            Some(open) => open,
            None => self.begin(partition),
        };
        let stored = batch::NewRecord {
            timestamp: Some(record.timestamp),
            key: record.key,
            value: record.value,
            headers: &[],
        };
        let builder = builder.record(&stored);
        let is_full = builder.records_bytes() >= self.options.batch_bytes;
        self.open.insert(partition, Open { builder, record_count: record_count + 1 });
        if is_full { self.send_batch(partition).await } else { Ok(()) }
    }

    /// Sends every open batch and waits until all is acknowledged. Not cancel safe.
    ///
    /// # Errors
    /// Of any batch. What was not acknowledged may have been stored.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let open: Vec<usize> = self.open.keys().copied().collect();
        for partition in open {
            self.send_batch(partition).await?;
        }
        let leaders: Vec<String> = self.in_flight.keys().cloned().collect();
        for leader in leaders {
            while self.in_flight.get(&leader).is_some_and(|sent| !sent.is_empty()) {
                self.receive(&leader).await?;
            }
        }
        Ok(())
    }

    fn begin(&self, partition: usize) -> Open {
        let builder = BatchBuilder::new(Offset::ZERO).codec(self.options.compression.into()).producer(
            self.producer_id,
            self.producer_epoch,
            self.next_sequence[partition],
        );
        Open { builder, record_count: 0 }
    }

    async fn send_batch(&mut self, partition: usize) -> Result<(), ClientError> {
        let Some(open) = self.open.remove(&partition) else { return Ok(()) };
        self.next_sequence[partition] = sequence_after(self.next_sequence[partition], open.record_count);
        let raw = open.builder.build().map_err(|error| ClientError::BadBatch {
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
            offset: -1,
            reason: error.to_string(),
        })?;
        let mut batch = BytesMut::with_capacity(raw.header.as_bytes().len() + raw.body.len());
        batch.extend_from_slice(raw.header.as_bytes());
        batch.extend_from_slice(&raw.body);
        let leader = self.topic.leaders[partition].clone();
        while self.in_flight.get(&leader).is_some_and(|sent| sent.len() >= IN_FLIGHT_MAX) {
            self.receive(&leader).await?;
        }
        self.transmit(&leader, Sent { partition, batch: batch.freeze() }).await
    }

    async fn transmit(&mut self, leader: &str, sent: Sent) -> Result<(), ClientError> {
        let request = ProduceRequest {
            transactional_id: None,
            acks: self.options.acks,
            timeout_ms: i32::try_from(PRODUCE_TIMEOUT.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![produce::TopicProduceData {
                name: self.topic.name.as_str().into(),
                partition_data: vec![produce::PartitionProduceData {
                    index: i32::try_from(sent.partition).unwrap_or(i32::MAX),
                    records: Some(Records::from(sent.batch.clone())),
                }],
                ..Default::default()
            }],
        };
        if !self.connections.contains_key(leader) {
            self.connections.insert(leader.to_owned(), Connection::open(leader).await?);
        }
        let connection = self.connections.get_mut(leader).ok_or(ClientError::Incomplete("a leader"))?;
        connection.send(PRODUCE_VERSION, &request).await?;
        self.in_flight.entry(leader.to_owned()).or_default().push_back(sent);
        Ok(())
    }

    /// Takes one answer. A batch that may yet be stored is sent again with all that followed it, in their order, so that
    /// the broker sees every sequence once.
    async fn receive(&mut self, leader: &str) -> Result<(), ClientError> {
        let Some((sent, outcome)) = self.receive_one(leader).await? else { return Ok(()) };
        let Err(error) = outcome else { return Ok(()) };
        if !may_pass(&error) {
            return Err(error);
        }
        let mut again = VecDeque::from([sent]);
        while let Some((later, outcome)) = self.receive_one(leader).await? {
            if outcome.is_err() {
                again.push_back(later);
            }
        }
        let mut last_error = error;
        let mut retries = 0;
        while let Some(sent) = again.pop_front() {
            self.transmit(leader, sent).await?;
            let Some((sent, outcome)) = self.receive_one(leader).await? else { continue };
            if let Err(error) = outcome {
                retries += 1;
                last_error =
                    if may_pass(&error) && retries <= RETRIES_MAX { error } else { return Err(error) };
                again.push_front(sent);
                tokio::time::sleep(Duration::from_millis(u64::from(retries.min(10)) * 50)).await;
            }
        }
        tracing::debug!(error = %last_error, "batches were sent again");
        Ok(())
    }

    /// Takes the answer to the oldest request, if there is one.
    async fn receive_one(
        &mut self,
        leader: &str,
    ) -> Result<Option<(Sent, Result<(), ClientError>)>, ClientError> {
        let Some(sent) = self.in_flight.get_mut(leader).and_then(VecDeque::pop_front) else {
            return Ok(None);
        };
        let connection = self.connections.get_mut(leader).ok_or(ClientError::Incomplete("a leader"))?;
        let answer: ProduceResponse = connection.receive::<ProduceRequest>(PRODUCE_TIMEOUT).await?;
        let partition = answer.responses.into_iter().flat_map(|topic| topic.partition_responses).next();
        let partition = partition.ok_or(ClientError::Incomplete("the partition"))?;
        let what = || format!("write to partition {} of {}", partition.index, self.topic.name);
        let outcome = check(what, partition.error_code, partition.error_message.as_ref());
        if outcome.is_ok() {
            let count = batch::BatchHeader::peek(&sent.batch).map_or(0, |header| header.record_count());
            self.acknowledged += u64::from(count);
        }
        Ok(Some((sent, outcome)))
    }
}

/// Whether a batch that was refused so may be stored when it is sent again.
fn may_pass(error: &ClientError) -> bool {
    error.code().is_some_and(|code| code.is_retriable() || code == ErrorCode::OutOfOrderSequenceNumber)
}

/// Sequences go on from 2³¹−1 with 0.
fn sequence_after(sequence: i32, count: i32) -> i32 {
    let next = (i64::from(sequence) + i64::from(count)) % (i64::from(i32::MAX) + 1);
    i32::try_from(next).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 1, 5), 3);
    }
}
