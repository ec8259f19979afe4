//! Retention of topics that are not tiered, and expiry of producers.
//!
//! A tiered topic's retention covers the bucket and is `tier`'s. What goes is decided by the same planner.

use tidelog_core::{
    cluster::PartitionManifest,
    retention::{Keep, RetentionView},
    upload::PageEntries,
};
use tracing::warn;

use crate::partition::{Partition, PartitionHandle};

impl PartitionHandle {
    /// Applies `retention.ms` and `retention.bytes` if the topic deletes and is not tiered. Answers the bytes that went.
    ///
    /// # Errors
    /// What stopped it; the next tick tries again.
    pub async fn apply_retention(&self) -> Result<u64, crate::DeleteRecordsError> {
        let partition = &self.inner;
        let settings = partition.settings();
        let snapshot = partition.snapshot();
        if snapshot.tiered || !snapshot.leading || !settings.topic.cleanup_policy.delete {
            return Ok(0);
        }
        let keep = Keep { age_ms: settings.topic.retention_ms, bytes: settings.topic.retention_bytes };
        let view = RetentionView {
            log_start: snapshot.log_start,
            high_watermark: snapshot.high_watermark,
            // What the bucket holds of a topic that is not tiered any more is not retention's.
            manifest: &PartitionManifest::default(),
            pages: &PageEntries::default(),
            known: None,
            segments: &self.local_segments(),
        };
        let plan = view.plan(partition.shared.clock.wall(), keep);
        let Some(log_start) = plan.log_start.filter(|to| *to > snapshot.log_start) else { return Ok(0) };
        if plan.seal_active {
            partition.log.roll().await?;
        }
        self.advance_log_start(log_start).await?;
        partition.shared.metrics.deleted_by_retention_bytes.add(plan.bytes);
        Ok(plan.bytes)
    }
}

impl Partition {
    pub(crate) fn expire_producers(&self) {
        let now = self.shared.clock.wall();
        let expired = self.lock().state.expire_producers(now);
        self.shared.metrics.expired_producers.add(expired as u64);
    }
}

/// One tick over all partitions.
pub(crate) async fn tick(partitions: Vec<PartitionHandle>) {
    for partition in partitions {
        if let Err(error) = partition.apply_retention().await {
            warn!(partition = %partition.place(), topic = %partition.topic(), %error, "retention will be tried again");
        }
    }
}
