use proptest::prelude::*;
use tidelog_types::{
    BrokerIncarnation, ClusterId, PartitionIndex, TopicId, TopicName, TopicPartition, UploadSequence,
    limits::MANIFEST_PAGE_BYTES_MAX,
};

use super::*;
use crate::{cursor::Reader, error::DecodeError};

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn place() -> TopicPartition {
    TopicPartition { topic_id: TopicId::from_bytes([2; 16]), partition: PartitionIndex(4) }
}

fn page(entries: Vec<ManifestEntry>) -> Page {
    Page { cluster_id: ClusterId::from_bytes([1; 16]), place: place(), entries }
}

/// A number that looks like chance and is the same in every run.
fn noise(seed: u64) -> u64 {
    let mut value = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^= value >> 29;
    value.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// A busy partition: 64 MiB objects (less up to one batch of 1 MiB), about every ten minutes, some of 400 to 1,000
/// bytes a record, uploaded by a broker that leads a thousand partitions and is restarted twice.
fn busy(count: u64) -> Vec<ManifestEntry> {
    let (mut base, mut time, mut sequence) = (40_000_000, 1_780_000_000_000, 900);
    (0..count)
        .map(|n| {
            let records = 67_000 + noise(n) % 100_000;
            let bytes = (64 << 20) - noise(n + 1_000_000) % (1 << 20);
            time += 540_000 + noise(n + 2_000_000) % 120_000;
            sequence += 900 + noise(n + 3_000_000) % 200;
            let incarnation = 7 + n * 3 / count;
            let leader_epoch = LeaderEpoch::from_wire(i32::try_from(3 + n * 3 / count).unwrap()).unwrap();
            let index_bytes = 28_000 + noise(n + 4_000_000) % 4_000;
            let entry = ManifestEntry {
                range: OffsetRange { base: offset(base), end: offset(base + records) },
                object: SegmentObjectId {
                    base: offset(base),
                    leader_epoch,
                    upload: UploadId {
                        incarnation: BrokerIncarnation(incarnation),
                        sequence: UploadSequence(sequence),
                    },
                },
                position: 0,
                bytes,
                object_bytes: bytes + index_bytes + 512 + 36 + noise(n + 5_000_000) % 20 * 67,
                max_timestamp: Some(Timestamp::from_millis(time)),
                index: Section {
                    position: bytes,
                    bytes: index_bytes,
                    crc: u32::try_from(noise(n + 6_000_000) & 0xffff_ffff).unwrap(),
                },
                leader_epoch,
            };
            base += records;
            entry
        })
        .collect()
}

#[test]
fn a_segment_of_a_busy_partition_takes_at_most_20_bytes() {
    for count in [100, 1_000, 3_500] {
        let bytes = page(busy(count)).encode();
        let per_segment = bytes.len() as u64 * 100 / count;
        assert!(per_segment <= 2_000, "{count} segments: {per_segment} hundredths of a byte each");
        assert_eq!(Page::decode(&bytes).unwrap().entries, busy(count));
    }
    // The largest page is one small read.
    let full = page(busy(3_500));
    let bytes = full.encode();
    assert!(full.is_closed(MANIFEST_PAGE_BYTES_MAX) && !full.is_closed(MANIFEST_PAGE_BYTES_MAX - 1));
    assert!(bytes.len() < MANIFEST_PAGE_BYTES_MAX + 16 * 40, "{} bytes", bytes.len());
}

#[test]
fn a_page_answers_its_line_and_finds_offsets() {
    let entries = busy(3);
    let page = page(entries.clone());
    let id = PageId { base: entries[0].range.base, upload: entries[2].object.upload };
    let line = page.line(id);
    assert_eq!(line.page, id);
    assert_eq!(line.range, OffsetRange { base: entries[0].range.base, end: entries[2].range.end });
    assert_eq!(line.bytes, entries.iter().map(|entry| entry.bytes).sum::<u64>());
    assert_eq!(line.max_timestamp, entries[2].max_timestamp);
    assert_eq!(page.find(entries[1].range.base), Some(1));
    assert_eq!(page.find(entries[2].range.end), None);
    assert_eq!(page.find(offset(0)), None);
}

fn refuses_damage<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) {
    assert!(decode(bytes).is_ok());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped).is_err(), "bit {bit}");
    }
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(decode(&[bytes, &[0]].concat()).is_err());
}

fn manifest() -> ManifestFile {
    let entries = busy(6);
    let line = page(entries[..4].to_vec())
        .line(PageId { base: entries[0].range.base, upload: entries[4].object.upload });
    ManifestFile {
        cluster_id: ClusterId::from_bytes([1; 16]),
        topic: TopicName::new("flights").unwrap(),
        place: place(),
        version: 17,
        log_start: offset(40_000_005),
        tiered_end: entries[5].range.end,
        lines: vec![line],
        entries: entries[4..].to_vec(),
    }
}

#[test]
fn damaged_pages_and_manifests_are_refused() {
    refuses_damage(&page(busy(4)).encode(), Page::decode);
    refuses_damage(&manifest().encode(), ManifestFile::decode);
}

#[test]
fn equal_manifests_have_equal_bytes_and_read_back() {
    assert_eq!(manifest().encode(), manifest().encode());
    assert_eq!(ManifestFile::decode(&manifest().encode()), Ok(manifest()));
    let empty = ManifestFile { lines: vec![], entries: vec![], ..manifest() };
    assert_eq!(ManifestFile::decode(&empty.encode()), Ok(empty));
}

#[test]
fn a_manifest_with_a_gap_is_refused() {
    let mut gap = manifest();
    gap.lines[0].range.end = offset(gap.lines[0].range.end.get() - 1);
    assert!(matches!(ManifestFile::decode(&gap.encode()), Err(DecodeError::Invalid { .. })));
    let mut short = manifest();
    short.tiered_end = short.entries[1].range.base;
    assert!(matches!(ManifestFile::decode(&short.encode()), Err(DecodeError::Invalid { .. })));
}

fn column_round_trips(values: &[u64]) -> usize {
    let mut bytes = Vec::new();
    columns::put(&mut bytes, values);
    let mut reader = Reader::new("column", &bytes);
    assert_eq!(columns::take(&mut reader, values.len()).unwrap(), values);
    reader.finish().unwrap();
    bytes.len()
}

#[test]
fn columns_take_the_shortest_form() {
    assert_eq!(column_round_trips(&[7; 1000]), 2);
    assert_eq!(column_round_trips(&[1000, 1001, 1002, 1003, 1001, 1000, 1003, 1001]), 6);
    assert_eq!(column_round_trips(&[0, 0, 0, 0, 0, 0, 0, 0, u64::MAX]), 19);
    assert_eq!(column_round_trips(&[u64::MAX, 0, 1, u64::MAX - 1, u64::MAX]), 33);
}

fn any_entry() -> impl Strategy<Value = (u64, ManifestEntry)> {
    let object = (0..=i64::MAX as u64, 0..=i32::MAX, any::<u64>(), any::<u64>());
    let sizes = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (1_u64..1 << 40, object, sizes, prop::option::of(0..=i64::MAX as u64), 0..=i32::MAX).prop_map(
        |(offsets, (base, epoch, incarnation, sequence), sizes, time, last_epoch)| {
            let entry = ManifestEntry {
                range: OffsetRange { base: Offset::ZERO, end: Offset::ZERO },
                object: SegmentObjectId {
                    base: offset(base),
                    leader_epoch: LeaderEpoch::from_wire(epoch).unwrap(),
                    upload: UploadId {
                        incarnation: BrokerIncarnation(incarnation),
                        sequence: UploadSequence(sequence),
                    },
                },
                position: sizes.0,
                bytes: sizes.1,
                object_bytes: sizes.2,
                max_timestamp: time.map(Timestamp::from_millis),
                index: Section { position: sizes.3, bytes: sizes.4, crc: sizes.5 },
                leader_epoch: LeaderEpoch::from_wire(last_epoch).unwrap(),
            };
            (offsets, entry)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_columns_round_trip(values in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..100], 1..200)) {
        column_round_trips(&values);
    }

    #[test]
    fn any_pages_and_manifests_round_trip(entries in prop::collection::vec(any_entry(), 1..30), start in 0_u64..1 << 40) {
        let mut base = offset(start);
        let entries: Vec<_> = entries.into_iter().map(|(offsets, mut entry)| {
            entry.range = OffsetRange { base, end: offset(base.get() + offsets) };
            base = entry.range.end;
            entry
        }).collect();
        let page = page(entries.clone());
        prop_assert_eq!(&Page::decode(&page.encode()), &Ok(page));
        let file = ManifestFile { lines: vec![], tiered_end: base, entries, ..manifest() };
        prop_assert_eq!(&ManifestFile::decode(&file.encode()), &Ok(file));
    }

    #[test]
    fn garbage_in_a_valid_frame_never_panics(payload in prop::collection::vec(any::<u8>(), 0..300), count in 0_u32..20_000) {
        let kind = |magic| crate::envelope::Kind { what: "test", magic, version: 1 };
        let _ = ManifestFile::decode(&crate::envelope::seal(kind(*b"TLMF"), &payload));
        let mut page = vec![0; 44];
        page.extend_from_slice(&count.to_be_bytes());
        page.extend_from_slice(&payload);
        let _ = Page::decode(&crate::envelope::seal(kind(*b"TLPG"), &page));
    }
}
