//! The settings of a subscription to client metrics: Kafka's keys, as they are where nobody set any.

use super::{
    describe::{Description, Source},
    keys::ConfigType::{self, Int, List},
};

const CLIENT_METRICS_KEYS: &[(&str, ConfigType, &str)] =
    &[("interval.ms", Int, "300000"), ("match", List, ""), ("metrics", List, "")];

/// Whether a subscription to client metrics has such a key.
#[must_use]
pub fn is_client_metrics_key(name: &str) -> bool {
    CLIENT_METRICS_KEYS.iter().any(|(key, ..)| *key == name)
}

/// Describes a subscription to client metrics that nobody made.
#[must_use]
pub fn describe_client_metrics() -> Vec<Description> {
    let describe = |(name, kind, default): &(&'static str, ConfigType, &str)| Description {
        name,
        value: Some((*default).to_owned()),
        source: Source::Default,
        read_only: false,
        sensitive: false,
        kind: *kind,
        synonyms: Vec::new(),
        documentation: "",
    };
    CLIENT_METRICS_KEYS.iter().map(describe).collect()
}
