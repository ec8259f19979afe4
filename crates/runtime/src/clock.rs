//! The seam to time.

use std::{future::Future, pin::Pin, time::Duration};

use tidelog_types::Timestamp;

/// Time as the system sees it. Durations come from the monotonic clock; the wall clock only stamps.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary start; never goes back.
    fn monotonic(&self) -> Duration;
    /// Wall-clock milliseconds since the Unix epoch; may jump.
    fn wall(&self) -> Timestamp;
    /// Completes after `duration` of the monotonic clock.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clocks of this machine.
///
/// The monotonic one is tokio's, so that a test on a paused runtime drives it; the wall clock is the system's.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: tokio::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the clock that the rest of the workspace is sent to"
    )]
    fn wall(&self) -> Timestamp {
        // A system whose clock stands before 1970 is stamped 1970.
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn monotonic_time_follows_a_paused_runtime() {
        let clock = SystemClock::new();
        assert_eq!(clock.monotonic(), Duration::ZERO);
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.monotonic(), Duration::from_secs(3600));
    }

    #[tokio::test]
    async fn the_wall_clock_is_past_the_day_this_was_written() {
        assert!(SystemClock::new().wall() > Timestamp::from_millis(1_700_000_000_000));
    }
}
