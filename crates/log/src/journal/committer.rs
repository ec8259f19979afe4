//! The task that writes and syncs rounds.
//!
//! ```text
//!   queue  --take-->  round being written  -->  rounds written  --sync-->  rounds synced
//!                       (at most one)          (any number)    (one at a time)
//! ```
//!
//! A write or a sync that fails is final: nothing is known of what it covered, so the log stops and says so.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_runtime::{DiskFile, IoFuture};
use tidelog_types::Offset;

use super::{
    Entry, Request,
    files::{BLOCK, Live},
};
use crate::{LogFailure, engine::Engine, partition::Partition};

/// Where a partition stands once a round is written or synced.
struct Progress {
    partition: Arc<Partition>,
    cut: u64,
    end: Offset,
}

/// A round on its way.
struct Round {
    ticket: u64,
    end: u64,
    /// The last entry of each partition, and of each of its cuts.
    progress: Vec<Progress>,
    file: Live,
    urgent: bool,
    started: Duration,
}

/// Runs until the log is closed or fails.
pub(crate) async fn run(engine: Arc<Engine>) {
    let mut committer = Committer {
        stop: engine.committer_stop.clone(),
        engine,
        writing: None,
        written: Vec::new(),
        syncing: None,
        synced_position: 0,
        submitted_ticket: 0,
    };
    committer.synced_position = committer.engine.journal.head();
    if let Err(failure) = committer.rounds().await {
        committer.engine.fail(failure);
    }
}

struct Committer {
    engine: Arc<Engine>,
    stop: tidelog_runtime::CancellationToken,
    writing: Option<(IoFuture<()>, Round)>,
    /// Written, not synced.
    written: Vec<Round>,
    syncing: Option<(IoFuture<()>, Vec<Round>)>,
    synced_position: u64,
    /// The newest ticket that a sync was begun for.
    submitted_ticket: u64,
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> LogFailure {
    move |source| LogFailure::Journal { operation, source: Arc::new(source) }
}

/// What woke the committer.
enum Event {
    Synced(io::Result<()>),
    Written(io::Result<()>),
    Wake,
    Linger,
    Stop,
}

impl Committer {
    async fn rounds(&mut self) -> Result<(), LogFailure> {
        loop {
            if self.engine.check().is_err() {
                return Ok(());
            }
            self.start_write().await?;
            self.start_sync();
            match self.event().await {
                Event::Synced(result) => {
                    result.map_err(failed("sync"))?;
                    self.note_synced();
                }
                Event::Written(result) => {
                    result.map_err(failed("write"))?;
                    self.note_written();
                }
                Event::Wake | Event::Linger => {}
                Event::Stop => return Err(LogFailure::Closed),
            }
        }
    }

    /// Completions come first, the sync's before the write's: both free what others wait for. Stop comes last, so that a
    /// closing log finishes what it began.
    async fn event(&mut self) -> Event {
        let linger = self.linger();
        let clock = Arc::clone(&self.engine.clock);
        tokio::select! {
            biased;
            result = completion(self.syncing.as_mut().map(|(io, _)| io)) => Event::Synced(result),
            result = completion(self.writing.as_mut().map(|(io, _)| io)) => Event::Written(result),
            () = self.engine.queue.wake.notified() => Event::Wake,
            () = async {
                match linger {
                    Some(duration) => clock.sleep(duration).await,
                    None => std::future::pending().await,
                }
            } => Event::Linger,
            () = self.stop.cancelled() => Event::Stop,
        }
    }

    /// How long what is written may still wait for its sync.
    fn linger(&self) -> Option<Duration> {
        if self.syncing.is_some() {
            return None;
        }
        let first = self.written.first()?;
        let age = self.engine.clock.monotonic().saturating_sub(first.started);
        Some(self.engine.config.flush_linger.saturating_sub(age))
    }

    async fn start_write(&mut self) -> Result<(), LogFailure> {
        if self.writing.is_some() {
            return Ok(());
        }
        let (entries, ticket) = self.engine.queue.take(self.engine.config.round_bytes_max.get());
        if entries.is_empty() {
            return Ok(());
        }
        let journal = Arc::clone(&self.engine.journal);
        let bytes = super::encode::round_bytes(&entries);
        let (file, new) = journal.for_round(bytes).await.map_err(failed("allocate"))?;
        let header_bytes = if new { BLOCK } else { 0 };
        let position = file.start + file.used + header_bytes;
        let mut chunks: Vec<Bytes> = Vec::with_capacity(2 + 3 * entries.len());
        if new {
            chunks.push(super::encode::file_header(&file, self.synced_position));
        }
        // Tails learn their positions before the head moves: a checkpoint that sees a batch without one reads a head at or
        // below it.
        let encoded =
            super::encode::round(&entries, file.generation, position, self.synced_position, &mut chunks);
        assert!(encoded == bytes, "a round of {encoded} bytes was reckoned at {bytes}");
        journal.advance(header_bytes + bytes);
        let urgent = entries.iter().any(|entry| !matches!(entry.request, Request::Append(_)));
        let round = Round {
            ticket,
            end: position + bytes,
            progress: progress(&entries),
            urgent,
            started: self.engine.clock.monotonic(),
            file: file.clone(),
        };
        self.engine.metrics.rounds.inc();
        self.engine.metrics.journal_bytes.add(header_bytes + bytes);
        self.writing = Some((file.file.write_at(file.used, chunks), round));
        Ok(())
    }

    fn start_sync(&mut self) {
        if self.syncing.is_some() || self.written.is_empty() {
            return;
        }
        let asked = self.engine.queue.urgent() > self.submitted_ticket
            || self.written.iter().any(|round| round.urgent);
        let due = self.linger().is_some_and(|left| left.is_zero());
        if !asked && !due {
            return;
        }
        let rounds = std::mem::take(&mut self.written);
        self.submitted_ticket = rounds.last().map_or(self.submitted_ticket, |round| round.ticket);
        let mut files: BTreeMap<u64, Arc<dyn DiskFile>> = BTreeMap::new();
        for round in &rounds {
            files.entry(round.file.generation).or_insert_with(|| Arc::clone(&round.file.file));
        }
        let syncs: Vec<IoFuture<()>> = files.values().map(|file| file.sync_data()).collect();
        self.engine.metrics.syncs.inc();
        let all: IoFuture<()> = Box::pin(async move {
            for sync in syncs {
                sync.await?;
            }
            Ok(())
        });
        self.syncing = Some((all, rounds));
    }

    fn note_written(&mut self) {
        let Some((_, round)) = self.writing.take() else { return };
        for progress in &round.progress {
            progress.partition.note_written(progress.cut, progress.end);
            if self.engine.config.mistakes.ack_before_sync {
                progress.partition.note_synced(progress.cut, progress.end);
            }
        }
        self.written.push(round);
    }

    fn note_synced(&mut self) {
        let Some((_, rounds)) = self.syncing.take() else { return };
        for round in &rounds {
            self.synced_position = self.synced_position.max(round.end);
            let took = self.engine.clock.monotonic().saturating_sub(round.started);
            self.engine.metrics.round_seconds.observe_duration(took);
            for progress in &round.progress {
                progress.partition.note_synced(progress.cut, progress.end);
            }
        }
        if let Some(last) = rounds.last() {
            self.engine.queue.note_synced(last.ticket);
        }
    }
}

async fn completion(io: Option<&mut IoFuture<()>>) -> io::Result<()> {
    match io {
        Some(io) => io.await,
        None => std::future::pending().await,
    }
}

fn progress(entries: &[Entry]) -> Vec<Progress> {
    let mut last: BTreeMap<(tidelog_types::TopicPartition, u64), Progress> = BTreeMap::new();
    for entry in entries {
        if matches!(entry.request, Request::LogStart(_) | Request::LocalLogStart(_) | Request::Delete) {
            continue;
        }
        let progress = Progress { partition: Arc::clone(&entry.partition), cut: entry.cut, end: entry.end };
        last.insert((entry.partition.place, entry.cut), progress);
    }
    last.into_values().collect()
}
