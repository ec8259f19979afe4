use std::collections::BTreeMap;

use openraft::impls::leader_id_adv::LeaderId;
use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn log_id(term: u64, node_id: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id }, index }
}

fn membership() -> Membership<u64, BasicNode> {
    let nodes: BTreeMap<u64, BasicNode> = [(1, "a:1"), (2, "b:2"), (3, "c:3")]
        .into_iter()
        .map(|(id, addr)| (id, BasicNode::new(addr)))
        .collect();
    Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])], nodes).unwrap()
}

fn records() -> Vec<Record> {
    let command = Arc::new(Command::Tick { elapsed_ms: 300 });
    vec![
        Record::Vote(Vote { leader_id: LeaderId { term: 4, node_id: 2 }, committed: true }),
        Record::Entry(Entry { log_id: log_id(4, 2, 17), payload: EntryPayload::Blank }),
        Record::Entry(Entry { log_id: log_id(4, 2, 18), payload: EntryPayload::Normal(Proposal(command)) }),
        Record::Entry(Entry { log_id: log_id(4, 2, 300), payload: EntryPayload::Membership(membership()) }),
        Record::TruncateAfter(None),
        Record::TruncateAfter(Some(log_id(1, 1, 3))),
        Record::Purge(log_id(3, 1, 9)),
    ]
}

/// A file of number 6 with all kinds of records; where each begins.
fn file() -> (Vec<u8>, Vec<usize>) {
    let mut out = FileHeader { number: 6, image_end: 64 }.encode().to_vec();
    let mut starts = Vec::new();
    for record in records() {
        starts.push(out.len());
        let place = Place { number: 6, position: u64::try_from(out.len()).unwrap(), synced: 64 };
        record.encode(place, &mut out);
    }
    (out, starts)
}

/// The stored bytes of version 1. They never change: a later version gets bytes of its own.
#[test]
fn the_bytes_of_a_log_file() {
    let (file, starts) = file();
    assert_eq!(hex(&file[..64]), GOLDEN_HEADER);
    let found: Vec<String> = starts
        .iter()
        .zip(starts.iter().skip(1).chain([&file.len()]))
        .map(|(from, to)| hex(&file[*from..*to]))
        .collect();
    assert_eq!(found, GOLDEN_RECORDS);
}

#[test]
fn the_bytes_of_a_snapshot_file() {
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(4, 2, 17)),
        last_membership: StoredMembership::new(Some(log_id(1, 1, 0)), membership()),
    };
    let bytes = seal(b"TIDESNAP", 1, &encode_snapshot(&meta, b"state"));
    assert_eq!(hex(&bytes), GOLDEN_SNAPSHOT);
    let payload = unseal(b"TIDESNAP", 1, &bytes).unwrap();
    assert_eq!(decode_snapshot(payload), Ok((meta, &b"state"[..])));
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        assert!(unseal(b"TIDESNAP", 1, &damaged).is_err(), "a flipped bit at {position}");
        assert!(unseal(b"TIDESNAP", 1, &bytes[..position]).is_err(), "cut at {position}");
    }
}

#[test]
fn records_read_as_they_were_written() {
    let (file, starts) = file();
    assert_eq!(FileHeader::decode(&file), Ok(FileHeader { number: 6, image_end: 64 }));
    let mut position = FILE_HEADER_BYTES;
    for (record, start) in records().into_iter().zip(starts) {
        assert_eq!(position, start);
        let found = find_record(&file, 6, position).unwrap();
        assert_eq!((found.record, found.synced), (Ok(record), 64));
        position = found.next;
    }
    assert_eq!(position, file.len());
    assert!(find_record(&file, 6, position).is_none());
}

#[test]
fn a_record_elsewhere_or_of_another_file_is_none() {
    let (mut file, starts) = file();
    assert!(find_record(&file, 7, starts[1]).is_none(), "another file's");
    let moved = file[starts[1]..starts[2]].to_vec();
    file[starts[0]..starts[0] + moved.len()].copy_from_slice(&moved);
    assert!(find_record(&file, 6, starts[0]).is_none(), "it stood elsewhere");
}

#[test]
fn any_flipped_bit_of_a_record_is_noticed() {
    let (file, starts) = file();
    for position in starts[2]..starts[3] {
        let mut damaged = file.clone();
        damaged[position] ^= 0x10;
        match find_record(&damaged, 6, starts[2]) {
            None => {}
            // Padding is under no CRC and says nothing.
            Some(found) => assert_eq!(found.record, Ok(records().remove(2))),
        }
        assert_eq!(synced_later(&damaged, 6, starts[2] + 1), 64, "later records say what was synced");
    }
    for position in 0..32 {
        let mut damaged = file.clone();
        damaged[position] ^= 1;
        assert!(FileHeader::decode(&damaged).is_err(), "a flipped bit at {position}");
    }
}

proptest! {
    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..6) {
        let _ = decode_record(kind, &bytes);
        let _ = decode_snapshot(&bytes);
        prop_assert!(FileHeader::decode(&bytes).is_err());
        prop_assert!(find_record(&bytes, 1, 0).is_none());
    }
}

const GOLDEN_HEADER: &str = "54494445524146540001000000000000000000060000000000000040abf9a4b4\
    0000000000000000000000000000000000000000000000000000000000000000";
const GOLDEN_RECORDS: &[&str] = &[
    "54524543b4a7d65f00000003020000000000000000000006000000000000004000000000000000400402010000000000",
    "54524543e205aa3c00000005010000000000000000000006000000000000007000000000000000400104021100000000",
    "54524543d8908d080000000a01000000000000000000000600000000000000a00000000000000040010402120104010f\
     ac020000000000000000000000000000",
    "545245430d84b9440000001d01000000000000000000000600000000000000e00000000000000040010402ac02020202\
     0102020203030103613a310203623a320303633a330000000000000000000000",
    "545245434b47048400000001030000000000000000000006000000000000013000000000000000400000000000000000",
    "54524543ee2aa28b00000004030000000000000000000006000000000000016000000000000000400101010300000000",
    "545245436b0a521e00000004040000000000000000000006000000000000019000000000000000400103010900000000",
];
const GOLDEN_SNAPSHOT: &str = "54494445534e4150000100000000000000000025010402110101010002020102020203\
    030103613a310203623a320303633a330573746174652234b3c7";
