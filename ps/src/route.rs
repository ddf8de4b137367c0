//! Which shard a key lives in, and how a block of keys is split among shards and put together again.
//!
//! A mix of the key says in which of 4,096 cells it lies. The constants of this mix differ from those of the index, so that the keys of one
//! shard spread over its whole index. Shards hold consecutive cells, as equal in number as can be. So the shard depends on the key and the
//! numbers of processes and shards alone, and what happens within a cell (`lifetime.rs`) on the key alone.

use std::ops::Range;

use crate::lifetime::{CELL_BITS, CELLS, cell_of};
use crate::simd::{Kernel, dispatch};

/// Assigns keys to shards. `Route::new(processes)` leads to a process: the process of a key is the shard that the key would have with one
/// shard per process. [`of_process`](Self::of_process) then leads to a shard of that process. It numbers shards as if each process had this
/// many, so processes may have different numbers of shards.
///
/// ```
/// # use forebay_ps::Route;
/// let (processes, of_process_2) = (Route::new(3), Route::of_process(2, 3, 4));
/// let key = 77;
/// assert_eq!(processes.shard(key), 2);
/// assert_eq!((of_process_2.held(), of_process_2.shard(key) / 4), (8..12, 2));
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

    /// A route to the `count` shards of process number `rank` among `processes`.
    pub fn of_process(rank: usize, processes: usize, count: usize) -> Self {
        Self { shards: processes.saturating_mul(count), first: rank.saturating_mul(count), count }
    }

    /// The number of shards in all, if every process had as many as this process.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Numbers of the shards that are held here.
    pub fn held(&self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The number of the process that holds the shards, and the number of processes.
    pub fn process(&self) -> (usize, usize) {
        let count = self.count.max(1);
        (self.first / count, self.shards / count)
    }

    /// A name of a shard that is held here, among all shards of the table: its number if one process holds all shards; else the number of
    /// the process, followed by the number of the shard within the process if there are several. The first number has at least `digits`
    /// digits.
    pub fn name(&self, shard: usize, digits: usize) -> String {
        match (self.process(), self.count) {
            ((_, 1), _) => format!("{shard:0digits$}"),
            ((rank, _), 1) => format!("{rank:0digits$}"),
            ((rank, _), _) => format!("{rank:0digits$}.{}", shard - self.first),
        }
    }

    /// The cells of a shard.
    pub fn cells_of(&self, shard: usize) -> Range<usize> {
        let first = |shard: usize| (shard * CELLS).div_ceil(self.shards);
        first(shard)..first(shard + 1)
    }

    /// The cells that are held here.
    pub fn cells(&self) -> Range<usize> {
        self.cells_of(self.first).start..self.cells_of(self.first + self.count - 1).end
    }

    /// The shard of a key, whether it is held here or not.
    #[inline(always)]
    pub fn shard(&self, key: u64) -> usize {
        (cell_of(key) * self.shards) >> CELL_BITS
    }

    /// Splits `keys`: a key of the shard `s` after the first held goes to `parts[s]`, in order, and the `s` of `keys[i]` to `shard_of[i]`.
    /// `parts` has one buffer per shard held; all buffers are cleared first.
    ///
    /// Fails with the first key that belongs to a shard that is not held here.
    pub(crate) fn split(&self, keys: &[u64], parts: &mut [Vec<u64>], shard_of: &mut Vec<u32>) -> Result<(), u64> {
        debug_assert_eq!(parts.len(), self.count);
        parts.iter_mut().for_each(Vec::clear);
        if !dispatch(ShardsOf { route: *self, keys, shard_of }) {
            return Err(self.first_misrouted(keys).unwrap_or_default());
        }
        for (key, shard) in keys.iter().zip(shard_of.iter()) {
            parts[*shard as usize].push(*key);
        }
        Ok(())
    }

    /// The first key that belongs to a shard that is not held here.
    pub(crate) fn first_misrouted(&self, keys: &[u64]) -> Option<u64> {
        let held = self.held();
        // Most often there are no such keys, so they are counted first: a loop that may end early is not vectorized.
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

/// Scatters rows of `dim` floats to one buffer per shard, in their order.
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
            let processes = 1 + shards / 3;
            let (rank, count) = (processes / 2, 1 + shards % 4);
            let part = Route::of_process(rank, processes, count);
            prop_assert_eq!(part.cells(), Route::new(processes).cells_of(rank), "whatever the number of shards");
        }

        #[test]
        fn processes_and_their_parts_lead_to_the_same_shard(
            keys in prop::collection::vec(any::<u64>(), 1..100), processes in 1usize..9, per_process in 1usize..9,
        ) {
            let (all, process_of) = (Route::new(processes * per_process), Route::new(processes));
            for process in 0..processes {
                let part = Route::of_process(process, processes, per_process);
                prop_assert_eq!((part.shards(), part.process()), (all.shards(), (process, processes)));
                let own = |key: &u64| process_of.shard(*key) == process;
                let (mut parts, mut shard_of) = (vec![vec![]; per_process], vec![]);
                // If another process holds some of the keys, the error has the first of them.
                let stray = keys.iter().copied().find(|key| !own(key));
                prop_assert_eq!(part.split(&keys, &mut parts, &mut shard_of).err(), stray);
                prop_assert_eq!(part.first_misrouted(&keys), stray);
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
    fn a_name_is_of_one_shard_whatever_the_number_in_other_processes() {
        let names = |route: Route| route.held().map(|shard| route.name(shard, 1)).collect::<Vec<_>>();
        assert_eq!(names(Route::new(3)), ["0", "1", "2"]);
        assert_eq!(names(Route::of_process(0, 3, 1)), ["0"]);
        assert_eq!(names(Route::of_process(1, 3, 2)), ["1.0", "1.1"]);
        assert_eq!(names(Route::of_process(2, 3, 3)), ["2.0", "2.1", "2.2"]);
        assert_eq!(
            [Route::new(3), Route::of_process(2, 3, 2)].map(|route| route.name(route.held().end - 1, 4)),
            ["0002", "0002.1"]
        );
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
