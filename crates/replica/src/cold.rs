//! The seam to the bucket: what tiering answers for offsets that local disk does not hold.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use thiserror::Error;
use tidelog_core::cluster::PartitionImage;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, TopicName, TopicPartition};

/// An answer from the bucket. Dropping it gives up waiting; what is on the wire may still reach the cache.
pub type ColdFuture<T> = Pin<Box<dyn Future<Output = Result<T, ColdError>> + Send>>;

/// Which partition to read, with the manifest to look in.
#[derive(Debug, Clone)]
pub struct ColdPlace {
    /// The partition.
    pub place: TopicPartition,
    /// Its topic's name, which is part of every key.
    pub topic: TopicName,
    /// Its image: log start and manifest. A newer one may exist.
    pub image: Arc<PartitionImage>,
}

/// A read of records.
#[derive(Debug, Clone)]
pub struct ColdRead {
    /// Which partition.
    pub place: ColdPlace,
    /// The first offset wanted; the answer begins with the batch that holds it.
    pub offset: Offset,
    /// Where to stop, exclusive.
    pub end: Offset,
    /// How many bytes to answer at most.
    pub bytes_max: usize,
    /// Answer one whole batch although it is larger than that.
    pub one_at_least: bool,
    /// How long to try, from now.
    pub deadline: Duration,
}

/// Whole batches from the bucket.
#[derive(Debug, Clone, Default)]
pub struct ColdRecords {
    /// The bytes, in order.
    pub chunks: Vec<Bytes>,
    /// The base offset of the first batch; at or below what was asked.
    pub base: Offset,
    /// One past the last offset read.
    pub next: Offset,
}

/// The bucket gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ColdError {
    /// The manifest does not hold the offset any more: look at the newest snapshot again.
    #[error("the manifest does not hold offset {offset}")]
    NotHeld {
        /// The offset.
        offset: Offset,
    },
    /// The store throttled, failed, refused, or was too slow until the deadline. To be asked again.
    #[error("the bucket did not serve in time: {why}")]
    Unavailable {
        /// What happened last.
        why: Arc<str>,
    },
    /// What the store holds is not what was written. A person must look.
    #[error("the bucket's copy cannot be used: {why}")]
    Damaged {
        /// What was found.
        why: Arc<str>,
    },
    /// This node has no bucket reader.
    #[error("cold reads are not set up")]
    NotSetUp,
}

/// The bucket does not serve now, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdOutage {
    /// For how long.
    pub lasts: Duration,
    /// What requests were answered with last.
    pub why: Arc<str>,
}

/// Reads what is in the bucket. Equal look-ups at one time share their requests.
pub trait ColdReader: Send + Sync + 'static {
    /// What keeps the bucket from serving, while it is known not to. A read that waits then should be answered with a
    /// retriable error when its fetch is due, and not with an empty answer. Reads go on to be tried: memory and cache still
    /// serve, and one of them finds out that the bucket is back.
    fn outage(&self) -> Option<ColdOutage> {
        None
    }

    /// As [`ColdReader::read`], of what is in memory: `None` where anything would have to be waited for. A sequential reader finds
    /// nearly all of what it wants read ahead, and need not be put to sleep and woken for it.
    fn read_at_hand(&self, _read: &ColdRead) -> Option<ColdRecords> {
        None
    }

    /// Reads whole batches from the one that holds `offset` on.
    fn read(&self, read: ColdRead) -> ColdFuture<ColdRecords>;

    /// The first batch, in offset order, that reaches into `range` and whose max timestamp is at least `time`.
    fn first_batch_at_or_after(
        &self,
        place: ColdPlace,
        range: OffsetRange,
        time: Timestamp,
        deadline: Duration,
    ) -> ColdFuture<Option<Bytes>>;

    /// The first of the batches that reach into `range` with the largest max timestamp; `None` where none has one.
    fn max_timestamp_batch(
        &self,
        place: ColdPlace,
        range: OffsetRange,
        deadline: Duration,
    ) -> ColdFuture<Option<Bytes>>;

    /// The largest epoch at or below `epoch` in the bucket, and where it ends, exclusive (the start of the next one in
    /// the bucket, else the tiered end). `None`: all of the bucket's epochs are above.
    fn epoch_end(
        &self,
        place: ColdPlace,
        epoch: LeaderEpoch,
        deadline: Duration,
    ) -> ColdFuture<Option<(LeaderEpoch, Offset)>>;

    /// The epoch under which the record at `offset` was written; `None` where the bucket does not know.
    fn epoch_of(
        &self,
        place: ColdPlace,
        offset: Offset,
        deadline: Duration,
    ) -> ColdFuture<Option<LeaderEpoch>>;
}
