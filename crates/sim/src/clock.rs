//! A wall clock that a test moves.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tidelog_runtime::Clock;
use tidelog_types::Timestamp;
use tokio::time::Instant;

use crate::Trace;

/// Where the wall clock of every simulation starts: 2026-01-01T00:00:00Z.
const WALL_START_MS: i64 = 1_767_225_600_000;

/// Time on a paused tokio runtime: the monotonic clock is the runtime's, the wall clock follows it and can be moved.
/// Clones are the same clock.
#[derive(Debug, Clone)]
pub struct SimClock {
    start: Instant,
    skew_ms: Arc<AtomicI64>,
    trace: Option<Trace>,
}

impl SimClock {
    /// A clock that starts now at 2026-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), skew_ms: Arc::default(), trace: None }
    }

    /// Another machine's clock: equal monotonic time, a wall clock of its own.
    #[must_use]
    pub fn other(&self) -> Self {
        let skew_ms = Arc::new(AtomicI64::new(self.skew_ms.load(Ordering::Relaxed)));
        Self { start: self.start, skew_ms, trace: self.trace.clone() }
    }

    /// The same clock, whose sleeps are part of a trace.
    #[must_use]
    pub fn traced(&self, trace: Trace) -> Self {
        Self { trace: Some(trace), ..self.clone() }
    }

    /// Moves the wall clock forward, or back where `milliseconds` is negative. Monotonic time is not affected.
    pub fn jump_ms(&self, milliseconds: i64) {
        self.skew_ms.fetch_add(milliseconds, Ordering::Relaxed);
    }
}

impl Default for SimClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let elapsed = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX);
        let wall = WALL_START_MS.saturating_add(elapsed).saturating_add(self.skew_ms.load(Ordering::Relaxed));
        Timestamp::from_millis(u64::try_from(wall).unwrap_or(0))
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let sleep = tokio::time::sleep(duration);
        let Some(trace) = self.trace.clone() else { return Box::pin(sleep) };
        trace.note(format_args!("sleep for {duration:?}"));
        Box::pin(async move {
            sleep.await;
            trace.note(format_args!("slept for {duration:?}"));
        })
    }
}
