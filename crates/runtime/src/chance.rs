//! The seam to chance: random numbers and unique ids.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A source of random numbers.
pub trait Rng: Send + Sync + 'static {
    /// A number drawn evenly from all of `u64`.
    fn next_u64(&self) -> u64;

    /// A number in `0..bound`; zero where `bound` is zero.
    fn below(&self, bound: u64) -> u64 {
        // The high word of a 128-bit product: the bias is below 2^-32 for every bound in use, and there is no loop.
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// Whether an event of probability `numerator / denominator` happens.
    fn chance(&self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}

/// A source of ids that are unique without coordination.
pub trait IdGen: Send + Sync + 'static {
    /// A version 4 UUID in network byte order.
    fn uuid(&self) -> [u8; 16];
}

/// Random numbers from the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        let filled = rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        });
        // The kernel documents that requests of at most 256 bytes are served whole once it has booted.
        assert_eq!(filled, Ok(bytes.len()), "the kernel's random numbers are served");
        u64::from_ne_bytes(bytes)
    }
}

/// Random numbers that a seed determines (SplitMix64). Clones share one sequence.
#[derive(Debug, Clone)]
pub struct SeededRng {
    state: Arc<AtomicU64>,
}

impl SeededRng {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(AtomicU64::new(seed)) }
    }

    /// A sequence of its own, whose seed is this one's next number.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.next_u64())
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Version 4 UUIDs from random numbers.
#[derive(Clone)]
pub struct RandomIds {
    rng: Arc<dyn Rng>,
}

impl RandomIds {
    /// Ids from the numbers of `rng`.
    #[must_use]
    pub fn new(rng: Arc<dyn Rng>) -> Self {
        Self { rng }
    }
}

impl IdGen for RandomIds {
    fn uuid(&self) -> [u8; 16] {
        let mut id = [0u8; 16];
        id[..8].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        id[8..].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        id[6] = (id[6] & 0x0f) | 0x40;
        id[8] = (id[8] & 0x3f) | 0x80;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence() {
        let (one, other) = (SeededRng::new(0), SeededRng::new(0));
        let drawn: Vec<u64> = (0..3).map(|_| one.next_u64()).collect();
        // The reference implementation's first numbers for seed 0.
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(drawn, (0..3).map(|_| other.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_below_a_bound_stay_below_it_and_reach_all_of_it() {
        let rng = SeededRng::new(7);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[usize::try_from(rng.below(5)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        assert!(rng.chance(1, 1) && !rng.chance(0, 1));
    }

    #[test]
    fn ids_are_version_four_and_differ() {
        let ids = RandomIds::new(Arc::new(SystemRng));
        let (one, other) = (ids.uuid(), ids.uuid());
        assert_ne!(one, other);
        for id in [one, other] {
            assert_eq!((id[6] >> 4, id[8] >> 6), (4, 2));
        }
    }
}
