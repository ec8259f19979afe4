//! How much of a folder's work runs at once, and whose turn a key is.
//!
//! A file system that hangs keeps its threads: what blocks there cannot be cancelled, only left alone. **Owns** that this takes
//! no more than a part of the threads that producers and readers need, too, and that a put is not begun beside an earlier one
//! of the same key. Whatever waits here waits as a future: it holds no thread, and what it brought goes with it.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::{Either, select};
use object_store::path::Path;
use tidelog_runtime::BLOCKING_THREADS_MAX;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::http::Exchange;

/// Puts and deletions at once. More would only share the device.
pub(crate) const WRITES_AT_ONCE: usize = 3;

/// Reads and looks at once: enough for a device to have a queue.
pub(crate) const READS_AT_ONCE: usize = 4;

/// Listings at once. They are long, so that nothing else waits behind one.
pub(crate) const LISTINGS_AT_ONCE: usize = 1;

/// The other half is for producers and readers of what is no folder's.
const _: () = assert!(WRITES_AT_ONCE + READS_AT_ONCE + LISTINGS_AT_ONCE <= BLOCKING_THREADS_MAX / 2);

/// See the module. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct FolderRoom {
    writes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    listings: Arc<Semaphore>,
    turns: Arc<Turns>,
    /// Told whenever bytes move.
    moved: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Turns {
    taken: Mutex<BTreeSet<Path>>,
    ended: Notify,
}

impl Turns {
    fn taken(&self) -> MutexGuard<'_, BTreeSet<Path>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it is held, no other put of its key begins.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    key: Path,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.key);
        self.turns.ended.notify_waiters();
    }
}

impl FolderRoom {
    pub(crate) fn new() -> Self {
        let room = |count| Arc::new(Semaphore::new(count));
        Self {
            writes: room(WRITES_AT_ONCE),
            reads: room(READS_AT_ONCE),
            listings: room(LISTINGS_AT_ONCE),
            turns: Arc::default(),
            moved: Arc::default(),
        }
    }

    /// Bytes moved: who waits for room waits for a folder that is slow, not for one that hangs.
    pub(crate) fn note_moved(&self, exchange: &Exchange, bytes: usize) {
        exchange.note_moved(bytes);
        self.moved.notify_waiters();
    }

    pub(crate) async fn write(&self, exchange: &Exchange) -> Option<OwnedSemaphorePermit> {
        self.take(&self.writes, exchange).await
    }

    pub(crate) async fn read(&self, exchange: &Exchange) -> Option<OwnedSemaphorePermit> {
        self.take(&self.reads, exchange).await
    }

    pub(crate) async fn listing(&self) -> Option<OwnedSemaphorePermit> {
        self.take(&self.listings, &Exchange::new()).await
    }

    /// Never none: the semaphores are never closed.
    async fn take(&self, room: &Arc<Semaphore>, exchange: &Exchange) -> Option<OwnedSemaphorePermit> {
        self.while_others_move(exchange, Arc::clone(room).acquire_owned()).await.ok()
    }

    /// Waits until no put of a key runs, and takes its turn.
    pub(crate) async fn turn(&self, key: &Path, exchange: &Exchange) -> Turn {
        let taken = self.until_free(|taken| taken.insert(key.clone()));
        self.while_others_move(exchange, taken).await;
        Turn { turns: Arc::clone(&self.turns), key: key.clone() }
    }

    /// Waits until no put of a key runs: before its end nobody knows whether what is seen of it is durable.
    pub(crate) async fn no_turn(&self, key: &Path, exchange: &Exchange) {
        let free = self.until_free(|taken| !taken.contains(key));
        self.while_others_move(exchange, free).await;
    }

    async fn until_free(&self, is_free: impl Fn(&mut BTreeSet<Path>) -> bool) {
        loop {
            // Before the look: an end behind it is not missed.
            let ended = self.turns.ended.notified();
            if is_free(&mut self.turns.taken()) {
                return;
            }
            ended.await;
        }
    }

    /// A try that waits is no more silent than those that it waits for.
    async fn while_others_move<T>(&self, exchange: &Exchange, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        loop {
            match select(wait.as_mut(), pin!(self.moved.notified())).await {
                Either::Left((done, _)) => return done,
                Either::Right(_) => exchange.note_moved(1),
            }
        }
    }
}
