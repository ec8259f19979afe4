//! How tiering is set up.

use std::time::Duration;

use tidelog_core::topic_config::BrokerSettings;
use tidelog_types::{BrokerId, BrokerIncarnation, ByteSize, ClusterId};

use crate::mistakes::Mistakes;

/// Settings of tiering on one node. Constants of one start: a change needs another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// `node.id`.
    pub broker: BrokerId,
    /// The incarnation that this start registered; it is part of every key that this node writes.
    pub incarnation: BrokerIncarnation,
    /// The cluster, whose id is in every object.
    pub cluster_id: ClusterId,
    /// `tier.check.interval.ms` (10 s): the time between two looks for work.
    pub check_interval: Duration,
    /// `tier.upload.max.lag.ms` (1 h): the age, by the wall clock, at which an idle segment is sealed and uploaded.
    pub upload_lag_max: Duration,
    /// `tier.object.target.bytes` (64 MiB, at most 256 MiB): the batches of one segment object.
    pub object_target: ByteSize,
    /// `tier.upload.memory.bytes` (256 MiB): payloads of all uploads on the way.
    pub upload_memory: ByteSize,
    /// `tier.delete.grace.ms` (5 min): how long an object stays after it left the manifest.
    pub deletion_grace: Duration,
    /// `tier.orphan.age.ms` (24 h): the age at which an object that nothing names is deleted.
    pub orphan_age: Duration,
    /// `manifest.publish.ms` (1 min): how soon a manifest is published after DeleteRecords.
    pub manifest_publish: Duration,
    /// How often a manifest is published where only its newest entries changed: once a day.
    pub manifest_publish_daily: Duration,
    /// `local.disk.bytes.max`: above it tiered segments are evicted, oldest first across partitions; `None`: never.
    pub local_disk_bytes_max: Option<ByteSize>,
    /// Partitions that upload at once: 8 of 64 MiB keep a 10 Gbit/s link to a store busy.
    pub uploads_at_once: usize,
    /// Deliberate defects, for the tests that prove the checkers.
    #[doc(hidden)]
    pub mistakes: Mistakes,
}

impl TierConfig {
    /// The defaults.
    #[must_use]
    pub fn new(broker: BrokerId, incarnation: BrokerIncarnation, cluster_id: ClusterId) -> Self {
        Self::from_settings(broker, incarnation, cluster_id, &BrokerSettings::default())
    }

    /// What the broker's checked settings say. `local.disk.bytes.max` stays `None` where it is not set: its default is a
    /// share of the file system, which the caller knows.
    #[must_use]
    pub fn from_settings(
        broker: BrokerId,
        incarnation: BrokerIncarnation,
        cluster_id: ClusterId,
        settings: &BrokerSettings,
    ) -> Self {
        let time = |name, default| Duration::from_millis(settings.amount(name).unwrap_or(default));
        let size = |name, default| ByteSize::bytes(settings.amount(name).unwrap_or(default));
        Self {
            broker,
            incarnation,
            cluster_id,
            check_interval: time("tier.check.interval.ms", 10_000),
            upload_lag_max: time("tier.upload.max.lag.ms", 3_600_000),
            object_target: size("tier.object.target.bytes", 64 << 20),
            upload_memory: size("tier.upload.memory.bytes", 256 << 20),
            deletion_grace: time("tier.delete.grace.ms", 300_000),
            orphan_age: time("tier.orphan.age.ms", 86_400_000),
            manifest_publish: time("manifest.publish.ms", 60_000),
            manifest_publish_daily: Duration::from_secs(86_400),
            local_disk_bytes_max: settings.amount("local.disk.bytes.max").map(ByteSize::bytes),
            uploads_at_once: 8,
            mistakes: Mistakes::default(),
        }
    }
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
