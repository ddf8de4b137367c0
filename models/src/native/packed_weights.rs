//! The packed weights of a model's layers, for a model that only predicts.

use std::collections::HashMap;

use super::network::{Layer, Network};
use super::packed_weight::PackedWeight;
use super::step_weights::StepWeights;

/// Packed weights by the place of the weight in the parameters.
pub(super) struct PackedWeights(HashMap<usize, PackedWeight>);

/// The parameters of a model.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) params: &'a [f32],
    /// Packed copies of layers' weights, if the model only predicts.
    pub(super) packed: Option<&'a PackedWeights>,
    /// The same in a training step.
    pub(super) of_step: Option<&'a StepWeights>,
}

impl PackedWeights {
    /// Packs the weights of all layers that can be packed.
    pub(super) fn new(net: &Network, params: &[f32]) -> Self {
        let packed = net.hidden().filter_map(|layer| {
            Some((layer.weight.start, PackedWeight::new(&params[layer.weight.clone()], layer.inputs)?))
        });
        Self(packed.collect())
    }

    /// The weight of a layer; `None` if it is not packed.
    pub(super) fn of(&self, layer: &Layer) -> Option<&PackedWeight> {
        self.0.get(&layer.weight.start)
    }
}
