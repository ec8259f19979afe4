//! What the log tells a partition.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tidelog_core::partition::Moved;
use tidelog_log::{LogFailure, LogObserver};
use tidelog_types::Offset;
use tracing::error;

use crate::{partition::Partition, producers_form};

/// Carries the log's progress to the partition. Holds it weakly: the log outlives a partition that goes away.
#[derive(Debug)]
pub(crate) struct Progress {
    partition: Weak<Partition>,
}

impl Progress {
    pub(crate) fn new(partition: &Arc<Partition>) -> Self {
        Self { partition: Arc::downgrade(partition) }
    }

    fn tell(&self, tell: impl FnOnce(&mut tidelog_core::partition::PartitionState) -> Moved) {
        if let Some(partition) = self.partition.upgrade() {
            partition.change(|locked| ((), tell(&mut locked.state)));
        }
    }
}

impl LogObserver for Progress {
    fn written(&self, end: Offset) {
        self.tell(|state| state.written(end));
    }

    fn synced(&self, end: Offset) {
        self.tell(|state| state.synced(end));
    }

    fn failed(&self, why: &LogFailure) {
        if let Some(partition) = self.partition.upgrade() {
            // The end of a clean stop, and of a deleted topic: nobody needs to look.
            if matches!(why, LogFailure::Closed | LogFailure::Deleted) {
                partition.fail(&why.to_string(), false);
                return;
            }
            error!(partition = %partition.place, topic = %partition.topic, why = %why, "the log of a partition failed");
            partition.shared.metrics.failed_partitions.add(1);
            partition.fail(&why.to_string(), false);
        }
    }

    fn producer_snapshot(&self) -> (Offset, Bytes) {
        let Some(partition) = self.partition.upgrade() else { return (Offset::ZERO, Bytes::new()) };
        let locked = partition.lock();
        (locked.state.log_end(), producers_form::encode(locked.state.producers(), locked.state.log_end()))
    }
}
