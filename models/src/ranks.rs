//! The rank of each row's item among all items, and what recall and reciprocal rank follow from it.
//!
//! Each positive row is a query, whose item is ranked among all items of a catalogue by the inner product of the two towers' vectors, as
//! `FactorizedTopK` of TensorFlow Recommenders does by score. Other items that the same user has in other rows stay candidates, as there.
//! Ties differ: there an item that ties with the k-th one always counts as found, so a model that gives all items one vector would have a
//! recall of 1. Here a metric is its mean over all orders of the tied items (McSherry and Najork, "Computing Information Retrieval
//! Performance Measures Efficiently in the Presence of Tied Scores", ECIR 2008), as ties count half in the AUC.

use std::collections::HashMap;

use crate::native::{ItemGroups, inner_product};

/// Where an item is among all items, by score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Other items with a higher score.
    pub better: u32,
    /// Other items with the same score.
    pub equal: u32,
}

impl Rank {
    /// Whether the item is among the first `k`, 0 or 1; with ties, the share of their orders in which it is.
    pub fn is_within(self, k: u32) -> f64 {
        let free = f64::from(k) - f64::from(self.better);
        (free / (f64::from(self.equal) + 1.0)).clamp(0.0, 1.0)
    }

    /// 1 divided by the rank, which is 1 for the first item; with ties, the mean over their orders.
    pub fn reciprocal(self) -> f64 {
        let (better, tied) = (u64::from(self.better), u64::from(self.equal) + 1);
        (harmonic(better + tied) - harmonic(better)) / tied as f64
    }
}

/// `1 + 1/2 + ... + 1/n`, to 13 digits.
fn harmonic(n: u64) -> f64 {
    const EULER_MASCHERONI: f64 = 0.577_215_664_901_532_9;
    if n <= 64 {
        return (1..=n).map(|i| 1.0 / i as f64).sum();
    }
    let (n, square) = (n as f64, n as f64 * n as f64);
    n.ln() + EULER_MASCHERONI + 0.5 / n - 1.0 / (12.0 * square) + 1.0 / (120.0 * square * square)
}

/// Vectors `[n x dim]`, and the item that each of them is of.
#[derive(Clone, Copy, Debug)]
pub struct ItemVectors<'a> {
    /// `[n]`.
    pub ids: &'a [u64],
    /// `[n x dim]`.
    pub vectors: &'a [f32],
}

/// The rank of the item of each of `n` rows, by its inner product with the row's user, among the `items`. `users` is `[n x dim]`; `own` has
/// the items of the rows. The item itself, if it is among `items`, is not counted; a row's own vector may differ from its vector there.
/// `items` has each id once.
///
/// Takes `O(n * items * dim)` time on the caller's thread, and a copy of the items' vectors as memory. The result has the same bits on
/// every machine.
///
/// # Panics
/// If the lengths differ, or `dim` is 0.
pub fn rank_items(items: ItemVectors<'_>, users: &[f32], own: ItemVectors<'_>, dim: usize) -> Vec<Rank> {
    assert!(dim > 0 && items.vectors.len() == items.ids.len() * dim, "one vector for each item");
    let rows = own.ids.len();
    assert!(users.len() == rows * dim && own.vectors.len() == rows * dim, "two vectors for each row");
    let place: HashMap<u64, usize> = items.ids.iter().enumerate().map(|(at, &id)| (id, at)).collect();
    let pairs = || users.chunks_exact(dim).zip(own.vectors.chunks_exact(dim));
    let scores: Vec<f32> = pairs().map(|(user, item)| inner_product(user, item)).collect();
    let (mut better, mut equal) = (vec![0; rows], vec![0; rows]);
    ItemGroups::new(items.vectors, dim).count(users, &scores, &mut better, &mut equal);
    for (row, user) in users.chunks_exact(dim).enumerate() {
        if let Some(&at) = place.get(&own.ids[row]) {
            let score = inner_product(user, &items.vectors[at * dim..][..dim]);
            better[row] -= u32::from(score > scores[row]);
            equal[row] -= u32::from(score == scores[row]);
        }
    }
    better.into_iter().zip(equal).map(|(better, equal)| Rank { better, equal }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All orders of the tied items, one after the other: the item at each of their places.
    fn slow(scores: &[f32], own: usize, of: impl Fn(u32) -> f64) -> f64 {
        let mut sorted: Vec<usize> = (0..scores.len()).collect();
        sorted.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let places: Vec<u32> =
            (0..scores.len()).filter(|&at| scores[sorted[at]] == scores[own]).map(|at| at as u32 + 1).collect();
        places.iter().map(|&place| of(place)).sum::<f64>() / places.len() as f64
    }

    proptest! {
        /// Small whole numbers have many ties, and exact sums.
        #[test]
        fn ranks_are_those_of_sorted_scores(
            dim in 1usize..6, items in 1usize..200, rows in 1usize..12, seed: u64, k in 1u32..250,
        ) {
            let mut random = forebay_base::SplitMix64::new(seed);
            let mut vectors = |n: usize| -> Vec<f32> { (0..n * dim).map(|_| random.below(5) as f32 - 2.0).collect() };
            let (catalogue, users) = (vectors(items), vectors(rows));
            let ids: Vec<u64> = (0..items as u64).map(|at| at * 7).collect();
            let own: Vec<usize> = (0..rows).map(|_| random.below(items as u64) as usize).collect();
            let own_ids: Vec<u64> = own.iter().map(|&at| ids[at]).collect();
            let own_vectors: Vec<f32> = own.iter().flat_map(|&at| catalogue[at * dim..][..dim].to_vec()).collect();
            let found = rank_items(
                ItemVectors { ids: &ids, vectors: &catalogue }, &users, ItemVectors { ids: &own_ids, vectors: &own_vectors }, dim,
            );
            for (row, rank) in found.into_iter().enumerate() {
                let user = &users[row * dim..][..dim];
                let scores: Vec<f32> = catalogue.chunks(dim).map(|item| inner_product(user, item)).collect();
                let recall = slow(&scores, own[row], |place| f64::from(u8::from(place <= k)));
                prop_assert!((rank.is_within(k) - recall).abs() < 1e-12, "{rank:?}: {recall}");
                let reciprocal = slow(&scores, own[row], |place| 1.0 / f64::from(place));
                prop_assert!((rank.reciprocal() - reciprocal).abs() < 1e-12, "{rank:?}: {reciprocal}");
            }
        }

        /// Items whose vectors are equal tie, wherever they are among the others.
        #[test]
        fn items_with_one_vector_tie_to_the_bit(dim in 1usize..80, items in 1usize..150, seed: u64) {
            let mut random = forebay_base::SplitMix64::new(seed);
            let mut vector = || -> Vec<f32> { (0..dim).map(|_| (random.below(1 << 20) as f32 / 3e5) - 1.7).collect() };
            let (user, one) = (vector(), vector());
            let ids: Vec<u64> = (0..items as u64).collect();
            let catalogue = one.repeat(items);
            let items = ItemVectors { ids: &ids, vectors: &catalogue };
            let rank = rank_items(items, &user, ItemVectors { ids: &[0], vectors: &one }, dim)[0];
            prop_assert_eq!(rank, Rank { better: 0, equal: ids.len() as u32 - 1 });
            let absent = rank_items(items, &user, ItemVectors { ids: &[u64::MAX], vectors: &one }, dim)[0];
            prop_assert_eq!(absent.equal, ids.len() as u32, "an item that is not among them");
        }
    }

    #[test]
    fn a_model_with_one_vector_for_all_items_finds_as_many_as_chance() {
        let all = Rank { better: 0, equal: 999 };
        assert!((all.is_within(10) - 0.01).abs() < 1e-15);
        assert!((all.reciprocal() - (1..=1000).map(|n| 1.0 / f64::from(n)).sum::<f64>() / 1000.0).abs() < 1e-13);
        let third = Rank { better: 2, equal: 0 };
        assert_eq!((third.is_within(2), third.is_within(3)), (0.0, 1.0));
        assert!((third.reciprocal() - 1.0 / 3.0).abs() < 1e-15);
    }
}
