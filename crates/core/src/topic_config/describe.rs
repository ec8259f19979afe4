//! The answers of DescribeConfigs: every key, its value, where the value comes from, and what stands behind it.

use std::collections::BTreeMap;

use super::{
    BrokerSettings,
    broker_keys::{broker_keys, is_idle},
    keys::{ConfigType, Key, TOPIC_KEYS},
};

/// Where a value comes from, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The group's own setting.
    DynamicGroup,
    /// The topic's own override.
    DynamicTopic,
    /// The replicated override of this broker.
    DynamicBroker,
    /// The replicated override of all brokers.
    DynamicDefaultBroker,
    /// The broker's file, environment or flags.
    StaticBroker,
    /// Nobody set it.
    Default,
}

/// One value that stands behind another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SynonymValue {
    /// The key, of the topic or of the broker.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Where that comes from.
    pub source: Source,
}

/// One described key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The key.
    pub name: &'static str,
    /// Its value in force; `None` is Kafka's null.
    pub value: Option<String>,
    /// Where it comes from.
    pub source: Source,
    /// Whether it cannot be set; of a broker's: not while the broker runs.
    pub read_only: bool,
    /// Whether the value is a secret, which is not told.
    pub sensitive: bool,
    /// The type of its values.
    pub kind: ConfigType,
    /// The values behind it, the one in force first.
    pub synonyms: Vec<SynonymValue>,
    /// What it does.
    pub documentation: &'static str,
}

impl Description {
    /// Kafka's `is_default` of old versions: nobody set the value. An override that equals the default is no default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.source == Source::Default
    }
}

/// Describes every key of a topic with these overrides.
#[must_use]
pub fn describe_topic(broker: &BrokerSettings, overrides: &BTreeMap<String, String>) -> Vec<Description> {
    TOPIC_KEYS.iter().map(|key| describe_topic_key(key, broker, overrides)).collect()
}

fn describe_topic_key(
    key: &'static Key,
    broker: &BrokerSettings,
    overrides: &BTreeMap<String, String>,
) -> Description {
    let mut synonyms: Vec<_> = key.synonyms.iter().flat_map(|synonym| broker.values(synonym.key)).collect();
    // A synonym in hours stands behind one in milliseconds of the same source only.
    synonyms.sort_by_key(|value| value.source);
    // Kafka names its default in other units only behind a value in milliseconds: alone it is told as the topic's default.
    let told = synonyms.iter().position(|value| {
        value.source != Source::Default || key.synonyms.first().is_some_and(|first| first.key == value.name)
    });
    synonyms.drain(..told.unwrap_or(synonyms.len()));
    if let Some(value) = overrides.get(key.name).filter(|_| !key.read_only) {
        let value = super::check::told(key, value);
        let own = SynonymValue { name: key.name, value, source: Source::DynamicTopic };
        synonyms.insert(0, own);
    }
    let (value, source) = super::topic_value(key, broker, overrides);
    Description {
        name: key.name,
        value: Some(super::check::told(key, &value)),
        source,
        read_only: key.read_only,
        sensitive: false,
        kind: key.kind,
        synonyms,
        documentation: key.documentation,
    }
}

/// Keys of one thing in several units, the strongest first: each is told with those behind it.
const UNITS: [&[&str]; 4] = [
    &["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
    &["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    &["log.roll.jitter.ms", "log.roll.jitter.hours"],
    &["log.roll.ms", "log.roll.hours"],
];

/// The values of a broker key, and behind it those of the same in other units, as Kafka tells them.
fn broker_synonyms(key: &Key, broker: &BrokerSettings) -> Vec<SynonymValue> {
    let Some(names) = UNITS.iter().find(|names| names.contains(&key.name)) else {
        return broker.values(key.name);
    };
    let mut values: Vec<_> = names.iter().flat_map(|name| broker.values(name)).collect();
    values.sort_by_key(|value| value.source);
    let told = values.iter().position(|value| value.name == key.name);
    values.drain(..told.unwrap_or(values.len()));
    values
}

/// Describes every key of a broker.
#[must_use]
pub fn describe_broker(broker: &BrokerSettings) -> Vec<Description> {
    broker_keys()
        .map(|key| {
            let sensitive = key.kind == ConfigType::Password;
            let synonyms = if sensitive { Vec::new() } else { broker_synonyms(key, broker) };
            let first = synonyms.first();
            Description {
                name: key.name,
                value: first.map(|synonym| synonym.value.clone()),
                source: first.map_or(Source::Default, |synonym| synonym.source),
                read_only: key.read_only,
                sensitive,
                kind: key.kind,
                synonyms,
                documentation: key.documentation,
            }
        })
        .collect()
}

/// Describes the replicated overrides of all brokers (the broker resource without a name): only what is set there.
#[must_use]
pub fn describe_broker_defaults(overrides: &BTreeMap<String, String>) -> Vec<Description> {
    broker_keys()
        .filter_map(|key| {
            let value = overrides.get(key.name).filter(|_| !is_idle(key.name))?;
            let source = Source::DynamicDefaultBroker;
            Some(Description {
                name: key.name,
                value: Some(value.clone()),
                source,
                read_only: key.read_only,
                sensitive: false,
                kind: key.kind,
                synonyms: vec![SynonymValue { name: key.name, value: value.clone(), source }],
                documentation: key.documentation,
            })
        })
        .collect()
}
