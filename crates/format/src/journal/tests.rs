use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, PartitionIndex, TopicId, TopicPartition};

use super::*;
use crate::batch::{BatchBuilder, NewRecord, RawBatch};

fn place(partition: i32) -> TopicPartition {
    TopicPartition { topic_id: TopicId::from_bytes([7; 16]), partition: PartitionIndex(partition) }
}

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn batch(base: u64, value: &[u8]) -> RawBatch {
    let record = NewRecord { value: Some(value), ..NewRecord::default() };
    BatchBuilder::new(offset(base))
        .leader_epoch(LeaderEpoch::from_wire(3).unwrap())
        .record(&record)
        .build()
        .unwrap()
}

fn append(round: &mut RoundEncoder, partition: i32, batch: &RawBatch) -> ScannedEntry {
    let position = round.append(place(partition), batch.header.as_bytes(), &batch.body);
    let base = batch.header.base_offset().unwrap();
    let change = Change::Append {
        leader_epoch: LeaderEpoch::from_wire(3).unwrap(),
        range: OffsetRange { base, end: base.next() },
        batch: batch.clone(),
    };
    ScannedEntry { position, place: place(partition), change }
}

fn control(position: JournalPosition, partition: i32, change: Change) -> ScannedEntry {
    ScannedEntry { position, place: place(partition), change }
}

/// A file that is written as the committer writes one.
struct Written {
    header: FileHeader,
    bytes: BytesMut,
    end: JournalPosition,
    synced: JournalPosition,
}

impl Written {
    fn new(generation: u64, base: JournalPosition, synced: JournalPosition) -> Self {
        let header = FileHeader { generation: Generation(generation), base, synced };
        let bytes = BytesMut::from(&header.encode()[..]);
        Self { header, bytes, end: JournalPosition(base.0 + FILE_HEADER_BYTES), synced }
    }

    fn round<T>(&mut self, fill: impl FnOnce(&mut RoundEncoder) -> T) -> T {
        let mut round = RoundEncoder::new(self.header.generation, self.end, self.synced, 1);
        let result = fill(&mut round);
        let encoded = round.finish();
        assert_eq!(encoded.bytes, encoded.parts.iter().map(|part| part.len() as u64).sum::<u64>());
        encoded.parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.end = encoded.end;
        result
    }

    /// What was written so far is synced, as the next header says.
    fn sync(&mut self) {
        self.synced = self.end;
    }

    /// The file with room behind its rounds.
    fn file(&self, zeros: usize) -> (FileHeader, Bytes) {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + zeros, 0);
        (self.header, bytes.freeze())
    }
}

/// Two rounds that are synced, and two that are not.
fn sample() -> (Written, Vec<ScannedEntry>) {
    let mut file = Written::new(5, JournalPosition(1 << 40), JournalPosition(1 << 40));
    let mut entries = Vec::new();
    file.round(|round| {
        entries.push(append(round, 0, &batch(10, b"first")));
        entries.push(append(round, 1, &batch(20, &[1; 3000])));
        entries.push(control(round.truncate(place(0), offset(5)), 0, Change::Truncate { to: offset(5) }));
    });
    file.round(|round| {
        entries.push(control(round.reset(place(2), offset(77)), 2, Change::Reset { start: offset(77) }));
        entries.push(append(round, 2, &batch(77, b"second")));
    });
    file.sync();
    file.round(|round| {
        entries.push(control(round.log_start(place(1), offset(3)), 1, Change::LogStart { to: offset(3) }));
        entries.push(control(
            round.local_log_start(place(1), offset(9)),
            1,
            Change::LocalLogStart { to: offset(9) },
        ));
        entries.push(append(round, 3, &batch(0, b"third")));
    });
    file.round(|round| {
        entries.push(control(round.delete(place(3)), 3, Change::Delete));
        entries.push(append(round, 4, &batch(8, b"fourth")));
    });
    (file, entries)
}

#[test]
fn what_was_written_plays() {
    let (file, entries) = sample();
    for zeros in [0, 4096, 100_000] {
        let found = scan(&[file.file(zeros)]).unwrap();
        assert_eq!(
            found,
            Scan { entries: entries.clone(), rot: vec![], end: EndOfPlay { position: file.end } }
        );
    }
}

#[test]
fn large_bodies_are_not_copied() {
    let large = batch(0, &[9; 5000]);
    let mut round = RoundEncoder::new(Generation(1), JournalPosition(0), JournalPosition(0), 1);
    round.append(place(0), large.header.as_bytes(), &large.body);
    assert_eq!(round.bytes(), ROUND_HEADER_BYTES + append_bytes(large.body.len() as u64));
    let encoded = round.finish();
    assert!(encoded.parts.iter().any(|part| part.as_ptr() == large.body.as_ptr()));
    assert_eq!(encoded.bytes % BLOCK_BYTES, 0);
    let mut round = RoundEncoder::new(Generation(1), JournalPosition(0), JournalPosition(0), 1);
    round.delete(place(0));
    assert_eq!((round.bytes(), round.entry_count()), (ROUND_HEADER_BYTES + CONTROL_ENTRY_BYTES, 1));
}

#[test]
fn a_body_larger_than_a_read_plays() {
    let mut file = Written::new(1, JournalPosition(0), JournalPosition(0));
    let entry = file.round(|round| append(round, 0, &batch(0, &vec![5; 3 << 20])));
    let after = file.round(|round| append(round, 0, &batch(1, b"after")));
    assert_eq!(scan(&[file.file(4096)]).unwrap().entries, [entry, after]);
}

#[test]
fn a_play_goes_on_in_the_next_file() {
    let mut first = Written::new(5, JournalPosition(0), JournalPosition(0));
    let a = first.round(|round| append(round, 0, &batch(0, b"a")));
    let mut second = Written::new(6, first.end, JournalPosition(0));
    let b = second.round(|round| append(round, 0, &batch(1, b"b")));
    let both = [first.file(8192), second.file(8192)];
    let found = scan(&both).unwrap();
    assert_eq!(
        (found.entries, found.rot, found.end.position),
        (vec![a.clone(), b.clone()], vec![], second.end)
    );
    assert!(scan(&[both[1].clone(), both[0].clone()]).is_err());

    // The end of the first file is lost. Nothing said that it was synced: the second file is not played either.
    let mut torn = first.file(8192);
    let mut bytes = torn.1.to_vec();
    bytes[4096..8192].fill(0);
    torn.1 = bytes.into();
    assert_eq!(scan(&[torn.clone(), second.file(0)]).unwrap().entries, []);
    // The second file's header knew it synced: it is rot, and the second file plays.
    let mut second = Written::new(6, first.end, first.end);
    let b = second.round(|round| append(round, 0, &batch(1, b"b")));
    let found = scan(&[torn, second.file(0)]).unwrap();
    assert_eq!(found.entries, [b]);
    assert_eq!(found.rot, [Rot { position: JournalPosition(4096), bytes: 4096, place: None, range: None }]);
}

#[test]
fn what_an_earlier_generation_left_is_not_played() {
    let (old, _) = sample();
    let mut new = Written::new(6, old.header.base, old.header.base);
    let entry = new.round(|round| append(round, 9, &batch(1, b"new")));
    let mut bytes = old.bytes.clone();
    bytes[..new.bytes.len()].copy_from_slice(&new.bytes);
    let found = scan(&[(new.header, bytes.freeze())]).unwrap();
    assert_eq!((found.entries, found.rot, found.end.position), (vec![entry], vec![], new.end));
}

/// Two entries of equal size in one round, and where in the file the second stands.
fn twins(generation: u64, values: [u8; 2]) -> (Written, [ScannedEntry; 2], usize) {
    let mut file = Written::new(generation, JournalPosition(0), JournalPosition(0));
    let entries = file.round(|round| {
        [append(round, 0, &batch(0, &[values[0]; 9])), append(round, 0, &batch(1, &[values[1]; 9]))]
    });
    let second = usize::try_from(entries[1].position.0).unwrap();
    (file, entries, second)
}

#[test]
fn a_torn_round_over_an_older_one_ends_with_its_own_entries() {
    let (old, _, second) = twins(5, [1, 2]);
    let (new, entries, _) = twins(6, [3, 4]);
    let torn = [&new.bytes[..second], &old.bytes[second..]].concat();
    let found = scan(&[(new.header, torn.into())]).unwrap();
    assert_eq!((&found.entries[..], found.rot.len()), (&entries[..1], 0));
}

#[test]
fn an_entry_at_another_place_is_not_played() {
    let (file, entries, second) = twins(5, [1, 2]);
    let first = usize::try_from(entries[0].position.0).unwrap();
    let mut bytes = file.bytes.to_vec();
    bytes.copy_within(first..second, second);
    let found = scan(&[(file.header, bytes.into())]).unwrap();
    assert_eq!((&found.entries[..], found.rot.len()), (&entries[..1], 0));
}

#[test]
fn a_later_round_that_survived_a_lost_one_is_dropped() {
    let (file, entries) = sample();
    let mut bytes = file.bytes.to_vec();
    // The third round, which nothing names as synced.
    let third = usize::try_from(entries[5].position.0 - file.header.base.0).unwrap() / 4096 * 4096;
    bytes[third..third + 4096].fill(0);
    let found = scan(&[(file.header, bytes.into())]).unwrap();
    assert_eq!(found.entries, entries[..5]);
    assert_eq!((found.rot.len(), found.end.position.0 - file.header.base.0), (0, third as u64));
}

/// The heart of it: whatever one bit is flipped, no wrong entry plays; below the synced position exactly the hit entry
/// is lost, with its partition named; above it the play ends there.
#[test]
fn one_flipped_bit_costs_one_entry_or_ends_the_play() {
    let (file, entries) = sample();
    let synced = file.synced;
    let starts: Vec<u64> = entries.iter().map(|entry| entry.position.0).collect();
    for byte in 4096..file.bytes.len() {
        for bit in [0, 3, 7] {
            let mut bytes = file.bytes.to_vec();
            bytes[byte] ^= 1 << bit;
            let found = scan(&[(file.header, bytes.into())]).unwrap();
            let at = file.header.base.0 + byte as u64;
            if found.entries == entries {
                // Padding, a trailer, or a synced round's header: nothing was lost.
                assert_eq!(found.rot, [], "byte {byte}");
                continue;
            }
            let hit = starts.partition_point(|start| *start <= at);
            if at >= synced.0 {
                let kept = found.entries.len();
                assert_eq!(found.entries, entries[..kept], "byte {byte}");
                // The entry that was hit, or the first of the round whose header was.
                assert!(kept == hit.saturating_sub(1) || kept == hit, "byte {byte}: kept {kept}, hit {hit}");
                assert_eq!(found.rot, [], "byte {byte}");
            } else {
                let lost = hit - 1;
                let mut expected = entries.clone();
                expected.remove(lost);
                assert_eq!(found.entries, expected, "byte {byte}");
                assert_eq!(found.rot.len(), 1, "byte {byte}");
                assert_eq!(found.rot[0].place, Some(entries[lost].place), "byte {byte}");
                assert_eq!(found.rot[0].position, entries[lost].position, "byte {byte}");
            }
        }
    }
}

#[test]
fn a_bad_body_below_the_synced_position_names_its_offsets() {
    let (file, entries) = sample();
    let mut bytes = file.bytes.to_vec();
    let at = usize::try_from(entries[1].position.0 - file.header.base.0).unwrap();
    bytes[at + APPEND_HEADER_BYTES + 100] ^= 1;
    let found = scan(&[(file.header, bytes.into())]).unwrap();
    let range = OffsetRange { base: offset(20), end: offset(21) };
    assert_eq!(found.rot.len(), 1);
    assert_eq!((found.rot[0].place, found.rot[0].range), (Some(place(1)), Some(range)));
    assert_eq!(found.entries.len(), entries.len() - 1);
}

#[test]
fn every_cut_plays_a_beginning() {
    let (file, entries) = sample();
    for cut in 0..file.bytes.len() {
        let mut bytes = file.bytes.to_vec();
        bytes.truncate(cut);
        let cut_short = scan(&[(file.header, bytes.clone().into())]).unwrap();
        assert_eq!(cut_short.entries, entries[..cut_short.entries.len()], "cut at {cut}");
        assert_eq!(cut_short.rot, [], "cut at {cut}");
        bytes.resize(file.bytes.len(), 0);
        let zeroed = scan(&[(file.header, bytes.into())]).unwrap();
        // One more where the bytes that were cut off were zeros.
        assert!(zeroed.entries.len() <= cut_short.entries.len() + 1, "zeros from {cut}");
        assert_eq!(zeroed.entries, entries[..zeroed.entries.len()], "zeros from {cut}");
        assert_eq!(zeroed.rot, [], "zeros from {cut}");
    }
}

#[test]
fn a_file_header_survives_one_bad_copy() {
    let header =
        FileHeader { generation: Generation(9), base: JournalPosition(8192), synced: JournalPosition(4096) };
    let block = header.encode();
    for bit in 0..block.len() * 8 {
        let mut flipped = block.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FileHeader::decode(&flipped), Ok(header), "bit {bit}");
    }
    for cut in 0..64 {
        assert!(FileHeader::decode(&block[..cut]).is_err());
    }
    assert!(FileHeader::decode(&[0; 4096]).is_err());
    let mut both = block.to_vec();
    (both[20], both[2068]) = (1, 1);
    assert!(matches!(FileHeader::decode(&both), Err(crate::DecodeError::Checksum { .. })));
    // Torn while it was taken into use again: the newer copy counts.
    let newer = FileHeader { generation: Generation(10), ..header }.encode();
    let torn = [&block[..2048], &newer[2048..]].concat();
    assert_eq!(FileHeader::decode(&torn).unwrap().generation, Generation(10));
}

#[test]
fn a_position_that_no_journal_reaches_is_refused_and_the_highest_one_plays() {
    let header = |base, synced, generation| FileHeader {
        generation: Generation(generation),
        base: JournalPosition(base),
        synced: JournalPosition(synced),
    };
    let (beyond, top) = (POSITION_MAX + 4096, POSITION_MAX);
    for refused in [header(beyond, 0, 1), header(top, u64::MAX, 1), header(top, 0, u64::MAX)] {
        assert!(matches!(FileHeader::decode(&refused.encode()), Err(crate::DecodeError::Invalid { .. })));
    }
    // A round that claims 4 GiB at the end of all positions, of which nothing is there; all of it is said to be synced.
    let highest = header(top, top, top);
    assert_eq!(FileHeader::decode(&highest.encode()), Ok(highest));
    let first = JournalPosition(top + FILE_HEADER_BYTES);
    let mut round = RoundEncoder::new(highest.generation, first, first, 1);
    round.delete(place(0));
    let mut bytes = highest.encode().to_vec();
    round.finish().parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes[4096 + 32..4096 + 36].fill(0xff);
    let crc = crate::crc::crc32c(&bytes[4096..4096 + 60]);
    bytes[4096 + 60..4096 + 64].copy_from_slice(&crc.to_be_bytes());
    let found = scan(&[(highest, bytes.into())]).unwrap();
    assert_eq!((found.entries.len(), found.rot.len()), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_damage_never_plays_a_wrong_entry(
        sizes in prop::collection::vec((0_i32..4, 0_usize..6000, any::<bool>()), 1..12),
        damage in prop::collection::vec((any::<u32>(), 1_usize..600, any::<u8>()), 0..4),
    ) {
        let mut file = Written::new(3, JournalPosition(4096), JournalPosition(0));
        let mut entries = Vec::new();
        for (index, (partition, size, sync)) in sizes.iter().enumerate() {
            file.round(|round| {
                entries.push(append(round, *partition, &batch(index as u64, &vec![7; *size])));
                entries.push(append(round, *partition + 1, &batch(index as u64, b"x")));
            });
            if *sync {
                file.sync();
            }
        }
        let mut bytes = file.bytes.to_vec();
        for (at, length, fill) in damage {
            let at = 4096 + at as usize % (bytes.len() - 4096);
            let end = (at + length).min(bytes.len());
            bytes[at..end].fill(fill);
        }
        let found = scan(&[(file.header, bytes.into())]).unwrap();
        let mut rest = entries.iter();
        for entry in &found.entries {
            prop_assert!(rest.any(|written| written == entry), "an entry that was not written, or out of order");
        }
        // What is below the end was played or is in a reported hole.
        for entry in &entries {
            let at = entry.position;
            let covered = found.entries.contains(entry)
                || at >= found.end.position
                || found.rot.iter().any(|rot| rot.position <= at && at.0 < rot.position.0 + rot.bytes);
            prop_assert!(covered, "an entry vanished without a report");
        }
    }

    #[test]
    fn garbage_plays_nothing(bytes in prop::collection::vec(any::<u8>(), 0..20_000), synced in 0_u64..30_000) {
        let header = FileHeader { generation: Generation(1), base: JournalPosition(0), synced: JournalPosition(synced) };
        prop_assert_eq!(scan(&[(header, bytes.into())]).unwrap().entries, []);
    }
}
