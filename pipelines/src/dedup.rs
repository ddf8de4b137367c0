//! De-duplicates the keys of a batch: every key once, and for every value its place among them.
//!
//! One open-addressing table that is never cleared: each entry carries the number of the pass that wrote it, so a new
//! pass starts by counting up. The slots of a batch are passes of their own (their keys differ by construction), so
//! the table is as small as one column and stays in a core's own cache: 16 bytes × 2 per row.

/// A reusable table of the keys seen in this pass.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    entries: Vec<Entry>,
    shift: u32,
    pass: u32,
    /// Keys that this pass may still add before the table is too full.
    room: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: u64,
    pass: u32,
    place: u32,
}

impl Dedup {
    /// Forgets all keys and makes room for `keys` more.
    pub(crate) fn start(&mut self, keys: usize) {
        let size = (keys * 2).next_power_of_two().max(64);
        if self.entries.len() < size || self.pass == u32::MAX {
            self.entries.clear();
            self.entries.resize(size, Entry::default());
            self.pass = 0;
        }
        // A pass over few keys uses only the front of a table that was made for many: it stays in cache.
        self.shift = 64 - size.trailing_zeros();
        self.pass += 1;
        self.room = keys;
    }

    /// The place of `key` in `unique`, where it is put if this pass has not seen it.
    #[inline]
    pub(crate) fn place(&mut self, key: u64, unique: &mut Vec<u64>) -> u32 {
        let mask = (1_usize << (64 - self.shift)) - 1;
        // Fibonacci hashing: keys are hashes, but a user's own may not be.
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
        /// Against the obvious way, over several passes of one table.
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
        // Multiples of 2^57 differ in their high bits only, and the product moves them anywhere; equal low bits are
        // the worst case for a mask, so take those too.
        let keys: Vec<u64> = (0..500_u64).map(|i| i << 57 | i << 32).chain((0..500).map(|i| i << 40)).collect();
        let (mut dedup, mut unique) = (Dedup::default(), Vec::new());
        dedup.start(keys.len());
        let places: Vec<u32> = keys.iter().map(|&k| dedup.place(k, &mut unique)).collect();
        for (key, place) in keys.iter().zip(places) {
            assert_eq!(unique[place as usize], *key);
        }
    }
}
