//! How fast cold reads may go while the present suffers.
//!
//! **Owns** the rate: free while produces are as fast as they are at rest, halved at each look while they are not, and let
//! grow again afterwards. **Does not own** the measurements, or what waits for the rate.
//!
//! A look compares the mean latency since the last one with what is usual, for each signal apart (a journal's rounds and
//! whole requests differ). What giving way to the least rate does not mend is not the cold reads' fault, and is taken for
//! usual in time.

use std::time::Duration;

/// The bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GiveWayLimits {
    /// Latency below this is never strain, whatever is usual.
    pub calm: Duration,
    /// Latency above the usual times this is strain.
    pub strained_factor: u32,
    /// The least rate in bytes per second: cold readers always get on.
    pub rate_min: u64,
}

/// What was measured since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured<const SIGNALS: usize> {
    /// Mean latency by signal; `None` where nothing happened.
    pub latency: [Option<Duration>; SIGNALS],
    /// Bytes that cold reads asked for.
    pub cold_bytes: u64,
    /// How long that took.
    pub interval: Duration,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveWay<const SIGNALS: usize> {
    limits: GiveWayLimits,
    usual: [Option<Duration>; SIGNALS],
    rate: Option<u64>,
    strained_looks: u64,
}

impl<const SIGNALS: usize> GiveWay<SIGNALS> {
    /// Free, and nothing is known to be usual.
    #[must_use]
    pub const fn new(limits: GiveWayLimits) -> Self {
        Self { limits, usual: [None; SIGNALS], rate: None, strained_looks: 0 }
    }

    /// Bytes per second that cold reads may ask for; `None`: as many as they like.
    #[must_use]
    pub const fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Looks at which the present was strained while cold reads ran.
    #[must_use]
    pub const fn strained_looks(&self) -> u64 {
        self.strained_looks
    }

    /// Takes what was measured, and answers the rate from now on.
    pub fn look(&mut self, measured: &Measured<SIGNALS>) -> Option<u64> {
        let moved = per_second(measured.cold_bytes, measured.interval);
        let is_strained = self.is_strained(measured);
        let at_least = self.rate == Some(self.limits.rate_min);
        self.learn(measured, moved > 0, at_least);
        if is_strained && moved > 0 {
            self.strained_looks += 1;
            let now = self.rate.map_or(moved, |rate| rate.min(moved));
            self.rate = Some((now / 2).max(self.limits.rate_min));
        } else if !is_strained && let Some(rate) = self.rate {
            let grown = rate.saturating_add(rate / 4);
            // A rate that nobody comes near any more is no limit.
            self.rate = (moved >= rate / 4).then_some(grown);
        }
        self.rate
    }

    fn is_strained(&self, measured: &Measured<SIGNALS>) -> bool {
        self.usual.iter().zip(measured.latency).any(|(usual, latency)| {
            let bound = usual.unwrap_or_default().saturating_mul(self.limits.strained_factor);
            latency.is_some_and(|latency| latency > bound.max(self.limits.calm))
        })
    }

    /// The usual falls at once, since nothing makes latency too low, and rises only where cold reads are not the cause.
    fn learn(&mut self, measured: &Measured<SIGNALS>, cold_reads: bool, at_least: bool) {
        for (usual, latency) in self.usual.iter_mut().zip(measured.latency) {
            let Some(latency) = latency else { continue };
            *usual = Some(match *usual {
                None if cold_reads => latency.min(self.limits.calm),
                None => latency,
                Some(usual) if latency < usual => (usual.saturating_mul(3) + latency) / 4,
                Some(usual) if !cold_reads || at_least => (usual.saturating_mul(15) + latency) / 16,
                Some(usual) => usual,
            });
        }
    }
}

fn per_second(bytes: u64, interval: Duration) -> u64 {
    let micros = interval.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;
    const LIMITS: GiveWayLimits =
        GiveWayLimits { calm: Duration::from_millis(10), strained_factor: 4, rate_min: 4 * MIB };

    fn look(way: &mut GiveWay<1>, latency_ms: Option<u64>, mib_per_second: u64) -> Option<u64> {
        way.look(&Measured {
            latency: [latency_ms.map(Duration::from_millis)],
            cold_bytes: mib_per_second * MIB / 4,
            interval: Duration::from_millis(250),
        })
    }

    #[test]
    fn cold_reads_are_free_while_produces_are_as_fast_as_usual() {
        let mut way = GiveWay::new(LIMITS);
        assert_eq!(look(&mut way, Some(5), 0), None);
        for _ in 0..10 {
            assert_eq!(look(&mut way, Some(20), 400), None, "four times the usual is not above it");
        }
        assert_eq!(look(&mut way, None, 400), None, "nobody produces");
        assert_eq!(way.strained_looks(), 0);
    }

    #[test]
    fn strain_halves_what_cold_reads_move_down_to_the_least_and_calm_lets_it_grow() {
        let mut way = GiveWay::new(LIMITS);
        look(&mut way, Some(5), 0);
        assert_eq!(look(&mut way, Some(100), 400), Some(200 * MIB));
        assert_eq!(look(&mut way, Some(100), 200), Some(100 * MIB));
        assert_eq!(look(&mut way, Some(100), 60), Some(30 * MIB), "of what really moves");
        for _ in 0..4 {
            look(&mut way, Some(100), 30);
        }
        assert_eq!(way.rate(), Some(4 * MIB));
        assert_eq!(look(&mut way, Some(5), 4), Some(5 * MIB));
        assert_eq!(look(&mut way, None, 5), Some(5 * MIB + 5 * MIB / 4));
        assert_eq!(look(&mut way, Some(5), 0), None, "nobody is near the limit");
    }

    #[test]
    fn strain_without_cold_reads_is_not_theirs() {
        let mut way = GiveWay::new(LIMITS);
        look(&mut way, Some(5), 0);
        assert_eq!(look(&mut way, Some(500), 0), None);
        assert_eq!(way.strained_looks(), 0);
    }

    #[test]
    fn a_usual_that_was_never_seen_at_rest_is_not_learned_from_strain() {
        let mut way = GiveWay::new(LIMITS);
        assert_eq!(look(&mut way, Some(200), 400), Some(200 * MIB));
        assert_eq!(look(&mut way, Some(200), 200), Some(100 * MIB), "the first look taught nothing");
    }

    #[test]
    fn what_giving_way_does_not_mend_becomes_usual() {
        let mut way = GiveWay::new(LIMITS);
        look(&mut way, Some(5), 0);
        let looks = (0..200).find(|_| look(&mut way, Some(60), 4) > Some(4 * MIB));
        assert!(looks.is_some_and(|looks| looks > 1), "{looks:?}");
    }
}
