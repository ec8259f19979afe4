//! The pace of cold requests: how many bytes may be asked for, so that the present does not suffer.
//!
//! **Owns** whose turn it is under the rate that [`GiveWay`] sets, and the measurements that it is set by. **Does not own**
//! memory or the number of requests.

use std::{
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tidelog_core::give_way::{GiveWay, GiveWayLimits, Measured};
use tidelog_runtime::{Clock, metrics::Histogram};

use super::metrics::ColdMetrics;

/// How often the present is looked at while cold reads run.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Signals of the present: rounds of the journal, and whole produces.
const SIGNALS: usize = 2;

/// Rounds of a fast disk take a millisecond: four of them are no strain that anybody notices. The least rate is one request
/// of sixteen units in four seconds.
const LIMITS: GiveWayLimits =
    GiveWayLimits { calm: Duration::from_millis(20), strained_factor: 4, rate_min: 4 * 1024 * 1024 };

struct State {
    way: GiveWay<SIGNALS>,
    /// When the next request may begin.
    next: Duration,
    looked: Duration,
    /// Counts and sums of the signals at the last look.
    seen: [(u64, f64); SIGNALS],
    bytes: u64,
}

/// See the module.
pub(crate) struct Pace {
    state: Mutex<State>,
    signals: OnceLock<[Histogram; SIGNALS]>,
    metrics: ColdMetrics,
}

impl Pace {
    pub(crate) fn new(metrics: ColdMetrics) -> Self {
        let state = State {
            way: GiveWay::new(LIMITS),
            next: Duration::ZERO,
            looked: Duration::ZERO,
            seen: [(0, 0.0); SIGNALS],
            bytes: 0,
        };
        Self { state: Mutex::new(state), signals: OnceLock::new(), metrics }
    }

    /// Tells the signals; without any, nothing is paced. Only the first call counts.
    pub(crate) fn watch(&self, signals: [Histogram; SIGNALS]) -> bool {
        self.signals.set(signals).is_ok()
    }

    /// Bytes per second that may be asked for; 0: no limit.
    pub(crate) fn rate(&self) -> u64 {
        self.lock().way.rate().unwrap_or(0)
    }

    /// Waits for the turn of a request.
    pub(crate) async fn turn(&self, clock: &dyn Clock, bytes: u64) {
        let now = clock.monotonic();
        let at = self.lock().take(now, bytes);
        if at > now {
            self.metrics.paced.inc();
            clock.sleep(at - now).await;
        }
    }

    /// Takes a turn if it is now.
    pub(crate) fn try_turn(&self, now: Duration, bytes: u64) -> bool {
        let mut state = self.lock();
        let is_free = state.next <= now;
        if is_free {
            state.take(now, bytes);
        }
        is_free
    }

    /// Looks at the present, and sets the rate by it.
    pub(crate) fn look(&self, now: Duration) {
        let Some(signals) = self.signals.get() else { return };
        let mut state = self.lock();
        let seen = signals.each_ref().map(|signal| (signal.count(), signal.sum()));
        let mut latency = [None; SIGNALS];
        for ((latency, seen), before) in latency.iter_mut().zip(seen).zip(state.seen) {
            *latency = mean(seen, before);
        }
        let interval = now.saturating_sub(state.looked);
        // After a rest: what happened meanwhile happened without cold reads.
        let cold_bytes = if interval > LOOK_INTERVAL * 8 { 0 } else { state.bytes };
        (state.seen, state.bytes, state.looked) = (seen, 0, now);
        let before = state.way.strained_looks();
        let rate = state.way.look(&Measured { latency, cold_bytes, interval });
        self.metrics.rate_limit.set(rate.unwrap_or(0));
        self.metrics.gave_way.add(state.way.strained_looks() - before);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// When a request of `bytes` may begin; those after it come later by the time that it takes.
    fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        self.bytes = self.bytes.saturating_add(bytes);
        let at = self.next.max(now);
        self.next = match self.way.rate() {
            Some(rate) => {
                let micros = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
                at.saturating_add(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
            }
            None => now,
        };
        if self.way.rate().is_some() { at } else { now }
    }
}

/// The mean of what came since.
fn mean(seen: (u64, f64), before: (u64, f64)) -> Option<Duration> {
    let count = u32::try_from(seen.0.saturating_sub(before.0)).ok().filter(|count| *count > 0)?;
    Duration::try_from_secs_f64((seen.1 - before.1).max(0.0) / f64::from(count)).ok()
}

#[cfg(test)]
mod tests {
    use tidelog_runtime::Registry;

    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    // R10
    #[test]
    fn requests_are_spaced_once_produces_slow_down_and_free_again_afterwards() {
        let registry = Registry::new();
        let pace = Pace::new(ColdMetrics::new(&registry));
        let signals = [registry.histogram("rounds", "doc"), registry.histogram("produces", "doc")];
        assert!(pace.watch(signals.clone()));
        signals[0].observe(0.002);
        pace.look(at(60_000));
        assert!(pace.try_turn(at(60_000), 10 * MIB) && pace.try_turn(at(60_000), 10 * MIB), "free");
        signals[0].observe(0.2);
        pace.look(at(60_250));
        assert_eq!(pace.rate(), 40 * MIB, "half of 20 MiB in a quarter of a second");
        assert!(pace.try_turn(at(60_250), 10 * MIB));
        assert!(!pace.try_turn(at(60_300), MIB), "250 ms are taken");
        assert_eq!(pace.lock().take(at(60_300), MIB), at(60_500));
        signals[0].observe(0.002);
        pace.look(at(60_500));
        assert_eq!(pace.rate(), 50 * MIB);
        pace.look(at(60_750));
        assert_eq!(pace.rate(), 0);
        assert!(pace.try_turn(at(60_750), MIB));
    }
}
