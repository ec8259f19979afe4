//! Moving batches from memory to segments, in large writes and far behind the journal.
//!
//! **Owns** which partition is written when: one with a large piece at once, any other when its oldest batch is old, and the
//! oldest first while memory or the journal is short. **Does not own** the files.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidelog_runtime::is_disk_full;

use crate::{
    engine::{Engine, lock},
    files::{Files, PIECE_BYTES},
    partition::{Partition, take_flag},
    tail::TailBatch,
};

/// How long write-behind waits when a disk was full.
const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

/// Batches of a piece whose memory a worker keeps.
const PIECE_BATCHES_KEPT: usize = 1024;

/// How often the free space is looked at.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

/// Why a partition is written behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has a large piece, and whoever writes to it waits for its memory.
    Large,
    /// Its oldest batch is old, or memory is short.
    Old,
}

/// Partitions that a worker shall write behind, each kind in its order, once at most in each. Kinds take turns: a large piece does
/// not wait behind the little that ten thousand partitions have, nor these behind a flood.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    large: VecDeque<Arc<Partition>>,
    old: VecDeque<Arc<Partition>>,
    last_was_large: bool,
}

impl Behind {
    pub(crate) fn push(&mut self, partition: Arc<Partition>, turn: Turn) {
        match turn {
            Turn::Large => self.large.push_back(partition),
            Turn::Old => self.old.push_back(partition),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Arc<Partition>, Turn)> {
        let large_first = !self.last_was_large || self.old.is_empty();
        let next = if large_first { self.large.pop_front() } else { None };
        self.last_was_large = next.is_some();
        match next {
            Some(partition) => Some((partition, Turn::Large)),
            None => self.old.pop_front().map(|partition| (partition, Turn::Old)),
        }
    }
}

impl Engine {
    pub(crate) fn queue_write_behind(&self, partition: &Arc<Partition>, turn: Turn) {
        if take_flag(partition.queued(turn)) {
            lock(&self.behind).push(Arc::clone(partition), turn);
            self.behind_wake.notify_one();
        }
    }

    pub(crate) fn start_aging(&self, partition: &Arc<Partition>, now: Duration) {
        lock(&self.aging).push_back((now, Arc::clone(partition)));
    }

    pub(crate) fn wake_write_behind(&self) {
        self.aging_wake.notify_one();
    }

    /// Queues partitions whose first unwritten batch is old, or the oldest ones whatever their age while memory is short.
    pub(crate) async fn run_aging(self: Arc<Self>) {
        let stop = self.supervisor.shutdown_token();
        let tick = (self.config.write_behind_delay / 4).clamp(Duration::from_millis(10), SPACE_INTERVAL);
        let mut next_space = Duration::ZERO;
        while self.check().is_ok() {
            let now = self.clock.monotonic();
            if now >= next_space || self.space.unknown() {
                self.look_at_space().await;
                next_space = now + SPACE_INTERVAL;
            }
            self.queue_aged(now);
            self.publish_metrics();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.aging_wake.notified() => {}
                () = self.clock.sleep(tick) => {}
            }
        }
    }

    fn queue_aged(&self, now: Duration) {
        let crowded = self.crowded();
        let mut aging = lock(&self.aging);
        while let Some((since, partition)) = aging.front() {
            if !crowded && now.saturating_sub(*since) < self.config.write_behind_delay {
                return;
            }
            self.queue_write_behind(partition, Turn::Old);
            aging.pop_front();
        }
    }

    fn publish_metrics(&self) {
        self.metrics.tail_bytes.set(self.pool.charged());
        self.metrics.unwritten_bytes.set(self.pool.unwritten());
        self.metrics.journal_live_bytes.set(self.journal.bytes());
        self.metrics.open_files.set(self.descriptors.count() as u64);
        self.metrics.free_bytes.set(self.space.free());
    }

    pub(crate) async fn run_write_behind(self: Arc<Self>) {
        let stop = self.supervisor.shutdown_token();
        let mut piece = Vec::new();
        while self.check().is_ok() {
            let next = lock(&self.behind).pop();
            let Some((partition, turn)) = next else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.behind_wake.notified() => {}
                }
                continue;
            };
            partition.queued(turn).store(false, Ordering::Release);
            let mut files = partition.files.lock().await;
            let written = self.write_pieces(&partition, &mut files, &mut piece).await;
            drop(files);
            // Nothing stays in memory for it, but for the list itself.
            piece.clear();
            piece.shrink_to(PIECE_BATCHES_KEPT);
            match written {
                Ok(()) => self.age_again(&partition),
                Err(error) if is_disk_full(&error) => {
                    self.full_disk(&partition, "write behind", error);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = self.clock.sleep(FULL_DISK_RETRY) => self.queue_write_behind(&partition, Turn::Old),
                    }
                }
                Err(error) => {
                    self.fail_partition(&partition, "write behind", error);
                }
            }
        }
    }

    fn age_again(&self, partition: &Arc<Partition>) {
        let mut state = partition.lock();
        match state.oldest_unwritten() {
            Some(since) => {
                state.aging = true;
                drop(state);
                self.start_aging(partition, since);
            }
            None => state.aging = false,
        }
    }

    /// Writes to segments everything that the journal has written.
    pub(crate) async fn write_behind(&self, partition: &Partition, files: &mut Files) -> io::Result<()> {
        self.write_pieces(partition, files, &mut Vec::new()).await
    }

    /// As [`Engine::write_behind`]; `batches` is a piece at a time.
    async fn write_pieces(
        &self,
        partition: &Partition,
        files: &mut Files,
        batches: &mut Vec<TailBatch>,
    ) -> io::Result<()> {
        loop {
            next_piece(partition, batches);
            if batches.is_empty() {
                return Ok(());
            }
            let mut first = 0;
            while first < batches.len() {
                let count = files.append(self, partition, &batches[first..]).await?;
                first += count.max(1);
                // After each run, not after the piece: what is in a segment must not be written again when a later run
                // finds the disk full.
                let end = batches[first - 1].last.next();
                let charge = {
                    let mut state = partition.lock();
                    state.behind_end = end;
                    state.tail.mark_behind(end)
                };
                self.pool.wrote(charge);
                self.pool.shrink();
            }
        }
    }
}

/// Batches that the journal has written and no segment has, up to one piece, in place of what `batches` held.
fn next_piece(partition: &Partition, batches: &mut Vec<TailBatch>) {
    batches.clear();
    let state = partition.lock();
    let (mut bytes, mut count) = (0, 0);
    for batch in state.tail.unwritten() {
        if batch.last >= state.written_end || (bytes > 0 && bytes + batch.bytes() > PIECE_BYTES) {
            break;
        }
        bytes += batch.bytes();
        count += 1;
    }
    // Counted before it is collected: a list that grows costs twice its size.
    batches.reserve_exact(count);
    batches.extend(state.tail.unwritten().take(count).cloned());
}

#[cfg(test)]
mod tests {
    use tidelog_types::{Offset, PartitionIndex, TopicId, TopicPartition};

    use super::*;
    use crate::{PartitionConfig, partition::State};

    #[test]
    fn large_pieces_and_old_ones_take_turns() {
        let partition = |number| {
            let place =
                TopicPartition { topic_id: TopicId::from_bytes([1; 16]), partition: PartitionIndex(number) };
            let state = State::empty(PartitionConfig::default(), Offset::ZERO);
            Arc::new(Partition::new(place, "folder".into(), state, Files::default()))
        };
        let mut behind = Behind::default();
        for number in 0..4 {
            behind.push(partition(number), Turn::Old);
        }
        for number in 10..12 {
            behind.push(partition(number), Turn::Large);
        }
        let order: Vec<i32> =
            std::iter::from_fn(|| behind.pop()).map(|(partition, _)| partition.place.partition.0).collect();
        assert_eq!(order, [10, 0, 11, 1, 2, 3]);
    }
}
