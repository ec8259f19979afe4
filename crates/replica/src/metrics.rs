//! What a broker's partitions report.

use tidelog_runtime::metrics::{Counter, Gauge, Registry};

/// Handles of every metric of this crate.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each has its document line below")]
pub struct ReplicaMetrics {
    pub appended_batches: Counter,
    pub appended_bytes: Counter,
    pub duplicate_batches: Counter,
    pub refused_batches: Counter,
    pub recompressed_batches: Counter,
    pub inspected_batches: Counter,
    pub hot_read_bytes: Counter,
    pub replanned_reads: Counter,
    pub cold_fallback_reads: Counter,
    pub expired_producers: Counter,
    pub lost_producer_states: Counter,
    pub deleted_by_retention_bytes: Counter,
    pub partitions: Gauge,
    pub failed_partitions: Gauge,
    pub fenced_partitions: Gauge,
}

impl ReplicaMetrics {
    /// Registers all of them.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let counter = |name, doc| registry.counter(name, doc);
        Self {
            appended_batches: counter("replica_appended_batches_total", "Batches appended."),
            appended_bytes: counter("replica_appended_bytes_total", "Bytes of batches appended."),
            duplicate_batches: counter(
                "replica_duplicate_batches_total",
                "Batches recognised as sent again.",
            ),
            refused_batches: counter("replica_refused_batches_total", "Batches refused before the append."),
            recompressed_batches: counter(
                "replica_recompressed_batches_total",
                "Batches compressed anew because of compression.type.",
            ),
            inspected_batches: counter(
                "replica_inspected_batches_total",
                "Batches whose records were read before the append.",
            ),
            hot_read_bytes: counter("replica_hot_read_bytes_total", "Bytes read from memory or local disk."),
            replanned_reads: counter(
                "replica_replanned_reads_total",
                "Reads that were planned again since the log had moved.",
            ),
            cold_fallback_reads: counter(
                "replica_cold_fallback_reads_total",
                "Reads sent to the bucket since the local copy is damaged.",
            ),
            expired_producers: counter(
                "replica_expired_producers_total",
                "Producers forgotten after their silence.",
            ),
            lost_producer_states: counter(
                "replica_lost_producer_states_total",
                "Partitions whose producers were known from the local log alone at a start.",
            ),
            deleted_by_retention_bytes: counter(
                "replica_deleted_by_retention_bytes_total",
                "Bytes of segments removed by retention of topics that are not tiered.",
            ),
            partitions: registry.gauge("replica_partitions", "Partitions hosted here."),
            failed_partitions: registry.gauge("replica_failed_partitions", "Partitions whose log failed."),
            fenced_partitions: registry.gauge(
                "replica_fenced_partitions",
                "Partitions that take no appends until an operator accepts what was lost.",
            ),
        }
    }
}
