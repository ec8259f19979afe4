//! Entries to bytes.

use bytes::Bytes;
use tidelog_format::journal::{
    BLOCK_BYTES, CONTROL_ENTRY_BYTES, FileHeader, Generation, JournalPosition, ROUND_HEADER_BYTES,
    RoundEncoder, append_bytes,
};
use tidelog_types::limits::BATCH_HEADER_BYTES;

use super::{Entry, Request, files::Live};

/// The bytes that a round of these entries takes.
pub(crate) fn round_bytes(entries: &[Entry]) -> u64 {
    let entries: u64 = entries
        .iter()
        .map(|entry| match &entry.request {
            Request::Append(pieces) => pieces.iter().map(|piece| append_bytes(piece.body.len() as u64)).sum(),
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

/// Adds a round to `chunks`, and tells each partition's tail where its batches land.
pub(crate) fn round(
    entries: &[Entry],
    generation: u64,
    position: u64,
    synced: u64,
    chunks: &mut Vec<Bytes>,
) -> u64 {
    let mut encoder =
        RoundEncoder::new(Generation(generation), JournalPosition(position), JournalPosition(synced));
    for entry in entries {
        let place = entry.partition.place;
        match &entry.request {
            Request::Append(pieces) => {
                let mut positions = Vec::with_capacity(pieces.len());
                for piece in pieces {
                    let header = first_bytes(&piece.header);
                    positions.push((piece.sequence, encoder.append(place, &header, &piece.body).0));
                }
                let mut state = entry.partition.lock();
                for (sequence, position) in positions {
                    state.tail.set_journal_position(sequence, position);
                }
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
    let round = encoder.finish();
    chunks.extend(round.parts);
    round.bytes
}

fn first_bytes(header: &Bytes) -> [u8; BATCH_HEADER_BYTES] {
    let mut bytes = [0; BATCH_HEADER_BYTES];
    bytes.copy_from_slice(&header[..BATCH_HEADER_BYTES]);
    bytes
}
