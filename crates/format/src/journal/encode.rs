//! Writing of the journal.

use bytes::{Bytes, BytesMut};
use tidelog_types::{LeaderEpoch, Offset, TopicPartition, limits::BATCH_HEADER_BYTES};

use super::{
    APPEND_HEADER_BYTES, BLOCK_BYTES, ENTRY_ALIGNMENT, ENTRY_MAGIC, FILE_HEADER_BYTES, FILE_HEADER_COPIES,
    FILE_MAGIC, Generation, JournalPosition, POSITION_MAX, ROUND_HEADER_BYTES, ROUND_MAGIC, TRAILER_BYTES,
    VERSION, kind,
};
use crate::{
    crc::{Crc32c, crc32c},
    cursor::{Put, Reader},
    error::DecodeError,
};

/// Bodies up to this size are copied beside their headers: a vector of a system call costs about as much.
const COPIED_BODY_BYTES: usize = 2048;

/// An append without its body: header, padding and trailer.
const APPEND_BYTES_BESIDE_BODY: usize = APPEND_HEADER_BYTES + 7 + TRAILER_BYTES;

/// What the end of a round is padded with.
static ZEROS: [u8; BLOCK_LENGTH] = [0; BLOCK_LENGTH];
const BLOCK_LENGTH: usize = 4096;
const _: () = assert!(BLOCK_LENGTH as u64 == BLOCK_BYTES);

/// Bytes of a copy of a file's header.
const FILE_HEADER_COPY_BYTES: usize = 64;

/// What a journal file says of itself, twice, so that one bad sector does not lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// This use of the file.
    pub generation: Generation,
    /// The position of the file's first byte, a multiple of [`BLOCK_BYTES`].
    pub base: JournalPosition,
    /// Everything below was known synced when the header was written.
    pub synced: JournalPosition,
}

impl FileHeader {
    /// The file's first 4 KiB.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        assert!(
            self.base.0.is_multiple_of(BLOCK_BYTES),
            "a journal file begins on a border, not at {}",
            self.base
        );
        let mut copy = Vec::with_capacity(FILE_HEADER_COPY_BYTES);
        copy.put(&FILE_MAGIC);
        copy.put_u16(u16::from(VERSION));
        copy.put_u16(0);
        copy.put_u64(self.generation.0);
        copy.put_u64(self.base.0);
        copy.put_u64(self.synced.0);
        copy.put_zeros(28);
        let crc = crc32c(&copy);
        copy.put_u32(crc);
        let mut block = BytesMut::zeroed(block_bytes());
        for at in FILE_HEADER_COPIES {
            block[at..at + FILE_HEADER_COPY_BYTES].copy_from_slice(&copy);
        }
        block.freeze()
    }

    /// Reads [`FileHeader::encode`]'s block: the valid copy of the newer generation, since the block may have been torn
    /// while a file was taken into use again.
    ///
    /// # Errors
    /// Why the first copy is refused, when both are. A block of zeros (a file that was never used) is refused as not
    /// being a journal file.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut best: Option<Self> = None;
        let mut refused = None;
        for at in FILE_HEADER_COPIES {
            match decode_copy(block.get(at..).unwrap_or(&[])) {
                Ok(header) if best.is_none_or(|best| best.generation < header.generation) => {
                    best = Some(header)
                }
                Ok(_) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        best.ok_or(refused.unwrap_or(DecodeError::Cut { what: "journal file header" }))
    }
}

fn block_bytes() -> usize {
    usize::try_from(FILE_HEADER_BYTES).expect("4 KiB fit in memory")
}

fn decode_copy(bytes: &[u8]) -> Result<FileHeader, DecodeError> {
    const WHAT: &str = "journal file header";
    let mut reader = Reader::new(WHAT, bytes);
    let copy = reader.slice(FILE_HEADER_COPY_BYTES)?;
    let mut reader = Reader::new(WHAT, copy);
    if reader.array()? != FILE_MAGIC {
        return Err(DecodeError::Magic { what: WHAT });
    }
    let version = reader.u16()?;
    let reserved = reader.u16()?;
    let header = FileHeader {
        generation: Generation(reader.u64()?),
        base: JournalPosition(reader.u64()?),
        synced: JournalPosition(reader.u64()?),
    };
    let reserved =
        reader.reserved(28).and(if reserved == 0 { Ok(()) } else { Err(reader.invalid("reserved bytes")) });
    let stated = reader.u32()?;
    let computed = crc32c(&copy[..FILE_HEADER_COPY_BYTES - 4]);
    if stated != computed {
        return Err(DecodeError::Checksum { what: WHAT, stated, computed });
    }
    if version != u16::from(VERSION) {
        return Err(DecodeError::Version { what: WHAT, version, version_max: u16::from(VERSION) });
    }
    reserved?;
    if !header.base.0.is_multiple_of(BLOCK_BYTES) {
        return Err(reader.invalid("its base is on no border"));
    }
    if [header.generation.0, header.base.0, header.synced.0].iter().any(|number| *number > POSITION_MAX) {
        return Err(reader.invalid("a position or its generation is out of range"));
    }
    Ok(header)
}

/// Makes the bytes of one round. Bodies larger than a few KiB are passed on and not copied.
#[derive(Debug)]
pub struct RoundEncoder {
    generation: Generation,
    position: JournalPosition,
    synced: JournalPosition,
    entry_count: u32,
    /// Bytes so far, the header's included.
    bytes: u64,
    /// The first is the round's header, which is made at the end.
    parts: Vec<Bytes>,
    /// What comes behind the parts.
    pending: BytesMut,
}

/// A round, ready for one positioned write.
#[derive(Debug)]
pub struct EncodedRound {
    /// The bytes, a multiple of [`BLOCK_BYTES`] in all.
    pub parts: Vec<Bytes>,
    /// How many bytes.
    pub bytes: u64,
    /// Where the next round begins.
    pub end: JournalPosition,
}

impl RoundEncoder {
    /// Begins the round of `entries` entries at `position`. Everything below `synced` is known to be synced. Memory is
    /// taken once, for so many entries; more or fewer are allowed.
    ///
    /// # Panics
    /// When `position` is on no border.
    #[must_use]
    pub fn new(
        generation: Generation,
        position: JournalPosition,
        synced: JournalPosition,
        entries: usize,
    ) -> Self {
        assert!(position.0.is_multiple_of(BLOCK_BYTES), "a round begins on a border, not at {position}");
        // An append is what stands before its body, and the body; the round has a header, an end and padding.
        let mut parts = Vec::with_capacity(entries.saturating_mul(2).saturating_add(3));
        parts.push(Bytes::new());
        Self {
            generation,
            position,
            synced,
            entry_count: 0,
            bytes: ROUND_HEADER_BYTES,
            parts,
            pending: BytesMut::with_capacity(entries.saturating_mul(APPEND_BYTES_BESIDE_BODY)),
        }
    }

    /// Bytes so far, the round's header included and its padding not.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries so far.
    #[must_use]
    pub const fn entry_count(&self) -> u32 {
        self.entry_count
    }

    /// Where the next entry would stand: what a checkpoint names as the position from which a partition plays.
    #[must_use]
    pub const fn next_position(&self) -> JournalPosition {
        JournalPosition(self.position.0 + self.bytes)
    }

    /// Adds a batch, whose header has its base offset and leader epoch set. Answers the entry's position.
    ///
    /// # Panics
    /// When the header gives no offsets or no epoch, or the body is not what its length says.
    pub fn append(
        &mut self,
        place: TopicPartition,
        header: &[u8; BATCH_HEADER_BYTES],
        body: &Bytes,
    ) -> JournalPosition {
        let view = crate::batch::BatchHeader::from_bytes(*header);
        let (Some(base), Some(last), Some(epoch)) =
            (view.base_offset(), view.last_offset(), view.leader_epoch())
        else {
            panic!("a batch without offsets or epoch cannot be appended: {view:?}");
        };
        assert_eq!(
            view.batch_bytes(),
            Some(BATCH_HEADER_BYTES + body.len()),
            "a batch has the length that it states"
        );
        let position = self.next_position();
        let start = self.begin_entry(kind::APPEND, place, epoch, base);
        self.pending.put_offset(last);
        self.pending.put_u32(u32::try_from(body.len()).expect("a batch's length is a positive i32"));
        self.pending.put_u32(crc32c(body));
        self.pending.put(header);
        self.pending.put_zeros(3);
        let head_bytes = self.seal_entry(start);
        assert_eq!(head_bytes, APPEND_HEADER_BYTES, "an append's header has a fixed size");
        if body.len() <= COPIED_BODY_BYTES {
            self.pending.put(body);
        } else {
            self.parts.push(self.pending.split().freeze());
            self.parts.push(body.clone());
        }
        let length = (head_bytes + body.len()) as u64;
        let padding = length.next_multiple_of(ENTRY_ALIGNMENT) - length;
        self.pending.put_zeros(usize::try_from(padding).expect("less than 8"));
        self.bytes += length + padding;
        self.end_entry(place, position);
        position
    }

    /// Adds a truncation: the log now ends at `to`.
    pub fn truncate(&mut self, place: TopicPartition, to: Offset) -> JournalPosition {
        self.control(kind::TRUNCATE, place, to)
    }

    /// Adds a reset: the log is empty and begins at `start`.
    pub fn reset(&mut self, place: TopicPartition, start: Offset) -> JournalPosition {
        self.control(kind::RESET, place, start)
    }

    /// Adds a log start offset.
    pub fn log_start(&mut self, place: TopicPartition, to: Offset) -> JournalPosition {
        self.control(kind::LOG_START, place, to)
    }

    /// Adds a local log start offset.
    pub fn local_log_start(&mut self, place: TopicPartition, to: Offset) -> JournalPosition {
        self.control(kind::LOCAL_LOG_START, place, to)
    }

    /// Adds the deletion of the partition.
    pub fn delete(&mut self, place: TopicPartition) -> JournalPosition {
        self.control(kind::DELETE, place, Offset::ZERO)
    }

    /// Ends the round.
    ///
    /// # Panics
    /// When it is larger than 4 GiB, which the committer's bound on a round keeps away.
    #[must_use]
    pub fn finish(self) -> EncodedRound {
        let bytes = u32::try_from(self.bytes).expect("a round is bounded far below 4 GiB");
        let total = self.bytes.next_multiple_of(BLOCK_BYTES);
        let padding = usize::try_from(total - self.bytes).expect("less than 4 KiB");
        let mut header = Vec::with_capacity(64);
        header.put(&ROUND_MAGIC);
        header.put_u16(u16::from(VERSION));
        header.put_u16(0);
        header.put_u64(self.generation.0);
        header.put_u64(self.position.0);
        header.put_u64(self.synced.0);
        header.put_u32(bytes);
        header.put_u32(self.entry_count);
        header.put_zeros(20);
        let crc = crc32c(&header);
        header.put_u32(crc);
        let mut parts = self.parts;
        parts[0] = Bytes::from(header);
        if !self.pending.is_empty() {
            parts.push(self.pending.freeze());
        }
        if padding > 0 {
            // Of the program, not of the heap: most rounds are padded by half a block.
            parts.push(Bytes::from_static(&ZEROS[..padding]));
        }
        EncodedRound { parts, bytes: total, end: JournalPosition(self.position.0 + total) }
    }

    fn control(&mut self, kind: u8, place: TopicPartition, offset: Offset) -> JournalPosition {
        let position = self.next_position();
        let start = self.begin_entry(kind, place, LeaderEpoch::ZERO, offset);
        self.pending.put_zeros(8);
        self.bytes += self.seal_entry(start) as u64;
        self.end_entry(place, position);
        position
    }

    /// Writes the fields that all entries share, with room for the checksum. Answers where in `pending` they begin.
    fn begin_entry(&mut self, kind: u8, place: TopicPartition, epoch: LeaderEpoch, offset: Offset) -> usize {
        let (generation, position) = (self.generation, self.next_position());
        let entry = &mut self.pending;
        let start = entry.len();
        entry.put(&ENTRY_MAGIC);
        entry.put_u8(VERSION);
        entry.put_u8(kind);
        entry.put_u32(0);
        entry.put_u64(generation.0);
        entry.put_u64(position.0);
        entry.put_topic_partition(place);
        entry.put_i32(epoch.to_wire());
        entry.put_offset(offset);
        start
    }

    /// Sets the checksum of the entry's header, which is all that stands from `start` on. Answers its length.
    fn seal_entry(&mut self, start: usize) -> usize {
        let entry = &mut self.pending[start..];
        let crc = entry_crc(entry);
        entry[4..8].copy_from_slice(&crc.to_be_bytes());
        entry.len()
    }

    fn end_entry(&mut self, place: TopicPartition, position: JournalPosition) {
        let start = self.pending.len();
        self.pending.put_topic_partition(place);
        let crc = trailer_crc(self.generation, position, &self.pending[start..]);
        self.pending.put_u32(crc);
        self.bytes += (self.pending.len() - start) as u64;
        self.entry_count += 1;
    }
}

/// An entry's checksum covers its header but for the checksum's own four bytes.
pub(super) fn entry_crc(header: &[u8]) -> u32 {
    Crc32c::new().with(&header[..4]).with(&header[8..]).finish()
}

pub(super) fn trailer_crc(generation: Generation, position: JournalPosition, place: &[u8]) -> u32 {
    Crc32c::new().with(&generation.0.to_be_bytes()).with(&position.0.to_be_bytes()).with(place).finish()
}
