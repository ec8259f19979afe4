//! Files that are written at once: any damage is refused, and so is a newer version.

use proptest::prelude::*;
use tidelog_format::{
    DecodeError,
    checkpoint::Checkpoint,
    epochs::EpochChain,
    journal::{Generation, JournalPosition, POSITION_MAX},
    manifest::{ManifestFile, Page},
    object::{Footer, ServingIndex},
    producers::ProducerSnapshot,
};

use crate::samples;

fn every_damage_is_refused<T: std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit}");
    }
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(decode(&[bytes, &[0]].concat()).is_err(), "a byte more");
    // A newer version's file, whole: named as such and not guessed at.
    let mut newer = bytes.to_vec();
    newer[5] += 1;
    let crc = tidelog_format::crc::Crc32c::new().with(&newer[..16]).with(&newer[20..]).finish();
    newer[16..20].copy_from_slice(&crc.to_be_bytes());
    assert!(
        matches!(decode(&newer), Err(DecodeError::Version { version, version_max, .. }) if version == version_max + 1)
    );
}

#[test]
fn a_checkpoint_names_no_position_that_no_journal_reaches() {
    let beyond = JournalPosition(POSITION_MAX + 1);
    let mut last = samples::checkpoint();
    last.replay_from = JournalPosition(POSITION_MAX);
    assert_eq!(Checkpoint::decode(&last.encode()), Ok(last.clone()));
    let mut generation = last.clone();
    generation.generation = Generation(u64::MAX);
    let mut replay = last.clone();
    replay.replay_from = beyond;
    let mut entry = last;
    entry.entries[1].position = beyond;
    for refused in [generation, replay, entry] {
        assert!(matches!(Checkpoint::decode(&refused.encode()), Err(DecodeError::Invalid { .. })));
    }
}

#[test]
fn every_damage_to_a_small_file_is_refused() {
    every_damage_is_refused(&samples::checkpoint().encode(), Checkpoint::decode);
    every_damage_is_refused(&samples::epochs().encode(), EpochChain::decode);
    every_damage_is_refused(&samples::producers().encode(), ProducerSnapshot::decode);
    every_damage_is_refused(&samples::page().encode(), Page::decode);
    every_damage_is_refused(&samples::manifest().encode(), ManifestFile::decode);
}

#[test]
fn one_kind_of_file_is_not_taken_for_another() {
    let bytes = samples::checkpoint().encode();
    assert!(matches!(EpochChain::decode(&bytes), Err(DecodeError::Magic { what: "leader epoch file" })));
}

/// Payloads of any content under a right checksum: a defect of a writer must not become a panic of a reader.
fn frame(magic: [u8; 4], version: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&[0, version, 0, 0]);
    bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    let crc = tidelog_format::crc::Crc32c::new().with(&bytes).with(payload).finish();
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_payload_under_a_right_checksum_is_read_or_refused(payload in prop::collection::vec(any::<u8>(), 0..400), head in prop::collection::vec(Just(0_u8), 0..64)) {
        let payload = [head, payload].concat();
        let _ = Checkpoint::decode(&frame(*b"TLCP", 1, &payload));
        let _ = Checkpoint::decode(&frame(*b"TLCP", 2, &payload));
        let _ = EpochChain::decode(&frame(*b"TLEP", 1, &payload));
        let _ = ProducerSnapshot::decode(&frame(*b"TLPS", 1, &payload));
        let _ = Page::decode(&frame(*b"TLPG", 1, &payload));
        let _ = ManifestFile::decode(&frame(*b"TLMF", 1, &payload));
        let _ = Footer::decode(&payload, payload.len() as u64);
        let mut entry = samples::object().entry();
        entry.index.bytes = payload.len() as u64;
        entry.index.crc = tidelog_format::crc::crc32c(&payload);
        prop_assert!(ServingIndex::decode(&payload, &entry).is_err());
    }
}
