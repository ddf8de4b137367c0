//! An estimate of the number of different keys, from a sample: adaptive sampling (Wegman; Flajolet, Computing 43, 1990).
//!
//! A sample of level `l` has every key that came whose hash begins with `l` zero bits. When the sample is full, `l` rises by one, which
//! drops half of the keys. So about `2^l` times as many keys came; at level 0 the count is exact. The sample does not depend on the order
//! of the keys, so samples of several processes can be merged. Most keys are hashes; one multiplication hashes the keys of a custom stage.

use forebay_base::GOLDEN_GAMMA;

/// A sample of the keys that came.
#[derive(Clone, Debug)]
pub struct KeySample {
    /// The most keys that are kept: a power of two.
    most: usize,
    level: u32,
    /// Open addressing over twice as many places as keys; 0 is free.
    places: Vec<u64>,
    kept: usize,
}

fn hash(key: u64) -> u64 {
    key.wrapping_mul(GOLDEN_GAMMA)
}

impl KeySample {
    /// An empty sample of at most this many keys, rounded down to a power of two.
    pub fn new(most: usize) -> Self {
        let most = 1 << most.max(1).ilog2();
        Self { most, level: 0, places: vec![0; 2 * most], kept: 0 }
    }

    /// Adds keys. The key 0, which no hash is likely to be, is left out.
    pub fn add(&mut self, keys: &[u64]) {
        let mut limit = self.limit();
        for &key in keys {
            if hash(key) <= limit && self.insert(key) && self.kept > self.most {
                self.rise();
                limit = self.limit();
            }
        }
    }

    /// The largest hash of this level.
    fn limit(&self) -> u64 {
        u64::MAX >> self.level
    }

    /// Adds a key whose hash is of the level. Returns whether it is new.
    fn insert(&mut self, key: u64) -> bool {
        let mask = self.places.len() - 1;
        // The place comes from the bits after the leading zeros.
        let mut at = ((hash(key) << self.level) >> (64 - self.places.len().ilog2())) as usize;
        loop {
            match &mut self.places[at & mask] {
                known if *known == key => return false,
                free @ 0 => {
                    *free = key;
                    self.kept += 1;
                    return true;
                }
                _ => at += 1,
            }
        }
    }

    /// Raises the level until the sample holds at most `most` keys.
    fn rise(&mut self) {
        while self.kept > self.most && self.level < 63 {
            self.rise_to(self.level + 1);
        }
    }

    fn rise_to(&mut self, level: u32) {
        let keys = self.keys();
        (self.level, self.kept) = (level, 0);
        self.places.fill(0);
        let limit = self.limit();
        keys.into_iter().filter(|&key| hash(key) <= limit).for_each(|key| {
            self.insert(key);
        });
    }

    /// The leading zero bits of a hash that put a key into the sample. 0: the sample has all keys.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// The keys of the sample, in no order.
    pub fn keys(&self) -> Vec<u64> {
        self.places.iter().copied().filter(|&key| key != 0).collect()
    }

    /// Adds a sample of another process, which has this level. Keys that do not belong to the sample are left out.
    pub fn merge(&mut self, level: u32, keys: &[u64]) {
        if level.min(63) > self.level {
            self.rise_to(level.min(63));
        }
        self.add(keys);
    }

    /// About how many keys came for `kept` keys of the sample.
    pub fn stands_for(&self, kept: usize) -> u64 {
        (kept as u64) << self.level
    }

    /// About how many different keys came.
    pub fn count(&self) -> u64 {
        self.stands_for(self.kept)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_base::mix64;
    use proptest::prelude::*;

    use super::*;

    fn sorted(sample: &KeySample) -> BTreeSet<u64> {
        sample.keys().into_iter().collect()
    }

    proptest! {
        #[test]
        fn the_order_of_keys_and_the_cut_into_samples_do_not_matter(
            keys in prop::collection::vec(1u64..3000, 0..4000), cut in 0usize..4000, most in 1usize..300,
        ) {
            let keys: Vec<u64> = keys.into_iter().map(mix64).collect();
            let (mut whole, mut left, mut right) = (KeySample::new(most), KeySample::new(most), KeySample::new(most));
            whole.add(&keys);
            let (front, back) = keys.split_at(cut.min(keys.len()));
            left.add(front);
            back.iter().rev().for_each(|key| right.add(&[*key]));
            left.merge(right.level(), &right.keys());
            prop_assert_eq!((left.level(), sorted(&left)), (whole.level(), sorted(&whole)));
            let different: BTreeSet<u64> = keys.into_iter().collect();
            let of_level = different.iter().copied().filter(|key| hash(*key) <= whole.limit());
            prop_assert_eq!(sorted(&whole), of_level.collect::<BTreeSet<u64>>());
            prop_assert!(sorted(&whole).len() <= most);
            if whole.level() == 0 {
                prop_assert_eq!(whole.count(), different.len() as u64);
            }
        }

        #[test]
        fn what_another_process_sends_does_no_harm(level: u32, keys in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut sample = KeySample::new(8);
            sample.add(&[1, 2, 3]);
            sample.merge(level, &keys);
            prop_assert!(sample.keys().len() <= 8);
        }
    }

    #[test]
    fn the_count_is_near_for_many_keys() {
        for different in [1_000u64, 30_000, 1_000_000] {
            let mut sample = KeySample::new(512);
            for key in 0..different {
                sample.add(&[mix64(key + 1)]);
            }
            let error = sample.count() as f64 / different as f64 - 1.0;
            assert!(error.abs() < 0.15, "{different} keys: {}", sample.count());
        }
    }
}
