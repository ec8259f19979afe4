//! The files beside a segment's `.log`: where its batches are, by offset and by time, and which transactions aborted.
//!
//! ```text
//!  header | magic 4 | version u16 | entry bytes u16 | topic id 16 | partition i32 | base offset u64 | reserved 24 | CRC u32 |
//!  entry  | fields | CRC-32C of (the header's CRC, the entry's ordinal u64, the fields) |
//!  seal   | "TLSE" | entries u64 | CRC-32C of (the header's CRC, all before) |        once nothing follows
//! ```
//!
//! **Owns** those bytes ([`EntryFile`]), the making of an index from batches ([`IndexBuilder`], [`SegmentScan`]), and
//! the look-ups in it.
//!
//! **Does not own** the leader-epoch file ([`crate::epochs`]) nor the producer snapshot ([`crate::producers`]), and never
//! decides what becomes of a damaged segment.
//!
//! An index entry carries the checksum of its whole interval, batch headers included: a batch's own checksum leaves out
//! its base offset and leader epoch. An entry's checksum depends on its file and its place in it, so that an entry that
//! was moved, or left by another segment, is not believed. A file grows by whole entries; one that ends before its seal
//! may have lost some, which for an offset index shows in where its last interval ends.

mod file;
mod scan;

pub use file::{DecodedEntries, EntryFile, FixedEntry};
pub use scan::{IndexBuilder, Rebuilt, SegmentScan, WalkEnd};

use serde::{Deserialize, Serialize};
use tidelog_types::{Offset, OffsetRange, ProducerId, Timestamp};

use crate::{
    crc::crc32c,
    cursor::{Put, Reader},
    error::DecodeError,
};

/// One interval of whole batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The base offset of the first batch.
    pub base_offset: Offset,
    /// Where it begins, in the file or object.
    pub position: u64,
    /// Its length.
    pub bytes: u32,
    /// The largest timestamp from the beginning of the segment to the end of this interval.
    pub max_timestamp: Option<Timestamp>,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

impl IndexEntry {
    /// One past its last byte.
    #[must_use]
    pub const fn end_position(&self) -> u64 {
        self.position.saturating_add(self.bytes as u64)
    }

    /// Whether `bytes` are the interval.
    #[must_use]
    pub fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == u64::from(self.bytes) && crc32c(bytes) == self.crc
    }

    /// The place in `entries` of the interval that holds `offset`, or would: the last that begins at or below it, else the
    /// first. `None` when there are none.
    #[must_use]
    pub fn find_offset(entries: &[Self], offset: Offset) -> Option<usize> {
        if entries.is_empty() {
            return None;
        }
        Some(entries.partition_point(|entry| entry.base_offset <= offset).saturating_sub(1))
    }

    /// The place in `entries` of the interval with the first record at or after `time`; `None` when all are earlier.
    #[must_use]
    pub fn find_time(entries: &[Self], time: Timestamp) -> Option<usize> {
        let index = entries.partition_point(|entry| entry.max_timestamp < Some(time));
        (index < entries.len()).then_some(index)
    }
}

/// The largest timestamp so far, and the batch that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeIndexEntry {
    /// The timestamp.
    pub max_timestamp: Timestamp,
    /// The base offset of the first batch with it.
    pub offset: Offset,
}

/// A transaction that was aborted: read_committed leaves out its producer's records from its first offset to its marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AbortedTransaction {
    /// Whose it was.
    pub producer_id: ProducerId,
    /// The offset of its first record.
    pub first_offset: Offset,
    /// The offset of its marker, inclusive.
    pub last_offset: Offset,
    /// The last stable offset once the marker was written: no transaction that ends later begins below it.
    pub last_stable_offset: Offset,
}

impl AbortedTransaction {
    /// Whether it has offsets in `range`.
    #[must_use]
    pub fn overlaps(&self, range: OffsetRange) -> bool {
        self.first_offset < range.end && self.last_offset >= range.base
    }
}

/// What becomes of fields: 32 bytes.
pub(crate) const INDEX_ENTRY_BYTES: usize = 32;
pub(crate) const ABORTED_BYTES: usize = 32;

impl IndexEntry {
    pub(crate) fn put(&self, output: &mut Vec<u8>) {
        output.put_offset(self.base_offset);
        output.put_u64(self.position);
        output.put_u32(self.bytes);
        output.put_timestamp(self.max_timestamp);
        output.put_u32(self.crc);
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            base_offset: reader.offset()?,
            position: reader.u64()?,
            bytes: reader.u32()?,
            max_timestamp: reader.timestamp()?,
            crc: reader.u32()?,
        })
    }

    /// Whether this interval lies directly behind `previous`.
    pub(crate) fn continues(&self, previous: &Self) -> bool {
        previous.position.checked_add(u64::from(previous.bytes)) == Some(self.position)
            && self.base_offset > previous.base_offset
            && self.max_timestamp >= previous.max_timestamp
    }
}

impl AbortedTransaction {
    pub(crate) fn put(&self, output: &mut Vec<u8>) {
        output.put_i64(self.producer_id.0);
        output.put_offset(self.first_offset);
        output.put_offset(self.last_offset);
        output.put_offset(self.last_stable_offset);
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let aborted = Self {
            producer_id: ProducerId(reader.i64()?),
            first_offset: reader.offset()?,
            last_offset: reader.offset()?,
            last_stable_offset: reader.offset()?,
        };
        if aborted.first_offset > aborted.last_offset {
            return Err(reader.invalid("a transaction ends before it begins"));
        }
        Ok(aborted)
    }
}

impl FixedEntry for IndexEntry {
    const WHAT: &'static str = "offset index";
    const MAGIC: [u8; 4] = *b"TLIX";
    const BYTES: usize = INDEX_ENTRY_BYTES;

    fn put(&self, output: &mut Vec<u8>) {
        self.put(output);
    }

    fn take(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::take(&mut Reader::new(Self::WHAT, bytes))
    }

    fn follows(&self, previous: Option<&Self>) -> bool {
        previous.map_or(self.position == 0, |previous| self.continues(previous))
    }
}

impl FixedEntry for TimeIndexEntry {
    const WHAT: &'static str = "time index";
    const MAGIC: [u8; 4] = *b"TLTX";
    const BYTES: usize = 16;

    fn put(&self, output: &mut Vec<u8>) {
        output.put_timestamp(Some(self.max_timestamp));
        output.put_offset(self.offset);
    }

    fn take(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::WHAT, bytes);
        let max_timestamp = reader.timestamp()?.ok_or(reader.invalid("an entry has no time"))?;
        Ok(Self { max_timestamp, offset: reader.offset()? })
    }

    fn follows(&self, previous: Option<&Self>) -> bool {
        previous.is_none_or(|previous| {
            self.max_timestamp > previous.max_timestamp && self.offset > previous.offset
        })
    }
}

impl FixedEntry for AbortedTransaction {
    const WHAT: &'static str = "transaction index";
    const MAGIC: [u8; 4] = *b"TLAX";
    const BYTES: usize = ABORTED_BYTES;

    fn put(&self, output: &mut Vec<u8>) {
        self.put(output);
    }

    fn take(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::take(&mut Reader::new(Self::WHAT, bytes))
    }

    fn follows(&self, previous: Option<&Self>) -> bool {
        previous.is_none_or(|previous| self.last_offset > previous.last_offset)
    }
}

#[cfg(test)]
mod tests;
