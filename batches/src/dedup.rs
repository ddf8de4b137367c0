//! De-duplicates the keys of a batch: lists every key once, and maps every value to its index in that list.
//!
//! The table uses open addressing. Each entry has the number of the pass that wrote it, so a new pass needs no clearing. Each key space of
//! a batch is one pass (keys of different spaces differ), so the table holds the keys of few columns and stays in the L2 cache: 32 bytes
//! per value at most, and 8 of lists.

use std::hint::select_unpredictable;

use forebay_base::GOLDEN_GAMMA;

/// Values that are de-duplicated in the same way.
const BLOCK: usize = 256;

/// Entries of a table, 256 KiB. The table is larger only if there are more than half as many keys.
const FEW: usize = 1 << 16;

/// A reusable table of the keys seen in this pass.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    /// The place of its key in `firsts`, in the lower bits, and the pass that wrote it. One more than the table has: see
    /// [`Pass::add_varied`].
    entries: Vec<u32>,
    /// The keys of this pass, each once, in the order of first occurrence. One more place than keys.
    firsts: Vec<u64>,
    /// Bits of a place in an entry.
    place_bits: u32,
    pass: u32,
}

/// A pass over the keys of one key space of one batch.
pub(crate) struct Pass<'a> {
    entries: &'a mut [u32],
    firsts: &'a mut [u64],
    shift: u32,
    /// The number of the pass as it is in entries, above the place.
    pass: u32,
    /// The largest place that an entry can have.
    last_place: u32,
    base: u32,
    count: usize,
    /// Whether few keys of the last block were new.
    repetitive: bool,
}

impl Dedup {
    /// Starts a pass of up to `keys` keys. The first new key gets the index `base`.
    pub(crate) fn start(&mut self, keys: usize, base: usize) -> Pass<'_> {
        let size = (keys * 8).min(FEW).max(keys * 2).next_power_of_two().max(64);
        let place_bits = (usize::BITS - keys.leading_zeros()).max(self.place_bits);
        // Entries of an earlier pass must not look like entries of this one.
        if self.entries.len() <= size || self.place_bits < place_bits || self.pass == u32::MAX >> place_bits {
            let size = self.entries.len().max(size + 1);
            self.entries.clear();
            self.entries.resize(size, 0);
            (self.place_bits, self.pass) = (place_bits, 0);
        }
        if self.firsts.len() <= keys {
            self.firsts.resize(keys + 1, 0);
        }
        self.pass += 1;
        Pass {
            // A pass over few keys uses only the front of a large table, which stays in the cache.
            entries: &mut self.entries[..=size],
            firsts: &mut self.firsts[..=keys],
            shift: 64 - size.trailing_zeros(),
            pass: self.pass << place_bits,
            last_place: (1 << place_bits) - 1,
            base: base as u32,
            count: 0,
            repetitive: false,
        }
    }
}

impl Pass<'_> {
    /// Appends the index of each key to `places`. Panics if there are more keys than [`Dedup::start`] was called with.
    pub(crate) fn add(&mut self, keys: &[u64], places: &mut Vec<u32>) {
        self.repetitive = in_blocks(keys, self.repetitive, |block, repetitive| {
            let before = self.count;
            match repetitive {
                true => self.add_repetitive(block, places),
                false => self.add_varied(block, places),
            }
            self.count - before
        });
    }

    /// For keys that are mostly known: a branch, which is predicted well, tests whether a key is new.
    fn add_repetitive(&mut self, keys: &[u64], places: &mut Vec<u32>) {
        let (entries, firsts, last_place) = (&mut *self.entries, &mut *self.firsts, self.last_place);
        let (shift, pass, base) = (self.shift, self.pass, self.base);
        let (mask, mut count) = (entries.len() - 2, self.count);
        places.extend(keys.iter().map(|&key| {
            let mut at = first_place(key, shift, mask);
            loop {
                let place = entries[at] ^ pass;
                if place > last_place {
                    entries[at] = pass | count as u32;
                    firsts[count] = key;
                    count += 1;
                    return base + (count - 1) as u32;
                }
                if firsts[place as usize] == key {
                    return base + place;
                }
                at = (at + 1) & mask;
            }
        }));
        self.count = count;
    }

    /// For batches in which any key may be new: no branch depends on whether a key is new. A key that is not new writes the last entry,
    /// which no key reads, and a key that is new equals itself at the next place of `firsts`.
    fn add_varied(&mut self, keys: &[u64], places: &mut Vec<u32>) {
        let (entries, firsts, last_place) = (&mut *self.entries, &mut *self.firsts, self.last_place);
        let (shift, pass, base) = (self.shift, self.pass, self.base);
        let (mask, mut count) = (entries.len() - 2, self.count);
        places.extend(keys.iter().map(|&key| {
            let mut at = first_place(key, shift, mask);
            firsts[count] = key;
            loop {
                let place = entries[at] ^ pass;
                let new = place > last_place;
                let place = select_unpredictable(new, count, place as usize);
                if firsts[place] == key {
                    entries[select_unpredictable(new, at, mask + 1)] = pass | place as u32;
                    count += usize::from(new);
                    return base + place as u32;
                }
                at = (at + 1) & mask;
            }
        }));
        self.count = count;
    }

    /// The index of a key of this pass.
    pub(crate) fn place_of(&self, key: u64) -> Option<u32> {
        let mask = self.entries.len() - 2;
        let mut at = first_place(key, self.shift, mask);
        loop {
            let place = self.entries[at] ^ self.pass;
            if place > self.last_place {
                return None;
            }
            if self.firsts[place as usize] == key {
                return Some(self.base + place);
            }
            at = (at + 1) & mask;
        }
    }

    /// The keys of this pass, each once, in the order of first occurrence.
    pub(crate) fn firsts(&self) -> &[u64] {
        &self.firsts[..self.count]
    }
}

/// Calls `add` with each block of `values`, and with whether few values of the previous block were new; `add` returns the number of new
/// values. `repetitive` is for the first block; the result is for the block after the last.
#[inline(always)]
pub(crate) fn in_blocks<T>(values: &[T], repetitive: bool, mut add: impl FnMut(&[T], bool) -> usize) -> bool {
    values.chunks(BLOCK).fold(repetitive, |repetitive, block| add(block, repetitive) * 16 < block.len())
}

/// Fibonacci hashing, because the keys of a custom stage may not be hashes.
fn first_place(key: u64, shift: u32, mask: usize) -> usize {
    (key.wrapping_mul(GOLDEN_GAMMA) >> shift) as usize & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Some with few different keys, so that both ways of adding a block run.
    fn keys() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![prop::collection::vec(0_u64..9, 0..900), prop::collection::vec(0_u64..400, 0..900)]
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            passes in prop::collection::vec(keys(), 1..5), cut in 0_usize..900,
        ) {
            let mut dedup = Dedup::default();
            for keys in passes {
                let (mut places, mut expected, mut slow) = (Vec::new(), Vec::new(), Vec::new());
                let mut pass = dedup.start(keys.len(), 100);
                let cut = cut.min(keys.len());
                pass.add(&keys[..cut], &mut places);
                pass.add(&keys[cut..], &mut places);
                for &key in &keys {
                    let place = expected.iter().position(|&k| k == key).unwrap_or_else(|| {
                        expected.push(key);
                        expected.len() - 1
                    });
                    slow.push(100 + place as u32);
                }
                for (key, place) in keys.iter().zip(&slow) {
                    prop_assert_eq!(pass.place_of(*key), Some(*place));
                }
                prop_assert_eq!(pass.place_of(1000), None);
                prop_assert_eq!(places, slow);
                prop_assert_eq!(pass.firsts(), &expected);
            }
        }
    }

    #[test]
    fn a_table_is_cleared_when_the_numbers_of_its_passes_are_used_up() {
        let mut dedup = Dedup::default();
        // With 20 bits for a place there are 4,095 passes.
        dedup.start(1 << 19, 0);
        for pass in 0..10_000_u64 {
            let mut places = Vec::new();
            let keys = [pass % 3, pass % 7 + 5, pass % 3];
            dedup.start(keys.len(), 0).add(&keys, &mut places);
            assert_eq!(places, [0, 1, 0], "pass {pass}");
        }
    }

    #[test]
    fn keys_that_share_their_first_place_stay_apart() {
        // Keys that differ only in their high bits would collide in a table that masks the low bits.
        let keys: Vec<u64> = (0..500_u64).map(|i| i << 57 | i << 32).chain((0..500).map(|i| i << 40)).collect();
        let (mut dedup, mut places) = (Dedup::default(), Vec::new());
        let mut pass = dedup.start(keys.len(), 0);
        pass.add(&keys, &mut places);
        for (key, place) in keys.iter().zip(places) {
            assert_eq!(pass.firsts()[place as usize], *key);
        }
    }
}
