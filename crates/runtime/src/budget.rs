//! Budgets of bytes: who may hold how much memory, in the order in which they asked.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_types::ByteSize;
use tokio::sync::oneshot;

/// An amount of bytes that its holders share. Clones are the same budget.
///
/// Requests are granted strictly in the order in which they came: a large one is not starved by small ones behind it.
/// A request larger than the whole is granted once nothing else is held, so that no request waits for ever.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    grant: oneshot::Sender<Permit>,
}

impl Budget {
    /// A budget of `capacity` bytes; the name is for people.
    #[must_use]
    pub fn new(name: &'static str, capacity: ByteSize) -> Self {
        Self { shared: Arc::new(Shared { name, capacity: capacity.get(), state: Mutex::default() }) }
    }

    /// Waits until `bytes` are free and nobody who asked before still waits, and takes them.
    ///
    /// The place in the queue is taken at the first poll. Cancel safe: a dropped future gives up its place, and gives
    /// back what was granted meanwhile.
    pub async fn acquire(&self, bytes: u64) -> Permit {
        let mut place = {
            let mut state = self.shared.lock();
            if state.waiting.is_empty() && self.shared.fits(&state, bytes) {
                return self.shared.take(&mut state, bytes);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(Waiting { bytes, grant });
            Place { granted, shared: &self.shared }
        };
        (&mut place.granted)
            .await
            .expect("a waiting request leaves the queue only when it is granted or was dropped")
    }

    /// Takes `bytes` if they are free now and nobody waits.
    pub fn try_acquire(&self, bytes: u64) -> Option<Permit> {
        let mut state = self.shared.lock();
        (state.waiting.is_empty() && self.shared.fits(&state, bytes))
            .then(|| self.shared.take(&mut state, bytes))
    }

    /// Takes `bytes` even where that exceeds the capacity, for what is in memory already. Those who acquire wait longer.
    pub fn charge(&self, bytes: u64) -> Permit {
        let mut state = self.shared.lock();
        self.shared.take(&mut state, bytes)
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.lock().used
    }

    /// Bytes that may be held in all.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shared.capacity
    }

    /// Bytes that are free now.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.used())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// Whether others wait for what is held, or will soon: less than an eighth is free.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        self.shared.is_scarce()
    }

    /// Requests that wait now, those included that were dropped and not yet noticed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({}: {} of {} bytes)", self.name(), self.used(), self.capacity())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.used == 0 || state.used.saturating_add(bytes) <= self.capacity
    }

    fn is_scarce(&self) -> bool {
        let state = self.lock();
        !state.waiting.is_empty() || state.used > self.capacity - self.capacity / 8
    }

    fn take(self: &Arc<Self>, state: &mut State, bytes: u64) -> Permit {
        state.used = state.used.checked_add(bytes).expect("the sum of what is held in memory fits u64");
        Permit { shared: Arc::clone(self), bytes }
    }

    /// Grants the oldest requests that fit now. Dropped requests leave the queue.
    fn grant_waiting(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            while state.waiting.front().is_some_and(|first| first.grant.is_closed()) {
                state.waiting.pop_front();
            }
            let Some(first) = state.waiting.front() else { return };
            if !self.fits(&state, first.bytes) {
                return;
            }
            let Some(first) = state.waiting.pop_front() else { return };
            let permit = self.take(&mut state, first.bytes);
            drop(state);
            if let Err(mut refused) = first.grant.send(permit) {
                // Dropped between the look and the grant: given back here and not by Drop, which would recurse.
                let bytes = std::mem::take(&mut refused.bytes);
                self.lock().used -= bytes;
            }
        }
    }

    fn release(self: &Arc<Self>, bytes: u64) {
        if bytes > 0 {
            let mut state = self.lock();
            state.used = state.used.checked_sub(bytes).expect("no more is released than was taken");
            let nobody_waits = state.waiting.is_empty();
            drop(state);
            if !nobody_waits {
                self.grant_waiting();
            }
        }
    }
}

/// A place in the queue. When it goes, those behind it may fit.
struct Place<'a> {
    granted: oneshot::Receiver<Permit>,
    shared: &'a Arc<Shared>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.granted.close();
        // A permit that was sent and not received goes back with the channel; a place that was never granted may have
        // been the large one at the front for which everybody else waits.
        drop(self.granted.try_recv());
        self.shared.grant_waiting();
    }
}

/// Bytes taken from a [`Budget`], given back on drop.
#[must_use = "a dropped permit gives its bytes back at once"]
pub struct Permit {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Permit {
    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether others wait for what is held of its budget, or will soon.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        self.shared.is_scarce()
    }

    /// Moves `bytes` of these into a permit of their own.
    ///
    /// # Panics
    /// Where more is asked for than is held.
    pub fn split(&mut self, bytes: u64) -> Permit {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes are split from {} in budget {}",
            self.bytes,
            self.shared.name
        );
        self.bytes -= bytes;
        Permit { shared: Arc::clone(&self.shared), bytes }
    }

    /// Adds the bytes of another permit of the same budget.
    ///
    /// # Panics
    /// Where `other` is of another budget.
    pub fn merge(&mut self, mut other: Permit) {
        assert!(
            Arc::ptr_eq(&self.shared, &other.shared),
            "permits of {} and {} are not one budget's",
            self.shared.name,
            other.shared.name
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Holds `bytes` from now on, even where that exceeds the capacity: what is counted is in memory already.
    pub fn resize_to(&mut self, bytes: u64) {
        if bytes <= self.bytes {
            return self.shrink_to(bytes);
        }
        let more = self.shared.take(&mut self.shared.lock(), bytes - self.bytes);
        self.merge(more);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({}: {} bytes)", self.shared.name, self.bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.release(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests;
