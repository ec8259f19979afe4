//! The files of the log on local disk.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use tidelog_format::{
    DecodeError,
    checkpoint::Checkpoint,
    epochs::EpochChain,
    journal::{FileHeader, scan},
    producers::ProducerSnapshot,
    segment::{AbortedTransaction, EntryFile, FixedEntry, IndexEntry, SegmentScan, TimeIndexEntry, WalkEnd},
};
use tidelog_sim::MemoryFile;
use tidelog_types::{Offset, PartitionIndex, TopicId, TopicPartition};

use super::{FILE_ALLOCATED_PER_BYTE_MAX, FIXED_BYTES, allocation::measured, repair, seeds};

/// Reads a small file as it is and with its frame made right, and what was read once more after it was written.
pub(super) fn small_file<T: PartialEq + std::fmt::Debug>(
    input: &[u8],
    fixed_bytes: usize,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let mut repaired = input.to_vec();
    repair::envelope(&mut repaired);
    for bytes in [input, &repaired] {
        let (decoded, spent) = measured(|| decode(bytes));
        let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + fixed_bytes;
        assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
        let Ok(decoded) = decoded else { continue };
        let written = encode(&decoded);
        assert_eq!(decode(&written).as_ref(), Ok(&decoded), "what was written is read");
    }
}

pub(super) fn checkpoint(input: &[u8]) {
    small_file(input, FIXED_BYTES, Checkpoint::decode, Checkpoint::encode);
}

pub(super) fn leader_epochs(input: &[u8]) {
    small_file(input, FIXED_BYTES, EpochChain::decode, EpochChain::encode);
}

pub(super) fn producers(input: &[u8]) {
    small_file(input, FIXED_BYTES, ProducerSnapshot::decode, ProducerSnapshot::encode);
}

/// One byte of choices, then one journal file, or two of equal length.
pub(super) fn journal(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let half = if choice & 4 == 0 { bytes.len() } else { (bytes.len() / 2).next_multiple_of(4096) };
    let (first, second) = bytes.split_at(half.min(bytes.len()));
    let mut files = Vec::new();
    for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
        let mut part = part.to_vec();
        if choice & 1 != 0 {
            repair::journal(&mut part, choice & 2 != 0);
        }
        let Ok(header) = FileHeader::decode(&part) else { continue };
        assert_eq!(FileHeader::decode(&header.encode()), Ok(header));
        files.push((header, Bytes::from(part)));
    }
    let (found, spent) = measured(|| scan(&files));
    let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
    let Ok(found) = found else { return };
    assert!(found.entries.windows(2).all(|pair| pair[0].position < pair[1].position), "entries ascend");
    assert!(found.entries.len() * 88 <= bytes.len(), "an entry takes 88 bytes at least");
}

/// The size of the pieces, a byte of choices, then a `.log`: what is found in pieces is what is found at once.
pub(super) fn segment(input: &[u8]) {
    let Some(([piece, choice], bytes)) = input.split_first_chunk() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 {
        repair::batches(&mut bytes);
    }
    let bytes = Bytes::from(bytes);
    let walk = |piece: usize| {
        let mut scan = SegmentScan::new(Offset::ZERO, 1024);
        let mut visited = 0;
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + piece).min(bytes.len());
            if !scan.push(bytes.slice(at..end), |_, _| visited += 1) {
                break;
            }
            at = end;
        }
        (scan.finish(), visited)
    };
    let ((whole, visited), spent) = measured(|| walk(bytes.len().max(1)));
    let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
    let ((pieces, visited_in_pieces), spent) = measured(|| walk(usize::from(*piece) + 1));
    assert!(spent.peak <= allowed, "{spent:?} for {} bytes in pieces", bytes.len());
    assert_eq!(
        (&whole, visited),
        (&pieces, visited_in_pieces),
        "pieces of {} bytes",
        usize::from(*piece) + 1
    );
    let complete = usize::try_from(whole.bytes) == Ok(bytes.len());
    assert_eq!(complete, whole.walk_end == WalkEnd::Complete);
    assert_eq!(
        whole.index.last().map_or(0, IndexEntry::end_position),
        whole.bytes,
        "intervals cover the batches"
    );
}

/// A byte of choices, then a `.log` as a recovery walks over it.
pub(super) fn log_walk(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 {
        repair::batches(&mut bytes);
    }
    let length = bytes.len() as u64;
    let file = Arc::new(MemoryFile::new(bytes));
    // Nothing in it waits: the first poll is the last.
    let walk = pin!(tidelog_log::walked(Arc::<MemoryFile>::clone(&file)));
    let Poll::Ready(found) = walk.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("a walk waits")
    };
    for (position, asked) in file.asked() {
        // A disk takes memory for all that it is asked for: beyond the walk's own step it is in the file.
        let within = position.saturating_add(asked as u64) <= length;
        assert!(asked <= 1024 * 1024 || within, "{asked} bytes are asked for at {position}");
    }
    let (count, end) = found.expect("a file in memory is read");
    assert!(end <= length && count as u64 * 61 <= end, "{count} batches end at {end} of {length}");
}

fn entry_file<T: FixedEntry + PartialEq + std::fmt::Debug>(bytes: &[u8], repaired: bool) {
    let topic_id = TopicId::from_bytes(*b"a topic's id, 16");
    let place = TopicPartition { topic_id, partition: PartitionIndex(0) };
    let file = EntryFile::<T>::new(place, Offset::new(100).expect("it is an offset"));
    let mut bytes = bytes.to_vec();
    if repaired {
        repair::entries(&mut bytes, file.header(), T::BYTES + 4);
    }
    let (decoded, spent) = measured(|| file.decode(&bytes));
    let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
    assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
    let Ok(decoded) = decoded else { return };
    assert!(!(decoded.sealed && decoded.damaged));
    if decoded.sealed {
        assert!(file.encode_sealed(&decoded.entries) == bytes, "a sealed file has one form");
    }
}

/// Which file, then its bytes.
pub(super) fn entry_files(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let repaired = choice & 0x80 != 0;
    match (choice & 0x7f) % 3 {
        0 => entry_file::<IndexEntry>(bytes, repaired),
        1 => entry_file::<TimeIndexEntry>(bytes, repaired),
        _ => entry_file::<AbortedTransaction>(bytes, repaired),
    }
}

pub(super) fn meta_properties(input: &[u8]) {
    let mut repaired = input.to_vec();
    repair::properties(&mut repaired);
    for bytes in [input, &repaired] {
        let (read, spent) = measured(|| tidelog_log::meta_properties(bytes));
        let allowed = FILE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
        assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
        if let Some(written) = read {
            assert_eq!(tidelog_log::meta_properties(written.as_bytes()), Some(written));
        }
    }
}

pub(super) fn checkpoint_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/checkpoint.bin"), seeds::golden("v2/checkpoint.bin")]
}

pub(super) fn leader_epoch_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/leader-epochs.bin")]
}

pub(super) fn producer_seeds() -> Vec<Vec<u8>> {
    vec![seeds::golden("v1/producers.bin")]
}

pub(super) fn journal_seeds() -> Vec<Vec<u8>> {
    let file = seeds::golden("v1/journal.bin");
    let mut next = file.clone();
    // The next file: a later generation, behind the first one.
    next[15] += 1;
    next[16..24].copy_from_slice(
        &(u64::from_be_bytes(file[16..24].try_into().expect("eight bytes")) + 12_288).to_be_bytes(),
    );
    let mut all: Vec<Vec<u8>> = [0, 1, 3].iter().map(|choice| [&[*choice], &file[..]].concat()).collect();
    all.push([&[7], &file[..], &next[..]].concat());
    all
}

pub(super) fn segment_seeds() -> Vec<Vec<u8>> {
    let batch = seeds::golden("v1/batch-none.bin");
    let marker = seeds::golden("v1/batch-abort-marker.bin");
    vec![
        [&[99, 0], &batch[..], &marker[..]].concat(),
        [&[16, 1], &batch[..], &marker[..], &[0; 80][..]].concat(),
    ]
}

pub(super) fn log_walk_seeds() -> Vec<Vec<u8>> {
    segment_seeds().into_iter().map(|seed| seed[1..].to_vec()).collect()
}

pub(super) fn entry_file_seeds() -> Vec<Vec<u8>> {
    [(0_u8, "offset.index"), (1, "offset.timeindex"), (2, "offset.txnindex")]
        .iter()
        .flat_map(|(kind, name)| {
            let file = seeds::golden(&format!("v1/{name}"));
            [[&[*kind], &file[..]].concat(), [&[*kind | 0x80], &file[..]].concat()]
        })
        .collect()
}

pub(super) fn meta_seeds() -> Vec<Vec<u8>> {
    vec![
        b"version=1\ncluster.id=AQEBAQEBAQEBAQEBAQEBAQ\ndirectory.id=AQEBAQEBAQEBAQEBAQEBAQ\ncrc=00000000\n"
            .to_vec(),
        b"version=1\ncluster.id=\ndirectory.id=AQEBAQEBAQEBAQEBAQEBAQ\ncrc=00000000\n".to_vec(),
        b"#\nversion=1\nbroker.id=0\ncluster.id=x\n".to_vec(),
        b"version=2\n".to_vec(),
    ]
}
