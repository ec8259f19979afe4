//! What a connection has in work, which its two halves and its handlers look at.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidelog_wire::ApiKey;
use tokio::sync::Notify;

/// Requests between their first bytes and their answer's last.
#[derive(Debug, Default)]
pub(crate) struct InWork {
    all: AtomicUsize,
    barriers: AtomicUsize,
    /// Requests other than Fetch, from their first bytes on.
    hurried: AtomicUsize,
    changed: Notify,
}

/// What is counted of a request until its answer is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    /// It runs alone.
    pub barrier: bool,
    /// It is no Fetch.
    pub hurried: bool,
}

impl InWork {
    /// The first bytes of a request are here. Answers whether a Fetch in work must make way for it.
    ///
    /// A Fetch does not: a client that keeps several of them under way on one connection would else have all of them
    /// answered at once and empty, over and over.
    pub(crate) fn announce(&self, api: i16) -> bool {
        let hurried = api != ApiKey::Fetch.key();
        if hurried {
            self.hurried.fetch_add(1, Ordering::AcqRel);
            self.changed.notify_waiters();
        }
        hurried
    }

    /// A request is here whole.
    pub(crate) fn begin(&self, counted: Counted) {
        self.all.fetch_add(1, Ordering::AcqRel);
        self.barriers.fetch_add(usize::from(counted.barrier), Ordering::AcqRel);
    }

    /// Its answer is sent.
    pub(crate) fn end(&self, counted: Counted) {
        self.all.fetch_sub(1, Ordering::AcqRel);
        self.barriers.fetch_sub(usize::from(counted.barrier), Ordering::AcqRel);
        self.hurried.fetch_sub(usize::from(counted.hurried), Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// Whether any request is in work: then the connection is not idle.
    pub(crate) fn any(&self) -> bool {
        self.all.load(Ordering::Acquire) > 0
    }

    /// Whether a request that runs alone is queued or running.
    pub(crate) fn any_barrier(&self) -> bool {
        self.barriers.load(Ordering::Acquire) > 0
    }

    /// Waits until no request that runs alone is queued or running.
    pub(crate) async fn barriers_gone(&self) {
        self.until(|| !self.any_barrier()).await;
    }

    /// For a Fetch in work: waits until a request of another kind came behind it.
    pub(crate) async fn hurried(&self) {
        self.until(|| self.hurried.load(Ordering::Acquire) > 0).await;
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // A place in the queue before the look: what changes between the two is not missed.
            changed.as_mut().enable();
            if holds() {
                return;
            }
            changed.await;
        }
    }
}
