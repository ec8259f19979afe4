//! Topics: made, grown, described, deleted.

use tidelog_format::codec::Codec;
use tidelog_testkit::raw_client::{RawClient, batch};
use tidelog_wire::{
    ErrorCode, Str, Uuid,
    messages::{
        CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
        DescribeLogDirsRequest, DescribeTopicPartitionsRequest, ListConfigResourcesRequest, MetadataRequest,
        create_partitions::CreatePartitionsTopic,
        create_topics::{
            CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatableTopicResult,
        },
        delete_topics::DeleteTopicState,
        describe_topic_partitions::{Cursor, TopicRequest},
        metadata::MetadataRequestTopic,
    },
};

use crate::node::{Node, Options, listener};

fn topic(name: &str, num_partitions: i32, replication_factor: i16) -> CreatableTopic {
    CreatableTopic { name: Str::from(name), num_partitions, replication_factor, ..CreatableTopic::default() }
}

async fn create(
    client: &mut RawClient,
    version: i16,
    topics: Vec<CreatableTopic>,
) -> Vec<CreatableTopicResult> {
    let request = CreateTopicsRequest { topics, timeout_ms: 10_000, validate_only: false };
    client.call(version, &request).await.topics
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_created_topic_is_usable_when_the_answer_comes() {
    let node = Node::start_with(Options::with(&[("num.partitions", "3")])).await;
    let mut client = node.client().await;
    for version in 2..=7 {
        let name = format!("t{version}");
        let made = create(&mut client, version, vec![topic(&name, -1, -1)]).await.remove(0);
        assert_eq!((made.error_code, made.error_message.as_deref()), (0, None), "version {version}");
        if version >= 5 {
            assert_eq!((made.num_partitions, made.replication_factor), (3, 1));
            assert_eq!(
                made.configs.as_ref().map(Vec::len),
                Some(tidelog_core::topic_config::TOPIC_KEYS.len())
            );
        }
        assert_eq!(made.topic_id.is_zero(), version < 7);
        let described = client.metadata(Some(&name)).await.topics.remove(0);
        assert_eq!((described.error_code, described.partitions.len()), (0, 3));
        for partition in described.partitions {
            assert_eq!((partition.error_code, partition.leader_id), (0, 1));
            assert_eq!(
                (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas),
                (vec![1], vec![1], vec![])
            );
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_cannot_be_are_refused_each_for_itself() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("there", 1, &[]).await;
    client.create_topic("a.b", 1, &[]).await;
    let with = |config: &str, value: Option<&str>| CreatableTopic {
        configs: vec![CreatableTopicConfig { name: Str::from(config), value: value.map(Str::from) }],
        ..topic("config", 1, 1)
    };
    let assigned = |partitions: i32, brokers: Vec<i32>| CreatableTopic {
        assignments: vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: brokers }],
        ..topic("assigned", partitions, if partitions == -1 { -1 } else { 1 })
    };
    let cases = [
        (topic("there", 1, 1), ErrorCode::TopicAlreadyExists),
        (topic("a_b", 1, 1), ErrorCode::InvalidTopicException),
        (topic("a/b", 1, 1), ErrorCode::InvalidTopicException),
        (topic("", 1, 1), ErrorCode::InvalidTopicException),
        (topic(&"x".repeat(250), 1, 1), ErrorCode::InvalidTopicException),
        (topic("n", 0, 1), ErrorCode::InvalidPartitions),
        (topic("n", -2, 1), ErrorCode::InvalidPartitions),
        (topic("n", 1, 0), ErrorCode::InvalidReplicationFactor),
        (topic("n", 1, 2), ErrorCode::InvalidReplicationFactor),
        (with("no.such.key", Some("1")), ErrorCode::InvalidConfig),
        (with("retention.ms", Some("-5")), ErrorCode::InvalidConfig),
        (with("retention.ms", None), ErrorCode::InvalidConfig),
        (assigned(1, vec![1]), ErrorCode::InvalidRequest),
        (assigned(-1, vec![2]), ErrorCode::InvalidReplicaAssignment),
        (assigned(-1, vec![1, 1]), ErrorCode::InvalidReplicaAssignment),
        (assigned(-1, vec![]), ErrorCode::InvalidReplicaAssignment),
    ];
    for (asked, code) in cases {
        let name = asked.name.clone();
        let results = create(&mut client, 7, vec![asked, topic("beside", 1, 1)]).await;
        assert_eq!(results[0].error_code, code.code(), "{name}: {:?}", results[0].error_message);
        assert!(results[0].error_message.is_some());
        assert_eq!(results[1].error_code, 0, "the other one is made");
        let delete = DeleteTopicsRequest {
            topic_names: vec!["beside".into()],
            timeout_ms: 10_000,
            ..DeleteTopicsRequest::default()
        };
        assert_eq!(client.call(5, &delete).await.responses[0].error_code, 0);
    }
    // Kafka counts the partitions of a whole request.
    for count in [10_001, 10_000] {
        let results = create(&mut client, 7, vec![topic("n", count, 1), topic("beside", 1, 1)]).await;
        assert_eq!(results.iter().map(|result| result.error_code).collect::<Vec<_>>(), [44, 44]);
    }
    let results = create(&mut client, 7, vec![topic("twice", 1, 1), topic("twice", 1, 1)]).await;
    assert_eq!((results.len(), results[0].error_code), (1, ErrorCode::InvalidRequest.code()));
    let validate =
        CreateTopicsRequest { topics: vec![topic("only", 2, 1)], timeout_ms: 10_000, validate_only: true };
    let looked_at = client.call(7, &validate).await.topics.remove(0);
    assert_eq!((looked_at.error_code, looked_at.topic_id.is_zero()), (0, false));
    assert_eq!(client.metadata(Some("only")).await.topics[0].error_code, 3, "nothing was made");
    let made = create(&mut client, 7, vec![assigned(-1, vec![1])]).await.remove(0);
    assert_eq!((made.error_code, made.num_partitions), (0, 1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_made_for_those_who_ask_by_name() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let ask = |name: &str, create: bool| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            name: Some(Str::from(name)),
            ..MetadataRequestTopic::default()
        }]),
        allow_auto_topic_creation: create,
        ..MetadataRequest::default()
    };
    assert_eq!(client.call(12, &ask("a", false)).await.topics[0].error_code, 3);
    let made = client.call(12, &ask("a", true)).await.topics.remove(0);
    assert_eq!(
        (made.error_code, made.partitions.len(), made.partitions[0].leader_id),
        (0, 1, 1),
        "led from the first answer"
    );
    assert!(!made.topic_id.is_zero());
    assert_eq!(client.call(12, &ask("b/c", true)).await.topics[0].error_code, 17);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(&[("auto.create.topics.enable", "false")])).await;
    let mut client = node.client().await;
    assert_eq!(client.call(12, &ask("c", true)).await.topics[0].error_code, 3);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_names_all_none_or_by_id() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("a", 1, &[]).await;
    client.create_topic("b", 1, &[]).await;
    let asked = |topics| MetadataRequest { topics, ..MetadataRequest::default() };
    for version in 0..=13 {
        let empty = client.call(version, &asked(Some(Vec::new()))).await;
        assert_eq!(empty.topics.len(), if version == 0 { 2 } else { 0 }, "version {version}");
        assert_eq!((empty.brokers.len(), empty.controller_id), (1, if version == 0 { -1 } else { 1 }));
        if version > 0 {
            assert_eq!(client.call(version, &asked(None)).await.topics.len(), 2, "version {version}");
        }
    }
    let id = client.metadata(Some("a")).await.topics[0].topic_id;
    let by_id = |topic_id| asked(Some(vec![MetadataRequestTopic { topic_id, name: None }]));
    let found = client.call(12, &by_id(id)).await.topics.remove(0);
    assert_eq!((found.error_code, found.name.as_deref()), (0, Some("a")));
    let unknown = client.call(12, &by_id(Uuid([9; 16]))).await.topics.remove(0);
    assert_eq!((unknown.error_code, unknown.name, unknown.topic_id), (100, None, Uuid([9; 16])));
    node.stop().await;
}

// B14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_listener_tells_its_own_address() {
    let listeners = vec![listener("INTERNAL", None), listener("EXTERNAL", Some("broker.example"))];
    let node = Node::start_with(Options { listeners, ..Options::default() }).await;
    for ((_, address), host) in node.broker.addresses().iter().zip(["127.0.0.1", "broker.example"]) {
        let mut client = RawClient::connect(*address).await;
        let metadata = client.metadata(None).await;
        assert_eq!(
            (metadata.brokers[0].host.as_str(), metadata.brokers[0].port),
            (host, i32::from(address.port()))
        );
        let cluster = client.call(1, &DescribeClusterRequest::default()).await;
        assert_eq!(
            (cluster.brokers[0].host.as_str(), cluster.brokers[0].port),
            (host, i32::from(address.port()))
        );
        assert_eq!(Some(cluster.cluster_id), metadata.cluster_id);
        let controllers = DescribeClusterRequest { endpoint_type: 2, ..DescribeClusterRequest::default() };
        assert_eq!(client.call(1, &controllers).await.error_code, ErrorCode::MismatchedEndpointType.code());
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_and_never_taken_away() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 2, &[]).await;
    let grow = |name: &str, count| CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic { name: Str::from(name), count, assignments: None }],
        timeout_ms: 10_000,
        validate_only: false,
    };
    for (name, count, code) in [("t", 2, 37), ("t", 1, 37), ("t", 0, 37), ("t", 10_001, 44), ("none", 3, 3)] {
        assert_eq!(client.call(3, &grow(name, count)).await.results[0].error_code, code, "{name} {count}");
    }
    // A group is found by the number of the topic's partitions: with another one its offsets would be nowhere.
    crate::groups::coordinator(&mut client, "g").await;
    let count = client.metadata(Some("__consumer_offsets")).await.topics[0].partitions.len();
    let more = i32::try_from(count).unwrap() + 1;
    assert_eq!(client.call(3, &grow("__consumer_offsets", more)).await.results[0].error_code, 44);
    assert_eq!(client.metadata(Some("__consumer_offsets")).await.topics[0].partitions.len(), count);
    assert_eq!(client.call(3, &grow("t", 5)).await.results[0].error_code, 0);
    assert_eq!(client.metadata(Some("t")).await.topics[0].partitions.len(), 5);
    assert_eq!(client.fetch("t", 4, 0).await.error_code, 0, "hosted when the answer came");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_deleted_by_name_and_by_id() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("a", 1, &[]).await;
    client.create_topic("b", 1, &[]).await;
    let id = client.metadata(Some("b")).await.topics[0].topic_id;
    let state = |name: Option<&str>, topic_id| DeleteTopicState { name: name.map(Str::from), topic_id };
    let topics = vec![
        state(Some("a"), Uuid::ZERO),
        state(None, id),
        state(Some("none"), Uuid::ZERO),
        state(None, Uuid([9; 16])),
        state(None, Uuid::ZERO),
        state(Some("a"), id),
    ];
    let delete =
        |topics| DeleteTopicsRequest { topics, timeout_ms: 10_000, ..DeleteTopicsRequest::default() };
    let answered = async |client: &mut RawClient, topics| {
        let responses = client.call(6, &delete(topics)).await.responses;
        let mut told: Vec<_> = responses
            .iter()
            .map(|one| (one.error_code, one.name.as_ref().map(ToString::to_string), one.topic_id == id))
            .collect();
        told.sort();
        told
    };
    let name = |name: &str| Some(name.to_owned());
    // What is named twice stays, and is answered once: by its name, by its id, by both.
    for (twice, told) in [
        (vec![state(Some("b"), Uuid::ZERO), state(Some("b"), Uuid::ZERO)], (42, name("b"), false)),
        (vec![state(None, id), state(None, id)], (42, None, true)),
        (vec![state(Some("b"), Uuid::ZERO), state(None, id)], (42, name("b"), true)),
    ] {
        assert_eq!(answered(&mut client, twice).await, [told]);
    }
    assert_eq!(
        answered(&mut client, topics).await,
        [
            (0, name("a"), false),
            (0, name("b"), true),
            (3, name("none"), false),
            (42, None, false),
            (42, name("a"), true),
            (100, None, false),
        ]
    );
    assert_eq!(client.metadata(None).await.topics.len(), 0);
    node.stop().await;
}

// Found by the campaign of a bucket that misbehaves: a client makes its topic anew as soon as it is deleted, while the files of
// another one are still being removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_deleted_topic_is_free_while_it_is_hosted_yet() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (name, partitions) in [("slow", 100), ("again", 1)] {
        client.create_topic(name, partitions, &[]).await;
    }
    for handle in node.replicas.partitions() {
        let number = handle.place().partition.0;
        if handle.topic().as_str() == "slow" {
            let sent = batch(Codec::None, 1, &[b"x"]).to_bytes();
            assert_eq!(client.produce("slow", number, sent).await.error_code, 0);
            handle.roll().await.unwrap();
        }
    }
    // Nobody waits until they are gone.
    for name in ["slow", "again"] {
        let topic_names = vec![name.into()];
        client
            .call(5, &DeleteTopicsRequest { topic_names, timeout_ms: 0, ..DeleteTopicsRequest::default() })
            .await;
    }
    let made = create(&mut client, 7, vec![topic("again", 1, 1)]).await.remove(0);
    assert_eq!(made.error_code, 0, "{:?}", made.error_message);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_described_in_pages() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("a", 3, &[]).await;
    client.create_topic("b", 2, &[]).await;
    let mut cursor = None;
    let mut seen = Vec::new();
    loop {
        let request = DescribeTopicPartitionsRequest {
            response_partition_limit: 2,
            cursor,
            ..DescribeTopicPartitionsRequest::default()
        };
        let page = client.call(0, &request).await;
        for topic in &page.topics {
            let name = topic.name.clone().unwrap().to_string();
            seen.extend(topic.partitions.iter().map(|partition| (name.clone(), partition.partition_index)));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
        assert!(seen.len() < 10, "it ends");
    }
    let expected =
        [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)].map(|(name, index)| (name.to_owned(), index));
    assert_eq!(seen, expected);
    let request = DescribeTopicPartitionsRequest {
        topics: ["none", "b"].map(|name| TopicRequest { name: Str::from(name) }).to_vec(),
        cursor: Some(Cursor { topic_name: "b".into(), partition_index: 1 }),
        ..DescribeTopicPartitionsRequest::default()
    };
    let page = client.call(0, &request).await;
    let found: Vec<_> = page
        .topics
        .iter()
        .map(|t| (t.name.clone().unwrap().to_string(), t.error_code, t.partitions.len()))
        .collect();
    assert_eq!(found, [("b".to_owned(), 0, 1), ("none".to_owned(), 3, 0)]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consoles_see_the_data_directory_and_what_has_settings() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("a", 2, &[]).await;
    for version in 1..=4 {
        let request = DescribeLogDirsRequest { topics: None };
        let directory = client.call(version, &request).await.results.remove(0);
        assert_eq!(
            (directory.error_code, directory.log_dir.as_str()),
            (0, &*node.folder.path().to_string_lossy())
        );
        let partitions: Vec<i32> = directory.topics[0].partitions.iter().map(|p| p.partition_index).collect();
        assert_eq!((directory.topics[0].name.as_str(), partitions), ("a", vec![0, 1]));
        assert_eq!(directory.total_bytes > 0, version >= 4);
    }
    let listed = client.call(1, &ListConfigResourcesRequest::default()).await.config_resources;
    let listed: Vec<_> = listed.iter().map(|r| (r.resource_type, r.resource_name.to_string())).collect();
    assert_eq!(listed, [(8, "1".to_owned()), (4, "1".to_owned()), (2, "a".to_owned())]);
    assert_eq!(client.call(0, &ListConfigResourcesRequest::default()).await.config_resources.len(), 0);
    node.stop().await;
}
