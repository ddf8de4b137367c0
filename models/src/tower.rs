//! The tower of a model, a multi-layer perceptron: its layers, with activation, norm and dropout.

use serde::de::{Error as _, IntoDeserializer as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::ModelError;

/// A multi-layer perceptron: `hidden` layers, each followed by the activation, then one linear output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tower {
    /// Widths of the hidden layers, first to last; at least one.
    pub hidden: Vec<usize>,
    /// The activation of each hidden layer.
    #[serde(default)]
    pub activation: Activation,
    /// The normalization of each hidden layer, before its activation.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: Norm,
    /// The share of the outputs of each hidden layer that a training step sets to 0, from 0 to below 1; the others are multiplied
    /// with `1 / (1 - dropout)`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropout: f64,
}

impl Tower {
    /// Refuses a tower that no backend can run, called `name`; `widest` is the largest width of a layer.
    pub(crate) fn validate(&self, name: &str, widest: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        if self.hidden.is_empty() {
            return refuse(format!(
                "{name}.hidden is empty, at least one hidden layer is needed: [400, 400, 400] for example"
            ));
        }
        for (layer, &width) in self.hidden.iter().enumerate() {
            if width == 0 || width > widest {
                return refuse(format!("{name}.hidden[{layer}] is {width}, expected 1 to {widest}"));
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse(format!("{name}.dropout is {}, expected at least 0 and below 1", self.dropout));
        }
        Ok(())
    }

    /// A tower of these widths, the rest as by default.
    pub fn new(hidden: &[usize]) -> Tower {
        Tower { hidden: hidden.to_vec(), activation: Activation::default(), norm: Norm::default(), dropout: 0.0 }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The nonlinearity after a hidden layer of the tower.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`; its gradient at 0 is 0, as in PyTorch.
    #[default]
    Relu,
    /// `x · Φ(x)`, where Φ is the distribution function of the normal distribution: the exact form, not the tanh approximation (Hendrycks
    /// and Gimpel 2016).
    Gelu,
    /// `x · sigmoid(x)`, also named swish (Elfwing et al. 2018; Ramachandran et al. 2017).
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x` above 0, else `a · x`. Every unit learns its own `a`, which begins at .25 (He et al. 2015).
    Prelu,
}

/// The normalization of a hidden layer of the tower, between its product and its activation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// None.
    #[default]
    None,
    /// Layer normalization: scales the units of a row to mean 0 and variance 1, then applies the learned `gamma` and `beta` (Ba et al.
    /// 2016).
    Layer,
}

/// Added to a variance before its root is taken, as in PyTorch.
pub(crate) const NORM_EPSILON: f32 = 1e-5;

impl<'de> Deserialize<'de> for Norm {
    /// Says why there is no batch normalization.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Norm, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Name {
            None,
            Layer,
        }
        let name = String::deserialize(from)?;
        if name == "batch" {
            return Err(D::Error::custom(
                "there is no batch normalization: its statistics would tie together all parts and trainers that compute a step \
                 (docs/models.md); expected `layer` or `none`",
            ));
        }
        Ok(match Name::deserialize(name.as_str().into_deserializer())? {
            Name::None => Norm::None,
            Name::Layer => Norm::Layer,
        })
    }
}
