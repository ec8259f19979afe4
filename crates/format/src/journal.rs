//! The journal: one sequential file, in parts, of what every partition of a node appended, in the order of arrival.
//!
//! ```text
//!  file     | header, 4 KiB | round | round | round | zeros, or what an earlier generation left
//!  round    | header, 64 | entry | entry | ... | zeros up to a border of 4 KiB
//!  entry    | header, 64 or 136 | body of an append | zeros up to a border of 8 | trailer, 24
//! ```
//!
//! **Owns** the bytes ([`FileHeader`], [`RoundEncoder`]) and the rule by which a play ends ([`JournalScanner`]).
//!
//! **Does not own** files, syncs or their order, nor what a play does to a partition.
//!
//! Positions count the bytes of the journal's whole life: the position of a file's first byte is in its header, and the
//! next file begins where the last round of the one before it ended. A file that is used again gets a new generation.
//! Every header carries generation and position under its checksum, so that what an earlier generation left, or a block
//! that landed elsewhere, is never taken for an entry.
//!
//! **Where a play ends.** Rounds are written while the sync of an earlier one runs, so a power cut may lose a round and
//! keep a later one. Each round's header names the position below which everything was known synced when it was written.
//! With S the largest such position in *any* header: the first bad entry at or above S is where the crash was, and
//! everything from there on is dropped, later rounds too. A bad entry below S was whole once: it is rot. It is reported
//! with its partition, and the others play on. An entry whose own header is bad still names its partition in its trailer.

mod encode;
mod header;
mod scan;

pub use encode::{EncodedRound, FileHeader, RoundEncoder};
pub use scan::{
    Change, EndOfPlay, JournalScanner, Rot, Scan, ScanError, ScanFile, ScanStep, ScannedEntry, SyncedSearch,
    scan,
};

use std::fmt;

/// Rounds begin on this border.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes before a file's first round.
pub const FILE_HEADER_BYTES: u64 = BLOCK_BYTES;

/// Bytes of a round's header.
pub const ROUND_HEADER_BYTES: u64 = 64;

/// Bytes that an append takes beside its batch's body, padding aside.
pub const APPEND_OVERHEAD_BYTES: u64 = APPEND_HEADER_BYTES as u64 + TRAILER_BYTES as u64;

/// The bytes of the header of every entry but an append.
const CONTROL_HEADER_BYTES: usize = 64;
/// The bytes of an append's header, its batch's header included.
const APPEND_HEADER_BYTES: usize = 136;
/// The bytes behind every entry.
const TRAILER_BYTES: usize = 24;
/// Entries begin on this border.
const ENTRY_ALIGNMENT: u64 = 8;

const VERSION: u8 = 1;
const FILE_MAGIC: [u8; 4] = *b"TLJF";
const ROUND_MAGIC: [u8; 4] = *b"TLJR";
const ENTRY_MAGIC: [u8; 2] = *b"JE";
/// Both copies of a file's header.
const FILE_HEADER_COPIES: [usize; 2] = [0, 2048];

mod kind {
    pub(super) const APPEND: u8 = 1;
    pub(super) const TRUNCATE: u8 = 2;
    pub(super) const RESET: u8 = 3;
    pub(super) const LOG_START: u8 = 4;
    pub(super) const LOCAL_LOG_START: u8 = 5;
    pub(super) const DELETE: u8 = 6;
}

/// One use of a journal file; never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// A position in the journal, in bytes since its first file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JournalPosition(pub u64);

impl fmt::Display for JournalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The highest position and generation that a stored structure may name. At 10 GB a second the journal reaches it after 14
/// years; what lies beyond is damage that a checksum does not tell, and sums of what lies below fit 64 bits.
pub const POSITION_MAX: u64 = 1 << 62;

/// Bytes of an append entry in the journal.
#[must_use]
pub const fn append_bytes(body_bytes: u64) -> u64 {
    (APPEND_HEADER_BYTES as u64 + body_bytes).next_multiple_of(ENTRY_ALIGNMENT) + TRAILER_BYTES as u64
}

/// Bytes of every other entry.
pub const CONTROL_ENTRY_BYTES: u64 = CONTROL_HEADER_BYTES as u64 + TRAILER_BYTES as u64;

#[cfg(test)]
mod tests;
