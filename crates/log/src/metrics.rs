//! The metrics of the log.

use tidelog_runtime::metrics::{Counter, Gauge, Histogram, Registry};

/// How long the rounds of the journal take, in seconds.
#[must_use]
pub fn round_seconds(registry: &Registry) -> Histogram {
    registry.histogram(
        "log_journal_round_seconds",
        "Time from the start of a round's write to the end of its sync.",
    )
}

/// What the log measures of itself.
#[derive(Debug, Clone)]
pub(crate) struct LogMetrics {
    pub(crate) appended_bytes: Counter,
    pub(crate) journal_bytes: Counter,
    pub(crate) rounds: Counter,
    pub(crate) syncs: Counter,
    pub(crate) round_seconds: Histogram,
    pub(crate) written_behind_bytes: Counter,
    pub(crate) disk_read_bytes: Counter,
    pub(crate) corrupt_intervals: Counter,
    pub(crate) rebuilt_indexes: Counter,
    pub(crate) segments_sealed: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) checkpoint_seconds: Histogram,
    pub(crate) tail_bytes: Gauge,
    pub(crate) unwritten_bytes: Gauge,
    pub(crate) journal_live_bytes: Gauge,
    pub(crate) open_files: Gauge,
    pub(crate) free_bytes: Gauge,
    pub(crate) failed: Gauge,
}

impl LogMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            appended_bytes: registry.counter("log_appended_bytes_total", "Bytes of record batches appended."),
            journal_bytes: registry
                .counter("log_journal_written_bytes_total", "Bytes written to the journal."),
            rounds: registry.counter("log_journal_rounds_total", "Rounds written to the journal."),
            syncs: registry.counter("log_journal_syncs_total", "Syncs of the journal."),
            round_seconds: round_seconds(registry),
            written_behind_bytes: registry
                .counter("log_written_behind_bytes_total", "Bytes written to segments from memory."),
            disk_read_bytes: registry
                .counter("log_disk_read_bytes_total", "Bytes of segments read from disk."),
            corrupt_intervals: registry.counter(
                "log_corrupt_intervals_total",
                "Intervals of segments whose checksum did not match.",
            ),
            rebuilt_indexes: registry
                .counter("log_rebuilt_indexes_total", "Indexes made anew from the batches of their segment."),
            segments_sealed: registry.counter("log_segments_sealed_total", "Segments sealed."),
            checkpoints: registry.counter("log_checkpoints_total", "Checkpoints made durable."),
            checkpoint_seconds: registry.histogram("log_checkpoint_seconds", "Time of a checkpoint."),
            tail_bytes: registry.gauge("log_tail_bytes", "Memory charged for received batches."),
            unwritten_bytes: registry
                .gauge("log_unwritten_bytes", "Memory charged for batches that are in no segment yet."),
            journal_live_bytes: registry
                .gauge("log_journal_live_bytes", "Bytes of journal that a recovery would read."),
            open_files: registry.gauge("log_open_files", "Open files of segments."),
            free_bytes: registry
                .gauge("log_free_bytes", "Free bytes of the file system of the data directory."),
            failed: registry.gauge("log_failed", "1 once the log stopped for good."),
        }
    }
}
