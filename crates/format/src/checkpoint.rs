//! The checkpoint of a node's log: how far each partition's files are complete, and from where the journal plays on.
//!
//! **Owns** the file's bytes. It is written aside, synced, renamed, and its directory synced; before that, every
//! partition's batches, index, epoch chain and producer snapshot up to its synced end are.
//!
//! Three offsets of a partition are stored apart and never derived from one another.

use tidelog_types::{Offset, TopicPartition};

use crate::{
    cursor::{Put, Reader},
    envelope::{self, Kind},
    error::DecodeError,
    journal::{Generation, JournalPosition},
};

const FILE: Kind = Kind { what: "log checkpoint", magic: *b"TLCP", version: 1 };

/// Bytes of a partition in the file.
const ENTRY_BYTES: usize = 20 + 4 * 8;

/// One partition in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let mut payload = Vec::with_capacity(32 + self.entries.len() * ENTRY_BYTES);
        payload.put_u64(self.generation.0);
        payload.put_u64(self.replay_from.0);
        payload.put_u8(u8::from(self.clean));
        payload.put_zeros(7);
        payload.put_count(self.entries.len());
        for entry in &self.entries {
            payload.put_topic_partition(entry.place);
            payload.put_offset(entry.synced_end);
            payload.put_u64(entry.position.0);
            payload.put_offset(entry.log_start);
            payload.put_offset(entry.local_log_start);
        }
        envelope::seal(FILE, &payload)
    }

    /// Reads [`Checkpoint::encode`]'s file.
    ///
    /// # Errors
    /// For damage, another kind of file, or a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, payload) = envelope::open(FILE, bytes)?;
        let mut reader = Reader::new(FILE.what, payload);
        let generation = Generation(reader.u64()?);
        let replay_from = JournalPosition(reader.u64()?);
        let clean = reader.flag()?;
        reader.reserved(7)?;
        let count = reader.count(ENTRY_BYTES)?;
        let mut entries: Vec<CheckpointEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = CheckpointEntry {
                place: reader.topic_partition()?,
                synced_end: reader.offset()?,
                position: JournalPosition(reader.u64()?),
                log_start: reader.offset()?,
                local_log_start: reader.offset()?,
            };
            if entries.last().is_some_and(|last| last.place >= entry.place) {
                return Err(reader.invalid("its partitions do not ascend"));
            }
            entries.push(entry);
        }
        reader.finish()?;
        Ok(Self { generation, replay_from, clean, entries })
    }
}
