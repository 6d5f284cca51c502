//! The dice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of pseudo-random numbers that several threads may share. Not for secrets.
///
/// Numbers follow SplitMix64 (Steele, Lea, Flood 2014): one atomic addition a number, so sharing needs no lock.
#[derive(Clone, Debug)]
pub struct Random {
    // Relaxed: each number depends on its own addition only.
    state: Arc<AtomicU64>,
}

/// The odd constant of SplitMix64: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// A source that starts somewhere else each time.
    pub fn from_entropy() -> Random {
        Random::seeded(fastrand::u64(..))
    }

    /// A source that repeats itself for the same seed (when one thread asks).
    pub fn seeded(seed: u64) -> Random {
        Random { state: Arc::new(AtomicU64::new(seed)) }
    }

    /// The next number, any of the 2^64.
    pub fn next_u64(&self) -> u64 {
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u32) -> u32 {
        // The high half of a 32 by 32 bit product: no division, and a bias below 2^-32.
        let high = u64::from((self.next_u64() >> 32) as u32);
        ((high * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        for _ in 0..100 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
    }

    #[test]
    fn below_stays_below_and_reaches_every_number() {
        let random = Random::seeded(1);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }
}
