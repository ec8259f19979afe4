//! What a partition's manifest says of its objects.
//!
//! **Owns** the plain values that the replicated state, pages and published manifests share, and the bytes of pages
//! ([`Page`]) and of published manifests ([`ManifestFile`]).
//!
//! **Does not own** the rules by which a manifest changes: those are the cluster's state machine.

mod columns;
mod file;
mod page;

pub use file::ManifestFile;
pub use page::{PAGE_ENTRIES_MAX, Page};

use serde::{Deserialize, Serialize};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, UploadId};

/// What makes the key of one segment object, within its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentObjectId {
    /// The first offset of its range.
    pub base: Offset,
    /// The leader epoch it was uploaded in.
    pub leader_epoch: LeaderEpoch,
    /// Who wrote it, and its how-manyeth upload it is.
    pub upload: UploadId,
}

/// What makes the key of one manifest page, within its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId {
    /// The first offset of its range.
    pub base: Offset,
    /// Who wrote it, and its how-manyeth upload it is.
    pub upload: UploadId,
}

/// Where a section lies in its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Section {
    /// Its first byte.
    pub position: u64,
    /// Its length in bytes; 0: it is known to be empty, and never requested.
    pub bytes: u64,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// One range of offsets and the object that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// The offsets.
    pub range: OffsetRange,
    /// The object.
    pub object: SegmentObjectId,
    /// Where the range's batches begin in the object.
    pub position: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// Bytes of the whole object.
    pub object_bytes: u64,
    /// The largest timestamp of its records; `None` where none has one.
    pub max_timestamp: Option<Timestamp>,
    /// The index section.
    pub index: Section,
    /// The leader epoch of its last batch.
    pub leader_epoch: LeaderEpoch,
}

/// One line of the replicated state: a page of older entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageLine {
    /// The page.
    pub page: PageId,
    /// The offsets that its entries cover.
    pub range: OffsetRange,
    /// Bytes of the batches of its entries.
    pub bytes: u64,
    /// The largest timestamp of its entries.
    pub max_timestamp: Option<Timestamp>,
}

#[cfg(test)]
mod tests;
