//! The order in which the splits of a data set are read.

use forebay_base::{GOLDEN_GAMMA, SplitMix64, mix64};

/// The order of the splits over all epochs. It depends on (splits, seed) alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitOrder {
    splits: u32,
    epochs: u32,
    seed: Option<u64>,
}

impl SplitOrder {
    /// `seed` is `None` for the order of the listing.
    pub fn new(splits: u32, epochs: u32, seed: Option<u64>) -> Self {
        Self { splits, epochs, seed }
    }

    /// Whether epochs have orders of their own.
    pub(crate) fn is_shuffled(&self) -> bool {
        self.seed.is_some()
    }

    /// The splits of one epoch in the order in which they are read: a permutation of `0..splits`, seeded by
    /// (seed, epoch).
    pub fn epoch(&self, epoch: u32) -> Vec<u32> {
        match self.seed {
            None => (0..self.splits).collect(),
            Some(seed) => {
                let epoch = mix64(u64::from(epoch).wrapping_add(GOLDEN_GAMMA));
                SplitMix64::new(mix64(seed ^ epoch)).permutation(self.splits)
            }
        }
    }

    /// Every (epoch, place in the epoch, split), in reading order.
    pub fn all(self) -> impl Iterator<Item = (u32, u32, u32)> + Send {
        (0..self.epochs).flat_map(move |epoch| (0..).zip(self.epoch(epoch)).map(move |(i, split)| (epoch, i, split)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_split_comes_exactly_once_per_epoch(splits in 0u32..300, seed: u64, epoch in 0u32..9) {
            let mut order = SplitOrder::new(splits, 10, Some(seed)).epoch(epoch);
            order.sort_unstable();
            prop_assert_eq!(order, (0..splits).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch() {
        let order = |seed, epoch| SplitOrder::new(50, 9, Some(seed)).epoch(epoch);
        assert_eq!(order(7, 1), order(7, 1));
        assert_ne!(order(7, 1), order(8, 1));
        assert_ne!(order(7, 1), order(7, 2));
        assert_eq!(SplitOrder::new(3, 1, None).epoch(0), [0, 1, 2]);
    }

    #[test]
    fn the_shuffle_favours_no_place() {
        let mut at = [[0u32; 4]; 4];
        for seed in 0..4000 {
            for (place, split) in SplitOrder::new(4, 1, Some(seed)).epoch(0).into_iter().enumerate() {
                at[place][split as usize] += 1;
            }
        }
        assert!(at.iter().flatten().all(|n| (900..1100).contains(n)), "{at:?}");
    }
}
