//! The histograms that openraft keeps of itself, small.
//!
//! **Owns** the three types that openraft takes from the registry's crate of this name. That one builds tables for sixteen
//! resolutions at its first use, 27 MB that an idle node would hold for ever; openraft uses one resolution of them. This one
//! counts in eight buckets for each power of two and holds 2 KB, once something is recorded.
//!
//! **Does not own** anything that Tidelog measures: those metrics are `tidelog-runtime`'s.

use std::{fmt, marker::PhantomData};

/// Buckets for each power of two: a value is known to an eighth of its size.
const BUCKETS_PER_POWER: u64 = 8;
/// Bits of [`BUCKETS_PER_POWER`].
const BUCKET_BITS: u32 = BUCKETS_PER_POWER.trailing_zeros();

/// Counts of values by size. The parameter is there for openraft's sake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    /// By bucket, up to the largest one that was hit.
    counts: Vec<u64>,
    total: u64,
    of: PhantomData<T>,
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Histogram<T> {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Vec::new(), total: 0, of: PhantomData }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        let bucket = bucket_of(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
        self.total = self.total.saturating_add(count);
    }

    /// How many values were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lower bound of the bucket that holds the value at `permille` thousandths from below; 0 where there is none.
    fn at_permille(&self, permille: u64) -> u64 {
        let wanted = u128::from(self.total) * u128::from(permille);
        let mut seen = 0_u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count) * 1000;
            if *count > 0 && seen >= wanted {
                return lower_bound(bucket);
            }
        }
        0
    }

    /// Percentiles of everything that was counted.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total,
            p0_1: self.at_permille(1),
            p1: self.at_permille(10),
            p5: self.at_permille(50),
            p10: self.at_permille(100),
            p50: self.at_permille(500),
            p90: self.at_permille(900),
            p99: self.at_permille(990),
            p99_9: self.at_permille(999),
        }
    }
}

/// Small values have a bucket each; above, the highest bits after the first choose one of eight.
fn bucket_of(value: u64) -> usize {
    let bucket = if value < BUCKETS_PER_POWER {
        value
    } else {
        let power = value.ilog2() - BUCKET_BITS;
        u64::from(power + 1) * BUCKETS_PER_POWER + (value >> power) % BUCKETS_PER_POWER
    };
    usize::try_from(bucket).expect("there are fewer than 512 buckets")
}

fn lower_bound(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX);
    match (bucket / BUCKETS_PER_POWER).checked_sub(1) {
        None => bucket,
        Some(power) => (BUCKETS_PER_POWER + bucket % BUCKETS_PER_POWER) << power,
    }
}

/// Percentiles of a histogram: each the lower bound of its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentileStats {
    /// Values counted.
    pub samples: u64,
    /// The 0.1st percentile.
    pub p0_1: u64,
    /// The 1st percentile.
    pub p1: u64,
    /// The 5th percentile.
    pub p5: u64,
    /// The 10th percentile.
    pub p10: u64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, p10, p50, p90, p99, p99_9, .. } = self;
        write!(f, "n={samples} p10={p10} p50={p50} p90={p90} p99={p99} p99.9={p99_9}")
    }
}

/// Several histograms by name, a line each.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart {
    rows: Vec<(String, PercentileStats)>,
}

impl AsciiChart {
    /// A chart without rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "the interface that openraft calls")]
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.rows.push((name.to_owned(), histogram.percentile_stats()));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|(name, stats)| writeln!(f, "{name}: {stats}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_in_a_bucket_that_begins_at_most_an_eighth_below_it() {
        for value in (0..5_000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let below = lower_bound(bucket_of(value));
            assert!(below <= value && value - below <= value / 8, "{value} lies in the bucket of {below}");
        }
        assert_eq!(bucket_of(u64::MAX), 495);
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let mut histogram: Histogram = Histogram::new();
        assert_eq!(histogram.percentile_stats().p99, 0);
        for value in 1..=1000 {
            histogram.record(value);
        }
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p0_1, stats.p50, stats.p99_9), (1000, 1, 480, 960));
        assert_eq!(AsciiChart::new().add("x", histogram).to_string().lines().count(), 1);
    }
}
