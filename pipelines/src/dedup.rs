//! De-duplicates the keys of a batch: lists every key once, and maps every value to its index in that list.
//!
//! It is an open-addressing table. Each entry has the number of the pass that wrote it, so a new pass needs no clearing. Each
//! key space of a batch is one pass (keys of different spaces differ), so the table holds the keys of few columns and stays in
//! the L2 cache: 32 bytes per value.

/// A reusable table of the keys seen in this pass.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    entries: Vec<Entry>,
    shift: u32,
    pass: u32,
    /// Keys that this pass may still add.
    room: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: u64,
    pass: u32,
    place: u32,
}

impl Dedup {
    /// Starts a pass of up to `keys` keys.
    pub(crate) fn start(&mut self, keys: usize) {
        let size = (keys * 2).next_power_of_two().max(64);
        if self.entries.len() < size || self.pass == u32::MAX {
            self.entries.clear();
            self.entries.resize(size, Entry::default());
            self.pass = 0;
        }
        // A pass over few keys uses only the front of a large table, which stays in the cache.
        self.shift = 64 - size.trailing_zeros();
        self.pass += 1;
        self.room = keys;
    }

    /// The index of `key` in `unique`. Appends the key if it is new in this pass.
    #[inline]
    pub(crate) fn place(&mut self, key: u64, unique: &mut Vec<u64>) -> u32 {
        let mask = (1_usize << (64 - self.shift)) - 1;
        // Fibonacci hashing, because the keys of a custom stage may not be hashes.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        loop {
            let entry = &mut self.entries[at & mask];
            if entry.pass != self.pass {
                debug_assert!(self.room > 0, "more keys than `start` was told of");
                self.room = self.room.saturating_sub(1);
                let place = unique.len() as u32;
                *entry = Entry { key, pass: self.pass, place };
                unique.push(key);
                return place;
            }
            if entry.key == key {
                return entry.place;
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(passes in prop::collection::vec(prop::collection::vec(0_u64..40, 0..200), 1..5)) {
            let mut dedup = Dedup::default();
            for keys in passes {
                let (mut unique, mut expected) = (Vec::new(), Vec::new());
                dedup.start(keys.len());
                for &key in &keys {
                    let place = dedup.place(key, &mut unique);
                    let slow = expected.iter().position(|&k| k == key).unwrap_or_else(|| {
                        expected.push(key);
                        expected.len() - 1
                    });
                    prop_assert_eq!(place as usize, slow);
                }
                prop_assert_eq!(&unique, &expected);
            }
        }
    }

    #[test]
    fn keys_that_share_their_first_place_stay_apart() {
        // Keys that differ only in their high bits would collide in a table that masks the low bits.
        let keys: Vec<u64> = (0..500_u64).map(|i| i << 57 | i << 32).chain((0..500).map(|i| i << 40)).collect();
        let (mut dedup, mut unique) = (Dedup::default(), Vec::new());
        dedup.start(keys.len());
        let places: Vec<u32> = keys.iter().map(|&k| dedup.place(k, &mut unique)).collect();
        for (key, place) in keys.iter().zip(places) {
            assert_eq!(unique[place as usize], *key);
        }
    }
}
