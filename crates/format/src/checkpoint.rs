//! The checkpoint of a node's log: how far each partition's files are complete, and from where the journal plays on.
//!
//! **Owns** the file's bytes. It is written aside, synced, renamed, and its directory synced; before that, every
//! partition's batches, index, epoch chain and producer snapshot up to its synced end are.
//!
//! Three offsets of a partition are stored apart and never derived from one another. Each segment of a partition is listed,
//! so that a file that is lost, or shorter than it was, is told from a hole that was always there.

use tidelog_types::{Offset, OffsetRange, Timestamp, TopicPartition};

use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
    journal::{Generation, JournalPosition, POSITION_MAX},
};

const FILE: Kind = Kind { what: "log checkpoint", magic: *b"TLCP", version: 2 };

/// Bytes of a partition in the file, in version 1 and without its segments.
const ENTRY_BYTES: usize = 20 + 4 * 8;

/// Bytes of a segment in the file.
const SEGMENT_BYTES: usize = 5 * 8;

/// One segment in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSegment {
    /// Its base offset, and one past its last batch's last offset.
    pub range: OffsetRange,
    /// Bytes of its batches in that range.
    pub bytes: u64,
    /// The largest timestamp in them.
    pub max_timestamp: Option<Timestamp>,
    /// The wall time of its first append.
    pub created: Timestamp,
}

/// One partition in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The partition.
    pub place: TopicPartition,
    /// Its segment files hold every batch below this offset, synced.
    pub synced_end: Offset,
    /// Journal entries of the partition below this position are in its files.
    pub position: JournalPosition,
    /// The log start offset.
    pub log_start: Offset,
    /// The local log start offset.
    pub local_log_start: Offset,
    /// Its segments below the synced end, ascending, none within another. Empty in a file of version 1, which lists none.
    pub segments: Vec<CheckpointSegment>,
}

/// A checkpoint of all partitions of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// The newest journal generation in use when it was written: a later one was begun after it.
    pub generation: Generation,
    /// The journal needs no play below this position: the least of the partitions' positions, or the journal's end.
    pub replay_from: JournalPosition,
    /// Whether the log was closed behind it: nothing was appended since.
    pub clean: bool,
    /// The wall time of its making; `None` in a file of version 1, whose partitions list no segments.
    pub written_at: Option<Timestamp>,
    /// The partitions, ascending.
    pub entries: Vec<CheckpointEntry>,
}

impl Checkpoint {
    /// The file. Equal checkpoints have equal bytes.
    ///
    /// # Panics
    /// When partitions do not ascend.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.entries.windows(2).all(|pair| pair[0].place < pair[1].place),
            "partitions of a checkpoint ascend"
        );
        let segments: usize = self.entries.iter().map(|entry| entry.segments.len()).sum();
        let mut payload =
            Vec::with_capacity(40 + self.entries.len() * (ENTRY_BYTES + 4) + segments * SEGMENT_BYTES);
        payload.put_u64(self.generation.0);
        payload.put_u64(self.replay_from.0);
        payload.put_u8(u8::from(self.clean));
        payload.put_zeros(7);
        payload.put_timestamp(self.written_at);
        payload.put_count(self.entries.len());
        for entry in &self.entries {
            payload.put_topic_partition(entry.place);
            payload.put_offset(entry.synced_end);
            payload.put_u64(entry.position.0);
            payload.put_offset(entry.log_start);
            payload.put_offset(entry.local_log_start);
            payload.put_count(entry.segments.len());
            for segment in &entry.segments {
                segment.put(&mut payload);
            }
        }
        envelope::seal(FILE, &payload)
    }

    /// Reads [`Checkpoint::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another kind of file, or a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let generation = Generation(reader.u64()?);
        let replay_from = JournalPosition(reader.u64()?);
        let clean = reader.flag()?;
        reader.reserved(7)?;
        let written_at = if version == 1 { None } else { reader.timestamp()? };
        let count = reader.count(ENTRY_BYTES)?;
        let mut entries: Vec<CheckpointEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let mut entry = CheckpointEntry {
                place: reader.topic_partition()?,
                synced_end: reader.offset()?,
                position: JournalPosition(reader.u64()?),
                log_start: reader.offset()?,
                local_log_start: reader.offset()?,
                segments: Vec::new(),
            };
            if version > 1 {
                entry.segments = CheckpointSegment::take_all(&mut reader)?;
            }
            if entries.last().is_some_and(|last| last.place >= entry.place) {
                return Err(reader.invalid("its partitions do not ascend"));
            }
            entries.push(entry);
        }
        let mut positions = entries.iter().map(|entry| entry.position).chain([replay_from]);
        if generation.0 > POSITION_MAX || positions.any(|position| position.0 > POSITION_MAX) {
            return Err(reader.invalid("a position or its generation is out of range"));
        }
        reader.finish()?;
        Ok(Self { generation, replay_from, clean, written_at, entries })
    }
}

impl CheckpointSegment {
    fn put(&self, output: &mut Vec<u8>) {
        output.put_offset(self.range.base);
        output.put_offset(self.range.end);
        output.put_u64(self.bytes);
        output.put_timestamp(self.max_timestamp);
        output.put_timestamp(Some(self.created));
    }

    fn take_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, DecodeError> {
        let count = reader.count(SEGMENT_BYTES)?;
        let mut segments: Vec<Self> = Vec::with_capacity(count);
        for _ in 0..count {
            let (base, end) = (reader.offset()?, reader.offset()?);
            let segment = Self {
                range: OffsetRange::new(base, end)
                    .ok_or(reader.invalid("a segment ends before it begins"))?,
                bytes: reader.u64()?,
                max_timestamp: reader.timestamp()?,
                created: reader.timestamp()?.ok_or(reader.invalid("a segment has no time"))?,
            };
            if segments.last().is_some_and(|last| last.range.end > segment.range.base) {
                return Err(reader.invalid("segments of a partition do not ascend"));
            }
            segments.push(segment);
        }
        Ok(segments)
    }
}
