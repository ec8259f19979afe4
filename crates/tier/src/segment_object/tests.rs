use tidelog_format::batch::{BatchBuilder, NewRecord, control_batch};
use tidelog_types::{
    BrokerIncarnation, ClusterId, LeaderEpoch, PartitionIndex, ProducerEpoch, Timestamp, TopicId,
    TopicPartition, UploadId, UploadSequence,
};

use super::*;

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

const TIME: Timestamp = Timestamp::from_millis(1_000);

fn batch(base: u64, records: usize) -> BatchBuilder {
    (0..records).fold(BatchBuilder::new(offset(base)).leader_epoch(LeaderEpoch::ZERO), |builder, _| {
        builder.record(&NewRecord { timestamp: Some(TIME), key: None, value: Some(b"value"), headers: &[] })
    })
}

fn bytes(base: u64, records: usize) -> Bytes {
    batch(base, records).build().unwrap().to_bytes()
}

fn in_transaction(base: u64, producer: i64) -> Bytes {
    let builder = batch(base, 1).producer(ProducerId(producer), ProducerEpoch(0), 0).transactional();
    builder.build().unwrap().to_bytes()
}

fn marker(base: u64, producer: i64, kind: ControlKind) -> Bytes {
    let producer = (ProducerId(producer), ProducerEpoch(0));
    control_batch(offset(base), LeaderEpoch::ZERO, producer, kind, 0, TIME).unwrap().to_bytes()
}

fn identity(base: u64, end: u64) -> ObjectIdentity {
    ObjectIdentity {
        cluster_id: ClusterId::from_bytes([1; 16]),
        place: TopicPartition { topic_id: TopicId::from_bytes([2; 16]), partition: PartitionIndex(0) },
        range: OffsetRange { base: offset(base), end: offset(end) },
        leader_epoch: LeaderEpoch::ZERO,
        upload: UploadId { incarnation: BrokerIncarnation(1), sequence: UploadSequence(1) },
        log_start: offset(0),
        previous: None,
    }
}

fn assembled(
    base: u64,
    end: u64,
    chunks: impl IntoIterator<Item = impl Into<BatchBytes>>,
) -> Result<SegmentObject, UploadError> {
    let chunks = chunks.into_iter().map(Into::into).collect();
    let producers = ProducerSnapshot { end: offset(end), entries: Vec::new() }.encode();
    assemble(identity(base, end), Gaps::Refused, chunks, &[], &producers)
}

#[test]
fn batches_are_shared_whole_or_apart_from_their_headers() {
    let (one, two, three) = (bytes(0, 2), bytes(2, 1), bytes(3, 4));
    let apart = |batch: &Bytes| [batch.slice(..BATCH_HEADER_BYTES), batch.slice(BATCH_HEADER_BYTES..)];
    let chunks: Vec<Bytes> =
        [one.clone()].into_iter().chain(apart(&two)).chain(apart(&three)).chain([bytes(7, 1)]).collect();
    let whole = whole_batches(chunks, offset(0)).unwrap();
    let parts = |batch: &Bytes| {
        let [header, body] = apart(batch);
        BatchBytes::Parts { header, body }
    };
    assert_eq!(whole, [one.clone().into(), parts(&two), parts(&three), bytes(7, 1).into()]);
    let object = assembled(0, 8, whole).unwrap();
    assert_eq!(object.payload[0].as_ptr(), one.as_ptr(), "not copied");
    assert_eq!(object.payload[2].as_ptr(), two[BATCH_HEADER_BYTES..].as_ptr(), "not copied");
    let joined = assembled(0, 8, [one, two, three, bytes(7, 1)]).unwrap();
    assert_eq!(object.payload.concat(), joined.payload.concat(), "the same object");
}

#[test]
fn a_cut_batch_is_damage() {
    let one = bytes(0, 2);
    for cut in [one.len() - 1, BATCH_HEADER_BYTES, BATCH_HEADER_BYTES - 1, 5] {
        let chunks = vec![bytes(0, 1), one.slice(..cut)];
        assert!(matches!(whole_batches(chunks, offset(0)), Err(UploadError::Damaged { .. })), "cut at {cut}");
    }
    let longer = vec![
        one.slice(..BATCH_HEADER_BYTES),
        [one.slice(BATCH_HEADER_BYTES..), Bytes::from("x")].concat().into(),
    ];
    assert!(matches!(whole_batches(longer, offset(0)), Err(UploadError::Damaged { .. })));
}

#[test]
fn one_flipped_bit_anywhere_makes_no_object() {
    // B88: the batch's checksum covers all but base offset, length and leader epoch; those are checked by themselves.
    let clean: Vec<u8> = [bytes(10, 2), bytes(12, 3)].concat();
    assert!(assembled(10, 15, [Bytes::from(clean.clone())]).is_ok());
    let mut missed = Vec::new();
    for bit in 0..clean.len() * 8 {
        let mut flipped = clean.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let whole = whole_batches(vec![flipped.into()], offset(10));
        let refused = whole.and_then(|chunks| assembled(10, 15, chunks)).is_err();
        if !refused {
            missed.push(bit / 8);
        }
    }
    missed.dedup();
    // A leader epoch that only grew is the one thing that nothing here contradicts: the log's own checksum of the interval
    // covers it.
    let second = bytes(10, 2).len();
    assert!(missed.iter().all(|at| (second + 12..second + 16).contains(at)), "{missed:?}");
}

#[test]
fn another_range_than_was_meant_makes_no_object() {
    // B86
    for (base, end) in [(0, 6), (0, 4), (1, 5)] {
        let chunks = vec![bytes(0, 2), bytes(2, 3)];
        let result = assembled(base, end, chunks);
        assert_eq!(result.is_ok(), (base, end) == (1, 5), "a log start may lie inside of the first batch");
    }
    assert!(assembled(0, 5, vec![bytes(0, 2), bytes(3, 2)]).is_err(), "a gap is a loss");
    assert!(assembled(0, 5, vec![bytes(2, 3), bytes(0, 2)]).is_err());
}

#[test]
fn aborted_transactions_are_found_by_their_markers() {
    let mut found = Transactions::default();
    let chunks = [
        in_transaction(0, 7),
        in_transaction(1, 8),
        in_transaction(2, 7),
        marker(3, 8, ControlKind::Commit),
        bytes(4, 1),
        in_transaction(5, 9),
        marker(6, 7, ControlKind::Abort),
        marker(7, 9, ControlKind::Abort),
    ]
    .map(BatchBytes::from);
    found.take_all(&chunks, offset(0)).unwrap();
    let aborted = |producer, first, last, stable| AbortedTransaction {
        producer_id: ProducerId(producer),
        first_offset: offset(first),
        last_offset: offset(last),
        last_stable_offset: offset(stable),
    };
    assert_eq!(found.aborted, [aborted(7, 0, 6, 5), aborted(9, 5, 7, 8)]);
    assert_eq!(found.undecided(offset(100)), None);

    let mut open = Transactions::default();
    open.take_all(&chunks[..6], offset(0)).unwrap();
    assert_eq!(open.undecided(offset(6)), Some(offset(0)));
    assert_eq!(open.undecided(offset(0)), None);
}
