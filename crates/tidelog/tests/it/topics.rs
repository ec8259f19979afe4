//! `tidelog topic` with every configuration key of a topic.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use crate::process::{Folder, Node, PATIENCE, serve};

/// Every key of Apache Kafka 4.3.1's topics with its default (ours where it differs on purpose), and another value.
const KEYS: [(&str, &str, &str); 27] = [
    ("cleanup.policy", "delete", "compact,delete"),
    ("compression.gzip.level", "-1", "9"),
    ("compression.type", "producer", "zstd"),
    ("compression.zstd.level", "3", "-5"),
    ("delete.retention.ms", "86400000", "1000"),
    ("flush.messages", "9223372036854775807", "1000"),
    ("flush.ms", "9223372036854775807", "500"),
    ("index.interval.bytes", "4096", "8192"),
    ("local.retention.bytes", "-2", "1048576"),
    ("local.retention.ms", "21600000", "60000"),
    ("max.compaction.lag.ms", "9223372036854775807", "86400000"),
    ("max.message.bytes", "1048588", "2000000"),
    ("message.timestamp.after.max.ms", "3600000", "1000"),
    ("message.timestamp.before.max.ms", "9223372036854775807", "604800000"),
    ("message.timestamp.type", "CreateTime", "LogAppendTime"),
    ("min.cleanable.dirty.ratio", "0.5", "0.25"),
    ("min.compaction.lag.ms", "0", "1000"),
    ("min.insync.replicas", "1", "2"),
    ("remote.log.copy.disable", "false", "true"),
    ("remote.storage.enable", "true", "true"),
    ("retention.bytes", "-1", "1073741824"),
    ("retention.ms", "604800000", "3600000"),
    ("segment.bytes", "1073741824", "16777216"),
    ("segment.index.bytes", "10485760", "4096"),
    ("segment.jitter.ms", "0", "1000"),
    ("segment.ms", "604800000", "60000"),
    ("unclean.leader.election.enable", "false", "true"),
];

/// Those that nothing acts on, likewise.
const WITHOUT_EFFECT: [(&str, &str, &str); 6] = [
    ("compression.lz4.level", "9", "12"),
    ("file.delete.delay.ms", "60000", "1"),
    ("follower.replication.throttled.replicas", "", "0:1,1:1"),
    ("leader.replication.throttled.replicas", "", "*"),
    ("preallocate", "false", "true"),
    ("remote.log.delete.on.disable", "false", "true"),
];

/// What a topic's description says of each key: its value, and whether the topic sets it.
async fn configs(node: &Node, topic: &str) -> BTreeMap<String, (String, bool)> {
    let described = node.verb(&["topic", "describe", topic]).await;
    let of = |config: &Value| {
        let value = config["value"].as_str().unwrap().to_owned();
        (config["name"].as_str().unwrap().to_owned(), (value, config["overridden"] == true))
    };
    described["configs"].as_array().unwrap().iter().map(of).collect()
}

fn expected(other: bool) -> BTreeMap<String, (String, bool)> {
    let idle =
        WITHOUT_EFFECT.into_iter().map(|(key, default, _)| (key.to_owned(), (default.to_owned(), false)));
    KEYS.into_iter()
        .map(|(key, default, set)| (key.to_owned(), (if other { set } else { default }.to_owned(), other)))
        .chain(idle)
        .collect()
}

#[tokio::test]
async fn every_key_of_a_topic_is_shown_set_and_unset() {
    let folder = Folder::new();
    let node = Node::start(serve(&folder.path("data"), &[])).await;
    node.verb(&["topic", "create", "plain"]).await;
    assert_eq!(configs(&node, "plain").await, expected(false));

    let settings: Vec<String> = KEYS.iter().map(|(key, _, set)| format!("{key}={set}")).collect();
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    node.verb(&[&["topic", "create", "set"], &flags[..]].concat()).await;
    assert_eq!(configs(&node, "set").await, expected(true));

    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--config", setting]).collect();
    node.verb(&[&["topic", "alter", "plain"], &flags[..]].concat()).await;
    assert_eq!(configs(&node, "plain").await, expected(true));
    let unset: Vec<&str> = KEYS.iter().flat_map(|(key, ..)| ["--unset", key]).collect();
    node.verb(&[&["topic", "alter", "plain"], &unset[..]].concat()).await;
    assert_eq!(configs(&node, "plain").await, expected(false));

    // As a person sees it: one row for each key, and who set it.
    let shown = node.run_plain(&["topic", "describe", "set"]).await;
    let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in shown.output.lines().skip_while(|line| !line.starts_with("SETTING")).skip(1) {
        let (key, rest) = line.split_once(' ').unwrap();
        rows.insert(key, rest.split_whitespace().collect());
    }
    assert_eq!(rows.len(), KEYS.len() + WITHOUT_EFFECT.len(), "{}", shown.output);
    for (key, _, set) in KEYS {
        assert_eq!(rows[key], [set, "topic"], "{key}");
    }
    let wrong = node.run(&["topic", "alter", "set", "--set", "retention.hours=1"]).await;
    assert_eq!(wrong.code, Some(1));
    let told = "alter topic set: INVALID_CONFIG: Unknown topic config name: retention.hours";
    assert_eq!(wrong.errors, format!("error: {told}\n"));
    for (key, _, other) in WITHOUT_EFFECT {
        let setting = format!("{key}={other}");
        let told = format!("Cannot set {key}: it has no effect here, and keeps its default");
        for verb in [["topic", "alter", "set"], ["topic", "create", "more"]] {
            let wrong =
                node.run(&[&verb[..], &["--set", &setting, "--set", "retention.ms=1"]].concat()).await;
            assert_eq!(wrong.code, Some(2));
            assert!(wrong.errors.contains(&told), "{}", wrong.errors);
        }
    }
    let wrong = node.run(&["group", "alter", "g", "--set", "share.isolation.level=read_committed"]).await;
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.errors.contains("Cannot set share.isolation.level"), "{}", wrong.errors);
    assert_eq!(node.stop().await.code, Some(0));
}

// A topic that is not tiered is looked at by the broker alone, as often as it is told.
#[tokio::test]
async fn retention_looks_as_often_as_it_is_told() {
    let folder = Folder::new();
    let settings = ["--set", "log.retention.check.interval.ms=100"];
    let node = Node::start(serve(&folder.path("data"), &settings)).await;
    node.verb(&[
        "topic",
        "create",
        "short",
        "--set",
        "remote.storage.enable=false",
        "--set",
        "retention.ms=1",
    ])
    .await;
    node.produce("short", "a\nb\nc\n").await;
    let deadline = Instant::now() + PATIENCE;
    while !node.values("short").await.is_empty() {
        assert!(Instant::now() < deadline, "nothing was let go");
    }
    assert_eq!(node.stop().await.code, Some(0));
}
