//! The cross network of DCN V2 (Wang et al., "DCN V2: Improved Deep & Cross Network", WWW 2021), as a spec describes it.

use serde::{Deserialize, Serialize};

use crate::ModelError;

/// The most layers of a cross network.
pub const MOST_CROSS_LAYERS: usize = 64;

/// A cross network: `x_{l+1} = x0 * (W_l x_l + b_l) + x_l` (element-wise product).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// Number of layers, at least 1; each has a square weight of `input_width()`, or its two factors.
    pub layers: usize,
    /// The rank of the weights: `W = U V`, with V `[rank x input_width]` and U `[input_width x rank]`. Default: square matrices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The structure: how the cross network and the tower go together.
    #[serde(default, skip_serializing_if = "CrossStructure::is_parallel")]
    pub structure: CrossStructure,
}

/// How a cross network and a tower go together (figure 1 of the paper).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrossStructure {
    /// Both read the embeddings and the dense features, and their logits are added up.
    #[default]
    Parallel,
    /// The tower reads the output of the cross network, which has no logit of its own.
    Stacked,
}

impl CrossStructure {
    fn is_parallel(&self) -> bool {
        *self == CrossStructure::Parallel
    }
}

impl Cross {
    /// Square matrices, beside a tower if there is one.
    pub fn new(layers: usize) -> Cross {
        Cross { layers, ..Cross::default() }
    }

    /// Whether the tower reads its output.
    pub fn is_stacked(&self) -> bool {
        self.structure == CrossStructure::Stacked
    }

    /// Refuses a cross network that no backend can run over an input of this width.
    pub(crate) fn validate(&self, width: usize, has_tower: bool) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        if !(1..=MOST_CROSS_LAYERS).contains(&self.layers) {
            let layers = self.layers;
            return refuse(format!(
                "cross.layers is {layers}, expected 1 to {MOST_CROSS_LAYERS}: leave cross out for none"
            ));
        }
        if let Some(rank) = self.rank.filter(|rank| !(1..width.max(2)).contains(rank)) {
            return refuse(format!(
                "cross.rank is {rank}, expected at least 1 and below the {width} numbers of the input (slots * embedding_dim + dense): \
                 leave it out for square matrices"
            ));
        }
        if self.is_stacked() && !has_tower {
            return refuse("cross.structure is \"stacked\", but there is no tower: set hidden, or \"parallel\"".into());
        }
        Ok(())
    }
}
