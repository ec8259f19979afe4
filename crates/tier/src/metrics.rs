//! The crate's metrics.

use std::collections::BTreeMap;

use tidelog_core::upload::Lag;
use tidelog_runtime::metrics::{Counter, Gauge, Registry};
use tidelog_types::TopicName;

use crate::task::TaskKind;

/// What background work counts.
#[derive(Clone)]
pub(crate) struct TierMetrics {
    registry: Registry,
    task_failures: BTreeMap<TaskKind, Counter>,
    pub(crate) uploads: Counter,
    pub(crate) uploaded_bytes: Counter,
    pub(crate) upload_failures: Counter,
    pub(crate) uploads_abandoned: Counter,
    pub(crate) damaged: Counter,
    pub(crate) uploads_running: Gauge,
    pub(crate) uploads_wait_for_space: Gauge,
    pub(crate) spills: Counter,
    pub(crate) manifests: Counter,
    pub(crate) deletions: Counter,
    pub(crate) deletion_failures: Counter,
    pub(crate) deletions_waiting: Gauge,
    pub(crate) orphans: Counter,
    pub(crate) strangers: Gauge,
    pub(crate) evicted_bytes: Counter,
    pub(crate) retention_bytes: Counter,
    pub(crate) disk_excess: Gauge,
}

impl TierMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, doc| registry.counter(name, doc);
        let gauge = |name, doc| registry.gauge(name, doc);
        Self {
            registry: registry.clone(),
            // All at 0 from the start: a rate over a counter that appears with its first failure misses that one.
            task_failures: TaskKind::ALL.map(|kind| (kind, task_failures(registry, kind))).into(),
            uploads: counter("tier_uploads_total", "Segment objects that entered a manifest."),
            uploaded_bytes: counter(
                "tier_uploaded_bytes_total",
                "Bytes of segment objects that entered a manifest.",
            ),
            upload_failures: counter(
                "tier_upload_failures_total",
                "Uploads that failed and are tried again.",
            ),
            uploads_abandoned: counter(
                "tier_uploads_abandoned_total",
                "Objects that were written and did not enter a manifest; the sweep finds them.",
            ),
            damaged: counter("tier_damaged_uploads_total", "Uploads refused since the local log is damaged."),
            uploads_running: gauge("tier_uploads_running", "Partitions that upload now."),
            uploads_wait_for_space: gauge(
                "tier_uploads_wait_for_space",
                "1 while uploads to a folder on the log's own disk wait for free space.",
            ),
            spills: counter("tier_manifest_spills_total", "Moves of manifest entries into pages."),
            manifests: counter(
                "tier_manifests_published_total",
                "Copies of manifests written to the bucket.",
            ),
            deletions: counter("tier_deleted_objects_total", "Objects deleted from the bucket."),
            deletion_failures: counter(
                "tier_deletion_failures_total",
                "Items of the deletion queue that failed and are tried again.",
            ),
            deletions_waiting: gauge("tier_deletions_waiting", "Items in the deletion queue."),
            orphans: counter("tier_orphans_deleted_total", "Objects deleted since nothing named them."),
            strangers: gauge(
                "tier_unknown_objects",
                "Keys of the last sweep that are none of ours; they are left alone.",
            ),
            evicted_bytes: counter(
                "tier_evicted_bytes_total",
                "Local bytes deleted since the bucket holds them.",
            ),
            retention_bytes: counter(
                "tier_retention_bytes_total",
                "Bytes of tiered topics that retention took.",
            ),
            disk_excess: gauge(
                "tier_local_disk_excess_bytes",
                "Local bytes above local.disk.bytes.max that could not be evicted.",
            ),
        }
    }

    /// A failed tick of a task.
    pub(crate) fn task_failed(&self, kind: TaskKind) {
        if let Some(counter) = self.task_failures.get(&kind) {
            counter.inc();
        }
    }
}

fn task_failures(registry: &Registry, kind: TaskKind) -> Counter {
    registry.counter_with(
        "tier_task_failures_total",
        "Ticks of background tasks that failed or panicked.",
        &[("task", kind.name())],
    )
}

const LAGS: [(&str, &str); 5] = [
    ("tier_upload_lag_bytes", "Bytes in sealed segments that are not in the bucket yet."),
    ("tier_upload_lag_segments", "Sealed segments that are not in the bucket yet."),
    ("tier_upload_lag_seconds", "Age of the oldest byte in a sealed segment that is not in the bucket yet."),
    ("tier_unsent_bytes", "Bytes that are not in the bucket yet, the active segment's included."),
    (
        "tier_unsent_seconds",
        "Age of the oldest byte that is not in the bucket yet, the active segment's included.",
    ),
];

/// Lag by topic, written anew at each tick (C4).
#[derive(Default)]
pub(crate) struct LagGauges {
    topics: BTreeMap<TopicName, [Gauge; 5]>,
}

impl LagGauges {
    pub(crate) fn set(&mut self, registry: &Registry, lags: &BTreeMap<TopicName, Lag>) {
        self.topics.retain(|topic, _| {
            let kept = lags.contains_key(topic);
            if !kept {
                for (name, _) in LAGS {
                    registry.remove(name, &[("topic", topic.as_str())]);
                }
            }
            kept
        });
        for (topic, lag) in lags {
            let gauges = self.topics.entry(topic.clone()).or_insert_with(|| {
                LAGS.map(|(name, doc)| registry.gauge_with(name, doc, &[("topic", topic.as_str())]))
            });
            let values = [
                lag.bytes,
                lag.segments,
                lag.age_ms.div_ceil(1_000),
                lag.unsent_bytes,
                lag.unsent_age_ms.div_ceil(1_000),
            ];
            for (gauge, value) in gauges.iter().zip(values) {
                gauge.set(value);
            }
        }
    }
}

impl TierMetrics {
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }
}
