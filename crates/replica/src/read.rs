//! Fetches.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_core::{
    partition::PartitionSnapshot,
    read_plan::{Isolation, ReadPlan, plan_below_local, plan_read},
};
use tidelog_log::{LogRead, ReadError as LogReadError};
use tidelog_types::{LeaderEpoch, Offset};
use tracing::error;

use crate::{
    ColdError, ColdOutage, ColdRead, ColdRecords, ReadError,
    partition::{Partition, PartitionHandle},
};

/// How often a read is planned again when the log moved under it, before the client is asked to come back.
const REPLANS_MAX: usize = 4;

/// Whole batches, in order.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Their bytes; a batch from memory is two chunks, its header and its body.
    pub chunks: Vec<Bytes>,
    /// The base offset of the first batch; at or below what was asked.
    pub base: Offset,
    /// One past the last offset read.
    pub next: Offset,
}

impl Records {
    /// The bytes of all chunks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// What a fetch found.
#[derive(Debug, Clone)]
pub enum Fetched {
    /// Records from memory or local disk.
    Hot(Records),
    /// The offset is in the bucket, up to `end`, exclusive: [`PartitionHandle::read_cold`] reads it.
    Cold {
        /// Where to stop.
        end: Offset,
    },
    /// Nothing there yet.
    AtEnd,
}

impl PartitionHandle {
    /// Reads whole batches from the one that holds `offset` on, up to `bytes_max`, never from the bucket. With
    /// `one_at_least` one batch, whatever its size. The snapshot is the one that the answer was planned on.
    ///
    /// # Errors
    /// Why there is nothing to read; the snapshot goes with it.
    pub async fn read(
        &self,
        offset: Offset,
        bytes_max: usize,
        isolation: Isolation,
        one_at_least: bool,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> (Arc<PartitionSnapshot>, Result<Fetched, ReadError>) {
        let first_max = if one_at_least { usize::MAX } else { 0 };
        self.read_within(offset, bytes_max, first_max, isolation, current_leader_epoch).await
    }

    /// As [`PartitionHandle::read`]; the first batch may have up to `first_max` bytes where that is more than `bytes_max`. No
    /// records and no error: it is larger.
    ///
    /// # Errors
    /// As [`PartitionHandle::read`].
    pub async fn read_within(
        &self,
        offset: Offset,
        bytes_max: usize,
        first_max: usize,
        isolation: Isolation,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> (Arc<PartitionSnapshot>, Result<Fetched, ReadError>) {
        let partition = &self.inner;
        for _ in 0..REPLANS_MAX {
            let snapshot = partition.snapshot();
            let end = match plan_read(&snapshot, offset, isolation, current_leader_epoch) {
                ReadPlan::Hot { end } => end,
                other => return (snapshot, without_reading(other, offset)),
            };
            match partition.log.read_within(offset, bytes_max, end, first_max).await {
                Ok(read) => {
                    partition.shared.metrics.hot_read_bytes.add(read.bytes() as u64);
                    return (snapshot, Ok(Fetched::Hot(read.into())));
                }
                // The log start moved, or segments went, between the plan and the read.
                Err(LogReadError::OutOfRange { .. }) => partition.follow_log_starts(),
                Err(LogReadError::Corrupt { segment, why, .. }) => {
                    return (
                        Arc::clone(&snapshot),
                        partition.fall_back(&snapshot, offset, end, segment, &why),
                    );
                }
                Err(failed @ (LogReadError::Io { .. } | LogReadError::Failed(_))) => {
                    return (snapshot, Err(ReadError::Storage(failed.to_string().into())));
                }
            }
            partition.shared.metrics.replanned_reads.inc();
        }
        (partition.snapshot(), Err(ReadError::NotAvailable { offset }))
    }

    /// What keeps the bucket from serving, while it is known not to: a cold read that is not done when its fetch is due
    /// is then a retriable error and not an empty answer.
    #[must_use]
    pub fn cold_outage(&self) -> Option<ColdOutage> {
        self.inner.shared.cold().ok()?.outage()
    }

    /// Reads whole batches from the bucket, as [`Fetched::Cold`] told.
    ///
    /// # Errors
    /// The bucket did not answer. Where the manifest moved on meanwhile, [`ReadError::NotAvailable`]: plan again.
    pub async fn read_cold(
        &self,
        offset: Offset,
        end: Offset,
        bytes_max: usize,
        one_at_least: bool,
        deadline: Duration,
    ) -> Result<Records, ReadError> {
        let partition = &self.inner;
        let reader = partition.shared.cold()?;
        let place = partition.cold_place();
        let read = reader.read(ColdRead { place, offset, end, bytes_max, one_at_least, deadline }).await;
        match read {
            Ok(records) => Ok(records.into()),
            Err(ColdError::NotHeld { .. }) if offset < partition.snapshot().log_start => {
                Err(ReadError::OutOfRange { offset })
            }
            Err(ColdError::NotHeld { .. }) => Err(ReadError::NotAvailable { offset }),
            Err(failed) => Err(failed.into()),
        }
    }

    /// As [`PartitionHandle::read_cold`], of what is in memory of the bucket: `None` where anything would have to be waited for.
    #[must_use]
    pub fn read_cold_at_hand(&self, offset: Offset, end: Offset, bytes_max: usize) -> Option<Records> {
        let partition = &self.inner;
        let (reader, place) = (partition.shared.cold().ok()?, partition.cold_place());
        let deadline = Duration::ZERO;
        let read = ColdRead { place, offset, end, bytes_max, one_at_least: true, deadline };
        reader.read_at_hand(&read).map(Records::from)
    }
}

impl From<ColdRecords> for Records {
    fn from(read: ColdRecords) -> Self {
        Self { chunks: read.chunks, base: read.base, next: read.next }
    }
}

impl From<LogRead> for Records {
    fn from(read: LogRead) -> Self {
        Self { chunks: read.chunks, base: read.base, next: read.next }
    }
}

fn without_reading(plan: ReadPlan, offset: Offset) -> Result<Fetched, ReadError> {
    match plan {
        // Hot is read by the caller; as an end of its own it says that nothing is there.
        ReadPlan::AtEnd | ReadPlan::Hot { .. } => Ok(Fetched::AtEnd),
        ReadPlan::Cold { end } => Ok(Fetched::Cold { end }),
        ReadPlan::OutOfRange => Err(ReadError::OutOfRange { offset }),
        ReadPlan::NotAvailable => Err(ReadError::NotAvailable { offset }),
        ReadPlan::Refused(mismatch) => Err(ReadError::Leadership(mismatch)),
    }
}

impl Partition {
    /// Takes the local log start from the log, which may have moved it first.
    pub(crate) fn follow_log_starts(&self) {
        let local = self.log.offsets().local_log_start;
        self.change(|locked| {
            locked.state.set_local_log_start(local);
            ((), tidelog_core::partition::Moved::default())
        });
    }

    /// The local copy is damaged: the bucket's is read where there is one.
    fn fall_back(
        &self,
        snapshot: &PartitionSnapshot,
        offset: Offset,
        limit: Offset,
        segment: Offset,
        why: &str,
    ) -> Result<Fetched, ReadError> {
        error!(
            partition = %self.place, topic = %self.topic, segment = %segment, offset = %offset, why,
            "a local segment is damaged; reading the bucket's copy where there is one"
        );
        match plan_below_local(snapshot, offset, limit) {
            ReadPlan::Cold { end } => {
                self.shared.metrics.cold_fallback_reads.inc();
                Ok(Fetched::Cold { end })
            }
            _ => Err(ReadError::Storage(why.into())),
        }
    }
}
