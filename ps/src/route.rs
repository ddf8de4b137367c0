//! Which shard a key lives in, and how a block of keys is split among shards and put together again.
//!
//! Comes in: a block of keys. Goes out: one block per shard and the way back. Nothing blocks; buffers are the caller's.
//!
//! The shard is the multiply-shift of the key mixed once more, with constants other than the index's, so that the keys
//! of one shard spread over all of its index. It depends on the key and the number of shards alone: a model folder
//! written by one run is routed the same way by the next.

use crate::key::mix;

/// Assigns keys to shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    shards: usize,
}

impl Route {
    /// A route to this many shards, at least 1.
    pub fn new(shards: usize) -> Self {
        Self { shards: shards.max(1) }
    }

    /// Shards of the route.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The shard of a key.
    #[inline(always)]
    pub fn shard(&self, key: u64) -> usize {
        ((u128::from(mix(key ^ 0x9e37_79b9_7f4a_7c15)) * self.shards as u128) >> 64) as usize
    }

    /// Splits `keys`: those of shard `s` go to `parts[s]` in their order, the shard of `keys[i]` to `shard_of[i]`.
    /// `parts` is of one buffer per shard; all are cleared first.
    pub(crate) fn split(&self, keys: &[u64], parts: &mut [Vec<u64>], shard_of: &mut Vec<u32>) {
        debug_assert_eq!(parts.len(), self.shards);
        parts.iter_mut().for_each(Vec::clear);
        shard_of.clear();
        shard_of.extend(keys.iter().map(|key| self.shard(*key) as u32));
        for (key, shard) in keys.iter().zip(shard_of.iter()) {
            parts[*shard as usize].push(*key);
        }
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
            route.split(&keys, &mut parts, &mut shard_of);
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
