//! Random numbers by SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
//!
//! A seed determines every number, so a run can be repeated and resumed.

use std::hash::{BuildHasher, RandomState};

/// The step of a SplitMix64 stream: 2^64 divided by the golden ratio, made odd.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Stafford's variant 13): a bijection under which every input bit reaches every output bit.
#[inline(always)]
pub const fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Undoes [`mix64`].
pub const fn unmix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

/// A stream of 64-bit words.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of `seed`. The streams of two seeds that are a multiple of [`GOLDEN_GAMMA`] apart overlap: pass
    /// a seed with a counter in it through [`mix64`] first.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next word.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix64(self.0)
    }

    /// Word `n`, from 0, of the stream of `seed`, without the words before it.
    #[inline(always)]
    pub const fn word(seed: u64, n: u64) -> u64 {
        mix64(seed.wrapping_add(n.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }

    /// A number in `0..n`, by multiply-shift instead of a remainder. Its bias is below `n / 2^64`. `n` is above 0.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// Shuffles `items`: every order is equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// The numbers `0..n`, shuffled.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }
}

/// A word as a number in [0, 1), from its 53 high bits.
#[inline]
pub const fn unit_f64(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// A word as a number in [-1, 1), from its 24 high bits: every step of an `f32` in that range is equally likely.
#[inline]
pub const fn signed_unit_f32(word: u64) -> f32 {
    (word >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}

/// A word that differs from call to call and from process to process. It is not for secrets.
pub fn random_seed() -> u64 {
    // The standard library seeds its hashers from the operating system.
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first words of seed 1234567, as the reference implementation prints them (Vigna, splitmix64.c).
    #[test]
    fn the_stream_is_that_of_the_reference() {
        let mut stream = SplitMix64::new(1_234_567);
        let words = [(); 5].map(|()| stream.next_u64());
        assert_eq!(words, [0, 1, 2, 3, 4].map(|n| SplitMix64::word(1_234_567, n)));
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(words, reference);
    }

    proptest! {
        #[test]
        fn mix64_is_a_bijection(z: u64) {
            prop_assert_eq!(unmix64(mix64(z)), z);
        }

        #[test]
        fn a_permutation_has_every_number_once(seed: u64, n in 0_u32..300) {
            let mut order = SplitMix64::new(seed).permutation(n);
            order.sort_unstable();
            prop_assert_eq!(order, (0..n).collect::<Vec<_>>());
        }

        /// Stored jobs read their rows in this order: it must not change.
        #[test]
        fn a_permutation_is_the_shuffle_that_jobs_have_used(seed: u64, n in 0_u32..300) {
            let (mut state, mut order): (u64, Vec<u32>) = (seed, (0..n).collect());
            for i in (1..order.len()).rev() {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let j = ((u128::from(mix64(state)) * (i as u128 + 1)) >> 64) as usize;
                order.swap(i, j);
            }
            prop_assert_eq!(SplitMix64::new(seed).permutation(n), order);
        }

        #[test]
        fn numbers_stay_in_their_ranges(word: u64, n in 1_u64..) {
            prop_assert!((0.0..1.0).contains(&unit_f64(word)));
            prop_assert!((-1.0..1.0).contains(&signed_unit_f32(word)));
            prop_assert!(SplitMix64::new(word).below(n) < n);
        }
    }

    #[test]
    fn every_order_of_three_is_equally_likely() {
        let mut counts = [[0_u32; 3]; 3];
        let mut stream = SplitMix64::new(7);
        for _ in 0..3000 {
            for (place, item) in stream.permutation(3).into_iter().enumerate() {
                counts[place][item as usize] += 1;
            }
        }
        assert!(counts.iter().flatten().all(|n| (900..1100).contains(n)), "{counts:?}");
    }

    #[test]
    fn random_seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
