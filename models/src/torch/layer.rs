//! Linear layers over leaves of the parameters, with the norm and the activation of hidden layers.

use tch::{TchError, Tensor};

use crate::tower::NORM_EPSILON;
use crate::{Activation, Norm, Tower};

/// A linear layer.
pub(super) struct TorchLayer {
    weight: Tensor,
    bias: Tensor,
    /// `gamma` and `beta`, of a hidden layer of the tower with layer norm.
    norm: Option<(Tensor, Tensor)>,
    /// The slopes of a hidden layer of the tower whose activation learns them.
    slope: Option<Tensor>,
}

/// The parameters that no part has taken yet, in the order of the layout.
pub(super) struct Leaves<'a>(pub(super) std::slice::Iter<'a, Tensor>);

impl Leaves<'_> {
    pub(super) fn next(&mut self) -> Tensor {
        self.0.next().expect("the layout has a leaf for each parameter of the spec").shallow_clone()
    }

    /// A linear layer, with norm and activation if it is a hidden layer of `tower`.
    pub(super) fn layer(&mut self, tower: Option<&Tower>) -> TorchLayer {
        TorchLayer {
            weight: self.next(),
            bias: self.next(),
            norm: tower.filter(|tower| tower.norm == Norm::Layer).map(|_| (self.next(), self.next())),
            slope: tower.filter(|tower| tower.activation == Activation::Prelu).map(|_| self.next()),
        }
    }

    /// `hidden` hidden layers of `tower` and, with `has_last`, a linear layer behind them.
    pub(super) fn stack(&mut self, hidden: usize, tower: &Tower, has_last: bool) -> Vec<TorchLayer> {
        let mut layers: Vec<TorchLayer> = (0..hidden).map(|_| self.layer(Some(tower))).collect();
        layers.extend(has_last.then(|| self.layer(None)));
        layers
    }
}

impl TorchLayer {
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear(&self.weight, Some(&self.bias))
    }

    /// A hidden layer of the tower.
    pub(super) fn apply_hidden(&self, x: &Tensor, activation: Activation) -> Result<Tensor, TchError> {
        let mut y = self.apply(x)?;
        if let Some((gamma, beta)) = &self.norm {
            let on_cudnn = false;
            y = y.f_layer_norm(gamma.size(), Some(gamma), Some(beta), f64::from(NORM_EPSILON), on_cudnn)?;
        }
        match (activation, &self.slope) {
            (Activation::Relu, _) => y.f_relu(),
            (Activation::Gelu, _) => y.f_gelu("none"),
            (Activation::Silu, _) => y.f_silu(),
            (Activation::Sigmoid, _) => y.f_sigmoid(),
            (Activation::Prelu, Some(slope)) => y.f_prelu(slope),
            (Activation::Prelu, None) => unreachable!("the layout has slopes for prelu"),
        }
    }
}
