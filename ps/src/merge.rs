//! The gradients of a round as one push: the mean of the trainers' gradients, weighted by their rows.
//!
//! Keys are in the order in which they first appear, by rank, and gradients are added in order of rank: the bits do not depend on the order
//! in which the pushes came.
//!
//! A trainer's gradients are the mean over its rows, so the sum is the mean over the rows of all trainers: what one trainer with the whole
//! batch would push.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use forebay_base::mix64;

use crate::rounds::Share;

/// Keys and their gradients, `[keys x row_dim]`.
pub(crate) type Rows = (Vec<u64>, Vec<f32>);

/// Merges gradients of rows of `dim` weights.
pub(crate) fn merge_rows(shares: Vec<Share<Rows>>, dim: usize) -> Rows {
    let weights = weights(&shares);
    let mut shares = shares.into_iter().zip(weights);
    let Some((first, weight)) = shares.next() else { return Rows::default() };
    let (mut keys, mut grads) = (Vec::with_capacity(first.payload.0.len()), Vec::new());
    let mut place: HashMap<u64, usize, BuildHasherDefault<ByMix>> = HashMap::default();
    place.reserve(first.payload.0.len());
    for (share, weight) in std::iter::once((first, weight)).chain(shares) {
        for (key, row) in share.payload.0.iter().zip(share.payload.1.chunks_exact(dim)) {
            match place.entry(*key) {
                Entry::Vacant(new) => {
                    new.insert(keys.len());
                    keys.push(*key);
                    grads.extend(row.iter().map(|g| g * weight));
                }
                Entry::Occupied(at) => add(&mut grads[at.get() * dim..][..dim], row, weight),
            }
        }
    }
    (keys, grads)
}

/// Merges flat gradients of one length; a share without gradients counts as zeros, with its rows.
pub(crate) fn merge_flat(shares: Vec<Share<Vec<f32>>>) -> Vec<f32> {
    let weights = weights(&shares);
    let len = shares.iter().map(|share| share.payload.len()).max().unwrap_or(0);
    // -0, because adding a number to it changes no bit of the number.
    let mut sum = vec![-0.0; len];
    for (share, weight) in shares.iter().zip(weights) {
        add(&mut sum, &share.payload, weight);
    }
    sum
}

fn add(sum: &mut [f32], grads: &[f32], weight: f32) {
    sum.iter_mut().zip(grads).for_each(|(s, g)| *s += g * weight);
}

/// The share of each trainer in the rows of the round.
fn weights<P>(shares: &[Share<P>]) -> Vec<f32> {
    let total = shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.rows)).max(1);
    shares.iter().map(|share| (share.rows as f64 / total as f64) as f32).collect()
}

/// Most keys are hashes. Mixing them again makes any keys work.
#[derive(Default)]
struct ByMix(u64);

impl Hasher for ByMix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = mix64(self.0 ^ key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::{PushId, Round};
    use crate::rounds::Rounds;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn share<P>(rank: usize, rows: u64, payload: P) -> Share<P> {
        Share { id: PushId { series: 1, index: rank as u32 }, rows, payload }
    }

    const DIM: usize = 3;

    fn pushes() -> impl Strategy<Value = Vec<(u64, Rows)>> {
        let keys = prop::collection::btree_set(0u64..40, 0..25).prop_map(|set| set.into_iter().collect::<Vec<_>>());
        let rows = keys.prop_shuffle().prop_flat_map(|keys| {
            let grads = prop::collection::vec(-10.0f32..10.0, keys.len() * DIM);
            (Just(keys), grads)
        });
        prop::collection::vec((0u64..100, rows), 1..5)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn is_the_weighted_mean_by_key(pushes in pushes()) {
            let total = pushes.iter().map(|(rows, _)| *rows).sum::<u64>().max(1) as f64;
            let mut slow: BTreeMap<u64, [f64; DIM]> = BTreeMap::new();
            for (rows, (keys, grads)) in &pushes {
                for (key, row) in keys.iter().zip(grads.chunks(DIM)) {
                    let sum = slow.entry(*key).or_default();
                    sum.iter_mut().zip(row).for_each(|(s, g)| *s += f64::from(*g) * *rows as f64 / total);
                }
            }
            let shares = pushes.into_iter().enumerate().map(|(rank, (rows, payload))| share(rank, rows, payload));
            let (keys, grads) = merge_rows(shares.collect(), DIM);
            prop_assert_eq!(keys.len(), slow.len());
            for (key, row) in keys.iter().zip(grads.chunks(DIM)) {
                for (found, wanted) in row.iter().zip(slow[key]) {
                    prop_assert!((f64::from(*found) - wanted).abs() < 1e-5, "{found} and {wanted}");
                }
            }
        }

        #[test]
        fn the_order_of_arrival_changes_not_a_bit(
            (pushes, order) in pushes().prop_flat_map(|p| {
                let ranks: Vec<usize> = (0..p.len()).collect();
                (Just(p), Just(ranks).prop_shuffle())
            }),
        ) {
            let run = |order: &[usize]| {
                let mut rounds = Rounds::default();
                let whole = order.iter().filter_map(|rank| {
                    let (rows, payload) = pushes[*rank].clone();
                    let round = Round { trainers: pushes.len() as u32, rows };
                    let id = PushId { series: 1, index: *rank as u32 };
                    rounds.offer(*rank as u32, round, 1, (id, payload), ()).unwrap()
                });
                let (keys, grads) = merge_rows(whole.last().unwrap().shares, DIM);
                (keys, bits(&grads))
            };
            prop_assert_eq!(run(&order), run(&(0..pushes.len()).collect::<Vec<_>>()));
        }
    }

    #[test]
    fn one_trainer_pushes_what_it_pushed() {
        let rows: Rows = (vec![9, 3, 7], vec![0.1, -0.2, 1e-40, 4.0, 5.5, -0.0, 7.0, 8.0, f32::MAX]);
        let merged = merge_rows(vec![share(0, 77, rows.clone())], DIM);
        assert_eq!((merged.0, bits(&merged.1)), (rows.0, bits(&rows.1)));
    }

    #[test]
    fn no_rows_at_all_change_nothing() {
        assert_eq!(merge_rows(vec![share(0, 0, Rows::default()), share(1, 0, Rows::default())], DIM), Rows::default());
        assert_eq!(merge_rows(vec![share(0, 0, (vec![5], vec![1.0; DIM]))], DIM), (vec![5], vec![0.0; DIM]));
        assert_eq!(merge_flat(vec![share(0, 3, vec![2.0, 4.0]), share(1, 1, vec![]), share(2, 0, vec![])]), [1.5, 3.0]);
    }
}
