//! Building of batches: control batches of transactions, internal topics, the command line's producer, tests.

use bytes::Bytes;
use thiserror::Error;
use tidelog_types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp, limits::BATCH_HEADER_BYTES};

use super::{Attributes, BatchHeader, LENGTH_PREFIX_BYTES, RawBatch};
use crate::{
    codec::{self, Codec},
    varint,
};

/// Why a batch cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// No record was added and no last offset delta was set.
    #[error("a batch needs a record")]
    Empty,
    /// A field does not fit the format.
    #[error("a batch's {what} does not fit the format")]
    Range {
        /// Which.
        what: &'static str,
    },
    /// The codec gave up.
    #[error("a batch's records could not be compressed")]
    Codec(#[from] codec::Error),
}

/// A header of a record to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewHeader<'a> {
    /// The header's name; names may repeat.
    pub key: &'a str,
    /// Its value; a null one differs from an empty one.
    pub value: Option<&'a [u8]>,
}

/// A record to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewRecord<'a> {
    /// Its time; `None` is Kafka's −1.
    pub timestamp: Option<Timestamp>,
    /// Its key; a null one differs from an empty one.
    pub key: Option<&'a [u8]>,
    /// Its value; a null one is a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order.
    pub headers: &'a [NewHeader<'a>],
}

#[derive(Debug, Clone)]
struct Stored {
    timestamp: i64,
    offset_delta: i32,
    /// The record from its key length on.
    tail: Vec<u8>,
}

/// Builds one batch.
#[derive(Debug, Clone)]
pub struct BatchBuilder {
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    codec: Codec,
    level: Option<i32>,
    attributes: i16,
    producer: (i64, i16, i32),
    log_append_time: Option<Timestamp>,
    last_offset_delta: Option<i32>,
    records: Vec<Stored>,
}

impl BatchBuilder {
    /// An uncompressed batch of a plain producer that begins at `base_offset`: 0 for a batch that is sent to a broker.
    #[must_use]
    pub fn new(base_offset: Offset) -> Self {
        Self {
            base_offset,
            leader_epoch: LeaderEpoch::ZERO,
            codec: Codec::None,
            level: None,
            attributes: 0,
            producer: (-1, -1, -1),
            log_append_time: None,
            last_offset_delta: None,
            records: Vec::new(),
        }
    }

    /// Sets the leader epoch.
    #[must_use]
    pub fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.leader_epoch = epoch;
        self
    }

    /// Compresses the records.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Compresses the records at a level ([`codec::compress_level`]).
    #[must_use]
    pub fn codec_level(mut self, codec: Codec, level: Option<i32>) -> Self {
        self.codec = codec;
        self.level = level;
        self
    }

    /// Makes it the batch of an idempotent producer.
    #[must_use]
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        self.producer = (id.0, epoch.0, base_sequence);
        self
    }

    /// Makes it part of a transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.attributes |= Attributes::TRANSACTIONAL;
        self
    }

    /// Gives all records the broker's time.
    #[must_use]
    pub fn log_append_time(mut self, time: Timestamp) -> Self {
        self.attributes |= Attributes::LOG_APPEND_TIME;
        self.log_append_time = Some(time);
        self
    }

    /// Makes the batch cover offsets up to this delta, whatever records are left in it: what compaction needs.
    #[must_use]
    pub fn last_offset_delta(mut self, delta: i32) -> Self {
        self.last_offset_delta = Some(delta);
        self
    }

    /// Adds a record at the next offset.
    #[must_use]
    pub fn record(self, record: &NewRecord<'_>) -> Self {
        let delta = self.records.last().map_or(0, |last| last.offset_delta.saturating_add(1));
        self.record_at(delta, record)
    }

    /// Adds a record at an offset delta of its own.
    #[must_use]
    pub fn record_at(mut self, offset_delta: i32, record: &NewRecord<'_>) -> Self {
        let mut tail = Vec::new();
        put_bytes(&mut tail, record.key);
        put_bytes(&mut tail, record.value);
        varint::put_signed(&mut tail, i64::try_from(record.headers.len()).unwrap_or(i64::MAX));
        for header in record.headers {
            put_bytes(&mut tail, Some(header.key.as_bytes()));
            put_bytes(&mut tail, header.value);
        }
        let timestamp = record.timestamp.map_or(-1, Timestamp::to_wire);
        self.records.push(Stored { timestamp, offset_delta, tail });
        self
    }

    /// Bytes of the records added so far, about and uncompressed.
    #[must_use]
    pub fn records_bytes(&self) -> usize {
        self.records.iter().map(|record| record.tail.len() + 12).sum()
    }

    /// Makes the batch.
    ///
    /// # Errors
    /// When there is no record, or something does not fit the format.
    pub fn build(self) -> Result<RawBatch, BuildError> {
        let record_count =
            i32::try_from(self.records.len()).map_err(|_| BuildError::Range { what: "record count" })?;
        let last_offset_delta = match (self.last_offset_delta, self.records.last()) {
            (Some(delta), Some(last)) if last.offset_delta > delta => {
                return Err(BuildError::Range { what: "last offset delta" });
            }
            (Some(delta), _) => delta,
            (None, Some(last)) => last.offset_delta,
            (None, None) => return Err(BuildError::Empty),
        };
        let base_timestamp = self.records.first().map_or(-1, |record| record.timestamp);
        let max_timestamp = self.records.iter().map(|record| record.timestamp).max().unwrap_or(-1);
        let mut records = Vec::with_capacity(self.records_bytes());
        for record in &self.records {
            put_record(&mut records, record, base_timestamp)?;
        }
        let body = match self.codec {
            Codec::None => records,
            codec => codec::compress_level(codec, self.level, &records)?,
        };
        let mut header = BatchHeader::ZEROED;
        let length = body.len() + BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES;
        header.set_length(i32::try_from(length).map_err(|_| BuildError::Range { what: "length" })?);
        header.set_base_offset(self.base_offset);
        header.set_leader_epoch(self.leader_epoch);
        header.set_attributes(Attributes(self.attributes | i16::from(self.codec.id())));
        header.set_last_offset_delta(last_offset_delta);
        header.set_base_timestamp(base_timestamp);
        header.set_max_timestamp(self.log_append_time.map_or(max_timestamp, Timestamp::to_wire));
        let (id, epoch, sequence) = self.producer;
        header.set_producer(id, epoch, sequence);
        header.set_record_count(record_count);
        if header.end_offset().is_none() {
            return Err(BuildError::Range { what: "last offset" });
        }
        let mut batch = RawBatch { header, body: Bytes::from(body) };
        batch.header.set_crc(batch.computed_crc());
        Ok(batch)
    }
}

fn put_bytes(output: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::put_signed(output, -1),
        Some(bytes) => {
            varint::put_signed(output, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
            output.extend_from_slice(bytes);
        }
    }
}

fn put_record(output: &mut Vec<u8>, record: &Stored, base_timestamp: i64) -> Result<(), BuildError> {
    // Attributes (one byte, unused), timestamp delta and offset delta, before what is stored already.
    let mut front = vec![0];
    varint::put_signed(&mut front, record.timestamp - base_timestamp);
    varint::put_signed(&mut front, i64::from(record.offset_delta));
    let length = i32::try_from(front.len() + record.tail.len())
        .map_err(|_| BuildError::Range { what: "record length" })?;
    varint::put_signed(output, i64::from(length));
    output.extend_from_slice(&front);
    output.extend_from_slice(&record.tail);
    Ok(())
}

/// What a control record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    /// The producer's transaction is aborted.
    Abort,
    /// The producer's transaction is committed.
    Commit,
    /// A kind that this version does not know; readers skip it.
    Unknown(i16),
}

impl ControlKind {
    pub(super) const fn from_id(id: i16) -> Self {
        match id {
            0 => Self::Abort,
            1 => Self::Commit,
            other => Self::Unknown(other),
        }
    }

    const fn id(self) -> i16 {
        match self {
            Self::Abort => 0,
            Self::Commit => 1,
            Self::Unknown(id) => id,
        }
    }
}

/// The control batch that ends a transaction: one record, which takes one offset.
///
/// # Errors
/// [`BuildError::Range`] when `base_offset` is the last one.
pub fn control_batch(
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    producer: (ProducerId, ProducerEpoch),
    kind: ControlKind,
    coordinator_epoch: i32,
    timestamp: Timestamp,
) -> Result<RawBatch, BuildError> {
    let mut key = [0; 4];
    key[2..].copy_from_slice(&kind.id().to_be_bytes());
    let mut value = [0; 6];
    value[2..].copy_from_slice(&coordinator_epoch.to_be_bytes());
    let mut builder = BatchBuilder::new(base_offset)
        .leader_epoch(leader_epoch)
        .producer(producer.0, producer.1, -1)
        .transactional()
        .record(&NewRecord {
            timestamp: Some(timestamp),
            key: Some(&key),
            value: Some(&value),
            headers: &[],
        });
    builder.attributes |= Attributes::CONTROL;
    builder.build()
}
