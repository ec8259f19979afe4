//! The headers of rounds and entries, as a play reads them: valid and at their place, or nothing.

use bytes::Bytes;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, TopicPartition, limits::BATCH_HEADER_BYTES};

use super::{
    APPEND_HEADER_BYTES, CONTROL_HEADER_BYTES, Change, ENTRY_ALIGNMENT, ENTRY_MAGIC, Generation,
    JournalPosition, ROUND_HEADER_BYTES, ROUND_MAGIC, TRAILER_BYTES, VERSION, encode::entry_crc, kind,
};
use crate::{
    batch::{BatchHeader, RawBatch},
    crc::crc32c,
    cursor::Reader,
};

/// A round's header.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundHeader {
    pub(super) synced: JournalPosition,
    pub(super) bytes: u32,
}

impl RoundHeader {
    pub(super) fn decode(bytes: &[u8], generation: Generation, position: JournalPosition) -> Option<Self> {
        let bytes = bytes.get(..64)?;
        if bytes[..4] != ROUND_MAGIC || crc32c(&bytes[..60]).to_be_bytes() != bytes[60..] {
            return None;
        }
        let mut reader = Reader::new("round header", &bytes[4..]);
        let version = reader.u16().ok()?;
        let reserved = reader.u16().ok()?;
        let found = (Generation(reader.u64().ok()?), JournalPosition(reader.u64().ok()?));
        let synced = JournalPosition(reader.u64().ok()?);
        let length = reader.u32().ok()?;
        let fits = version == u16::from(VERSION) && reserved == 0 && found == (generation, position);
        (fits && u64::from(length) >= ROUND_HEADER_BYTES && synced <= position)
            .then_some(Self { synced, bytes: length })
    }
}

/// An entry's header.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryHeader {
    kind: u8,
    pub(super) place: TopicPartition,
    leader_epoch: LeaderEpoch,
    offset: Offset,
    append: Option<AppendFields>,
}

#[derive(Debug, Clone, Copy)]
struct AppendFields {
    last_offset: Offset,
    body_bytes: u32,
    body_crc: u32,
    batch: BatchHeader,
}

impl EntryHeader {
    /// The size of the header that these bytes may begin, from their first four.
    pub(super) fn size(bytes: &[u8]) -> Option<usize> {
        match bytes.get(..4)? {
            [m0, m1, VERSION, kind] if [*m0, *m1] == ENTRY_MAGIC => match *kind {
                kind::APPEND => Some(APPEND_HEADER_BYTES),
                kind::TRUNCATE..=kind::DELETE => Some(CONTROL_HEADER_BYTES),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn decode(bytes: &[u8], generation: Generation, position: JournalPosition) -> Option<Self> {
        let bytes = bytes.get(..Self::size(bytes)?)?;
        if entry_crc(bytes).to_be_bytes() != bytes[4..8] {
            return None;
        }
        let mut reader = Reader::new("journal entry", &bytes[8..]);
        let found = (Generation(reader.u64().ok()?), JournalPosition(reader.u64().ok()?));
        if found != (generation, position) {
            return None;
        }
        let place = reader.topic_partition().ok()?;
        let leader_epoch = reader.leader_epoch().ok()?;
        let offset = reader.offset().ok()?;
        let append = if bytes[3] == kind::APPEND {
            let last_offset = reader.offset().ok()?;
            let (body_bytes, body_crc) = (reader.u32().ok()?, reader.u32().ok()?);
            let batch = BatchHeader::from_bytes(reader.array::<BATCH_HEADER_BYTES>().ok()?);
            Some(AppendFields { last_offset, body_bytes, body_crc, batch })
        } else {
            None
        };
        Some(Self { kind: bytes[3], place, leader_epoch, offset, append })
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.append.map_or(0, |append| u64::from(append.body_bytes))
    }

    pub(super) fn header_bytes(&self) -> u64 {
        if self.append.is_some() { APPEND_HEADER_BYTES as u64 } else { CONTROL_HEADER_BYTES as u64 }
    }

    pub(super) fn size_in_memory(&self) -> usize {
        if self.append.is_some() { APPEND_HEADER_BYTES } else { CONTROL_HEADER_BYTES }
    }

    /// Header, body, padding and trailer.
    pub(super) fn entry_bytes(&self) -> u64 {
        (self.header_bytes() + self.body_bytes()).next_multiple_of(ENTRY_ALIGNMENT) + TRAILER_BYTES as u64
    }

    /// The change, unless the parts of an append disagree.
    pub(super) fn change(&self, body: Bytes) -> Option<Change> {
        let to = self.offset;
        Some(match (self.kind, self.append) {
            (kind::APPEND, Some(append)) => {
                let range = OffsetRange::new(self.offset, append.last_offset.checked_add(1)?)?;
                let header = append.batch;
                let agree = header.base_offset() == Some(range.base)
                    && header.end_offset() == Some(range.end)
                    && header.leader_epoch() == Some(self.leader_epoch)
                    && header.batch_bytes() == Some(BATCH_HEADER_BYTES + body.len())
                    && crc32c(&body) == append.body_crc;
                if !agree {
                    return None;
                }
                Change::Append { leader_epoch: self.leader_epoch, range, batch: RawBatch { header, body } }
            }
            (kind::TRUNCATE, _) => Change::Truncate { to },
            (kind::RESET, _) => Change::Reset { start: to },
            (kind::LOG_START, _) => Change::LogStart { to },
            (kind::LOCAL_LOG_START, _) => Change::LocalLogStart { to },
            (kind::DELETE, _) => Change::Delete,
            _ => return None,
        })
    }

    pub(super) fn range(&self) -> Option<OffsetRange> {
        OffsetRange::new(self.offset, self.append?.last_offset.checked_add(1)?)
    }
}
