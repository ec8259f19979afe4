//! What administrators ask: elections, reassignments, the quorum, features, brokers, producers, and settings of what has none
//! of its own. The answers are those of Apache Kafka 4.3.1, asked the same on one node; where they differ, a comment says why.

use tidelog_testkit::raw_client::{RawClient, idempotent_batch};
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        AlterConfigsRequest, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
        DescribeConfigsRequest, DescribeProducersRequest, DescribeProducersResponse, DescribeQuorumRequest,
        ElectLeadersRequest, ElectLeadersResponse, IncrementalAlterConfigsRequest,
        ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, SaslAuthenticateRequest,
        SaslHandshakeRequest, SaslHandshakeResponse, UnregisterBrokerRequest, UpdateFeaturesRequest,
        UpdateFeaturesResponse, alter_configs,
        alter_partition_reassignments::{ReassignablePartition, ReassignableTopic},
        describe_configs::{DescribeConfigsResource, DescribeConfigsResult},
        describe_producers::{PartitionResponse, ProducerState, TopicRequest, TopicResponse},
        describe_quorum::{
            Node as QuorumNode, PartitionData, RequestPartitionData, RequestTopicData, TopicData,
        },
        elect_leaders::TopicPartitions,
        incremental_alter_configs,
        list_partition_reassignments::ListPartitionReassignmentsTopics,
        update_features::FeatureUpdateKey,
    },
};

use crate::{
    asks::producer_id,
    node::{Node, Options},
};

fn topic_partitions(topic: &str, partitions: &[i32]) -> TopicPartitions {
    TopicPartitions { topic: topic.into(), partitions: partitions.to_vec() }
}

/// Topic, partition, code and message of every result.
fn elected(response: &ElectLeadersResponse) -> Vec<(String, i32, i16, String)> {
    let results = response.replica_election_results.iter();
    results
        .flat_map(|topic| {
            topic.partition_result.iter().map(|partition| {
                let message = partition.error_message.as_ref().map(ToString::to_string).unwrap();
                (topic.topic.to_string(), partition.partition_id, partition.error_code, message)
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_by_hand_is_never_needed() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let not_needed = "Leader election not needed for topic partition.";
    for (version, election_type) in [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)] {
        let request = ElectLeadersRequest {
            election_type,
            topic_partitions: Some(vec![
                topic_partitions("t", &[0, 1, 2, 0]),
                topic_partitions("nope", &[0]),
                topic_partitions("", &[0, -1]),
            ]),
            timeout_ms: 5_000,
        };
        let response = client.call(version, &request).await;
        assert_eq!((response.throttle_time_ms, response.error_code), (0, 0));
        let expected = [
            ("t", 0, 84, not_needed),
            ("t", 1, 84, not_needed),
            ("t", 2, 3, "No such partition as t-2"),
            ("t", 0, 84, not_needed),
            ("nope", 0, 3, "No such topic as nope"),
            ("", 0, 3, "No such topic as "),
            ("", -1, 3, "No such topic as "),
        ];
        let expected = expected
            .map(|(topic, partition, code, message)| (topic.to_owned(), partition, code, message.to_owned()));
        assert_eq!(elected(&response), expected, "version {version} type {election_type}");

        // All topics: those are named whose partitions an election would have been of use for, and they have none.
        let all = ElectLeadersRequest { election_type, topic_partitions: None, timeout_ms: 5_000 };
        let response = client.call(version, &all).await;
        assert_eq!(response.error_code, 0);
        let topics: Vec<_> = response
            .replica_election_results
            .iter()
            .map(|topic| (topic.topic.to_string(), topic.partition_result.len()))
            .collect();
        assert_eq!(topics, [("t".to_owned(), 0)]);
        let none =
            ElectLeadersRequest { election_type, topic_partitions: Some(Vec::new()), timeout_ms: 5_000 };
        assert_eq!(client.call(version, &none).await.replica_election_results, []);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_election_and_one_of_too_many_partitions_are_refused() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for version in 1..=2 {
        let request = ElectLeadersRequest {
            election_type: 7,
            topic_partitions: Some(vec![topic_partitions("t", &[0, 5])]),
            timeout_ms: 5_000,
        };
        let response = client.call(version, &request).await;
        assert_eq!(response.error_code, 42);
        let unknown = |partition| ("t".to_owned(), partition, 42, "Unknown election type 7".to_owned());
        assert_eq!(elected(&response), [unknown(0), unknown(5)]);
    }
    // More than a cluster can have: Kafka would answer each in words. Version 0 cannot say why.
    for (version, code) in [(0, 0), (1, 42), (2, 42)] {
        let request = ElectLeadersRequest {
            topic_partitions: Some(vec![topic_partitions("t", &vec![0; 100_001])]),
            ..ElectLeadersRequest::default()
        };
        let response = client.call(version, &request).await;
        assert_eq!((response.error_code, response.replica_election_results.len()), (code, 0));
    }
    node.stop().await;
}

/// Topic, partition, code and message of every result.
fn reassigned(response: &AlterPartitionReassignmentsResponse) -> Vec<(String, i32, i16, Option<String>)> {
    let topics = response.responses.iter();
    topics
        .flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let message = partition.error_message.as_ref().map(ToString::to_string);
                (topic.name.to_string(), partition.partition_index, partition.error_code, message)
            })
        })
        .collect()
}

fn reassignable(name: &str, partitions: &[(i32, Option<&[i32]>)]) -> ReassignableTopic {
    let partitions = partitions.iter().map(|(partition_index, replicas)| ReassignablePartition {
        partition_index: *partition_index,
        replicas: replicas.map(<[i32]>::to_vec),
    });
    ReassignableTopic { name: name.into(), partitions: partitions.collect() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_stay_where_they_are_are_accepted_and_all_else_is_refused() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let unregistered = |id| {
        format!("The manual partition assignment includes broker {id}, but no such broker is registered.")
    };
    let t = |partition, code, message: Option<&str>| {
        ("t".to_owned(), partition, code, message.map(str::to_owned))
    };
    for (version, may_resize) in [(0, true), (1, true), (1, false)] {
        let request = AlterPartitionReassignmentsRequest {
            timeout_ms: 5_000,
            allow_replication_factor_change: may_resize,
            topics: vec![
                reassignable(
                    "t",
                    &[
                        (0, Some(&[1])),
                        (1, None),
                        (1, Some(&[9])),
                        (1, Some(&[1, 9])),
                        (1, Some(&[1, 1])),
                        (1, Some(&[-1])),
                        (1, Some(&[])),
                        (5, Some(&[1])),
                        (5, None),
                        (-5, Some(&[9])),
                    ],
                ),
                reassignable("nope", &[(0, Some(&[1])), (0, None)]),
                reassignable("t", &[]),
                reassignable("", &[(0, Some(&[9]))]),
            ],
        };
        let response = client.call(version, &request).await;
        assert_eq!((response.error_code, &response.error_message), (0, &None));
        assert_eq!(response.allow_replication_factor_change, may_resize);
        assert_eq!(
            reassigned(&response),
            [
                t(0, 0, None),
                t(1, 85, None),
                t(1, 39, Some(&unregistered(9))),
                t(1, 39, Some(&unregistered(9))),
                t(1, 39, Some("The manual partition assignment includes the broker 1 more than once.")),
                t(1, 39, Some(&unregistered(-1))),
                t(1, 39, Some("The manual partition assignment includes an empty replica list.")),
                t(5, 3, Some("Unable to find partition t:5.")),
                t(5, 3, Some("Unable to find partition t:5.")),
                t(-5, 3, Some("Unable to find partition t:-5.")),
                ("nope".to_owned(), 0, 3, Some("Unable to find a topic named nope.".to_owned())),
                ("nope".to_owned(), 0, 3, Some("Unable to find a topic named nope.".to_owned())),
                (String::new(), 0, 3, Some("Unable to find a topic named .".to_owned())),
            ]
        );
        assert_eq!(response.responses.len(), 4, "a topic without partitions is answered too");
        let none = AlterPartitionReassignmentsRequest::default();
        let response = client.call(version, &none).await;
        assert_eq!((response.error_code, response.error_message), (0, Some(Str::default())));
        assert_eq!(response.responses, []);
        let many = AlterPartitionReassignmentsRequest {
            topics: vec![reassignable("t", &vec![(0, None); 100_001])],
            ..AlterPartitionReassignmentsRequest::default()
        };
        assert_eq!(client.call(version, &many).await.error_code, 42);
    }
    // A name that is longer than any is not repeated for each of its partitions.
    let long = "x".repeat(30_000);
    let request = AlterPartitionReassignmentsRequest {
        topics: vec![reassignable(&long, &[(0, None)])],
        ..AlterPartitionReassignmentsRequest::default()
    };
    let response = client.call(1, &request).await;
    let message = response.responses[0].partitions[0].error_message.as_ref().unwrap();
    assert_eq!(message.as_str(), format!("Unable to find a topic named {}.", "x".repeat(249)));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reassignment_is_ever_going_on() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let some = ["t", "nope"]
        .map(|name| ListPartitionReassignmentsTopics { name: name.into(), partition_indexes: vec![0, 7] });
    for topics in [None, Some(Vec::new()), Some(some.to_vec())] {
        let request = ListPartitionReassignmentsRequest { timeout_ms: 5_000, topics };
        let response = client.call(0, &request).await;
        let expected = ListPartitionReassignmentsResponse {
            throttle_time_ms: 0,
            error_code: 0,
            error_message: None,
            topics: Vec::new(),
        };
        assert_eq!(response, expected);
    }
    node.stop().await;
}

fn quorum_request(topics: &[(&str, &[i32])]) -> DescribeQuorumRequest {
    let topics = topics.iter().map(|(name, partitions)| RequestTopicData {
        topic_name: (*name).into(),
        partitions: partitions.iter().map(|index| RequestPartitionData { partition_index: *index }).collect(),
    });
    DescribeQuorumRequest { topics: topics.collect() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quorum_is_this_node_and_its_log_grows() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let mut ends = Vec::new();
    for version in 0..=2 {
        client.create_topic(&format!("t{version}"), 1, &[]).await;
        let response = client.call(version, &quorum_request(&[("__cluster_metadata", &[0])])).await;
        assert_eq!(response.error_code, 0);
        let [topic] = &response.topics[..] else { panic!("{response:?}") };
        let [partition] = &topic.partitions[..] else { panic!("{response:?}") };
        let [voter] = &partition.current_voters[..] else { panic!("{response:?}") };
        assert_eq!(topic.topic_name, "__cluster_metadata");
        assert_eq!((partition.partition_index, partition.error_code, partition.leader_id), (0, 0, 1));
        assert!(partition.leader_epoch >= 1 && partition.observers.is_empty());
        assert!(0 < partition.high_watermark && partition.high_watermark <= voter.log_end_offset);
        assert_eq!((voter.replica_id, voter.replica_directory_id), (1, Uuid::ZERO));
        ends.push(voter.log_end_offset);
        // Version 0 has no times. Kafka's leader was caught up, and fetched, just now.
        let times = (voter.last_fetch_timestamp, voter.last_caught_up_timestamp);
        assert_eq!(times.0, times.1);
        assert_eq!(times.0 == -1, version == 0);
        // Kafka names its controllers' listener; there is none here that a client could speak to.
        let nodes = if version < 2 { vec![] } else { vec![QuorumNode { node_id: 1, listeners: vec![] }] };
        assert_eq!(response.nodes, nodes);
    }
    assert!(ends.is_sorted_by(|earlier, later| earlier < later), "{ends:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_the_metadata_has_a_quorum() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    for version in 0..=2 {
        let message = if version < 2 { "" } else { "This server does not host this topic-partition." };
        let unknown = |partition_index| PartitionData {
            partition_index,
            error_code: 3,
            error_message: Some(message.into()),
            ..PartitionData::default()
        };
        for asked in [
            &[("__cluster_metadata", &[1][..])][..],
            &[("__cluster_metadata", &[0, 1][..])],
            &[("t", &[0][..])],
            &[("__cluster_metadata", &[0][..]), ("t", &[0][..])],
        ] {
            let response = client.call(version, &quorum_request(asked)).await;
            let topics = asked.iter().map(|(name, partitions)| TopicData {
                topic_name: (*name).into(),
                partitions: partitions.iter().copied().map(unknown).collect(),
            });
            assert_eq!((response.error_code, response.nodes.len()), (0, 0));
            assert_eq!(response.topics, topics.collect::<Vec<_>>(), "version {version}");
        }
        assert_eq!(client.call(version, &quorum_request(&[])).await.topics, []);
    }
    node.stop().await;
}

async fn updated(
    client: &mut RawClient,
    version: i16,
    features: &[(&str, i16, i8)],
) -> UpdateFeaturesResponse {
    let feature_updates = features.iter().map(|(feature, level, upgrade_type)| FeatureUpdateKey {
        feature: (*feature).into(),
        max_version_level: *level,
        upgrade_type: if version == 0 { 1 } else { *upgrade_type },
        ..FeatureUpdateKey::default()
    });
    let request = UpdateFeaturesRequest {
        feature_updates: feature_updates.collect(),
        validate_only: version > 0,
        ..UpdateFeaturesRequest::default()
    };
    client.call(version, &request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_feature_can_be_updated() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let unsupported = "Local controller 1 does not support this feature.";
    let unknown_type = "The controller does not support the given upgrade type.";
    for version in 0..=2 {
        let untyped = if version == 0 { unsupported } else { unknown_type };
        for (feature, level, upgrade_type, why) in [
            ("foo", 1, 1, unsupported),
            ("foo", 1, 3, unsupported),
            ("", 1, 1, unsupported),
            ("foo", 0, 1, "Feature foo not found."),
            ("foo", -1, 1, "A feature version cannot be less than 0."),
            ("foo", 1, 9, untyped),
            ("foo", 1, 0, untyped),
        ] {
            let response = updated(&mut client, version, &[(feature, level, upgrade_type)]).await;
            let message = format!(
                "The update failed for all features since the following feature had an error: Invalid update version {level} \
                 for feature {feature}. {why}"
            );
            let expected = UpdateFeaturesResponse {
                throttle_time_ms: 0,
                error_code: ErrorCode::InvalidUpdateVersion.code(),
                error_message: Some(message.into()),
                results: Vec::new(),
            };
            assert_eq!(response, expected, "version {version}");
        }
        let two = updated(&mut client, version, &[("foo", 1, 1), ("bar", 1, 1)]).await;
        assert!(two.error_message.unwrap().contains("for feature bar."));
        let none = updated(&mut client, version, &[]).await;
        assert_eq!((none.error_code, none.error_message, none.results), (0, None, vec![]));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_registered_stays_so() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for broker_id in [9, -1, i32::MIN] {
        let response = client.call(0, &UnregisterBrokerRequest { broker_id }).await;
        let message = format!("Broker ID {broker_id} is not currently registered");
        assert_eq!((response.error_code, response.error_message), (102, Some(message.into())));
    }
    // Kafka forgets its only broker, and its clients then find none.
    let response = client.call(0, &UnregisterBrokerRequest { broker_id: 1 }).await;
    let message = "Broker ID 1 stays registered: this version does not forget a broker";
    assert_eq!((response.error_code, response.error_message), (42, Some(message.into())));
    assert_eq!(client.metadata(None).await.brokers.len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_told_with_their_last_batch() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let id = producer_id(&mut client).await;
    for (sequence, timestamp) in [(0, 5_000), (2, 4_000)] {
        let batch = idempotent_batch(id, 3, sequence, timestamp, &[b"a", b"b"]);
        assert_eq!(client.produce("t", 0, batch.to_bytes()).await.error_code, 0);
    }
    let asked =
        |name: &str, indexes: &[i32]| TopicRequest { name: name.into(), partition_indexes: indexes.to_vec() };
    let request = DescribeProducersRequest {
        topics: vec![
            asked("t", &[0, 7, -1, 0]),
            asked("t", &[1, 0]),
            asked("nope", &[0]),
            asked("", &[0]),
            asked("a b", &[0]),
            asked("..", &[0]),
            asked(&"x".repeat(250), &[0]),
        ],
    };
    let response = client.call(0, &request).await;
    let partition = |partition_index, code: i16, message: Option<&str>| PartitionResponse {
        partition_index,
        error_code: code,
        error_message: message.map(Str::from),
        active_producers: Vec::new(),
    };
    let topic = |name: &str, partitions| TopicResponse { name: name.into(), partitions };
    let known = PartitionResponse {
        active_producers: vec![ProducerState {
            producer_id: id,
            producer_epoch: 3,
            last_sequence: 3,
            last_timestamp: 4_001,
            coordinator_epoch: -1,
            current_txn_start_offset: -1,
        }],
        ..partition(0, 0, None)
    };
    let long = "x".repeat(250);
    let too_long = format!(
        "Topic name is invalid: the length of '{}' is longer than the max allowed length 249",
        "x".repeat(249)
    );
    let expected = DescribeProducersResponse {
        throttle_time_ms: 0,
        topics: vec![
            // Kafka answers a partition as often as it is named; here it is answered once.
            topic("t", vec![known, partition(7, 3, None), partition(-1, 3, None)]),
            topic("t", vec![partition(1, 0, None)]),
            topic("nope", vec![partition(0, 3, Some("This server does not host this topic-partition."))]),
            topic("", vec![partition(0, 17, Some("Topic name is invalid: the empty string is not allowed"))]),
            topic(
                "a b",
                vec![partition(
                    0,
                    17,
                    Some(
                        "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' \
                         and '-'",
                    ),
                )],
            ),
            topic("..", vec![partition(0, 17, Some("Topic name is invalid: '.' or '..' is not allowed"))]),
            topic(&long, vec![partition(0, 17, Some(&too_long))]),
        ],
    };
    assert_eq!(response, expected);
    assert_eq!(client.call(0, &DescribeProducersRequest::default()).await.topics, []);
    node.stop().await;
}

async fn described(client: &mut RawClient, version: i16, kind: i8, name: &str) -> DescribeConfigsResult {
    let resource =
        DescribeConfigsResource { resource_type: kind, resource_name: name.into(), configuration_keys: None };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: false,
    };
    client.call(version, &request).await.results.remove(0)
}

const BROKER: i8 = 4;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_and_client_metrics_have_kafkas_settings() {
    let node = Node::start_with(Options::with(&[("group.consumer.session.timeout.ms", "50000")])).await;
    let mut client = node.client().await;
    for version in 1..=4 {
        let group = described(&mut client, version, GROUP, "g").await;
        assert_eq!((group.error_code, group.error_message), (0, Some(Str::default())));
        assert_eq!(group.configs.len(), 17);
        let of = |name: &str| group.configs.iter().find(|entry| entry.name == name).unwrap();
        let session = of("consumer.session.timeout.ms");
        assert_eq!((session.value.as_deref(), session.config_source), (Some("50000"), 4));
        let synonyms: Vec<_> = session
            .synonyms
            .iter()
            .map(|of| (of.name.to_string(), of.value.clone().unwrap().to_string()))
            .collect();
        let name = || "group.consumer.session.timeout.ms".to_owned();
        assert_eq!(synonyms, [(name(), "50000".to_owned()), (name(), "45000".to_owned())]);
        let reset = of("share.auto.offset.reset");
        assert_eq!((reset.value.as_deref(), reset.config_source), (Some("latest"), 5));
        assert_eq!((reset.read_only, reset.is_sensitive), (true, false));
        assert!(!session.read_only);
        assert_eq!(reset.config_type, if version >= 3 { 2 } else { 0 });

        let metrics = described(&mut client, version, CLIENT_METRICS, "m").await;
        assert_eq!(metrics.error_code, 0);
        let values: Vec<_> = metrics
            .configs
            .iter()
            .map(|entry| {
                (entry.name.to_string(), entry.value.clone().unwrap().to_string(), entry.config_source)
            })
            .collect();
        let expected = [("interval.ms", "300000"), ("match", ""), ("metrics", "")];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value.to_owned(), 5)));
        assert!(metrics.configs.iter().all(|entry| entry.synonyms.is_empty()));

        let malformed = "This most likely occurs because of a request being malformed by the client library or the message \
                         was sent to an incompatible broker. See the broker logs for more details.";
        for (kind, name, message) in [
            (GROUP, "", "Group name must not be empty"),
            (CLIENT_METRICS, "", "Client metrics subscription name must not be empty"),
            (BROKER, "x", "Broker id must be an integer, but it is: x"),
            (BROKER, "9", "Unexpected broker id, expected 1 or empty string, but received 9"),
            (8, "", "Broker id must not be empty"),
            (64, "x", malformed),
            (0, "", malformed),
        ] {
            let refused = described(&mut client, version, kind, name).await;
            assert_eq!((refused.error_code, refused.error_message), (42, Some(message.into())));
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_every_key_is_shown_and_secrets_are_not() {
    let node = Node::start_with(Options::with(&[
        ("num.io.threads", "3"),
        ("ssl.keystore.password", "hush"),
        ("offsets.topic.replication.factor", "1"),
    ]))
    .await;
    let mut client = node.client().await;
    for version in 1..=4 {
        let broker = described(&mut client, version, BROKER, "1").await;
        assert_eq!(broker.configs.len(), tidelog_core::topic_config::broker_keys().count());
        assert!(broker.configs.len() > 340);
        let of = |name: &str| broker.configs.iter().find(|entry| entry.name == name).unwrap();
        let secret = of("ssl.keystore.password");
        assert_eq!((secret.is_sensitive, &secret.value, secret.synonyms.len()), (true, &None, 0));
        let threads = of("num.io.threads");
        assert_eq!(
            (threads.value.as_deref(), threads.config_source, threads.read_only),
            (Some("3"), 4, true)
        );
        let factor = of("offsets.topic.replication.factor");
        assert_eq!((factor.read_only, factor.synonyms.len()), (true, 2));
        assert_eq!(of("group.max.size").value.as_deref(), Some("2147483647"));
        if version >= 3 {
            let types = [secret, factor, of("principal.builder.class")].map(|entry| entry.config_type);
            assert_eq!(types, [9, 4, 8]);
        }
    }
    node.stop().await;
}

/// Code and message of a change, asked of both APIs in their newest versions.
async fn altered(client: &mut RawClient, kind: i8, name: &str, key: &str) -> (i16, Option<String>) {
    let incremental = incremental_alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: vec![incremental_alter_configs::AlterableConfig {
            name: key.into(),
            config_operation: 0,
            value: Some("1".into()),
        }],
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![incremental], validate_only: true };
    let response = client.call(1, &request).await.responses.remove(0);
    let all = alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: vec![alter_configs::AlterableConfig { name: key.into(), value: Some("1".into()) }],
    };
    let request = AlterConfigsRequest { resources: vec![all], validate_only: true };
    let both = client.call(2, &request).await.responses.remove(0);
    assert_eq!((both.error_code, &both.error_message), (response.error_code, &response.error_message));
    (response.error_code, response.error_message.map(|message| message.to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_set_is_refused_in_kafkas_words() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (kind, name, key, code, message) in [
        (GROUP, "g", "foo", 40, "Unknown group config name: foo"),
        (GROUP, "", "foo", 42, "Default group resources are not allowed."),
        (CLIENT_METRICS, "m", "foo", 42, "Unknown client metrics configuration: foo"),
        (CLIENT_METRICS, "", "foo", 42, "Subscription name can't be empty"),
        (64, "x", "foo", 42, "Unknown resource type 64"),
        (0, "", "foo", 42, "Unknown resource type 0"),
        (8, "1", "root", 42, "Unknown resource type 8"),
        (BROKER, "1", "group.max.size", 42, "Cannot update these configs dynamically: [group.max.size]"),
        (BROKER, "", "process.roles", 42, "Cannot update these configs dynamically: [process.roles]"),
        // Kafka has an effect for these.
        (BROKER, "1", "num.io.threads", 42, "Cannot update these configs dynamically: [num.io.threads]"),
        (
            GROUP,
            "g",
            "consumer.session.timeout.ms",
            40,
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms; \
             consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
        ),
        (
            CLIENT_METRICS,
            "m",
            "interval.ms",
            42,
            "interval.ms cannot be set: this broker collects no client metrics",
        ),
    ] {
        assert_eq!(
            altered(&mut client, kind, name, key).await,
            (code, Some(message.to_owned())),
            "{kind} {name} {key}"
        );
    }
    assert_eq!(
        altered(&mut client, BROKER, "1", "group.consumer.assignment.interval.ms").await,
        (0, None),
        "the one setting of groups that Kafka changes while it runs"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_to_authenticate_is_told_that_nobody_has_to() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for version in 0..=1 {
        let answer = client.call(version, &SaslHandshakeRequest { mechanism: "PLAIN".into() }).await;
        assert_eq!(
            answer,
            SaslHandshakeResponse {
                error_code: ErrorCode::IllegalSaslState.code(),
                ..SaslHandshakeResponse::default()
            },
            "version {version}"
        );
    }
    for version in 0..=2 {
        let answer = client
            .call(version, &SaslAuthenticateRequest { auth_bytes: (&b"\0user\0secret"[..]).into() })
            .await;
        let told = (answer.error_code, answer.auth_bytes.len(), answer.session_lifetime_ms);
        assert_eq!(told, (ErrorCode::IllegalSaslState.code(), 0, 0), "version {version}");
        assert!(answer.error_message.unwrap().contains("SaslAuthenticate"), "version {version}");
    }
    client.create_topic("t", 1, &[]).await;
    node.stop().await;
}
