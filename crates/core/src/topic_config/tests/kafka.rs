//! Every key is held against Apache Kafka's own answers. What differs on purpose is listed here with its reason, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;

/// Kafka's rows; the file says what they are.
const KAFKA: &str = include_str!("../../../testdata/kafka-4.3.1-configs.tsv");

/// What is here instead of what Kafka has: scope, name, what differs, ours, and why.
const DIFFERENCES: &[(&str, &str, &str, &str, &str)] = &[
    (
        "broker",
        "listeners",
        "default",
        "PLAINTEXT://127.0.0.1:9092",
        "without a listener a node serves its own machine alone",
    ),
    ("broker", "log.local.retention.ms", "default", "21600000", "reads move to the bucket after six hours"),
    ("topic", "local.retention.ms", "default", "21600000", "as its broker key"),
    (
        "broker",
        "offsets.topic.replication.factor",
        "default",
        "1",
        "a node alone is usual here; Kafka's first group waits for three brokers",
    ),
    (
        "broker",
        "queued.max.request.bytes",
        "default",
        "134217728",
        "Kafka's -1 is an unbounded queue, and there is none here",
    ),
    (
        "broker",
        "remote.log.storage.system.enable",
        "default",
        "true",
        "there is always a bucket, and it cannot be turned off",
    ),
    ("topic", "remote.storage.enable", "default", "true", "tiering is what this broker is for"),
    (
        "topic",
        "min.insync.replicas",
        "synonyms",
        "min.insync.replicas",
        "Kafka sets it for the cluster as it formats one, and has its default behind that; nobody sets it here",
    ),
];

/// Broker keys that Kafka does not have, and why they are here.
const OURS: &[(&str, &str)] = &[
    ("local.disk.bytes.max", "local disk is bounded for all partitions together"),
    ("log.flush.default", "an acknowledgement waits for a sync, and need not"),
    ("log.flush.linger.ms", "the journal syncs by itself"),
    ("log.journal.bytes.max", "all partitions share one journal"),
    ("log.journal.file.bytes", "all partitions share one journal"),
    ("log.tail.bytes", "the newest records are read from memory of ours and not of the system"),
    ("manifest.publish.ms", "the bucket holds what it takes to read it alone"),
    ("tier.cache.bytes", "Kafka leaves tiering to a plugin, whose keys are its own"),
    ("tier.check.interval.ms", "as above"),
    ("tier.delete.grace.ms", "as above"),
    ("tier.object.target.bytes", "as above"),
    ("tier.orphan.age.ms", "as above"),
    ("tier.read.memory.bytes", "as above"),
    ("tier.upload.max.lag.ms", "as above"),
    ("tier.upload.memory.bytes", "as above"),
];

/// A key's type, default and synonyms, as texts; a null is `null`.
type Row = BTreeMap<&'static str, String>;
type Rows = BTreeMap<(&'static str, &'static str), Row>;

/// The tables of `docs/CONFIGURATION.md`.
fn tables() -> String {
    let shown = |value: Option<&str>| match value {
        None => "null".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(value) => format!("`{value}`"),
    };
    let row = |key: &Key, last: &str| {
        let kind = format!("{:?}", key.kind).to_lowercase();
        format!("| `{}` | {kind} | {} | {last} |\n", key.name, shown(key.default))
    };
    let mut text = "## Topics\n\n| key | type | default | |\n| --- | --- | --- | --- |\n".to_owned();
    text.extend(TOPIC_KEYS.iter().map(|key| row(key, key.documentation)));
    text.push_str("\n## Groups\n\n| key | type | default | |\n| --- | --- | --- | --- |\n");
    text.extend(GROUP_SETTINGS.iter().map(|key| row(key, key.documentation)));
    text.push_str(
        "\n## Brokers\n\n| key | type | default | set while it runs | |\n| --- | --- | --- | --- | --- |\n",
    );
    let (with, without): (Vec<&Key>, Vec<&Key>) = broker_keys().partition(|key| has_effect(key.name));
    text.extend(with.into_iter().map(|key| {
        let dynamic = if key.read_only { "no" } else { "yes" };
        row(key, &format!("{dynamic} | {}", key.documentation))
    }));
    text.push_str(
        "\n## Keys of Apache Kafka without effect\n\n| key | type | default |\n| --- | --- | --- |\n",
    );
    text.extend(without.into_iter().map(|key| row(key, "").replace(" |  |\n", " |\n")));
    text
}

/// `UPDATE_DOCS=1` writes the tables anew.
#[test]
fn the_page_of_settings_has_every_key() {
    // Where cargo runs this from: a target directory that several clones share may hold another one's build.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let path = std::path::Path::new(&here).join("../../docs/CONFIGURATION.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, after) = page.split_once("## Topics\n").expect("the tables begin with the topics");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{}", tables())).unwrap();
        return;
    }
    assert!(
        format!("## Topics\n{after}") == tables(),
        "docs/CONFIGURATION.md: run this test with UPDATE_DOCS=1"
    );
}

fn row(kind: &str, default: &str, synonyms: &str) -> Row {
    [("type", kind), ("default", default), ("synonyms", synonyms)]
        .map(|(what, text)| (what, text.to_owned()))
        .into()
}

fn kafkas() -> Rows {
    KAFKA
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [scope, name, kind, default, synonyms] = columns[..] else { panic!("{line}") };
            ((scope, name), row(kind, default, synonyms))
        })
        .collect()
}

/// What a broker and a topic answer here where nobody set anything.
fn ours() -> Rows {
    let broker = BrokerSettings::default();
    let topic = describe_topic(&broker, &BTreeMap::new()).into_iter().map(|key| ("topic", key));
    let described = topic.chain(describe_broker(&broker).into_iter().map(|key| ("broker", key)));
    described
        .map(|(scope, key)| {
            let kind = format!("{:?}", key.kind).to_uppercase();
            let synonyms: Vec<&str> = key.synonyms.iter().map(|synonym| synonym.name).collect();
            let default = key.value.as_deref().unwrap_or("null");
            ((scope, key.name), row(&kind, default, &synonyms.join(",")))
        })
        .collect()
}

#[test]
fn every_key_is_kafkas_but_where_a_reason_is_given() {
    let (kafka, ours) = (kafkas(), ours());
    let mut found = BTreeSet::new();
    for (place @ (scope, name), theirs) in &kafka {
        let here = ours.get(place).unwrap_or_else(|| panic!("{scope} key {name} is missing"));
        for (what, text) in theirs {
            if here[what] != *text {
                found.insert((*scope, *name, *what, here[what].as_str()));
            }
        }
    }
    let allowed: BTreeSet<_> =
        DIFFERENCES.iter().map(|(scope, name, what, ours, _)| (*scope, *name, *what, *ours)).collect();
    assert_eq!(found, allowed);

    let without_row: BTreeSet<_> = ours
        .keys()
        .filter(|place| !kafka.contains_key(*place))
        .map(|(scope, name)| (*scope, *name))
        .collect();
    assert_eq!(without_row, OURS.iter().map(|(name, _)| ("broker", *name)).collect());
    let reasons = DIFFERENCES.iter().map(|difference| difference.4).chain(OURS.iter().map(|(_, why)| *why));
    assert!(reasons.into_iter().all(|why| !why.is_empty()));
}

#[test]
fn a_default_in_other_units_stands_behind_what_somebody_set_alone() {
    let names = |broker: &BrokerSettings, of: &str| {
        let described = describe_topic(broker, &BTreeMap::new());
        let key = described.into_iter().find(|key| key.name == of).unwrap();
        (key.value.unwrap(), key.source, key.synonyms.iter().map(|of| of.name).collect::<Vec<_>>())
    };
    let mut broker = BrokerSettings::default();
    assert_eq!(names(&broker, "retention.ms"), ("604800000".to_owned(), Source::Default, vec![]));
    assert_eq!(names(&broker, "segment.ms"), ("604800000".to_owned(), Source::Default, vec![]));
    assert_eq!(names(&broker, "segment.jitter.ms"), ("0".to_owned(), Source::Default, vec![]));
    broker.dynamic_defaults.insert("log.retention.ms".to_owned(), "5".to_owned());
    let set = vec!["log.retention.ms", "log.retention.hours"];
    assert_eq!(names(&broker, "retention.ms"), ("5".to_owned(), Source::DynamicDefaultBroker, set));
    let own = [("retention.ms".to_owned(), "9".to_owned())].into();
    broker.dynamic_defaults.clear();
    let described = describe_topic(&broker, &own);
    let key = described.iter().find(|key| key.name == "retention.ms").unwrap();
    assert_eq!(key.synonyms.iter().map(|of| of.name).collect::<Vec<_>>(), ["retention.ms"]);
    // Kafka would call this a default, and name nobody: what was set is told.
    broker.static_values.insert("log.retention.hours".to_owned(), "2".to_owned());
    let set = vec!["log.retention.hours", "log.retention.hours"];
    assert_eq!(names(&broker, "retention.ms"), ("7200000".to_owned(), Source::StaticBroker, set));
}
