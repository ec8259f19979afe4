//! What cold reads count.

use tidelog_runtime::{
    Registry,
    metrics::{Counter, Gauge},
};

/// The metrics of cold reads.
#[derive(Debug, Clone)]
pub(crate) struct ColdMetrics {
    /// Reads that were begun.
    pub reads: Counter,
    /// Reads that ended in an error.
    pub failed_reads: Counter,
    /// Ranged and whole GETs that were begun, index and pages included.
    pub gets: Counter,
    /// Bytes that they brought.
    pub get_bytes: Counter,
    /// Units served by source.
    pub ring_hits: Counter,
    pub cache_hits: Counter,
    pub store_hits: Counter,
    /// Waits for a flight that another had begun.
    pub joined: Counter,
    /// Bytes read ahead and then read, and read ahead in vain.
    pub ahead_used_bytes: Counter,
    pub ahead_dropped_bytes: Counter,
    /// Intervals that failed their checksum.
    pub corrupt_intervals: Counter,
    /// Objects and pages named by the manifest that the store does not have.
    pub missing: Counter,
    /// Units offered to the cache.
    pub admitted: Counter,
    /// GETs that waited so that the present does not suffer, and looks at which it suffered.
    pub paced: Counter,
    pub gave_way: Counter,
    /// The rate that cold reads are held to.
    pub rate_limit: Gauge,
    /// GETs on the wire.
    pub gets_in_flight: Gauge,
    /// Bytes in the ring.
    pub ring_bytes: Gauge,
}

impl ColdMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let hits = |source| {
            registry.counter_with(
                "tier_cold_units_total",
                "Units of cold reads, by where they came from.",
                &[("source", source)],
            )
        };
        let ahead = |outcome| {
            registry.counter_with(
                "tier_cold_readahead_bytes_total",
                "Bytes that were read ahead, by what became of them.",
                &[("outcome", outcome)],
            )
        };
        let counter = |name, doc| registry.counter(name, doc);
        Self {
            reads: counter("tier_cold_reads_total", "Cold reads of records that were begun."),
            failed_reads: counter(
                "tier_cold_failed_reads_total",
                "Cold reads of records that gave an error.",
            ),
            gets: counter("tier_cold_gets_total", "GETs of cold reads, their indexes and pages included."),
            get_bytes: counter("tier_cold_get_bytes_total", "Bytes that the GETs of cold reads brought."),
            ring_hits: hits("ring"),
            cache_hits: hits("cache"),
            store_hits: hits("store"),
            joined: counter("tier_cold_joined_total", "Waits for a GET that another reader had begun."),
            ahead_used_bytes: ahead("used"),
            ahead_dropped_bytes: ahead("dropped"),
            corrupt_intervals: counter(
                "tier_cold_corrupt_intervals_total",
                "Intervals and indexes from the bucket that failed their checksum.",
            ),
            missing: counter(
                "tier_cold_missing_objects_total",
                "Reads of objects or pages that a manifest names and the store does not have.",
            ),
            admitted: counter("tier_cold_cache_admissions_total", "Units that were wanted twice."),
            paced: counter(
                "tier_cold_paced_gets_total",
                "GETs of cold reads that waited since produces had become slow.",
            ),
            gave_way: counter(
                "tier_cold_gave_way_total",
                "Looks, four a second, at which produces were slow while cold reads ran.",
            ),
            rate_limit: registry.gauge(
                "tier_cold_rate_limit_bytes",
                "Bytes per second that cold reads are held to; 0 while they are free.",
            ),
            gets_in_flight: registry.gauge("tier_cold_gets_in_flight", "GETs of cold reads on the wire."),
            ring_bytes: registry
                .gauge("tier_cold_ring_bytes", "Bytes kept for sequential readers of cold data."),
        }
    }
}
