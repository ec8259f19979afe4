//! The record batch, format v2: Kafka's unit of append, storage, replication and transfer.
//!
//! ```text
//!  0          8        12       16    17    21      23               27              35             43           51      53       57      61
//!  | base     | length | leader | ma- | CRC | attri-| last offset    | base timestamp| max timestamp| producer id| epoch | base   | record| records...
//!  | offset   | of the | epoch  | gic |     | butes | delta          |               |              |            |       | sequen.| count |
//!  | i64      | rest   | i32    | 2   | u32 | i16   | i32            | i64           | i64          | i64        | i16   | i32    | i32   |
//!                                            `----------- the CRC-32C covers from here to the end ------------------------------------'
//! ```
//!
//! **Owns** the view of the 61 bytes, the checks of a batch that comes from outside, the fields that a leader sets,
//! building of batches and reading of records.
//!
//! **Does not own** offsets: the caller assigns them. Nothing here re-encodes records that it was given.
//!
//! A batch is kept as a [`RawBatch`]: the header by value, since its base offset and leader epoch are patched, and the
//! records as a shared slice of the bytes that were received. The CRC does not cover the first 21 bytes, so that the
//! leader can set offset and epoch without another pass over the records.

mod build;
mod header;
mod recompress;
mod records;
mod split;

pub use build::{BatchBuilder, BuildError, ControlKind, NewHeader, NewRecord, control_batch};
pub use header::{Attributes, BatchHeader};
pub use records::{
    DecodedBatch, Header, Headers, Record, RecordError, RecordIter, RecordsReport, TimestampSpan,
    check_plain_records, control_kind, records_of_times, validate_records,
};
pub use split::{
    BatchError, BatchErrorKind, BatchLimits, BatchOrigin, BatchSplitter, batch_of_parts, sent_batch,
    split_batches,
};

use bytes::{Bytes, BytesMut};
pub use tidelog_types::limits::BATCH_HEADER_BYTES;
use tidelog_types::{LeaderEpoch, Offset, Timestamp};

use crate::crc::Crc32c;

/// Bytes before the part that a batch's length field counts: base offset and the length itself.
pub const LENGTH_PREFIX_BYTES: usize = 12;

/// Where the part begins that the CRC covers.
const CRC_FROM: usize = 21;

/// A batch as it is stored: its header, which the leader may patch, and its records, which nobody does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBatch {
    /// The 61 bytes.
    pub header: BatchHeader,
    /// The records, as compressed as the producer sent them.
    pub body: Bytes,
}

impl RawBatch {
    /// Header and body together, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        BATCH_HEADER_BYTES + self.body.len()
    }

    /// The CRC-32C over what the header's CRC field covers, computed anew.
    #[must_use]
    pub fn computed_crc(&self) -> u32 {
        Crc32c::new().with(&self.header.as_bytes()[CRC_FROM..]).with(&self.body).finish()
    }

    /// Whether the header's CRC is that of the bytes.
    #[must_use]
    pub fn crc_is_valid(&self) -> bool {
        self.header.crc() == self.computed_crc()
    }

    /// Sets what the leader assigns. The CRC covers neither field.
    pub fn set_base_offset_and_epoch(&mut self, base_offset: Offset, leader_epoch: LeaderEpoch) {
        self.header.set_base_offset(base_offset);
        self.header.set_leader_epoch(leader_epoch);
    }

    /// Makes `time` the timestamp of all records, as `message.timestamp.type=LogAppendTime` asks: sets the attribute
    /// and the max timestamp, and computes the CRC anew in one pass over the header's part and the body.
    pub fn set_log_append_time(&mut self, time: Timestamp) {
        self.header.set_log_append_time_fields(time);
        self.header.set_crc(self.computed_crc());
    }

    /// Takes back a producer's claim that the broker set the timestamps, as Kafka's broker does; elsewhere nothing is touched.
    pub fn set_create_time(&mut self) {
        let attributes = self.header.attributes();
        if attributes.is_log_append_time() {
            self.header.set_attributes(Attributes(attributes.0 & !Attributes::LOG_APPEND_TIME));
            self.header.set_crc(self.computed_crc());
        }
    }

    /// Makes the max timestamp that of the records, as Kafka's broker does, whatever the producer stated: look-ups by time go by
    /// it. Where it is right already, nothing is touched; elsewhere the CRC is computed anew in one pass.
    pub fn set_max_timestamp(&mut self, records: Option<TimestampSpan>) {
        // A negative one counts for none, as in Kafka.
        let largest_ms = records.map_or(-1, |span| span.largest_ms.max(-1));
        if self.header.max_timestamp_raw() != largest_ms {
            self.header.set_max_timestamp(largest_ms);
            self.header.set_crc(self.computed_crc());
        }
    }

    /// Header and body in one stretch of bytes: a copy, for tests and tools.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.size());
        bytes.extend_from_slice(self.header.as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests;
