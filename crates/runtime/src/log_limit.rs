//! Lines of the log, counted by reason: what outsiders can cause must not fill the disk.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::clock::Clock;

/// The length of a window.
const WINDOW: Duration = Duration::from_secs(60);

/// Lets a number of lines a minute pass for each reason, and counts the others. Clones share the counts.
///
/// ```text
/// if let Some(suppressed) = limit.pass("request refused") {
///     tracing::warn!(suppressed, peer, "request refused");
/// }
/// ```
///
/// A window begins with its first line. Reasons are names in the code, never text from outside, so their number is
/// bounded.
#[derive(Clone)]
pub struct LogLimit {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    lines_per_minute: u32,
    windows: Mutex<BTreeMap<&'static str, Window>>,
}

struct Window {
    begun: Duration,
    passed: u32,
    suppressed: u64,
}

impl LogLimit {
    /// At most `lines_per_minute` lines a minute pass for each reason.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, lines_per_minute: u32) -> Self {
        Self { shared: Arc::new(Shared { clock, lines_per_minute, windows: Mutex::default() }) }
    }

    /// Whether a line for `reason` may be written now. `Some` carries how many were suppressed since the last one that
    /// passed, which belongs into this one.
    #[must_use]
    pub fn pass(&self, reason: &'static str) -> Option<u64> {
        let now = self.shared.clock.monotonic();
        let mut windows = self.lock();
        let window = windows.entry(reason).or_insert(Window { begun: now, passed: 0, suppressed: 0 });
        if now.saturating_sub(window.begun) >= WINDOW {
            (window.begun, window.passed) = (now, 0);
        }
        if window.passed >= self.shared.lines_per_minute {
            window.suppressed = window.suppressed.saturating_add(1);
            return None;
        }
        window.passed += 1;
        Some(std::mem::take(&mut window.suppressed))
    }

    /// What was suppressed in windows that are over and that no later line told, by reason; told by this call. For a
    /// periodic task, so that the end of a flood is not lost.
    #[must_use]
    pub fn take_suppressed(&self) -> Vec<(&'static str, u64)> {
        let now = self.shared.clock.monotonic();
        let mut windows = self.lock();
        let over = |window: &Window| now.saturating_sub(window.begun) >= WINDOW;
        let told = windows.iter_mut().filter(|(_, window)| over(window) && window.suppressed > 0);
        told.map(|(reason, window)| (*reason, std::mem::take(&mut window.suppressed))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Window>> {
        self.shared.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LogLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogLimit({} lines a minute for each reason)", self.shared.lines_per_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test(start_paused = true)]
    async fn a_flood_passes_its_share_and_is_counted() {
        let limit = LogLimit::new(Arc::new(SystemClock::new()), 3);
        let passed: Vec<_> = (0..10).filter_map(|_| limit.pass("flood")).collect();
        assert_eq!(passed, [0, 0, 0]);
        assert_eq!(limit.pass("another reason"), Some(0), "reasons do not share a window");
        tokio::time::advance(WINDOW - Duration::from_millis(1)).await;
        assert_eq!(limit.pass("flood"), None, "the window is not over");
        assert_eq!(limit.take_suppressed(), [], "a later line may still tell it");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(limit.pass("flood"), Some(8));
        assert_eq!(limit.pass("flood"), Some(0), "told once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_flood_is_told_once() {
        let limit = LogLimit::new(Arc::new(SystemClock::new()), 1);
        for _ in 0..5 {
            let _ = limit.pass("flood");
        }
        assert_eq!(limit.pass("quiet"), Some(0));
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.take_suppressed(), [("flood", 4)]);
        assert_eq!(limit.take_suppressed(), []);
        assert_eq!(limit.pass("flood"), Some(0));
    }
}
