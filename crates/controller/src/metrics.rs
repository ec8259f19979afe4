//! What the controller measures.

use tidelog_runtime::metrics::{Counter, Gauge, Histogram, Registry};

/// Handles of the controller's metrics. Cheap clones.
#[derive(Debug, Clone)]
pub struct ControllerMetrics {
    /// Commands applied or refused by the state machine, as proposed here.
    pub proposals: Counter,
    /// Proposals that were certainly not applied.
    pub proposals_refused: Counter,
    /// Proposals whose outcome is not known.
    pub proposals_unknown: Counter,
    /// From proposing to the outcome.
    pub propose_seconds: Histogram,
    /// Rounds written to the log and synced.
    pub log_rounds: Counter,
    /// Bytes written to the log.
    pub log_written_bytes: Counter,
    /// One round's write and sync.
    pub log_round_seconds: Histogram,
    /// Bytes that are allocated in the log and not written.
    pub log_room_bytes: Gauge,
    /// Entries in the log and not yet purged.
    pub log_entries: Gauge,
    /// The last index applied.
    pub applied_index: Gauge,
    /// Snapshots written, built or received.
    pub snapshots: Counter,
    /// Bytes of the newest snapshot.
    pub snapshot_bytes: Gauge,
    /// 1 where this node leads the controllers.
    pub leader: Gauge,
    /// Items that wait in the deletion queue.
    pub deletions_queued: Gauge,
}

impl ControllerMetrics {
    /// Registers them.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self {
            proposals: registry
                .counter("controller_proposals_total", "Commands that were applied or refused."),
            proposals_refused: registry.counter(
                "controller_proposals_not_applied_total",
                "Commands that were certainly not applied.",
            ),
            proposals_unknown: registry
                .counter("controller_proposals_unknown_total", "Commands whose outcome is not known."),
            propose_seconds: registry
                .histogram("controller_propose_seconds", "From proposing to the outcome."),
            log_rounds: registry
                .counter("controller_log_rounds_total", "Rounds written to the log and synced."),
            log_written_bytes: registry
                .counter("controller_log_written_bytes_total", "Bytes written to the log."),
            log_round_seconds: registry
                .histogram("controller_log_round_seconds", "One round's write and sync."),
            log_room_bytes: registry.gauge(
                "controller_log_room_bytes",
                "Bytes that are allocated in the log and not written; below 1.75 MiB the disk is full.",
            ),
            log_entries: registry.gauge("controller_log_entries", "Entries in the log, not yet purged."),
            applied_index: registry.gauge("controller_applied_index", "The last log index applied."),
            snapshots: registry.counter("controller_snapshots_total", "Snapshots written."),
            snapshot_bytes: registry.gauge("controller_snapshot_bytes", "Bytes of the newest snapshot."),
            leader: registry.gauge("controller_leader", "1 where this node leads the controllers."),
            deletions_queued: registry
                .gauge("controller_deletions_queued", "Items that wait to be deleted from the bucket."),
        }
    }
}
