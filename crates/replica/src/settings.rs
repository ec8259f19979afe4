//! A partition's settings, resolved from its topic's and the broker's.

use std::{collections::BTreeMap, time::Duration};

use tidelog_core::{
    cluster::{LogIndex, MetadataImage, TopicImage},
    partition::{AppendRules, FlushPolicy, TimestampBounds},
    producers::ProducerLimits,
    topic_config::{BrokerSettings, CompressionType, TimestampType, TopicConfig},
};
use tidelog_format::codec::Codec;
use tidelog_log::PartitionConfig;
use tidelog_types::{BrokerId, ByteSize, TopicName, TopicPartition, limits};

use crate::mistakes::Mistakes;

/// Settings of a broker's partitions.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// `node.id`.
    pub broker: BrokerId,
    /// The broker's own settings, from its file, environment and flags.
    pub static_values: BTreeMap<String, String>,
    /// Nothing is served, and nothing deleted, until the image has passed this index: that of the node's registration.
    pub registered_at: LogIndex,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval: Duration,
    /// How often silent producers are looked for.
    pub producer_check_interval: Duration,
    /// Deliberate defects, for the tests that prove the checkers.
    #[doc(hidden)]
    pub mistakes: Mistakes,
}

impl ReplicaConfig {
    /// The defaults, for a broker that registered at `registered_at`.
    #[must_use]
    pub fn new(broker: BrokerId, registered_at: LogIndex) -> Self {
        Self {
            broker,
            static_values: BTreeMap::new(),
            registered_at,
            retention_check_interval: Duration::from_secs(300),
            producer_check_interval: Duration::from_secs(600),
            mistakes: Mistakes::default(),
        }
    }

    /// The broker's settings under an image.
    pub(crate) fn broker_settings(&self, image: &MetadataImage) -> BrokerSettings {
        let overrides = |broker| image.broker_configs(broker).cloned().unwrap_or_default();
        BrokerSettings {
            static_values: self.static_values.clone(),
            dynamic_values: overrides(Some(self.broker)),
            dynamic_defaults: overrides(None),
        }
    }
}

/// What an append, a look-up or retention of one partition needs of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionSettings {
    /// The topic's settings in force.
    pub topic: TopicConfig,
    /// When records are synced and seen.
    pub flush: FlushPolicy,
    /// Bounds of producer state.
    pub producers: ProducerLimits,
    /// The jitter taken from `segment.ms`.
    segment_jitter: Duration,
}

impl PartitionSettings {
    pub(crate) fn resolve(broker: &BrokerSettings, topic: &TopicImage, place: TopicPartition) -> Self {
        let settings = TopicConfig::resolve_stored(broker, &topic.configs);
        let replicated = broker.value("log.flush.default").is_some_and(|value| value == "replicated");
        let flush = FlushPolicy::resolve(
            settings.flush_messages,
            settings.flush_ms,
            replicated,
            is_internal(&topic.name),
        );
        let expiration = broker
            .amount("producer.id.expiration.ms")
            .map_or(ProducerLimits::default().expiration, Duration::from_millis);
        let producers = ProducerLimits { expiration, entries_max: limits::PRODUCERS_PER_PARTITION_MAX };
        let segment_jitter = Duration::from_millis(jitter(place, settings.segment_jitter_ms));
        Self { topic: settings, flush, producers, segment_jitter }
    }

    pub(crate) fn log_config(&self) -> PartitionConfig {
        PartitionConfig {
            segment_bytes: ByteSize::bytes(self.topic.segment_bytes),
            segment_index_bytes: ByteSize::bytes(self.topic.segment_index_bytes),
            segment_age: Duration::from_millis(self.topic.segment_ms).saturating_sub(self.segment_jitter),
            index_interval_bytes: ByteSize::bytes(self.topic.index_interval_bytes),
        }
    }

    /// The rules of an append with these acks.
    pub(crate) fn rules(&self, acks_all: bool, internal: bool) -> AppendRules {
        let in_sync_min = usize::try_from(self.topic.min_insync_replicas).unwrap_or(usize::MAX);
        AppendRules {
            batch_bytes_max: self.topic.max_message_bytes,
            log_append_time: self.topic.message_timestamp_type == TimestampType::LogAppendTime,
            timestamp_bounds: TimestampBounds {
                before_ms: self.topic.timestamp_before_max_ms.unwrap_or(u64::MAX),
                after_ms: self.topic.timestamp_after_max_ms.unwrap_or(u64::MAX),
            },
            in_sync_min: acks_all.then_some(in_sync_min),
            internal,
        }
    }

    /// The codec that stored batches must have; `None`: the producer's.
    pub(crate) const fn codec(&self) -> Option<(Codec, Option<i32>)> {
        match self.topic.compression_type {
            CompressionType::Producer => None,
            CompressionType::Uncompressed => Some((Codec::None, None)),
            CompressionType::Gzip => Some((Codec::Gzip, gzip_level(self.topic.compression_gzip_level))),
            CompressionType::Snappy => Some((Codec::Snappy, None)),
            CompressionType::Lz4 => Some((Codec::Lz4, None)),
            CompressionType::Zstd => Some((Codec::Zstd, Some(self.topic.compression_zstd_level))),
        }
    }
}

const fn gzip_level(level: Option<u32>) -> Option<i32> {
    match level {
        Some(level) if level <= 9 => Some(level.cast_signed()),
        _ => None,
    }
}

/// Kafka's own topics of state: they always sync before an answer.
fn is_internal(name: &TopicName) -> bool {
    matches!(name.as_str(), "__consumer_offsets" | "__transaction_state")
}

/// A share of `bound` that is the partition's own and stays: what spreads rolls needs no chance.
fn jitter(place: TopicPartition, bound: u64) -> u64 {
    if bound == 0 {
        return 0;
    }
    let mut mixed = u64::from(place.partition.0.unsigned_abs());
    for byte in place.topic_id.as_bytes() {
        mixed = (mixed ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (mixed ^ (mixed >> 32)) % bound
}
