//! What a key is, and the table of topic keys: names, types, defaults, synonyms and rules.
//!
//! Names, types and defaults are Apache Kafka 4.3's, save where the product differs on purpose: those lines say so.
//! Every key of a Kafka topic is here, since tools look for them all; one that nothing here acts on is read-only, and stays at its
//! default.

/// The type of a value, as DescribeConfigs names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigType {
    /// `true` or `false`.
    Boolean,
    /// Any text, or one of a few words.
    String,
    /// A signed 16-bit number.
    Short,
    /// A signed 32-bit number.
    Int,
    /// A signed 64-bit number.
    Long,
    /// A floating-point number.
    Double,
    /// Words separated by commas.
    List,
    /// The name of a class of Java's.
    Class,
    /// A secret: it is never told.
    Password,
}

/// What a value must keep to beyond its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Nothing more.
    Any,
    /// At least this.
    AtLeast(i64),
    /// Between these, both inclusive.
    Between(i64, i64),
    /// Gzip's levels: -1 for the codec's own choice, or 1 to 9.
    GzipLevel,
    /// A number from 0 to 1.
    Ratio,
    /// One of these words (each of them, for a list).
    OneOf(&'static [&'static str]),
    /// One of these words, in capitals or not.
    OneOfAnyCase(&'static [&'static str]),
    /// At least one word, and each of them one of these.
    EachOf(&'static [&'static str]),
    /// Where a share group begins: `earliest`, `latest`, or `by_duration:` and an ISO-8601 duration.
    OffsetReset,
    /// `*`, or `partition:broker` pairs.
    ThrottledReplicas,
}

/// Where a topic key finds its value when the topic does not set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synonym {
    /// The broker's key.
    pub key: &'static str,
    /// What the broker's number is multiplied with: hours and minutes become milliseconds.
    pub factor: i64,
}

/// One configuration key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// Kafka's name, or ours where Kafka has none.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ConfigType,
    /// The value where nobody set one; `None` is Kafka's null.
    pub default: Option<&'static str>,
    /// The values that are allowed.
    pub rule: Rule,
    /// The broker keys that it falls back to, first wins.
    pub synonyms: &'static [Synonym],
    /// Of a broker's key: it cannot be altered while the broker runs. Of a topic's or a group's: nothing here acts on it, and it
    /// stays at its default.
    pub read_only: bool,
    /// What it does, in a sentence.
    pub documentation: &'static str,
}

impl Key {
    /// The same of a topic's or a group's, where nothing here acts on it.
    pub(super) const fn without_effect(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Whether this value of a topic's or a group's key would have to act on something, and there is nothing.
    #[must_use]
    pub fn is_without_effect(&self, value: &str) -> bool {
        self.read_only && self.default.is_none_or(|default| !default.eq_ignore_ascii_case(value.trim()))
    }
}

use ConfigType::{Boolean, Double, Int, List, Long, String};
use Rule::{Any, AtLeast, Between, GzipLevel, OneOf, Ratio, ThrottledReplicas};

/// The least `segment.bytes`. Kafka's is 1 MiB since 4.0; small segments are harmless here, since a segment is no file
/// descriptor while it is idle, and they let a test or a demo reach the bucket with little data.
pub const SEGMENT_BYTES_MIN: i64 = 4096;

pub(super) const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
pub(super) const POLICIES: &[&str] = &["compact", "delete"];
pub(super) const TIMESTAMP_TYPES: &[&str] = &["CreateTime", "LogAppendTime"];
pub(super) const LONG_MAX: &str = "9223372036854775807";
pub(super) const ZSTD_LEVEL_MIN: i64 = -131_072;

macro_rules! synonyms {
    ($($key:literal),*) => { &[$(Synonym { key: $key, factor: 1 }),*] };
    (ms $first:literal, minutes $second:literal, hours $third:literal) => {
        &[
            Synonym { key: $first, factor: 1 },
            Synonym { key: $second, factor: 60_000 },
            Synonym { key: $third, factor: 3_600_000 },
        ]
    };
    (ms $first:literal, hours $third:literal) => {
        &[Synonym { key: $first, factor: 1 }, Synonym { key: $third, factor: 3_600_000 }]
    };
}

/// A key that can be set.
pub(super) const fn key_of(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    rule: Rule,
    synonyms: &'static [Synonym],
    documentation: &'static str,
) -> Key {
    Key { name, kind, default: Some(default), rule, synonyms, read_only: false, documentation }
}

/// Every key of a topic, in the order of names.
pub static TOPIC_KEYS: &[Key] = &[
    key_of(
        "cleanup.policy",
        List,
        "delete",
        OneOf(POLICIES),
        synonyms!["log.cleanup.policy"],
        "How old records leave: `delete` by age and size, `compact` by key (kept: nothing is compacted yet), both, or empty for never.",
    ),
    key_of(
        "compression.gzip.level",
        Int,
        "-1",
        GzipLevel,
        synonyms!["compression.gzip.level"],
        "The level when `compression.type` is gzip and the broker compresses.",
    ),
    key_of(
        "compression.lz4.level",
        Int,
        "9",
        Between(1, 17),
        synonyms!["compression.lz4.level"],
        "Without effect: the lz4 here has one level.",
    )
    .without_effect(),
    key_of(
        "compression.type",
        String,
        "producer",
        OneOf(CODECS),
        synonyms!["compression.type"],
        "The codec that batches are stored with; `producer` keeps what was sent, and is the only one that costs nothing.",
    ),
    key_of(
        "compression.zstd.level",
        Int,
        "3",
        Between(ZSTD_LEVEL_MIN, 22),
        synonyms!["compression.zstd.level"],
        "The level when `compression.type` is zstd and the broker compresses.",
    ),
    key_of(
        "delete.retention.ms",
        Long,
        "86400000",
        AtLeast(0),
        synonyms!["log.cleaner.delete.retention.ms"],
        "Kept until there is compaction: how long the delete markers of a compacted topic stay after their first cleaning.",
    ),
    key_of(
        "file.delete.delay.ms",
        Long,
        "60000",
        AtLeast(0),
        synonyms!["log.segment.delete.delay.ms"],
        "Without effect: a file goes when no read needs it any more.",
    )
    .without_effect(),
    key_of(
        "flush.messages",
        Long,
        LONG_MAX,
        AtLeast(1),
        synonyms!["log.flush.interval.messages"],
        "With `log.flush.default=replicated`: records after which the log is synced.",
    ),
    key_of(
        "flush.ms",
        Long,
        LONG_MAX,
        AtLeast(0),
        synonyms!["log.flush.interval.ms"],
        "With `log.flush.default=replicated`: time after which the log is synced.",
    ),
    key_of(
        "follower.replication.throttled.replicas",
        List,
        "",
        ThrottledReplicas,
        &[],
        "Without effect: replication has no throttle.",
    )
    .without_effect(),
    key_of(
        "index.interval.bytes",
        Int,
        "4096",
        AtLeast(0),
        synonyms!["log.index.interval.bytes"],
        "Bytes of a local segment between two entries of its index.",
    ),
    key_of(
        "leader.replication.throttled.replicas",
        List,
        "",
        ThrottledReplicas,
        &[],
        "Without effect: replication has no throttle.",
    )
    .without_effect(),
    key_of(
        "local.retention.bytes",
        Long,
        "-2",
        AtLeast(-2),
        synonyms!["log.local.retention.bytes"],
        "Bytes kept on local disk once they are in the bucket; -2 is the broker's value, -1 is without limit.",
    ),
    key_of(
        "local.retention.ms",
        Long,
        "21600000",
        AtLeast(-2),
        synonyms!["log.local.retention.ms"],
        "How long records stay on local disk once they are in the bucket; -2 is the broker's value, -1 is without limit.",
    ),
    key_of(
        "max.compaction.lag.ms",
        Long,
        LONG_MAX,
        AtLeast(1),
        synonyms!["log.cleaner.max.compaction.lag.ms"],
        "Kept until there is compaction: the longest time that a record may stay uncleaned.",
    ),
    key_of(
        "max.message.bytes",
        Int,
        "1048588",
        AtLeast(0),
        synonyms!["message.max.bytes"],
        "The largest record batch that is accepted, compressed as it came.",
    ),
    key_of(
        "message.timestamp.after.max.ms",
        Long,
        "3600000",
        AtLeast(0),
        synonyms!["log.message.timestamp.after.max.ms"],
        "How far in the future a record's timestamp may lie.",
    ),
    key_of(
        "message.timestamp.before.max.ms",
        Long,
        LONG_MAX,
        AtLeast(0),
        synonyms!["log.message.timestamp.before.max.ms"],
        "How far in the past a record's timestamp may lie.",
    ),
    key_of(
        "message.timestamp.type",
        String,
        "CreateTime",
        OneOf(TIMESTAMP_TYPES),
        synonyms!["log.message.timestamp.type"],
        "Whose timestamp a record carries: the producer's, or the broker's at the append.",
    ),
    key_of(
        "min.cleanable.dirty.ratio",
        Double,
        "0.5",
        Ratio,
        synonyms!["log.cleaner.min.cleanable.ratio"],
        "Kept until there is compaction: the share of uncleaned bytes at which a topic is cleaned.",
    ),
    key_of(
        "min.compaction.lag.ms",
        Long,
        "0",
        AtLeast(0),
        synonyms!["log.cleaner.min.compaction.lag.ms"],
        "Kept until there is compaction: the least time that a record stays uncleaned.",
    ),
    key_of(
        "min.insync.replicas",
        Int,
        "1",
        AtLeast(1),
        synonyms!["min.insync.replicas"],
        "In-sync replicas without which a produce with acks=all is refused.",
    ),
    key_of(
        "preallocate",
        Boolean,
        "false",
        Any,
        synonyms!["log.preallocate"],
        "Without effect: the journal is allocated ahead, and the files of segments are not.",
    )
    .without_effect(),
    key_of(
        "remote.log.copy.disable",
        Boolean,
        "false",
        Any,
        &[],
        "Stops uploads; what is in the bucket stays and is served, and nothing more is evicted from local disk.",
    ),
    key_of(
        "remote.log.delete.on.disable",
        Boolean,
        "false",
        Any,
        &[],
        "Without effect: tiering cannot be turned off for a topic that has it.",
    )
    .without_effect(),
    // Kafka's default is false. Tiering is what this broker is for.
    key_of(
        "remote.storage.enable",
        Boolean,
        "true",
        Any,
        &[],
        "Whether sealed segments move to the bucket and are served from there.",
    ),
    key_of(
        "retention.bytes",
        Long,
        "-1",
        Any,
        synonyms!["log.retention.bytes"],
        "Bytes of a partition kept in all tiers together; -1 is without limit.",
    ),
    key_of(
        "retention.ms",
        Long,
        "604800000",
        AtLeast(-1),
        synonyms![ms "log.retention.ms", minutes "log.retention.minutes", hours "log.retention.hours"],
        "How long records are kept, in whichever tier; -1 is without limit.",
    ),
    key_of(
        "segment.bytes",
        Int,
        "1073741824",
        AtLeast(SEGMENT_BYTES_MIN),
        synonyms!["log.segment.bytes"],
        "The size at which a segment is sealed.",
    ),
    key_of(
        "segment.index.bytes",
        Int,
        "10485760",
        AtLeast(4),
        synonyms!["log.index.size.max.bytes"],
        "A segment is sealed where its index has as many entries as fit in this, each counted as 12 bytes.",
    ),
    key_of(
        "segment.jitter.ms",
        Long,
        "0",
        AtLeast(0),
        synonyms![ms "log.roll.jitter.ms", hours "log.roll.jitter.hours"],
        "The most that is taken from `segment.ms` by chance, so that partitions do not seal all at once.",
    ),
    key_of(
        "segment.ms",
        Long,
        "604800000",
        AtLeast(1),
        synonyms![ms "log.roll.ms", hours "log.roll.hours"],
        "The age at which the next append seals a segment.",
    ),
    key_of(
        "unclean.leader.election.enable",
        Boolean,
        "false",
        Any,
        synonyms!["unclean.leader.election.enable"],
        "Whether a replica that is not in sync may lead when no other can.",
    ),
];

/// The topic key of this name.
#[must_use]
pub fn topic_key(name: &str) -> Option<&'static Key> {
    TOPIC_KEYS.binary_search_by(|key| key.name.cmp(name)).ok().map(|found| &TOPIC_KEYS[found])
}
