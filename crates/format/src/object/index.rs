//! What a cold read needs to know of an object: its intervals, aborted transactions and leader epochs.
//!
//! ```text
//!  section | kind u8 | version u8 | reserved u16 | bytes that follow u32 | content |
//! ```

use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::{
    crc::crc32c,
    cursor::{Put, Reader},
    epochs::EpochChain,
    error::DecodeError,
    manifest::ManifestEntry,
    segment::{ABORTED_BYTES, AbortedTransaction, INDEX_ENTRY_BYTES, IndexEntry},
};

const WHAT: &str = "object index";
const VERSION: u8 = 1;
const KIND_INDEX: u8 = 1;
const KIND_ABORTED: u8 = 2;
const KIND_EPOCHS: u8 = 3;

/// The serving index of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingIndex {
    range: OffsetRange,
    index: Vec<IndexEntry>,
    aborted: Vec<AbortedTransaction>,
    epochs: EpochChain,
}

impl ServingIndex {
    /// Reads the bytes that `entry` names as its index.
    ///
    /// # Errors
    /// For another length or checksum than the entry's, and for content that is not the entry's object's.
    pub fn decode(bytes: &[u8], entry: &ManifestEntry) -> Result<Self, DecodeError> {
        if bytes.len() as u64 != entry.index.bytes {
            return Err(DecodeError::Cut { what: WHAT });
        }
        let (stated, computed) = (entry.index.crc, crc32c(bytes));
        if stated != computed {
            return Err(DecodeError::Checksum { what: WHAT, stated, computed });
        }
        let mut reader = Reader::new(WHAT, bytes);
        let mut found = Self {
            range: entry.range,
            index: Vec::new(),
            aborted: Vec::new(),
            epochs: EpochChain::default(),
        };
        let mut last_kind = 0;
        while reader.left() > 0 {
            let (kind, version) = (reader.u8()?, reader.u8()?);
            reader.reserved(2)?;
            let length = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
            let content = reader.slice(length)?;
            if version != VERSION {
                return Err(DecodeError::Version {
                    what: WHAT,
                    version: u16::from(version),
                    version_max: u16::from(VERSION),
                });
            }
            if kind <= last_kind {
                return Err(reader.invalid("its sections are out of order"));
            }
            last_kind = kind;
            found.take_section(kind, content)?;
        }
        found.check(entry)?;
        Ok(found)
    }

    fn take_section(&mut self, kind: u8, content: &[u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(WHAT, content);
        match kind {
            KIND_INDEX => {
                self.index.reserve_exact(content.len() / INDEX_ENTRY_BYTES);
                while reader.left() > 0 {
                    self.index.push(IndexEntry::take(&mut reader)?);
                }
            }
            KIND_ABORTED => {
                self.aborted.reserve_exact(content.len() / ABORTED_BYTES);
                while reader.left() > 0 {
                    self.aborted.push(AbortedTransaction::take(&mut reader)?);
                }
            }
            KIND_EPOCHS => {
                self.epochs = EpochChain::take(&mut reader)?;
                reader.finish()?;
            }
            _ => return Err(reader.invalid("it has a section of an unknown kind")),
        }
        Ok(())
    }

    /// The intervals cover the object's batches exactly.
    fn check(&self, entry: &ManifestEntry) -> Result<(), DecodeError> {
        let invalid = |why| DecodeError::Invalid { what: WHAT, why };
        let (Some(first), Some(last)) = (self.index.first(), self.index.last()) else {
            return Err(invalid("it has no interval"));
        };
        let covers = first.position == entry.position
            && entry.position.checked_add(entry.bytes) == Some(last.end_position())
            && self.index.windows(2).all(|pair| pair[1].continues(&pair[0]));
        if !covers {
            return Err(invalid("its intervals do not cover the batches"));
        }
        if self.epochs.latest() != Some(entry.leader_epoch) {
            return Err(invalid("its epochs are not those of the batches"));
        }
        Ok(())
    }

    /// The offsets of the object.
    #[must_use]
    pub const fn range(&self) -> OffsetRange {
        self.range
    }

    /// The intervals, by offset. Positions are in the object.
    #[must_use]
    pub fn intervals(&self) -> &[IndexEntry] {
        &self.index
    }

    /// The place among the intervals of the one that holds `offset`.
    #[must_use]
    pub fn interval_for_offset(&self, offset: Offset) -> usize {
        IndexEntry::find_offset(&self.index, offset).expect("an index has an interval")
    }

    /// The place among the intervals of the one with the first record at or after `time`; `None` when all are earlier.
    #[must_use]
    pub fn interval_for_time(&self, time: Timestamp) -> Option<usize> {
        IndexEntry::find_time(&self.index, time)
    }

    /// The aborted transactions that have offsets in `range`.
    pub fn aborted_in(&self, range: OffsetRange) -> impl Iterator<Item = &AbortedTransaction> {
        self.aborted.iter().filter(move |aborted| aborted.overlaps(range))
    }

    /// Every aborted transaction that overlaps the object's range.
    #[must_use]
    pub fn aborted(&self) -> &[AbortedTransaction] {
        &self.aborted
    }

    /// The leader epochs of the object's range.
    #[must_use]
    pub const fn epochs(&self) -> &EpochChain {
        &self.epochs
    }

    /// The epoch that wrote an offset of the range.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.epochs.epoch_at(offset)
    }

    /// About how many bytes of memory it takes: what a cache charges.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.len() * size_of::<IndexEntry>()
            + self.aborted.len() * size_of::<AbortedTransaction>()
            + self.epochs.entries().len() * 16
    }
}

fn section(kind: u8, content: &[u8]) -> Vec<u8> {
    if content.is_empty() {
        return Vec::new();
    }
    let mut bytes = Vec::with_capacity(8 + content.len());
    bytes.put_u8(kind);
    bytes.put_u8(VERSION);
    bytes.put_u16(0);
    bytes.put_count(content.len());
    bytes.put(content);
    bytes
}

pub(super) fn encode_index(index: &[IndexEntry]) -> Vec<u8> {
    let mut content = Vec::with_capacity(index.len() * INDEX_ENTRY_BYTES);
    index.iter().for_each(|entry| entry.put(&mut content));
    section(KIND_INDEX, &content)
}

pub(super) fn encode_aborted(aborted: &[AbortedTransaction]) -> Vec<u8> {
    let mut content = Vec::with_capacity(aborted.len() * ABORTED_BYTES);
    aborted.iter().for_each(|entry| entry.put(&mut content));
    section(KIND_ABORTED, &content)
}

pub(super) fn encode_epochs(epochs: &EpochChain) -> Vec<u8> {
    let mut content = Vec::new();
    epochs.put(&mut content);
    section(KIND_EPOCHS, &content)
}
