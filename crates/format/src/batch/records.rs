//! Reading of the records inside a batch.

use std::borrow::Cow;

use thiserror::Error;
use tidelog_types::{Offset, Timestamp, limits};

use super::{BatchHeader, ControlKind, RawBatch};
use crate::{
    codec::{self, Codec},
    error::DecodeError,
    varint,
};

/// Why the records of a batch cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The batch's codec is not known.
    #[error("compression codec {id} is not known")]
    UnknownCodec {
        /// Its id.
        id: u8,
    },
    /// The records do not decompress, or to more than the cap.
    #[error("a batch's records could not be decompressed")]
    Decompress(#[from] codec::Error),
    /// A record is not what the format says.
    #[error("record {index} of a batch is corrupt")]
    Corrupt {
        /// Its place in the batch.
        index: u32,
        /// What is wrong.
        #[source]
        source: DecodeError,
    },
    /// More or fewer records than the header counts.
    #[error("a batch holds {bytes_left} bytes after its {record_count} records")]
    Trailing {
        /// What the header counts.
        record_count: u32,
        /// What is left.
        bytes_left: usize,
    },
    /// Offset deltas that do not count up from 0 in a producer's batch.
    #[error("record {index} of a batch has offset delta {offset_delta}")]
    OffsetDelta {
        /// Its place in the batch.
        index: u32,
        /// Its delta.
        offset_delta: i64,
    },
}

/// A header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name. Kafka asks for UTF-8, and does not check it.
    pub key: &'a [u8],
    /// The value.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record, decoded as they are asked for. They were checked when the record was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Headers<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The headers in their order; names may repeat.
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| take_header(&mut rest).ok())
    }
}

/// One record, borrowed from its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its time; `None` where the producer gave none.
    pub timestamp: Option<Timestamp>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; `None` is a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: Headers<'a>,
}

/// A batch with its records decompressed.
#[derive(Debug, Clone)]
pub struct DecodedBatch<'a> {
    header: BatchHeader,
    records: Cow<'a, [u8]>,
}

impl<'a> DecodedBatch<'a> {
    /// Decompresses the records of `batch`, to at most `bytes_max`. An uncompressed batch is not copied.
    ///
    /// # Errors
    /// For an unknown codec, records that do not decompress, and more of them than the cap.
    pub fn new(batch: &'a RawBatch, bytes_max: usize) -> Result<Self, RecordError> {
        let codec = batch.header.attributes().codec().map_err(|id| RecordError::UnknownCodec { id })?;
        let records = match codec {
            Codec::None if batch.body.len() > bytes_max => {
                return Err(codec::Error::TooLarge { bytes_max }.into());
            }
            Codec::None => Cow::Borrowed(&batch.body[..]),
            // Compaction leaves no stream at all in a batch that it emptied.
            _ if batch.body.is_empty() && batch.header.record_count() == 0 => Cow::Borrowed(&[][..]),
            codec => Cow::Owned(codec::decompress(codec, &batch.body, bytes_max)?),
        };
        Ok(Self { header: batch.header, records })
    }

    /// The records' bytes, uncompressed.
    #[must_use]
    pub fn records(&self) -> &[u8] {
        &self.records
    }

    /// Bytes of the records, uncompressed.
    #[must_use]
    pub fn records_bytes(&self) -> usize {
        self.records.len()
    }

    /// The records in offset order. The iterator ends after the first error, and reports bytes after the last record
    /// as one.
    #[must_use]
    pub fn iter(&self) -> RecordIter<'_> {
        RecordIter { header: &self.header, rest: &self.records, index: 0, done: false }
    }
}

/// A record, and what it says of itself.
struct Taken<'a> {
    record: Record<'a>,
    offset_delta: i64,
    /// As it stands: negative where the producer made it so.
    timestamp_ms: i64,
}

/// The iterator of [`DecodedBatch::iter`].
#[derive(Debug, Clone)]
pub struct RecordIter<'a> {
    header: &'a BatchHeader,
    rest: &'a [u8],
    index: u32,
    done: bool,
}

impl<'a> RecordIter<'a> {
    fn take(&mut self) -> Result<Taken<'a>, DecodeError> {
        let length = varint::take_signed(&mut self.rest)?;
        let mut bytes = take_slice(&mut self.rest, length, "record")?;
        let (_attributes, after) = bytes.split_first().ok_or(DecodeError::Cut { what: "record" })?;
        bytes = after;
        let timestamp_delta = varint::take_signed(&mut bytes)?;
        let offset_delta = varint::take_signed(&mut bytes)?;
        let key = take_nullable(&mut bytes, "record key")?;
        let value = take_nullable(&mut bytes, "record value")?;
        let count = varint::take_signed(&mut bytes)?;
        let count = u32::try_from(count)
            .map_err(|_| DecodeError::Invalid { what: "header count", why: "it is out of range" })?;
        let headers = Headers { count, bytes };
        for _ in 0..count {
            take_header(&mut bytes)?;
        }
        if !bytes.is_empty() {
            return Err(DecodeError::Invalid { what: "record", why: "bytes follow its last header" });
        }
        let out_of_range = DecodeError::Invalid { what: "offset delta", why: "it is outside of the batch" };
        if offset_delta < 0 || offset_delta > i64::from(self.header.last_offset_delta()) {
            return Err(out_of_range);
        }
        let offset = self.header.base_offset_raw().checked_add(offset_delta).and_then(Offset::from_wire);
        let timestamp_ms = if self.header.attributes().is_log_append_time() {
            self.header.max_timestamp_raw()
        } else {
            // Kafka's brokers and clients let it wrap; bounds refuse what wrapped.
            self.header.base_timestamp_raw().wrapping_add(timestamp_delta)
        };
        let timestamp = Timestamp::from_wire(timestamp_ms);
        let record = Record { offset: offset.ok_or(out_of_range)?, timestamp, key, value, headers };
        Ok(Taken { record, offset_delta, timestamp_ms })
    }

    fn advance(&mut self) -> Option<Result<Taken<'a>, RecordError>> {
        if self.done {
            return None;
        }
        let record_count = self.header.record_count();
        if self.index == record_count {
            self.done = true;
            let bytes_left = self.rest.len();
            return (bytes_left > 0).then_some(Err(RecordError::Trailing { record_count, bytes_left }));
        }
        let index = self.index;
        self.index += 1;
        let taken = self.take();
        self.done = taken.is_err();
        Some(taken.map_err(|source| RecordError::Corrupt { index, source }))
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().map(|taken| taken.map(|taken| taken.record))
    }
}

fn take_slice<'a>(bytes: &mut &'a [u8], length: i64, what: &'static str) -> Result<&'a [u8], DecodeError> {
    let length =
        usize::try_from(length).map_err(|_| DecodeError::Invalid { what, why: "its length is negative" })?;
    let (taken, rest) = bytes.split_at_checked(length).ok_or(DecodeError::Cut { what })?;
    *bytes = rest;
    Ok(taken)
}

fn take_nullable<'a>(bytes: &mut &'a [u8], what: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
    match varint::take_signed(bytes)? {
        -1 => Ok(None),
        length => take_slice(bytes, length, what).map(Some),
    }
}

fn take_header<'a>(bytes: &mut &'a [u8]) -> Result<Header<'a>, DecodeError> {
    let length = varint::take_signed(bytes)?;
    let key = take_slice(bytes, length, "header key")?;
    let value = take_nullable(bytes, "header value")?;
    Ok(Header { key, value })
}

/// What a look into a producer's batch found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordsReport {
    /// How many records there are: what the header counts.
    pub record_count: u32,
    /// Bytes of the records, uncompressed.
    pub records_bytes: usize,
    /// Places in the batch of the records without a key, which a compacted topic refuses; of the first
    /// [`limits::RECORDS_NAMED_MAX`].
    pub without_key: Vec<u32>,
    /// Their timestamps; `None` where no record has one.
    pub timestamps: Option<TimestampSpan>,
}

/// Where the timestamps of a batch's records lie, in milliseconds as they stand: below 0 where the producer made them so. A record
/// without one (−1) does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampSpan {
    /// The least.
    pub least_ms: i64,
    /// The largest.
    pub largest_ms: i64,
}

impl TimestampSpan {
    /// Kafka's "none".
    const NONE: i64 = -1;

    /// What a header says of its records: the first one's timestamp, and the largest.
    #[must_use]
    pub fn stated(header: &BatchHeader) -> Option<Self> {
        let first = Self::reaching(None, header.base_timestamp_raw());
        Self::reaching(first, header.max_timestamp_raw())
    }

    fn reaching(span: Option<Self>, timestamp_ms: i64) -> Option<Self> {
        if timestamp_ms == Self::NONE {
            return span;
        }
        let Self { least_ms, largest_ms } =
            span.unwrap_or(Self { least_ms: timestamp_ms, largest_ms: timestamp_ms });
        Some(Self { least_ms: least_ms.min(timestamp_ms), largest_ms: largest_ms.max(timestamp_ms) })
    }
}

/// Reads every record of a producer's batch: there are as many as the header counts, and their offset deltas count up
/// from 0.
///
/// # Errors
/// What is wrong with the first bad record; the batch is refused whole.
pub fn validate_records(batch: &RawBatch, bytes_max: usize) -> Result<RecordsReport, RecordError> {
    let decoded = DecodedBatch::new(batch, bytes_max)?;
    let mut report = RecordsReport { records_bytes: decoded.records_bytes(), ..RecordsReport::default() };
    for_each(&decoded, |index, taken| {
        if taken.record.key.is_none() && report.without_key.len() < limits::RECORDS_NAMED_MAX {
            report.without_key.push(index);
        }
        report.timestamps = TimestampSpan::reaching(report.timestamps, taken.timestamp_ms);
        report.record_count += 1;
    })?;
    Ok(report)
}

/// Gives every record of a producer's batch, with its place, to `take`; its offset delta is that place.
fn for_each<'a>(
    decoded: &'a DecodedBatch<'a>,
    mut take: impl FnMut(u32, Taken<'a>),
) -> Result<(), RecordError> {
    let mut records = decoded.iter();
    for index in 0.. {
        let Some(taken) = records.advance() else { break };
        let taken = taken?;
        let offset_delta = taken.offset_delta;
        if offset_delta != i64::from(index) {
            return Err(RecordError::OffsetDelta { index, offset_delta });
        }
        take(index, taken);
    }
    Ok(())
}

/// Places in a batch of the records whose timestamp is refused, of the first [`limits::RECORDS_NAMED_MAX`]; a record without one is
/// not.
///
/// # Errors
/// The records cannot be read.
pub fn records_of_times(
    batch: &RawBatch,
    bytes_max: usize,
    refused: impl Fn(i64) -> bool,
) -> Result<Vec<u32>, RecordError> {
    let decoded = DecodedBatch::new(batch, bytes_max)?;
    let mut places = Vec::new();
    for_each(&decoded, |index, taken| {
        let is_refused = taken.timestamp_ms != TimestampSpan::NONE && refused(taken.timestamp_ms);
        if is_refused && places.len() < limits::RECORDS_NAMED_MAX {
            places.push(index);
        }
    })?;
    Ok(places)
}

/// Checks the records of a producer's batch that are not compressed, as [`validate_records`] does, without an allocation, and gives
/// their timestamps. Of compressed ones only the beginning of their stream is looked at: what their header states is given.
///
/// # Errors
/// What is wrong with the first bad record; the batch is refused whole.
pub fn check_plain_records(batch: &RawBatch) -> Result<Option<TimestampSpan>, RecordError> {
    let codec = batch.header.attributes().codec().map_err(|id| RecordError::UnknownCodec { id })?;
    if codec != Codec::None {
        if !codec.begins(&batch.body) {
            return Err(codec::Error::not_begun(codec).into());
        }
        return Ok(TimestampSpan::stated(&batch.header));
    }
    let decoded = DecodedBatch { header: batch.header, records: Cow::Borrowed(&batch.body[..]) };
    let mut timestamps = None;
    for_each(&decoded, |_, taken| timestamps = TimestampSpan::reaching(timestamps, taken.timestamp_ms))?;
    Ok(timestamps)
}

/// What the control record of a control batch says, and the coordinator's epoch with it.
///
/// # Errors
/// When the batch does not hold one control record of the known form.
pub fn control_kind(batch: &RawBatch) -> Result<(ControlKind, i32), RecordError> {
    let corrupt =
        |why| RecordError::Corrupt { index: 0, source: DecodeError::Invalid { what: "control record", why } };
    let decoded = DecodedBatch::new(batch, batch.body.len())?;
    let record = decoded.iter().next().ok_or_else(|| corrupt("the batch is empty"))??;
    let id =
        record.key.and_then(|key| key.get(2..4)).and_then(|id| id.try_into().ok()).map(i16::from_be_bytes);
    let kind = ControlKind::from_id(id.ok_or_else(|| corrupt("its key is too short"))?);
    let epoch = record.value.and_then(|value| value.get(2..6)).and_then(|field| field.try_into().ok());
    match (kind, epoch.map(i32::from_be_bytes)) {
        (ControlKind::Unknown(_), epoch) => Ok((kind, epoch.unwrap_or(-1))),
        (_, Some(epoch)) => Ok((kind, epoch)),
        (_, None) => Err(corrupt("its value is too short")),
    }
}
