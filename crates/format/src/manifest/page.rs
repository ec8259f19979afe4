//! A page: older manifest entries of one partition, in one immutable object.

use tidelog_types::{
    BrokerIncarnation, ClusterId, LeaderEpoch, Offset, OffsetRange, Timestamp, TopicPartition, UploadId,
    UploadSequence, limits::MANIFEST_PAGE_BYTES_MAX,
};

use super::{ManifestEntry, PageId, PageLine, Section, SegmentObjectId, columns};
use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
    varint::{unzigzag, zigzag},
};

const FILE: Kind = Kind { what: "manifest page", magic: *b"TLPG", version: 1 };

/// Entries of one page at most, since a column of equal numbers takes no bytes by which a count could be bounded.
pub const PAGE_ENTRIES_MAX: usize = 16_384;

/// Contiguous entries of one partition.
///
/// Stored in columns, each a difference to what the entry before it lets expect: about 17 bytes for an entry of a busy
/// partition, of which four are the index's checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Whose.
    pub cluster_id: ClusterId,
    /// The partition.
    pub place: TopicPartition,
    /// The entries, each beginning where the one before ends; at least one.
    pub entries: Vec<ManifestEntry>,
}

/// The columns, in the order in which they are stored.
#[derive(Debug, Default)]
struct Columns {
    offsets: Vec<u64>,
    object_base: Vec<u64>,
    object_epoch: Vec<u64>,
    last_epoch: Vec<u64>,
    incarnation: Vec<u64>,
    sequence: Vec<u64>,
    position: Vec<u64>,
    bytes: Vec<u64>,
    /// 0 for none.
    has_timestamp: Vec<u64>,
    timestamp: Vec<u64>,
    index_position: Vec<u64>,
    index_bytes: Vec<u64>,
    after_index: Vec<u64>,
    index_crc: Vec<u64>,
}

impl Columns {
    fn all(&mut self) -> [&mut Vec<u64>; 14] {
        [
            &mut self.offsets,
            &mut self.object_base,
            &mut self.object_epoch,
            &mut self.last_epoch,
            &mut self.incarnation,
            &mut self.sequence,
            &mut self.position,
            &mut self.bytes,
            &mut self.has_timestamp,
            &mut self.timestamp,
            &mut self.index_position,
            &mut self.index_bytes,
            &mut self.after_index,
            &mut self.index_crc,
        ]
    }
}

/// What an entry's numbers are differences to.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    epoch: u64,
    incarnation: u64,
    sequence: u64,
    timestamp: u64,
}

/// A difference that wraps, so that every pair of numbers has one; small ones become small numbers.
fn difference(value: u64, expected: u64) -> u64 {
    zigzag(value.wrapping_sub(expected).cast_signed())
}

fn undo(difference: u64, expected: u64) -> u64 {
    expected.wrapping_add(unzigzag(difference).cast_unsigned())
}

impl Page {
    /// The offsets that the page covers.
    ///
    /// # Panics
    /// When it is empty.
    #[must_use]
    pub fn range(&self) -> OffsetRange {
        let first = self.entries.first().expect("a page has an entry");
        let last = self.entries.last().expect("a page has an entry");
        OffsetRange { base: first.range.base, end: last.range.end }
    }

    /// The line that the replicated state holds for the page under its key.
    #[must_use]
    pub fn line(&self, page: PageId) -> PageLine {
        PageLine {
            page,
            range: self.range(),
            bytes: self.entries.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add),
            max_timestamp: self.entries.iter().filter_map(|entry| entry.max_timestamp).max(),
        }
    }

    /// Whether a page of `encoded_bytes` takes no more entries: the next spill begins another page.
    #[must_use]
    pub const fn is_closed(&self, encoded_bytes: usize) -> bool {
        encoded_bytes >= MANIFEST_PAGE_BYTES_MAX || self.entries.len() >= PAGE_ENTRIES_MAX
    }

    /// The place of the entry that holds `offset`.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<usize> {
        let index = self.entries.partition_point(|entry| entry.range.end <= offset);
        self.entries.get(index).filter(|entry| entry.range.contains(offset)).map(|_| index)
    }

    /// The page's object. Equal pages have equal bytes.
    ///
    /// # Panics
    /// When the entries are none, too many, or not contiguous (T1).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = self.entries.len();
        assert!(0 < count && count <= PAGE_ENTRIES_MAX, "a page of {count} entries");
        assert!(
            self.entries.windows(2).all(|pair| pair[0].range.end == pair[1].range.base),
            "T1: entries of a page are contiguous"
        );
        let mut before = Before::default();
        let mut columns = Columns::default();
        for entry in &self.entries {
            push(&mut columns, entry, &mut before);
        }
        let mut payload = Vec::new();
        payload.put(self.cluster_id.as_bytes());
        payload.put_topic_partition(self.place);
        payload.put_offset(self.range().base);
        payload.put_count(count);
        for column in columns.all() {
            columns::put(&mut payload, column);
        }
        envelope::seal(FILE, &payload)
    }

    /// Reads [`Page::encode`]'s object.
    ///
    /// # Errors
    /// For damage, another kind of object, or a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let cluster_id = ClusterId::from_bytes(reader.array()?);
        let place = reader.topic_partition()?;
        let mut base = reader.offset()?;
        let count = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
        if count == 0 || count > PAGE_ENTRIES_MAX {
            return Err(reader.invalid("its count of entries is out of range"));
        }
        let mut columns = Columns::default();
        for column in columns.all() {
            *column = columns::take(&mut reader, count)?;
        }
        let mut before = Before::default();
        let mut entries = Vec::with_capacity(count);
        for index in 0..count {
            let entry = entry_at(&columns, index, base, &mut before)
                .ok_or(reader.invalid("an entry's number is out of range"))?;
            base = entry.range.end;
            entries.push(entry);
        }
        reader.finish()?;
        Ok(Self { cluster_id, place, entries })
    }
}

fn push(columns: &mut Columns, entry: &ManifestEntry, before: &mut Before) {
    let object = &entry.object;
    let epoch = u64::from(object.leader_epoch.get());
    let (incarnation, sequence) = (object.upload.incarnation.0, object.upload.sequence.0);
    let batches_end = entry.position.wrapping_add(entry.bytes);
    let index_end = entry.index.position.wrapping_add(entry.index.bytes);
    columns.offsets.push(entry.range.end.distance_from(entry.range.base));
    columns.object_base.push(difference(object.base.get(), entry.range.base.get()));
    columns.object_epoch.push(difference(epoch, before.epoch));
    columns.last_epoch.push(difference(u64::from(entry.leader_epoch.get()), epoch));
    columns.incarnation.push(difference(incarnation, before.incarnation));
    columns.sequence.push(difference(sequence, before.sequence));
    columns.position.push(entry.position);
    columns.bytes.push(entry.bytes);
    columns.has_timestamp.push(u64::from(entry.max_timestamp.is_some()));
    let timestamp = entry.max_timestamp.map_or(before.timestamp, Timestamp::as_millis);
    columns.timestamp.push(difference(timestamp, before.timestamp));
    columns.index_position.push(difference(entry.index.position, batches_end));
    columns.index_bytes.push(entry.index.bytes);
    columns.after_index.push(difference(entry.object_bytes, index_end));
    columns.index_crc.push(u64::from(entry.index.crc));
    *before = Before { epoch, incarnation, sequence, timestamp };
}

fn entry_at(columns: &Columns, index: usize, base: Offset, before: &mut Before) -> Option<ManifestEntry> {
    let end = base.checked_add(columns.offsets[index])?;
    let epoch = undo(columns.object_epoch[index], before.epoch);
    let incarnation = undo(columns.incarnation[index], before.incarnation);
    let sequence = undo(columns.sequence[index], before.sequence);
    let timestamp = undo(columns.timestamp[index], before.timestamp);
    *before = Before { epoch, incarnation, sequence, timestamp };
    let (position, bytes) = (columns.position[index], columns.bytes[index]);
    let index_position = undo(columns.index_position[index], position.wrapping_add(bytes));
    let index_bytes = columns.index_bytes[index];
    let max_timestamp = match columns.has_timestamp[index] {
        0 => None,
        1 => Some(Timestamp::from_wire(i64::try_from(timestamp).ok()?)?),
        _ => return None,
    };
    Some(ManifestEntry {
        range: OffsetRange::new(base, end)?,
        object: SegmentObjectId {
            base: Offset::new(undo(columns.object_base[index], base.get()))?,
            leader_epoch: leader_epoch(epoch)?,
            upload: UploadId {
                incarnation: BrokerIncarnation(incarnation),
                sequence: UploadSequence(sequence),
            },
        },
        position,
        bytes,
        object_bytes: undo(columns.after_index[index], index_position.wrapping_add(index_bytes)),
        max_timestamp,
        index: Section {
            position: index_position,
            bytes: index_bytes,
            crc: u32::try_from(columns.index_crc[index]).ok()?,
        },
        leader_epoch: leader_epoch(undo(columns.last_epoch[index], epoch))?,
    })
}

fn leader_epoch(raw: u64) -> Option<LeaderEpoch> {
    LeaderEpoch::from_wire(i32::try_from(raw).ok()?)
}
