//! Look-ups by time and by leader epoch: answered as one log would, wherever the records lie.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_core::read_plan::{
    EpochEndPlan, Isolation, ListOffsetsPlan, ListOffsetsTarget, ListedOffset, plan_epoch_end,
    plan_list_offsets,
};
use tidelog_format::{
    batch::{BatchLimits, DecodedBatch, RawBatch, split_batches},
    codec::Codec,
};
use tidelog_log::ReadError as LogReadError;
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp, limits};

use crate::{
    ColdError, LookUpError,
    partition::{Partition, PartitionHandle},
};

/// A record that a look-up by time found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    offset: Offset,
    timestamp: Timestamp,
    leader_epoch: Option<LeaderEpoch>,
}

impl From<Found> for ListedOffset {
    fn from(found: Found) -> Self {
        Self {
            offset: Some(found.offset),
            timestamp: Some(found.timestamp),
            leader_epoch: found.leader_epoch,
        }
    }
}

/// Which record of a batch is looked for.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// The first at or after a time.
    AtOrAfter(Timestamp),
    /// The first with the largest timestamp.
    Largest,
}

/// Where a search goes.
#[derive(Debug, Clone, Copy)]
enum Tier {
    Hot,
    Cold { deadline: Duration },
}

impl PartitionHandle {
    /// Answers ListOffsets for this partition. Only look-ups by time (−3 included) may read, and only for offsets that local
    /// disk does not hold do they ask the bucket, up to `deadline` from now.
    ///
    /// # Errors
    /// Why there is no answer; [`LookUpError::Cold`] may be asked again.
    pub async fn list_offsets(
        &self,
        target: ListOffsetsTarget,
        isolation: Isolation,
        current_leader_epoch: Option<LeaderEpoch>,
        deadline: Duration,
    ) -> Result<ListedOffset, LookUpError> {
        let partition = &self.inner;
        let snapshot = partition.snapshot();
        let plan = plan_list_offsets(&snapshot, target, isolation, current_leader_epoch)
            .map_err(LookUpError::Leadership)?;
        match plan {
            ListOffsetsPlan::Known(mut known) => {
                // The local chain may begin above an offset in the bucket; the manifest knows its last batch's epoch.
                if known.leader_epoch.is_none() && target == ListOffsetsTarget::LatestTiered {
                    let image = partition.image();
                    let last = image.manifest.entries.last();
                    known.leader_epoch = last
                        .filter(|entry| entry.range.end.prev() == known.offset && known.offset.is_some())
                        .map(|entry| entry.leader_epoch);
                }
                Ok(known)
            }
            ListOffsetsPlan::Search { cold, hot, time: Some(time) } => {
                let found = partition.first_at_or_after(cold, hot, time, deadline).await?;
                Ok(found.map(ListedOffset::from).unwrap_or_default())
            }
            ListOffsetsPlan::Search { cold, hot, time: None } => {
                let found = partition.largest(cold, hot, deadline).await?;
                Ok(found.map(ListedOffset::from).unwrap_or_default())
            }
        }
    }

    /// Answers OffsetForLeaderEpoch: the largest epoch at or below `epoch`, and one past its last offset. `None`: `epoch` is
    /// newer than any known here.
    ///
    /// # Errors
    /// Why there is no answer; [`LookUpError::Cold`] may be asked again.
    pub async fn offset_for_leader_epoch(
        &self,
        epoch: LeaderEpoch,
        current_leader_epoch: Option<LeaderEpoch>,
        deadline: Duration,
    ) -> Result<Option<(LeaderEpoch, Offset)>, LookUpError> {
        let partition = &self.inner;
        let snapshot = partition.snapshot();
        let plan = plan_epoch_end(&snapshot, epoch, current_leader_epoch).map_err(LookUpError::Leadership)?;
        Ok(match plan {
            EpochEndPlan::Undefined => None,
            EpochEndPlan::Known { epoch, end } => Some((epoch, end)),
            EpochEndPlan::Cold { fallback } => {
                let reader = partition.shared.cold()?;
                let answer = reader.epoch_end(partition.cold_place(), epoch, deadline).await?;
                // The bucket's last epoch may go on in the local log; it ends where the local chain begins.
                let known = answer.map(|(epoch, end)| (epoch, end.min(fallback)));
                Some(known.unwrap_or((epoch, snapshot.log_start)))
            }
        })
    }

    /// The epoch under which the record at `offset` was written, from the local chain alone.
    #[must_use]
    pub fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.snapshot().epoch_of(offset)
    }
}

impl Partition {
    async fn first_at_or_after(
        &self,
        cold: Option<OffsetRange>,
        hot: Option<OffsetRange>,
        time: Timestamp,
        deadline: Duration,
    ) -> Result<Option<Found>, LookUpError> {
        for (range, tier) in tiers(cold, hot, deadline) {
            if let Some(found) = self.search_time(range, time, tier).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Batch after batch whose max timestamp says that it may hold the record: the first one does, unless the record lies
    /// outside of the range, in a batch that the log start or the high watermark cuts.
    async fn search_time(
        &self,
        range: OffsetRange,
        time: Timestamp,
        tier: Tier,
    ) -> Result<Option<Found>, LookUpError> {
        let mut from = range.base;
        while from < range.end {
            let Some(rest) = OffsetRange::new(from, range.end) else { break };
            let answer = self.batch_at_or_after(rest, time, tier).await;
            if let Some((gone, next)) = self.gone_from(rest, tier, &answer)? {
                let found = self.search_gone(gone, Wanted::AtOrAfter(time)).await?;
                if found.is_some() {
                    return Ok(found);
                }
                from = next;
                continue;
            }
            let bytes = match answer {
                Ok(Some(bytes)) => bytes,
                Ok(None) | Err(Moved::Evicted | Moved::Corrupt(_)) => break,
                Err(Moved::Failed(error)) => return Err(error),
            };
            let batch = stored_batch(bytes)?;
            let Some(end) = batch.header.end_offset() else { break };
            if let Some(found) = self.find_in(batch, Wanted::AtOrAfter(time), rest).await? {
                return Ok(Some(found));
            }
            from = end.max(from.next());
        }
        Ok(None)
    }

    async fn largest(
        &self,
        cold: Option<OffsetRange>,
        hot: Option<OffsetRange>,
        deadline: Duration,
    ) -> Result<Option<Found>, LookUpError> {
        let mut largest: Option<Found> = None;
        for (range, tier) in tiers(cold, hot, deadline) {
            let found = self.search_largest(range, tier).await?;
            // Of equal timestamps the lower offset wins: the bucket's come first.
            if let Some(found) = found
                && largest.is_none_or(|known| found.timestamp > known.timestamp)
            {
                largest = Some(found);
            }
        }
        Ok(largest)
    }

    /// The batch with the largest max timestamp, and, where the range cuts that batch so that the record may lie outside,
    /// what the rest of the range holds.
    async fn search_largest(&self, range: OffsetRange, tier: Tier) -> Result<Option<Found>, LookUpError> {
        let mut largest: Option<Found> = None;
        let mut from = range.base;
        while from < range.end {
            let Some(rest) = OffsetRange::new(from, range.end) else { break };
            let answer = self.largest_batch(rest, tier).await;
            if let Some((gone, next)) = self.gone_from(rest, tier, &answer)? {
                let found = self.search_gone(gone, Wanted::Largest).await?;
                largest = larger(largest, found);
                from = next;
                continue;
            }
            let bytes = match answer {
                Ok(Some(bytes)) => bytes,
                Ok(None) | Err(Moved::Evicted | Moved::Corrupt(_)) => break,
                Err(Moved::Failed(error)) => return Err(error),
            };
            let batch = stored_batch(bytes)?;
            let (Some(base), Some(end)) = (batch.header.base_offset(), batch.header.end_offset()) else {
                break;
            };
            let cut = base < rest.base;
            let found = self.find_in(batch, Wanted::Largest, rest).await?;
            largest = larger(largest, found);
            if !cut {
                break;
            }
            from = end.max(from.next());
        }
        Ok(largest)
    }

    /// Which part of `rest` local disk did not answer for, and where the local search goes on: segments may leave for the
    /// bucket alone while they are searched, and one may turn out to be damaged. `None`: the answer stands.
    fn gone_from(
        &self,
        rest: OffsetRange,
        tier: Tier,
        answer: &Result<Option<Bytes>, Moved>,
    ) -> Result<Option<(OffsetRange, Offset)>, LookUpError> {
        if matches!(tier, Tier::Cold { .. }) {
            return Ok(None);
        }
        let next = match answer {
            Err(Moved::Failed(_)) => return Ok(None),
            // The bucket has what is tiered; above that the damaged segment was the only copy.
            Err(Moved::Corrupt(why)) => {
                let tiered_end = self.snapshot().tiered_end;
                if tiered_end < rest.end {
                    return Err(LookUpError::Storage(Arc::clone(why)));
                }
                rest.end
            }
            Ok(_) | Err(Moved::Evicted) => self.log.offsets().local_log_start.min(rest.end),
        };
        Ok(OffsetRange::new(rest.base, next).filter(|gone| !gone.is_empty()).map(|gone| (gone, next)))
    }

    async fn search_gone(&self, rest: OffsetRange, wanted: Wanted) -> Result<Option<Found>, LookUpError> {
        self.follow_log_starts();
        let deadline = limits::COLD_LOOK_UP_DEADLINE;
        let tier = Tier::Cold { deadline };
        // Boxed: a search on the other tier cannot come back here, since the bucket's answers are never "gone".
        match wanted {
            Wanted::AtOrAfter(time) => Box::pin(self.search_time(rest, time, tier)).await,
            Wanted::Largest => Box::pin(self.search_largest(rest, tier)).await,
        }
    }

    async fn batch_at_or_after(
        &self,
        range: OffsetRange,
        time: Timestamp,
        tier: Tier,
    ) -> Result<Option<Bytes>, Moved> {
        match tier {
            Tier::Hot => self.log.first_batch_at_or_after(time, range.base).await.map_err(moved),
            Tier::Cold { deadline } => {
                let reader = self.shared.cold().map_err(cold)?;
                reader.first_batch_at_or_after(self.cold_place(), range, time, deadline).await.map_err(cold)
            }
        }
    }

    async fn largest_batch(&self, range: OffsetRange, tier: Tier) -> Result<Option<Bytes>, Moved> {
        match tier {
            Tier::Hot => self.log.max_timestamp_batch(range).await.map_err(moved),
            Tier::Cold { deadline } => {
                let reader = self.shared.cold().map_err(cold)?;
                reader.max_timestamp_batch(self.cold_place(), range, deadline).await.map_err(cold)
            }
        }
    }

    /// The record of a batch within `range`. A compressed batch is decoded on the back runtime.
    async fn find_in(
        &self,
        batch: RawBatch,
        wanted: Wanted,
        range: OffsetRange,
    ) -> Result<Option<Found>, LookUpError> {
        if batch.header.attributes().codec() == Ok(Codec::None) {
            return find(&batch, wanted, range);
        }
        let _turn = self.shared.codec_turns.acquire().await;
        let task = self.shared.supervisor.spawn_blocking("decode batch", move || find(&batch, wanted, range));
        task.join().await.map_err(|_| LookUpError::Storage("the broker is stopping".into()))?
    }
}

/// Why a tier gave no batch.
enum Moved {
    /// The offsets are not on local disk any more.
    Evicted,
    /// A local segment is damaged.
    Corrupt(Arc<str>),
    Failed(LookUpError),
}

fn moved(error: LogReadError) -> Moved {
    match error {
        LogReadError::OutOfRange { .. } => Moved::Evicted,
        error @ LogReadError::Corrupt { .. } => Moved::Corrupt(error.to_string().into()),
        error @ (LogReadError::Io { .. } | LogReadError::Failed(_)) => {
            Moved::Failed(LookUpError::Storage(error.to_string().into()))
        }
    }
}

fn cold(error: ColdError) -> Moved {
    Moved::Failed(error.into())
}

fn tiers(
    cold: Option<OffsetRange>,
    hot: Option<OffsetRange>,
    deadline: Duration,
) -> impl Iterator<Item = (OffsetRange, Tier)> {
    let cold = cold.map(|range| (range, Tier::Cold { deadline }));
    let hot = hot.map(|range| (range, Tier::Hot));
    cold.into_iter().chain(hot)
}

fn larger(one: Option<Found>, other: Option<Found>) -> Option<Found> {
    match (one, other) {
        (Some(one), Some(other)) if other.timestamp > one.timestamp => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

fn stored_batch(bytes: Bytes) -> Result<RawBatch, LookUpError> {
    match split_batches(bytes, &BatchLimits::log()).next() {
        Some(Ok(batch)) => Ok(batch),
        Some(Err(error)) => Err(LookUpError::Storage(error.to_string().into())),
        None => Err(LookUpError::Storage("a look-up found no batch where one was".into())),
    }
}

fn find(batch: &RawBatch, wanted: Wanted, range: OffsetRange) -> Result<Option<Found>, LookUpError> {
    let records = |error| LookUpError::Records(Arc::new(error));
    let decoded = DecodedBatch::new(batch, limits::DECOMPRESSED_BATCH_BYTES_MAX).map_err(records)?;
    let leader_epoch = batch.header.leader_epoch();
    let mut largest: Option<Found> = None;
    for record in decoded.iter() {
        let record = record.map_err(records)?;
        let Some(timestamp) = record.timestamp.filter(|_| range.contains(record.offset)) else { continue };
        let found = Found { offset: record.offset, timestamp, leader_epoch };
        match wanted {
            Wanted::AtOrAfter(time) if timestamp >= time => return Ok(Some(found)),
            Wanted::AtOrAfter(_) => {}
            Wanted::Largest => largest = larger(largest, Some(found)),
        }
    }
    Ok(largest)
}
