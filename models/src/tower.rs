//! The tower of a model, a multi-layer perceptron: its layers, and what follows each of them.

use serde::{Deserialize, Serialize};

/// A multi-layer perceptron: `hidden` layers, each followed by the activation, then one linear output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tower {
    /// Widths of the hidden layers, first to last; at least one.
    pub hidden: Vec<usize>,
    /// What follows each hidden layer.
    #[serde(default)]
    pub activation: Activation,
}

impl Tower {
    /// A tower of these widths, the rest as by default.
    pub fn new(hidden: &[usize]) -> Tower {
        Tower { hidden: hidden.to_vec(), activation: Activation::default() }
    }
}

/// The nonlinearity after a hidden layer of the tower.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`; its gradient at 0 is 0, as in PyTorch.
    #[default]
    Relu,
    /// `x · Φ(x)`, with Φ the distribution function of the normal distribution: the exact form, not that of tanh (Hendrycks and
    /// Gimpel 2016).
    Gelu,
    /// `x · sigmoid(x)`, also named swish (Elfwing et al. 2018; Ramachandran et al. 2017).
    Silu,
    /// `x` above 0, else `a · x`. Every unit learns its own `a`, which begins at .25 (He et al. 2015).
    Prelu,
}
