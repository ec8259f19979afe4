//! What background work may do with a partition: read for uploads, move log starts, seal idle segments.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_core::{
    cluster::{Command, Outcome},
    partition::{EpochStart, Moved},
    producers::Producers,
    upload::LocalSegment,
};
use tidelog_format::batch::BatchHeader;
use tidelog_log::{LogFailure, ReadError as LogReadError, SegmentSummary};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, limits::BATCH_HEADER_BYTES};
use tracing::{info, warn};

use crate::{
    DeleteRecordsError, ProposeFailure, TieringError,
    partition::{Partition, PartitionHandle},
    producers_form,
};

/// Bytes that are read at a time to bring the producer state of uploads forward.
const CATCH_UP_BYTES: usize = 1024 * 1024;

/// How far a partition could be uploaded now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadState {
    /// The epoch that this node leads in, which goes into the key and the commit.
    pub leader_epoch: LeaderEpoch,
    /// What may be uploaded: from the tiered end to the end of the newest sealed segment, never past the last stable
    /// offset or what is synced. Empty where nothing may.
    pub range: OffsetRange,
    /// Everything not in the bucket yet, sealed or not: from the tiered end to the high watermark.
    pub pending: OffsetRange,
}

/// Whole batches for an upload.
#[derive(Debug, Clone, Default)]
pub struct UploadRead {
    /// Their bytes, in order. After a log start inside a batch the first one begins below the asked base.
    pub chunks: Vec<Bytes>,
    /// One past the last offset read: the end of the entry's range.
    pub next: Offset,
    /// The bytes of all chunks.
    pub bytes: u64,
}

/// Producer state at the end of the last upload. Uploads go forward, so the state follows them.
#[derive(Debug, Default)]
pub(crate) struct UploadCursor {
    at: Option<(Offset, Producers)>,
}

impl PartitionHandle {
    /// The local segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentSummary> {
        self.inner.log.segments()
    }

    /// The local segments as the planners see them, oldest first.
    #[must_use]
    pub fn local_segments(&self) -> Vec<LocalSegment> {
        let segments = self.segments().into_iter().map(|segment| LocalSegment {
            range: segment.range,
            bytes: segment.bytes,
            sealed: segment.sealed,
            max_timestamp: segment.max_timestamp,
            created: segment.created,
        });
        segments.collect()
    }

    /// How far it could be uploaded now; `None` where this node does not lead it or it is not tiered.
    #[must_use]
    pub fn upload_state(&self) -> Option<UploadState> {
        let snapshot = self.inner.snapshot();
        if !snapshot.leading || !snapshot.tiered {
            return None;
        }
        let from = snapshot.tiered_end.max(snapshot.log_start);
        let limit = snapshot.last_stable_offset.min(snapshot.synced_end);
        let segments = self.inner.log.segments();
        let sealed =
            segments.iter().rev().find(|segment| segment.sealed).map_or(from, |segment| segment.range.end);
        let part = |end: Offset| OffsetRange { base: from, end: end.max(from) };
        Some(UploadState {
            leader_epoch: snapshot.leader_epoch,
            range: part(sealed.min(limit)),
            pending: part(snapshot.high_watermark),
        })
    }

    /// Reads whole batches of `range` for an upload, up to `bytes_max` and at least one. The range must lie within
    /// [`UploadState::range`].
    ///
    /// # Errors
    /// The offsets are not there, not durable or not stable: look at [`PartitionHandle::upload_state`] again. A damaged
    /// segment is never uploaded: a read ends before it, and one that begins in it is an error.
    pub async fn read_for_upload(
        &self,
        range: OffsetRange,
        bytes_max: u64,
    ) -> Result<UploadRead, TieringError> {
        let partition = &self.inner;
        let snapshot = partition.snapshot();
        if range.end > snapshot.last_stable_offset.min(snapshot.synced_end) || range.base < snapshot.log_start
        {
            return Err(TieringError::NotReadable { offset: range.base });
        }
        let mut read = UploadRead { next: range.base, ..UploadRead::default() };
        while read.next < range.end {
            let left = usize::try_from(bytes_max.saturating_sub(read.bytes)).unwrap_or(usize::MAX);
            let one_at_least = read.chunks.is_empty();
            let part = match partition.log.read(read.next, left, range.end, one_at_least).await {
                Ok(part) => part,
                // What was read is good; what is wrong behind it is the next call's.
                Err(LogReadError::Corrupt { .. } | LogReadError::Io { .. }) if !one_at_least => break,
                Err(error) => return Err(not_read(error)),
            };
            if part.chunks.is_empty() {
                break;
            }
            read.bytes += part.bytes() as u64;
            read.next = part.next;
            read.chunks.extend(part.chunks);
        }
        if read.chunks.is_empty() {
            return Err(TieringError::NotReadable { offset: range.base });
        }
        Ok(read)
    }

    /// The leader epochs of a part of the log, each with its first offset there.
    #[must_use]
    pub fn epochs_of(&self, range: OffsetRange) -> Vec<EpochStart> {
        let snapshot = self.inner.snapshot();
        let mut part: Vec<EpochStart> = Vec::new();
        for entry in snapshot.epochs.iter().filter(|entry| entry.start < range.end) {
            let entry = EpochStart { start: entry.start.max(range.base), ..*entry };
            // Of those that begin at or below the base the last one holds it.
            if part.last().is_some_and(|last| last.start == entry.start) {
                part.pop();
            }
            part.push(entry);
        }
        part
    }

    /// The stored form of the producer state with every batch below `end` taken in and none from there on. Uploads ask for
    /// ascending ends; the first after a start begins at what local disk holds, and behind what is damaged there and in the
    /// bucket. Producers that have expired by now are left out.
    ///
    /// # Errors
    /// The batches up to `end` cannot be read.
    pub async fn producer_snapshot_at(&self, end: Offset) -> Result<Bytes, TieringError> {
        let partition = &self.inner;
        let snapshot = partition.snapshot();
        if end > snapshot.log_end {
            return Err(TieringError::NotReadable { offset: end });
        }
        let limits = partition.settings().producers;
        let now = partition.shared.clock.wall();
        let mut cursor = partition.upload.lock().await;
        let start = snapshot.hot_start();
        let (mut at, mut producers) = cursor
            .at
            .take()
            .filter(|(at, _)| *at <= end && *at >= start)
            .unwrap_or_else(|| (start, Producers::new(limits)));
        while at < end {
            let read = match partition.log.read(at, CATCH_UP_BYTES, end, true).await {
                Err(error @ LogReadError::Corrupt { .. }) if at < snapshot.tiered_end.min(end) => {
                    warn!(
                        partition = %partition.place, topic = %partition.topic, offset = %at, %error,
                        "uploads leave out the producers of batches that are damaged here"
                    );
                    (at, producers) = (snapshot.tiered_end.min(end), Producers::new(limits));
                    continue;
                }
                read => read.map_err(not_read)?,
            };
            if read.next <= at {
                return Err(TieringError::NotReadable { offset: at });
            }
            for header in headers(&read.chunks) {
                producers_form::replay(&mut producers, &header, at, now);
            }
            at = read.next;
        }
        producers.expire(now);
        let stored = producers_form::encode(&producers, end);
        cursor.at = Some((end, producers));
        Ok(stored)
    }

    /// As [`PartitionHandle::producer_snapshot_at`] the end of a range whose batches are at hand: nothing is read. `None` where the
    /// state at its base is not, as it is after a call for that.
    #[must_use]
    pub fn producer_snapshot_behind(
        &self,
        range: OffsetRange,
        headers: impl Iterator<Item = BatchHeader>,
    ) -> Option<Bytes> {
        let partition = &self.inner;
        let now = partition.shared.clock.wall();
        let mut cursor = partition.upload.try_lock().ok()?;
        let (_, mut producers) = cursor.at.take_if(|(at, _)| *at == range.base)?;
        for header in headers {
            producers_form::replay(&mut producers, &header, range.base, now);
        }
        producers.expire(now);
        let stored = producers_form::encode(&producers, range.end);
        cursor.at = Some((range.end, producers));
        Some(stored)
    }

    /// Takes room on local disk, above the floor that producers are refused at, for what is to be written beside the log: false
    /// where the log needs it.
    #[must_use]
    pub fn take_room(&self, bytes: u64) -> bool {
        self.inner.log.take_room(bytes)
    }

    /// Seals the active segment, whatever its age.
    ///
    /// # Errors
    /// The log failed.
    pub async fn roll(&self) -> Result<(), LogFailure> {
        self.inner.log.roll().await
    }

    /// Deletes whole local segments below `to`. Only what the bucket holds, or what lies below the log start, may go (T4).
    /// Answers the new local log start offset.
    ///
    /// # Errors
    /// `to` is above what may go, or the log failed.
    pub async fn set_local_log_start(&self, to: Offset) -> Result<Offset, TieringError> {
        let partition = &self.inner;
        let _turn = partition.starts.lock().await;
        let snapshot = partition.snapshot();
        let tiered = if snapshot.tiered { snapshot.tiered_end } else { snapshot.log_start };
        let allowed = tiered.max(snapshot.log_start);
        if to > allowed && !partition.shared.config.mistakes.evict_unchecked {
            return Err(TieringError::NotTiered { asked: to, allowed });
        }
        partition.log.set_local_log_start(to).await?;
        partition.follow_log_starts();
        Ok(partition.snapshot().local_log_start)
    }

    /// Deletes the records below `to`, or below the high watermark for `None`, as a client asks. Answers the log start
    /// offset. Durable, and for a tiered partition committed by the controller, once it returns.
    ///
    /// # Errors
    /// Why not. After [`DeleteRecordsError::Log`] and [`ProposeFailure::Unknown`] it may have happened.
    pub async fn delete_records(&self, to: Option<Offset>) -> Result<Offset, DeleteRecordsError> {
        let partition = &self.inner;
        let policy = partition.settings().topic.cleanup_policy;
        if policy.compact && !policy.delete {
            return Err(DeleteRecordsError::Policy);
        }
        let snapshot = partition.snapshot();
        if !snapshot.leading {
            return Err(DeleteRecordsError::NotLeader);
        }
        let to = to.unwrap_or(snapshot.high_watermark);
        if to > snapshot.high_watermark {
            return Err(DeleteRecordsError::OutOfRange {
                asked: to,
                high_watermark: snapshot.high_watermark,
            });
        }
        self.advance_log_start(to).await
    }

    /// Moves the log start up to `to`, at most the high watermark; a lower one changes nothing. What retention calls.
    /// Answers the log start offset.
    ///
    /// # Errors
    /// As [`PartitionHandle::delete_records`], without the policy.
    pub async fn advance_log_start(&self, to: Offset) -> Result<Offset, DeleteRecordsError> {
        let partition = &self.inner;
        let snapshot = partition.snapshot();
        if !snapshot.leading {
            return Err(DeleteRecordsError::NotLeader);
        }
        if to > snapshot.high_watermark {
            return Err(DeleteRecordsError::OutOfRange {
                asked: to,
                high_watermark: snapshot.high_watermark,
            });
        }
        if to <= snapshot.log_start {
            return Ok(snapshot.log_start);
        }
        // A log start never passes what is durable, also where the topic's high watermark does.
        partition.log.wait_synced(to).await?;
        // The topic may have become tiered meanwhile.
        let is_tiered = partition.snapshot().tiered;
        let to = if is_tiered { partition.commit_log_start(snapshot.leader_epoch, to).await? } else { to };
        partition.apply_log_start(to).await?;
        Ok(partition.snapshot().log_start)
    }

    /// Commits the log start of a tiered partition where it is above the committed one: records were deleted before the topic
    /// became tiered. No upload is accepted before.
    ///
    /// # Errors
    /// The controller refused, or cannot be reached.
    pub async fn commit_own_log_start(&self) -> Result<(), DeleteRecordsError> {
        if let Some((leader_epoch, log_start)) = uncommitted_log_start(&self.inner) {
            self.inner.commit_log_start(leader_epoch, log_start).await?;
        }
        Ok(())
    }
}

impl Partition {
    /// Commits a log start; answers the committed one, which may be larger.
    pub(crate) async fn commit_log_start(
        &self,
        leader_epoch: LeaderEpoch,
        to: Offset,
    ) -> Result<Offset, DeleteRecordsError> {
        let command = Command::AdvanceLogStart { place: self.place, leader_epoch, to };
        match self.shared.metadata.propose(command).await {
            Ok(Outcome::LogStart { log_start, .. }) => Ok(log_start),
            Ok(other) => {
                let why = format!("the controller answered {other:?} to a log start");
                Err(DeleteRecordsError::Controller(ProposeFailure::Unknown(why)))
            }
            Err(failed) => Err(DeleteRecordsError::Controller(failed)),
        }
    }

    /// Makes a log start that is decided the log's: durably, then visibly; whole local segments below it go.
    pub(crate) async fn apply_log_start(&self, to: Offset) -> Result<(), LogFailure> {
        let _turn = self.starts.lock().await;
        if to <= self.snapshot().log_start {
            return Ok(());
        }
        if to > self.snapshot().high_watermark {
            self.log.wait_synced(to).await?;
        }
        self.log.set_log_start(to).await?;
        let refused = self.change(|locked| match locked.state.set_log_start(to) {
            Ok(moved) => (None, moved),
            Err(refused) => (Some(refused), Moved::default()),
        });
        if let Some(refused) = refused {
            // Only a log that ends below a replicated log start gets here, and a start resets such a log.
            self.fail(&refused.to_string(), false);
            return Ok(());
        }
        info!(partition = %self.place, topic = %self.topic, log_start = %to, "the log start moved");
        self.wake();
        self.log.set_local_log_start(to).await?;
        self.follow_log_starts();
        Ok(())
    }
}

fn not_read(error: LogReadError) -> TieringError {
    match error {
        LogReadError::OutOfRange { offset, .. } => TieringError::NotReadable { offset },
        LogReadError::Failed(failed) => TieringError::Log(failed),
        error @ (LogReadError::Corrupt { .. } | LogReadError::Io { .. }) => {
            TieringError::Read(error.to_string().into())
        }
    }
}

/// The headers of the batches in `chunks`, which are whole batches or headers apart from their bodies.
fn headers(chunks: &[Bytes]) -> Vec<BatchHeader> {
    let mut found = Vec::new();
    let mut rest_of_batch = 0;
    for chunk in chunks {
        let mut at = rest_of_batch;
        while let Some(header) = chunk.get(at..).and_then(BatchHeader::peek) {
            let Some(bytes) = header.batch_bytes() else { return found };
            found.push(header);
            at += bytes;
        }
        debug_assert!(
            at >= chunk.len() || chunk.len() - at < BATCH_HEADER_BYTES,
            "a chunk ends between batches or after a header"
        );
        rest_of_batch = at.saturating_sub(chunk.len());
    }
    found
}

/// Where a partition that becomes tiered stands apart from its image: its log start is to be committed first.
fn uncommitted_log_start(partition: &Arc<Partition>) -> Option<(LeaderEpoch, Offset)> {
    let snapshot = partition.snapshot();
    let image = partition.image();
    let apart = snapshot.leading && image.tiered && snapshot.log_start > image.log_start;
    apart.then_some((snapshot.leader_epoch, snapshot.log_start))
}
