//! Entries to bytes.

use bytes::Bytes;
use tidelog_format::journal::{
    BLOCK_BYTES, CONTROL_ENTRY_BYTES, EncodedRound, FileHeader, Generation, JournalPosition,
    ROUND_HEADER_BYTES, RoundEncoder, append_bytes,
};

use super::{Entry, Request, files::Live};

/// The bytes that a round of these entries takes.
pub(crate) fn round_bytes(entries: &[Entry]) -> u64 {
    let entries: u64 = entries
        .iter()
        .map(|entry| match &entry.request {
            Request::Append(piece) => append_bytes(piece.body.len() as u64),
            _ => CONTROL_ENTRY_BYTES,
        })
        .sum();
    (ROUND_HEADER_BYTES + entries).next_multiple_of(BLOCK_BYTES)
}

/// The first block of a file.
pub(crate) fn file_header(file: &Live, synced: u64) -> Bytes {
    let header = FileHeader {
        generation: Generation(file.generation),
        base: JournalPosition(file.start),
        synced: JournalPosition(synced.min(file.start)),
    };
    header.encode()
}

/// Makes a round, and tells each partition's tail where its batches land.
pub(crate) fn round(entries: &[Entry], generation: u64, position: u64, synced: u64) -> EncodedRound {
    let mut encoder = RoundEncoder::new(
        Generation(generation),
        JournalPosition(position),
        JournalPosition(synced),
        entries.len(),
    );
    for entry in entries {
        let place = entry.partition.place;
        match &entry.request {
            Request::Append(piece) => {
                let position = encoder.append(place, &piece.header, &piece.body).0;
                entry.partition.lock().tail.set_journal_position(piece.sequence, position);
            }
            Request::Truncate(to) => {
                encoder.truncate(place, *to);
            }
            Request::Reset(start) => {
                encoder.reset(place, *start);
            }
            Request::LogStart(to) => {
                encoder.log_start(place, *to);
            }
            Request::LocalLogStart(to) => {
                encoder.local_log_start(place, *to);
            }
            Request::Delete => {
                encoder.delete(place);
            }
        }
    }
    encoder.finish()
}
