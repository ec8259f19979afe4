//! The stored bytes of version 1. They never change: a later version gets bytes of its own.

use super::{super::persist::DecodeError, *};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_commands_bytes() {
    let topic = TopicId::from_bytes([1; 16]);
    let command = Command::CommitSegments {
        commits: vec![commit(place(topic, 3), epoch(2), BrokerIncarnation(4), 5, 300..310)],
    };
    assert_eq!(hex(&command.encode()), GOLDEN_COMMIT);
    assert_eq!(Command::decode(&command.encode()), Ok(command));
    assert_eq!(hex(&registration(1, 2, 3, true).encode()), GOLDEN_REGISTRATION);
}

#[test]
fn a_snapshots_bytes() {
    let state = golden_state();
    assert_eq!(hex(&state.encode_snapshot()), GOLDEN_SNAPSHOT.concat());
    assert_eq!(ClusterState::decode_snapshot(&state.encode_snapshot()), Ok(state));
}

fn golden_state() -> ClusterState {
    let mut cluster = Cluster::with_brokers(1);
    let topic = cluster.create(1, 1, 1);
    let place = place(topic, 0);
    cluster.upload(place, 4);
    for (count, replaces_last, sequence) in [(1, false, 1), (1, true, 2)] {
        let spill = cluster.next_spill(place, count, replaces_last, sequence);
        cluster.apply(&Command::SpillManifest { spill });
    }
    cluster.advance(place, 15);
    cluster.tick(7);
    cluster.state
}

#[test]
fn damaged_snapshots_are_refused() {
    let bytes = golden_state().encode_snapshot();
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        assert!(ClusterState::decode_snapshot(&damaged).is_err(), "a flipped bit at {position}");
        assert!(ClusterState::decode_snapshot(&bytes[..position]).is_err(), "cut at {position}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(ClusterState::decode_snapshot(&longer), Err(DecodeError::Trailing { count: 1 }));
}

#[test]
fn unknown_versions_and_tags_are_refused() {
    assert_eq!(Command::decode(&[2, 15, 1]), Err(DecodeError::Version { found: 2, known: 1 }));
    assert_eq!(Command::decode(&[1, 99]), Err(DecodeError::OutOfRange { what: "the tag of Command" }));
    assert_eq!(Command::decode(&[1, 15, 1, 0]), Err(DecodeError::Trailing { count: 1 }));
    assert_eq!(Command::decode(&[]), Err(DecodeError::Short { what: "a command's version" }));
    // A count that no bytes stand behind asks for no memory.
    assert_eq!(
        Command::decode(&[1, 10, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        Err(DecodeError::OutOfRange { what: "a list" })
    );
}

const GOLDEN_COMMIT: &str = "010a01010101010101010101010101010101010604ac020aac0204040500649601010e64140304";
const GOLDEN_REGISTRATION: &str = concat!(
    "0101020202020202020202020202020202020203030303030303030303030303030303010109504c",
    "41494e54455854096c6f63616c686f737484470001",
);
const GOLDEN_SNAPSHOT: &[&str] = &[
    "54494445434c53540001000000000000000000eb0b01090909090909090909090909090909090107000200010202010201010101",
    "010101010101010101010101010101010101010101010101010101010109504c41494e54455854096c6f63616c686f7374844700",
    "00000000010000000000000000000000000000010007746f7069632d310001010200000102010101010101010101010101010101",
    "01010102020f010001020014050002140a140001fc0700649601010e641403001e0a1e0001860800649601010e64140300280700",
    "0102010000000000000000000000000000000100000200e0d403000106000100010101e0d403000001000102000f00286d8dce",
];
