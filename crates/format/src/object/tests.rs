use bytes::Bytes;
use tidelog_types::{
    BrokerIncarnation, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, Timestamp, TopicId,
    UploadSequence,
};

use super::*;
use crate::{
    batch::{BatchBuilder, NewRecord},
    error::DecodeError,
    producers::{BatchMeta, ProducerEntry},
};

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn epoch(raw: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(raw).unwrap()
}

fn upload(sequence: u64) -> UploadId {
    UploadId { incarnation: BrokerIncarnation(3), sequence: UploadSequence(sequence) }
}

fn identity(base: u64, end: u64) -> ObjectIdentity {
    ObjectIdentity {
        cluster_id: ClusterId::from_bytes([1; 16]),
        place: TopicPartition { topic_id: TopicId::from_bytes([2; 16]), partition: PartitionIndex(4) },
        range: OffsetRange { base: offset(base), end: offset(end) },
        leader_epoch: epoch(6),
        upload: upload(11),
        log_start: offset(7),
        previous: Some(SegmentObjectId { base: offset(50), leader_epoch: epoch(5), upload: upload(10) }),
    }
}

fn batch(base: u64, e: i32, time: u64) -> RawBatch {
    let record = NewRecord {
        timestamp: Some(Timestamp::from_millis(time)),
        value: Some(&[3; 40]),
        ..NewRecord::default()
    };
    let builder = BatchBuilder::new(offset(base)).leader_epoch(epoch(e));
    builder.record(&record).record(&record).build().unwrap()
}

fn chunk(batches: &[RawBatch]) -> Bytes {
    batches.iter().flat_map(RawBatch::to_bytes).collect::<Vec<u8>>().into()
}

fn aborted() -> AbortedTransaction {
    AbortedTransaction {
        producer_id: ProducerId(9),
        first_offset: offset(90),
        last_offset: offset(102),
        last_stable_offset: offset(103),
    }
}

fn producers() -> ProducerSnapshot {
    let meta = BatchMeta {
        base_sequence: 0,
        last_sequence: 1,
        base_offset: offset(100),
        last_offset: offset(101),
        timestamp: None,
    };
    let entry = ProducerEntry {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(1),
        last_timestamp: Timestamp::from_millis(5),
        batches: vec![meta],
        open_transaction: None,
    };
    ProducerSnapshot { end: offset(106), entries: vec![entry] }
}

fn sample() -> (SegmentObject, Bytes) {
    let mut builder = SegmentObjectBuilder::with_interval(identity(101, 106), Gaps::Refused, 200);
    // The range begins inside of the first batch.
    builder.add(chunk(&[batch(100, 1, 50), batch(102, 5, 90)])).unwrap();
    builder.add(chunk(&[batch(104, 6, 70)])).unwrap();
    let object = builder.finish(&[aborted()], Some(&producers())).unwrap();
    let bytes: Bytes = object.payload.concat().into();
    (object, bytes)
}

fn part(bytes: &Bytes, section: Section) -> Bytes {
    let from = usize::try_from(section.position).unwrap();
    bytes.slice(from..from + usize::try_from(section.bytes).unwrap())
}

#[test]
fn an_object_reads_as_it_was_made() {
    let (object, bytes) = sample();
    assert_eq!(object.bytes(), bytes.len() as u64);
    let footer = Footer::decode(&bytes[bytes.len() - 600..], object.bytes()).unwrap();
    assert_eq!(footer, object.footer);
    assert_eq!(footer.identity, identity(101, 106));
    let entry = footer.manifest_entry();
    assert_eq!(entry, object.entry());
    assert_eq!((entry.range, entry.leader_epoch), (identity(101, 106).range, epoch(6)));
    assert_eq!(entry.max_timestamp, Some(Timestamp::from_millis(90)));
    assert_eq!(
        entry.object,
        SegmentObjectId { base: offset(101), leader_epoch: epoch(6), upload: upload(11) }
    );
    assert!(section_matches(&footer.batches, &part(&bytes, footer.batches)));
    let index = ServingIndex::decode(&part(&bytes, entry.index), &entry).unwrap();
    let bases: Vec<_> = index.intervals().iter().map(|interval| interval.base_offset.get()).collect();
    assert_eq!(bases, [100, 104]);
    for interval in index.intervals() {
        let at = usize::try_from(interval.position).unwrap();
        assert!(interval.matches(&bytes[at..usize::try_from(interval.end_position()).unwrap()]));
    }
    assert_eq!((index.interval_for_offset(offset(103)), index.interval_for_offset(offset(105))), (0, 1));
    let time = |millis| index.interval_for_time(Timestamp::from_millis(millis));
    assert_eq!((time(60), time(90), time(91)), (Some(0), Some(0), None));
    assert_eq!((index.epoch_at(offset(101)), index.epoch_at(offset(104))), (Some(epoch(1)), Some(epoch(6))));
    assert_eq!(index.epochs().entries()[0].start, offset(101));
    assert_eq!(index.aborted_in(identity(101, 103).range).count(), 1);
    assert_eq!(index.aborted_in(identity(103, 106).range).count(), 0);
    assert_eq!(ProducerSnapshot::decode(&part(&bytes, footer.producers)).unwrap(), producers());
}

#[test]
fn batches_are_not_copied() {
    let bytes = chunk(&[batch(0, 1, 1)]);
    let mut builder = SegmentObjectBuilder::new(identity(0, 2), Gaps::Refused);
    builder.add(bytes.clone()).unwrap();
    let object = builder.finish(&[], None).unwrap();
    assert_eq!(object.payload[0].as_ptr(), bytes.as_ptr());
    assert_eq!((object.footer.aborted.bytes, object.footer.producers.bytes), (0, 0));
    assert_eq!(object.payload.len(), 4, "batches, index, epochs, footer");
}

/// B88: a damaged segment makes no object.
#[test]
fn damaged_or_missing_batches_make_no_object() {
    let mut flipped = batch(102, 5, 1).to_bytes().to_vec();
    flipped[80] ^= 1;
    let add = |gaps, chunks: &[Bytes]| {
        let mut builder = SegmentObjectBuilder::new(identity(100, 106), gaps);
        chunks.iter().try_for_each(|chunk| builder.add(chunk.clone()))?;
        builder.finish(&[], None).map(|_| ())
    };
    let first = chunk(&[batch(100, 1, 1)]);
    let third = chunk(&[batch(104, 5, 1)]);
    let all = [first.clone(), chunk(&[batch(102, 5, 1)]), third.clone()];
    assert_eq!(add(Gaps::Refused, &all), Ok(()));
    assert!(matches!(add(Gaps::Refused, &[first.clone(), flipped.into()]), Err(BuildError::Batch { .. })));
    let cut = all[1].slice(..all[1].len() - 1);
    assert!(matches!(add(Gaps::Refused, &[first.clone(), cut]), Err(BuildError::Batch { .. })));
    let gap = [first.clone(), third.clone()];
    assert!(matches!(add(Gaps::Refused, &gap), Err(BuildError::Offsets { .. })));
    assert_eq!(add(Gaps::Allowed, &gap), Ok(()));
    assert!(matches!(add(Gaps::Allowed, &[third.clone(), first.clone()]), Err(BuildError::Offsets { .. })));
    assert!(matches!(add(Gaps::Refused, &all[..2]), Err(BuildError::Range { .. })));
    assert!(matches!(add(Gaps::Refused, &[]), Err(BuildError::Range { .. })));
    let beyond = [all[0].clone(), all[1].clone(), chunk(&[batch(104, 5, 1), batch(106, 5, 1)])];
    assert!(matches!(add(Gaps::Refused, &beyond), Err(BuildError::Offsets { .. })));
    let older = [all[0].clone(), all[1].clone(), chunk(&[batch(104, 4, 1)])];
    assert!(matches!(add(Gaps::Refused, &older), Err(BuildError::Epoch { .. })));
    let mut builder = SegmentObjectBuilder::new(identity(103, 105), Gaps::Allowed);
    builder.add(chunk(&[batch(103, 1, 1)])).unwrap();
    assert!(matches!(builder.finish(&[aborted()], None), Err(BuildError::Aborted { .. })));
}

#[test]
fn every_flipped_bit_of_an_object_is_found_by_its_checksum() {
    let (object, bytes) = sample();
    let entry = object.entry();
    let index = ServingIndex::decode(&part(&bytes, entry.index), &entry).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let flipped = Bytes::from(flipped);
        let at = (bit / 8) as u64;
        let within = |section: Section| section.position <= at && at < section.position + section.bytes;
        if within(object.footer.batches) {
            let hit = index.intervals().iter().find(|interval| at < interval.end_position()).unwrap();
            let from = usize::try_from(hit.position).unwrap();
            assert!(!hit.matches(&flipped[from..usize::try_from(hit.end_position()).unwrap()]), "bit {bit}");
        } else if within(entry.index) {
            assert!(ServingIndex::decode(&part(&flipped, entry.index), &entry).is_err(), "bit {bit}");
        } else if within(object.footer.producers) {
            assert!(ProducerSnapshot::decode(&part(&flipped, object.footer.producers)).is_err(), "bit {bit}");
        } else {
            assert!(Footer::decode(&flipped, object.bytes()).is_err(), "bit {bit}");
        }
    }
    for cut in 0..bytes.len() {
        assert!(Footer::decode(&bytes[..cut], cut as u64).is_err(), "cut at {cut}");
    }
    assert!(Footer::decode(&bytes, object.bytes() + 1).is_err());
    let serving = part(&bytes, entry.index);
    for cut in 0..serving.len() {
        assert!(ServingIndex::decode(&serving[..cut], &entry).is_err(), "index cut at {cut}");
    }
}

/// A footer with one byte changed and a checksum to match.
fn resealed(bytes: &Bytes, at: usize, value: u8) -> Vec<u8> {
    let mut tail = bytes[bytes.len() - FOOTER_BYTES..].to_vec();
    tail[at] = value;
    let crc = crc32c(&tail[..FOOTER_BYTES - 4]);
    tail[FOOTER_BYTES - 4..].copy_from_slice(&crc.to_be_bytes());
    tail
}

#[test]
fn what_a_newer_program_wrote_is_refused_as_such() {
    let (object, bytes) = sample();
    let decode = |at, value| Footer::decode(&resealed(&bytes, at, value), object.bytes());
    assert!(matches!(decode(9, 2), Err(DecodeError::Version { version: 2, version_max: 1, .. })));
    for at in (12..16).chain(268..508) {
        assert!(
            matches!(decode(at, 1), Err(DecodeError::Invalid { why: "reserved bytes are in use", .. })),
            "{at}"
        );
    }
}
