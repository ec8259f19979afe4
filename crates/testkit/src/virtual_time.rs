//! Virtual time for code that waits by [`Clock`] alone: no runtime, no thread, no waiting.
//!
//! **Owns** a clock that stands still while anything can run, and jumps to the next deadline when nothing can. Wall time
//! begins in November 2023 and follows. **Does not** drive tokio's timers or IO.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidelog_runtime::Clock;
use tidelog_types::Timestamp;

/// Milliseconds since 1970 at which virtual wall time begins.
const WALL_START_MS: u64 = 1_700_000_000_000;

#[derive(Default)]
struct Time {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    timers_made: u64,
}

/// A clock of virtual time. Clones are the same clock.
#[derive(Clone, Default)]
pub struct VirtualClock {
    time: Arc<Mutex<Time>>,
}

impl VirtualClock {
    /// A clock at its start.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a future to its end, jumping over every wait.
    ///
    /// # Panics
    /// Where it waits for something that no timer and nobody else will bring about.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            if woken.0.swap(false, Ordering::AcqRel) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return output;
                }
            } else {
                assert!(self.jump(), "the future waits, and there is no timer that would wake it");
            }
        }
    }

    /// Moves time on, without running anything.
    pub fn advance(&self, by: Duration) {
        let due: Vec<Waker> = {
            let mut time = self.lock();
            time.now = time.now.saturating_add(by);
            let after_now = (time.now.saturating_add(Duration::from_nanos(1)), 0);
            let later = time.timers.split_off(&after_now);
            std::mem::replace(&mut time.timers, later).into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Jumps to the next timer; returns whether there was one.
    fn jump(&self) -> bool {
        let next = self.lock().timers.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = next else { return false };
        let now = self.lock().now;
        self.advance(at.saturating_sub(now));
        true
    }

    fn lock(&self) -> MutexGuard<'_, Time> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        self.lock().now
    }

    fn wall(&self) -> Timestamp {
        let since = u64::try_from(self.lock().now.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(WALL_START_MS.saturating_add(since))
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let until = self.lock().now.saturating_add(duration);
        Box::pin(Sleep { clock: self.clone(), until, timer: None })
    }
}

struct Sleep {
    clock: VirtualClock,
    until: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut time = clock.lock();
        if time.now >= self.until {
            return Poll::Ready(());
        }
        let until = self.until;
        let timer = *self.timer.get_or_insert_with(|| {
            time.timers_made += 1;
            (until, time.timers_made)
        });
        time.timers.insert(timer, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.clock.lock().timers.remove(&timer);
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_jumped_over_in_order() {
        let clock = VirtualClock::new();
        let order = Mutex::new(Vec::new());
        let wait = |name: &'static str, seconds: u64| {
            let (clock, order) = (clock.clone(), &order);
            async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                order.lock().unwrap().push((name, clock.monotonic().as_secs()));
            }
        };
        clock.run(futures::future::join3(wait("c", 30), wait("a", 10), wait("b", 20)));
        assert_eq!(*order.lock().unwrap(), [("a", 10), ("b", 20), ("c", 30)]);
        assert_eq!(clock.wall().as_millis(), 1_700_000_030_000);
    }

    #[test]
    #[should_panic(expected = "no timer that would wake it")]
    fn a_wait_for_nothing_is_found() {
        VirtualClock::new().run(std::future::pending::<()>());
    }
}
