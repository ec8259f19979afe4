//! Configuration of topics, brokers and groups: keys, types, defaults, checks and their resolved form.
//!
//! **Owns** the tables of keys ([`TOPIC_KEYS`], [`broker_keys`], [`GROUP_SETTINGS`]), the order in which a value is looked for (topic, this
//! broker, all brokers, the broker's file, default), Kafka's texts of refusal, and [`TopicConfig`], the typed form that the
//! rest of the system acts on.
//!
//! **Does not own** where overrides are kept (the cluster's state) nor the wire forms (the broker).
//!
//! AlterConfigs resets every key that it does not name, the tiering keys too. Since `remote.storage.enable` is on by default,
//! such a reset never turns tiering off.

mod broker_keys;
mod check;
mod describe;
mod group_keys;
mod group_settings;
mod idle_keys;
mod keys;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tidelog_types::shown;

pub use self::{
    broker_keys::{broker_key, broker_keys, has_effect, is_idle, is_of_one_broker},
    check::{ConfigError, check},
    describe::{
        Description, Source, SynonymValue, describe_broker, describe_broker_defaults, describe_topic,
    },
    group_settings::{GROUP_SETTINGS, check_group, describe_group, group_key},
    keys::{ConfigType, Key, Rule, SEGMENT_BYTES_MIN, Synonym, TOPIC_KEYS, topic_key},
    resources::{describe_client_metrics, is_client_metrics_key},
};

/// What is set for a broker, by where it is set. Every value was checked with [`check`] when it came in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerSettings {
    /// From the broker's file, environment and flags.
    pub static_values: BTreeMap<String, String>,
    /// The replicated overrides of this broker.
    pub dynamic_values: BTreeMap<String, String>,
    /// The replicated overrides of all brokers.
    pub dynamic_defaults: BTreeMap<String, String>,
}

/// The broker's settings, in the role of the defaults of a topic.
pub type BrokerDefaults = BrokerSettings;

impl BrokerSettings {
    /// The values of a broker key, the one in force first; the default is the last where there is one.
    #[must_use]
    pub fn values(&self, name: &'static str) -> Vec<SynonymValue> {
        let set = [
            (&self.dynamic_values, Source::DynamicBroker),
            (&self.dynamic_defaults, Source::DynamicDefaultBroker),
            (&self.static_values, Source::StaticBroker),
        ];
        let is_idle = is_idle(name);
        let mut values: Vec<_> = set
            .into_iter()
            .filter(|(_, source)| !is_idle || *source == Source::StaticBroker)
            .filter_map(|(values, source)| {
                values.get(name).map(|value| SynonymValue { name, value: value.clone(), source })
            })
            .collect();
        if let Some(default) = broker_key(name).and_then(|key| key.default) {
            values.push(SynonymValue { name, value: default.to_owned(), source: Source::Default });
        }
        values
    }

    /// The value in force of a broker key; `None` where nobody set one and there is no default.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        [&self.dynamic_values, &self.dynamic_defaults, &self.static_values]
            .into_iter()
            .find_map(|values| values.get(name).map(String::as_str))
            .or_else(|| broker_key(name).and_then(|key| key.default))
    }

    /// The number in force of a broker key; `None` where there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.value(name)?.trim().parse().ok()
    }

    /// The number in force as a count or a size; `None` where there is none or it is negative.
    #[must_use]
    pub fn amount(&self, name: &str) -> Option<u64> {
        self.number(name).and_then(|number| u64::try_from(number).ok())
    }

    /// Whether a broker key is in force as `true`.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.value(name).and_then(check::boolean).unwrap_or(false)
    }

    /// Checks what the broker was started with: all wrong settings at once.
    ///
    /// # Errors
    /// One error for each wrong setting, or else for each two that cannot stand together.
    pub fn check_static(values: &BTreeMap<String, String>) -> Result<(), Vec<ConfigError>> {
        let mut errors: Vec<_> =
            values.iter().filter_map(|(name, value)| check_broker_value(name, value, false).err()).collect();
        if errors.is_empty() {
            errors = Self::disorder(&Self { static_values: values.clone(), ..Self::default() });
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Settings in force that should be in order and are not, in Kafka's words.
    #[must_use]
    pub fn disorder(&self) -> Vec<ConfigError> {
        let numbers = |name| self.number(name).unwrap_or_default();
        group_keys::ORDERED
            .iter()
            .filter(|(least, most)| numbers(least) > numbers(most))
            .map(|(least, most)| ConfigError::Conflict {
                text: format!("{most} must be greater than or equal to {least}"),
            })
            .chain(group_keys::protocol_disorder(self))
            .collect()
    }
}

/// Takes out of these overrides of a topic or a group the keys that nothing here acts on. What is told are those whose value is not
/// their default, as refusals.
pub fn take_without_effect(
    overrides: &mut BTreeMap<String, String>,
    key_of: impl Fn(&str) -> Option<&'static Key>,
) -> Vec<ConfigError> {
    let mut refusals = Vec::new();
    overrides.retain(|name, value| {
        let Some(key) = key_of(name).filter(|key| key.read_only) else { return true };
        if key.is_without_effect(value) {
            refusals.push(ConfigError::WithoutEffect { key: key.name });
        }
        false
    });
    refusals
}

/// Checks one broker value; with `dynamic`, also that the key may be altered while the broker runs.
///
/// # Errors
/// Kafka's words for what is wrong.
pub fn check_broker_value(name: &str, value: &str, dynamic: bool) -> Result<(), ConfigError> {
    let key =
        broker_key(name).ok_or_else(|| ConfigError::UnknownBrokerKey { key: shown(name).to_owned() })?;
    if dynamic && key.read_only {
        return Err(ConfigError::ReadOnly { key: name.to_owned() });
    }
    check(key, value)
}

/// The codec that a topic stores batches with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionType {
    /// As the producer sent them.
    Producer,
    /// Not compressed.
    Uncompressed,
    /// gzip.
    Gzip,
    /// snappy.
    Snappy,
    /// lz4.
    Lz4,
    /// zstd.
    Zstd,
}

/// Whose timestamps a topic's records carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's, at the append.
    LogAppendTime,
}

/// How old records leave a topic. Neither flag: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// By key.
    pub compact: bool,
    /// By age and size.
    pub delete: bool,
}

/// The settings of a topic, resolved: what every part of the system acts on. Where a number may be without limit it is an
/// `Option`, and `None` is without limit.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicConfig {
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `compression.type`.
    pub compression_type: CompressionType,
    /// `compression.gzip.level`; `None` is the codec's own choice.
    pub compression_gzip_level: Option<u32>,
    /// `compression.zstd.level`.
    pub compression_zstd_level: i32,
    /// `delete.retention.ms`.
    pub delete_retention_ms: u64,
    /// `flush.messages`; `None` is never.
    pub flush_messages: Option<u64>,
    /// `flush.ms`; `None` is never.
    pub flush_ms: Option<u64>,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u64,
    /// `local.retention.bytes` in force: the topic's, else the broker's, and never more than `retention_bytes`.
    pub local_retention_bytes: Option<u64>,
    /// `local.retention.ms` in force: the topic's, else the broker's, and never more than `retention_ms`.
    pub local_retention_ms: Option<u64>,
    /// `max.compaction.lag.ms`; `None` is without limit.
    pub max_compaction_lag_ms: Option<u64>,
    /// `max.message.bytes`.
    pub max_message_bytes: u64,
    /// `message.timestamp.after.max.ms`; `None` is without limit.
    pub timestamp_after_max_ms: Option<u64>,
    /// `message.timestamp.before.max.ms`; `None` is without limit.
    pub timestamp_before_max_ms: Option<u64>,
    /// `message.timestamp.type`.
    pub message_timestamp_type: TimestampType,
    /// `min.cleanable.dirty.ratio`.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: u64,
    /// `min.insync.replicas`.
    pub min_insync_replicas: u32,
    /// `remote.log.copy.disable`.
    pub remote_log_copy_disable: bool,
    /// `remote.storage.enable`.
    pub remote_storage_enable: bool,
    /// `retention.bytes`.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`.
    pub retention_ms: Option<u64>,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u64,
    /// `segment.jitter.ms`.
    pub segment_jitter_ms: u64,
    /// `segment.ms`.
    pub segment_ms: u64,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election_enable: bool,
}

/// The value of a topic key in force, and where it comes from.
fn topic_value(
    key: &'static Key,
    broker: &BrokerSettings,
    overrides: &BTreeMap<String, String>,
) -> (String, Source) {
    if key.read_only {
        return (key.default.unwrap_or_default().to_owned(), Source::Default);
    }
    if let Some(value) = overrides.get(key.name) {
        return (value.clone(), Source::DynamicTopic);
    }
    let mut best: Option<(String, Source)> = None;
    for synonym in key.synonyms {
        for found in broker.values(synonym.key) {
            if best.as_ref().is_some_and(|(_, source)| *source <= found.source) {
                continue;
            }
            let value = match (synonym.factor, found.value.trim().parse::<i64>()) {
                (1, _) | (_, Err(_)) => found.value,
                // Negative hours are Kafka's "without limit".
                (_, Ok(number)) if number < 0 => "-1".to_owned(),
                (factor, Ok(number)) => number.saturating_mul(factor).to_string(),
            };
            best = Some((value, found.source));
        }
    }
    best.unwrap_or_else(|| (key.default.unwrap_or_default().to_owned(), Source::Default))
}

/// The values of one topic, read by type. All were checked before.
struct Values<'a> {
    broker: &'a BrokerSettings,
    overrides: &'a BTreeMap<String, String>,
}

impl Values<'_> {
    fn text(&self, name: &str) -> String {
        topic_key(name).map(|key| topic_value(key, self.broker, self.overrides).0).unwrap_or_default()
    }

    fn number(&self, name: &str) -> i64 {
        let parsed = self.text(name).trim().parse().ok();
        parsed
            .or_else(|| topic_key(name).and_then(|key| key.default).and_then(|default| default.parse().ok()))
            .unwrap_or_default()
    }

    /// A number whose rule keeps it from being negative.
    fn amount(&self, name: &str) -> u64 {
        u64::try_from(self.number(name)).unwrap_or(0)
    }

    /// A number that is without limit where it is negative or Kafka's largest.
    fn limit(&self, name: &str) -> Option<u64> {
        u64::try_from(self.number(name)).ok().filter(|number| *number != i64::MAX.unsigned_abs())
    }

    fn flag(&self, name: &str) -> bool {
        check::boolean(&self.text(name)).unwrap_or(false)
    }

    /// A local retention: the topic's, the broker's where that is -2, the total where the broker's is -2 too.
    fn local(&self, topic: &str, broker: &str, total: Option<u64>) -> Option<u64> {
        let number = match self.number(topic) {
            -2 => self.broker.number(broker).unwrap_or(-2),
            number => number,
        };
        match (u64::try_from(number).ok(), total) {
            (Some(local), Some(total)) => Some(local.min(total)),
            (Some(local), None) => Some(local),
            // -1 and -2 both keep what the total keeps.
            (None, total) => total,
        }
    }
}

impl TopicConfig {
    /// Checks a topic's overrides and resolves every setting.
    ///
    /// # Errors
    /// Every override that is wrong; nothing is resolved then.
    pub fn resolve(
        broker: &BrokerDefaults,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors: Vec<ConfigError> = overrides
            .iter()
            .filter_map(|(name, value)| match topic_key(name) {
                Some(key) => check(key, value).err(),
                None => Some(ConfigError::UnknownTopicKey { key: shown(name).to_owned() }),
            })
            .collect();
        if errors.is_empty() {
            errors = conflicts(overrides, broker);
        }
        if errors.is_empty() { Ok(Self::from_checked(&Values { broker, overrides })) } else { Err(errors) }
    }

    /// Resolves overrides that the cluster's state already holds: a value that this version refuses falls back to the
    /// default instead of taking the partition down.
    #[must_use]
    pub fn resolve_stored(broker: &BrokerDefaults, overrides: &BTreeMap<String, String>) -> Self {
        let known: BTreeMap<String, String> = overrides
            .iter()
            .filter(|(name, value)| topic_key(name).is_some_and(|key| check(key, value).is_ok()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self::from_checked(&Values { broker, overrides: &known })
    }

    fn from_checked(values: &Values<'_>) -> Self {
        let policy = values.text("cleanup.policy");
        let retention_bytes = values.limit("retention.bytes");
        let retention_ms = values.limit("retention.ms");
        Self {
            cleanup_policy: CleanupPolicy {
                compact: check::words(&policy).any(|word| word == "compact"),
                delete: check::words(&policy).any(|word| word == "delete"),
            },
            compression_type: match values.text("compression.type").trim() {
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => CompressionType::Producer,
            },
            compression_gzip_level: u32::try_from(values.number("compression.gzip.level")).ok(),
            compression_zstd_level: i32::try_from(values.number("compression.zstd.level")).unwrap_or(3),
            delete_retention_ms: values.amount("delete.retention.ms"),
            flush_messages: values.limit("flush.messages"),
            flush_ms: values.limit("flush.ms"),
            index_interval_bytes: values.amount("index.interval.bytes"),
            local_retention_bytes: values.local(
                "local.retention.bytes",
                "log.local.retention.bytes",
                retention_bytes,
            ),
            local_retention_ms: values.local("local.retention.ms", "log.local.retention.ms", retention_ms),
            max_compaction_lag_ms: values.limit("max.compaction.lag.ms"),
            max_message_bytes: values.amount("max.message.bytes"),
            timestamp_after_max_ms: values.limit("message.timestamp.after.max.ms"),
            timestamp_before_max_ms: values.limit("message.timestamp.before.max.ms"),
            message_timestamp_type: match values.text("message.timestamp.type").trim() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            min_cleanable_dirty_ratio: values.text("min.cleanable.dirty.ratio").trim().parse().unwrap_or(0.5),
            min_compaction_lag_ms: values.amount("min.compaction.lag.ms"),
            min_insync_replicas: u32::try_from(values.number("min.insync.replicas")).unwrap_or(1),
            remote_log_copy_disable: values.flag("remote.log.copy.disable"),
            remote_storage_enable: values.flag("remote.storage.enable"),
            retention_bytes,
            retention_ms,
            segment_bytes: values.amount("segment.bytes"),
            segment_index_bytes: values.amount("segment.index.bytes"),
            segment_jitter_ms: values.amount("segment.jitter.ms"),
            segment_ms: values.amount("segment.ms"),
            unclean_leader_election_enable: values.flag("unclean.leader.election.enable"),
        }
    }
}

/// Settings of a topic that cannot stand together. Only what the topic itself sets can conflict: a topic must not become
/// invalid because a broker's default moved.
fn conflicts(overrides: &BTreeMap<String, String>, broker: &BrokerSettings) -> Vec<ConfigError> {
    let values = Values { broker, overrides };
    let mut errors = Vec::new();
    let (least, most) = (values.number("min.compaction.lag.ms"), values.number("max.compaction.lag.ms"));
    if least > most {
        errors.push(ConfigError::Conflict {
            text: format!("conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"),
        });
    }
    for (local_key, total_key) in
        [("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")]
    {
        let Some(local) = overrides.get(local_key).and_then(|value| value.trim().parse::<i64>().ok()) else {
            continue;
        };
        let total = values.number(total_key);
        if total < 0 || local == -2 {
            continue;
        }
        let reason = if local == -1 {
            format!("Value must not be -1 as {total_key} value is set as {total}.")
        } else if local > total {
            format!("Value must not be more than property: {total_key} value.")
        } else {
            continue;
        };
        errors.push(ConfigError::Invalid { key: local_key.to_owned(), value: local.to_string(), reason });
    }
    errors
}

/// One change of IncrementalAlterConfigs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlterOperation {
    /// Sets the value.
    Set(String),
    /// Removes the override.
    Delete,
    /// Adds words to a list.
    Append(String),
    /// Removes words from a list.
    Subtract(String),
}

/// Applies one change to the overrides of a topic or a broker. The result is not checked: resolve it.
///
/// # Errors
/// APPEND or SUBTRACT on a key that holds no list, or a key that does not exist.
pub fn alter(
    key: &Key,
    overrides: &mut BTreeMap<String, String>,
    operation: AlterOperation,
) -> Result<(), ConfigError> {
    let name = key.name;
    let current = |overrides: &BTreeMap<String, String>| -> Vec<String> {
        let value = overrides.get(name).map(String::as_str).or(key.default).unwrap_or_default();
        let parts = if value.is_empty() { Vec::new() } else { parts(value) };
        parts.into_iter().map(str::to_owned).collect()
    };
    match operation {
        AlterOperation::Set(value) => {
            overrides.insert(name.to_owned(), value);
        }
        AlterOperation::Delete => {
            overrides.remove(name);
        }
        AlterOperation::Append(_) if key.kind != ConfigType::List => {
            return Err(ConfigError::NotAList { key: name.to_owned(), operation: "APPEND" });
        }
        AlterOperation::Subtract(_) if key.kind != ConfigType::List => {
            return Err(ConfigError::NotAList { key: name.to_owned(), operation: "SUBTRACT" });
        }
        AlterOperation::Append(value) => {
            let mut words = current(overrides);
            for word in parts(&value) {
                if !words.iter().any(|known| known == word) {
                    words.push(word.to_owned());
                }
            }
            overrides.insert(name.to_owned(), words.join(","));
        }
        AlterOperation::Subtract(value) => {
            let mut words = current(overrides);
            for word in parts(&value) {
                if let Some(at) = words.iter().position(|known| known == word) {
                    words.remove(at);
                }
            }
            overrides.insert(name.to_owned(), words.join(","));
        }
    }
    Ok(())
}

/// What stands between commas, as Kafka cuts it to append and to subtract: with the spaces, and without empty parts at the end, but
/// that an empty text is one part.
fn parts(value: &str) -> Vec<&str> {
    if value.is_empty() {
        return vec![""];
    }
    let mut parts: Vec<&str> = value.split(',').collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    parts
}
