//! How long to wait before the next attempt.

use std::time::Duration;

use crate::Rng;

/// The bounds of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// The longest wait ever.
    pub max: Duration,
}

impl Default for BackoffConfig {
    /// 100 ms to 10 s: short enough to go unseen after one lost answer, long enough to spare a store that throttles.
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

/// Waits that double with every failure, each drawn from the upper half of its bound, so that those who failed
/// together do not come back together.
///
/// Pure: it neither sleeps nor gives up; the caller owns the deadline.
#[derive(Debug, Clone)]
pub struct Backoff {
    config: BackoffConfig,
    attempts: u32,
}

impl Backoff {
    /// No failure yet.
    #[must_use]
    pub fn new(config: BackoffConfig) -> Self {
        Self { config, attempts: 0 }
    }

    /// Counts a failure; returns how long to wait after it.
    pub fn next_delay(&mut self, rng: &dyn Rng) -> Duration {
        let doubled = 1u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(1);
        let bound = self.config.first.saturating_mul(doubled).min(self.config.max);
        let half = bound / 2;
        let half_nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        bound - half + Duration::from_nanos(rng.below(half_nanos.saturating_add(1)))
    }

    /// Failures since the last [`Backoff::reset`].
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Forgets every failure, after a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRng;

    #[test]
    fn waits_double_up_to_the_bound_and_are_jittered_in_the_upper_half() {
        let config = BackoffConfig { first: Duration::from_millis(100), max: Duration::from_secs(1) };
        let rng = SeededRng::new(1);
        for _ in 0..100 {
            let mut backoff = Backoff::new(config);
            for bound in [100, 200, 400, 800, 1000, 1000, 1000].map(Duration::from_millis) {
                let delay = backoff.next_delay(&rng);
                assert!(bound / 2 <= delay && delay <= bound, "{delay:?} is in the upper half of {bound:?}");
            }
            assert_eq!(backoff.attempts(), 7);
            backoff.reset();
            assert!(backoff.next_delay(&rng) <= config.first);
        }
    }

    #[test]
    fn thousands_of_failures_do_not_overflow() {
        let mut backoff = Backoff::new(BackoffConfig { first: Duration::from_secs(1), max: Duration::MAX });
        for _ in 0..5_000 {
            backoff.next_delay(&SeededRng::new(2));
        }
        assert_eq!(backoff.attempts(), 5_000);
    }
}
