//! Record batches against the `kafka-protocol` crate, both ways and for every codec.

use bytes::{Bytes, BytesMut};
use kafka_protocol::{
    indexmap::IndexMap,
    protocol::StrBytes,
    records::{
        Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
    },
};
use tidelog_format::{
    batch::{BatchBuilder, BatchLimits, DecodedBatch, NewHeader, NewRecord, split_batches, validate_records},
    codec::Codec,
};
use tidelog_types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Timestamp};

const CODECS: [(Codec, Compression); 5] = [
    (Codec::None, Compression::None),
    (Codec::Gzip, Compression::Gzip),
    (Codec::Snappy, Compression::Snappy),
    (Codec::Lz4, Compression::Lz4),
    (Codec::Zstd, Compression::Zstd),
];

type Sample = (u64, Option<Bytes>, Option<Bytes>, Vec<(&'static str, Option<Bytes>)>);

/// Null, empty and full keys, values and header values, and one value larger than a block of any codec.
fn samples() -> Vec<Sample> {
    let empty = || Some(Bytes::new());
    let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let large: Bytes = (0..70_000_u32).flat_map(u32::to_be_bytes).collect();
    vec![
        (1_000, text("key"), text("value"), vec![("a", text("1")), ("b", None), ("c", empty())]),
        (999, None, None, vec![]),
        (2_000_000_000_000, empty(), empty(), vec![("", empty())]),
        (1_001, text("large"), Some(large), vec![]),
    ]
}

#[test]
fn batches_of_ours_are_read_by_kafka_protocol() {
    for (codec, compression) in CODECS {
        let mut builder = BatchBuilder::new(Offset::new(40).unwrap())
            .leader_epoch(LeaderEpoch::from_wire(6).unwrap())
            .producer(ProducerId(11), ProducerEpoch(2), 30)
            .transactional()
            .codec(codec);
        for (time, key, value, headers) in &samples() {
            let headers: Vec<_> =
                headers.iter().map(|(key, value)| NewHeader { key, value: value.as_deref() }).collect();
            builder = builder.record(&NewRecord {
                timestamp: Some(Timestamp::from_millis(*time)),
                key: key.as_deref(),
                value: value.as_deref(),
                headers: &headers,
            });
        }
        let mut bytes = builder.build().unwrap().to_bytes();
        let set = RecordBatchDecoder::decode(&mut bytes).unwrap();
        assert_eq!((set.compression, set.version, set.records.len()), (compression, 2, 4), "{codec:?}");
        for (index, (record, (time, key, value, headers))) in set.records.iter().zip(samples()).enumerate() {
            let index = i32::try_from(index).unwrap();
            assert_eq!((record.offset, record.sequence), (40 + i64::from(index), 30 + index));
            assert_eq!(
                (record.producer_id, record.producer_epoch, record.partition_leader_epoch),
                (11, 2, 6)
            );
            assert!(
                record.transactional && !record.control && record.timestamp_type == TimestampType::Creation
            );
            assert_eq!((record.timestamp, &record.key, &record.value), (time.cast_signed(), &key, &value));
            let read: Vec<_> =
                record.headers.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
            assert_eq!(read, headers);
        }
    }
}

#[test]
fn batches_of_kafka_protocol_are_read_by_us() {
    for (codec, compression) in CODECS {
        let records: Vec<_> = samples()
            .into_iter()
            .enumerate()
            .map(|(index, (time, key, value, headers))| Record {
                transactional: true,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: 6,
                producer_id: 11,
                producer_epoch: 2,
                timestamp_type: TimestampType::Creation,
                offset: i64::try_from(index).unwrap(),
                sequence: 30 + i32::try_from(index).unwrap(),
                timestamp: time.cast_signed(),
                key,
                value,
                headers: headers
                    .into_iter()
                    .map(|(key, value)| (StrBytes::from_static_str(key), value))
                    .collect::<IndexMap<_, _>>(),
            })
            .collect();
        let mut bytes = BytesMut::new();
        RecordBatchEncoder::encode(&mut bytes, &records, &RecordEncodeOptions { version: 2, compression })
            .unwrap();
        let batches: Vec<_> =
            split_batches(bytes.freeze(), &BatchLimits::client(1 << 20)).map(Result::unwrap).collect();
        assert_eq!(batches.len(), 1);
        let header = batches[0].header;
        assert_eq!(header.attributes().codec(), Ok(codec));
        assert_eq!(
            (header.producer_id(), header.producer_epoch()),
            (Some(ProducerId(11)), Some(ProducerEpoch(2)))
        );
        assert_eq!((header.base_sequence(), header.last_sequence()), (Some(30), Some(33)));
        assert_eq!(header.max_timestamp(), Some(Timestamp::from_millis(2_000_000_000_000)));
        assert_eq!(validate_records(&batches[0], 1 << 20).unwrap().without_key, [1]);
        let decoded = DecodedBatch::new(&batches[0], 1 << 20).unwrap();
        for (record, (time, key, value, headers)) in decoded.iter().zip(samples()) {
            let record = record.unwrap();
            assert_eq!(record.timestamp, Some(Timestamp::from_millis(time)));
            assert_eq!((record.key, record.value), (key.as_deref(), value.as_deref()));
            let read: Vec<_> = record.headers.iter().map(|header| (header.key, header.value)).collect();
            let expected: Vec<_> =
                headers.iter().map(|(key, value)| (key.as_bytes(), value.as_deref())).collect();
            assert_eq!(read, expected);
        }
    }
}
