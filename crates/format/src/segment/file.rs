//! A file of entries of one size.

use std::marker::PhantomData;

use tidelog_types::{Offset, TopicPartition};

use crate::{
    crc::{Crc32c, crc32c},
    cursor::{Put, Reader},
    error::DecodeError,
};

const VERSION: u16 = 1;
const HEADER_BYTES: usize = 64;
const CRC_BYTES: usize = 4;
const SEAL_MAGIC: [u8; 4] = *b"TLSE";
const SEAL_BYTES: usize = 16;

/// An entry of a file beside a segment.
pub trait FixedEntry: Sized {
    /// What errors call the file.
    const WHAT: &'static str;
    /// The file's first bytes.
    const MAGIC: [u8; 4];
    /// Bytes of an entry's fields.
    const BYTES: usize;

    /// Appends exactly [`FixedEntry::BYTES`].
    fn put(&self, output: &mut Vec<u8>);

    /// Reads [`FixedEntry::put`]'s bytes.
    ///
    /// # Errors
    /// When a field cannot be.
    fn take(bytes: &[u8]) -> Result<Self, DecodeError>;

    /// Whether it may stand behind `previous`, or first.
    fn follows(&self, previous: Option<&Self>) -> bool;
}

/// One file of entries: what its bytes depend on.
#[derive(Debug, Clone)]
pub struct EntryFile<T> {
    header: Vec<u8>,
    header_crc: u32,
    entry: PhantomData<T>,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedEntries<T> {
    /// The entries up to the first bad one.
    pub entries: Vec<T>,
    /// Whether they are all that were ever written: the file ends in its seal.
    pub sealed: bool,
    /// Whether bytes follow that are neither an entry nor the seal: a torn write, or damage.
    pub damaged: bool,
}

impl<T: FixedEntry> EntryFile<T> {
    /// The file of the segment of `place` at `base`.
    #[must_use]
    pub fn new(place: TopicPartition, base: Offset) -> Self {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.put(&T::MAGIC);
        header.put_u16(VERSION);
        header.put_u16(u16::try_from(T::BYTES + CRC_BYTES).expect("entries are small"));
        header.put_topic_partition(place);
        header.put_offset(base);
        header.put_zeros(24);
        let header_crc = crc32c(&header);
        header.put_u32(header_crc);
        Self { header, header_crc, entry: PhantomData }
    }

    /// The first bytes of the file.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The position in the file of the entry with an ordinal, counted from 0.
    #[must_use]
    pub const fn position(ordinal: u64) -> u64 {
        HEADER_BYTES as u64 + ordinal * (T::BYTES + CRC_BYTES) as u64
    }

    /// The bytes of `entries`, of which the first has the ordinal `from`.
    #[must_use]
    pub fn encode_entries(&self, from: u64, entries: &[T]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(entries.len() * (T::BYTES + CRC_BYTES));
        for (ordinal, entry) in (from..).zip(entries) {
            let start = bytes.len();
            entry.put(&mut bytes);
            assert_eq!(bytes.len(), start + T::BYTES, "an entry of a {} has a fixed size", T::WHAT);
            let crc = self.entry_crc(ordinal, &bytes[start..]);
            bytes.put_u32(crc);
        }
        bytes
    }

    /// The bytes that end a file of `count` entries.
    #[must_use]
    pub fn encode_seal(&self, count: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEAL_BYTES);
        bytes.put(&SEAL_MAGIC);
        bytes.put_u64(count);
        let crc = Crc32c::new().with(&self.header_crc.to_be_bytes()).with(&bytes).finish();
        bytes.put_u32(crc);
        bytes
    }

    /// A whole sealed file.
    #[must_use]
    pub fn encode_sealed(&self, entries: &[T]) -> Vec<u8> {
        let mut bytes = self.header.clone();
        bytes.extend(self.encode_entries(0, entries));
        bytes.extend(self.encode_seal(entries.len() as u64));
        bytes
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When its header is not the one of this segment's file. Damage behind the header is reported in the answer.
    pub fn decode(&self, bytes: &[u8]) -> Result<DecodedEntries<T>, DecodeError> {
        let what = T::WHAT;
        let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Cut { what })?;
        self.check_header(header)?;
        let mut decoded = DecodedEntries { entries: Vec::new(), sealed: false, damaged: false };
        while let Some((entry, after)) = rest.split_at_checked(T::BYTES + CRC_BYTES) {
            let ordinal = decoded.entries.len() as u64;
            let (fields, crc) = entry.split_at(T::BYTES);
            let entry = T::take(fields).ok().filter(|entry| entry.follows(decoded.entries.last()));
            match entry {
                Some(entry) if self.entry_crc(ordinal, fields).to_be_bytes() == crc => {
                    decoded.entries.push(entry)
                }
                _ => break,
            }
            rest = after;
        }
        decoded.sealed = rest == self.encode_seal(decoded.entries.len() as u64);
        decoded.damaged = !decoded.sealed && !rest.is_empty();
        Ok(decoded)
    }

    fn check_header(&self, header: &[u8]) -> Result<(), DecodeError> {
        let what = T::WHAT;
        if header == self.header {
            return Ok(());
        }
        let (fields, crc) = header.split_at(HEADER_BYTES - CRC_BYTES);
        let mut reader = Reader::new(what, fields);
        if reader.array()? != T::MAGIC {
            return Err(DecodeError::Magic { what });
        }
        let version = reader.u16()?;
        let (stated, computed) = (Reader::new(what, crc).u32()?, crc32c(fields));
        if stated != computed {
            return Err(DecodeError::Checksum { what, stated, computed });
        }
        if version != VERSION {
            return Err(DecodeError::Version { what, version, version_max: VERSION });
        }
        Err(DecodeError::Invalid { what, why: "it belongs to another segment" })
    }

    fn entry_crc(&self, ordinal: u64, fields: &[u8]) -> u32 {
        Crc32c::new().with(&self.header_crc.to_be_bytes()).with(&ordinal.to_be_bytes()).with(fields).finish()
    }
}
