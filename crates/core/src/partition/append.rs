//! Whether a batch may be appended.

use thiserror::Error;
use tidelog_format::batch::TimestampSpan;
use tidelog_types::{LeaderEpoch, Offset, Timestamp};

use super::PartitionState;
use crate::producers::{ProducerBatch, ProducerError, RememberedBatch, Verdict};

/// How far a record's timestamp may lie from now: `message.timestamp.before.max.ms` and `…after.max.ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampBounds {
    /// Milliseconds before now; Kafka counts up to 2⁶³ − 1, which is the most here too.
    pub before_ms: u64,
    /// Milliseconds after now; as much at most.
    pub after_ms: u64,
}

impl Default for TimestampBounds {
    fn default() -> Self {
        Self { before_ms: u64::MAX, after_ms: 3_600_000 }
    }
}

impl TimestampBounds {
    /// Whether a record's timestamp is within the bounds at `now`. A negative one is allowed where it is not too long ago, as in
    /// Kafka; what wrapped around never is.
    #[must_use]
    pub fn allow(&self, timestamp_ms: i64, now: Timestamp) -> bool {
        let within = |bound: u64| i128::from(bound).min(i128::from(i64::MAX));
        let ahead = i128::from(timestamp_ms) - i128::from(now.as_millis());
        ahead <= within(self.after_ms) && -ahead <= within(self.before_ms)
    }
}

/// A topic's rules for appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendRules {
    /// `max.message.bytes`: of a whole batch, header included.
    pub batch_bytes_max: u64,
    /// `message.timestamp.type` is `LogAppendTime`.
    pub log_append_time: bool,
    /// Bounds of `CreateTime`.
    pub timestamp_bounds: TimestampBounds,
    /// `min.insync.replicas`, asked for by acks=all; `None` for acks 0 and 1.
    pub in_sync_min: Option<usize>,
    /// The broker's own appends: markers of transactions are allowed.
    pub internal: bool,
}

/// What a validated batch's header says, as far as an append depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFacts {
    /// Its whole length.
    pub bytes: u64,
    /// Last offset − base offset.
    pub last_offset_delta: u32,
    /// The timestamps of its records as the producer gave them: of uncompressed ones and of those that were looked at, the records'
    /// own; of others, what the header states.
    pub timestamps: Option<TimestampSpan>,
    /// The largest timestamp in it as it is stored, where it has one.
    pub max_timestamp: Option<Timestamp>,
    /// Its producer, where it has an id.
    pub producer: Option<ProducerBatch>,
    /// Whether it belongs to a transaction.
    pub transactional: bool,
    /// Whether it is a control batch.
    pub control: bool,
}

/// What to do with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendDecision {
    /// Append it.
    Append {
        /// Its base offset: the log end.
        base: Offset,
        /// Its last offset, inclusive.
        last: Offset,
        /// The epoch to stamp it with.
        leader_epoch: LeaderEpoch,
        /// The time to stamp it with, for `LogAppendTime`.
        log_append_time: Option<Timestamp>,
    },
    /// It is in the log already; its fate is that of the original.
    Duplicate(RememberedBatch),
}

/// Why a batch is refused; nothing was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AppendRefusal {
    /// `NOT_LEADER_OR_FOLLOWER`.
    #[error("this node does not lead the partition in epoch {epoch}")]
    NotLeader {
        /// The newest epoch known here.
        epoch: LeaderEpoch,
    },
    /// `NOT_ENOUGH_REPLICAS`.
    #[error("{in_sync} replicas are in sync, min.insync.replicas is {min}")]
    TooFewInSync {
        /// How many are.
        in_sync: usize,
        /// How many must be.
        min: usize,
    },
    /// `MESSAGE_TOO_LARGE`.
    #[error("a batch of {bytes} bytes, max.message.bytes is {max}")]
    TooLarge {
        /// The batch's length.
        bytes: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// `INVALID_TIMESTAMP`.
    #[error("timestamp {timestamp_ms} is out of the bounds around {now}")]
    TimestampOutOfBounds {
        /// The offending one, as the record gives it.
        timestamp_ms: i64,
        /// The broker's clock.
        now: Timestamp,
    },
    /// `INVALID_RECORD`: a client sent a control batch.
    #[error("clients may not append control batches")]
    ControlBatch,
    /// `INVALID_TXN_STATE`: no transaction was begun for this batch.
    #[error("the batch is transactional, and no transaction is open for its producer")]
    NoTransaction,
    /// Its producer is fenced or skipped sequences.
    #[error(transparent)]
    Producer(#[from] ProducerError),
    /// The partition's offsets are used up.
    #[error("the partition has no offsets left")]
    OffsetsExhausted,
}

pub(super) fn decide(
    state: &PartitionState,
    rules: &AppendRules,
    batch: &BatchFacts,
    now: Timestamp,
) -> Result<AppendDecision, AppendRefusal> {
    let Some(leader_epoch) = state.leading() else {
        return Err(AppendRefusal::NotLeader { epoch: state.leader_epoch });
    };
    if let Some(min) = rules.in_sync_min
        && state.in_sync_count < min
    {
        return Err(AppendRefusal::TooFewInSync { in_sync: state.in_sync_count, min });
    }
    if batch.bytes > rules.batch_bytes_max {
        return Err(AppendRefusal::TooLarge { bytes: batch.bytes, max: rules.batch_bytes_max });
    }
    if !rules.internal {
        if batch.control {
            return Err(AppendRefusal::ControlBatch);
        }
        if batch.transactional {
            return Err(AppendRefusal::NoTransaction);
        }
    }
    if !rules.log_append_time {
        // The least and the largest decide for all between. Where a topic bounds the past, compressed records were looked at too.
        let ends = batch.timestamps.into_iter().flat_map(|span| [span.largest_ms, span.least_ms]);
        for timestamp_ms in ends {
            if !rules.timestamp_bounds.allow(timestamp_ms, now) {
                return Err(AppendRefusal::TimestampOutOfBounds { timestamp_ms, now });
            }
        }
    }
    if let Some(producer) = &batch.producer
        && let Verdict::Duplicate(original) = state.producers.check(producer)?
    {
        return Ok(AppendDecision::Duplicate(original));
    }
    let base = state.log_end;
    let last = base.checked_add(u64::from(batch.last_offset_delta)).ok_or(AppendRefusal::OffsetsExhausted)?;
    if last >= Offset::MAX {
        return Err(AppendRefusal::OffsetsExhausted);
    }
    Ok(AppendDecision::Append {
        base,
        last,
        leader_epoch,
        log_append_time: rules.log_append_time.then_some(now),
    })
}
