//! Bytes that nobody vouches for: an error at worst, and never more memory than the frame's size allows.

use bytes::Bytes;
use proptest::prelude::*;
use tidelog_wire::{
    ALLOCATED_PER_BYTE_MAX, ApiKey, DECODED_BYTES_MAX, DecodeError, Kind, Message, RequestBody,
    RequestHeader, ResponseBody, StructSpec, messages,
};

use crate::{
    allocation::allocated,
    walk::{self, Random, Role},
};

/// What sharing a frame costs once: the counter behind `Bytes`.
pub(crate) const SHARING_BYTES: usize = 64;

/// Decodes, checks what it allocated, and says whether it was a message.
fn decodes(api: ApiKey, version: i16, role: Role, bytes: &[u8]) -> Result<(), DecodeError> {
    let body = Bytes::copy_from_slice(bytes);
    let (answer, bytes_allocated) = allocated(|| match role {
        Role::Request => RequestBody::from_bytes(api, body, version).map(drop),
        Role::Response => ResponseBody::from_bytes(api, body, version).map(drop),
    });
    let allowed = bytes.len() * ALLOCATED_PER_BYTE_MAX + SHARING_BYTES;
    assert!(
        bytes_allocated <= allowed,
        "{api} {version} {role:?}: {bytes_allocated} bytes allocated for {}: {bytes:?}",
        bytes.len()
    );
    answer
}

#[test]
fn every_truncation_is_an_error() {
    for (api, version, role) in walk::all_messages() {
        for seed in 0..3 {
            let bytes = walk::message(api, version, role, seed);
            assert_eq!(decodes(api, version, role, &bytes), Ok(()), "{api} {version} {role:?} seed {seed}");
            for length in 0..bytes.len() {
                let answer = decodes(api, version, role, &bytes[..length]);
                assert!(
                    answer.is_err(),
                    "{api} {version} {role:?} seed {seed}: {length} of {} bytes",
                    bytes.len()
                );
            }
        }
    }
}

#[test]
fn every_trailing_byte_is_an_error() {
    for (api, version, role) in walk::all_messages() {
        let mut bytes = walk::message(api, version, role, 4);
        bytes.extend([0, 0]);
        assert_eq!(
            decodes(api, version, role, &bytes),
            Err(DecodeError::TrailingBytes { count: 2 }),
            "{api} {version}"
        );
    }
}

#[test]
fn huge_and_negative_lengths_at_every_place_take_no_memory() {
    for (api, version, role) in walk::all_messages() {
        for seed in 0..2 {
            let bytes = walk::message(api, version, role, seed);
            for place in 0..bytes.len() {
                for length in [[0x7f, 0xff, 0xff, 0xff], [0xff, 0xff, 0xff, 0xfe], [0x80, 0, 0, 0]] {
                    let mut changed = bytes.clone();
                    changed.truncate(place);
                    changed.extend(length);
                    changed.extend(bytes.iter().skip(place + 4));
                    let _ = decodes(api, version, role, &changed);
                }
                // The same as compact lengths: 2^31 - 1, 2^32 - 1, and one of more than 32 bits.
                for length in [&[0xff, 0xff, 0xff, 0xff, 7][..], &[0xff, 0xff, 0xff, 0xff, 15], &[0xff; 6]] {
                    let mut changed = bytes.clone();
                    changed.splice(place..=place, length.iter().copied());
                    let _ = decodes(api, version, role, &changed);
                }
            }
        }
    }
}

#[test]
fn a_count_is_refused_by_what_is_left_of_the_frame() {
    // Fetch 4 with 2^31 - 1 topics in 21 bytes: 206 GB to a decoder that believes it.
    let mut fetch = [0xff; 4].to_vec();
    fetch.extend([0; 13]);
    fetch.extend([0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(fetch.len(), 21);
    assert_eq!(
        decodes(ApiKey::Fetch, 4, Role::Request, &fetch),
        Err(DecodeError::CountTooLarge { field: "topics", count: 0x7fff_ffff, remaining: 0 })
    );
    // Negative, but not null.
    fetch[17..].copy_from_slice(&[0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(
        decodes(ApiKey::Fetch, 4, Role::Request, &fetch),
        Err(DecodeError::NegativeLength { field: "topics", length: -2 })
    );
    // Null where this version has none.
    fetch[17..].copy_from_slice(&[0xff; 4]);
    assert_eq!(
        decodes(ApiKey::Fetch, 4, Role::Request, &fetch),
        Err(DecodeError::UnexpectedNull { field: "topics" })
    );
}

#[test]
fn the_least_size_of_an_element_bounds_the_count() {
    // Metadata 0: names of at least two bytes, five bytes left.
    for (count, error) in [
        (3, DecodeError::CountTooLarge { field: "topics", count: 3, remaining: 5 }),
        (2, DecodeError::TrailingBytes { count: 1 }),
    ] {
        assert_eq!(decodes(ApiKey::Metadata, 0, Role::Request, &[0, 0, 0, count, 0, 0, 0, 0, 0]), Err(error));
    }
}

#[test]
fn nested_arrays_together_stay_within_the_allowance() {
    // OffsetFetch 8 holds groups that hold topics, of three bytes each at least: 32 and 24 times that in memory. Each
    // level claims all that is left of the frame, which either may alone, and both together may not.
    let mut bytes = Vec::new();
    let claim = |bytes: &mut Vec<u8>, count: u32| {
        let mut encoded = count + 1;
        while encoded > 127 {
            bytes.push(u8::try_from(encoded & 127).unwrap() | 128);
            encoded >>= 7;
        }
        bytes.push(u8::try_from(encoded).unwrap());
    };
    claim(&mut bytes, 99_000); // groups
    bytes.push(1); // group id
    claim(&mut bytes, 99_000); // topics
    bytes.resize(300_000, 0);
    let topics = 99_000 * size_of::<messages::offset_fetch::OffsetFetchRequestTopics>();
    let groups = 99_000 * size_of::<messages::offset_fetch::OffsetFetchRequestGroup>();
    let allowance = 300_000 * ALLOCATED_PER_BYTE_MAX - groups;
    assert!(topics > allowance);
    assert_eq!(
        decodes(ApiKey::OffsetFetch, 8, Role::Request, &bytes),
        Err(DecodeError::AllocationTooLarge { field: "topics", needed: topics, allowance })
    );
}

#[test]
fn an_absolute_limit_stands_above_the_allowance() {
    // Names of no bytes: 32 bytes of memory for each byte of the frame.
    let count = 5_000_000_usize;
    let mut bytes = Vec::new();
    let mut encoded = count + 1;
    while encoded > 127 {
        bytes.push(u8::try_from(encoded & 127).unwrap() | 128);
        encoded >>= 7;
    }
    bytes.push(u8::try_from(encoded).unwrap());
    bytes.resize(bytes.len() + count, 1);
    bytes.extend([0, 0, 0, 0, 0]);
    let needed = count * 32;
    assert!(needed > DECODED_BYTES_MAX);
    assert_eq!(
        decodes(ApiKey::DeleteTopics, 4, Role::Request, &bytes),
        Err(DecodeError::AllocationTooLarge { field: "topic_names", needed, allowance: DECODED_BYTES_MAX })
    );
}

pub(crate) fn arrays(
    spec: &'static StructSpec,
    version: i16,
    found: &mut Vec<(&'static StructSpec, &'static str, Kind, usize)>,
) {
    for field in spec.fields.iter().filter(|field| field.versions.contains(version)) {
        let mut kind = field.kind;
        while let Kind::Array { element, element_size } = kind {
            found.push((spec, field.name, *element, element_size));
            kind = *element;
        }
        if let Kind::Struct(inner) = kind {
            arrays(inner, version, found);
        }
    }
}

#[test]
fn no_element_takes_more_memory_than_its_shortest_encoding_pays_for() {
    let mut checked = 0;
    let mut broken = Vec::new();
    for (api, version, role) in walk::all_messages() {
        let mut found = Vec::new();
        arrays(role.spec(api), version, &mut found);
        checked += found.len();
        for (spec, field, element, size) in found {
            let least =
                walk::bytes_min(element, false, api.flexible_versions().contains(version), version).max(1);
            if size > ALLOCATED_PER_BYTE_MAX * least {
                broken.push(format!(
                    "{api} {version} {}.{field}: {size} in memory, {least} in the frame",
                    spec.name
                ));
            }
        }
    }
    // One answer, which only a client reads, of groups that all have empty names.
    assert_eq!(broken, ["ListGroups 3 ListGroupsResponse.groups: 128 in memory, 3 in the frame"]);
    assert!(checked > 500, "{checked} arrays");
}

#[test]
fn unknown_tagged_fields_are_skipped_and_known_ones_are_bounded_by_their_size() {
    // Fetch 12: an empty request, with an unknown tag 9 of two bytes.
    let plain = messages::FetchRequest::default().to_bytes(12).unwrap();
    let mut bytes = plain[..plain.len() - 1].to_vec();
    bytes.extend([1, 9, 2, 0xaa, 0xbb]);
    let request = messages::FetchRequest::from_bytes(Bytes::from(bytes), 12).unwrap();
    assert_eq!(request, messages::FetchRequest::default());

    // Tag 0 is the cluster id: "ab" in three bytes, in a field that says four, then one that says two.
    for (size, error) in [
        (4, DecodeError::TaggedFieldTooLong { tag: 0, count: 1 }),
        (2, DecodeError::Truncated { needed: 2, remaining: 1 }),
    ] {
        let mut bytes = plain[..plain.len() - 1].to_vec();
        bytes.extend([1, 0, size, 3, b'a', b'b', 0]);
        assert_eq!(decodes(ApiKey::Fetch, 12, Role::Request, &bytes), Err(error));
    }
}

#[test]
fn strings_must_be_utf8() {
    let mut bytes = messages::FindCoordinatorRequest { key: "ab".into(), ..Default::default() }
        .to_bytes(0)
        .unwrap()
        .to_vec();
    assert_eq!(bytes, [0, 2, b'a', b'b']);
    bytes[3] = 0xff;
    assert_eq!(decodes(ApiKey::FindCoordinator, 0, Role::Request, &bytes), Err(DecodeError::NotUtf8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic_nor_take_memory(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (api, version, role) in walk::all_messages() {
            let _ = decodes(api, version, role, &bytes);
        }
        let _ = RequestHeader::decode(&mut tidelog_wire::Reader::new(Bytes::from(bytes)));
    }

    #[test]
    fn changed_messages_never_panic_nor_take_memory(seed: u64) {
        let mut random = Random(seed);
        for (api, version, role) in walk::all_messages() {
            let mut bytes = walk::message(api, version, role, seed);
            for _ in 0..1 + random.below(4) {
                if !bytes.is_empty() {
                    let place = random.below(bytes.len());
                    bytes[place] = random.next().to_be_bytes()[0];
                }
            }
            let _ = decodes(api, version, role, &bytes);
        }
    }
}
