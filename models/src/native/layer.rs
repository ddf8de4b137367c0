//! The place of a linear layer, its norm and its activation in the flat buffer of parameters.

use std::ops::Range;

use super::activate::Behind;
use super::matrix::MatrixView;

/// A linear layer: weight `[outputs x inputs]`, bias `[outputs]`, and the parameters of its norm and its activation.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) weight: Range<usize>,
    pub(super) bias: Range<usize>,
    /// `[outputs]`; empty without layer norm, and so is `beta`.
    pub(super) gamma: Range<usize>,
    pub(super) beta: Range<usize>,
    /// `[outputs]`; empty unless its activation learns slopes.
    pub(super) slope: Range<usize>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Layer {
    /// The parameters after the weight.
    pub(super) fn behind<'a>(&self, params: &'a [f32]) -> Behind<&'a [f32]> {
        Behind {
            bias: &params[self.bias.clone()],
            gamma: &params[self.gamma.clone()],
            beta: &params[self.beta.clone()],
            slope: &params[self.slope.clone()],
        }
    }

    /// The same of the gradients.
    pub(super) fn behind_mut<'a>(&self, grads: &'a mut [f32]) -> Behind<&'a mut [f32]> {
        let (bias, rest) = grads[self.bias.start..].split_at_mut(self.outputs);
        let (gamma, rest) = rest.split_at_mut(self.gamma.len());
        let (beta, rest) = rest.split_at_mut(self.beta.len());
        Behind { bias, gamma, beta, slope: &mut rest[..self.slope.len()] }
    }
}

/// The weight of a layer, `[outputs x inputs]`.
pub(super) fn weight<'a>(params: &'a [f32], layer: &Layer) -> MatrixView<'a> {
    MatrixView::new(&params[layer.weight.clone()], layer.outputs, layer.inputs, layer.inputs)
}
