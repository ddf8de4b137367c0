//! Finds equal numbers below a limit. Each number has an entry of its own, so nothing is hashed, and no values are compared.
//!
//! An entry is the place of its number in the pass that wrote it, counted from a start that is higher in every pass. So a new pass needs no
//! clearing.

use std::hint::select_unpredictable;

use crate::dedup::in_blocks;

/// A reusable table of the numbers seen in this pass.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// One for each number, and one more: see [`DirectPass::add_varied`].
    entries: Vec<u32>,
    /// The numbers of this pass, each once, in the order of first occurrence. One more place than numbers.
    firsts: Vec<u32>,
    /// All entries are below this number.
    end: u32,
}

/// A pass over the numbers of one key space of one batch.
pub(super) struct DirectPass<'a> {
    entries: &'a mut [u32],
    firsts: &'a mut [u32],
    /// The entries of this pass begin here.
    start: u32,
    base: u32,
    count: usize,
    /// Whether few numbers of the last block were new.
    repetitive: bool,
}

impl Direct {
    /// Starts a pass of up to `values` numbers below `limit`. The first new number gets the place `base`.
    pub(super) fn start(&mut self, limit: usize, values: usize, base: usize) -> DirectPass<'_> {
        if self.entries.len() <= limit {
            self.entries.resize(limit + 1, 0);
        }
        if self.firsts.len() <= values {
            self.firsts.resize(values + 1, 0);
        }
        let most = values as u32;
        // 0 is the entry of a number that never came.
        let mut start = self.end.max(1);
        if start.checked_add(most).is_none() {
            self.entries.fill(0);
            start = 1;
        }
        self.end = start.saturating_add(most);
        DirectPass {
            entries: &mut self.entries[..=limit],
            firsts: &mut self.firsts[..=values],
            start,
            base: base as u32,
            count: 0,
            repetitive: false,
        }
    }
}

impl DirectPass<'_> {
    /// Appends the place of each number to `places`. Panics if there are more numbers, or larger ones, than [`Direct::start`] was called
    /// with.
    pub(super) fn add(&mut self, numbers: &[u32], places: &mut Vec<u32>) {
        self.repetitive = in_blocks(numbers, self.repetitive, |block, repetitive| {
            let before = self.count;
            match repetitive {
                true => self.add_repetitive(block, places),
                false => self.add_varied(block, places),
            }
            self.count - before
        });
    }

    /// For numbers that are mostly known: a branch, which is predicted well, tests whether a number is new.
    fn add_repetitive(&mut self, numbers: &[u32], places: &mut Vec<u32>) {
        let (entries, firsts) = (&mut *self.entries, &mut *self.firsts);
        let (start, base, mut count) = (self.start, self.base, self.count);
        places.extend(numbers.iter().map(|&number| {
            let entry = entries[number as usize];
            if entry >= start {
                return base + (entry - start);
            }
            let place = count as u32;
            entries[number as usize] = start + place;
            firsts[count] = number;
            count += 1;
            base + place
        }));
        self.count = count;
    }

    /// For batches in which any number may be new: no branch depends on whether a number is new. One that is not new writes the last
    /// entry, which no number reads.
    fn add_varied(&mut self, numbers: &[u32], places: &mut Vec<u32>) {
        let (entries, firsts) = (&mut *self.entries, &mut *self.firsts);
        let (start, base, mut count) = (self.start, self.base, self.count);
        let last = entries.len() - 1;
        places.extend(numbers.iter().map(|&number| {
            let entry = entries[number as usize];
            let new = entry < start;
            let place = select_unpredictable(new, count as u32, entry.wrapping_sub(start));
            entries[select_unpredictable(new, number as usize, last)] = start + place;
            firsts[count] = number;
            count += usize::from(new);
            base + place
        }));
        self.count = count;
    }

    /// The place of a number of this pass.
    pub(super) fn place_of(&self, number: u32) -> Option<u32> {
        let entry = self.entries[number as usize];
        (entry >= self.start).then(|| self.base + (entry - self.start))
    }

    /// The numbers of this pass, each once, in the order of first occurrence.
    pub(super) fn firsts(&self) -> &[u32] {
        &self.firsts[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Some with few different numbers, so that both ways of adding a block run.
    fn numbers() -> impl Strategy<Value = (usize, Vec<u32>)> {
        prop_oneof![
            (Just(9), prop::collection::vec(0_u32..9, 0..900)),
            (Just(400), prop::collection::vec(0_u32..400, 0..900))
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            passes in prop::collection::vec(numbers(), 1..6), cut in 0_usize..900,
            // Where the first pass starts: near the end, entries are cleared between two passes.
            end in prop::sample::select(vec![0, u32::MAX - 1000]),
        ) {
            let mut direct = Direct { end, ..Direct::default() };
            for (limit, numbers) in passes {
                let (mut places, mut expected, mut slow) = (Vec::new(), Vec::new(), Vec::new());
                let mut pass = direct.start(limit, numbers.len(), 100);
                let cut = cut.min(numbers.len());
                pass.add(&numbers[..cut], &mut places);
                pass.add(&numbers[cut..], &mut places);
                for &number in &numbers {
                    let place = expected.iter().position(|&n| n == number).unwrap_or_else(|| {
                        expected.push(number);
                        expected.len() - 1
                    });
                    slow.push(100 + place as u32);
                }
                for number in 0..limit as u32 {
                    let place = expected.iter().position(|&n| n == number).map(|place| 100 + place as u32);
                    prop_assert_eq!(pass.place_of(number), place);
                }
                prop_assert_eq!(places, slow);
                prop_assert_eq!(pass.firsts(), &expected);
            }
        }
    }
}
