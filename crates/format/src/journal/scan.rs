//! Play of the journal.

use bytes::Bytes;
use thiserror::Error;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, TopicPartition};

use super::{
    APPEND_HEADER_BYTES, BLOCK_BYTES, CONTROL_HEADER_BYTES, ENTRY_ALIGNMENT, FILE_HEADER_BYTES, FileHeader,
    Generation, JournalPosition, ROUND_HEADER_BYTES, ROUND_MAGIC, TRAILER_BYTES,
    encode::trailer_crc,
    header::{EntryHeader, RoundHeader},
};
use crate::{batch::RawBatch, cursor::Reader};

/// The least that is asked for at once.
const READ_BYTES: u64 = 1024 * 1024;

/// A file to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanFile {
    /// Its header.
    pub header: FileHeader,
    /// Its length.
    pub bytes: u64,
}

/// Files that are not parts of one journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "journal generation {next} at position {next_base} does not follow generation {previous} at {previous_base}"
)]
pub struct ScanError {
    /// The earlier file's generation.
    pub previous: Generation,
    /// Where it begins.
    pub previous_base: JournalPosition,
    /// The later file's generation.
    pub next: Generation,
    /// Where it begins.
    pub next_base: JournalPosition,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A batch was appended.
    Append {
        /// The epoch of its leader.
        leader_epoch: LeaderEpoch,
        /// Its offsets.
        range: OffsetRange,
        /// The batch; its own checksum was not looked at.
        batch: RawBatch,
    },
    /// The log was cut: it ended at `to`.
    Truncate {
        /// The new log end offset.
        to: Offset,
    },
    /// The log was emptied.
    Reset {
        /// Where it begins anew.
        start: Offset,
    },
    /// The log start offset moved.
    LogStart {
        /// To where.
        to: Offset,
    },
    /// The local log start offset moved.
    LocalLogStart {
        /// To where.
        to: Offset,
    },
    /// The partition was deleted.
    Delete,
}

/// A whole entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedEntry {
    /// Where it stands.
    pub position: JournalPosition,
    /// Whose it is.
    pub place: TopicPartition,
    /// What it says.
    pub change: Change,
}

/// Bytes that were synced once and are bad now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rot {
    /// Where they begin.
    pub position: JournalPosition,
    /// How many.
    pub bytes: u64,
    /// The partition whose entry they were; `None` where more than one header is lost: then a partition whose next
    /// entry does not continue its log is hurt, and any other may be.
    pub place: Option<TopicPartition>,
    /// The offsets of the lost batch, where its header is whole.
    pub range: Option<OffsetRange>,
}

/// Where a play ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndOfPlay {
    /// Everything below was played or reported.
    pub position: JournalPosition,
}

/// The next thing that a play needs or found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanStep {
    /// Read from a file and call [`JournalScanner::supply`]: at least the bytes asked for, fewer only where the file
    /// ends, and zeros for what cannot be read.
    Read {
        /// Which of the files.
        file: usize,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A whole entry.
    Entry(ScannedEntry),
    /// Lost bytes; the play goes on.
    Rot(Rot),
    /// The play is over.
    End(EndOfPlay),
}

/// Finds the highest position that any header of a file names as synced: the first pass.
#[derive(Debug, Clone)]
pub struct SyncedSearch {
    header: FileHeader,
    highest: JournalPosition,
}

impl SyncedSearch {
    /// Begins with what the file's header says.
    #[must_use]
    pub const fn new(header: FileHeader) -> Self {
        Self { header, highest: header.synced }
    }

    /// Looks at a stretch of the file that begins at `offset`, a multiple of [`BLOCK_BYTES`]. Of each block only the
    /// first 64 bytes count.
    pub fn feed(&mut self, offset: u64, bytes: &[u8]) {
        for (offset, block) in (offset..).step_by(4096).zip(bytes.chunks(4096)) {
            let Some(position) = self.header.base.0.checked_add(offset).map(JournalPosition) else { return };
            if let Some(round) = RoundHeader::decode(block, self.header.generation, position) {
                self.highest = self.highest.max(round.synced);
            }
        }
    }

    /// The highest position so far.
    #[must_use]
    pub const fn highest(&self) -> JournalPosition {
        self.highest
    }
}

/// What stands at the scanner's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A round should begin.
    Border,
    /// An entry should, in a round that ends at `end`; `None` where the round's header is lost.
    Entry { end: Option<u64> },
    /// Nothing valid does; `at` is tried next.
    Lost { end: Option<u64>, at: u64 },
    /// The play is over.
    Over,
}

/// A stretch that must be read.
#[derive(Debug, Clone, Copy)]
struct Unread {
    file: usize,
    offset: u64,
    bytes: u64,
}

impl From<Unread> for ScanStep {
    fn from(Unread { file, offset, bytes }: Unread) -> Self {
        Self::Read { file, offset, bytes }
    }
}

/// Why a stretch of bytes is not at hand.
enum Missing {
    /// It must be read.
    Unread(Unread),
    /// The file ends before.
    PastEnd,
}

/// Plays the journal, file by file: the second pass. It asks for bytes and answers entries.
#[derive(Debug)]
pub struct JournalScanner {
    files: Vec<ScanFile>,
    synced: JournalPosition,
    file: usize,
    position: u64,
    mode: Mode,
    /// What was read, which begins at `window_at`.
    window: Bytes,
    window_at: u64,
    /// How many bytes the last read asked for.
    asked: u64,
}

impl JournalScanner {
    /// Begins a play of `files`, in the order of their generations. `synced` is the highest position that
    /// [`SyncedSearch`] found in any of them.
    ///
    /// # Errors
    /// When a file does not lie behind the one before it.
    pub fn new(files: Vec<ScanFile>, synced: JournalPosition) -> Result<Self, ScanError> {
        for pair in files.windows(2) {
            let (previous, next) = (pair[0].header, pair[1].header);
            if previous.generation >= next.generation
                || next.base.0 < previous.base.0.saturating_add(FILE_HEADER_BYTES)
            {
                return Err(ScanError {
                    previous: previous.generation,
                    previous_base: previous.base,
                    next: next.generation,
                    next_base: next.base,
                });
            }
        }
        let position = files.first().map_or(0, |file| file.header.base.0.saturating_add(FILE_HEADER_BYTES));
        let mode = if files.is_empty() { Mode::Over } else { Mode::Border };
        Ok(Self { files, synced, file: 0, position, mode, window: Bytes::new(), window_at: 0, asked: 0 })
    }

    /// Hands over what the last [`ScanStep::Read`] asked for.
    pub fn supply(&mut self, bytes: Bytes) {
        let file = &mut self.files[self.file];
        if (bytes.len() as u64) < self.asked {
            // A file shorter than it was said to be ends where its bytes end.
            let end = self.window_at.saturating_add(bytes.len() as u64);
            file.bytes = end.saturating_sub(file.header.base.0);
        }
        self.window = bytes;
    }

    /// The next entry, or what is needed for it.
    pub fn step(&mut self) -> ScanStep {
        loop {
            let found = match self.mode {
                Mode::Over => return self.end(),
                _ if self.position >= self.limit() => self.next_file(),
                Mode::Border => self.border(),
                Mode::Entry { end } => self.entry(end),
                Mode::Lost { end, at } => self.lost(end, at),
            };
            if let Some(step) = found {
                return step;
            }
        }
    }

    /// Where this file's part of the journal ends: where the next one begins, or with the file.
    fn limit(&self) -> u64 {
        let file = &self.files[self.file];
        let end = file.header.base.0.saturating_add(file.bytes);
        self.files.get(self.file + 1).map_or(end, |next| end.min(next.header.base.0))
    }

    fn end(&mut self) -> ScanStep {
        self.mode = Mode::Over;
        ScanStep::End(EndOfPlay { position: JournalPosition(self.position) })
    }

    /// Goes on in the next file, unless this is the last one, or something between the two is missing that was not
    /// known synced.
    fn next_file(&mut self) -> Option<ScanStep> {
        let Some(next) = self.files.get(self.file + 1).copied() else { return Some(self.end()) };
        let (from, base) = (self.position, next.header.base.0);
        if from < base && from >= self.synced.0 {
            return Some(self.end());
        }
        self.file += 1;
        self.position = base.saturating_add(FILE_HEADER_BYTES);
        self.mode = Mode::Border;
        self.window = Bytes::new();
        (from < base).then_some(ScanStep::Rot(Rot {
            position: JournalPosition(from),
            bytes: base - from,
            place: None,
            range: None,
        }))
    }

    fn border(&mut self) -> Option<ScanStep> {
        let bytes = match self.bytes_at(self.position, ROUND_HEADER_BYTES) {
            Ok(bytes) => bytes,
            Err(Missing::Unread(unread)) => return Some(unread.into()),
            Err(Missing::PastEnd) => return self.bad(None, ROUND_HEADER_BYTES),
        };
        let generation = self.files[self.file].header.generation;
        match RoundHeader::decode(&bytes, generation, JournalPosition(self.position)) {
            Some(round) => {
                self.mode = Mode::Entry { end: Some(self.position + u64::from(round.bytes)) };
                self.position += ROUND_HEADER_BYTES;
                None
            }
            None => self.bad(None, ROUND_HEADER_BYTES),
        }
    }

    fn entry(&mut self, end: Option<u64>) -> Option<ScanStep> {
        if end.is_some_and(|end| self.position >= end) {
            self.go_to_border();
            return None;
        }
        let header = match self.header_at(self.position) {
            Ok(header) => header,
            Err(unread) => return Some(unread.into()),
        };
        let Some(header) = header else {
            return match (end, self.rest_of_block_is_zero()) {
                (None, Err(unread)) => Some(unread.into()),
                // The padding behind the last entry of a round whose header is lost.
                (None, Ok(true)) => {
                    self.go_to_border();
                    None
                }
                _ => self.bad(end, ENTRY_ALIGNMENT),
            };
        };
        if end.is_some_and(|end| self.position + header.entry_bytes() > end) {
            return self.bad(end, ENTRY_ALIGNMENT);
        }
        // Header and body in one stretch: a read for the body alone would take the header out of the window.
        let whole = match self.bytes_at(self.position, header.header_bytes() + header.body_bytes()) {
            Ok(whole) => whole,
            Err(Missing::Unread(unread)) => return Some(unread.into()),
            Err(Missing::PastEnd) => return self.bad(end, ENTRY_ALIGNMENT),
        };
        let body = whole.slice(header.size_in_memory()..);
        let position = JournalPosition(self.position);
        match header.change(body) {
            Some(change) => {
                self.position += header.entry_bytes();
                Some(ScanStep::Entry(ScannedEntry { position, place: header.place, change }))
            }
            None if position >= self.synced => Some(self.end()),
            None => {
                self.position += header.entry_bytes();
                Some(ScanStep::Rot(Rot {
                    position,
                    bytes: header.entry_bytes(),
                    place: Some(header.place),
                    range: header.range(),
                }))
            }
        }
    }

    /// What stands at the position is not valid: the end, or the beginning of a hole.
    fn bad(&mut self, end: Option<u64>, skip: u64) -> Option<ScanStep> {
        if self.position >= self.synced.0 {
            return Some(self.end());
        }
        self.mode = Mode::Lost { end, at: self.position + skip };
        None
    }

    /// Looks for the next valid header behind a hole.
    fn lost(&mut self, end: Option<u64>, mut at: u64) -> Option<ScanStep> {
        // What was known synced ends with a round, and so does a hole in a round whose end is known.
        let stop = end.unwrap_or(u64::MAX).min(self.limit()).min(self.synced.0.next_multiple_of(BLOCK_BYTES));
        let generation = self.files[self.file].header.generation;
        while at < stop {
            let at_border = end.is_none() && at.is_multiple_of(BLOCK_BYTES);
            let window = match self.bytes_at(at, ENTRY_ALIGNMENT) {
                Ok(window) => window,
                Err(Missing::PastEnd) => break,
                Err(Missing::Unread(step)) => {
                    self.mode = Mode::Lost { end, at };
                    return Some(step.into());
                }
            };
            if at_border && window[..4] == ROUND_MAGIC {
                match self.bytes_at(at, ROUND_HEADER_BYTES) {
                    Ok(bytes) if RoundHeader::decode(&bytes, generation, JournalPosition(at)).is_some() => {
                        return self.found(at, Mode::Border, end);
                    }
                    Err(Missing::Unread(step)) => {
                        self.mode = Mode::Lost { end, at };
                        return Some(step.into());
                    }
                    _ => {}
                }
            }
            if EntryHeader::size(&window).is_some() {
                match self.header_at(at) {
                    Ok(Some(_)) => return self.found(at, Mode::Entry { end }, end),
                    Ok(None) => {}
                    Err(step) => {
                        self.mode = Mode::Lost { end, at };
                        return Some(step.into());
                    }
                }
            }
            at += ENTRY_ALIGNMENT;
        }
        let after = stop.max(self.position + 1);
        self.found(after, Mode::Border, end)
    }

    /// Reports the hole up to `at`, and goes on there.
    fn found(&mut self, at: u64, mode: Mode, end: Option<u64>) -> Option<ScanStep> {
        let from = self.position;
        let place = match self.trailer_before(at) {
            Ok(place) => place,
            Err(step) => {
                self.mode = Mode::Lost { end, at };
                return Some(step.into());
            }
        };
        self.position = if mode == Mode::Border { at.next_multiple_of(BLOCK_BYTES) } else { at };
        self.mode = mode;
        // A round's header alone is no loss: its entries follow it.
        if at - from <= ROUND_HEADER_BYTES && from.is_multiple_of(BLOCK_BYTES) && mode != Mode::Border {
            return None;
        }
        Some(ScanStep::Rot(Rot { position: JournalPosition(from), bytes: at - from, place, range: None }))
    }

    /// The partition in the trailer that ends at `at`, if it belongs to an entry at the present position.
    fn trailer_before(&mut self, at: u64) -> Result<Option<TopicPartition>, Unread> {
        let Some(start) = at.checked_sub(TRAILER_BYTES as u64).filter(|start| *start > self.position) else {
            return Ok(None);
        };
        let bytes = match self.bytes_at(start, TRAILER_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(Missing::Unread(step)) => return Err(step),
            Err(Missing::PastEnd) => return Ok(None),
        };
        let generation = self.files[self.file].header.generation;
        let crc = trailer_crc(generation, JournalPosition(self.position), &bytes[..TRAILER_BYTES - 4]);
        if crc.to_be_bytes() != bytes[TRAILER_BYTES - 4..] {
            return Ok(None);
        }
        Ok(Reader::new("trailer", &bytes).topic_partition().ok())
    }

    fn go_to_border(&mut self) {
        self.position = self.position.next_multiple_of(BLOCK_BYTES);
        self.mode = Mode::Border;
    }

    fn rest_of_block_is_zero(&mut self) -> Result<bool, Unread> {
        let rest = self.position.next_multiple_of(BLOCK_BYTES) - self.position;
        match self.bytes_at(self.position, rest) {
            Ok(bytes) => Ok(bytes.iter().all(|byte| *byte == 0)),
            Err(Missing::PastEnd) => Ok(false),
            Err(Missing::Unread(step)) => Err(step),
        }
    }

    /// The valid header at a position, if one is there.
    fn header_at(&mut self, position: u64) -> Result<Option<EntryHeader>, Unread> {
        let mut bytes = Bytes::new();
        for needed in [CONTROL_HEADER_BYTES, APPEND_HEADER_BYTES] {
            bytes = match self.bytes_at(position, needed as u64) {
                Ok(bytes) => bytes,
                Err(Missing::PastEnd) => return Ok(None),
                Err(Missing::Unread(step)) => return Err(step),
            };
            match EntryHeader::size(&bytes) {
                None => return Ok(None),
                Some(size) if size <= needed => break,
                Some(_) => {}
            }
        }
        let generation = self.files[self.file].header.generation;
        Ok(EntryHeader::decode(&bytes, generation, JournalPosition(position)))
    }

    /// A stretch of the journal, if it is at hand.
    fn bytes_at(&mut self, position: u64, bytes: u64) -> Result<Bytes, Missing> {
        let file = &self.files[self.file];
        let base = file.header.base.0;
        let file_end = base.saturating_add(file.bytes);
        let end = position.checked_add(bytes).filter(|end| *end <= file_end).ok_or(Missing::PastEnd)?;
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let window_end = self.window_at.saturating_add(self.window.len() as u64);
        if position >= self.window_at && end <= window_end {
            let from = usize::try_from(position - self.window_at).expect("inside of bytes in memory");
            let to = usize::try_from(end - self.window_at).expect("inside of bytes in memory");
            return Ok(self.window.slice(from..to));
        }
        self.window = Bytes::new();
        self.window_at = position;
        let bytes = bytes.max(READ_BYTES).min(file_end - position);
        self.asked = bytes;
        Err(Missing::Unread(Unread { file: self.file, offset: position - base, bytes }))
    }
}

/// What a whole play found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The whole entries, in order.
    pub entries: Vec<ScannedEntry>,
    /// What is lost.
    pub rot: Vec<Rot>,
    /// Where the play ended.
    pub end: EndOfPlay,
}

/// Both passes over files in memory.
///
/// # Errors
/// When a file does not lie behind the one before it.
pub fn scan(files: &[(FileHeader, Bytes)]) -> Result<Scan, ScanError> {
    let mut synced = JournalPosition::default();
    for (header, bytes) in files {
        let mut search = SyncedSearch::new(*header);
        search.feed(FILE_HEADER_BYTES, bytes.get(4096..).unwrap_or(&[]));
        synced = synced.max(search.highest());
    }
    let parts =
        files.iter().map(|(header, bytes)| ScanFile { header: *header, bytes: bytes.len() as u64 }).collect();
    let mut scanner = JournalScanner::new(parts, synced)?;
    let (mut entries, mut rot) = (Vec::new(), Vec::new());
    loop {
        match scanner.step() {
            ScanStep::Read { file, offset, bytes } => {
                let all = &files[file].1;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(all.len());
                let to = from.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX)).min(all.len());
                scanner.supply(all.slice(from..to));
            }
            ScanStep::Entry(entry) => entries.push(entry),
            ScanStep::Rot(lost) => rot.push(lost),
            ScanStep::End(end) => return Ok(Scan { entries, rot, end }),
        }
    }
}
