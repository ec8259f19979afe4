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
