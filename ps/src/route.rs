//! Which shard a key lives in, and how a block of keys is split among shards and put together again.
//!
//! A key lies in one of 4,096 cells, by the key mixed once more, with constants other than the index's, so that the keys
//! of one shard spread over all of its index. Shards hold cells that follow each other, as equal in number as can be. So
//! the shard depends on the key and the number of shards alone, and what happens within a cell (`lifetime.rs`) on the key
//! alone.

use std::ops::Range;

use crate::lifetime::{CELL_BITS, CELLS, cell_of};
use crate::simd::{Kernel, dispatch};

/// Assigns keys to shards, which are numbered through over all processes: of `processes x per_process` shards, process `p` holds those from
/// `p * per_process` on. The process of a key is the shard that the key would have with one shard per process. So `Route::new(processes)`
/// leads to a process, and the [`part`](Self::part) of the process leads to the shard.
///
/// ```
/// # use forebay_ps::Route;
/// let (shards, processes) = (Route::new(3 * 4), Route::new(3));
/// assert_eq!(shards.shard(77) / 4, processes.shard(77));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    shards: usize,
    first: usize,
    count: usize,
}

impl Route {
    /// A route to this many shards, at least 1.
    pub fn new(shards: usize) -> Self {
        let shards = shards.max(1);
        Self { shards, first: 0, count: shards }
    }

    /// The part of the route that leads to `count` of the shards, from number `first` on.
    pub fn part(self, first: usize, count: usize) -> Self {
        debug_assert!(first + count <= self.shards);
        Self { first, count, ..self }
    }

    /// Shards of the route, those that its part does not hold included.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Numbers of the shards that this part holds.
    pub fn held(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// The cells of a shard.
    pub fn cells_of(&self, shard: usize) -> Range<usize> {
        let first = |shard: usize| (shard * CELLS).div_ceil(self.shards);
        first(shard)..first(shard + 1)
    }

    /// The cells that this part holds.
    pub fn cells(&self) -> Range<usize> {
        self.cells_of(self.first).start..self.cells_of(self.first + self.count - 1).end
    }

    /// The shard of a key, whether this part holds it or not.
    #[inline(always)]
    pub fn shard(&self, key: u64) -> usize {
        (cell_of(key) * self.shards) >> CELL_BITS
    }

    /// Splits `keys`: those of the shard `s` after the first held go to `parts[s]` in their order, the `s` of `keys[i]` to
    /// `shard_of[i]`. `parts` is of one buffer per shard held; all are cleared first.
    ///
    /// Fails with the first key that belongs to a shard that is not held here.
    pub(crate) fn split(&self, keys: &[u64], parts: &mut [Vec<u64>], shard_of: &mut Vec<u32>) -> Result<(), u64> {
        debug_assert_eq!(parts.len(), self.count);
        parts.iter_mut().for_each(Vec::clear);
        if !dispatch(ShardsOf { route: *self, keys, shard_of }) {
            return Err(self.stray(keys).unwrap_or_default());
        }
        for (key, shard) in keys.iter().zip(shard_of.iter()) {
            parts[*shard as usize].push(*key);
        }
        Ok(())
    }

    /// The first key that belongs to a shard that is not held here.
    pub(crate) fn stray(&self, keys: &[u64]) -> Option<u64> {
        let held = self.held();
        // Most often there is none, so they are counted first: a loop that may end early is not vectorized.
        if held.len() == self.shards || dispatch(CountStrays { route: *self, keys }) == 0 {
            return None;
        }
        keys.iter().copied().find(|key| !held.contains(&self.shard(*key)))
    }

    /// The shard of a key, counted from the first held: below `count` if it is held.
    #[inline(always)]
    fn place(&self, key: u64) -> u32 {
        self.shard(key).wrapping_sub(self.first) as u32
    }
}

/// Fills `shard_of`. Returns whether all keys belong to shards that are held.
struct ShardsOf<'a> {
    route: Route,
    keys: &'a [u64],
    shard_of: &'a mut Vec<u32>,
}

impl Kernel for ShardsOf<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { route, keys, shard_of } = self;
        shard_of.clear();
        shard_of.extend(keys.iter().map(|key| route.place(*key)));
        let held = |most: u32| (most as usize) < route.count;
        keys.is_empty() || held(shard_of.iter().fold(0, |most, shard| most.max(*shard)))
    }
}

/// The number of keys that belong to shards that are not held.
struct CountStrays<'a> {
    route: Route,
    keys: &'a [u64],
}

impl Kernel for CountStrays<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Self { route, keys } = self;
        keys.iter().map(|key| usize::from(route.place(*key) as usize >= route.count)).sum()
    }
}

/// Deals rows of `dim` floats out to one buffer per shard, in their order.
pub(crate) fn scatter(shard_of: &[u32], rows: &[f32], dim: usize, parts: &mut [Vec<f32>]) {
    debug_assert_eq!(rows.len(), shard_of.len() * dim);
    parts.iter_mut().for_each(Vec::clear);
    if dim == 0 {
        return;
    }
    for (shard, row) in shard_of.iter().zip(rows.chunks_exact(dim)) {
        parts[*shard as usize].extend_from_slice(row);
    }
}

/// Undoes [`scatter`].
pub(crate) fn gather(shard_of: &[u32], parts: &[Vec<f32>], dim: usize, rows: &mut Vec<f32>) {
    rows.clear();
    rows.reserve(shard_of.len() * dim);
    let mut rest: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
    for shard in shard_of {
        let (row, after) = rest[*shard as usize].split_at(dim);
        rows.extend_from_slice(row);
        rest[*shard as usize] = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gather_undoes_split_and_scatter(
            keys in prop::collection::vec(any::<u64>(), 0..300), shards in 1usize..6, dim in 1usize..4,
        ) {
            let route = Route::new(shards);
            let (mut parts, mut shard_of) = (vec![vec![1]; shards], vec![9]);
            prop_assert_eq!(route.split(&keys, &mut parts, &mut shard_of), Ok(()));
            for (shard, part) in parts.iter().enumerate() {
                prop_assert!(part.iter().all(|k| route.shard(*k) == shard));
                let wanted: Vec<u64> = keys.iter().copied().filter(|k| route.shard(*k) == shard).collect();
                prop_assert_eq!(part, &wanted);
            }
            let rows: Vec<f32> = (0..keys.len() * dim).map(|i| i as f32).collect();
            let mut dealt = vec![vec![5.0]; shards];
            scatter(&shard_of, &rows, dim, &mut dealt);
            let mut back = vec![3.0];
            gather(&shard_of, &dealt, dim, &mut back);
            prop_assert_eq!(back, rows);
        }

        #[test]
        fn the_cells_of_shards_follow_each_other_and_hold_their_keys(
            keys in prop::collection::vec(any::<u64>(), 1..100), shards in 1usize..5000,
        ) {
            let route = Route::new(shards);
            for key in keys {
                prop_assert!(route.cells_of(route.shard(key)).contains(&cell_of(key)));
            }
            let ends = (0..shards).map(|shard| route.cells_of(shard));
            prop_assert_eq!(ends.fold(0, |end, cells| if cells.start == end { cells.end } else { usize::MAX }), CELLS);
            let (first, count) = (shards / 3, 1 + shards / 2);
            let part = route.part(first, count);
            prop_assert_eq!(part.cells(), route.cells_of(first).start..route.cells_of(first + count - 1).end);
        }

        #[test]
        fn processes_and_their_parts_lead_to_the_same_shard(
            keys in prop::collection::vec(any::<u64>(), 1..100), processes in 1usize..9, per_process in 1usize..9,
        ) {
            let (all, process_of) = (Route::new(processes * per_process), Route::new(processes));
            for process in 0..processes {
                let part = all.part(process * per_process, per_process);
                let own = |key: &u64| process_of.shard(*key) == process;
                let (mut parts, mut shard_of) = (vec![vec![]; per_process], vec![]);
                // If another process holds some of the keys, the error has the first of them.
                let stray = keys.iter().copied().find(|key| !own(key));
                prop_assert_eq!(part.split(&keys, &mut parts, &mut shard_of).err(), stray);
                prop_assert_eq!(part.stray(&keys), stray);
                let keys: Vec<u64> = keys.iter().copied().filter(own).collect();
                prop_assert_eq!(part.split(&keys, &mut parts, &mut shard_of), Ok(()));
                for (key, shard) in keys.iter().zip(shard_of) {
                    prop_assert_eq!(all.shard(*key), part.held().start + shard as usize);
                    prop_assert_eq!(all.shard(*key) / per_process, process);
                }
            }
        }
    }

    #[test]
    fn shards_are_even_for_keys_in_a_row_and_for_hashes() {
        for shards in [2, 3, 7] {
            for key in [|i: u64| i, |i: u64| i << 40, |i: u64| crate::SlotHasher::new("C1", 3).int(i as i64)] {
                let mut count = vec![0u32; shards];
                (0..30_000).for_each(|i| count[Route::new(shards).shard(key(i))] += 1);
                let even = 30_000 / shards as u32;
                assert!(count.iter().all(|n| n.abs_diff(even) < even / 10), "{count:?}");
            }
        }
    }
}
