//! The settings of a group and of a subscription to client metrics: Kafka's keys, as they are where nobody set any.

use super::{
    BrokerSettings,
    describe::{Description, Source, SynonymValue},
    keys::ConfigType::{self, Boolean, Int, List, String},
};

/// A key of a group, and where its value comes from: a broker's key, or a default of its own.
type GroupKey = (&'static str, ConfigType, Result<&'static str, &'static str>);

/// In the order of names.
const GROUP_KEYS: &[GroupKey] = &[
    ("consumer.assignment.interval.ms", Int, Ok("group.consumer.assignment.interval.ms")),
    ("consumer.heartbeat.interval.ms", Int, Ok("group.consumer.heartbeat.interval.ms")),
    ("consumer.session.timeout.ms", Int, Ok("group.consumer.session.timeout.ms")),
    ("share.assignment.interval.ms", Int, Ok("group.share.assignment.interval.ms")),
    ("share.auto.offset.reset", String, Err("latest")),
    ("share.delivery.count.limit", Int, Ok("group.share.delivery.count.limit")),
    ("share.heartbeat.interval.ms", Int, Ok("group.share.heartbeat.interval.ms")),
    ("share.isolation.level", String, Err("read_uncommitted")),
    ("share.partition.max.record.locks", Int, Ok("group.share.partition.max.record.locks")),
    ("share.record.lock.duration.ms", Int, Ok("group.share.record.lock.duration.ms")),
    ("share.renew.acknowledge.enable", Boolean, Err("true")),
    ("share.session.timeout.ms", Int, Ok("group.share.session.timeout.ms")),
    ("streams.assignment.interval.ms", Int, Ok("group.streams.assignment.interval.ms")),
    ("streams.heartbeat.interval.ms", Int, Ok("group.streams.heartbeat.interval.ms")),
    ("streams.initial.rebalance.delay.ms", Int, Ok("group.streams.initial.rebalance.delay.ms")),
    ("streams.num.standby.replicas", Int, Ok("group.streams.num.standby.replicas")),
    ("streams.session.timeout.ms", Int, Ok("group.streams.session.timeout.ms")),
];

const CLIENT_METRICS_KEYS: &[(&str, ConfigType, &str)] =
    &[("interval.ms", Int, "300000"), ("match", List, ""), ("metrics", List, "")];

/// Whether a group has such a key.
#[must_use]
pub fn is_group_key(name: &str) -> bool {
    GROUP_KEYS.iter().any(|(key, ..)| *key == name)
}

/// Whether a subscription to client metrics has such a key.
#[must_use]
pub fn is_client_metrics_key(name: &str) -> bool {
    CLIENT_METRICS_KEYS.iter().any(|(key, ..)| *key == name)
}

fn described(
    name: &'static str,
    kind: ConfigType,
    value: Option<std::string::String>,
    synonyms: Vec<SynonymValue>,
) -> Description {
    Description {
        name,
        value,
        source: synonyms.first().map_or(Source::Default, |first| first.source),
        read_only: false,
        sensitive: false,
        kind,
        synonyms,
        documentation: "",
    }
}

/// Describes a group that nobody set anything for: what the broker's keys say.
#[must_use]
pub fn describe_group(broker: &BrokerSettings) -> Vec<Description> {
    let describe = |(name, kind, from): &GroupKey| {
        let synonyms = match from {
            Ok(key) => broker.values(key),
            Err(default) => {
                let value = (*default).to_owned();
                vec![SynonymValue { name, value, source: Source::Default }]
            }
        };
        described(name, *kind, synonyms.first().map(|first| first.value.clone()), synonyms)
    };
    GROUP_KEYS.iter().map(describe).collect()
}

/// Describes a subscription to client metrics that nobody made.
#[must_use]
pub fn describe_client_metrics() -> Vec<Description> {
    let describe = |(name, kind, default): &(&'static str, ConfigType, &str)| {
        described(name, *kind, Some((*default).to_owned()), Vec::new())
    };
    CLIENT_METRICS_KEYS.iter().map(describe).collect()
}
