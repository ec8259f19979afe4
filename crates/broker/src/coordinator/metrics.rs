//! What the coordinator counts.

use tidelog_runtime::metrics::{Counter, Gauge, Histogram, Registry};

#[derive(Debug)]
pub(crate) struct GroupMetrics {
    pub(crate) loading: Gauge,
    pub(crate) load_seconds: Histogram,
    pub(crate) commits: Counter,
    pub(crate) expired: Counter,
    pub(crate) deleted: Counter,
    pub(crate) rebalances: Counter,
    pub(crate) records: Counter,
    pub(crate) failed_writes: Counter,
    pub(crate) write_seconds: Histogram,
    pub(crate) bad_records: Counter,
    pub(crate) no_room: Counter,
    pub(crate) too_large: Counter,
}

impl GroupMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            loading: registry.gauge(
                "group_shards_loading",
                "Partitions of __consumer_offsets that are being read at a start or an election.",
            ),
            load_seconds: registry
                .histogram("group_load_seconds", "Time to read one partition of __consumer_offsets."),
            commits: registry.counter("group_offset_commits_total", "Offsets that were committed."),
            expired: registry
                .counter("group_offsets_expired_total", "Offsets that ended by offsets.retention.minutes."),
            deleted: registry.counter(
                "group_offsets_deleted_total",
                "Offsets that ended with their group, topic, or by request.",
            ),
            rebalances: registry.counter("group_rebalances_total", "Generations that groups began."),
            records: registry
                .counter("group_records_total", "Records of groups and offsets that were written."),
            failed_writes: registry
                .counter("group_failed_writes_total", "Batches of such records that were not written."),
            write_seconds: registry.histogram(
                "group_write_seconds",
                "Time from a batch of such records to its sync, which every answer waits for.",
            ),
            no_room: registry.counter(
                "group_members_refused_total",
                "Joins, heartbeats and assignments that were refused since members of groups take all the memory that they may.",
            ),
            too_large: registry.counter(
                "group_changes_refused_total",
                "Changes of groups that were taken back since their records are more than one batch may hold.",
            ),
            bad_records: registry.counter(
                "group_bad_records_total",
                "Records of __consumer_offsets that could not be read at a load; each is written to the log.",
            ),
        }
    }
}
