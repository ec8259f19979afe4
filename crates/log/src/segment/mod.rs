//! One segment: its batches' file, and the index over it.
//!
//! **Owns** the names of a segment's files, what is known of its content ([`Segment`]), and the repair of an index from
//! the batches ([`rebuild`]). **Does not own** who may write: that is [`crate::files`].
//!
//! An index is a list of intervals. Each says where it begins, in offsets and in bytes, and carries the checksum of all
//! of its bytes, headers included: a flipped bit in a base offset is outside of the batch's own checksum. An interval
//! ends where the next one begins; the last one of an active segment still grows, in memory.

pub(crate) mod index_file;
pub(crate) mod rebuild;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelog_format::{batch::BATCH_HEADER_BYTES, checkpoint::CheckpointSegment, crc};
use tidelog_types::{Offset, Timestamp, TopicPartition};

/// One stretch of whole batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The first batch's base offset.
    pub(crate) offset: Offset,
    /// Where its first batch begins in the file.
    pub(crate) position: u64,
    /// CRC-32C of all of its bytes.
    pub(crate) crc: u32,
    /// The largest timestamp from the segment's beginning to this interval's end.
    pub(crate) max_timestamp: Option<Timestamp>,
}

/// What is known of a segment's content.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    /// One past its last batch's last offset.
    pub(crate) end: Offset,
    pub(crate) sealed: bool,
    pub(crate) max_timestamp: Option<Timestamp>,
    /// Wall time of its first append.
    pub(crate) created: Timestamp,
    /// Whether `max_timestamp` was computed. Of a segment that the checkpoint does not describe only length and end are known
    /// at first.
    pub(crate) known: bool,
    /// `None` where the index is on disk only.
    pub(crate) intervals: Option<Vec<Interval>>,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) place: TopicPartition,
    pub(crate) base: Offset,
    pub(crate) folder: PathBuf,
    content: RwLock<Content>,
    /// Why it must not be read.
    quarantined: OnceLock<Arc<str>>,
    /// Whether its files go: whoever still has it in hand keeps none of them open.
    removed: AtomicBool,
}

/// A batch's place in a segment, and what the index wants of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indexed {
    pub(crate) base: Offset,
    /// Inclusive.
    pub(crate) last: Offset,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
    pub(crate) max_timestamp: Option<Timestamp>,
}

impl Content {
    pub(crate) fn empty(base: Offset, created: Timestamp) -> Self {
        Self {
            bytes: 0,
            end: base,
            sealed: false,
            max_timestamp: None,
            created,
            known: true,
            intervals: Some(Vec::new()),
        }
    }

    /// A sealed segment of an earlier process, of which a listing says the length.
    pub(crate) fn listed(bytes: u64, end: Offset, created: Timestamp) -> Self {
        Self { bytes, end, sealed: true, max_timestamp: None, created, known: false, intervals: None }
    }

    /// A sealed segment as the last checkpoint describes it.
    pub(crate) fn recorded(record: &CheckpointSegment) -> Self {
        Self {
            bytes: record.bytes,
            end: record.range.end,
            sealed: true,
            max_timestamp: record.max_timestamp,
            created: record.created,
            known: true,
            intervals: None,
        }
    }

    /// Takes an index that was read or rebuilt.
    pub(crate) fn learn(&mut self, intervals: Vec<Interval>) {
        self.max_timestamp = intervals.last().and_then(|interval| interval.max_timestamp);
        self.known = true;
        self.intervals = Some(intervals);
    }

    /// Adds a batch at the end. A new interval begins where the last one has `interval_bytes`, or where `border` asks.
    pub(crate) fn add(&mut self, batch: &Indexed, interval_bytes: u64, border: bool) {
        let bytes = self.bytes;
        let intervals = self.intervals.get_or_insert_with(Vec::new);
        match intervals.last_mut() {
            Some(last) if !border && bytes - last.position < interval_bytes => {
                last.crc = crc::combine(last.crc, batch.crc, batch.bytes);
                last.max_timestamp = last.max_timestamp.max(batch.max_timestamp);
            }
            _ => intervals.push(Interval {
                offset: batch.base,
                position: bytes,
                crc: batch.crc,
                max_timestamp: self.max_timestamp.max(batch.max_timestamp),
            }),
        }
        self.bytes += batch.bytes;
        self.end = batch.last.next();
        self.max_timestamp = self.max_timestamp.max(batch.max_timestamp);
    }
}

impl Segment {
    pub(crate) fn new(place: TopicPartition, folder: &Path, base: Offset, content: Content) -> Self {
        Self {
            place,
            base,
            folder: folder.to_path_buf(),
            content: RwLock::new(content),
            quarantined: OnceLock::new(),
            removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn content_mut(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that its files are about to go; before its descriptors are forgotten.
    pub(crate) fn note_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn quarantine(&self, why: &str) -> Arc<str> {
        Arc::clone(self.quarantined.get_or_init(|| Arc::from(why)))
    }

    /// The part below `end` of a quarantined segment; `None` where there is none.
    pub(crate) fn quarantined_below(&self, end: Offset) -> Option<Self> {
        let why = self.quarantined().filter(|_| self.base < end)?;
        let content = Content { end, ..self.content().clone() };
        let part = Self::new(self.place, &self.folder, self.base, content);
        part.quarantine(&why);
        Some(part)
    }

    pub(crate) fn quarantined(&self) -> Option<Arc<str>> {
        self.quarantined.get().cloned()
    }

    /// A file of the segment.
    pub(crate) fn path(&self, extension: &str) -> PathBuf {
        path(&self.folder, self.base, extension)
    }
}

/// The file of the segment at `base`.
pub(crate) fn path(folder: &Path, base: Offset, extension: &str) -> PathBuf {
    folder.join(format!("{base:020}.{extension}"))
}

/// The batches.
pub(crate) const LOG: &str = "log";
/// The intervals.
pub(crate) const INDEX: &str = "index";
/// Timestamps.
pub(crate) const TIME_INDEX: &str = "timeindex";
/// Aborted transactions.
pub(crate) const TXN_INDEX: &str = "txnindex";
/// Producer state.
pub(crate) const SNAPSHOT: &str = "snapshot";

/// The checksum of a batch's bytes, from its header and the checksum that it carries for the rest: 61 bytes are read.
///
/// # Panics
/// Where `header` is shorter than 21 bytes.
pub(crate) fn batch_crc(header: &[u8], batch_bytes: u64) -> u32 {
    let (front, rest) = header.split_at(21);
    let carried = u32::from_be_bytes([front[17], front[18], front[19], front[20]]);
    debug_assert!(rest.len() + 21 == BATCH_HEADER_BYTES, "a whole header");
    crc::combine(crc::crc32c(front), carried, batch_bytes - 21)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(raw: u64) -> Offset {
        Offset::new(raw).unwrap()
    }

    fn indexed(base: u64, last: u64, content: &[u8]) -> Indexed {
        Indexed {
            base: offset(base),
            last: offset(last),
            bytes: content.len() as u64,
            crc: crc::crc32c(content),
            max_timestamp: Timestamp::from_wire(i64::try_from(base).unwrap()),
        }
    }

    #[test]
    fn an_interval_ends_at_its_size_or_at_a_border_and_its_checksum_covers_all_of_it() {
        let mut content = Content::empty(offset(0), Timestamp::from_millis(9));
        content.add(&indexed(0, 9, b"abcd"), 8, false);
        content.add(&indexed(10, 19, b"efgh"), 8, false);
        content.add(&indexed(20, 29, b"ij"), 8, false);
        content.add(&indexed(30, 39, b"kl"), 8, true);
        let intervals = content.intervals.clone().unwrap();
        let expected = [
            Interval {
                offset: offset(0),
                position: 0,
                crc: crc::crc32c(b"abcdefgh"),
                max_timestamp: Timestamp::from_wire(10),
            },
            Interval {
                offset: offset(20),
                position: 8,
                crc: crc::crc32c(b"ij"),
                max_timestamp: Timestamp::from_wire(20),
            },
            Interval {
                offset: offset(30),
                position: 10,
                crc: crc::crc32c(b"kl"),
                max_timestamp: Timestamp::from_wire(30),
            },
        ];
        assert_eq!(intervals, expected);
        assert_eq!((content.bytes, content.end), (12, offset(40)));
    }
}
