//! A value that many follow: tokio's `watch`, as far as it is used, whose waiters wake in the order in which they began to wait.
//!
//! Tokio spreads the waiters of one channel over eight lists by a random number of its own, so there the order of wake-ups is
//! chance that no seed decides.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::{sync::Notify, task::coop};

/// The lowest bit of the state: no sender is left.
const CLOSED: u64 = 1;

/// What the state grows by with each value.
const VERSION: u64 = 2;

struct Shared<T> {
    value: RwLock<T>,
    /// The version of the value, and [`CLOSED`]; changed with the value's lock held where the value changes.
    state: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Notify,
    /// The last receiver has gone.
    left: Notify,
}

/// The sender of a value, and the first receiver, which has seen it.
pub fn channel<T>(first: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(first);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// Changes the value. Clones change the same one.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Follows the value. Clones follow it on their own, from where this one is.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The state, without [`CLOSED`], of the value that was seen last.
    seen: u64,
}

/// The value now. It must be dropped soon: it keeps the sender from changing the value.
pub struct Ref<'a, T> {
    value: RwLockReadGuard<'a, T>,
}

/// No sender is left, and the last value was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody changes the value any more")]
pub struct Closed;

impl<T> Shared<T> {
    fn borrow(&self) -> Ref<'_, T> {
        Ref { value: self.value.read().unwrap_or_else(PoisonError::into_inner) }
    }

    fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    async fn changed(&self, seen: &mut u64) -> Result<(), Closed> {
        coop::cooperative(async {
            loop {
                // Made before the look: from then on it misses no change.
                let changed = self.changed.notified();
                let state = self.state();
                if state & !CLOSED != *seen {
                    *seen = state & !CLOSED;
                    return Ok(());
                }
                if state & CLOSED != 0 {
                    return Err(Closed);
                }
                changed.await;
            }
        })
        .await
    }
}

impl<T> Sender<T> {
    /// A value that nobody follows yet.
    #[must_use]
    pub fn new(first: T) -> Self {
        let shared = Shared {
            value: RwLock::new(first),
            state: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
            changed: Notify::new(),
            left: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Gives it another value, whether anybody follows or not; answers the one before.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|current| std::mem::swap(current, &mut value));
        value
    }

    /// Changes it in place.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        let mut current = self.shared.value.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut current);
        self.shared.state.fetch_add(VERSION, Ordering::Release);
        drop(current);
        self.shared.changed.notify_waiters();
    }

    /// The value now.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// A receiver that has seen the value of now.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { shared: Arc::clone(&self.shared), seen: self.shared.state() & !CLOSED }
    }

    /// How many receivers there are.
    #[must_use]
    pub fn receiver_count(&self) -> usize {
        self.shared.receivers.load(Ordering::Acquire)
    }

    /// Waits until there is no receiver.
    pub async fn closed(&self) {
        loop {
            // Made before the look: from then on it misses nobody who goes.
            let left = self.shared.left.notified();
            if self.receiver_count() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.state.fetch_or(CLOSED, Ordering::Release);
            self.shared.changed.notify_waiters();
        }
    }
}

impl<T> Receiver<T> {
    /// Whether no sender is left: the value is the last one.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.state() & CLOSED != 0
    }

    /// The value now; it does not count as seen.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// The value now, which counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.borrow();
        self.seen = self.shared.state() & !CLOSED;
        value
    }

    /// Waits for a value that was not seen yet; it counts as seen then. Cancel safe.
    ///
    /// # Errors
    /// No sender is left, and the last value was seen.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        self.shared.changed(&mut self.seen).await
    }

    /// Waits for a value of which `predicate` holds, that of now included; it counts as seen then.
    ///
    /// # Errors
    /// No sender is left, and `predicate` does not hold of the last value.
    pub async fn wait_for(&mut self, mut predicate: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let Self { shared, seen } = self;
        let shared: &Shared<T> = shared;
        let mut outcome = Ok(());
        loop {
            {
                let value = shared.borrow();
                *seen = shared.state() & !CLOSED;
                if predicate(&value) {
                    return Ok(value);
                }
            }
            outcome?;
            outcome = shared.changed(seen).await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.left.notify_waiters();
        }
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::poll;

    use super::*;
    use crate::Supervisor;

    #[tokio::test]
    async fn each_receiver_sees_the_newest_value_once() {
        let (sender, mut one) = channel(1);
        let mut other = one.clone();
        assert!(poll!(Box::pin(one.changed())).is_pending(), "the first value counts as seen");
        assert_eq!((sender.send_replace(2), sender.send_replace(3)), (1, 2));
        assert_eq!((one.changed().await, *one.borrow_and_update()), (Ok(()), 3));
        assert!(poll!(Box::pin(one.changed())).is_pending());
        assert_eq!(*other.borrow(), 3);
        assert_eq!(other.changed().await, Ok(()), "a look does not count as seen");
        let mut late = sender.subscribe();
        assert!(poll!(Box::pin(late.changed())).is_pending());
    }

    #[tokio::test]
    async fn the_last_value_is_seen_although_no_sender_is_left() {
        let (sender, mut receiver) = channel(1);
        let another = sender.clone();
        drop(sender);
        assert!(poll!(Box::pin(receiver.changed())).is_pending());
        another.send_replace(2);
        drop(another);
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!((*receiver.borrow(), receiver.is_closed()), (2, true));
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(receiver.wait_for(|value| *value == 2).await.map(|value| *value), Ok(2));
        assert_eq!(receiver.wait_for(|value| *value == 3).await.map(|value| *value), Err(Closed));
    }

    #[tokio::test]
    async fn who_waits_for_a_value_gets_that_one() {
        let (sender, mut receiver) = channel(1);
        let mut waiting = Box::pin(receiver.wait_for(|value| *value >= 3));
        assert!(poll!(&mut waiting).is_pending());
        sender.send_replace(2);
        assert!(poll!(&mut waiting).is_pending());
        sender.send_replace(5);
        assert_eq!(waiting.await.map(|value| *value), Ok(5));
        assert!(poll!(Box::pin(receiver.changed())).is_pending(), "it counts as seen");
    }

    #[tokio::test]
    async fn the_sender_learns_that_nobody_follows() {
        let (sender, first) = channel(());
        let second = first.clone();
        let mut closed = Box::pin(sender.closed());
        drop(first);
        assert!(poll!(&mut closed).is_pending());
        drop(second);
        closed.await;
        assert_eq!(sender.receiver_count(), 0);
        let _third = sender.subscribe();
        assert!(poll!(Box::pin(sender.closed())).is_pending());
    }

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_began_to_wait() {
        let supervisor = Supervisor::for_test();
        let (sender, receiver) = channel(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..50)
            .map(|number| {
                let (mut receiver, woken) = (receiver.clone(), Arc::clone(&woken));
                supervisor.spawn("waiter", async move {
                    receiver.changed().await.unwrap();
                    woken.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send_replace(1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..50).collect::<Vec<_>>());
    }
}
