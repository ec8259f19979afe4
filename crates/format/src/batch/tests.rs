use proptest::prelude::*;
use tidelog_types::{ProducerEpoch, ProducerId};

use super::*;
use crate::codec::Codec;

fn at(millis: u64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(millis))
}

fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

fn builder() -> BatchBuilder {
    let headers = [
        NewHeader { key: "a", value: Some(b"1") },
        NewHeader { key: "a", value: None },
        NewHeader { key: "", value: Some(b"") },
    ];
    BatchBuilder::new(Offset::ZERO)
        .record(&NewRecord { timestamp: at(1_000), key: Some(b"k"), value: Some(b"v"), headers: &headers })
        .record(&NewRecord { timestamp: at(900), key: None, value: Some(b""), headers: &[] })
        .record(&NewRecord { timestamp: at(1_500), key: Some(b""), value: None, headers: &[] })
}

fn client(bytes: Bytes) -> Vec<Result<RawBatch, BatchError>> {
    split_batches(bytes, &BatchLimits::client(1 << 20)).collect()
}

fn refused(batch: &RawBatch) -> BatchError {
    client(batch.to_bytes()).remove(0).unwrap_err()
}

/// Changes a batch and gives it the checksum of its new bytes.
fn changed(batch: &RawBatch, change: impl FnOnce(&mut BatchHeader)) -> RawBatch {
    let mut batch = batch.clone();
    change(&mut batch.header);
    batch.header.set_crc(batch.computed_crc());
    batch
}

#[test]
fn the_header_reads_as_it_was_built() {
    let batch = builder()
        .producer(ProducerId(7), ProducerEpoch(3), 5)
        .transactional()
        .codec(Codec::Zstd)
        .build()
        .unwrap();
    let header = batch.header;
    assert_eq!(header.base_offset(), Some(Offset::ZERO));
    assert_eq!(header.batch_bytes(), Some(batch.size()));
    assert_eq!(header.magic(), 2);
    assert_eq!(header.attributes().codec(), Ok(Codec::Zstd));
    assert!(header.attributes().is_transactional() && !header.attributes().is_control());
    assert_eq!((header.last_offset_delta(), header.record_count()), (2, 3));
    assert_eq!((header.base_timestamp(), header.max_timestamp()), (at(1_000), at(1_500)));
    assert_eq!(
        (header.producer_id(), header.producer_epoch()),
        (Some(ProducerId(7)), Some(ProducerEpoch(3)))
    );
    assert_eq!((header.base_sequence(), header.last_sequence()), (Some(5), Some(7)));
    assert_eq!(client(batch.to_bytes()), [Ok(batch)]);
}

#[test]
fn sequences_wrap_at_their_end() {
    let batch = builder().producer(ProducerId(7), ProducerEpoch(0), i32::MAX - 1).build().unwrap();
    assert_eq!(batch.header.last_sequence(), Some(0));
}

#[test]
fn batches_share_the_bytes_that_they_are_cut_from() {
    let bytes =
        Bytes::from([builder().build().unwrap().to_bytes(), builder().build().unwrap().to_bytes()].concat());
    let batches: Vec<_> = client(bytes.clone()).into_iter().map(Result::unwrap).collect();
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[1].body.as_ptr(), bytes[batches[0].size() + 61..].as_ptr());
}

#[test]
fn offset_and_epoch_are_set_without_the_checksum() {
    let mut batch = builder().build().unwrap();
    let crc = batch.header.crc();
    batch.set_base_offset_and_epoch(offset(1 << 40), LeaderEpoch::from_wire(9).unwrap());
    assert_eq!(
        (batch.header.last_offset(), batch.header.end_offset()),
        (Some(offset((1 << 40) + 2)), Some(offset((1 << 40) + 3)))
    );
    assert_eq!(batch.header.leader_epoch(), LeaderEpoch::from_wire(9));
    assert_eq!(batch.header.crc(), crc);
    assert!(batch.crc_is_valid());
}

#[test]
fn log_append_time_is_the_time_of_every_record() {
    let mut batch = builder().codec(Codec::Lz4).build().unwrap();
    let crc = batch.header.crc();
    batch.set_log_append_time(Timestamp::from_millis(5_000));
    assert_ne!(batch.header.crc(), crc);
    assert!(batch.crc_is_valid() && batch.header.attributes().is_log_append_time());
    assert_eq!(batch.header.attributes().codec(), Ok(Codec::Lz4));
    let decoded = DecodedBatch::new(&batch, 1 << 20).unwrap();
    let times: Vec<_> = decoded.iter().map(|record| record.unwrap().timestamp).collect();
    assert_eq!(times, [at(5_000); 3]);
    assert!(split_batches(batch.to_bytes(), &BatchLimits::log()).all(|batch| batch.is_ok()));
    // A producer may not say so, and its own times come back.
    batch.set_create_time();
    assert!(batch.crc_is_valid() && !batch.header.attributes().is_log_append_time());
    let decoded = DecodedBatch::new(&batch, 1 << 20).unwrap();
    assert!(decoded.iter().all(|record| record.unwrap().timestamp != at(5_000)));
}

#[test]
fn records_read_as_they_were_built_with_every_codec() {
    for codec in Codec::ALL {
        let mut batch = builder().codec(codec).build().unwrap();
        batch.set_base_offset_and_epoch(offset(100), LeaderEpoch::ZERO);
        let decoded = DecodedBatch::new(&batch, 1 << 20).unwrap();
        let records: Vec<_> = decoded.iter().map(Result::unwrap).collect();
        assert_eq!(records.iter().map(|r| r.offset.get()).collect::<Vec<_>>(), [100, 101, 102]);
        assert_eq!(records.iter().map(|r| r.timestamp).collect::<Vec<_>>(), [at(1_000), at(900), at(1_500)]);
        assert_eq!(records.iter().map(|r| r.key).collect::<Vec<_>>(), [Some(&b"k"[..]), None, Some(b"")]);
        assert_eq!(records.iter().map(|r| r.value).collect::<Vec<_>>(), [Some(&b"v"[..]), Some(b""), None]);
        let headers: Vec<_> = records[0].headers.iter().map(|h| (h.key, h.value)).collect();
        assert_eq!(headers, [(&b"a"[..], Some(&b"1"[..])), (b"a", None), (b"", Some(b""))]);
        assert_eq!((records[0].headers.len(), records[1].headers.is_empty()), (3, true));
        let report = validate_records(&batch, 1 << 20).unwrap();
        let expected = RecordsReport {
            record_count: 3,
            records_bytes: decoded.records_bytes(),
            without_key: vec![1],
            timestamps: Some(TimestampSpan { least_ms: 900, largest_ms: 1_500 }),
        };
        assert_eq!(report, expected);
        let too_large = validate_records(&batch, decoded.records_bytes() - 1).unwrap_err();
        assert!(
            matches!(too_large, RecordError::Decompress(crate::codec::Error::TooLarge { .. })),
            "{codec:?}"
        );
    }
}

#[test]
fn a_sequence_without_a_producer_id_says_nothing() {
    let mut batch = builder().build().unwrap();
    batch.header.set_producer(-1, -1, 0);
    batch.header.set_crc(batch.computed_crc());
    let mut bytes = batch.header.as_bytes().to_vec();
    bytes.extend_from_slice(&batch.body);
    let split: Vec<_> = split_batches(bytes.into(), &BatchLimits::client(1_000_000)).collect();
    assert_eq!(split.len(), 1);
    assert!(split[0].is_ok(), "{split:?}");
}

#[test]
fn every_disagreement_of_a_producers_batch_has_its_kafka_error() {
    use BatchErrorKind::{Corrupt, InvalidRecord, TooLarge, UnsupportedCodec};
    let good = builder().build().unwrap();
    let size = i32::try_from(good.size()).unwrap();
    type Change = Box<dyn Fn(&mut BatchHeader)>;
    let cases: Vec<(BatchErrorKind, Change)> = vec![
        (InvalidRecord, Box::new(|h| h.set_record_count(0))),
        (InvalidRecord, Box::new(|h| h.set_record_count(-1))),
        (InvalidRecord, Box::new(|h| h.set_record_count(2))),
        (InvalidRecord, Box::new(|h| h.set_last_offset_delta(i32::MAX))),
        (InvalidRecord, Box::new(|h| h.set_last_offset_delta(-1))),
        (InvalidRecord, Box::new(|h| h.set_base_offset(Offset::new(1).unwrap()))),
        (InvalidRecord, Box::new(|h| h.set_attributes(Attributes(Attributes::CONTROL)))),
        (InvalidRecord, Box::new(|h| h.set_attributes(Attributes(Attributes::TRANSACTIONAL)))),
        (InvalidRecord, Box::new(|h| h.set_producer(7, 0, -1))),
        (UnsupportedCodec, Box::new(|h| h.set_attributes(Attributes(5)))),
        (UnsupportedCodec, Box::new(|h| h.set_attributes(Attributes(7)))),
        (Corrupt, Box::new(|h| h.set_length(48))),
        (Corrupt, Box::new(|h| h.set_length(-1))),
        (Corrupt, Box::new(move |h| h.set_length(size - 11))),
        (TooLarge, Box::new(|h| h.set_length(i32::MAX))),
    ];
    for (index, (kind, change)) in cases.iter().enumerate() {
        assert_eq!(refused(&changed(&good, change)).kind(), *kind, "case {index}");
    }
    for (magic, kind) in [(0_u8, InvalidRecord), (1, InvalidRecord), (3, Corrupt), (255, Corrupt)] {
        let mut bytes = good.to_bytes().to_vec();
        bytes[16] = magic;
        assert_eq!(client(bytes.clone().into()).remove(0).unwrap_err().kind(), kind);
        assert_eq!(sent_batch(bytes.into(), 1 << 20).unwrap_err().kind(), kind);
    }
    // A message of format 1 is shorter than a header of format 2.
    let mut old = vec![0; 34];
    (old[11], old[16]) = (22, 1);
    assert_eq!(client(old.clone().into()).remove(0).unwrap_err().kind(), InvalidRecord);
    assert_eq!(sent_batch(old.into(), 1 << 20), Err(BatchError::Magic { magic: 1 }));
    // A producer that says something of itself, and not enough for it to matter.
    for (id, epoch, sequence) in [(-2, 3, 5), (7, -1, 0), (-1, 0, 0)] {
        let batch = changed(&good, |h| h.set_producer(id, epoch, sequence));
        assert_eq!(client(batch.to_bytes()), [Ok(batch.clone())]);
        assert!(split_batches(batch.to_bytes(), &BatchLimits::log()).all(|batch| batch.is_ok()));
    }
    let limits = BatchLimits::client(good.size() - 1);
    let error = split_batches(good.to_bytes(), &limits).next().unwrap().unwrap_err();
    assert_eq!(error, BatchError::TooLarge { bytes: good.size(), bytes_max: good.size() - 1 });
}

#[test]
fn a_producer_sends_one_whole_batch_and_what_ends_early_is_none() {
    let good = builder().build().unwrap();
    let bytes = good.to_bytes();
    let sent = |parts: &[&[u8]]| sent_batch(parts.concat().into(), 1 << 20);
    let none = Err(BatchError::NotOne { count: 0 });
    for cut in [0, 11, 16, 40, 70, bytes.len() - 1] {
        assert_eq!(sent(&[&bytes[..cut]]), none, "{cut} bytes");
    }
    assert_eq!(sent(&[&bytes]), Ok(good.clone()));
    // Behind it: nothing that could be one, one that ends early, one that cannot be, and one.
    assert_eq!(sent(&[&bytes, &[0; 4]]), Ok(good.clone()));
    assert_eq!(sent(&[&bytes, &bytes[..40]]), Ok(good));
    assert_eq!(sent(&[&bytes, &[0; 12]]), Err(BatchError::Length { length: 0 }));
    assert_eq!(sent(&[&bytes, &bytes]), Err(BatchError::NotOne { count: 2 }));
    let mut huge = bytes.to_vec();
    huge[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    assert_eq!(sent(&[&huge]), none);
}

#[test]
fn a_compressed_batch_whose_stream_is_another_codecs_is_found_without_decompression() {
    for codec in Codec::ALL {
        let batch = builder().codec(codec).build().unwrap();
        assert!(check_plain_records(&batch).is_ok(), "{codec:?}");
        assert!(codec == Codec::None || !codec.begins(b""), "{codec:?}");
    }
    let plain = builder().build().unwrap();
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
        let lie = changed(&plain, |h| h.set_attributes(Attributes(codec.id().into())));
        assert!(matches!(check_plain_records(&lie), Err(RecordError::Decompress(_))), "{codec:?}");
    }
    assert!(
        Codec::Zstd.begins(&[0x5f, 0x2a, 0x4d, 0x18, 0]) && !Codec::Zstd.begins(&[0x4f, 0x2a, 0x4d, 0x18])
    );
}

#[test]
fn nothing_follows_a_refused_batch() {
    let good = builder().build().unwrap().to_bytes();
    let mut bad = good.to_vec();
    bad[70] ^= 1;
    let mut splitter = split_batches([&good[..], &bad, &good].concat().into(), &BatchLimits::client(1 << 20));
    assert!(splitter.next().unwrap().is_ok());
    assert_eq!(splitter.position(), good.len());
    assert_eq!(splitter.next().unwrap().unwrap_err().kind(), BatchErrorKind::Corrupt);
    assert!(splitter.next().is_none());
}

#[test]
fn a_log_may_hold_what_compaction_left() {
    let batch = BatchBuilder::new(offset(50)).last_offset_delta(9).build().unwrap();
    let split: Vec<_> = split_batches(batch.to_bytes(), &BatchLimits::log()).map(Result::unwrap).collect();
    assert_eq!((split[0].header.record_count(), split[0].header.end_offset()), (0, Some(offset(60))));
    assert_eq!(DecodedBatch::new(&batch, 100).unwrap().iter().count(), 0);
    let record = NewRecord { key: Some(b"k"), ..NewRecord::default() };
    let gap = BatchBuilder::new(offset(50))
        .record_at(3, &record)
        .last_offset_delta(9)
        .codec(Codec::Snappy)
        .build()
        .unwrap();
    let decoded = DecodedBatch::new(&gap, 100).unwrap();
    let record = decoded.iter().next().unwrap().unwrap();
    assert_eq!((record.offset, record.timestamp), (offset(53), None));
    assert!(matches!(
        validate_records(&gap, 100),
        Err(RecordError::OffsetDelta { index: 0, offset_delta: 3 })
    ));
    assert!(matches!(BatchBuilder::new(Offset::ZERO).build(), Err(BuildError::Empty)));
    assert!(matches!(
        BatchBuilder::new(Offset::MAX).record(&NewRecord::default()).build(),
        Err(BuildError::Range { .. })
    ));
}

#[test]
fn control_batches_are_kafkas() {
    let batch = control_batch(
        offset(9),
        LeaderEpoch::ZERO,
        (ProducerId(4), ProducerEpoch(2)),
        ControlKind::Abort,
        17,
        Timestamp::from_millis(5),
    )
    .unwrap();
    assert_eq!(batch.header.attributes().0, 0x30);
    assert_eq!((batch.header.base_sequence(), batch.header.record_count()), (None, 1));
    assert_eq!(control_kind(&batch).unwrap(), (ControlKind::Abort, 17));
    let decoded = DecodedBatch::new(&batch, 100).unwrap();
    let record = decoded.iter().next().unwrap().unwrap();
    assert_eq!((record.key, record.value), (Some(&[0, 0, 0, 0][..]), Some(&[0, 0, 0, 0, 0, 17][..])));
    assert!(split_batches(batch.to_bytes(), &BatchLimits::log()).all(|batch| batch.is_ok()));
    assert_eq!(refused(&batch), BatchError::Control);
}

#[test]
fn a_wrong_count_inside_is_found_by_looking() {
    let good = builder().build().unwrap();
    let fewer = changed(&good, |h| {
        h.set_record_count(2);
        h.set_last_offset_delta(1);
    });
    assert!(client(fewer.to_bytes())[0].is_ok(), "the header agrees with itself");
    assert!(matches!(validate_records(&fewer, 1000), Err(RecordError::Trailing { record_count: 2, .. })));
    let more = changed(&good, |h| {
        h.set_record_count(4);
        h.set_last_offset_delta(3);
    });
    assert!(matches!(validate_records(&more, 1000), Err(RecordError::Corrupt { index: 3, .. })));
}

#[test]
fn the_records_say_where_their_timestamps_lie_and_not_the_header() {
    // The deltas of the builder's records: 0, −100, 500.
    for (base, stated, span) in [
        (1_000, 1_500, Some((900, 1_500))),
        (1_000, 0, Some((900, 1_500))),
        (1_000, i64::MAX, Some((900, 1_500))),
        // One of them is −1, which is none.
        (99, 599, Some((99, 599))),
        (-1, 499, Some((-101, 499))),
        (-501, -1, Some((-601, -501))),
        (i64::MAX, i64::MAX, Some((i64::MIN + 499, i64::MAX))),
        (i64::MIN, 0, Some((i64::MIN, i64::MAX - 99))),
    ] {
        let span = span.map(|(least_ms, largest_ms)| TimestampSpan { least_ms, largest_ms });
        let batch = changed(&builder().build().unwrap(), |header| {
            header.set_base_timestamp(base);
            header.set_max_timestamp(stated);
        });
        assert_eq!(check_plain_records(&batch).unwrap(), span, "{base}");
        assert_eq!(validate_records(&batch, 1_000).unwrap().timestamps, span, "{base}");
        let mut stored = batch.clone();
        stored.set_max_timestamp(span);
        assert_eq!(stored.header.max_timestamp_raw(), span.map_or(-1, |span| span.largest_ms.max(-1)));
        assert!(stored.crc_is_valid());
        assert_eq!(stored == batch, stored.header.max_timestamp_raw() == stated, "nothing else is touched");
    }
    let none = BatchBuilder::new(Offset::ZERO).record(&NewRecord::default()).build().unwrap();
    assert_eq!(check_plain_records(&none).unwrap(), None);
    let compressed = builder().codec(Codec::Lz4).build().unwrap();
    let stated = changed(&compressed, |header| header.set_max_timestamp(7));
    let span = TimestampSpan { least_ms: 7, largest_ms: 1_000 };
    assert_eq!(check_plain_records(&stated).unwrap(), Some(span), "it is not decompressed");
}

#[test]
fn one_flipped_bit_anywhere_under_the_checksum_is_found() {
    let bytes = builder().codec(Codec::Gzip).build().unwrap().to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let accepted = client(flipped.into()).into_iter().all(|batch| batch.is_ok());
        // The leader epoch is outside of the checksum and set by the leader; a base offset other than 0 is refused.
        assert_eq!(accepted, (12..16).contains(&(bit / 8)), "bit {bit}");
    }
    for cut in 1..bytes.len() {
        assert!(client(bytes.slice(..cut))[0].is_err(), "cut at {cut}");
    }
}

fn any_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..40))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_records_round_trip(
        records in prop::collection::vec((prop::option::of(0..=i64::MAX as u64), any_bytes(), any_bytes(), prop::collection::vec(("[a-z]{0,5}", any_bytes()), 0..4)), 1..20),
        codec in prop::sample::select(&Codec::ALL[..]),
    ) {
        let mut builder = BatchBuilder::new(Offset::ZERO).codec(codec);
        for (time, key, value, headers) in &records {
            let headers: Vec<_> = headers.iter().map(|(key, value)| NewHeader { key, value: value.as_deref() }).collect();
            builder = builder.record(&NewRecord {
                timestamp: time.map(Timestamp::from_millis), key: key.as_deref(), value: value.as_deref(), headers: &headers,
            });
        }
        let batch = builder.build().unwrap();
        let split = client(batch.to_bytes()).remove(0).unwrap();
        let decoded = DecodedBatch::new(&split, 1 << 20).unwrap();
        for (record, (time, key, value, headers)) in decoded.iter().zip(&records) {
            let record = record.unwrap();
            prop_assert_eq!(record.timestamp, time.map(Timestamp::from_millis));
            prop_assert_eq!(record.key, key.as_deref());
            prop_assert_eq!(record.value, value.as_deref());
            let read: Vec<_> = record.headers.iter().map(|h| (String::from_utf8(h.key.to_vec()).unwrap(), h.value.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(&read, headers);
        }
        prop_assert_eq!(validate_records(&split, 1 << 20).unwrap().record_count as usize, records.len());
    }

    #[test]
    fn garbage_records_never_panic(body in prop::collection::vec(any::<u8>(), 0..200), count in any::<i32>(), delta in any::<i32>(), base in any::<i64>(), attributes in 0_i16..64) {
        let mut header = BatchHeader::ZEROED;
        header.set_length(i32::try_from(body.len() + 49).unwrap());
        header.set_record_count(count);
        header.set_last_offset_delta(delta);
        header.set_base_timestamp(base);
        header.set_attributes(Attributes(attributes));
        let mut batch = RawBatch { header, body: body.into() };
        batch.header.set_crc(batch.computed_crc());
        let _ = client(batch.to_bytes());
        let _ = validate_records(&batch, 1000);
        let _ = control_kind(&batch);
    }
}

#[test]
fn of_millions_of_bad_records_a_thousand_are_named() {
    let record = NewRecord { timestamp: at(7_000), key: None, value: None, headers: &[] };
    let many = (0..5_000).fold(BatchBuilder::new(Offset::ZERO), |batch, _| batch.record(&record));
    let batch = many.codec(Codec::Zstd).build().unwrap();
    let named = records_of_times(&batch, 1 << 20, |time| time > 6_000).unwrap();
    assert_eq!((named.len(), named[0], named[999]), (1_000, 0, 999));
    let report = validate_records(&batch, 1 << 20).unwrap();
    assert_eq!((report.record_count, report.without_key.len()), (5_000, 1_000));
    assert!(records_of_times(&batch, 1 << 20, |time| time > 7_000).unwrap().is_empty());
}
