//! The broker keys of groups and of the topic that keeps them. What they mean for a group is the coordinator's to say.

use super::{
    BrokerSettings,
    broker_keys::{dynamic, fixed},
    check::{ConfigError, words},
    keys::{
        ConfigType::{Int, List, Long, Short, String},
        Key,
        Rule::{Any, AtLeast, Between, EachOf, OneOfAnyCase},
        SEGMENT_BYTES_MIN,
    },
};

const ASSIGNORS: &[&str] = &["uniform", "range"];
const PROTOCOLS: &[&str] = &["classic", "consumer", "share", "streams"];
const MIGRATION_POLICIES: &[&str] = &["DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"];

/// Kafka's keys of groups, in the order of names. All but one need a restart, as in Kafka.
pub(super) static GROUP_KEYS: &[Key] = &[
    dynamic(
        "group.consumer.assignment.interval.ms",
        Int,
        Some("1000"),
        AtLeast(0),
        "The least time between two target assignments of a consumer group.",
    ),
    fixed(
        "group.consumer.assignors",
        List,
        Some("uniform,range"),
        EachOf(ASSIGNORS),
        "The assignors of consumer groups; the first is for groups whose members name none.",
    ),
    fixed(
        "group.consumer.heartbeat.interval.ms",
        Int,
        Some("5000"),
        AtLeast(1),
        "How often the members of a consumer group send a heartbeat.",
    ),
    fixed(
        "group.consumer.max.assignment.interval.ms",
        Int,
        Some("15000"),
        AtLeast(0),
        "The most that a group may set as its assignment interval.",
    ),
    fixed(
        "group.consumer.max.heartbeat.interval.ms",
        Int,
        Some("15000"),
        AtLeast(1),
        "The most that a group may set as its heartbeat interval.",
    ),
    fixed(
        "group.consumer.max.session.timeout.ms",
        Int,
        Some("60000"),
        AtLeast(1),
        "The most that a group may set as its session time-out.",
    ),
    fixed(
        "group.consumer.max.size",
        Int,
        Some("2147483647"),
        AtLeast(1),
        "The most members of a consumer group.",
    ),
    fixed(
        "group.consumer.migration.policy",
        String,
        Some("bidirectional"),
        OneOfAnyCase(MIGRATION_POLICIES),
        "Which groups may move between the classic and the consumer protocol while they have members.",
    ),
    fixed(
        "group.consumer.min.assignment.interval.ms",
        Int,
        Some("0"),
        AtLeast(0),
        "The least that a group may set as its assignment interval.",
    ),
    fixed(
        "group.consumer.min.heartbeat.interval.ms",
        Int,
        Some("5000"),
        AtLeast(1),
        "The least that a group may set as its heartbeat interval.",
    ),
    fixed(
        "group.consumer.min.session.timeout.ms",
        Int,
        Some("45000"),
        AtLeast(1),
        "The least that a group may set as its session time-out.",
    ),
    fixed(
        "group.consumer.session.timeout.ms",
        Int,
        Some("45000"),
        AtLeast(1),
        "A member of a consumer group that is silent for this long is taken out of it.",
    ),
    fixed(
        "group.coordinator.rebalance.protocols",
        List,
        Some("classic,consumer,streams"),
        EachOf(PROTOCOLS),
        "The protocols of groups: without `consumer` its requests are refused. `classic` must be there; of the others none is served.",
    ),
    fixed(
        "group.initial.rebalance.delay.ms",
        Int,
        Some("3000"),
        Any,
        "How long the first rebalance of a classic group waits for more members.",
    ),
    fixed(
        "group.max.session.timeout.ms",
        Int,
        Some("1800000"),
        Any,
        "The longest session time-out that a member of a classic group may ask for.",
    ),
    fixed("group.max.size", Int, Some("2147483647"), AtLeast(1), "The most members of a classic group."),
    fixed(
        "group.min.session.timeout.ms",
        Int,
        Some("6000"),
        Any,
        "The shortest session time-out that a member of a classic group may ask for.",
    ),
    fixed(
        "offset.metadata.max.bytes",
        Int,
        Some("4096"),
        Any,
        "The longest metadata string of a committed offset, in bytes.",
    ),
    fixed(
        "offsets.commit.timeout.ms",
        Int,
        Some("5000"),
        AtLeast(1),
        "How long the coordinator waits until what it wrote is durable.",
    ),
    fixed(
        "offsets.retention.check.interval.ms",
        Long,
        Some("600000"),
        AtLeast(1),
        "The time between two looks for offsets that have expired.",
    ),
    fixed(
        "offsets.retention.minutes",
        Int,
        Some("10080"),
        AtLeast(1),
        "How long offsets stay: of a classic group after it lost its last member, of others after they were committed.",
    ),
    fixed(
        "offsets.topic.compression.codec",
        Int,
        Some("0"),
        Between(0, 4),
        "The codec of the group topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    ),
    fixed(
        "offsets.topic.num.partitions",
        Int,
        Some("50"),
        AtLeast(1),
        "Partitions of the group topic; not to be changed once it exists.",
    ),
    // Kafka's default is 3, and its first group waits there until three brokers are up. A node alone is the usual case here.
    fixed(
        "offsets.topic.replication.factor",
        Short,
        Some("1"),
        AtLeast(1),
        "Replicas of the group topic when it is created.",
    ),
    fixed(
        "offsets.topic.segment.bytes",
        Int,
        Some("104857600"),
        AtLeast(SEGMENT_BYTES_MIN),
        "The size at which a segment of the group topic is sealed.",
    ),
];

/// Kafka's words where the classic protocol is to be turned off.
pub(super) fn protocol_disorder(settings: &BrokerSettings) -> Option<ConfigError> {
    let protocols = settings.value("group.coordinator.rebalance.protocols").unwrap_or_default();
    words(protocols).all(|protocol| protocol != "classic").then(|| ConfigError::Conflict {
        text: "Disabling the 'classic' protocol is not supported.".to_owned(),
    })
}

/// Pairs that must be in order: the first is at most the second.
pub(super) const ORDERED: &[(&str, &str)] = &[
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
];
