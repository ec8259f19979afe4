//! Changes of one partition that need IO: each is in the journal, synced, before a file is cut or removed.
//!
//! **Owns** that order. A change takes effect in memory at once, so that no reader sees what is about to go, and holds the
//! partition's files lock until the files agree.

use std::sync::Arc;

use tidelog_runtime::is_disk_full;
use tidelog_types::{Offset, OffsetRange};

use crate::{
    LogFailure, checkpoint,
    engine::{Engine, lock},
    fence,
    files::{self, Files},
    journal::{Entry, Request},
    partition::{Partition, State},
    segment::Segment,
};

/// Checkpoints that are made for the producers of one partition: the second covers what the first stored.
const CHECKPOINTS_FOR_PRODUCERS: usize = 3;

impl Engine {
    /// Holds the journal from here on for a work whose entry must not be freed before it is done.
    fn hold(&self) -> Hold<'_> {
        let mut holds = lock(&self.holds);
        holds.0 += 1;
        let number = holds.0;
        holds.1.insert(number, self.journal.head());
        Hold { engine: self, number }
    }

    /// The least position that works in progress need.
    pub(crate) fn held_from(&self) -> Option<u64> {
        lock(&self.holds).1.values().min().copied()
    }

    pub(crate) fn push(&self, partition: &Arc<Partition>, state: &State, request: Request) -> u64 {
        let entry = Entry { partition: Arc::clone(partition), cut: state.cut, end: state.log_end, request };
        self.queue.push(entry)
    }

    async fn synced(&self, ticket: u64) -> Result<(), LogFailure> {
        self.queue.wait_synced(ticket, || self.check()).await
    }

    pub(crate) async fn roll(&self, partition: &Arc<Partition>) -> Result<(), LogFailure> {
        let ticket = self.queue.newest();
        self.synced(ticket).await?;
        let mut files = partition.files.lock().await;
        self.check()?;
        if partition.lock().deleted {
            return Err(LogFailure::Deleted);
        }
        let rolled = async {
            self.write_behind(partition, &mut files).await?;
            files.seal(self, partition).await
        };
        rolled.await.map_err(|error| {
            if is_disk_full(&error) {
                // Nothing is lost: the segment stays active, and is sealed when there is room again.
                self.full_disk(partition, "roll", error)
            } else {
                self.fail_partition(partition, "roll", error)
            }
        })
    }

    /// Refuses appends from here on, over restarts, until the owner cuts the log.
    pub(crate) async fn fence(&self, partition: &Partition, why: &str) -> Result<(), LogFailure> {
        self.check()?;
        let _files = partition.files.lock().await;
        let why: Arc<str> = Arc::from(why);
        {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            if state.fenced.is_some() {
                return Ok(());
            }
            state.fenced = Some(Arc::clone(&why));
        }
        tracing::error!(place = %partition.place, why = %why, "partition fenced");
        let written = fence::write(self, partition.place, &why).await;
        match written {
            // It holds as long as this process does, and what it is for is found again after that.
            Err(error) if is_disk_full(&error) => drop(self.full_disk(partition, "fence", error)),
            written => written.map_err(|error| self.fail_partition(partition, "fence", error))?,
        }
        Ok(())
    }

    pub(crate) async fn truncate(&self, partition: &Arc<Partition>, to: Offset) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        let to = crate::read::boundary_below(self, partition, to).await;
        let (floor, unchanged) = {
            let state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            (state.log_start.max(state.local_log_start), to >= state.log_end && state.fenced.is_none())
        };
        if unchanged {
            return Ok(());
        }
        if to < floor {
            // Nothing of what stays is served: the log is empty at its start.
            self.reset_holding(partition, &mut files, floor).await?;
            return self.lift(partition).await;
        }
        let (ticket, to, freed, unwritten, was_fenced) = {
            let mut state = partition.lock();
            let was_fenced = state.fenced.is_some();
            let to = to.min(state.log_end);
            let (freed, unwritten) = state.tail.truncate(to);
            state.cut_to(to);
            let ticket = if self.config.mistakes.truncate_without_entry {
                (state.written_end, state.synced_end) = (to, to);
                0
            } else {
                self.push(partition, &state, Request::Truncate(to))
            };
            (ticket, to, freed, unwritten, was_fenced)
        };
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        self.synced(ticket).await?;
        if was_fenced {
            self.lift(partition).await?;
        }
        let cut = files.truncate(self, partition, to).await;
        tracing::info!(place = %partition.place, offset = %to, "log truncated");
        cut.map_err(|error| self.fail_partition(partition, "truncate", error))
    }

    /// Segments of what is lost go out of the list, and out of the checkpoint that the next start compares the files with. Of one
    /// that begins below `from` the part up to there stays, so that nobody reads over what another copy has.
    pub(crate) async fn give_up_lost(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        from: Offset,
    ) -> Result<(), LogFailure> {
        self.check()?;
        {
            let mut files = partition.files.lock().await;
            let lost = {
                let mut state = partition.lock();
                if state.deleted {
                    return Err(LogFailure::Deleted);
                }
                let lost: Vec<OffsetRange> =
                    state.lost.iter().copied().filter(|hole| hole.end > from).collect();
                state.lost.retain_mut(|hole| {
                    hole.end = hole.end.min(from);
                    hole.base < hole.end
                });
                lost
            };
            let is_lost = |segment: &Arc<Segment>| lost.iter().any(|hole| hole.base == segment.base);
            let segments = partition.segments.load_full();
            let gone: Vec<_> = segments.iter().filter(|segment| is_lost(segment)).cloned().collect();
            if gone.is_empty() {
                return Ok(());
            }
            let left = segments.iter().filter_map(|segment| match is_lost(segment) {
                true => segment.quarantined_below(from).map(Arc::new),
                false => Some(Arc::clone(segment)),
            });
            partition.segments.store(Arc::new(left.collect()));
            let removed = files.remove_oldest(self, partition, &gone).await;
            removed.map_err(|error| self.fail_partition(partition, "remove segments", error))?;
        }
        checkpoint::take(self, false).await
    }

    /// Lifts a fence, durably.
    async fn lift(&self, partition: &Partition) -> Result<(), LogFailure> {
        partition.lock().fenced = None;
        let lifted = fence::lift(self, partition.place).await;
        lifted.map_err(|error| self.fail_partition(partition, "lift fence", error))
    }

    pub(crate) async fn reset(&self, partition: &Arc<Partition>, start: Offset) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        self.reset_holding(partition, &mut files, start).await
    }

    async fn reset_holding(
        &self,
        partition: &Arc<Partition>,
        files: &mut Files,
        start: Offset,
    ) -> Result<(), LogFailure> {
        let (ticket, freed, unwritten) = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let fenced = state.fenced.take();
            let (freed, unwritten) = state.tail.clear();
            let (config, cut) = (state.config.clone(), state.cut);
            let tail = std::mem::take(&mut state.tail);
            let aging = state.aging;
            *state = State { cut: cut + 1, tail, aging, fenced, ..State::empty(config, start) };
            (self.push(partition, &state, Request::Reset(start)), freed, unwritten)
        };
        let old = partition.segments.swap(Arc::new(Vec::new()));
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        self.synced(ticket).await?;
        for segment in old.iter() {
            files::forget(self, segment);
        }
        tracing::info!(place = %partition.place, offset = %start, "log reset");
        files.clear(self, partition).await.map_err(|error| self.fail_partition(partition, "reset", error))
    }

    pub(crate) async fn set_log_start(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        to: Offset,
    ) -> Result<(), LogFailure> {
        self.check()?;
        self.keep_producers(partition, to).await?;
        let ticket = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let to = to.min(state.log_end);
            // Also where another call has moved it: that one's record may not be synced yet, and this is waited for like it.
            state.log_start = to.max(state.log_start);
            self.push(partition, &state, Request::LogStart(state.log_start))
        };
        self.synced(ticket).await
    }

    /// Has a checkpoint store the producers' state before a start of the log passes batches that it could be rebuilt from:
    /// without them and without it, a retry after a kill would be taken for new records. A disk too full for it keeps nobody
    /// from freeing space.
    async fn keep_producers(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        to: Offset,
    ) -> Result<(), LogFailure> {
        let kept = || {
            let state = partition.lock();
            let to = to.min(state.log_end);
            to <= state.log_start.max(state.local_log_start) || to <= state.producers_from
        };
        if partition.observer().is_none() {
            return Ok(());
        }
        // A state is stored as it is when the checkpoint is made, which may be above what that checkpoint covers; the next
        // one covers it.
        for _ in 0..CHECKPOINTS_FOR_PRODUCERS {
            if kept() {
                return Ok(());
            }
            partition.files.lock().await.want_snapshot();
            checkpoint::take(self, false).await?;
        }
        if !kept() {
            tracing::warn!(place = %partition.place, %to, "the log start passes batches of producers whose state is not stored");
        }
        Ok(())
    }

    pub(crate) async fn set_local_log_start(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        to: Offset,
    ) -> Result<(), LogFailure> {
        self.check()?;
        let Some((_, start)) = below(&partition.segments.load(), to) else { return Ok(()) };
        self.keep_producers(partition, start).await?;
        let mut files = partition.files.lock().await;
        let (ticket, removed) = {
            let mut state = partition.lock();
            if state.deleted {
                return Err(LogFailure::Deleted);
            }
            let segments = partition.segments.load_full();
            let Some((count, start)) = below(&segments, start) else { return Ok(()) };
            state.local_log_start = start;
            state.lost.retain(|hole| hole.end > start);
            partition.segments.store(Arc::new(segments[count..].to_vec()));
            (self.push(partition, &state, Request::LocalLogStart(start)), segments[..count].to_vec())
        };
        self.synced(ticket).await?;
        let gone = files.remove_oldest(self, partition, &removed).await;
        gone.map_err(|error| self.fail_partition(partition, "remove segments", error))
    }

    pub(crate) async fn delete(&self, partition: &Arc<Partition>) -> Result<(), LogFailure> {
        self.check()?;
        let mut files = partition.files.lock().await;
        let hold = self.hold();
        let (ticket, freed, unwritten) = {
            let mut state = partition.lock();
            if state.deleted {
                return Ok(());
            }
            state.deleted = true;
            state.cut += 1;
            let (freed, unwritten) = state.tail.clear();
            (self.push(partition, &state, Request::Delete), freed, unwritten)
        };
        self.pool.forget(freed, unwritten);
        self.pool.forget_batches(partition);
        partition.changed.notify_waiters();
        self.synced(ticket).await?;
        let cleared = files.clear(self, partition).await;
        drop(hold);
        cleared.map_err(|error| self.fail_partition(partition, "delete", error))?;
        let mut partitions = lock(&self.partitions);
        if partitions.get(&partition.place).is_some_and(|known| Arc::ptr_eq(known, partition)) {
            partitions.remove(&partition.place);
        }
        tracing::info!(place = %partition.place, "partition deleted");
        Ok(())
    }
}

struct Hold<'a> {
    engine: &'a Engine,
    number: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        lock(&self.engine.holds).1.remove(&self.number);
    }
}

/// How many segments are sealed and end at or below `to`, and where the log starts without them; `None` where it is none.
fn below(segments: &[Arc<Segment>], to: Offset) -> Option<(usize, Offset)> {
    // The next one's base is a segment's end.
    let end = |index: usize| {
        segments.get(index + 1).map_or_else(|| segments[index].content().end, |next| next.base)
    };
    let goes = |index: &usize| segments[*index].content().sealed && end(*index) <= to;
    let last = (0..segments.len()).take_while(goes).count().checked_sub(1)?;
    Some((last + 1, end(last)))
}
