//! Counts the pushes of keys that wait for their admission in a counting Bloom filter: memory that does not grow with the keys, for a
//! bounded share of keys that are admitted too early.
//!
//! Counting Bloom filter: Fan, Cao, Almeida, Broder, "Summary Cache", IEEE/ACM Transactions on Networking 2000. A key has `k` counters of
//! four bits; a push adds 1 to each, and the least counter is the key's count. The count is never lower than the true one, unless the block
//! was cleared or a key was admitted too early since. The admission of a key takes its counts out of the filter. The counters of a key lie
//! in one block (Putze, Sanders, Singler 2007), whose number follows from the key; blocks belong to the cell of the key (`lifetime.rs`), so
//! they move with it from shard to shard.
//!
//! **The promised rate.** A new key is taken for one that was counted if all of its `k` counters are above 0: by a chance of at most
//! (share of counters above 0)^k. A block that would exceed the share `error^(1/k)` with a new key is cleared first, so the chance
//! is at most `error` for any stream of keys. Sizes are chosen so that with `keys` keys waiting one block in a thousand is cleared.

use forebay_base::{GOLDEN_GAMMA, mix64, unmix64};

use crate::config::TableConfig;
use crate::groups::group_of;
use crate::lifetime::{Absent, Admission, BloomCount, CELL_BITS, CELLS, cell_of};

/// Floats of a block: the first is the number of counters above 0, the others are eight counters each, all as bits.
pub(super) const WORDS: usize = 256;
/// Counters of a block: a prime, so that the places of a key differ for every distance between them.
const COUNTERS: u64 = 2039;
/// A counter that has reached this value keeps it, because its true count is unknown.
const MOST: u32 = 15;

/// Counters of an entry that is saved.
const ENTRY: usize = 15;
/// Entries of a block.
pub(super) const ENTRIES: usize = (COUNTERS as usize).div_ceil(ENTRY);
/// Set in the count of a saved entry, which distinguishes it from the count of a key.
const MARK: u32 = 1 << 31;

/// How large a filter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FilterShape {
    /// Counters of a key.
    k: u64,
    /// Blocks of a cell.
    blocks: u64,
    /// Counters above 0 of a block at most.
    most_filled: u32,
}

impl FilterShape {
    fn new(rules: BloomCount) -> Self {
        let k = rules.counters_per_key();
        let share = rules.error.powf(1.0 / f64::from(k));
        let most_filled = (share * COUNTERS as f64) as u32;
        // `keys` distinct keys raise `most_filled` counters of a block above 0 (Bloom 1970). `mean` plus three of its standard deviations
        // is `keys`: the number of keys in a block is Poisson distributed.
        let keys = -(COUNTERS as f64) / f64::from(k) * (1.0 - f64::from(most_filled) / COUNTERS as f64).ln();
        let mean = (((9.0 + 4.0 * keys).sqrt() - 3.0) / 2.0).powi(2);
        let blocks = (rules.keys as f64 / CELLS as f64 / mean).ceil().max(1.0) as u64;
        Self { k: u64::from(k), blocks, most_filled }
    }

    /// Eight bits that distinguish filters of different shapes.
    fn tag(&self) -> u64 {
        mix64(mix64(self.k) ^ mix64(self.blocks << 8) ^ u64::from(self.most_filled)) >> 56
    }
}

impl TableConfig {
    /// Bytes that the filter of the first group takes at most, over all shards, with its index; 0 without one.
    pub fn most_bloom_bytes(&self) -> u64 {
        match self.lifetime.admission {
            Some(Admission::Bloom(rules)) => FilterShape::new(rules).blocks * CELLS as u64 * (WORDS as u64 * 4 + 48),
            _ => 0,
        }
    }
}

/// The filter of one shard, without its blocks, which are rows of a table of their own.
pub(super) struct Bloom {
    shape: FilterShape,
    seed: u64,
    /// The highest byte of all keys, if the table is a group of a table with groups.
    group: Option<u8>,
    /// Counters above 0 in all blocks.
    filled: u64,
    /// Entries of a snapshot that were read and not given.
    pub(super) pending: Vec<Absent>,
}

/// The places of a key's counters.
pub(super) struct Places {
    at: u64,
    step: u64,
}

impl Bloom {
    pub(super) fn new(rules: BloomCount, seed: u64) -> Self {
        Self { shape: FilterShape::new(rules), seed, group: None, filled: 0, pending: Vec::new() }
    }

    /// Keys have this byte in front.
    pub(super) fn of_group(&mut self, group: u8) {
        self.group = Some(group);
    }

    /// Keys that wait, about.
    pub(super) fn keys(&self) -> u64 {
        self.filled / self.shape.k
    }

    /// The number of the block of a key, as a key of the table of blocks, and its counters there.
    #[inline(always)]
    pub(super) fn places(&self, key: u64) -> (u64, Places) {
        let hash = mix64(key ^ self.seed);
        let block = (u128::from(hash) * u128::from(self.shape.blocks)) >> 64;
        let more = mix64(hash ^ GOLDEN_GAMMA);
        let places = Places { at: (more >> 32) % COUNTERS, step: 1 + (more & 0xffff_ffff) % (COUNTERS - 1) };
        ((cell_of(key) as u64) << 32 | block as u64, places)
    }

    /// Adds `pushes` to the count of a key, in the words of its block, and returns the new count, at most 15.
    pub(super) fn count(&mut self, words: &mut [f32], places: &Places, pushes: u32) -> u32 {
        let least = places.of(self.shape.k).map(|at| counter(words, at)).min().unwrap_or_default();
        if least == 0 {
            let new = places.of(self.shape.k).filter(|&at| counter(words, at) == 0).count() as u32;
            if words[0].to_bits() + new > self.shape.most_filled {
                self.filled -= u64::from(words[0].to_bits());
                words[..WORDS].fill(0.0);
            }
        }
        let before = words[0].to_bits();
        for at in places.of(self.shape.k) {
            set_counter(words, at, (counter(words, at) + pushes).min(MOST));
        }
        self.filled += u64::from(words[0].to_bits() - before);
        MOST.min(least + pushes)
    }

    /// Takes out the counts of a key that was admitted.
    pub(super) fn forget(&mut self, words: &mut [f32], places: &Places, pushes: u32) {
        let before = words[0].to_bits();
        for at in places.of(self.shape.k) {
            match counter(words, at) {
                MOST => {}
                value => set_counter(words, at, value.saturating_sub(pushes)),
            }
        }
        self.filled -= u64::from(before - words[0].to_bits());
    }

    /// The key under which an entry is saved: one of the cell (and of the group) of the keys that it counts.
    fn entry_key(&self, block: u64, entry: usize) -> u64 {
        let (cell, block) = (block >> 32, block & 0xffff_ffff);
        let id = block * ENTRIES as u64 + entry as u64;
        let fixed = cell << (64 - CELL_BITS) | self.shape.tag() << 44 | id << 14;
        let mut keys = (0..1 << 14).map(|number| unmix64(fixed | number) ^ GOLDEN_GAMMA);
        let of_group = |key: &u64| self.group.is_none_or(|group| group_of(*key) == usize::from(group));
        keys.find(of_group).expect("one number of 256 gives the highest byte of a group")
    }

    /// Appends the entries of a block to `out`.
    pub(super) fn entries(&self, block: u64, words: &[f32], out: &mut Vec<Absent>) {
        for entry in 0..ENTRIES {
            let mut bits = 0_u64;
            for (number, at) in counters_of(entry).enumerate() {
                bits |= u64::from(counter(words, at)) << (4 * number);
            }
            let (count, seen) = (MARK | (bits & 0xfff_ffff) as u32, (bits >> 28) as u32);
            out.push(Absent { key: self.entry_key(block, entry), count, seen });
        }
    }

    /// The block of an entry, and its number there; `None` if the entry comes from a filter of another size.
    pub(super) fn place_of(&self, entry: &Absent) -> Option<(u64, usize)> {
        let place = mix64(entry.key ^ GOLDEN_GAMMA);
        let (cell, tag, id) = (place >> (64 - CELL_BITS), place >> 44 & 0xff, place >> 14 & 0x3fff_ffff);
        let (block, number) = (id / ENTRIES as u64, (id % ENTRIES as u64) as usize);
        (tag == self.shape.tag() && block < self.shape.blocks).then_some((cell << 32 | block, number))
    }

    /// Sets the counters of an entry in a block.
    pub(super) fn set(&mut self, words: &mut [f32], number: usize, entry: &Absent) {
        let (before, bits) = (words[0].to_bits(), u64::from(entry.count & !MARK) | u64::from(entry.seen) << 28);
        for (number, at) in counters_of(number).enumerate() {
            set_counter(words, at, (bits >> (4 * number) & 15) as u32);
        }
        self.filled = self.filled + u64::from(words[0].to_bits()) - u64::from(before);
    }
}

fn counters_of(entry: usize) -> std::ops::Range<u64> {
    (entry * ENTRY) as u64..(((entry + 1) * ENTRY) as u64).min(COUNTERS)
}

impl Places {
    fn of(&self, k: u64) -> impl Iterator<Item = u64> + use<> {
        let (mut at, step) = (self.at, self.step);
        (0..k).map(move |_| {
            let here = at;
            at += step;
            at -= if at >= COUNTERS { COUNTERS } else { 0 };
            here
        })
    }
}

#[inline(always)]
fn counter(words: &[f32], at: u64) -> u32 {
    words[1 + at as usize / 8].to_bits() >> (4 * (at % 8)) & 15
}

/// Sets a counter, and keeps the number of those above 0.
#[inline(always)]
fn set_counter(words: &mut [f32], at: u64, value: u32) {
    let (word, shift) = (1 + at as usize / 8, 4 * (at % 8));
    let bits = words[word].to_bits();
    let before = bits >> shift & 15;
    words[word] = f32::from_bits(bits & !(15 << shift) | value << shift);
    let filled = words[0].to_bits() + u32::from(value > 0) - u32::from(before > 0);
    words[0] = f32::from_bits(filled);
}

/// Whether `absent` is an entry of a filter, and not the count of one key.
pub(super) fn is_entry(absent: &Absent) -> bool {
    absent.count & MARK != 0
}
