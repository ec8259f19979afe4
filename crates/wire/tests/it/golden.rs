//! Equal to Apache Kafka itself: bytes that its message classes wrote, and frames that a running broker sent.
//! `tests/golden/README.md` says how they were made.

use bytes::Bytes;
use tidelog_wire::{
    ApiKey, Message, Reader, RequestBody, RequestHeader, ResponseBody, ResponseHeader, Writer, messages,
};

use crate::{oracle, walk, walk::Role};

const MESSAGES: &str = include_str!("../golden/messages-4.3.1.txt");
const RECORDED: &str = include_str!("../golden/recorded-4.3.1.txt");

struct Golden {
    api: ApiKey,
    version: i16,
    role: Role,
    bytes: Bytes,
}

fn lines(text: &str) -> impl Iterator<Item = Golden> {
    text.lines().map(|line| {
        let [name, version, role, hex] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        Golden {
            api: *ApiKey::ALL.iter().find(|api| api.name() == name).unwrap(),
            version: version.parse().unwrap(),
            role: if role == "request" { Role::Request } else { Role::Response },
            bytes: (0..hex.len() / 2)
                .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
                .collect(),
        }
    })
}

#[test]
fn every_message_and_version_has_the_bytes_of_kafkas_own_classes() {
    let mut seen = Vec::new();
    for Golden { api, version, role, bytes } in lines(MESSAGES) {
        assert_eq!(oracle::ours(api, version, role, &bytes), bytes, "{api} {version} {role:?}");
        seen.push((api, version, role));
    }
    for (api, version, role) in walk::all_messages() {
        assert_eq!(
            seen.iter().filter(|line| **line == (api, version, role)).count(),
            2,
            "{api} {version} {role:?}"
        );
    }
    assert_eq!(seen.len(), 2 * walk::all_messages().count(), "no line is of a version that the table lacks");
}

#[test]
fn frames_recorded_from_a_broker_are_written_again_byte_for_byte() {
    let mut count = 0;
    for Golden { api, version, role, bytes } in lines(RECORDED).filter(|line| line.version != 99) {
        let mut reader = Reader::new(bytes.clone());
        let mut writer = Writer::new();
        match role {
            Role::Request => {
                let header = RequestHeader::decode(&mut reader).unwrap();
                assert_eq!((header.api, header.version), (api, version));
                assert_eq!(header.client_id, Some("recorder".into()));
                header.encode(&mut writer).unwrap();
                let body = bytes.slice(bytes.len() - reader.remaining()..);
                RequestBody::from_bytes(api, body, version).unwrap().encode(version, &mut writer).unwrap();
            }
            Role::Response => {
                ResponseHeader::decode(&mut reader, api, version).unwrap().encode(&mut writer, api, version);
                let body = bytes.slice(bytes.len() - reader.remaining()..);
                ResponseBody::from_bytes(api, body, version).unwrap().encode(version, &mut writer).unwrap();
            }
        }
        assert_eq!(writer.into_bytes(), bytes, "{api} {version} {role:?}");
        count += 1;
    }
    assert_eq!(count, 120);
}

/// The bodies of the recorded answers of one API and version, in order.
fn answers<M: Message>(version: i16) -> Vec<M> {
    lines(RECORDED)
        .filter(|line| line.api == M::API && line.version == version && line.role == Role::Response)
        .map(|line| {
            let mut reader = Reader::new(line.bytes);
            ResponseHeader::decode(&mut reader, M::API, version).unwrap();
            let message = M::decode(&mut reader, version).unwrap();
            reader.finish().unwrap();
            message
        })
        .collect()
}

#[test]
fn recorded_answers_of_list_offsets_11_say_what_the_broker_said() {
    let answers = answers::<messages::ListOffsetsResponse>(11);
    let first: Vec<_> = answers
        .iter()
        .map(|answer| {
            let partition =
                answer.topics[0].partitions.iter().find(|partition| partition.partition_index == 0).unwrap();
            (partition.timestamp, partition.offset, partition.leader_epoch)
        })
        .collect();
    // Latest, earliest, maximum timestamp, earliest local, latest tiered, earliest pending upload, a time in between.
    assert_eq!(
        first,
        [
            (-1, 12, 0),
            (-1, 0, 0),
            (1_700_000_001_000, 1, 0),
            (-1, 0, 0),
            (-1, -1, -1),
            (-1, -1, -1),
            (1_700_000_001_000, 1, 0)
        ]
    );
    assert!(answers[0].topics[0].partitions.iter().any(|partition| partition.error_code == 3));
    assert_eq!(answers[0].topics[0].name, "recorded");
}

#[test]
fn recorded_answer_of_write_txn_markers_2_says_what_the_broker_said() {
    let [answer] = answers::<messages::WriteTxnMarkersResponse>(2).try_into().unwrap();
    assert_eq!(answer.markers[0].producer_id, 0);
    assert_eq!(answer.markers[0].topics[0].name, "recorded");
    let partition = &answer.markers[0].topics[0].partitions[0];
    assert_eq!((partition.partition_index, partition.error_code), (1, 0));
}

#[test]
fn recorded_fetch_of_an_aborted_transaction_has_its_records_and_its_abort() {
    let last = answers::<messages::FetchResponse>(17).pop().unwrap();
    let partition = &last.responses[0].partitions[0];
    assert_eq!(
        (partition.partition_index, partition.high_watermark, partition.last_stable_offset),
        (1, 3, 3)
    );
    let aborted = partition.aborted_transactions.as_ref().unwrap();
    assert_eq!((aborted.len(), aborted[0].producer_id, aborted[0].first_offset), (1, 0, 0));
    // A batch with magic 2 at byte 16.
    assert_eq!(partition.records.as_ref().unwrap().to_bytes()[16], 2);
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_range_of_api_versions_itself() {
    let unknown: Vec<_> = lines(RECORDED).filter(|line| line.version == 99).collect();
    let [request, answer] = unknown.as_slice() else { panic!("a request and its answer") };
    let mut reader = Reader::new(request.bytes.clone());
    let header = RequestHeader::decode(&mut reader).unwrap();
    assert_eq!((header.api, header.version), (ApiKey::ApiVersions, 99));

    let mut reader = Reader::new(answer.bytes.clone());
    let answer_header = ResponseHeader::decode(&mut reader, ApiKey::ApiVersions, 99).unwrap();
    assert_eq!(answer_header.correlation_id, header.correlation_id);
    let body = messages::ApiVersionsResponse::decode(&mut reader, 0).unwrap();
    assert_eq!(reader.finish(), Ok(()));
    assert_eq!(body.error_code, 35);
    assert_eq!(
        body.api_keys,
        [messages::api_versions::ApiVersion { api_key: 18, min_version: 0, max_version: 4 }]
    );
}
