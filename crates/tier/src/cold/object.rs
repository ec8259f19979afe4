//! What is known of an object before its batches are read: its index, cut into units.
//!
//! **Owns** the units: an interval belongs to the unit, of [`COLD_UNIT_BYTES`] counted from the first batch, in which it
//! ends. So a unit is made of whole intervals, hence of whole batches, and can be checked on its own; the first one lies
//! within the first [`COLD_UNIT_BYTES`], which can be asked for before the index is known.
//!
//! ```text
//!   1 MiB grid   |               |               |               |
//!   intervals    |   |    |     |    |   |              |   |  |
//!   units        |------ 0 -----|------ 1 ------|... 2 (empty) .|
//! ```

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use tidelog_format::{manifest::ManifestEntry, object::ServingIndex};
use tidelog_object::ETag;
use tidelog_types::{Offset, limits::COLD_UNIT_BYTES};

/// An object whose index was read.
#[derive(Debug)]
pub(crate) struct OpenObject {
    pub entry: ManifestEntry,
    pub key: Arc<str>,
    pub index: ServingIndex,
    pub etag: Option<ETag>,
    pub units: Vec<Unit>,
}

/// Whole intervals that are read, checked and cached together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Its number on the grid; those without an interval do not exist.
    pub number: u64,
    /// The places of its intervals in the index.
    pub intervals: Range<usize>,
    /// Where it lies in the object.
    pub position: Range<u64>,
    /// The base offset of its first batch.
    pub base: Offset,
    /// One past its last offset.
    pub end: Offset,
}

impl Unit {
    pub(crate) const fn bytes(&self) -> u64 {
        self.position.end.saturating_sub(self.position.start)
    }
}

impl OpenObject {
    pub(crate) fn new(entry: ManifestEntry, key: Arc<str>, index: ServingIndex, etag: Option<ETag>) -> Self {
        let units = units(&entry, &index);
        Self { entry, key, index, etag, units }
    }

    /// The place among the units of the one that holds the interval at `interval`.
    pub(crate) fn unit_of(&self, interval: usize) -> usize {
        let place = self.units.partition_point(|unit| unit.intervals.end <= interval);
        place.min(self.units.len().saturating_sub(1))
    }

    /// Where an interval lies within its unit.
    pub(crate) fn within_unit(&self, interval: usize) -> Range<usize> {
        let unit = &self.units[self.unit_of(interval)];
        let entry = &self.index.intervals()[interval];
        let at = |position: u64| usize::try_from(position.saturating_sub(unit.position.start));
        at(entry.position).unwrap_or(usize::MAX)..at(entry.end_position()).unwrap_or(usize::MAX)
    }

    /// How many intervals of a unit's bytes are not what was written.
    pub(crate) fn damaged_intervals(&self, unit: &Unit, bytes: &[u8]) -> u64 {
        let damaged = unit.intervals.clone().filter(|interval| {
            let range = self.within_unit(*interval);
            !bytes.get(range).is_some_and(|bytes| self.index.intervals()[*interval].matches(bytes))
        });
        damaged.count() as u64
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = self.index.memory_bytes() + self.units.len() * size_of::<Unit>() + size_of::<Self>();
        bytes as u64
    }
}

fn units(entry: &ManifestEntry, index: &ServingIndex) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for (place, interval) in index.intervals().iter().enumerate() {
        let end_position = interval.end_position();
        let number = end_position.saturating_sub(entry.position).saturating_sub(1) / COLD_UNIT_BYTES;
        match units.last_mut() {
            Some(unit) if unit.number == number => {
                unit.intervals.end = place + 1;
                unit.position.end = end_position;
            }
            last => {
                if let Some(unit) = last {
                    unit.end = interval.base_offset;
                }
                units.push(Unit {
                    number,
                    intervals: place..place + 1,
                    position: interval.position..end_position,
                    base: interval.base_offset,
                    end: entry.range.end,
                });
            }
        }
    }
    units
}

/// The bytes `range` of what came in `chunks`. Shared with its chunk where it is most of it, else copied: a small slice
/// would pin the whole chunk.
pub(crate) fn cut(chunks: &[Bytes], range: Range<usize>) -> Option<Bytes> {
    let wanted = range.end.checked_sub(range.start)?;
    let mut copied = Vec::new();
    let mut at = 0_usize;
    for chunk in chunks {
        let (begin, end) = (at, at + chunk.len());
        at = end;
        if end <= range.start {
            continue;
        }
        if begin >= range.end {
            break;
        }
        let from = range.start.saturating_sub(begin);
        let to = range.end.min(end) - begin;
        if to - from == wanted && chunk.len() <= wanted.saturating_mul(2) {
            return Some(chunk.slice(from..to));
        }
        if copied.is_empty() {
            copied.reserve_exact(wanted);
        }
        copied.extend_from_slice(&chunk[from..to]);
    }
    (copied.len() == wanted).then(|| Bytes::from(copied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_in_pieces_is_cut_anew() {
        let chunks = [Bytes::from_static(b"abc"), Bytes::from_static(b"defgh"), Bytes::from_static(b"i")];
        let cut = |range| cut(&chunks, range);
        assert_eq!(cut(0..9).unwrap(), "abcdefghi");
        assert_eq!(cut(2..5).unwrap(), "cde");
        let shared = cut(3..7).unwrap();
        assert_eq!((shared.as_ref(), shared.as_ptr()), (b"defg".as_slice(), chunks[1].as_ptr()));
        let copied = cut(4..6).unwrap();
        assert_eq!(copied, "ef");
        assert_ne!(copied.as_ptr(), chunks[1][1..].as_ptr(), "a small part does not pin the chunk");
        assert_eq!((cut(5..5).unwrap().len(), cut(8..10)), (0, None));
    }
}
