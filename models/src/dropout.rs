//! Dropout (Srivastava et al., JMLR 2014): which units a training step drops.
//!
//! The choice is a function of the model's seed, the batch's id, the layer, the row and the unit alone. So it is the same for any number of
//! threads, in any part of a batch, in every process, after a checkpoint, and in both backends; and there is no state to save.
//!
//! A layer of `w` units has a stream of SplitMix64 for each batch. Let `h = ceil(w / 2)`: word `row * h + j` of the stream decides about
//! unit `j` with its low 32 bits and about unit `h + j` with its high 32 bits.

use forebay_base::mix64;

/// Keeps these streams independent of the first values of parameters, which come from the same seed.
const SALT: u64 = 0x6472_6f70_6f75_7421;

/// Drops units at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    seed: u64,
    /// A unit is dropped if its 32 bits are below this.
    pub(crate) below: u32,
    /// The factor of a unit that stays, `1 / (1 - rate)`, so that its mean is as without dropout.
    pub(crate) scale: f32,
}

impl Dropout {
    /// For a rate from 0 to below 1. `None` for 0.
    pub(crate) fn new(rate: f64, seed: u64) -> Option<Dropout> {
        let below = (rate * (1u64 << 32) as f64) as u32;
        (rate > 0.0).then(|| Dropout { seed: mix64(seed ^ SALT), below, scale: (1.0 / (1.0 - rate)) as f32 })
    }

    /// The seed of the stream of a layer for a batch.
    pub(crate) fn stream(&self, batch: u64, layer: usize) -> u64 {
        mix64(mix64(self.seed ^ batch) ^ layer as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_batch_and_layer_and_rates_have_their_scale() {
        let dropout = Dropout::new(0.25, 7).unwrap();
        assert_eq!((dropout.below, dropout.scale), (1 << 30, 4.0 / 3.0));
        assert_eq!(Dropout::new(0.0, 7), None);
        assert_eq!(Dropout::new(1.0 - 1e-12, 7).unwrap().below, u32::MAX);
        let other = Dropout::new(0.25, 8).unwrap();
        let mut streams = vec![other.stream(0, 0)];
        streams.extend((0..4).flat_map(|batch| (0..4).map(move |layer| dropout.stream(batch, layer))));
        streams.sort_unstable();
        streams.dedup();
        assert_eq!(streams.len(), 17);
    }
}
