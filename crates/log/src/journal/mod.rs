//! The journal: one sequential file of everything that all partitions append.
//!
//! **Owns** the queue of what waits for a round ([`Queue`]), the files ([`files::Files`]), the task that writes and syncs
//! rounds ([`committer`]) and the play of what a stop left ([`play`]). **Does not own** any partition's state: it reports
//! ends, and partitions move their offsets.
//!
//! One write serves all that waits when it starts, one sync all that was written before it starts; while a sync runs
//! the next round is written.

pub(crate) mod committer;
mod encode;
pub(crate) mod files;
pub(crate) mod play;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidelog_types::{Offset, limits::BATCH_HEADER_BYTES};
use tokio::sync::Notify;

use crate::partition::Partition;

/// One batch on its way to the journal.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Its sequence in the partition's tail.
    pub(crate) sequence: u64,
    /// Beside the tail's own: one that is shared needs a reference count on the heap.
    pub(crate) header: [u8; BATCH_HEADER_BYTES],
    pub(crate) body: Bytes,
}

/// What an entry says.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "appends are what there is many of")]
pub(crate) enum Request {
    Append(Piece),
    Truncate(Offset),
    Reset(Offset),
    LogStart(Offset),
    LocalLogStart(Offset),
    Delete,
}

/// One partition's entry, waiting for a round.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) partition: Arc<Partition>,
    /// The partition's count of truncations when it was made.
    pub(crate) cut: u64,
    /// The partition's log end once this entry is there.
    pub(crate) end: Offset,
    pub(crate) request: Request,
}

impl Entry {
    /// Its size in the journal, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.request {
            Request::Append(piece) => (piece.header.len() + piece.body.len() + ENTRY_BYTES) as u64,
            _ => ENTRY_BYTES as u64,
        }
    }
}

/// An entry without its batch, rounded up.
const ENTRY_BYTES: usize = 128;

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<Entry>,
    /// Their size in the journal, roughly.
    bytes: u64,
    /// Entries pushed since the start: the ticket of the newest.
    pushed: u64,
}

/// Entries that wait for a round, in order. Tickets count them from 1.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// The committer waits on it.
    pub(crate) wake: Notify,
    /// Whoever waits for a ticket waits on it.
    progress: Notify,
    urgent: AtomicU64,
    synced: AtomicU64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. Its bound is the tail's budget, which the caller has looked at.
    pub(crate) fn push(&self, entry: Entry) -> u64 {
        let ticket = {
            let mut waiting = self.lock();
            waiting.bytes = waiting.bytes.saturating_add(entry.bytes());
            waiting.entries.push_back(entry);
            waiting.pushed += 1;
            waiting.pushed
        };
        self.wake.notify_one();
        ticket
    }

    /// Bytes that wait for a round, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Everything pushed so far is to be synced at once.
    pub(crate) fn request_sync(&self) {
        let pushed = self.lock().pushed;
        if pushed > self.synced.load(Ordering::Acquire)
            && self.urgent.fetch_max(pushed, Ordering::AcqRel) < pushed
        {
            self.wake.notify_one();
        }
    }

    /// The newest ticket that somebody waits for.
    pub(crate) fn urgent(&self) -> u64 {
        self.urgent.load(Ordering::Acquire)
    }

    /// Takes entries for one round into `taken`, which is empty. Answers the ticket of the last of them.
    fn take(&self, bytes_max: u64, taken: &mut Vec<Entry>) -> u64 {
        let mut waiting = self.lock();
        let mut bytes = 0_u64;
        while let Some(entry) = waiting.entries.front() {
            bytes = bytes.saturating_add(entry.bytes());
            if !taken.is_empty() && bytes > bytes_max {
                break;
            }
            if let Some(entry) = waiting.entries.pop_front() {
                waiting.bytes = waiting.bytes.saturating_sub(entry.bytes());
                taken.push(entry);
            }
        }
        waiting.pushed - waiting.entries.len() as u64
    }

    fn note_synced(&self, ticket: u64) {
        self.synced.fetch_max(ticket, Ordering::AcqRel);
        self.progress.notify_waiters();
    }

    /// Wakes whoever waits for a ticket: the log failed.
    pub(crate) fn note_failed(&self) {
        self.progress.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits until the entry of `ticket` is durable, or until `failed` says that it never will be.
    pub(crate) async fn wait_synced<E>(
        &self,
        ticket: u64,
        failed: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        self.urgent.fetch_max(ticket, Ordering::AcqRel);
        self.wake.notify_one();
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if self.synced.load(Ordering::Acquire) >= ticket {
                return Ok(());
            }
            failed()?;
            progress.await;
        }
    }

    /// The ticket of the newest entry.
    pub(crate) fn newest(&self) -> u64 {
        self.lock().pushed
    }
}
