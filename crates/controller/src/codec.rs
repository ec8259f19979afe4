//! The bytes of the controllers' files: records of the log, snapshots, and the checks around both.
//!
//! ```text
//! log file    "TIDERAFT" | version u16 | reserved u16 | file number u64 | image end u64 | CRC-32C u32 | zeros to 64
//! record      "TREC" | CRC-32C of the rest u32 | payload bytes u32 | kind u8 | reserved 3
//!             | file number u64 | position u64 | synced u64 | payload | zeros to 16                  (big-endian)
//! other file  magic 8 | version u16 | reserved u16 | payload bytes u64 | payload | CRC-32C of all before u32
//! ```
//!
//! A record says where it stands, so that bytes of another file or place are never taken for it, and how much of the
//! file was known synced when it was written: a bad record below that is damage, one above it is a torn tail.

use std::{collections::BTreeSet, io, path::PathBuf, sync::Arc};

use openraft::{EntryPayload, Membership, impls::BasicNode};
use thiserror::Error;
use tidelog_core::cluster::{
    Command,
    persist::{DecodeError, Persist, Reader, put_count},
};
use tidelog_format::crc::crc32c;
use tidelog_runtime::is_disk_full;

use crate::raft_types::{Entry, LogId, Proposal, SnapshotMeta, StoredMembership, Vote};

/// Why the controllers' files cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The disk refused.
    #[error("{action} {}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// What is on disk is not what was written: acknowledged state may be lost, so it is not used.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the disk had no space: nothing is damaged, and it may be tried again.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_disk_full(source),
            Self::Damaged { .. } => false,
        }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self::Damaged { path: path.into(), why: why.to_string() }
    }
}

pub(crate) const FILE_HEADER_BYTES: usize = 64;
const FILE_MAGIC: &[u8; 8] = b"TIDERAFT";
const FILE_VERSION: u16 = 1;
const RECORD_MAGIC: &[u8; 4] = b"TREC";
const RECORD_HEADER_BYTES: usize = 40;
const RECORD_ALIGNMENT: usize = 16;

/// The header of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) number: u64,
    /// Everything below was synced before the file got its name.
    pub(crate) image_end: u64,
}

impl FileHeader {
    pub(crate) fn encode(self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..8].copy_from_slice(FILE_MAGIC);
        out[8..10].copy_from_slice(&FILE_VERSION.to_be_bytes());
        out[12..20].copy_from_slice(&self.number.to_be_bytes());
        out[20..28].copy_from_slice(&self.image_end.to_be_bytes());
        let crc = crc32c(&out[..28]);
        out[28..32].copy_from_slice(&crc.to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(8, "the magic")? != FILE_MAGIC {
            return Err(DecodeError::Envelope { what: "the magic is not a controller log's" });
        }
        let version = u16::from_be_bytes(array(&mut reader)?);
        if version != FILE_VERSION {
            return Err(DecodeError::Version { found: version, known: FILE_VERSION });
        }
        let reserved: [u8; 2] = array(&mut reader)?;
        let number = u64::from_be_bytes(array(&mut reader)?);
        let image_end = u64::from_be_bytes(array(&mut reader)?);
        let crc = u32::from_be_bytes(array(&mut reader)?);
        if reserved != [0; 2] || crc != crc32c(&bytes[..28]) {
            return Err(DecodeError::Envelope { what: "the header's CRC does not match" });
        }
        Ok(Self { number, image_end })
    }
}

fn array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
    let bytes = reader.bytes(N, "a fixed field")?;
    Ok(bytes.try_into().expect("as many bytes were taken"))
}

/// One change of the log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Entry(Entry),
    Vote(Vote),
    /// Entries after this one are gone; all of them where it is `None`.
    TruncateAfter(Option<LogId>),
    /// Entries up to this one are gone, inclusive.
    Purge(LogId),
}

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) position: u64,
    pub(crate) synced: u64,
}

/// Bytes of a record whose entry carries a command of `command_bytes`, at most.
pub(crate) fn entry_record_bytes_max(command_bytes: usize) -> u64 {
    // The entry's id and kinds and the command's count take less than 64 bytes.
    const AROUND: usize = RECORD_HEADER_BYTES + 64 + RECORD_ALIGNMENT;
    u64::try_from(command_bytes.saturating_add(AROUND)).unwrap_or(u64::MAX)
}

impl Record {
    /// Appends the record to `out`, padded. It must be written at `place`.
    pub(crate) fn encode(&self, place: Place, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(RECORD_MAGIC);
        out.extend_from_slice(&[0; RECORD_HEADER_BYTES - RECORD_MAGIC.len()]);
        let kind = match self {
            Self::Entry(entry) => {
                put_entry(entry, out);
                1
            }
            Self::Vote(vote) => {
                put_vote(vote, out);
                2
            }
            Self::TruncateAfter(last) => {
                put_log_id(last.as_ref(), out);
                3
            }
            Self::Purge(upto) => {
                put_log_id(Some(upto), out);
                4
            }
        };
        let payload = out.len() - start - RECORD_HEADER_BYTES;
        let payload = u32::try_from(payload).expect("a command's size is limited");
        let record = &mut out[start..];
        record[8..12].copy_from_slice(&payload.to_be_bytes());
        record[12] = kind;
        record[16..24].copy_from_slice(&place.number.to_be_bytes());
        record[24..32].copy_from_slice(&place.position.to_be_bytes());
        record[32..40].copy_from_slice(&place.synced.to_be_bytes());
        let crc = crc32c(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_be_bytes());
        let padded = out.len().next_multiple_of(RECORD_ALIGNMENT);
        out.resize(padded, 0);
    }
}

/// The record that stands at `position` of a whole log file.
pub(crate) struct Found {
    pub(crate) record: Result<Record, DecodeError>,
    pub(crate) synced: u64,
    /// Where the next one begins.
    pub(crate) next: usize,
}

/// Looks for a record at `position`: `None` where there is none, or not a whole one.
pub(crate) fn find_record(file: &[u8], number: u64, position: usize) -> Option<Found> {
    let bytes = file.get(position..)?;
    let header = bytes.get(..RECORD_HEADER_BYTES)?;
    if header[..4] != *RECORD_MAGIC {
        return None;
    }
    let field = |range: std::ops::Range<usize>| -> [u8; 8] {
        header[range].try_into().expect("the header was taken whole")
    };
    let length = u32::from_be_bytes(header[8..12].try_into().expect("the header was taken whole"));
    let length = usize::try_from(length).ok()?;
    let end = RECORD_HEADER_BYTES.checked_add(length)?;
    let record = bytes.get(..end)?;
    let crc = u32::from_be_bytes(header[4..8].try_into().expect("the header was taken whole"));
    let stands_here = u64::from_be_bytes(field(16..24)) == number
        && usize::try_from(u64::from_be_bytes(field(24..32))) == Ok(position);
    if !stands_here || crc32c(&record[8..]) != crc {
        return None;
    }
    let record = decode_record(header[12], &record[RECORD_HEADER_BYTES..]);
    let next = position.checked_add(end)?.checked_next_multiple_of(RECORD_ALIGNMENT)?;
    Some(Found { record, synced: u64::from_be_bytes(field(32..40)), next })
}

/// The highest synced position that any record after `position` names.
pub(crate) fn synced_later(file: &[u8], number: u64, position: usize) -> u64 {
    let first = position.next_multiple_of(RECORD_ALIGNMENT);
    let positions = (first..file.len()).step_by(RECORD_ALIGNMENT);
    let found = positions.filter_map(|position| find_record(file, number, position));
    found.map(|found| found.synced).max().unwrap_or(0)
}

fn decode_record(kind: u8, payload: &[u8]) -> Result<Record, DecodeError> {
    let mut reader = Reader::new(payload);
    let record = match kind {
        1 => Record::Entry(take_entry(&mut reader)?),
        2 => Record::Vote(take_vote(&mut reader)?),
        3 => Record::TruncateAfter(take_log_id(&mut reader)?),
        4 => Record::Purge(take_log_id(&mut reader)?.ok_or(DecodeError::OutOfRange { what: "a purge" })?),
        _ => return Err(DecodeError::OutOfRange { what: "the kind of a record" }),
    };
    reader.finish()?;
    Ok(record)
}

fn put_log_id(id: Option<&LogId>, out: &mut Vec<u8>) {
    id.is_some().put(out);
    if let Some(id) = id {
        id.leader_id.term.put(out);
        id.leader_id.node_id.put(out);
        id.index.put(out);
    }
}

fn take_log_id(reader: &mut Reader<'_>) -> Result<Option<LogId>, DecodeError> {
    if !bool::take(reader)? {
        return Ok(None);
    }
    let (term, node_id) = (u64::take(reader)?, u64::take(reader)?);
    Ok(Some(LogId {
        leader_id: openraft::impls::leader_id_adv::LeaderId { term, node_id },
        index: u64::take(reader)?,
    }))
}

fn put_vote(vote: &Vote, out: &mut Vec<u8>) {
    vote.leader_id.term.put(out);
    vote.leader_id.node_id.put(out);
    vote.committed.put(out);
}

fn take_vote(reader: &mut Reader<'_>) -> Result<Vote, DecodeError> {
    let (term, node_id) = (u64::take(reader)?, u64::take(reader)?);
    let leader_id = openraft::impls::leader_id_adv::LeaderId { term, node_id };
    Ok(Vote { leader_id, committed: bool::take(reader)? })
}

fn put_membership(membership: &Membership<u64, BasicNode>, out: &mut Vec<u8>) {
    let configs = membership.get_joint_config();
    put_count(configs.len(), out);
    for config in configs {
        put_count(config.len(), out);
        for id in config {
            id.put(out);
        }
    }
    let nodes: Vec<_> = membership.nodes().collect();
    put_count(nodes.len(), out);
    for (id, node) in nodes {
        id.put(out);
        node.addr.put(out);
    }
}

fn take_membership(reader: &mut Reader<'_>) -> Result<Membership<u64, BasicNode>, DecodeError> {
    let configs: Vec<Vec<u64>> = Vec::take(reader)?;
    let configs: Vec<BTreeSet<u64>> = configs.into_iter().map(BTreeSet::from_iter).collect();
    let nodes: std::collections::BTreeMap<u64, String> = Persist::take(reader)?;
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    let nodes: std::collections::BTreeMap<u64, BasicNode> =
        nodes.into_iter().map(|(id, addr)| (id, BasicNode { addr })).collect();
    Membership::new(configs, nodes).map_err(|_| DecodeError::OutOfRange { what: "a membership" })
}

fn put_entry(entry: &Entry, out: &mut Vec<u8>) {
    put_log_id(Some(&entry.log_id), out);
    match &entry.payload {
        EntryPayload::Blank => out.push(0),
        EntryPayload::Normal(Proposal(command)) => {
            out.push(1);
            put_bytes(&command.encode(), out);
        }
        EntryPayload::Membership(membership) => {
            out.push(2);
            put_membership(membership, out);
        }
    }
}

fn take_entry(reader: &mut Reader<'_>) -> Result<Entry, DecodeError> {
    let log_id = take_log_id(reader)?.ok_or(DecodeError::OutOfRange { what: "an entry's id" })?;
    let payload = match reader.bytes(1, "an entry's kind")?[0] {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Normal(Proposal(Arc::new(Command::decode(take_bytes(reader, "a command")?)?))),
        2 => EntryPayload::Membership(take_membership(reader)?),
        _ => return Err(DecodeError::OutOfRange { what: "an entry's kind" }),
    };
    Ok(Entry { log_id, payload })
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_count(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a [u8], DecodeError> {
    let count = reader.count(what)?;
    reader.bytes(count, what)
}

/// The payload of a snapshot file.
pub(crate) fn encode_snapshot(meta: &SnapshotMeta, state: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(state.len().saturating_add(256));
    put_log_id(meta.last_log_id.as_ref(), &mut out);
    put_log_id(meta.last_membership.log_id().as_ref(), &mut out);
    put_membership(meta.last_membership.membership(), &mut out);
    put_bytes(state, &mut out);
    out
}

/// Reads [`encode_snapshot`]'s form: the meta, and the state's bytes.
pub(crate) fn decode_snapshot(payload: &[u8]) -> Result<(SnapshotMeta, &[u8]), DecodeError> {
    let mut reader = Reader::new(payload);
    let last_log_id = take_log_id(&mut reader)?;
    let membership_id = take_log_id(&mut reader)?;
    let last_membership = StoredMembership::new(membership_id, take_membership(&mut reader)?);
    let state = take_bytes(&mut reader, "a state")?;
    reader.finish()?;
    Ok((SnapshotMeta { last_log_id, last_membership }, state))
}

/// A whole small file: its magic, a version, the payload, and the CRC of all.
pub(crate) fn seal(magic: &[u8; 8], version: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len().saturating_add(24));
    out.extend_from_slice(magic);
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&u64::try_from(payload.len()).expect("it is in memory").to_be_bytes());
    out.extend_from_slice(payload);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

/// The payload of [`seal`]'s form.
pub(crate) fn unseal<'a>(magic: &[u8; 8], version: u16, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.bytes(8, "the magic")? != magic {
        return Err(DecodeError::Envelope { what: "the magic is another one" });
    }
    let found = u16::from_be_bytes(array(&mut reader)?);
    if found != version {
        return Err(DecodeError::Version { found, known: version });
    }
    let reserved: [u8; 2] = array(&mut reader)?;
    let length = usize::try_from(u64::from_be_bytes(array(&mut reader)?));
    let length = length.map_err(|_| DecodeError::OutOfRange { what: "the length" })?;
    let payload = reader.bytes(length, "the payload")?;
    let crc = u32::from_be_bytes(array(&mut reader)?);
    reader.finish()?;
    if reserved != [0; 2] || crc != crc32c(&bytes[..bytes.len() - 4]) {
        return Err(DecodeError::Envelope { what: "the CRC does not match" });
    }
    Ok(payload)
}

#[cfg(test)]
mod tests;
