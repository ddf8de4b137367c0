//! From a feature value to a key: 64 bits, the full space, no buckets.
//!
//! Integers are mixed by a bijection, so two integers of one slot never share a key. Strings, and equal integers of
//! two slots, meet with the chance of two random 64-bit numbers: with a billion keys, 3%, that any two do.

use forebay_base::{mix64, unmix64};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::simd::{Kernel, dispatch};

/// Hashes the values of one slot; slots of different name give different keys for equal values.
///
/// ```
/// let city = forebay_ps::SlotHasher::new("city", 7);
/// assert_eq!(city.bytes(b"Basel"), city.bytes(b"Basel"));
/// assert_ne!(city.int(1), city.int(2));
/// assert_ne!(city.missing(), city.bytes(b""));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHasher {
    seed: u64,
    missing: u64,
}

impl SlotHasher {
    /// A hasher for the slot of this name; `seed` is the job's, the same for every slot.
    pub fn new(slot: &str, seed: u64) -> Self {
        let seed = xxh3_64_with_seed(slot.as_bytes(), mix64(seed));
        Self { seed, missing: mix64(seed ^ 0x6d69_7373_696e_6721) }
    }

    /// The key of an integer: a bijection of all 64-bit integers.
    #[inline(always)]
    pub fn int(&self, value: i64) -> u64 {
        mix64(value as u64 ^ self.seed)
    }

    /// The only integer that has this key: undoes [`int`](Self::int).
    #[inline(always)]
    pub fn integer(&self, key: u64) -> i64 {
        (unmix64(key) ^ self.seed) as i64
    }

    /// The keys of integers of any width: [`int`](Self::int) of each, with the widest vectors that the CPU has.
    pub fn ints<T: Copy>(&self, values: &[T], integer: impl Fn(T) -> i64) -> Vec<u64> {
        self.ints_or_missing(values, std::iter::repeat(u64::MAX), integer)
    }

    /// As [`ints`](Self::ints), but the values without their bit in `present` are missing. Each word of `present` has the bits of 64
    /// values, the first value in the lowest bit.
    pub fn ints_or_missing<T: Copy>(
        &self,
        values: &[T],
        present: impl Iterator<Item = u64>,
        integer: impl Fn(T) -> i64,
    ) -> Vec<u64> {
        let mut keys = Vec::with_capacity(values.len());
        dispatch(Ints { hasher: self, values, present, integer, keys: &mut keys });
        keys
    }

    /// The key of a string of bytes (XXH3, seeded by the slot).
    #[inline]
    pub fn bytes(&self, value: &[u8]) -> u64 {
        xxh3_64_with_seed(value, self.seed)
    }

    /// The key of a missing value: a feature of its own.
    ///
    /// It is one of the 2^64 keys, so exactly one integer (an arbitrary, huge one) shares it.
    #[inline(always)]
    pub fn missing(&self) -> u64 {
        self.missing
    }
}

struct Ints<'a, T, P, F> {
    hasher: &'a SlotHasher,
    values: &'a [T],
    present: P,
    integer: F,
    keys: &'a mut Vec<u64>,
}

impl<T: Copy, P: Iterator<Item = u64>, F: Fn(T) -> i64> Kernel for Ints<'_, T, P, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // A block of a length that is known when compiling becomes vectors; appending it costs less than zeroing all keys first.
        let mut block = [0; 64];
        for (values, present) in self.values.chunks(block.len()).zip(self.present) {
            for (i, (key, &value)) in block.iter_mut().zip(values).enumerate() {
                let hash = self.hasher.int((self.integer)(value));
                *key = if present >> i & 1 == 1 { hash } else { self.hasher.missing };
            }
            self.keys.extend_from_slice(&block[..values.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn int_can_be_undone(value: i64, seed: u64) {
            let slot = SlotHasher::new("C1", seed);
            prop_assert_eq!(slot.integer(slot.int(value)), value);
            prop_assert_eq!(slot.int(slot.integer(value as u64)), value as u64);
        }

        #[test]
        fn many_integers_have_the_keys_of_each(values in prop::collection::vec(any::<i32>(), 0..200), seed: u64) {
            let slot = SlotHasher::new("C1", seed);
            let each: Vec<u64> = values.iter().map(|&value| slot.int(i64::from(value))).collect();
            prop_assert_eq!(slot.ints(&values, i64::from), each);
        }

        #[test]
        fn missing_integers_have_the_key_of_a_missing_value(
            values in prop::collection::vec((any::<u32>(), any::<bool>()), 0..200), seed: u64,
        ) {
            let slot = SlotHasher::new("C1", seed);
            let key = |&(value, present)| if present { slot.int(i64::from(value)) } else { slot.missing() };
            let each: Vec<u64> = values.iter().map(key).collect();
            let word = |values: &[(u32, bool)]| values.iter().rev().fold(0, |word, (_, bit)| word << 1 | u64::from(*bit));
            let present: Vec<u64> = values.chunks(64).map(word).collect();
            let values: Vec<u32> = values.iter().map(|&(value, _)| value).collect();
            prop_assert_eq!(slot.ints_or_missing(&values, present.into_iter(), i64::from), each);
        }
    }

    #[test]
    fn slots_seeds_and_kinds_are_apart() {
        let (a, b, c) = (SlotHasher::new("C1", 1), SlotHasher::new("C2", 1), SlotHasher::new("C1", 2));
        let all = [a.int(5), b.int(5), c.int(5), a.bytes(b"5"), b.bytes(b"5"), c.bytes(b"5")];
        let also = [a.missing(), b.missing(), c.missing(), a.bytes(b""), a.int(0), a.int(-1)];
        let keys: std::collections::HashSet<u64> = all.into_iter().chain(also).collect();
        assert_eq!(keys.len(), 12);
    }

    #[test]
    fn keys_stay_what_they_are() {
        // A model folder written today must be readable tomorrow: these numbers may never change.
        let slot = SlotHasher::new("C1", 0);
        assert_eq!([slot.int(42), slot.bytes(b"68fd1e64"), slot.missing()], KEYS);
    }

    const KEYS: [u64; 3] = [0x3255_9de3_e16b_e36a, 0xbb7b_4148_340a_c23e, 0xaea2_767d_f179_7ec1];
}
