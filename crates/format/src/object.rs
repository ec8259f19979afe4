//! A segment object: the batches of one range of offsets, and what is needed to serve them.
//!
//! ```text
//!  | batches, as stored | index | aborted transactions | leader epochs | producer snapshot | footer, 512 |
//!                       `-------------- serving index ----------------'
//! ```
//!
//! **Owns** the layout, the checks before an object is made ([`SegmentObjectBuilder`]), and reading of its parts
//! ([`Footer`], [`ServingIndex`]).
//!
//! **Does not own** requests to a store, nor whether a manifest names the object.
//!
//! The first three sections lie together, so that one read gives everything that a fetch, ListOffsets,
//! OffsetForLeaderEpoch and read_committed need; a manifest entry names that stretch and its checksum. The producer
//! snapshot is apart: only a restore reads it. A section without content has the length 0, which is a recorded fact: it is
//! never requested.
//!
//! Objects are made of batches that were checked here once more, checksums included: a segment that rotted on disk makes
//! no object. Indexes come from the batches alone, never from the files beside a segment.

mod footer;
mod index;

pub use footer::{FOOTER_BYTES, Footer};
pub use index::ServingIndex;

use std::iter;

use bytes::Bytes;
use thiserror::Error;
use tidelog_types::{ClusterId, LeaderEpoch, Offset, OffsetRange, TopicPartition, UploadId};

use crate::{
    batch::{
        BATCH_HEADER_BYTES, BatchError, BatchHeader, BatchLimits, RawBatch, batch_of_parts, split_batches,
    },
    crc::{combine, crc32c},
    epochs::EpochChain,
    manifest::{ManifestEntry, Section, SegmentObjectId},
    producers::ProducerSnapshot,
    segment::{AbortedTransaction, IndexBuilder, IndexEntry},
};

/// Bytes of an index interval of an object: one read of a cold look-up.
pub const INDEX_INTERVAL_BYTES: u32 = 64 * 1024;

/// Whose object it is, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The partition.
    pub place: TopicPartition,
    /// The offsets.
    pub range: OffsetRange,
    /// The epoch of the leader that uploads it.
    pub leader_epoch: LeaderEpoch,
    /// Who uploads it, and the how-manyeth upload it is.
    pub upload: UploadId,
    /// The partition's log start offset at that time.
    pub log_start: Offset,
    /// The object of the manifest entry before it; `None` for the first, and where a log start jumped.
    pub previous: Option<SegmentObjectId>,
}

/// Why batches make no object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BuildError {
    /// A batch is not valid, or does not end with its chunk: the local copy is damaged.
    #[error("a batch behind offset {after} is not valid")]
    Batch {
        /// The end of the batch before it.
        after: Offset,
        /// What is wrong.
        #[source]
        source: BatchError,
    },
    /// Offsets do not continue.
    #[error("a batch covers {found} where offset {expected} is expected")]
    Offsets {
        /// What should come next.
        expected: Offset,
        /// What came.
        found: OffsetRange,
    },
    /// Leader epochs go back, or are missing.
    #[error("the batch at offset {base} has leader epoch {epoch:?} behind epoch {latest:?}")]
    Epoch {
        /// Whose.
        base: Offset,
        /// Its epoch.
        epoch: Option<LeaderEpoch>,
        /// The one before.
        latest: Option<LeaderEpoch>,
    },
    /// The batches end before or behind the range.
    #[error("the batches end at offset {end}, the range is {range}")]
    Range {
        /// Where they end.
        end: Offset,
        /// The range.
        range: OffsetRange,
    },
    /// A transaction that does not belong here.
    #[error("an aborted transaction of producer {producer_id} does not overlap {range}", producer_id = aborted.producer_id)]
    Aborted {
        /// Which.
        aborted: AbortedTransaction,
        /// The range.
        range: OffsetRange,
    },
}

/// Whether every offset must be in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gaps {
    /// Yes: the log was never compacted, and a gap is a loss.
    Refused,
    /// No: compaction took records.
    Allowed,
}

/// Batches as they lie in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchBytes {
    /// Whole batches behind each other.
    Whole(Bytes),
    /// One batch.
    Parts {
        /// Its header.
        header: Bytes,
        /// Everything behind the header.
        body: Bytes,
    },
}

impl BatchBytes {
    /// The headers as they stand: nothing is checked. The first that cannot be read is `None`, and the last.
    pub fn headers(&self) -> impl Iterator<Item = Option<BatchHeader>> {
        let mut rest = match self {
            Self::Whole(bytes) => &bytes[..],
            Self::Parts { header, .. } => &header[..],
        };
        iter::from_fn(move || {
            let header = (!rest.is_empty()).then(|| BatchHeader::peek(rest))?;
            let bytes = header.and_then(|header| header.batch_bytes());
            let bytes = bytes.filter(|bytes| *bytes >= BATCH_HEADER_BYTES);
            rest = bytes.and_then(|bytes| rest.get(bytes..)).unwrap_or_default();
            Some(header.filter(|_| bytes.is_some()))
        })
    }

    /// Whether a transaction may be in it, from the headers alone.
    #[must_use]
    pub fn may_be_transactional(&self) -> bool {
        self.headers().any(|header| header.is_none_or(|header| header.attributes().is_transactional()))
    }

    /// The batches, each checked; the first error is the end.
    pub fn batches(&self) -> impl Iterator<Item = Result<RawBatch, BatchError>> {
        let limits = BatchLimits::log();
        let (whole, parts) = match self {
            Self::Whole(bytes) => (Some(split_batches(bytes.clone(), &limits)), None),
            Self::Parts { header, body } => (None, Some(batch_of_parts(header, body.clone(), &limits))),
        };
        whole.into_iter().flatten().chain(parts)
    }
}

impl From<Bytes> for BatchBytes {
    fn from(whole: Bytes) -> Self {
        Self::Whole(whole)
    }
}

/// A finished object.
#[derive(Debug, Clone)]
pub struct SegmentObject {
    /// Its bytes, in order. The batches are the slices that were added.
    pub payload: Vec<Bytes>,
    /// Its footer.
    pub footer: Footer,
}

impl SegmentObject {
    /// The entry that a manifest holds for it.
    #[must_use]
    pub fn entry(&self) -> ManifestEntry {
        self.footer.manifest_entry()
    }

    /// Its length.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.footer.object_bytes
    }
}

/// Makes an object of whole batches.
#[derive(Debug)]
pub struct SegmentObjectBuilder {
    identity: ObjectIdentity,
    gaps: Gaps,
    payload: Vec<Bytes>,
    index: Vec<IndexEntry>,
    builder: IndexBuilder,
    epochs: EpochChain,
    end: Option<Offset>,
}

impl SegmentObjectBuilder {
    /// Begins an object. The first batch may begin below the range, since a log start may lie inside of a batch.
    #[must_use]
    pub fn new(identity: ObjectIdentity, gaps: Gaps) -> Self {
        Self::with_interval(identity, gaps, INDEX_INTERVAL_BYTES)
    }

    /// As [`SegmentObjectBuilder::new`], with index intervals of another size.
    #[must_use]
    pub fn with_interval(identity: ObjectIdentity, gaps: Gaps, interval_bytes: u32) -> Self {
        Self {
            identity,
            gaps,
            payload: Vec::new(),
            index: Vec::new(),
            builder: IndexBuilder::new(interval_bytes, 0),
            epochs: EpochChain::default(),
            end: None,
        }
    }

    /// Bytes of the batches so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.builder.position()
    }

    /// Adds whole batches. They are checked, and shared rather than copied.
    ///
    /// # Errors
    /// When they are damaged or do not continue what is there; the object is given up.
    pub fn add(&mut self, bytes: impl Into<BatchBytes>) -> Result<(), BuildError> {
        let bytes = bytes.into();
        for batch in bytes.batches() {
            let after = self.end.unwrap_or(self.identity.range.base);
            let batch = batch.map_err(|source| BuildError::Batch { after, source })?;
            self.batch(&batch)?;
        }
        match bytes {
            BatchBytes::Whole(bytes) => self.payload.push(bytes),
            BatchBytes::Parts { header, body } => self.payload.extend([header, body]),
        }
        Ok(())
    }

    fn batch(&mut self, batch: &RawBatch) -> Result<(), BuildError> {
        let header = &batch.header;
        let (base, end) = header.base_offset().zip(header.end_offset()).expect("split batches have offsets");
        let expected = self.end.unwrap_or(self.identity.range.base);
        let found = OffsetRange { base, end };
        let fits = match (self.end, self.gaps) {
            (None, Gaps::Refused) => base <= expected && expected < end,
            (None, Gaps::Allowed) => expected < end,
            (Some(expected), Gaps::Refused) => base == expected,
            (Some(expected), Gaps::Allowed) => base >= expected,
        };
        if !fits || end > self.identity.range.end {
            return Err(BuildError::Offsets { expected, found });
        }
        let epoch = header.leader_epoch();
        let latest = self.epochs.latest();
        let Some(epoch) = epoch.filter(|epoch| latest.is_none_or(|latest| latest <= *epoch)) else {
            return Err(BuildError::Epoch { base, epoch, latest });
        };
        self.epochs.assign(epoch, base.max(self.identity.range.base));
        self.index.extend(self.builder.add(batch));
        self.end = Some(end);
        Ok(())
    }

    /// Ends the object: `aborted` is every aborted transaction that overlaps the range, wherever its marker is;
    /// `producers` the state at the range's end.
    ///
    /// # Errors
    /// When the batches do not fill the range, or a transaction lies outside of it.
    pub fn finish(
        mut self,
        aborted: &[AbortedTransaction],
        producers: Option<&ProducerSnapshot>,
    ) -> Result<SegmentObject, BuildError> {
        let range = self.identity.range;
        let end = self.end.unwrap_or(range.base);
        let latest = self.epochs.latest();
        let (Some(last_batch_epoch), true) = (latest, end == range.end || self.gaps == Gaps::Allowed) else {
            return Err(BuildError::Range { end, range });
        };
        if let Some(aborted) = aborted.iter().find(|aborted| !aborted.overlaps(range)) {
            return Err(BuildError::Aborted { aborted: *aborted, range });
        }
        self.index.extend(self.builder.close());
        let batches_crc =
            self.index.iter().fold(0, |crc, entry| combine(crc, entry.crc, u64::from(entry.bytes)));
        let batches = Section { position: 0, bytes: self.builder.position(), crc: batches_crc };
        let parts = [
            index::encode_index(&self.index),
            index::encode_aborted(aborted),
            index::encode_epochs(&self.epochs),
            producers.map_or_else(Vec::new, ProducerSnapshot::encode),
        ];
        let mut position = batches.bytes;
        let mut sections = [Section::default(); 4];
        for (section, part) in sections.iter_mut().zip(&parts) {
            *section = Section { position, bytes: part.len() as u64, crc: crc32c(part) };
            position += section.bytes;
        }
        let serving =
            sections[..3].iter().fold(Section { position: batches.bytes, bytes: 0, crc: 0 }, |all, part| {
                Section {
                    position: all.position,
                    bytes: all.bytes + part.bytes,
                    crc: combine(all.crc, part.crc, part.bytes),
                }
            });
        let footer = Footer {
            identity: self.identity,
            last_batch_epoch,
            max_timestamp: self.builder.max_timestamp(),
            batches,
            serving,
            index: sections[0],
            aborted: sections[1],
            epochs: sections[2],
            producers: sections[3],
            object_bytes: position + FOOTER_BYTES as u64,
        };
        let mut payload = self.payload;
        payload.extend(parts.into_iter().filter(|part| !part.is_empty()).map(Bytes::from));
        payload.push(Bytes::from(footer.encode()));
        Ok(SegmentObject { payload, footer })
    }
}

/// Whether the bytes of a section are those that were written.
#[must_use]
pub fn section_matches(section: &Section, bytes: &[u8]) -> bool {
    section.bytes == bytes.len() as u64 && section.crc == crc32c(bytes)
}

#[cfg(test)]
mod tests;
