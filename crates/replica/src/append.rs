//! The append: decide under the lock, hand to the log, answer when it is due.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_core::{
    partition::{AppendDecision, AppendRefusal, BatchFacts, Visibility},
    producers::ProducerError,
};
use tidelog_format::batch::{RawBatch, TimestampSpan};
use tidelog_log::{AppendBatch, AppendError as LogRefusal};
use tidelog_types::{LeaderEpoch, Offset, Timestamp, limits::BATCH_HEADER_BYTES};
use tokio::sync::oneshot;

use crate::{
    AckError, AppendError,
    partition::{Partition, PartitionHandle},
    prepare,
};

/// What a producer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// Nothing; the append itself is the same as for one.
    None,
    /// The journal's write on the leader.
    Leader,
    /// The high watermark: synced on the leader, and in every in-sync replica.
    All,
}

/// One batch to append.
#[derive(Debug, Clone)]
pub struct AppendRequest {
    /// Exactly one record batch, as received.
    pub records: Bytes,
    /// The allocation that `records` keeps alive, in bytes: the received frame's. 0: it stands alone.
    pub frame_bytes: usize,
    /// What the answer waits for.
    pub acks: Acks,
    /// The broker's own batch: markers of transactions are allowed, records need no key.
    pub internal: bool,
}

/// A batch in the log.
#[derive(Debug)]
pub struct Appended {
    /// The offset of its first record; of the original, for a duplicate.
    pub base_offset: Offset,
    /// The offset of its last record, inclusive.
    pub last_offset: Offset,
    /// The time that all its records were stamped with, for `LogAppendTime`; of a duplicate the original's largest.
    pub log_append_time: Option<Timestamp>,
    /// The log start offset at the append.
    pub log_start: Offset,
    /// Whether the log held it before.
    pub duplicate: bool,
    /// Resolves when the acks that were asked for are due.
    pub ack: AckFuture,
}

/// Waits until an append is acknowledged.
#[derive(Debug)]
#[must_use]
pub struct AckFuture {
    receiver: Option<oneshot::Receiver<Result<(), AckError>>>,
}

impl AckFuture {
    /// Whether [`AckFuture::wait`] would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.receiver.as_ref().is_none_or(|receiver| !receiver.is_empty())
    }

    /// Waits for the acks. Dropping this changes nothing of the append.
    ///
    /// # Errors
    /// It is not known whether the records will stay.
    pub async fn wait(self) -> Result<(), AckError> {
        match self.receiver {
            None => Ok(()),
            Some(receiver) => {
                receiver.await.unwrap_or_else(|_| Err(AckError { why: "the partition was closed".into() }))
            }
        }
    }
}

/// A batch that passed all checks which need no lock.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) batch: RawBatch,
    pub(crate) facts: BatchFacts,
    pub(crate) frame_bytes: usize,
    pub(crate) now: Timestamp,
}

impl PartitionHandle {
    /// Appends one batch. Returns once it has its offsets and stands in the journal's queue; [`Appended::ack`] resolves
    /// when it is acknowledged. Appends of one connection keep their order when each call is awaited before the next.
    ///
    /// Waits where unwritten records fill their budget, and on the back runtime where records must be read or compressed.
    /// Cancel safe: dropped before it returns, the batch is appended or not, as a whole.
    ///
    /// # Errors
    /// Certain: nothing was appended.
    pub async fn append(&self, request: AppendRequest) -> Result<Appended, AppendError> {
        let partition = &self.inner;
        let metrics = &partition.shared.metrics;
        let appended = async {
            let mut prepared = prepare::prepare(partition, &request).await?;
            if partition.shared.config.mistakes.forget_producers {
                prepared.facts.producer = None;
            }
            // Whoever writes faster than the disk waits here, for what he wrote himself.
            partition.log.append_share().await;
            loop {
                match partition.try_append(&request, &prepared) {
                    Err(Refusal::Backpressure) => partition.shared.log.append_room().await,
                    Err(Refusal::Certain(AppendError::Refused(
                        refusal @ AppendRefusal::TimestampOutOfBounds { now, .. },
                    ))) => {
                        let bounds = partition.settings().rules(false, false).timestamp_bounds;
                        let indexes = prepare::out_of_time(partition, prepared.batch, bounds, now).await;
                        return Err(AppendError::OutOfTime { refusal, indexes });
                    }
                    Err(Refusal::Certain(refused)) => return Err(refused),
                    Ok(appended) => return Ok(appended),
                }
            }
        }
        .await;
        match &appended {
            Ok(appended) if appended.duplicate => metrics.duplicate_batches.inc(),
            Ok(_) => metrics.appended_batches.inc(),
            Err(_) => metrics.refused_batches.inc(),
        }
        appended
    }
}

enum Refusal {
    /// The log has no room at the moment.
    Backpressure,
    Certain(AppendError),
}

impl From<AppendError> for Refusal {
    fn from(refused: AppendError) -> Self {
        Self::Certain(refused)
    }
}

impl Refusal {
    /// What a refusal of the log means for the append.
    fn of_log(refused: LogRefusal) -> Self {
        match refused {
            LogRefusal::Backpressure => Self::Backpressure,
            LogRefusal::NoSpace => AppendError::NoSpace.into(),
            refused @ (LogRefusal::Fenced { .. } | LogRefusal::OutOfOrder { .. } | LogRefusal::Failed(_)) => {
                AppendError::Storage(refused.to_string().into()).into()
            }
        }
    }
}

/// The batch as the log takes it, at its place.
fn stored(prepared: &Prepared, base: Offset, last: Offset, leader_epoch: LeaderEpoch) -> AppendBatch {
    let mut batch = prepared.batch.clone();
    batch.set_base_offset_and_epoch(base, leader_epoch);
    AppendBatch {
        header: *batch.header.as_bytes(),
        max_timestamp: batch.header.max_timestamp(),
        body: batch.body,
        base_offset: base,
        last_offset: last,
        leader_epoch,
        frame_bytes: prepared.frame_bytes,
    }
}

impl Partition {
    /// Decides and appends under the lock; waits for nothing.
    fn try_append(&self, request: &AppendRequest, prepared: &Prepared) -> Result<Appended, Refusal> {
        let settings = self.settings();
        let all = request.acks == Acks::All;
        let rules = settings.rules(all, request.internal);
        let mut locked = self.lock();
        if locked.deleted {
            return Err(AppendError::Deleted.into());
        }
        if let Some(why) = &locked.failed {
            return Err(AppendError::Storage(Arc::clone(why)).into());
        }
        let decided = locked.state.decide(&rules, &prepared.facts, prepared.now);
        let decision = decided.map_err(|refused| match refused {
            // What was sent behind a batch that found no space is out of order for that reason alone: its producer is to send
            // both again, and not to take a new epoch for each try.
            AppendRefusal::Producer(ProducerError::OutOfOrder { .. }) if !self.log.has_space() => {
                AppendError::NoSpace
            }
            refused => AppendError::from(refused),
        })?;
        let log_start = locked.state.log_start();
        let (base, last, leader_epoch, log_append_time) = match decision {
            AppendDecision::Append { base, last, leader_epoch, log_append_time } => {
                (base, last, leader_epoch, log_append_time)
            }
            AppendDecision::Duplicate(original) => {
                // Its fate is the original's: it waits for the same offset.
                let ack = self.ack(&mut locked, original.last_offset.next(), request.acks);
                drop(locked);
                if all {
                    self.log.request_sync();
                }
                return Ok(Appended {
                    base_offset: original.base_offset,
                    last_offset: original.last_offset,
                    // Kafka's answer, whatever the topic's timestamps are.
                    log_append_time: original.max_timestamp,
                    log_start,
                    duplicate: true,
                    ack,
                });
            }
        };
        self.log.append([stored(prepared, base, last, leader_epoch)]).map_err(Refusal::of_log)?;
        let (moved, _ended) = locked.state.appended(&prepared.facts, base, prepared.now);
        let ack = self.ack(&mut locked, last.next(), request.acks);
        // Readers learn of the new end when the journal has it: before, they may see nothing of it.
        let consequences = moved.epoch.then(|| self.publish(&mut locked, moved));
        drop(locked);
        if let Some(consequences) = consequences {
            self.settle(consequences);
        }
        if moved.sync_due || (all && settings.flush.visibility == Visibility::Synced) {
            self.log.request_sync();
        }
        self.shared.metrics.appended_bytes.add(prepared.facts.bytes);
        let (base_offset, last_offset) = (base, last);
        Ok(Appended { base_offset, last_offset, log_append_time, log_start, duplicate: false, ack })
    }

    fn ack(&self, locked: &mut crate::partition::Locked, end: Offset, acks: Acks) -> AckFuture {
        let reached = match acks {
            Acks::None => return AckFuture { receiver: None },
            Acks::Leader => locked.state.written_end(),
            Acks::All => locked.state.high_watermark(),
        };
        if end <= reached {
            return AckFuture { receiver: None };
        }
        AckFuture { receiver: Some(locked.wait_for(end, acks == Acks::All)) }
    }
}

/// What the state machine needs of a batch whose records have these timestamps.
pub(crate) fn facts_of(batch: &RawBatch, timestamps: Option<TimestampSpan>) -> BatchFacts {
    let header = &batch.header;
    let attributes = header.attributes();
    BatchFacts {
        bytes: (BATCH_HEADER_BYTES + batch.body.len()) as u64,
        last_offset_delta: u32::try_from(header.last_offset_delta()).unwrap_or(0),
        timestamps,
        max_timestamp: header.max_timestamp(),
        producer: crate::producers_form::producer_of(header),
        transactional: attributes.is_transactional(),
        control: attributes.is_control(),
    }
}
