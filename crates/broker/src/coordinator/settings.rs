//! The settings of groups, resolved once for each image.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use tidelog_core::{
    groups::{
        GroupRules,
        consumer::{Assignor, ConsumerBounds, ConsumerRules, MigrationPolicy},
    },
    topic_config::BrokerSettings,
};
use tidelog_format::codec::Codec;

/// What the coordinator needs of the broker's settings.
#[derive(Debug, Clone)]
pub(crate) struct GroupSettings {
    pub(crate) rules: GroupRules,
    /// Of groups of the consumer protocol that say nothing else.
    consumer: ConsumerRules,
    /// What a group may say.
    bounds: ConsumerBounds,
    /// What groups say, by their ids.
    of_groups: OfGroups,
    /// Whether `group.coordinator.rebalance.protocols` has the consumer protocol.
    pub(crate) serves_consumer_protocol: bool,
    /// `group.consumer.migration.policy`.
    pub(crate) migration: MigrationPolicy,
    /// `offset.metadata.max.bytes`.
    pub(crate) metadata_bytes_max: usize,
    /// `offsets.retention.minutes`.
    pub(crate) retention: Duration,
    /// `offsets.retention.check.interval.ms`.
    pub(crate) check_interval: Duration,
    /// `offsets.commit.timeout.ms`.
    pub(crate) commit_timeout: Duration,
    /// `offsets.topic.compression.codec`, by Kafka's number.
    pub(crate) codec: Codec,
}

/// The settings of groups that have some of their own.
type OfGroups = Arc<BTreeMap<String, BTreeMap<String, String>>>;

impl GroupSettings {
    pub(crate) fn resolve(settings: &BrokerSettings, of_groups: &OfGroups) -> Self {
        let amount = |key: &str, default: u64| settings.amount(key).unwrap_or(default);
        let millis = |key: &str, default: u64| Duration::from_millis(amount(key, default));
        let count = |key: &str, default: u64| usize::try_from(amount(key, default)).unwrap_or(usize::MAX);
        let bounds = ConsumerBounds {
            session_timeout: (
                millis("group.consumer.min.session.timeout.ms", 45_000),
                millis("group.consumer.max.session.timeout.ms", 60_000),
            ),
            heartbeat_interval: (
                millis("group.consumer.min.heartbeat.interval.ms", 5_000),
                millis("group.consumer.max.heartbeat.interval.ms", 15_000),
            ),
            assignment_interval: (
                millis("group.consumer.min.assignment.interval.ms", 0),
                millis("group.consumer.max.assignment.interval.ms", 15_000),
            ),
        };
        Self {
            rules: GroupRules {
                session_timeout_min: millis("group.min.session.timeout.ms", 6_000),
                session_timeout_max: millis("group.max.session.timeout.ms", 1_800_000),
                size_max: count("group.max.size", i32::MAX.unsigned_abs().into()),
                initial_rebalance_delay: millis("group.initial.rebalance.delay.ms", 3_000),
            },
            consumer: ConsumerRules {
                session_timeout: millis("group.consumer.session.timeout.ms", 45_000),
                heartbeat_interval: millis("group.consumer.heartbeat.interval.ms", 5_000),
                size_max: count("group.consumer.max.size", i32::MAX.unsigned_abs().into()),
                assignors: assignors(settings),
                assignment_interval: millis("group.consumer.assignment.interval.ms", 1_000),
            }
            .within(&bounds),
            bounds,
            of_groups: Arc::clone(of_groups),
            serves_consumer_protocol: settings
                .value("group.coordinator.rebalance.protocols")
                .is_none_or(|protocols| protocols.split(',').any(|protocol| protocol.trim() == "consumer")),
            migration: settings
                .value("group.consumer.migration.policy")
                .and_then(MigrationPolicy::from_name)
                .unwrap_or(MigrationPolicy::Bidirectional),
            metadata_bytes_max: count("offset.metadata.max.bytes", 4_096),
            retention: Duration::from_secs(amount("offsets.retention.minutes", 10_080).saturating_mul(60)),
            check_interval: millis("offsets.retention.check.interval.ms", 600_000),
            commit_timeout: millis("offsets.commit.timeout.ms", 5_000),
            codec: match settings.number("offsets.topic.compression.codec") {
                Some(1) => Codec::Gzip,
                Some(2) => Codec::Snappy,
                Some(3) => Codec::Lz4,
                Some(4) => Codec::Zstd,
                _ => Codec::None,
            },
        }
    }
}

impl GroupSettings {
    /// What holds for a group of the consumer protocol: its own settings as far as the broker's bounds allow, which may have
    /// moved since they were set, and the broker's.
    pub(crate) fn consumer(&self, group: &str) -> Cow<'_, ConsumerRules> {
        let Some(own) = self.of_groups.get(group) else { return Cow::Borrowed(&self.consumer) };
        let millis = |key: &str, otherwise: Duration| {
            own.get(key).and_then(|value| value.trim().parse().ok()).map_or(otherwise, Duration::from_millis)
        };
        let rules = ConsumerRules {
            session_timeout: millis("consumer.session.timeout.ms", self.consumer.session_timeout),
            heartbeat_interval: millis("consumer.heartbeat.interval.ms", self.consumer.heartbeat_interval),
            assignment_interval: millis("consumer.assignment.interval.ms", self.consumer.assignment_interval),
            ..self.consumer.clone()
        };
        Cow::Owned(rules.within(&self.bounds))
    }
}

/// `group.consumer.assignors`: those that are here, the first is who assigns where members wish for none.
fn assignors(settings: &BrokerSettings) -> Vec<Assignor> {
    let names = settings.value("group.consumer.assignors").unwrap_or_default();
    names.split(',').filter_map(|name| Assignor::from_name(name.trim())).collect()
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self::resolve(&BrokerSettings::default(), &OfGroups::default())
    }
}
