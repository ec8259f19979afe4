//! How much of a round may be large entries while others wait for syncs of little.
//!
//! Whoever writes as fast as it goes fills every round, and each sync takes as long as the device needs for all of that: who writes
//! a little with acks=all would wait for two such syncs. So while somebody does, large entries have a share of what a sync covers
//! that at most doubles its time, with a little beside: a device that takes long for any sync gives a large share, and a device
//! whose syncs take as long as what they write a small one. Where nobody writes little, or nobody waits, there is no bound.

use std::time::Duration;

/// The least share: about one batch of the largest usual size.
const SHARE_MIN: u64 = 1024 * 1024;

/// What the share grows by after a sync that was in time. It is halved after one that was not.
const SHARE_STEP: u64 = 128 * 1024;

/// What a sync may take beyond twice the fastest one.
const SLACK: Duration = Duration::from_millis(1);

/// How long somebody who waited for little is remembered: he comes again.
const REMEMBERED: Duration = Duration::from_millis(250);

/// For how long the fastest sync counts, at least.
const FASTEST_WINDOW: Duration = Duration::from_secs(10);

/// The share of large entries, and what it follows from.
#[derive(Debug)]
pub(super) struct Pace {
    share: u64,
    share_max: u64,
    /// When somebody waited for a sync of little.
    waited: Option<Duration>,
    /// The fastest sync of this window and of the one before.
    fastest: (Duration, Duration),
    window_begun: Duration,
}

impl Pace {
    pub(super) fn new(share_max: u64) -> Self {
        Self {
            share: share_max,
            share_max,
            waited: None,
            fastest: (Duration::MAX, Duration::MAX),
            window_begun: Duration::ZERO,
        }
    }

    /// Somebody waits for a sync of little.
    pub(super) fn note_wait(&mut self, now: Duration) {
        self.waited = Some(now);
    }

    /// What a sync may cover of large entries; `None` where there is no bound.
    pub(super) fn share(&self, now: Duration) -> Option<u64> {
        self.waited.filter(|waited| now.saturating_sub(*waited) < REMEMBERED).map(|_| self.share)
    }

    /// A sync took so long, and covered large entries or not.
    pub(super) fn note_sync(&mut self, now: Duration, took: Duration, large: bool) {
        if now.saturating_sub(self.window_begun) >= FASTEST_WINDOW {
            self.fastest = (Duration::MAX, self.fastest.0);
            self.window_begun = now;
        }
        self.fastest.0 = self.fastest.0.min(took);
        if !large {
            return;
        }
        let fastest = self.fastest.0.min(self.fastest.1);
        let share = if took > fastest.saturating_mul(2).saturating_add(SLACK) {
            (self.share / 2).max(SHARE_MIN)
        } else {
            self.share.saturating_add(SHARE_STEP)
        };
        self.share = share.min(self.share_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn large_entries_have_no_bound_where_nobody_waits_for_little() {
        let mut pace = Pace::new(4 * MIB);
        pace.note_sync(at(0), at(1), false);
        pace.note_sync(at(10), at(80), true);
        assert_eq!(pace.share(at(10)), None);
        pace.note_wait(at(20));
        assert_eq!(pace.share(at(200)), Some(2 * MIB));
        assert_eq!(pace.share(at(270)), None, "he does not come again");
    }

    #[test]
    fn the_share_follows_what_syncs_take() {
        let mut pace = Pace::new(4 * MIB);
        pace.note_wait(at(0));
        for _ in 0..5 {
            pace.note_sync(at(1), at(2), false);
            pace.note_sync(at(2), at(6), true);
        }
        assert_eq!(pace.share(at(3)), Some(MIB), "no less than a batch");
        for _ in 0..8 {
            pace.note_sync(at(3), at(5), true);
        }
        assert_eq!(pace.share(at(3)), Some(2 * MIB), "twice the fastest, and a millisecond");
        pace.note_sync(at(4), at(90), false);
        assert_eq!(pace.share(at(4)), Some(2 * MIB), "that was not theirs");
        // A device that is slow whatever is written: what was fast once is forgotten.
        for second in 1..60 {
            pace.note_sync(at(1000 * second), at(30), true);
        }
        pace.note_wait(at(60_000));
        assert_eq!(pace.share(at(60_000)), Some(4 * MIB));
    }
}
