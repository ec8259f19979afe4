//! The task that writes and syncs rounds.
//!
//! ```text
//!   queue  --take-->  round being written  -->  rounds written  --sync-->  rounds synced
//!                       (at most one)          (any number)    (one at a time)
//! ```
//!
//! What was synced is told from what may be torn by what later headers say. So a journal that rests gets a round without
//! entries, the *mark*: damage in the last round of entries is rot then, and no torn tail. Nobody waits for a mark: it is synced
//! with what follows.
//!
//! A write or a sync that fails is final: nothing is known of what it covered, so the log stops and says so.

use std::{io, sync::Arc, time::Duration};

use tidelog_runtime::{IoFuture, is_disk_full};
use tidelog_types::{Offset, TopicPartition};

use super::{
    Entry, Request, RoundMax,
    files::{BLOCK, Live},
    pace::Pace,
};
use crate::{LogFailure, engine::Engine, partition::Partition};

/// Entries whose memory is kept from round to round.
const ENTRIES_KEPT: usize = 4096;

/// How often a round that found no journal file, and no space for one, looks again.
const SPACE_RETRY: Duration = Duration::from_millis(200);

/// How long a journal rests before it says that all of it is synced.
const MARK_AFTER: Duration = Duration::from_secs(1);

/// Where a partition stands once a round is written or synced.
struct Progress {
    partition: Arc<Partition>,
    cut: u64,
    end: Offset,
}

impl Progress {
    fn key(&self) -> (TopicPartition, u64) {
        (self.partition.place, self.cut)
    }
}

/// A round on its way.
struct Round {
    ticket: u64,
    end: u64,
    /// The last entry of each partition, and of each of its cuts.
    progress: Vec<Progress>,
    file: Live,
    urgent: bool,
    /// Bytes of large entries.
    large: u64,
    /// It has no entries.
    mark: bool,
    started: Duration,
}

/// Runs until the log is closed or fails.
pub(crate) async fn run(engine: Arc<Engine>) {
    let round_bytes_max = engine.config.round_bytes_max.get();
    let mut committer = Committer {
        stop: engine.committer_stop.clone(),
        engine,
        entries: Vec::new(),
        ticket: 0,
        providing: None,
        writing: None,
        written: Vec::new(),
        syncing: None,
        sync_begun: Duration::ZERO,
        being_synced: Vec::new(),
        pace: Pace::new(round_bytes_max),
        synced_position: 0,
        submitted_ticket: 0,
        unmarked_since: None,
    };
    committer.synced_position = committer.engine.journal.head();
    if let Err(failure) = committer.rounds().await {
        committer.engine.fail(failure);
    }
}

struct Committer {
    engine: Arc<Engine>,
    stop: tidelog_runtime::CancellationToken,
    /// What the next round is made of: empty between rounds, unless one waits for its file, and kept for its memory.
    entries: Vec<Entry>,
    /// The ticket of the last of them.
    ticket: u64,
    /// The making of a file for the next round. Completions are told meanwhile.
    providing: Option<IoFuture<()>>,
    writing: Option<(IoFuture<()>, Round)>,
    /// Written, not synced.
    written: Vec<Round>,
    syncing: Option<IoFuture<()>>,
    sync_begun: Duration,
    /// What `syncing` makes durable; empty without it.
    being_synced: Vec<Round>,
    pace: Pace,
    synced_position: u64,
    /// The newest ticket that a sync was begun for.
    submitted_ticket: u64,
    /// When entries were synced that no later header covers yet.
    unmarked_since: Option<Duration>,
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> LogFailure {
    move |source| LogFailure::Journal { operation, source: Arc::new(source) }
}

/// What woke the committer.
enum Event {
    Synced(io::Result<()>),
    Written(io::Result<()>),
    Provided(io::Result<()>),
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
            // The sync first: it waits for nothing that is submitted behind it, and what it takes makes room for large entries.
            self.start_sync();
            self.start_write();
            match self.event().await {
                Event::Synced(result) => {
                    result.map_err(failed("sync"))?;
                    self.note_synced();
                }
                Event::Written(result) => {
                    result.map_err(failed("write"))?;
                    self.note_written();
                }
                Event::Provided(Err(error)) if is_disk_full(&error) => self.wait_for_space(&error),
                Event::Provided(result) => {
                    result.map_err(failed("allocate"))?;
                    self.providing = None;
                }
                Event::Wake | Event::Linger => {}
                Event::Stop => return Err(LogFailure::Closed),
            }
        }
    }

    /// Nothing of the round is written: it waits until there is space, or a file that a checkpoint freed.
    fn wait_for_space(&mut self, error: &io::Error) {
        self.engine.note_full();
        if let Some(suppressed) = self.engine.space.lines.pass("journal") {
            tracing::error!(%error, suppressed, "the disk is full: the journal waits for space");
        }
        let clock = Arc::clone(&self.engine.clock);
        self.providing = Some(Box::pin(async move {
            clock.sleep(SPACE_RETRY).await;
            Ok(())
        }));
    }

    /// Completions come first, the sync's before the write's: both free what others wait for. Stop comes last, so that a
    /// closing log finishes what it began.
    async fn event(&mut self) -> Event {
        let linger = self.linger().into_iter().chain(self.mark_due_in()).min();
        let clock = Arc::clone(&self.engine.clock);
        tokio::select! {
            biased;
            result = completion(self.syncing.as_mut()) => Event::Synced(result),
            result = completion(self.writing.as_mut().map(|(io, _)| io)) => Event::Written(result),
            result = completion(self.providing.as_mut()) => Event::Provided(result),
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
        let first = self.written.iter().find(|round| !round.mark)?;
        let age = self.engine.clock.monotonic().saturating_sub(first.started);
        Some(self.engine.config.flush_linger.saturating_sub(age))
    }

    /// How long until a mark is to be written; `None` where one is not needed, or something else comes first.
    fn mark_due_in(&self) -> Option<Duration> {
        let rests = self.writing.is_none() && self.syncing.is_none() && self.providing.is_none();
        let since =
            self.unmarked_since.filter(|_| rests && self.written.is_empty() && self.entries.is_empty())?;
        Some(MARK_AFTER.saturating_sub(self.engine.clock.monotonic().saturating_sub(since)))
    }

    fn start_write(&mut self) {
        if self.writing.is_some() || self.providing.is_some() {
            return;
        }
        if self.entries.is_empty() {
            let max = self.round_max();
            self.ticket = self.engine.queue.take(max, &mut self.entries);
            self.note_waits();
        }
        let mark = self.entries.is_empty();
        if mark && self.mark_due_in().is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.unmarked_since = None;
        let journal = Arc::clone(&self.engine.journal);
        let bytes = super::encode::round_bytes(&self.entries);
        let Some((file, new)) = journal.for_round(bytes) else {
            if mark {
                // Not for a mark: a file is for entries.
                return;
            }
            self.providing = Some(Box::pin(async move { journal.provide(bytes).await }));
            return;
        };
        let header_bytes = if new { BLOCK } else { 0 };
        let position = file.start + file.used + header_bytes;
        // Tails learn their positions before the head moves: a checkpoint that sees a batch without one reads a head at or
        // below it.
        let encoded = super::encode::round(&self.entries, file.generation, position, self.synced_position);
        assert!(encoded.bytes == bytes, "a round of {} bytes was reckoned at {bytes}", encoded.bytes);
        let mut chunks = encoded.parts;
        if new {
            chunks.insert(0, super::encode::file_header(&file, self.synced_position));
        }
        journal.advance(header_bytes + bytes);
        // At once and not at its next look: what a checkpoint frees in time need not be filled anew.
        if new && journal.bytes() >= self.engine.config.journal_bytes_max.get() / 4 {
            self.engine.checkpoint_wake.notify_one();
        }
        let large = self.entries.iter().filter(|entry| entry.is_large()).map(Entry::bytes).sum();
        let urgent = self.entries.iter().any(|entry| !matches!(entry.request, Request::Append(_)));
        let round = Round {
            ticket: self.ticket,
            end: position + bytes,
            progress: progress(&self.entries),
            urgent,
            large,
            mark,
            started: self.engine.clock.monotonic(),
            file: file.clone(),
        };
        self.entries.clear();
        self.entries.shrink_to(ENTRIES_KEPT);
        self.engine.metrics.rounds.inc();
        self.engine.metrics.journal_bytes.add(header_bytes + bytes);
        self.writing = Some((file.file.write_at(file.used, chunks), round));
        // There is room in the queue again.
        self.engine.pool.room.notify_waiters();
    }

    /// What the next round may have: what is written and waits for the next sync has its part of the share.
    fn round_max(&self) -> RoundMax {
        let bytes = self.engine.config.round_bytes_max.get();
        let Some(share) = self.pace.share(self.engine.clock.monotonic()) else {
            return RoundMax { bytes, large: u64::MAX, one_large: true };
        };
        let written = self.written.iter().fold(0_u64, |sum, round| sum.saturating_add(round.large));
        RoundMax { bytes, large: share.saturating_sub(written), one_large: written == 0 }
    }

    /// Notes where somebody who writes little waits for a sync.
    fn note_waits(&mut self) {
        if self.engine.queue.urgent() > self.submitted_ticket && self.entries.iter().any(Entry::is_light) {
            self.pace.note_wait(self.engine.clock.monotonic());
        }
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
        std::mem::swap(&mut self.written, &mut self.being_synced);
        let rounds = &self.being_synced;
        self.submitted_ticket = rounds.last().map_or(self.submitted_ticket, |round| round.ticket);
        // Rounds follow one another, and so do their files.
        let files = rounds.chunk_by(|one, next| one.file.generation == next.file.generation);
        let syncs: Vec<IoFuture<()>> =
            files.filter_map(|rounds| rounds.first()).map(|round| round.file.file.sync_data()).collect();
        self.engine.metrics.syncs.inc();
        self.sync_begun = self.engine.clock.monotonic();
        let all: IoFuture<()> = Box::pin(async move {
            for sync in syncs {
                sync.await?;
            }
            Ok(())
        });
        self.syncing = Some(all);
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
        self.syncing = None;
        let now = self.engine.clock.monotonic();
        let large = self.being_synced.iter().any(|round| round.large > 0);
        self.pace.note_sync(now, now.saturating_sub(self.sync_begun), large);
        for round in &self.being_synced {
            self.synced_position = self.synced_position.max(round.end);
            let took = self.engine.clock.monotonic().saturating_sub(round.started);
            self.engine.metrics.round_seconds.observe_duration(took);
            for progress in &round.progress {
                progress.partition.note_synced(progress.cut, progress.end);
            }
        }
        if self.being_synced.iter().any(|round| !round.mark) {
            self.unmarked_since = Some(self.engine.clock.monotonic());
        }
        if let Some(last) = self.being_synced.last() {
            self.engine.queue.note_synced(last.ticket);
        }
        self.being_synced.clear();
    }
}

async fn completion(io: Option<&mut IoFuture<()>>) -> io::Result<()> {
    match io {
        Some(io) => io.await,
        None => std::future::pending().await,
    }
}

/// The last entry of each partition, and of each of its cuts, that says where its log ends.
fn progress(entries: &[Entry]) -> Vec<Progress> {
    let mut last: Vec<Progress> = Vec::new();
    for entry in entries {
        if matches!(entry.request, Request::LogStart(_) | Request::LocalLogStart(_) | Request::Delete) {
            continue;
        }
        let progress = Progress { partition: Arc::clone(&entry.partition), cut: entry.cut, end: entry.end };
        match last.last_mut() {
            Some(before) if before.key() == progress.key() => *before = progress,
            _ => last.push(progress),
        }
    }
    // Within a cut a log only grows.
    last.sort_unstable_by_key(|progress| (progress.key(), std::cmp::Reverse(progress.end)));
    last.dedup_by_key(|progress| progress.key());
    last
}
