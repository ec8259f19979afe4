//! What can go wrong, one enum per operation. Refused and unknown are different variants.

use std::sync::Arc;

use thiserror::Error;
use tidelog_core::{partition::AppendRefusal, read_plan::LeadershipMismatch};
use tidelog_format::batch::BatchError;
use tidelog_log::{CreateError, LogFailure};
use tidelog_types::{Offset, TopicPartition};

use crate::{ColdError, ProposeFailure};

/// Records were not appended: certain, nothing of them is in the log.
#[derive(Debug, Clone, Error)]
pub enum AppendError {
    /// The bytes are no batch that may be appended; [`BatchError::kind`] says which of Kafka's errors it is.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// `INVALID_RECORD`: records without a key on a compacted topic, by their index in the batch.
    #[error("{} records have no key on a compacted topic", indexes.len())]
    WithoutKey {
        /// Their places in the batch.
        indexes: Vec<u32>,
    },
    /// `INVALID_TIMESTAMP`: records whose timestamps are out of the topic's bounds, by their index in the batch.
    #[error("{refusal}")]
    OutOfTime {
        /// The timestamp that decided, and the broker's clock.
        refusal: AppendRefusal,
        /// Their places in the batch.
        indexes: Vec<u32>,
    },
    /// `INVALID_RECORD`: the records do not decompress or do not parse.
    #[error("the records of the batch cannot be read: {0}")]
    Records(Arc<tidelog_format::batch::RecordError>),
    /// The partition's rules refuse the batch.
    #[error(transparent)]
    Refused(#[from] AppendRefusal),
    /// `KAFKA_STORAGE_ERROR`, retriable: the disk is below its floor of free space.
    #[error("free disk space is below the floor")]
    NoSpace,
    /// `KAFKA_STORAGE_ERROR`: the log stopped, or this partition's is fenced.
    #[error("the log takes no append: {0}")]
    Storage(Arc<str>),
    /// `UNKNOWN_TOPIC_OR_PARTITION`: it is being deleted.
    #[error("the partition is deleted")]
    Deleted,
}

/// Records were appended, and it is not known whether they will stay.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the outcome of the append is not known: {why}")]
pub struct AckError {
    /// What ended the wait.
    pub why: Arc<str>,
}

/// Why a partition cannot be read now. `NotAvailable`, `Storage` and `Cold` may be asked again.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// `OFFSET_OUT_OF_RANGE`: below the log start or above the log end.
    #[error("offset {offset} is out of range")]
    OutOfRange {
        /// What was asked.
        offset: Offset,
    },
    /// `OFFSET_NOT_AVAILABLE`: the log holds the offset, this node cannot serve it at this moment.
    #[error("offset {offset} is not available at the moment")]
    NotAvailable {
        /// What was asked.
        offset: Offset,
    },
    /// The request names the wrong leadership.
    #[error("wrong leadership: {0:?}")]
    Leadership(LeadershipMismatch),
    /// `KAFKA_STORAGE_ERROR`: the local log cannot be read.
    #[error("the local log cannot be read: {0}")]
    Storage(Arc<str>),
    /// The bucket did not answer.
    #[error(transparent)]
    Cold(#[from] ColdError),
}

/// Why a look-up by time or epoch has no answer.
#[derive(Debug, Clone, Error)]
pub enum LookUpError {
    /// The request names the wrong leadership.
    #[error("wrong leadership: {0:?}")]
    Leadership(LeadershipMismatch),
    /// `KAFKA_STORAGE_ERROR`: the local log cannot be read.
    #[error("the local log cannot be read: {0}")]
    Storage(Arc<str>),
    /// A stored batch cannot be decoded.
    #[error("a stored batch cannot be decoded: {0}")]
    Records(Arc<tidelog_format::batch::RecordError>),
    /// The bucket did not answer.
    #[error(transparent)]
    Cold(#[from] ColdError),
}

/// Records were not deleted.
#[derive(Debug, Clone, Error)]
pub enum DeleteRecordsError {
    /// `NOT_LEADER_OR_FOLLOWER`.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// `OFFSET_OUT_OF_RANGE`: above the high watermark.
    #[error("offset {asked} is above the high watermark {high_watermark}")]
    OutOfRange {
        /// What was asked.
        asked: Offset,
        /// The most that may be asked.
        high_watermark: Offset,
    },
    /// `POLICY_VIOLATION`: the topic is compacted and never deletes.
    #[error("the topic's cleanup.policy does not allow deletion")]
    Policy,
    /// Certain: not committed. The controller refused or cannot be reached.
    #[error(transparent)]
    Controller(ProposeFailure),
    /// The log failed; the log start may or may not have moved.
    #[error(transparent)]
    Log(#[from] LogFailure),
}

/// A step of tiering on the local log did not happen.
#[derive(Debug, Clone, Error)]
pub enum TieringError {
    /// The offsets are not on local disk any more, or not durable or stable yet.
    #[error("offset {offset} cannot be read for an upload")]
    NotReadable {
        /// The offset.
        offset: Offset,
    },
    /// Local bytes go only when the bucket holds them or the log start is above them (T4).
    #[error("local log start {asked} is above {allowed}, up to where the bucket holds the log")]
    NotTiered {
        /// What was asked.
        asked: Offset,
        /// The most that may be asked.
        allowed: Offset,
    },
    /// A segment is damaged, or the system refused.
    #[error("the local log cannot be read: {0}")]
    Read(Arc<str>),
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogFailure),
}

/// The partitions could not be opened.
#[derive(Debug, Error)]
pub enum StartError {
    /// A partition's log could not be created.
    #[error("partition {place} could not be created: {source}")]
    Create {
        /// Which.
        place: TopicPartition,
        /// Why.
        #[source]
        source: CreateError,
    },
    /// A partition's log failed.
    #[error("partition {place}: {source}")]
    Log {
        /// Which.
        place: TopicPartition,
        /// Why.
        #[source]
        source: LogFailure,
    },
    /// The metadata stream ended.
    #[error("the stream of metadata ended")]
    MetadataEnded,
}
