//! The records of `__consumer_offsets`: equal to Apache Kafka's own bytes (`tests/golden/README.md`), and safe against any.

use bytes::Bytes;
use proptest::prelude::*;
use tidelog_wire::{
    ALLOCATED_PER_BYTE_MAX, DecodeError, EncodeError, Str, Uuid,
    coordinator::{
        ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataValue, GroupMetadataKey,
        GroupMetadataValue, Key, LegacyOffsetCommitValue, MemberMetadata, OffsetCommitKey, OffsetCommitValue,
        RECORDS, RecordSpec, RecordValue as _, Value,
    },
};

use crate::{
    allocation::allocated,
    hostile::{self, SHARING_BYTES},
    walk::{self, Random},
};

const GOLDEN: &str = include_str!("../golden/coordinator-4.3.1.txt");

fn bytes_of(hex: &str) -> Bytes {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Every kind of record with every version of its value.
fn all_values() -> impl Iterator<Item = (&'static RecordSpec, i16)> {
    RECORDS.iter().flat_map(|record| record.versions.iter().map(move |version| (record, version)))
}

fn random_key(record: &RecordSpec, seed: u64) -> Vec<u8> {
    [record.record_type.to_be_bytes().to_vec(), walk::structure(record.key, 0, false, seed)].concat()
}

fn random_value(record: &RecordSpec, version: i16, seed: u64) -> Vec<u8> {
    let flexible = record.flexible.contains(version);
    [version.to_be_bytes().to_vec(), walk::structure(record.value, version, flexible, seed)].concat()
}

/// Decodes, and checks what it allocated.
fn bounded<T>(bytes: &[u8], decode: impl FnOnce(Bytes) -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    let shared = Bytes::copy_from_slice(bytes);
    let (answer, spent) = allocated(|| decode(shared));
    let allowed = bytes.len() * ALLOCATED_PER_BYTE_MAX + SHARING_BYTES;
    assert!(spent <= allowed, "{spent} bytes allocated for {}: {bytes:?}", bytes.len());
    answer
}

fn key(bytes: &[u8]) -> Result<Key, DecodeError> {
    bounded(bytes, Key::decode)
}

fn value(record_type: i16, bytes: &[u8]) -> Result<Value, DecodeError> {
    bounded(bytes, |bytes| Value::decode(record_type, bytes))
}

#[test]
fn every_record_and_version_has_the_bytes_of_kafkas_own_classes() {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for line in GOLDEN.lines() {
        let [name, number, part, hex] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let record = RECORDS.iter().find(|record| record.name == name).unwrap();
        let (number, bytes) = (number.parse::<i16>().unwrap(), bytes_of(hex));
        if part == "key" {
            assert_eq!(number, record.record_type, "{name}");
            let decoded = key(&bytes).unwrap();
            assert_eq!(decoded.record_type(), number);
            assert_eq!(decoded.encode().unwrap(), bytes, "{name} key");
            keys.push(number);
        } else {
            let decoded = value(record.record_type, &bytes).unwrap();
            assert_eq!(decoded.encode(number).unwrap(), bytes, "{name} {number}");
            values.push((record.record_type, number));
        }
    }
    for record in RECORDS {
        assert_eq!(keys.iter().filter(|found| **found == record.record_type).count(), 2, "{}", record.name);
    }
    for (record, version) in all_values() {
        let count = values.iter().filter(|found| **found == (record.record_type, version)).count();
        assert_eq!(count, 2, "{} {version}", record.name);
    }
    assert_eq!(
        (keys.len(), values.len()),
        (20, 36),
        "no line is of a record or version that the table lacks"
    );
}

#[test]
fn the_types_are_those_of_kafka() {
    let types: Vec<_> = RECORDS.iter().map(|record| (record.record_type, record.versions.max)).collect();
    assert_eq!(
        types,
        [(0, 0), (1, 4), (2, 4), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (16, 0)],
        "type and highest version of the value"
    );
}

#[test]
fn an_offset_commit_is_written_field_by_field() {
    let group = OffsetCommitKey { group: "g".into(), topic: "t".into(), partition: 7 };
    let current = Key::OffsetCommit(group.clone());
    assert_eq!(&current.encode().unwrap()[..], [0, 1, 0, 1, b'g', 0, 1, b't', 0, 0, 0, 7]);
    assert_eq!(
        &Key::LegacyOffsetCommit(group).encode().unwrap()[..2],
        [0, 0],
        "the old type, the same fields"
    );

    let commit = OffsetCommitValue {
        offset: 0x0102,
        leader_epoch: 3,
        metadata: "m".into(),
        commit_timestamp: 5,
        expire_timestamp: 6,
        topic_id: Uuid([9; 16]),
    };
    let offset = [0, 0, 0, 0, 0, 0, 1, 2];
    let (five, six) = ([0, 0, 0, 0, 0, 0, 0, 5], [0, 0, 0, 0, 0, 0, 0, 6]);
    let expected: [Vec<u8>; 5] = [
        [&[0, 0][..], &offset, &[0, 1, b'm'], &five].concat(),
        [&[0, 1][..], &offset, &[0, 1, b'm'], &five, &six].concat(),
        [&[0, 2][..], &offset, &[0, 1, b'm'], &five].concat(),
        [&[0, 3][..], &offset, &[0, 0, 0, 3], &[0, 1, b'm'], &five].concat(),
        [&[0, 4][..], &offset, &[0, 0, 0, 3], &[2, b'm'], &five, &[1, 0, 16], &[9; 16]].concat(),
    ];
    for (version, expected) in (0_i16..).zip(&expected) {
        assert_eq!(commit.encode(version).unwrap(), expected, "version {version}");
    }
    // What a version lacks is Kafka's default when it is read.
    assert_eq!(
        OffsetCommitValue::decode(Bytes::from(expected[0].clone())),
        Ok(OffsetCommitValue {
            leader_epoch: -1,
            expire_timestamp: -1,
            topic_id: Uuid::ZERO,
            ..commit.clone()
        })
    );
    assert_eq!(
        Value::decode(0, Bytes::from(expected[0].clone())),
        Ok(Value::LegacyOffsetCommit(LegacyOffsetCommitValue {
            offset: 0x0102,
            metadata: "m".into(),
            commit_timestamp: 5
        }))
    );
}

#[test]
fn a_classic_group_is_read_back_as_it_was() {
    let group = GroupMetadataValue {
        protocol_type: "consumer".into(),
        generation: 4,
        protocol: None,
        leader: Some("m-1".into()),
        current_state_timestamp: 1_700_000_000_000,
        members: vec![MemberMetadata {
            member_id: "m-1".into(),
            group_instance_id: Some("i".into()),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            rebalance_timeout: 300_000,
            session_timeout: 10_000,
            subscription: Bytes::from_static(&[1, 2]),
            assignment: Bytes::new(),
        }],
    };
    for version in 3..=4 {
        assert_eq!(GroupMetadataValue::decode(group.encode(version).unwrap()), Ok(group.clone()));
    }
    let key = Key::GroupMetadata(GroupMetadataKey { group: "grün".into() });
    assert_eq!(Key::decode(key.encode().unwrap()), Ok(key));
}

#[test]
fn a_classic_member_of_a_consumer_group_stands_in_a_tagged_field_after_a_byte_of_its_presence() {
    let mut member = ConsumerGroupMemberMetadataValue {
        instance_id: None,
        rack_id: None,
        subscribed_topic_regex: None,
        server_assignor: None,
        classic_member_metadata: None,
        ..Default::default()
    };
    // As Kafka's own classes write it: null is said, since a field that is left out is an empty structure to Kafka, a classic member.
    let plain = member.encode(0).unwrap();
    assert_eq!(&plain[..], [0, 0, 0, 0, 1, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 1, 0, 1, 0]);
    assert_eq!(ConsumerGroupMemberMetadataValue::decode(plain.clone()), Ok(member.clone()));
    let left_out = [&plain[..13], &[0]].concat();
    let decoded = ConsumerGroupMemberMetadataValue::decode(Bytes::from(left_out)).unwrap();
    assert_eq!(decoded.classic_member_metadata, Some(ClassicMemberMetadata::default()));
    member.classic_member_metadata = Some(ClassicMemberMetadata {
        session_timeout_ms: 1,
        supported_protocols: vec![ClassicProtocol { name: "r".into(), metadata: Bytes::new() }],
    });
    let classic = member.encode(0).unwrap();
    assert_eq!(&classic[..13], &plain[..13]);
    assert_eq!(&classic[13..], [1, 0, 11, 1, 0, 0, 0, 1, 2, 2, b'r', 1, 0, 0]);
    assert_eq!(ConsumerGroupMemberMetadataValue::decode(classic), Ok(member));
}

#[test]
fn unknown_types_and_versions_are_named() {
    // A share group's metadata: Kafka writes it to the same topic.
    assert_eq!(key(&[0, 9, 0, 1, b'g']), Ok(Key::Unknown(9)));
    assert_eq!(key(&[0xff, 0xff]), Ok(Key::Unknown(-1)));
    assert_eq!(Key::Unknown(9).record_type(), 9);
    assert_eq!(Key::Unknown(9).encode(), Err(EncodeError::UnknownRecordType { record_type: 9 }));
    assert_eq!(value(9, &[0, 0]), Err(DecodeError::UnknownRecordType { record_type: 9 }));
    for version in [5_i16, -1, i16::MAX] {
        let error = DecodeError::UnsupportedRecordVersion { value: "OffsetCommitValue", version };
        assert_eq!(value(1, &version.to_be_bytes()), Err(error));
        let error = EncodeError::UnsupportedRecordVersion { value: "OffsetCommitValue", version };
        assert_eq!(OffsetCommitValue::default().encode(version), Err(error));
    }
    assert_eq!(key(&[1]), Err(DecodeError::Truncated { needed: 2, remaining: 1 }));
    assert_eq!(value(1, &[]), Err(DecodeError::Truncated { needed: 2, remaining: 0 }));
}

#[test]
fn a_string_beyond_kafkas_longest_is_not_written() {
    let long = Str::from("x".repeat(0x8000));
    let key = Key::GroupMetadata(GroupMetadataKey { group: long.clone() });
    assert_eq!(key.encode(), Err(EncodeError::TooLong { field: "group", length: 0x8000 }));
    let commit = OffsetCommitValue { metadata: long, ..Default::default() };
    for version in 0..=4 {
        let error = EncodeError::TooLong { field: "metadata", length: 0x8000 };
        assert_eq!(commit.encode(version), Err(error), "version {version}");
    }
}

#[test]
fn every_truncation_and_every_trailing_byte_is_an_error() {
    for seed in 0..3 {
        for record in RECORDS {
            let mut bytes = random_key(record, seed);
            assert!((0..bytes.len()).all(|length| key(&bytes[..length]).is_err()), "{} key", record.name);
            bytes.push(0);
            assert_eq!(key(&bytes), Err(DecodeError::TrailingBytes { count: 1 }));
        }
        for (record, version) in all_values() {
            let mut bytes = random_value(record, version, seed);
            let decoded = |bytes: &[u8]| value(record.record_type, bytes);
            assert!(
                (0..bytes.len()).all(|length| decoded(&bytes[..length]).is_err()),
                "{} {version}",
                record.name
            );
            bytes.push(0);
            assert_eq!(decoded(&bytes), Err(DecodeError::TrailingBytes { count: 1 }), "{}", record.name);
        }
    }
}

#[test]
fn huge_and_negative_lengths_at_every_place_take_no_memory() {
    for (record, version) in all_values() {
        let bytes = random_value(record, version, 1);
        for place in 0..bytes.len() {
            for length in [[0x7f, 0xff, 0xff, 0xff], [0xff, 0xff, 0xff, 0xfe], [0xff, 0xff, 0xff, 0x0f]] {
                let changed = [&bytes[..place], &length, bytes.get(place + 4..).unwrap_or_default()].concat();
                let _ = value(record.record_type, &changed);
            }
        }
    }
}

#[test]
fn no_element_takes_more_memory_than_its_shortest_encoding_pays_for() {
    let mut checked = 0;
    for (record, version) in all_values() {
        let mut found = Vec::new();
        hostile::arrays(record.value, version, &mut found);
        for (spec, field, element, size) in found {
            let least = walk::bytes_min(element, false, record.flexible.contains(version), version).max(1);
            assert!(size <= ALLOCATED_PER_BYTE_MAX * least, "{}.{field}: {size} for {least}", spec.name);
            checked += 1;
        }
    }
    assert_eq!(checked, 19);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_written_again(seed: u64) {
        for record in RECORDS {
            let bytes = random_key(record, seed);
            prop_assert_eq!(&key(&bytes).unwrap().encode().unwrap()[..], &bytes[..]);
        }
        for (record, version) in all_values() {
            let bytes = random_value(record, version, seed);
            let decoded = value(record.record_type, &bytes).unwrap();
            let again = decoded.encode(version).unwrap();
            prop_assert_eq!(value(record.record_type, &again).unwrap(), decoded);
            // The walk also writes tagged fields that equal their default, which no encoder does; else nothing differs.
            prop_assert!(again == bytes || again.len() < bytes.len() && record.flexible.contains(version));
        }
    }

    #[test]
    fn random_and_changed_bytes_never_panic_nor_take_memory(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        seed: u64,
    ) {
        let mut random = Random(seed);
        for (record, version) in all_values() {
            let _ = key(&[&record.record_type.to_be_bytes()[..], &bytes].concat());
            let _ = value(record.record_type, &[&version.to_be_bytes()[..], &bytes].concat());
            let mut changed = random_value(record, version, seed);
            for _ in 0..1 + random.below(4) {
                let place = random.below(changed.len());
                changed[place] = random.next().to_be_bytes()[0];
            }
            let _ = value(record.record_type, &changed);
        }
    }
}
