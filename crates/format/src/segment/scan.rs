//! From batches to indexes: as they are written, and anew from a `.log`.

use bytes::{Bytes, BytesMut};
use tidelog_types::{Offset, Timestamp, limits::BATCH_HEADER_BYTES};

use super::{IndexEntry, TimeIndexEntry};
use crate::{
    batch::{BatchError, BatchHeader, BatchLimits, RawBatch, split_batches},
    crc::Crc32c,
    epochs::EpochChain,
};

/// Cuts batches into intervals.
#[derive(Debug, Clone)]
pub struct IndexBuilder {
    interval_bytes: u32,
    position: u64,
    max_timestamp: Option<Timestamp>,
    open: Option<(IndexEntry, Crc32c)>,
}

impl IndexBuilder {
    /// Intervals end at the first batch end at or past `interval_bytes`; the first batch stands at `position`.
    ///
    /// # Panics
    /// Above 1 GiB: one more batch must fit into 32 bits.
    #[must_use]
    pub const fn new(interval_bytes: u32, position: u64) -> Self {
        assert!(interval_bytes <= 1 << 30, "an interval and one batch more fit into 32 bits");
        Self { interval_bytes, position, max_timestamp: None, open: None }
    }

    /// Adds the next batch. Answers the interval that it ends.
    ///
    /// # Panics
    /// When the batch has no offset, which checked batches have.
    pub fn add(&mut self, batch: &RawBatch) -> Option<IndexEntry> {
        let base_offset = batch.header.base_offset().expect("a stored batch has an offset");
        let bytes = u32::try_from(batch.size()).expect("a batch's length is a positive i32");
        self.max_timestamp = self.max_timestamp.max(batch.header.max_timestamp());
        let (entry, crc) = self.open.get_or_insert_with(|| {
            let entry =
                IndexEntry { base_offset, position: self.position, bytes: 0, max_timestamp: None, crc: 0 };
            (entry, Crc32c::new())
        });
        crc.update(batch.header.as_bytes());
        crc.update(&batch.body);
        entry.bytes += bytes;
        entry.max_timestamp = self.max_timestamp;
        self.position += u64::from(bytes);
        if entry.bytes >= self.interval_bytes { self.close() } else { None }
    }

    /// The interval that is not full yet, as it is now.
    #[must_use]
    pub fn open_interval(&self) -> Option<IndexEntry> {
        self.open.as_ref().map(|(entry, crc)| IndexEntry { crc: crc.finish(), ..*entry })
    }

    /// Ends the interval that is not full yet: the segment is sealed, or a border is wanted here.
    pub fn close(&mut self) -> Option<IndexEntry> {
        let closed = self.open_interval();
        self.open = None;
        closed
    }

    /// Where the next batch will stand.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The largest timestamp so far.
    #[must_use]
    pub const fn max_timestamp(&self) -> Option<Timestamp> {
        self.max_timestamp
    }
}

/// Why a walk over a `.log` ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalkEnd {
    /// Every byte belongs to a whole batch.
    Complete,
    /// What follows is not a whole valid batch: a torn write, zeros, damage.
    Batch(BatchError),
    /// A valid batch follows whose offset or epoch goes back.
    Order,
}

/// What a walk over a `.log` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The offset index, the last interval included.
    pub index: Vec<IndexEntry>,
    /// The time index.
    pub time_index: Vec<TimeIndexEntry>,
    /// The leader epochs.
    pub epochs: EpochChain,
    /// One past the last offset.
    pub end: Offset,
    /// Bytes of whole valid batches in order, from the beginning of the file.
    pub bytes: u64,
    /// Why the walk ended there.
    pub walk_end: WalkEnd,
}

/// Rebuilds the indexes of a segment from its `.log`, chunk by chunk.
#[derive(Debug)]
pub struct SegmentScan {
    builder: IndexBuilder,
    carried: BytesMut,
    rebuilt: Rebuilt,
}

impl SegmentScan {
    /// Begins at the start of the file of the segment at `base`.
    #[must_use]
    pub fn new(base: Offset, interval_bytes: u32) -> Self {
        Self {
            builder: IndexBuilder::new(interval_bytes, 0),
            carried: BytesMut::new(),
            rebuilt: Rebuilt {
                index: Vec::new(),
                time_index: Vec::new(),
                epochs: EpochChain::default(),
                end: base,
                bytes: 0,
                walk_end: WalkEnd::Complete,
            },
        }
    }

    /// Takes the next bytes of the file and shows each whole batch, with its position, to `visit`. Answers whether more
    /// are wanted. A batch that spans chunks is carried over, and no length is believed before its bytes are there.
    pub fn push(&mut self, chunk: Bytes, mut visit: impl FnMut(&RawBatch, u64)) -> bool {
        if self.rebuilt.walk_end != WalkEnd::Complete {
            return false;
        }
        let bytes = if self.carried.is_empty() {
            chunk
        } else {
            self.carried.extend_from_slice(&chunk);
            std::mem::take(&mut self.carried).freeze()
        };
        let mut splitter = split_batches(bytes.clone(), &BatchLimits::log());
        loop {
            let at = splitter.position();
            match splitter.next() {
                None => return true,
                Some(Ok(batch)) => {
                    if !self.batch(&batch, &mut visit) {
                        return false;
                    }
                }
                Some(Err(BatchError::HeaderCut { .. } | BatchError::BodyCut { .. })) => {
                    self.carried.extend_from_slice(&bytes[at..]);
                    return true;
                }
                Some(Err(error)) => {
                    self.rebuilt.walk_end = WalkEnd::Batch(error);
                    return false;
                }
            }
        }
    }

    /// Ends the walk: the file has no more bytes.
    #[must_use]
    pub fn finish(mut self) -> Rebuilt {
        if self.rebuilt.walk_end == WalkEnd::Complete && !self.carried.is_empty() {
            let bytes = self.carried.len();
            let stated = BatchHeader::peek(&self.carried).and_then(|header| header.batch_bytes());
            self.rebuilt.walk_end = WalkEnd::Batch(match stated {
                Some(stated) if bytes >= BATCH_HEADER_BYTES => BatchError::BodyCut { stated, bytes },
                _ => BatchError::HeaderCut { bytes },
            });
        }
        self.rebuilt.index.extend(self.builder.close());
        self.rebuilt
    }

    fn batch(&mut self, batch: &RawBatch, visit: &mut impl FnMut(&RawBatch, u64)) -> bool {
        let rebuilt = &mut self.rebuilt;
        let (base, end) = (batch.header.base_offset(), batch.header.end_offset());
        let placed = base.zip(end).zip(batch.header.leader_epoch()).filter(|((base, _), epoch)| {
            *base >= rebuilt.end && rebuilt.epochs.latest().is_none_or(|latest| latest <= *epoch)
        });
        let Some(((base, end), epoch)) = placed else {
            rebuilt.walk_end = WalkEnd::Order;
            return false;
        };
        rebuilt.epochs.assign(epoch, base);
        if let Some(time) = batch.header.max_timestamp()
            && self.builder.max_timestamp() < Some(time)
        {
            rebuilt.time_index.push(TimeIndexEntry { max_timestamp: time, offset: base });
        }
        visit(batch, self.builder.position());
        rebuilt.index.extend(self.builder.add(batch));
        rebuilt.end = end;
        rebuilt.bytes = self.builder.position();
        true
    }
}
