//! Waiting for records: one waiter over many partitions.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tidelog_types::TopicPartition;
use tokio::sync::Notify;

use crate::partition::Partition;

/// Who waits, over as many partitions as it registers with. It is told which of them moved, so that only these are
/// looked at again.
#[derive(Debug, Default)]
pub struct Waiter {
    notify: Notify,
    moved: Mutex<BTreeSet<TopicPartition>>,
}

impl Waiter {
    /// A waiter that waits for nothing yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Waits until a partition moved, and takes all that did. Cancel safe: what was not taken is there at the next call.
    pub async fn moved(&self) -> BTreeSet<TopicPartition> {
        loop {
            let notified = self.notify.notified();
            let moved = std::mem::take(&mut *self.lock());
            if !moved.is_empty() {
                return moved;
            }
            notified.await;
        }
    }

    pub(crate) fn wake(&self, place: TopicPartition) {
        self.lock().insert(place);
        self.notify.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<TopicPartition>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a [`Waiter`] registered with one partition; dropping it ends that.
#[derive(Debug)]
#[must_use]
pub struct WakeRegistration {
    pub(crate) partition: Weak<Partition>,
    pub(crate) id: u64,
}

impl Drop for WakeRegistration {
    fn drop(&mut self) {
        if let Some(partition) = self.partition.upgrade() {
            partition.waiters().remove(self.id);
        }
    }
}

/// The waiters of one partition.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    next: u64,
    waiting: Vec<(u64, Arc<Waiter>)>,
}

impl Waiters {
    pub(crate) fn add(&mut self, waiter: Arc<Waiter>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.waiting.push((id, waiter));
        id
    }

    fn remove(&mut self, id: u64) {
        if let Some(at) = self.waiting.iter().position(|(known, _)| *known == id) {
            self.waiting.swap_remove(at);
        }
    }

    pub(crate) fn wake_all(&self, place: TopicPartition) {
        for (_, waiter) in &self.waiting {
            waiter.wake(place);
        }
    }
}
