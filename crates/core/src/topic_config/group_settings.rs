//! The settings of one group: Kafka's keys, which fall back to the broker's of groups of that kind.

use std::collections::BTreeMap;

use tidelog_types::shown;

use super::{
    BrokerSettings,
    broker_keys::broker_key,
    check::{ConfigError, check},
    describe::{Description, Source, SynonymValue},
    keys::{
        ConfigType::{Boolean, Int, String},
        Key,
        Rule::{Any, AtLeast, OffsetReset, OneOf},
        Synonym, key_of,
    },
};

const ISOLATION_LEVELS: &[&str] = &["read_committed", "read_uncommitted"];

/// What is told of the keys of groups that are not served.
const SHARE: &str = "Without effect: there are no share groups.";
const STREAMS: &str = "Without effect: there are no streams groups.";

macro_rules! broker {
    ($key:literal) => {
        &[Synonym { key: $key, factor: 1 }]
    };
}

/// Every key that a group may set, in the order of names.
pub static GROUP_SETTINGS: &[Key] = &[
    key_of(
        "consumer.assignment.interval.ms",
        Int,
        "1000",
        AtLeast(0),
        broker!("group.consumer.assignment.interval.ms"),
        "The least time between two target assignments of the group.",
    ),
    key_of(
        "consumer.heartbeat.interval.ms",
        Int,
        "5000",
        AtLeast(1),
        broker!("group.consumer.heartbeat.interval.ms"),
        "How often the group's members send a heartbeat.",
    ),
    key_of(
        "consumer.session.timeout.ms",
        Int,
        "45000",
        AtLeast(1),
        broker!("group.consumer.session.timeout.ms"),
        "A member that is silent for this long is taken out of the group.",
    ),
    key_of(
        "share.assignment.interval.ms",
        Int,
        "1000",
        AtLeast(0),
        broker!("group.share.assignment.interval.ms"),
        SHARE,
    )
    .without_effect(),
    key_of("share.auto.offset.reset", String, "latest", OffsetReset, &[], SHARE).without_effect(),
    key_of(
        "share.delivery.count.limit",
        Int,
        "5",
        AtLeast(2),
        broker!("group.share.delivery.count.limit"),
        SHARE,
    )
    .without_effect(),
    key_of(
        "share.heartbeat.interval.ms",
        Int,
        "5000",
        AtLeast(1),
        broker!("group.share.heartbeat.interval.ms"),
        SHARE,
    )
    .without_effect(),
    key_of("share.isolation.level", String, "read_uncommitted", OneOf(ISOLATION_LEVELS), &[], SHARE)
        .without_effect(),
    key_of(
        "share.partition.max.record.locks",
        Int,
        "2000",
        AtLeast(100),
        broker!("group.share.partition.max.record.locks"),
        SHARE,
    )
    .without_effect(),
    key_of(
        "share.record.lock.duration.ms",
        Int,
        "30000",
        AtLeast(1000),
        broker!("group.share.record.lock.duration.ms"),
        SHARE,
    )
    .without_effect(),
    key_of("share.renew.acknowledge.enable", Boolean, "true", Any, &[], SHARE).without_effect(),
    key_of(
        "share.session.timeout.ms",
        Int,
        "45000",
        AtLeast(1),
        broker!("group.share.session.timeout.ms"),
        SHARE,
    )
    .without_effect(),
    key_of(
        "streams.assignment.interval.ms",
        Int,
        "1000",
        AtLeast(0),
        broker!("group.streams.assignment.interval.ms"),
        STREAMS,
    )
    .without_effect(),
    key_of(
        "streams.heartbeat.interval.ms",
        Int,
        "5000",
        AtLeast(1),
        broker!("group.streams.heartbeat.interval.ms"),
        STREAMS,
    )
    .without_effect(),
    key_of(
        "streams.initial.rebalance.delay.ms",
        Int,
        "3000",
        AtLeast(0),
        broker!("group.streams.initial.rebalance.delay.ms"),
        STREAMS,
    )
    .without_effect(),
    key_of(
        "streams.num.standby.replicas",
        Int,
        "0",
        AtLeast(0),
        broker!("group.streams.num.standby.replicas"),
        STREAMS,
    )
    .without_effect(),
    key_of(
        "streams.session.timeout.ms",
        Int,
        "45000",
        AtLeast(1),
        broker!("group.streams.session.timeout.ms"),
        STREAMS,
    )
    .without_effect(),
];

/// The key of this name that a group may set.
#[must_use]
pub fn group_key(name: &str) -> Option<&'static Key> {
    GROUP_SETTINGS.binary_search_by(|key| key.name.cmp(name)).ok().map(|found| &GROUP_SETTINGS[found])
}

/// The broker's keys that say how small and how large a group may set one of its own.
fn bounds(key: &Key) -> [Option<&'static Key>; 2] {
    let Some((kind, rest)) = key.name.split_once('.') else { return [None, None] };
    // Kafka's one name that leaves a word out.
    let rest = rest.strip_prefix("num.").unwrap_or(rest);
    ["min", "max"].map(|end| broker_key(&format!("group.{kind}.{end}.{rest}")))
}

/// The number in force for a group: its own, the broker's, the default.
fn number(
    key: &Key,
    broker: &BrokerSettings,
    overrides: &BTreeMap<std::string::String, std::string::String>,
) -> i64 {
    let own = overrides.get(key.name).and_then(|value| value.trim().parse().ok());
    own.or_else(|| key.synonyms.first().and_then(|synonym| broker.number(synonym.key)))
        .or_else(|| key.default.and_then(|default| default.parse().ok()))
        .unwrap_or_default()
}

/// Checks all settings that a group is to have: each, and whether they are within the broker's bounds and fit together.
///
/// # Errors
/// Kafka's words for what is wrong.
pub fn check_group(
    broker: &BrokerSettings,
    overrides: &BTreeMap<std::string::String, std::string::String>,
) -> Result<(), Vec<ConfigError>> {
    let wrong = |(name, value): (&std::string::String, &std::string::String)| match group_key(name) {
        Some(key) => check(key, value).err(),
        None => Some(ConfigError::UnknownGroupKey { key: shown(name).to_owned() }),
    };
    let mut errors: Vec<ConfigError> = overrides.iter().filter_map(wrong).collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut conflict = |text: std::string::String| errors.push(ConfigError::Conflict { text });
    // What the group does not set is the broker's, which its own checks keep in order.
    for key in overrides.keys().filter_map(|name| group_key(name)).filter(|key| key.kind == Int) {
        let (value, [least, most]) = (number(key, broker, overrides), bounds(key));
        if let Some(least) = least
            && broker.number(least.name).is_some_and(|bound| value < bound)
        {
            conflict(format!("{} must be greater than or equal to {}", key.name, least.name));
        }
        if let Some(most) = most
            && broker.number(most.name).is_some_and(|bound| value > bound)
        {
            conflict(format!("{} must be less than or equal to {}", key.name, most.name));
        }
    }
    for kind in ["consumer", "share", "streams"] {
        let [session, heartbeat] =
            ["session.timeout.ms", "heartbeat.interval.ms"].map(|rest| format!("{kind}.{rest}"));
        if let (Some(longer), Some(shorter)) = (group_key(&session), group_key(&heartbeat))
            && [longer, shorter].iter().any(|key| overrides.contains_key(key.name))
            && number(longer, broker, overrides) <= number(shorter, broker, overrides)
        {
            conflict(format!("{session} must be greater than {heartbeat}"));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Describes every setting of a group with these of its own.
#[must_use]
pub fn describe_group(
    broker: &BrokerSettings,
    overrides: &BTreeMap<std::string::String, std::string::String>,
) -> Vec<Description> {
    let describe = |key: &'static Key| {
        let mut synonyms = match key.synonyms.first() {
            Some(synonym) => broker.values(synonym.key),
            None => {
                let value = key.default.unwrap_or_default().to_owned();
                vec![SynonymValue { name: key.name, value, source: Source::Default }]
            }
        };
        if let Some(value) = overrides.get(key.name).filter(|_| !key.read_only) {
            let value = value.clone();
            synonyms.insert(0, SynonymValue { name: key.name, value, source: Source::DynamicGroup });
        }
        Description {
            name: key.name,
            value: synonyms.first().map(|first| first.value.clone()),
            source: synonyms.first().map_or(Source::Default, |first| first.source),
            read_only: key.read_only,
            sensitive: false,
            kind: key.kind,
            synonyms,
            documentation: key.documentation,
        }
    };
    GROUP_SETTINGS.iter().map(describe).collect()
}
