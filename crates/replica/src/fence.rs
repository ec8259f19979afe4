//! Fences: partitions that take no appends, since records that were durable are missing or damaged.
//!
//! **Owns** what an operator is shown of a fence, and its lifting. **Does not own** when a partition is fenced, which is the
//! log's.
//!
//! What is left stays, and is read as before: from local disk, or from the bucket where that has it. Of a hole with records
//! behind it these keep their offsets, and those of the hole are of no record any more once the fence is lifted; what the
//! bucket has of it is read from there as before. Where
//! nothing is left behind the loss, the log ends before it, and nobody knows how much that was. These offsets are given to new
//! records, in the leader epoch of this start, which is newer than that of all that is gone: consumers can tell by it.

use std::sync::Arc;

use thiserror::Error;
use tidelog_log::LogFailure;
use tidelog_types::Offset;
use tracing::warn;

use crate::PartitionHandle;

/// Why a partition takes no appends, and what lifting that gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// What is missing or damaged.
    pub why: Arc<str>,
    /// Where the local log begins.
    pub local_log_start: Offset,
    /// Where the loss begins.
    pub lost_from: Offset,
    /// One past it, where records are left behind it. `None`: the log ends where the loss begins, and goes on there once the
    /// fence is lifted.
    pub lost_to: Option<Offset>,
}

/// Why a fence was not lifted.
#[derive(Debug, Clone, Error)]
pub enum LiftFenceError {
    /// There is none.
    #[error("the partition is not fenced")]
    NotFenced,
    /// Another node leads it.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// The loss is another than the one that was accepted.
    #[error("what is lost begins at offset {lost_from}, and not at {accepted}")]
    AnotherLoss {
        /// Where it begins.
        lost_from: Offset,
        /// What the caller named.
        accepted: Offset,
    },
    /// The log failed; whether the fence is lifted shows at the next start.
    #[error(transparent)]
    Log(#[from] LogFailure),
    /// The fence is lifted, and the log ends below what was said: a restart opens it anew.
    #[error("the log was cut to offset {log_end}, below {accepted}: restart the node to open it anew")]
    CutBelow {
        /// Where the log ends now.
        log_end: Offset,
        /// What the caller named.
        accepted: Offset,
    },
}

impl PartitionHandle {
    /// The fence that keeps appends away; `None` where there is none.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        let log = &self.inner.log;
        let why = log.fenced()?;
        let offsets = log.offsets();
        let snapshot = self.inner.snapshot();
        let floor =
            if snapshot.tiered { snapshot.tiered_end.max(snapshot.log_start) } else { snapshot.log_start };
        let holes: Vec<_> = log.lost().into_iter().filter(|hole| hole.end > floor).collect();
        let lost_from = holes.first().map_or(offsets.log_end, |hole| hole.base.max(floor));
        let lost_to = holes.last().map(|hole| hole.end);
        Some(Fence { why, local_log_start: offsets.local_log_start, lost_from, lost_to })
    }

    /// Lifts the fence, durably, so that the log goes on at its end: an operator's decision, which names where the loss that
    /// [`PartitionHandle::fence`] shows begins, and so accepts it. Answers the fence that was.
    ///
    /// # Errors
    /// Why not.
    pub async fn lift_fence(&self, accepted_loss_from: Offset) -> Result<Fence, LiftFenceError> {
        let partition = &self.inner;
        let _turn = partition.starts.lock().await;
        let fence = self.fence().ok_or(LiftFenceError::NotFenced)?;
        if self.leading().is_none() {
            return Err(LiftFenceError::NotLeader);
        }
        let (lost_from, accepted) = (fence.lost_from, accepted_loss_from);
        if lost_from != accepted {
            return Err(LiftFenceError::AnotherLoss { lost_from, accepted });
        }
        let end = fence.lost_to.map_or(lost_from, |_| partition.log.offsets().log_end);
        partition.log.give_up_lost(lost_from).await?;
        partition.log.truncate(end).await?;
        partition.shared.metrics.fenced_partitions.sub(1);
        let log_end = partition.log.offsets().log_end;
        warn!(
            partition = %partition.place, topic = %partition.topic, why = %fence.why, %lost_from, lost_to = ?fence.lost_to,
            "an operator lifted a fence: records that were acknowledged from this offset on are lost"
        );
        if log_end < end {
            let error = LiftFenceError::CutBelow { log_end, accepted };
            partition.fail(&error.to_string(), false);
            return Err(error);
        }
        Ok(fence)
    }
}
