//! The places of the layers of two towers in the flat buffer, and of their inputs in `x0`.

use super::layer::Layer;
use crate::ModelSpec;
use crate::two_towers::{TowerSide, TwoTowers};

/// The layers of both towers.
#[derive(Debug, Clone)]
pub(super) struct TwoTowerLayers {
    pub(super) spec: TwoTowers,
    /// The place of the logit's bias; `None` with in-batch softmax.
    pub(super) bias: Option<usize>,
    pub(super) sides: [SideLayers; 2],
}

/// The layers of one tower, and where its inputs lie in `x0`.
#[derive(Debug, Clone)]
pub(super) struct SideLayers {
    /// The hidden layers, then the linear layer of the vector.
    pub(super) layers: Vec<Layer>,
    /// Runs of columns: where they begin in `x0`, where in the tower's input, and how many.
    pub(super) columns: Vec<(usize, usize, usize)>,
    /// Width of the input, and of the embeddings that it begins with.
    pub(super) width: usize,
    pub(super) embedded: usize,
    pub(super) first_hidden: usize,
}

impl TwoTowerLayers {
    /// `layers`: of the user tower and of the item tower; `bias`: the place of the logit's bias.
    pub(super) fn new(spec: &ModelSpec, bias: Option<usize>, layers: [Vec<Layer>; 2]) -> Option<TwoTowerLayers> {
        let two = spec.two_towers.clone()?;
        let all_embedded = spec.embedded();
        let side = |(side, layers): (TowerSide, Vec<Layer>)| {
            let inputs = two.inputs(side);
            let slots = inputs.slots.iter().map(|&slot| (spec.slot_at(slot), spec.dim_of(slot)));
            let dense = inputs.dense.iter().map(|column| (all_embedded + column, 1));
            let (mut columns, mut width): (Vec<(usize, usize, usize)>, usize) = (Vec::new(), 0);
            for (from, count) in slots.chain(dense) {
                match columns.last_mut() {
                    Some(last) if last.0 + last.2 == from => last.2 += count,
                    _ => columns.push((from, width, count)),
                }
                width += count;
            }
            let embedded = inputs.slots.iter().map(|&slot| spec.dim_of(slot)).sum();
            let first_hidden = two.first_hidden(side);
            SideLayers { layers, columns, width, embedded, first_hidden }
        };
        let [user, item] = layers;
        let sides = [(TowerSide::User, user), (TowerSide::Item, item)].map(side);
        Some(TwoTowerLayers { spec: two, bias, sides })
    }

    /// All layers, in the order of their parameters.
    pub(super) fn layers(&self) -> impl Iterator<Item = &[Layer]> {
        self.sides.iter().map(|side| side.layers.as_slice())
    }

    /// Length of the vectors.
    pub(super) fn vector_dim(&self) -> usize {
        self.spec.vector_dim
    }
}
