//! The place of each layer's parameters in the flat buffer.

use std::ops::Range;

pub(super) use super::layer::Layer;

use crate::dropout::Dropout;
use crate::native::bags::{BagView, RowParts, SlotPlace, SlotVector};
use crate::native::cross_layers::CrossLayers;
use crate::native::final_mlp_layers::FinalMlpLayers;
use crate::native::two_tower_layers::TwoTowerLayers;
use crate::params::{self, Param, name_at};
use crate::{Activation, AttentionPair, DenseBatch, ModelSpec, Norm, Tasks, Tower};

/// The layers of a model with several labels.
#[derive(Debug, Clone)]
pub(super) struct TaskLayers {
    pub(super) spec: Tasks,
    /// The hidden layers of the bottom, or of each expert.
    pub(super) shared: Vec<Vec<Layer>>,
    /// One for each label, if there are experts.
    pub(super) gates: Vec<Layer>,
    /// For each label its hidden layers, then the head.
    pub(super) towers: Vec<Vec<Layer>>,
    /// Outputs of a shared stack.
    pub(super) width: usize,
}

/// A pair of attention and its activation unit: hidden layers, then the head.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) pair: AttentionPair,
    pub(super) layers: Vec<Layer>,
    pub(super) activation: Activation,
}

/// A spec and the ranges of its layers.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) spec: ModelSpec,
    pub(super) layout: Vec<Param>,
    pub(super) parts: RowParts,
    /// How each slot becomes a vector.
    pub(super) slot_vectors: Vec<SlotVector>,
    /// Where the embedding of each slot lies in `x0`; empty if all have one width.
    pub(super) places: Vec<SlotPlace>,
    pub(super) attention: Vec<Unit>,
    /// Weight of the dense features (`None` without dense features) and bias.
    pub(super) linear: Option<(Option<Range<usize>>, usize)>,
    pub(super) cross: Option<CrossLayers>,
    /// The hidden layers, then the head.
    pub(super) tower: Vec<Layer>,
    /// The layers of the labels, in a model with several.
    pub(super) tasks: Option<TaskLayers>,
    pub(super) two_towers: Option<TwoTowerLayers>,
    pub(super) final_mlp: Option<FinalMlpLayers>,
    /// With at least this many rows, the logit of a row does not depend on the number of the other rows.
    pub(super) least_rows: usize,
    /// Whether the hidden layers have relu as activation, and neither norm nor dropout: then `kernels::bias_relu` computes bias and
    /// activation together. Cross layers do not count as hidden layers here.
    pub(super) plain: bool,
    /// The activation of the hidden layers.
    pub(super) activation: Activation,
    pub(super) dropout: Option<Dropout>,
}

/// The `gemm` crate sums the products of a matrix with fewer elements than this in another order.
const FEW_ELEMENTS: usize = 256;
/// It does the same if no side is longer than this and a sum has more than [`LONG_SUM`] products.
const SHORT: usize = 64;
/// See [`SHORT`].
const LONG_SUM: usize = 512;

/// Whether a hidden layer without dropout is bias and relu alone.
fn is_plain(tower: &Tower) -> bool {
    tower.activation == Activation::Relu && tower.norm == Norm::None
}

/// The least rows with which the product with each of these layers has one order of sums.
fn least_rows<'a>(hidden: impl Iterator<Item = &'a Layer>) -> usize {
    let rows = hidden.map(|layer| match layer.outputs {
        // Always a product of a matrix and a vector.
        0 | 1 => 1,
        outputs if outputs <= SHORT && layer.inputs > LONG_SUM => (FEW_ELEMENTS / outputs + 1).max(SHORT + 1),
        outputs => (FEW_ELEMENTS / outputs + 1).max(2),
    });
    rows.max().unwrap_or(1)
}

/// About how long it takes to gather a row of `row_dim` numbers that another core wrote, or to scatter its gradient.
pub(super) fn nanoseconds_per_value(row_dim: usize) -> usize {
    1 + row_dim * 5 / 8
}

impl Network {
    /// `spec` has been validated; dropout comes from `seed`.
    pub(super) fn new(spec: ModelSpec, seed: u64) -> Network {
        let layout = params::layout(&spec);
        let range = |name: &str| layout.iter().find(|param| param.name == name).map(|param| param.range.clone());
        let layers = |part: &str| -> Vec<Layer> {
            let of_part = |param: &&Param| param.name.starts_with(part) && param.name.ends_with(".weight");
            let layer = |param: &Param| {
                let stem = param.name.trim_end_matches(".weight");
                Layer {
                    weight: param.range.clone(),
                    // A factor of a cross layer has no bias.
                    bias: range(&format!("{stem}.bias")).unwrap_or_default(),
                    gamma: range(&format!("{stem}.gamma")).unwrap_or_default(),
                    beta: range(&format!("{stem}.beta")).unwrap_or_default(),
                    slope: range(&format!("{stem}.slope")).unwrap_or_default(),
                    outputs: param.shape[0],
                    inputs: param.shape[1],
                }
            };
            layout.iter().filter(of_part).map(layer).collect()
        };
        let tower = spec.any_tower();
        let dropout = tower.and_then(|tower| Dropout::new(tower.dropout, seed));
        let (plain, activation) =
            (dropout.is_none() && tower.is_none_or(is_plain), tower.map(|tower| tower.activation).unwrap_or_default());
        let tasks = spec.tasks.as_ref().map(|tasks| TaskLayers {
            shared: tasks.shared().iter().map(|name| layers(&format!("{name}."))).collect(),
            gates: layers("gate."),
            towers: (0..tasks.labels()).map(|label| layers(&format!("task.{label}."))).collect(),
            width: tasks.tower_inputs(spec.input_width()),
            spec: tasks.clone(),
        });
        let units =
            spec.attention.iter().flat_map(|attention| attention.pairs.iter().map(|pair| (pair, &attention.unit)));
        let attention: Vec<Unit> = units
            .enumerate()
            .map(|(at, (pair, unit))| Unit {
                pair: *pair,
                layers: layers(&format!("attention.{at}.")),
                activation: unit.activation,
            })
            .collect();
        let cross = spec
            .cross
            .as_ref()
            .and_then(|cross| CrossLayers::new(layers("cross."), cross.rank.is_some(), !cross.is_stacked()));
        let bias = range("similarity.bias").map(|bias| bias.start);
        let two_towers = TwoTowerLayers::new(&spec, bias, ["user.", "item."].map(layers));
        let final_mlp = FinalMlpLayers::new(&spec, layers, range);
        let mut net = Network {
            least_rows: 1,
            final_mlp,
            attention,
            parts: RowParts {
                row_dim: spec.row_dim(),
                linear: spec.linear,
                dim: if spec.uses_embeddings() { spec.embedding_dim } else { 0 },
            },
            plain,
            activation,
            dropout,
            slot_vectors: SlotVector::of_slots(&spec),
            places: SlotPlace::of_slots(&spec),
            linear: range("linear.bias").map(|bias| (range("linear.weight"), bias.start)),
            cross,
            tower: layers("tower."),
            tasks,
            two_towers,
            layout,
            spec,
        };
        net.least_rows = least_rows(net.hidden().chain(net.attention.iter().flat_map(|unit| &unit.layers)));
        net
    }

    /// Labels, and logits, of a row.
    pub(super) fn labels(&self) -> usize {
        self.tasks.as_ref().map_or(1, |tasks| tasks.towers.len())
    }

    /// Length of the vectors of two towers, 0 without.
    pub(super) fn vector_dim(&self) -> usize {
        self.two_towers.as_ref().map_or(0, TwoTowerLayers::vector_dim)
    }

    /// The number of parameters.
    pub(super) fn len(&self) -> usize {
        params::total(&self.layout)
    }

    /// The cross layers, the hidden layers, and the layers of vectors, gates and products, in the order of their parameters.
    pub(super) fn hidden<'a>(&'a self) -> impl Iterator<Item = &'a Layer> {
        let without_head = |layers: &'a Vec<Layer>| layers.split_last().map_or(&[][..], |(_, hidden)| hidden);
        let of_tasks = self
            .tasks
            .iter()
            .flat_map(move |tasks| tasks.shared.iter().map(Vec::as_slice).chain(tasks.towers.iter().map(without_head)));
        let of_two = self.two_towers.iter().flat_map(|two| two.layers());
        let of_cross = self.cross.iter().flat_map(CrossLayers::inner);
        let of_final = self.final_mlp.iter().flat_map(FinalMlpLayers::layers);
        of_cross.chain(without_head(&self.tower)).chain(of_tasks.flatten()).chain(of_two.flatten()).chain(of_final)
    }

    /// About how long a row takes one thread, forward and backward.
    pub(super) fn nanoseconds_per_row(&self) -> usize {
        /// Six flops a weight, at 100 GFLOP/s.
        const WEIGHTS_PER_NANOSECOND: usize = 16;
        2 * self.spec.slots * nanoseconds_per_value(self.parts.row_dim) + self.len() / WEIGHTS_PER_NANOSECOND
    }

    /// About how long attention takes one thread over this many values of each history, forward and backward.
    pub(super) fn nanoseconds_of_attention(&self, values: usize) -> usize {
        /// Eight flops a weight, as the backward pass begins with the forward pass, at 50 GFLOP/s.
        const WEIGHTS_PER_NANOSECOND: usize = 6;
        let weights = |unit: &Unit| unit.layers.iter().map(|layer| layer.weight.len()).sum::<usize>();
        values * self.attention.iter().map(weights).sum::<usize>() / WEIGHTS_PER_NANOSECOND
    }

    /// The bags of a batch, from a row on.
    pub(super) fn bags<'a>(&'a self, batch: &DenseBatch<'a>, first: usize) -> BagView<'a> {
        BagView {
            slots: self.spec.slots,
            inverse: batch.inverse,
            offsets: batch.offsets,
            value_weights: batch.value_weights,
            first,
            slot_vectors: &self.slot_vectors,
            places: &self.places,
        }
    }

    /// Width of the embeddings of a row, all slots together.
    pub(super) fn embedded(&self) -> usize {
        if self.parts.dim > 0 { self.spec.embedded() } else { 0 }
    }

    /// Width of `x0`, 0 if no part reads it.
    pub(super) fn width(&self) -> usize {
        if self.parts.dim > 0 { self.spec.input_width() } else { 0 }
    }

    /// Name of the parameter that position `at` of the flat buffer belongs to.
    pub(super) fn name_of(&self, at: usize) -> &str {
        name_at(&self.layout, at).unwrap_or("?")
    }
}
