//! The table of broker keys.

use super::keys::{
    CODECS, ConfigType, Key, LONG_MAX, POLICIES, Rule, SEGMENT_BYTES_MIN, TIMESTAMP_TYPES, ZSTD_LEVEL_MIN,
};
use super::{
    group_keys::GROUP_KEYS,
    idle_keys::{IDLE_KEYS, OF_ONE_BROKER},
};
use ConfigType::{Boolean, Double, Int, List, Long, String};
use Rule::{Any, AtLeast, Between, GzipLevel, OneOf, Ratio};

const FLUSH_DEFAULTS: &[&str] = &["synced", "replicated"];

pub(super) const fn fixed(
    name: &'static str,
    kind: ConfigType,
    default: Option<&'static str>,
    rule: Rule,
    documentation: &'static str,
) -> Key {
    Key { name, kind, default, rule, synonyms: &[], read_only: true, documentation }
}

pub(super) const fn dynamic(
    name: &'static str,
    kind: ConfigType,
    default: Option<&'static str>,
    rule: Rule,
    documentation: &'static str,
) -> Key {
    Key { name, kind, default, rule, synonyms: &[], read_only: false, documentation }
}

/// The keys of a broker but those of groups, in the order of names. Those that are not read-only are also kept in the replicated state, for one
/// broker or for all, and take effect without a restart.
static BROKER_KEYS: &[Key] = &[
    fixed("advertised.listeners", List, None, Any, "The addresses that clients are told, by listener."),
    dynamic(
        "auto.create.topics.enable",
        Boolean,
        Some("true"),
        Any,
        "Whether a topic is created when a client asks for it by name.",
    ),
    fixed("broker.rack", String, None, Any, "The rack of this broker."),
    dynamic("compression.gzip.level", Int, Some("-1"), GzipLevel, "The default of the topic key."),
    dynamic("compression.type", String, Some("producer"), OneOf(CODECS), "The default of the topic key."),
    dynamic(
        "compression.zstd.level",
        Int,
        Some("3"),
        Between(ZSTD_LEVEL_MIN, 22),
        "The default of the topic key.",
    ),
    fixed(
        "connections.max.idle.ms",
        Long,
        Some("600000"),
        AtLeast(0),
        "A connection without a request for this long is closed.",
    ),
    dynamic(
        "default.replication.factor",
        Int,
        Some("1"),
        AtLeast(1),
        "Replicas of a topic whose creator names none.",
    ),
    fixed("delete.topic.enable", Boolean, Some("true"), Any, "Whether topics can be deleted."),
    fixed("fetch.max.bytes", Int, Some("57671680"), AtLeast(1024), "The most bytes of one fetch response."),
    fixed(
        "listeners",
        List,
        Some("PLAINTEXT://127.0.0.1:9092"),
        Any,
        "The addresses that are listened on, by name.",
    ),
    fixed(
        "local.disk.bytes.max",
        Long,
        None,
        AtLeast(0),
        "Bytes of local disk above which tiered segments are evicted, oldest first; 80% of the file system where unset.",
    ),
    dynamic(
        "log.cleaner.delete.retention.ms",
        Long,
        Some("86400000"),
        AtLeast(0),
        "The default of `delete.retention.ms`.",
    ),
    dynamic(
        "log.cleaner.max.compaction.lag.ms",
        Long,
        Some(LONG_MAX),
        AtLeast(1),
        "The default of `max.compaction.lag.ms`.",
    ),
    dynamic(
        "log.cleaner.min.cleanable.ratio",
        Double,
        Some("0.5"),
        Ratio,
        "The default of `min.cleanable.dirty.ratio`.",
    ),
    dynamic(
        "log.cleaner.min.compaction.lag.ms",
        Long,
        Some("0"),
        AtLeast(0),
        "The default of `min.compaction.lag.ms`.",
    ),
    dynamic("log.cleanup.policy", List, Some("delete"), OneOf(POLICIES), "The default of `cleanup.policy`."),
    fixed("log.dirs", List, None, Any, "The data directory; there is one."),
    fixed(
        "log.flush.default",
        String,
        Some("synced"),
        OneOf(FLUSH_DEFAULTS),
        "`synced`: acks=all and the high watermark wait for a sync. `replicated`: Kafka's behaviour, no sync before either.",
    ),
    dynamic(
        "log.flush.interval.messages",
        Long,
        Some(LONG_MAX),
        AtLeast(1),
        "The default of `flush.messages`.",
    ),
    dynamic("log.flush.interval.ms", Long, None, AtLeast(0), "The default of `flush.ms`."),
    fixed(
        "log.flush.linger.ms",
        Long,
        Some("5"),
        AtLeast(0),
        "How soon a sync comes while nobody waits for one.",
    ),
    dynamic(
        "log.index.interval.bytes",
        Int,
        Some("4096"),
        AtLeast(0),
        "The default of `index.interval.bytes`.",
    ),
    dynamic(
        "log.index.size.max.bytes",
        Int,
        Some("10485760"),
        AtLeast(4),
        "The default of `segment.index.bytes`.",
    ),
    fixed(
        "log.journal.bytes.max",
        Long,
        Some("1073741824"),
        AtLeast(1_048_576),
        "Bytes of the journal before appends wait; at most a tenth of the file system.",
    ),
    fixed(
        "log.journal.file.bytes",
        Long,
        Some("67108864"),
        AtLeast(1_048_576),
        "The size of one file of the journal.",
    ),
    dynamic(
        "log.local.retention.bytes",
        Long,
        Some("-2"),
        AtLeast(-2),
        "The default of `local.retention.bytes`; -2 is whatever `retention.bytes` allows.",
    ),
    // Kafka's default is -2, "all of it".
    dynamic(
        "log.local.retention.ms",
        Long,
        Some("21600000"),
        AtLeast(-2),
        "The default of `local.retention.ms`; -2 is whatever `retention.ms` allows.",
    ),
    dynamic(
        "log.message.timestamp.after.max.ms",
        Long,
        Some("3600000"),
        AtLeast(0),
        "The default of the topic key.",
    ),
    dynamic(
        "log.message.timestamp.before.max.ms",
        Long,
        Some(LONG_MAX),
        AtLeast(0),
        "The default of the topic key.",
    ),
    dynamic(
        "log.message.timestamp.type",
        String,
        Some("CreateTime"),
        OneOf(TIMESTAMP_TYPES),
        "The default of the topic key.",
    ),
    dynamic("log.retention.bytes", Long, Some("-1"), Any, "The default of `retention.bytes`."),
    fixed(
        "log.retention.check.interval.ms",
        Long,
        Some("300000"),
        AtLeast(1),
        "How often topics that are not tiered are looked at for what retention lets go; of those that are, it is tier.check.interval.ms.",
    ),
    fixed("log.retention.hours", Int, Some("168"), Any, "The default of `retention.ms`, in hours."),
    fixed("log.retention.minutes", Int, None, Any, "The default of `retention.ms`, in minutes."),
    dynamic("log.retention.ms", Long, None, AtLeast(-1), "The default of `retention.ms`."),
    fixed("log.roll.hours", Int, Some("168"), AtLeast(1), "The default of `segment.ms`, in hours."),
    fixed(
        "log.roll.jitter.hours",
        Int,
        Some("0"),
        AtLeast(0),
        "The default of `segment.jitter.ms`, in hours.",
    ),
    dynamic("log.roll.jitter.ms", Long, None, AtLeast(0), "The default of `segment.jitter.ms`."),
    dynamic("log.roll.ms", Long, None, AtLeast(1), "The default of `segment.ms`."),
    dynamic(
        "log.segment.bytes",
        Int,
        Some("1073741824"),
        AtLeast(SEGMENT_BYTES_MIN),
        "The default of `segment.bytes`.",
    ),
    fixed(
        "log.tail.bytes",
        Long,
        Some("268435456"),
        AtLeast(1_048_576),
        "Memory for the newest records of all partitions.",
    ),
    fixed(
        "manifest.publish.ms",
        Long,
        Some("60000"),
        AtLeast(1),
        "How soon a manifest is published to the bucket after DeleteRecords.",
    ),
    fixed(
        "max.connections",
        Int,
        Some("2147483647"),
        AtLeast(0),
        "Connections at once; the next one is closed.",
    ),
    fixed(
        "max.incremental.fetch.session.cache.slots",
        Int,
        Some("1000"),
        AtLeast(0),
        "Incremental fetch sessions that are kept.",
    ),
    fixed(
        "max.request.partition.size.limit",
        Int,
        Some("2000"),
        AtLeast(1),
        "Partitions in one DescribeTopicPartitions answer.",
    ),
    dynamic("message.max.bytes", Int, Some("1048588"), AtLeast(0), "The default of `max.message.bytes`."),
    dynamic("min.insync.replicas", Int, Some("1"), AtLeast(1), "The default of the topic key."),
    fixed("node.id", Int, None, AtLeast(0), "The number of this node; 1 where nobody says."),
    fixed("num.partitions", Int, Some("1"), AtLeast(1), "Partitions of a topic whose creator names none."),
    dynamic(
        "producer.id.expiration.ms",
        Int,
        Some("86400000"),
        AtLeast(1),
        "How long an idle idempotent producer is remembered.",
    ),
    // Kafka's default is -1, without limit; an unbounded queue is not an option here.
    fixed(
        "queued.max.request.bytes",
        Long,
        Some("134217728"),
        AtLeast(1_048_576),
        "Bytes of Produce requests that are read and not yet appended; above it sockets wait.",
    ),
    fixed(
        "remote.list.offsets.request.timeout.ms",
        Long,
        Some("30000"),
        AtLeast(1),
        "How long a look-up by time may wait for the bucket.",
    ),
    fixed(
        "remote.log.storage.system.enable",
        Boolean,
        Some("true"),
        Any,
        "There is always a bucket; it cannot be turned off.",
    ),
    fixed("socket.request.max.bytes", Int, Some("104857600"), AtLeast(1), "The largest request frame."),
    fixed(
        "tier.cache.bytes",
        Long,
        Some("1073741824"),
        AtLeast(0),
        "Bytes of local disk for chunks read from the bucket.",
    ),
    fixed(
        "tier.check.interval.ms",
        Long,
        Some("10000"),
        AtLeast(1),
        "The time between two looks for segments to upload.",
    ),
    fixed(
        "tier.delete.grace.ms",
        Long,
        Some("300000"),
        AtLeast(0),
        "How long an object stays in the bucket after it left the manifest, so that reads in flight finish.",
    ),
    fixed(
        "tier.object.target.bytes",
        Long,
        Some("67108864"),
        Between(4096, 268_435_456),
        "The size of one segment object.",
    ),
    fixed(
        "tier.orphan.age.ms",
        Long,
        Some("86400000"),
        AtLeast(1),
        "The age at which an object that nothing names is deleted.",
    ),
    fixed(
        "tier.read.memory.bytes",
        Long,
        Some("134217728"),
        AtLeast(16_777_216),
        "Memory for reads from the bucket.",
    ),
    fixed(
        "tier.upload.max.lag.ms",
        Long,
        Some("3600000"),
        AtLeast(1),
        "The age at which an idle segment is sealed and uploaded.",
    ),
    fixed(
        "tier.upload.memory.bytes",
        Long,
        Some("268435456"),
        AtLeast(4_194_304),
        "Memory for uploads on the way.",
    ),
    dynamic("unclean.leader.election.enable", Boolean, Some("false"), Any, "The default of the topic key."),
];

const TABLES: [&[Key]; 3] = [BROKER_KEYS, GROUP_KEYS, IDLE_KEYS];

/// Every key of a broker, in the order of names.
pub fn broker_keys() -> impl Iterator<Item = &'static Key> {
    let mut keys: Vec<&'static Key> = TABLES.into_iter().flatten().collect();
    keys.sort_unstable_by_key(|key| key.name);
    keys.into_iter()
}

/// The broker key of this name.
#[must_use]
pub fn broker_key(name: &str) -> Option<&'static Key> {
    TABLES
        .into_iter()
        .find_map(|table| table.binary_search_by(|key| key.name.cmp(name)).ok().map(|found| &table[found]))
}

/// Whether a key is one broker's alone: it cannot be set for all of them at once.
#[must_use]
pub fn is_of_one_broker(name: &str) -> bool {
    OF_ONE_BROKER.contains(&name)
}

/// Whether a broker key is without effect and cannot be set while the broker runs: a value that another version kept is none.
#[must_use]
pub fn is_idle(name: &str) -> bool {
    IDLE_KEYS.binary_search_by(|idle| idle.name.cmp(name)).is_ok_and(|found| IDLE_KEYS[found].read_only)
}

/// Whether anything here acts on a broker key. The others are Kafka's, and are shown for those who look for them.
#[must_use]
pub fn has_effect(name: &str) -> bool {
    broker_key(name).is_some_and(|key| IDLE_KEYS.binary_search_by(|idle| idle.name.cmp(key.name)).is_err())
}
