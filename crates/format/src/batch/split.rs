//! From the bytes of a request, a fetch answer or a file to batches that can be believed.

use bytes::Bytes;
use thiserror::Error;
use tidelog_types::limits::BATCH_HEADER_BYTES;

use super::{BatchHeader, LENGTH_PREFIX_BYTES, RawBatch};

/// Where the magic number stands, in every format.
const MAGIC_AT: usize = 16;

/// What the length field of a message of format 0 counts at least; Kafka takes less for damage, whatever the format.
const LEGACY_LENGTH_MIN: usize = 14;

/// Where batches come from, which decides what they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOrigin {
    /// A producer: offsets count from 0 without gaps, no control records, no broker's timestamps.
    Client,
    /// A log: a leader's answer to a follower, a segment, an object. Compaction may have taken records.
    Log,
}

/// What [`split_batches`] accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Where the bytes come from.
    pub origin: BatchOrigin,
    /// The largest batch, header included: `max.message.bytes` for a producer.
    pub batch_bytes_max: usize,
}

impl BatchLimits {
    /// For what a producer sends.
    #[must_use]
    pub const fn client(batch_bytes_max: usize) -> Self {
        Self { origin: BatchOrigin::Client, batch_bytes_max }
    }

    /// For what a log holds: a smaller limit may have been set after the append, so there is none.
    #[must_use]
    pub const fn log() -> Self {
        Self { origin: BatchOrigin::Log, batch_bytes_max: usize::MAX }
    }
}

/// Which of Kafka's errors a refused batch gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchErrorKind {
    /// CORRUPT_MESSAGE: the bytes are not what was sent; the client may try again.
    Corrupt,
    /// INVALID_RECORD: the producer made a batch that no broker takes.
    InvalidRecord,
    /// UNSUPPORTED_COMPRESSION_TYPE.
    UnsupportedCodec,
    /// MESSAGE_TOO_LARGE.
    TooLarge,
}

/// Why a batch is refused. None of these is fixed by sending the same bytes again, but [`BatchErrorKind::Corrupt`]
/// may be by sending them anew.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// A producer sends one batch for a partition.
    #[error("exactly one record batch is expected, {count} were sent")]
    NotOne {
        /// How many there are; 2 stands for more.
        count: usize,
    },
    /// Fewer bytes than a header.
    #[error("a batch header needs 61 bytes, {bytes} are left")]
    HeaderCut {
        /// What is left.
        bytes: usize,
    },
    /// The length field cannot be.
    #[error("a batch states the length {length}")]
    Length {
        /// The field.
        length: i32,
    },
    /// Fewer bytes than the length field says.
    #[error("a batch states {stated} bytes, {bytes} are left")]
    BodyCut {
        /// What it states.
        stated: usize,
        /// What is left.
        bytes: usize,
    },
    /// A batch above the limit.
    #[error("a batch of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// An older or unknown format.
    #[error("message format {magic} is not supported, format 2 is")]
    Magic {
        /// The magic number.
        magic: i8,
    },
    /// The checksum does not match.
    #[error("a batch's checksum is {computed:#010x}, its header says {stated:#010x}")]
    Crc {
        /// What the header says.
        stated: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// An id that is no codec.
    #[error("compression codec {id} is not known")]
    Codec {
        /// The id.
        id: u8,
    },
    /// Count of records and offset delta disagree.
    #[error("a batch states {record_count} records and a last offset delta of {last_offset_delta}")]
    Count {
        /// The count.
        record_count: i32,
        /// The delta.
        last_offset_delta: i32,
    },
    /// A producer's batch with a base offset, or a stored one without.
    #[error("a batch begins at offset {base_offset}")]
    BaseOffset {
        /// The field.
        base_offset: i64,
    },
    /// Control records from a producer.
    #[error("a producer cannot write control records")]
    Control,
    /// Producer id, epoch and sequence disagree.
    #[error(
        "a batch has producer id {producer_id}, epoch {producer_epoch:?}, base sequence {base_sequence:?}"
    )]
    Producer {
        /// The id as it stands.
        producer_id: i64,
        /// The epoch, if one.
        producer_epoch: Option<i16>,
        /// The sequence, if one.
        base_sequence: Option<i32>,
    },
    /// A transaction without a producer id.
    #[error("a transactional batch has no producer id")]
    TransactionWithoutProducer,
}

impl BatchError {
    /// Which of Kafka's errors it is.
    #[must_use]
    pub const fn kind(&self) -> BatchErrorKind {
        match self {
            Self::HeaderCut { .. } | Self::Length { .. } | Self::BodyCut { .. } | Self::Crc { .. } => {
                BatchErrorKind::Corrupt
            }
            Self::TooLarge { .. } => BatchErrorKind::TooLarge,
            // The formats before this one are refused as records, as Kafka does, and what was never a format as damage.
            Self::Magic { magic: 0 | 1 } => BatchErrorKind::InvalidRecord,
            Self::Magic { .. } => BatchErrorKind::Corrupt,
            Self::Codec { .. } => BatchErrorKind::UnsupportedCodec,
            Self::NotOne { .. }
            | Self::Count { .. }
            | Self::BaseOffset { .. }
            | Self::Control
            | Self::Producer { .. }
            | Self::TransactionWithoutProducer => BatchErrorKind::InvalidRecord,
        }
    }
}

/// Cuts `bytes` into batches and checks each, whole: sizes, format, checksum, counts, codec, producer fields. The
/// batches share the bytes. The leader epoch is not looked at, since a leader sets it; timestamps are left to the
/// caller, who knows the topic's bounds; records are not decompressed ([`super::validate_records`] does).
#[must_use]
pub fn split_batches(bytes: Bytes, limits: &BatchLimits) -> BatchSplitter {
    BatchSplitter { rest: bytes, position: 0, limits: *limits, failed: false }
}

/// The one batch that a producer sent, checked as [`split_batches`] does. As in Kafka, what ends early is no batch: not the
/// first, and behind a whole one it is passed over.
///
/// # Errors
/// There is none or more than one, or it is not valid.
pub fn sent_batch(bytes: Bytes, batch_bytes_max: usize) -> Result<RawBatch, BatchError> {
    let (size, magic) = whole_batch(&bytes)?.ok_or(BatchError::NotOne { count: 0 })?;
    if magic != BatchHeader::MAGIC {
        return Err(BatchError::Magic { magic });
    }
    if whole_batch(&bytes[size..])?.is_some() {
        return Err(BatchError::NotOne { count: 2 });
    }
    let limits = BatchLimits::client(batch_bytes_max);
    BatchSplitter::take(&mut split_batches(bytes.slice(..size), &limits))
}

/// Bytes and magic number of the batch, of whatever format, at the beginning of `bytes`; `None`: they do not hold a whole one.
fn whole_batch(bytes: &[u8]) -> Result<Option<(usize, i8)>, BatchError> {
    let field = bytes.get(LENGTH_PREFIX_BYTES - 4..).and_then(|rest| rest.first_chunk::<4>());
    let Some(length) = field.map(|field| i32::from_be_bytes(*field)) else { return Ok(None) };
    let stated = usize::try_from(length).ok().filter(|length| *length >= LEGACY_LENGTH_MIN);
    let stated = stated.ok_or(BatchError::Length { length })? + LENGTH_PREFIX_BYTES;
    let Some(magic) = bytes.get(MAGIC_AT).map(|byte| byte.cast_signed()) else { return Ok(None) };
    if !(0..=BatchHeader::MAGIC).contains(&magic) {
        return Err(BatchError::Magic { magic });
    }
    Ok((stated <= bytes.len()).then_some((stated, magic)))
}

/// One batch of which the header lies apart from the body, checked as [`split_batches`] does. Nothing is copied.
///
/// # Errors
/// When the batch is not valid, or the header does not state the length of both.
pub fn batch_of_parts(header: &[u8], body: Bytes, limits: &BatchLimits) -> Result<RawBatch, BatchError> {
    let (header, stated) = stated(header, limits)?;
    let bytes = BATCH_HEADER_BYTES.saturating_add(body.len());
    if stated != bytes {
        return Err(BatchError::BodyCut { stated, bytes });
    }
    let batch = RawBatch { header, body };
    check(&batch, limits.origin)?;
    Ok(batch)
}

/// The header at the beginning of `bytes`, and the size that it states.
fn stated(bytes: &[u8], limits: &BatchLimits) -> Result<(BatchHeader, usize), BatchError> {
    let header = BatchHeader::peek(bytes).ok_or(BatchError::HeaderCut { bytes: bytes.len() });
    // The magic number stands at the same place in all formats, and older ones can be shorter than 61 bytes.
    if let Some(magic) =
        bytes.get(MAGIC_AT).map(|byte| byte.cast_signed()).filter(|magic| *magic != BatchHeader::MAGIC)
    {
        return Err(BatchError::Magic { magic });
    }
    let header = header?;
    let stated = header.batch_bytes().ok_or(BatchError::Length { length: header.length_raw() })?;
    if stated > limits.batch_bytes_max {
        return Err(BatchError::TooLarge { bytes: stated, bytes_max: limits.batch_bytes_max });
    }
    Ok((header, stated))
}

/// The iterator of [`split_batches`]; it ends after the first error.
#[derive(Debug, Clone)]
pub struct BatchSplitter {
    rest: Bytes,
    position: usize,
    limits: BatchLimits,
    failed: bool,
}

impl BatchSplitter {
    /// How many bytes the batches returned so far take.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    fn take(&mut self) -> Result<RawBatch, BatchError> {
        let (header, stated) = stated(&self.rest, &self.limits)?;
        if stated > self.rest.len() {
            return Err(BatchError::BodyCut { stated, bytes: self.rest.len() });
        }
        let batch = RawBatch { header, body: self.rest.slice(BATCH_HEADER_BYTES..stated) };
        check(&batch, self.limits.origin)?;
        self.rest = self.rest.slice(stated..);
        self.position += stated;
        Ok(batch)
    }
}

impl Iterator for BatchSplitter {
    type Item = Result<RawBatch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        self.failed = taken.is_err();
        Some(taken)
    }
}

/// Checks a batch whose size is known to be right.
fn check(batch: &RawBatch, origin: BatchOrigin) -> Result<(), BatchError> {
    let header = &batch.header;
    debug_assert_eq!(
        header.batch_bytes(),
        Some(batch.body.len() + BATCH_HEADER_BYTES),
        "{LENGTH_PREFIX_BYTES}"
    );
    let computed = batch.computed_crc();
    if header.crc() != computed {
        return Err(BatchError::Crc { stated: header.crc(), computed });
    }
    header.attributes().codec().map_err(|id| BatchError::Codec { id })?;
    if origin == BatchOrigin::Client && header.attributes().is_control() {
        return Err(BatchError::Control);
    }
    check_counts(header, origin)?;
    check_producer(header)
}

fn check_counts(header: &BatchHeader, origin: BatchOrigin) -> Result<(), BatchError> {
    let (record_count, last_offset_delta) = (header.record_count_raw(), header.last_offset_delta());
    let fits = match origin {
        BatchOrigin::Client => record_count > 0 && last_offset_delta == record_count - 1,
        // Compaction takes records and leaves the offsets that the batch covers, down to a batch of none.
        BatchOrigin::Log => {
            record_count >= 0 && last_offset_delta >= 0 && record_count - 1 <= last_offset_delta
        }
    };
    if !fits {
        return Err(BatchError::Count { record_count, last_offset_delta });
    }
    let base_offset = header.base_offset_raw();
    let offset_fits = match origin {
        BatchOrigin::Client => base_offset == 0,
        BatchOrigin::Log => header.end_offset().is_some(),
    };
    if offset_fits { Ok(()) } else { Err(BatchError::BaseOffset { base_offset }) }
}

/// Of an idempotent producer's batch Kafka asks for a sequence, and a control batch has none. Without an id the sequence says
/// nothing (aiokafka sends 0), and without an epoch the id does not.
fn check_producer(header: &BatchHeader) -> Result<(), BatchError> {
    let sequence = header.base_sequence();
    if header.producer_id().is_some() && sequence.is_none() && !header.attributes().is_control() {
        return Err(BatchError::Producer {
            producer_id: header.producer_id_raw(),
            producer_epoch: header.producer_epoch().map(|epoch| epoch.0),
            base_sequence: sequence,
        });
    }
    if header.attributes().is_transactional() && header.producer_id().is_none() {
        return Err(BatchError::TransactionWithoutProducer);
    }
    Ok(())
}
