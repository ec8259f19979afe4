//! Settings shown and changed.

use std::collections::BTreeMap;

use tidelog_core::cluster::{Command, ConfigChange, ConfigResource, TIER_DELETION_GRACE_MS};
use tidelog_testkit::raw_client::RawClient;
use tidelog_types::TopicName;
use tidelog_wire::{
    ErrorCode, Str,
    messages::{
        AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest, alter_configs,
        describe_configs::{DescribeConfigsResource, DescribeConfigsResourceResult},
        incremental_alter_configs,
    },
};

use crate::node::{Node, Options};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;

async fn describe(
    client: &mut RawClient,
    version: i16,
    kind: i8,
    name: &str,
) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: Str::from(name),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: version >= 3,
    };
    let mut response = client.call(version, &request).await;
    assert_eq!(response.results[0].error_code, 0, "{:?}", response.results[0].error_message);
    response.results.remove(0).configs
}

async fn overrides(client: &mut RawClient, topic: &str) -> BTreeMap<String, String> {
    let described = describe(client, 4, TOPIC, topic).await;
    let set = described.into_iter().filter(|entry| entry.config_source == 1);
    set.map(|entry| (entry.name.to_string(), entry.value.unwrap().to_string())).collect()
}

/// The settings of all brokers.
async fn defaults(client: &mut RawClient) -> BTreeMap<String, String> {
    let described = describe(client, 4, BROKER, "").await;
    described.into_iter().map(|entry| (entry.name.to_string(), entry.value.unwrap().to_string())).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn alter(client: &mut RawClient, kind: i8, name: &str, configs: &[(&str, &str)]) -> i16 {
    let configs = configs.iter().map(|(name, value)| alter_configs::AlterableConfig {
        name: Str::from(*name),
        value: Some(Str::from(*value)),
    });
    let resource = alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: Str::from(name),
        configs: configs.collect(),
    };
    let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
    client.call(2, &request).await.responses[0].error_code
}

async fn incremental(
    client: &mut RawClient,
    kind: i8,
    name: &str,
    operations: &[(&str, i8, Option<&str>)],
) -> i16 {
    let configs =
        operations.iter().map(|(name, operation, value)| incremental_alter_configs::AlterableConfig {
            name: Str::from(*name),
            config_operation: *operation,
            value: value.map(Str::from),
        });
    let resource = incremental_alter_configs::AlterConfigsResource {
        resource_type: kind,
        resource_name: Str::from(name),
        configs: configs.collect(),
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    client.call(1, &request).await.responses[0].error_code
}

// B17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_was_set_says_so_even_where_it_is_the_default() {
    let node = Node::start_with(Options::with(&[("log.segment.bytes", "65536")])).await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[("cleanup.policy", "delete"), ("retention.ms", "604800000")]).await;
    for version in 1..=4 {
        let described = describe(&mut client, version, TOPIC, "t").await;
        assert_eq!(described.len(), tidelog_core::topic_config::TOPIC_KEYS.len(), "every key");
        let of = |name: &str| described.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!((of("cleanup.policy").config_source, of("retention.ms").config_source), (1, 1));
        assert_eq!(
            (of("segment.bytes").config_source, of("segment.bytes").value.as_deref()),
            (4, Some("65536"))
        );
        assert_eq!(
            (of("segment.ms").config_source, of("segment.ms").value.as_deref()),
            (5, Some("604800000"))
        );
        assert_eq!(of("remote.storage.enable").value.as_deref(), Some("true"));
        let synonyms: Vec<_> =
            of("cleanup.policy").synonyms.iter().map(|s| (s.name.to_string(), s.source)).collect();
        assert_eq!(synonyms, [("cleanup.policy".to_owned(), 1), ("log.cleanup.policy".to_owned(), 5)]);
        if version >= 3 {
            assert_eq!((of("cleanup.policy").config_type, of("retention.ms").config_type), (7, 5));
            assert!(of("retention.ms").documentation.as_ref().is_some_and(|text| !text.is_empty()));
        }
    }
    let broker = describe(&mut client, 4, BROKER, "1").await;
    let of = |name: &str| broker.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!(of("num.partitions").value.as_deref(), Some("1"));
    assert_eq!(of("default.replication.factor").value.as_deref(), Some("1"));
    assert_eq!((of("node.id").read_only, of("log.retention.ms").read_only), (true, false));
    let resource = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        configuration_keys: Some(vec!["retention.ms".into()]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    assert_eq!(client.call(4, &request).await.results[0].configs.len(), 1);
    for (kind, name, code) in [(TOPIC, "none", 3), (TOPIC, "a/b", 17), (BROKER, "2", 42), (99, "x", 42)] {
        let resource = DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.into(),
            configuration_keys: None,
        };
        let request =
            DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
        assert_eq!(client.call(4, &request).await.results[0].error_code, code, "{kind} {name}");
    }
    node.stop().await;
}

// B16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alter_replaces_and_incremental_alter_edits() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[("cleanup.policy", "compact"), ("segment.bytes", "65536")]).await;
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 0, Some("1000"))]).await, 0);
    assert_eq!(
        overrides(&mut client, "t").await,
        map(&[("cleanup.policy", "compact"), ("retention.ms", "1000"), ("segment.bytes", "65536")])
    );
    assert_eq!(
        incremental(
            &mut client,
            TOPIC,
            "t",
            &[("segment.bytes", 1, None), ("cleanup.policy", 2, Some("delete"))]
        )
        .await,
        0
    );
    assert_eq!(
        overrides(&mut client, "t").await,
        map(&[("cleanup.policy", "compact,delete"), ("retention.ms", "1000")])
    );
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("cleanup.policy", 3, Some("compact"))]).await, 0);
    assert_eq!(
        overrides(&mut client, "t").await,
        map(&[("cleanup.policy", "delete"), ("retention.ms", "1000")])
    );
    assert_eq!(alter(&mut client, TOPIC, "t", &[("retention.ms", "2000")]).await, 0);
    assert_eq!(overrides(&mut client, "t").await, map(&[("retention.ms", "2000")]));
    let before = overrides(&mut client, "t").await;
    let invalid = ErrorCode::InvalidConfig.code();
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 2, Some("1"))]).await, invalid);
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("no.key", 0, Some("1"))]).await, invalid);
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 0, Some("x"))]).await, invalid);
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 9, Some("1"))]).await, 42);
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 0, None)]).await, 42);
    assert_eq!(incremental(&mut client, TOPIC, "none", &[("retention.ms", 0, Some("1"))]).await, 3);
    assert_eq!(
        incremental(&mut client, TOPIC, "t", &[("remote.storage.enable", 0, Some("false"))]).await,
        invalid
    );
    // Nothing deletes what is in the bucket, so nobody may be told that it is.
    let off =
        [("remote.storage.enable", 0, Some("false")), ("remote.log.delete.on.disable", 0, Some("true"))];
    assert_eq!(incremental(&mut client, TOPIC, "t", &off).await, invalid);
    assert_eq!(overrides(&mut client, "t").await, before, "a refused change changes nothing");
    node.stop().await;
}

// Who copies settings of another topic gets the rest of them, who asks for nothing else is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nothing_acts_on_stays_at_its_default() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[("preallocate", "true"), ("segment.bytes", "65536")]).await;
    assert_eq!(overrides(&mut client, "t").await, map(&[("segment.bytes", "65536")]));
    let described = describe(&mut client, 4, TOPIC, "t").await;
    let told = described.iter().find(|entry| entry.name == "preallocate").unwrap();
    assert_eq!((told.value.as_deref(), told.config_source, told.read_only), (Some("false"), 5, true));
    assert_eq!(described.iter().filter(|entry| entry.read_only).count(), 6);

    let whole = [("file.delete.delay.ms", "1"), ("retention.ms", "1000")];
    assert_eq!(alter(&mut client, TOPIC, "t", &whole).await, 0);
    assert_eq!(overrides(&mut client, "t").await, map(&[("retention.ms", "1000")]));
    let invalid = ErrorCode::InvalidConfig.code();
    assert_eq!(alter(&mut client, TOPIC, "t", &[("file.delete.delay.ms", "soon")]).await, invalid);

    let meant = [("preallocate", 0, Some("true"))];
    assert_eq!(incremental(&mut client, TOPIC, "t", &meant).await, invalid);
    // As a mirror of another cluster's topics asks.
    let copied = [("retention.ms", 0, Some("2000")), ("preallocate", 0, Some("true"))];
    assert_eq!(incremental(&mut client, TOPIC, "t", &copied).await, 0);
    assert_eq!(overrides(&mut client, "t").await, map(&[("retention.ms", "2000")]));
    for default in [("preallocate", 0, Some("false")), ("preallocate", 1, None)] {
        assert_eq!(incremental(&mut client, TOPIC, "t", &[default]).await, 0);
    }
    assert_eq!(overrides(&mut client, "t").await, map(&[("retention.ms", "2000")]));

    let share = [("share.isolation.level", 0, Some("read_committed"))];
    assert_eq!(incremental(&mut client, GROUP, "g", &share).await, invalid);
    let session = ("consumer.session.timeout.ms", 0, Some("50000"));
    assert_eq!(incremental(&mut client, GROUP, "g", &[share[0], session]).await, 0);
    for key in ["log.preallocate", "log.segment.delete.delay.ms", "compression.lz4.level"] {
        let refused = incremental(&mut client, BROKER, "1", &[(key, 0, Some("1"))]).await;
        assert_eq!(refused, ErrorCode::InvalidRequest.code(), "{key}");
    }
    node.stop().await;
}

// Another version may have kept them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_settings_that_nothing_acts_on_are_none_and_go_with_the_next_change() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    let topic_id = node.image().topic_by_name(&TopicName::new("t").unwrap()).unwrap().id;
    let stored = |resource, key: &str, value: &str| Command::AlterConfigs {
        resource,
        changes: vec![(key.to_owned(), ConfigChange::Set { value: value.to_owned() })],
    };
    let (brokers, of_topic) = (ConfigResource::ClusterDefault {}, ConfigResource::Topic { topic_id });
    node.propose(stored(brokers, "compression.lz4.level", "3")).await;
    node.propose(stored(of_topic, "file.delete.delay.ms", "1")).await;
    node.propose(stored(of_topic, "compression.lz4.level", "99")).await;
    assert_eq!(defaults(&mut client).await, map(&[]));
    for (kind, name) in [(TOPIC, "t"), (BROKER, "1")] {
        let described = describe(&mut client, 4, kind, name).await;
        let level = described.iter().find(|entry| entry.name == "compression.lz4.level").unwrap();
        let values: Vec<_> =
            level.synonyms.iter().map(|entry| (entry.value.as_deref(), entry.source)).collect();
        assert_eq!((level.value.as_deref(), level.config_source), (Some("9"), 5));
        assert_eq!(values, [(Some("9"), 5)]);
    }
    let other = [("file.delete.delay.ms", 0, Some("5"))];
    assert_eq!(incremental(&mut client, TOPIC, "t", &other).await, ErrorCode::InvalidConfig.code());
    // What is stored of another version keeps no change from being made, and goes with it.
    assert_eq!(incremental(&mut client, TOPIC, "t", &[("retention.ms", 0, Some("1000"))]).await, 0);
    assert_eq!(incremental(&mut client, BROKER, "", &[("log.retention.ms", 0, Some("1000"))]).await, 0);
    let one = map(&[("retention.ms", "1000")]);
    assert_eq!(node.image().configs(of_topic), Some(&one));
    let one = map(&[("log.retention.ms", "1000")]);
    assert_eq!(node.image().configs(brokers), Some(&one));
    node.stop().await;
}

// What controllers act on is kept among the settings of all brokers, and is no client's to take away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_replacement_keeps_what_the_node_itself_set() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let grace = ConfigChange::Set { value: "1000".to_owned() };
    node.propose(Command::AlterConfigs {
        resource: ConfigResource::ClusterDefault {},
        changes: vec![(TIER_DELETION_GRACE_MS.to_owned(), grace)],
    })
    .await;
    assert_eq!(alter(&mut client, BROKER, "", &[("log.retention.ms", "1000")]).await, 0);
    assert_eq!(
        defaults(&mut client).await,
        map(&[("log.retention.ms", "1000"), (TIER_DELETION_GRACE_MS, "1000")])
    );
    assert_eq!(alter(&mut client, BROKER, "", &[]).await, 0);
    assert_eq!(defaults(&mut client).await, map(&[(TIER_DELETION_GRACE_MS, "1000")]));
    let other = alter(&mut client, BROKER, "", &[(TIER_DELETION_GRACE_MS, "2000")]).await;
    assert_eq!(other, ErrorCode::InvalidRequest.code());
    assert_eq!(defaults(&mut client).await, map(&[(TIER_DELETION_GRACE_MS, "1000")]));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_or_a_key_that_is_named_twice_is_refused() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    client.create_topic("u", 1, &[]).await;
    let config = |value: &str| alter_configs::AlterableConfig {
        name: "retention.ms".into(),
        value: Some(Str::from(value)),
    };
    let resource = |name: &str, configs| alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: Str::from(name),
        configs,
    };
    let request = AlterConfigsRequest {
        resources: vec![
            resource("t", vec![config("1")]),
            resource("u", vec![config("2")]),
            resource("t", vec![config("3")]),
        ],
        validate_only: false,
    };
    let codes: Vec<i16> =
        client.call(2, &request).await.responses.iter().map(|response| response.error_code).collect();
    assert_eq!(codes, [42, 0, 42]);
    assert_eq!(
        (overrides(&mut client, "t").await, overrides(&mut client, "u").await),
        (map(&[]), map(&[("retention.ms", "2")]))
    );
    let twice = [("retention.ms", "1"), ("retention.ms", "2")];
    assert_eq!(alter(&mut client, TOPIC, "t", &twice).await, 42);
    let twice = [("retention.ms", 0, Some("1")), ("retention.ms", 1, None)];
    assert_eq!(incremental(&mut client, TOPIC, "t", &twice).await, 42);
    // Described as often as it is named; a thousand times as much as a request holds, once.
    let resource =
        DescribeConfigsResource { resource_type: TOPIC, resource_name: "t".into(), configuration_keys: None };
    for (times, answered) in [(2, 2), (64, 64), (65, 1)] {
        let resources = vec![resource.clone(); times];
        let request = DescribeConfigsRequest { resources, ..DescribeConfigsRequest::default() };
        assert_eq!(client.call(4, &request).await.results.len(), answered);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brokers_dynamic_settings_act_and_survive() {
    let node = Node::start().await;
    let mut client = node.client().await;
    client.create_topic("t", 1, &[]).await;
    assert_eq!(incremental(&mut client, BROKER, "", &[("log.retention.ms", 0, Some("5000"))]).await, 0);
    assert_eq!(incremental(&mut client, BROKER, "1", &[("message.max.bytes", 0, Some("100"))]).await, 0);
    assert_eq!(incremental(&mut client, BROKER, "1", &[("node.id", 0, Some("3"))]).await, 42);
    assert_eq!(incremental(&mut client, BROKER, "2", &[("log.retention.ms", 0, Some("3"))]).await, 42);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::default()).await;
    let mut client = node.client().await;
    let described = describe(&mut client, 4, TOPIC, "t").await;
    let of = |name: &str| described.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!((of("retention.ms").value.as_deref(), of("retention.ms").config_source), (Some("5000"), 3));
    assert_eq!(
        (of("max.message.bytes").value.as_deref(), of("max.message.bytes").config_source),
        (Some("100"), 2)
    );
    let large = tidelog_testkit::raw_client::batch(tidelog_format::codec::Codec::None, 1, &[&[0; 100]]);
    assert_eq!(client.produce("t", 0, large.to_bytes()).await.error_code, ErrorCode::MessageTooLarge.code());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_of_a_login_that_is_not_here_is_kept_for_one_broker_as_kafka_keeps_it() {
    const KEY: &str = "sasl.kerberos.min.time.before.relogin";
    let node = Node::start_with(Options::with(&[(KEY, "70000")])).await;
    let mut client = node.client().await;
    assert_eq!(incremental(&mut client, BROKER, "1", &[(KEY, 0, Some("58000"))]).await, 0);
    assert_eq!(incremental(&mut client, BROKER, "1", &[(KEY, 0, Some("soon"))]).await, 40);
    let invalid = ErrorCode::InvalidRequest.code();
    assert_eq!(incremental(&mut client, BROKER, "", &[(KEY, 0, Some("1"))]).await, invalid);
    assert_eq!(alter(&mut client, BROKER, "", &[(KEY, "1")]).await, invalid);
    // Its like stay as they are.
    let like = "sasl.kerberos.ticket.renew.jitter";
    assert_eq!(incremental(&mut client, BROKER, "1", &[(like, 0, Some("0.1"))]).await, invalid);
    let folder = node.stop().await;
    let node = Node::start_in(folder, Options::with(&[(KEY, "70000")])).await;
    let mut client = node.client().await;
    let told = async |client: &mut RawClient| {
        let described = describe(client, 4, BROKER, "1").await;
        let entry = described.into_iter().find(|entry| entry.name == KEY).unwrap();
        let synonyms = entry.synonyms.iter();
        let synonyms: Vec<(String, i8)> =
            synonyms.map(|synonym| (synonym.value.as_ref().unwrap().to_string(), synonym.source)).collect();
        (entry.value.unwrap().to_string(), entry.config_source, entry.read_only, synonyms)
    };
    let of = |values: &[(&str, i8)]| -> Vec<(String, i8)> {
        values.iter().map(|(value, source)| ((*value).to_owned(), *source)).collect()
    };
    let all = of(&[("58000", 2), ("70000", 4), ("60000", 5)]);
    assert_eq!(told(&mut client).await, ("58000".to_owned(), 2, false, all));
    assert_eq!(alter(&mut client, BROKER, "1", &[(KEY, "1000")]).await, 0);
    let all = of(&[("1000", 2), ("70000", 4), ("60000", 5)]);
    assert_eq!(told(&mut client).await, ("1000".to_owned(), 2, false, all));
    assert_eq!(incremental(&mut client, BROKER, "1", &[(KEY, 1, None)]).await, 0);
    let all = of(&[("70000", 4), ("60000", 5)]);
    assert_eq!(told(&mut client).await, ("70000".to_owned(), 4, false, all));
    node.stop().await;
}
