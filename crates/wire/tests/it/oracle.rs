//! Equal bytes and equal values, for every message and version that the crate kafka-protocol knows.
//!
//! A random message goes as bytes through both decoders and encoders. Both must answer with the same bytes; since each
//! of them writes every field it knows, none of the values was lost or misplaced in ours. Some messages are then built
//! by hand in both crates' own words.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{self as kp, RequestKind, ResponseKind};
use kafka_protocol::protocol::{Encodable, StrBytes};
use proptest::prelude::*;
use tidelog_wire::messages::{api_versions, fetch, metadata, produce};
use tidelog_wire::{ApiKey, Message, Records, RequestBody, ResponseBody, Str, Uuid, Writer};

use crate::walk::{self, Role};

/// Versions that the crate does not know; Apache Kafka's own bytes stand for them (see `golden`).
const UNKNOWN_TO_THE_CRATE: [(ApiKey, i16); 6] = [
    (ApiKey::ListOffsets, 11),
    (ApiKey::OffsetCommit, 10),
    (ApiKey::OffsetFetch, 10),
    (ApiKey::InitProducerId, 6),
    (ApiKey::WriteTxnMarkers, 2),
    (ApiKey::DescribeLogDirs, 5),
];

/// Decodes and encodes with ours.
pub(crate) fn ours(api: ApiKey, version: i16, role: Role, bytes: &Bytes) -> Bytes {
    let mut writer = Writer::new();
    match role {
        Role::Request => {
            let body = RequestBody::from_bytes(api, bytes.clone(), version).unwrap();
            body.encode(version, &mut writer).unwrap();
            let again = writer.into_bytes();
            assert_eq!(RequestBody::from_bytes(api, again.clone(), version).unwrap(), body);
            again
        }
        Role::Response => {
            let body = ResponseBody::from_bytes(api, bytes.clone(), version).unwrap();
            body.encode(version, &mut writer).unwrap();
            let again = writer.into_bytes();
            assert_eq!(ResponseBody::from_bytes(api, again.clone(), version).unwrap(), body);
            again
        }
    }
}

fn theirs(api: ApiKey, version: i16, role: Role, bytes: &Bytes) -> Result<Bytes, String> {
    let key = kp::ApiKey::try_from(api.key()).unwrap();
    let mut rest = bytes.clone();
    let mut again = BytesMut::new();
    match role {
        Role::Request => RequestKind::decode(key, &mut rest, version)
            .and_then(|body| body.encode(&mut again, version))
            .map_err(|error| format!("{error:#}"))?,
        Role::Response => ResponseKind::decode(key, &mut rest, version)
            .and_then(|body| body.encode(&mut again, version))
            .map_err(|error| format!("{error:#}"))?,
    }
    assert!(rest.is_empty(), "{api} {version} {role:?}: kafka-protocol leaves {} bytes", rest.len());
    Ok(again.freeze())
}

fn is_known(api: ApiKey, version: i16, role: Role) -> bool {
    let bytes = Bytes::from(walk::message(api, version, role, 0));
    !theirs(api, version, role, &bytes).is_err_and(|error| error.contains("specified version not supported"))
}

#[test]
fn kafka_protocol_lacks_only_the_versions_that_golden_frames_cover() {
    let unknown: Vec<_> = walk::all_messages()
        .filter(|(api, version, role)| *role == Role::Request && !is_known(*api, *version, *role))
        .map(|(api, version, _)| (api, version))
        .collect();
    assert_eq!(unknown, UNKNOWN_TO_THE_CRATE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_and_values_equal_those_of_kafka_protocol(seed: u64) {
        for (api, version, role) in walk::all_messages() {
            if UNKNOWN_TO_THE_CRATE.contains(&(api, version)) {
                continue;
            }
            let bytes = Bytes::from(walk::message(api, version, role, seed));
            let ours = ours(api, version, role, &bytes);
            let theirs = theirs(api, version, role, &bytes);
            prop_assert_eq!(Ok(&ours), theirs.as_ref(), "{} {} {:?} seed {}", api, version, role, seed);
            // The walk also writes tagged fields that equal their default, which no encoder does; else nothing differs.
            prop_assert!(ours.len() <= bytes.len());
            prop_assert!(ours == bytes || api.flexible_versions().contains(version));
        }
    }
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn encoded(message: &impl Encodable, version: i16) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes, version).unwrap();
    bytes.freeze()
}

/// Ours writes what theirs writes, and reads it back as it was.
fn same<M: Message>(ours: &M, theirs: &impl Encodable, version: i16) {
    let bytes = encoded(theirs, version);
    assert_eq!(ours.to_bytes(version).unwrap(), bytes, "version {version}");
    assert_eq!(&M::from_bytes(bytes, version).unwrap(), ours, "version {version}");
}

#[test]
fn produce_request_built_by_hand() {
    let batch = Bytes::from(vec![7; 300]);
    for version in 3..=12 {
        let theirs = kp::ProduceRequest::default()
            .with_transactional_id(Some(kp::TransactionalId(text("tx"))))
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![
                kp::produce_request::TopicProduceData::default()
                    .with_name(kp::TopicName(text("orders")))
                    .with_partition_data(vec![
                        kp::produce_request::PartitionProduceData::default()
                            .with_index(5)
                            .with_records(Some(batch.clone())),
                        kp::produce_request::PartitionProduceData::default().with_index(6).with_records(None),
                    ]),
            ]);
        let ours = produce::ProduceRequest {
            transactional_id: Some(Str::from_static("tx")),
            acks: -1,
            timeout_ms: 30_000,
            topic_data: vec![produce::TopicProduceData {
                name: Str::from_static("orders"),
                partition_data: vec![
                    produce::PartitionProduceData {
                        index: 5,
                        records: Some(Records::from_iter([batch.slice(..100), batch.slice(100..)])),
                    },
                    produce::PartitionProduceData { index: 6, records: None },
                ],
                ..Default::default()
            }],
        };
        same(&ours, &theirs, version);
    }
}

#[test]
fn produce_response_built_by_hand() {
    for version in 8..=12 {
        let mut theirs = kp::produce_response::PartitionProduceResponse::default()
            .with_index(2)
            .with_error_code(87)
            .with_base_offset(-1)
            .with_log_append_time_ms(1_700_000_000_000)
            .with_log_start_offset(11)
            .with_record_errors(vec![
                kp::produce_response::BatchIndexAndErrorMessage::default()
                    .with_batch_index(3)
                    .with_batch_index_error_message(Some(text("no key"))),
            ])
            .with_error_message(Some(text("invalid")));
        let mut ours = produce::PartitionProduceResponse {
            index: 2,
            error_code: 87,
            base_offset: -1,
            log_append_time_ms: 1_700_000_000_000,
            log_start_offset: 11,
            record_errors: vec![produce::BatchIndexAndErrorMessage {
                batch_index: 3,
                batch_index_error_message: Some("no key".into()),
            }],
            error_message: Some("invalid".into()),
            ..Default::default()
        };
        if version >= 10 {
            theirs = theirs.with_current_leader(
                kp::produce_response::LeaderIdAndEpoch::default()
                    .with_leader_id(4.into())
                    .with_leader_epoch(9),
            );
            ours.current_leader = produce::LeaderIdAndEpoch { leader_id: 4, leader_epoch: 9 };
        }
        let theirs = kp::ProduceResponse::default().with_throttle_time_ms(12).with_responses(vec![
            kp::produce_response::TopicProduceResponse::default()
                .with_name(kp::TopicName(text("orders")))
                .with_partition_responses(vec![theirs]),
        ]);
        let ours = produce::ProduceResponse {
            responses: vec![produce::TopicProduceResponse {
                name: "orders".into(),
                partition_responses: vec![ours],
                ..Default::default()
            }],
            throttle_time_ms: 12,
            ..Default::default()
        };
        same(&ours, &theirs, version);
    }
}

#[test]
fn fetch_response_built_by_hand() {
    let batch = Bytes::from(vec![9; 500]);
    for version in 4..=12 {
        let mut theirs = kp::fetch_response::PartitionData::default()
            .with_partition_index(1)
            .with_high_watermark(100)
            .with_last_stable_offset(90)
            .with_aborted_transactions(Some(vec![
                kp::fetch_response::AbortedTransaction::default()
                    .with_producer_id(8.into())
                    .with_first_offset(80),
            ]))
            .with_records(Some(batch.clone()));
        let mut ours = fetch::PartitionData {
            partition_index: 1,
            high_watermark: 100,
            last_stable_offset: 90,
            aborted_transactions: Some(vec![fetch::AbortedTransaction { producer_id: 8, first_offset: 80 }]),
            records: Some(batch.clone().into()),
            ..Default::default()
        };
        if version >= 5 {
            theirs = theirs.with_log_start_offset(3);
            ours.log_start_offset = 3;
        }
        if version >= 11 {
            theirs = theirs.with_preferred_read_replica(2.into());
            ours.preferred_read_replica = 2;
        }
        let theirs = kp::FetchResponse::default().with_throttle_time_ms(1).with_responses(vec![
            kp::fetch_response::FetchableTopicResponse::default()
                .with_topic(kp::TopicName(text("orders")))
                .with_partitions(vec![theirs]),
        ]);
        let ours = fetch::FetchResponse {
            throttle_time_ms: 1,
            responses: vec![fetch::FetchableTopicResponse {
                topic: "orders".into(),
                partitions: vec![ours],
                ..Default::default()
            }],
            ..Default::default()
        };
        same(&ours, &theirs, version);
    }
}

#[test]
fn metadata_response_built_by_hand() {
    let id = "03030303-0303-0303-0303-030303030303";
    for version in 10..=12 {
        let theirs = kp::MetadataResponse::default()
            .with_brokers(vec![
                kp::metadata_response::MetadataResponseBroker::default()
                    .with_node_id(1.into())
                    .with_host(text("127.0.0.1"))
                    .with_port(9092)
                    .with_rack(None),
            ])
            .with_cluster_id(Some(text("cluster")))
            .with_controller_id(1.into())
            .with_topics(vec![
                kp::metadata_response::MetadataResponseTopic::default()
                    .with_name(Some(kp::TopicName(text("orders"))))
                    .with_topic_id(id.parse().unwrap())
                    .with_partitions(vec![
                        kp::metadata_response::MetadataResponsePartition::default()
                            .with_leader_id(1.into())
                            .with_leader_epoch(4)
                            .with_replica_nodes(vec![1.into(), 2.into()])
                            .with_isr_nodes(vec![1.into()]),
                    ]),
            ]);
        let ours = metadata::MetadataResponse {
            brokers: vec![metadata::MetadataResponseBroker {
                node_id: 1,
                host: "127.0.0.1".into(),
                port: 9092,
                rack: None,
            }],
            cluster_id: Some("cluster".into()),
            controller_id: 1,
            topics: vec![metadata::MetadataResponseTopic {
                name: Some("orders".into()),
                topic_id: Uuid([3; 16]),
                partitions: vec![metadata::MetadataResponsePartition {
                    leader_id: 1,
                    leader_epoch: 4,
                    replica_nodes: vec![1, 2],
                    isr_nodes: vec![1],
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        same(&ours, &theirs, version);
    }
}

#[test]
fn api_versions_response_built_by_hand() {
    for version in 0..=4 {
        let theirs = kp::ApiVersionsResponse::default().with_error_code(35).with_api_keys(vec![
            kp::api_versions_response::ApiVersion::default()
                .with_api_key(18)
                .with_min_version(0)
                .with_max_version(4),
        ]);
        let ours = api_versions::ApiVersionsResponse {
            error_code: 35,
            api_keys: vec![api_versions::ApiVersion { api_key: 18, min_version: 0, max_version: 4 }],
            ..Default::default()
        };
        same(&ours, &theirs, version);
    }
}
