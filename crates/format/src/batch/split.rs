//! From the bytes of a request, a fetch answer or a file to batches that can be believed.

use bytes::Bytes;
use thiserror::Error;
use tidelog_types::limits::BATCH_HEADER_BYTES;

use super::{BatchHeader, LENGTH_PREFIX_BYTES, RawBatch};

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
    /// UNSUPPORTED_FOR_MESSAGE_FORMAT: an older format.
    UnsupportedFormat,
    /// UNSUPPORTED_COMPRESSION_TYPE.
    UnsupportedCodec,
    /// MESSAGE_TOO_LARGE.
    TooLarge,
    /// INVALID_TIMESTAMP.
    InvalidTimestamp,
}

/// Why a batch is refused. None of these is fixed by sending the same bytes again, but [`BatchErrorKind::Corrupt`]
/// may be by sending them anew.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
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
    /// A producer's batch with the broker's timestamp type.
    #[error("a producer cannot set the timestamp type to LogAppendTime")]
    LogAppendTime,
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
            Self::Magic { .. } => BatchErrorKind::UnsupportedFormat,
            Self::Codec { .. } => BatchErrorKind::UnsupportedCodec,
            Self::LogAppendTime => BatchErrorKind::InvalidTimestamp,
            Self::Count { .. }
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
        bytes.get(16).map(|byte| byte.cast_signed()).filter(|magic| *magic != BatchHeader::MAGIC)
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
    check_producer(header, origin)?;
    if origin == BatchOrigin::Client && header.attributes().is_log_append_time() {
        return Err(BatchError::LogAppendTime);
    }
    Ok(())
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

fn check_producer(header: &BatchHeader, origin: BatchOrigin) -> Result<(), BatchError> {
    let producer_id = header.producer_id_raw();
    let epoch = header.producer_epoch();
    let fits = match header.producer_id() {
        // A control batch has no sequence, and neither have batches that compaction rewrote for a plain producer.
        Some(_) => epoch.is_some() && (header.base_sequence().is_some() || header.attributes().is_control()),
        // Without a producer id the sequence says nothing: aiokafka sends 0, and Kafka takes it.
        None => origin == BatchOrigin::Log || producer_id == -1,
    };
    if !fits {
        return Err(BatchError::Producer {
            producer_id,
            producer_epoch: epoch.map(|epoch| epoch.0),
            base_sequence: header.base_sequence(),
        });
    }
    if header.attributes().is_transactional() && header.producer_id().is_none() {
        return Err(BatchError::TransactionWithoutProducer);
    }
    Ok(())
}
