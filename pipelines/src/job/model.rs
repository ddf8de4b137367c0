//! The `[model]` part of a job: a kind, and what it may be told.

use forebay_models::{ModelSpec, Pooling};
use serde::{Deserialize, Serialize};

/// Which model, and its widths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOptions {
    /// "lr", "fm", "wide_deep" (the default), "ctr_dnn", "custom" (made of the parts named below), or "own" (the program's).
    pub kind: ModelKind,
    /// "own": the model's name in the program's [`Registry`](crate::Registry). No other field of `[model]` is used then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Width of a slot's embedding. Default 16; of no use to "lr".
    pub embedding_dim: usize,
    /// Widths of the hidden layers. Default [400, 400, 400]; of no use to "lr" and "fm".
    pub hidden: Vec<usize>,
    /// How the values of a multi-valued slot become one vector: "sum" (the default) or "mean".
    pub pooling: Pooling,
    /// "custom": a linear (wide) part. Default false.
    pub linear: bool,
    /// "custom": a factorization-machine part. Default false.
    pub fm: bool,
    /// "custom": cross layers (DCN v2); 0, the default, for none.
    pub cross_layers: usize,
}

/// A model by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Logistic regression.
    Lr,
    /// Factorization machine of degree 2.
    Fm,
    /// A linear part beside a tower.
    #[default]
    WideDeep,
    /// A tower.
    CtrDnn,
    /// The parts that the other fields name; a tower if `hidden` is not empty.
    Custom,
    /// A model of the program's own.
    Own,
}

impl std::fmt::Display for ModelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Lr => "lr",
            Self::Fm => "fm",
            Self::WideDeep => "wide_deep",
            Self::CtrDnn => "ctr_dnn",
            Self::Custom => "custom",
            Self::Own => "own",
        })
    }
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            kind: ModelKind::default(),
            name: None,
            embedding_dim: 16,
            hidden: vec![400, 400, 400],
            pooling: Pooling::default(),
            linear: false,
            fm: false,
            cross_layers: 0,
        }
    }
}

impl ModelOptions {
    /// The spec for rows with this many slots and dense features. Not validated: the backend does that. An own model has no
    /// spec; this one then has no parts.
    pub fn spec(&self, slots: usize, dense: usize) -> ModelSpec {
        let spec = match self.kind {
            ModelKind::Lr => ModelSpec::lr(slots, dense),
            ModelKind::Fm => ModelSpec::fm(slots, dense, self.embedding_dim),
            ModelKind::WideDeep => ModelSpec::wide_deep(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::CtrDnn => ModelSpec::ctr_dnn(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::Own => ModelSpec::builder(slots, dense),
            ModelKind::Custom => {
                let mut spec = ModelSpec::builder(slots, dense);
                if self.linear {
                    spec = spec.with_linear();
                }
                if self.fm {
                    spec = spec.with_fm();
                }
                if self.cross_layers > 0 {
                    spec = spec.with_cross(self.cross_layers);
                }
                if !self.hidden.is_empty() {
                    spec = spec.with_tower(&self.hidden);
                }
                if spec.uses_embeddings() { spec.with_embedding(self.embedding_dim) } else { spec }
            }
        };
        spec.with_pooling(self.pooling)
    }
}
