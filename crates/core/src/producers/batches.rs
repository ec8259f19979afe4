//! The last few batches of a producer.

use tidelog_types::{Offset, Timestamp, limits};

/// One batch of a producer, as it lies in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RememberedBatch {
    /// The sequence of its first record.
    pub base_sequence: i32,
    /// The sequence of its last record, inclusive.
    pub last_sequence: i32,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// The offset of its last record, inclusive.
    pub last_offset: Offset,
    /// The largest timestamp in it, where it has one.
    pub max_timestamp: Option<Timestamp>,
}

const KEPT: usize = limits::PRODUCER_BATCHES_REMEMBERED;

/// A producer's last batches, oldest first: as many as clients keep in flight, without an allocation of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RememberedBatches {
    kept: [Option<RememberedBatch>; KEPT],
}

impl RememberedBatches {
    /// Adds the newest, and forgets the oldest where there are too many.
    pub fn push(&mut self, batch: RememberedBatch) {
        if let Some(free) = self.kept.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(batch);
        } else {
            self.kept.rotate_left(1);
            self.kept[KEPT - 1] = Some(batch);
        }
    }

    /// The newest.
    #[must_use]
    pub fn last(&self) -> Option<&RememberedBatch> {
        self.kept.iter().rev().flatten().next()
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &RememberedBatch> {
        self.kept.iter().flatten()
    }

    /// The batch with exactly these sequences.
    #[must_use]
    pub fn find(&self, base_sequence: i32, last_sequence: i32) -> Option<RememberedBatch> {
        self.iter()
            .find(|batch| batch.base_sequence == base_sequence && batch.last_sequence == last_sequence)
            .copied()
    }
}
