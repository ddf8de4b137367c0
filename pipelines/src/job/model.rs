//! The `[model]` section of a job: a kind of model and its sizes.

use forebay_models::{ModelSpec, Pooling};
use serde::{Deserialize, Serialize};

/// The model: its kind and its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOptions {
    /// The kind of model.
    pub kind: ModelKind,
    /// Name of an "own" model in the program's [`Registry`](crate::Registry), for instance `two_towers`. An "own" model uses no
    /// other field of `[model]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Width of the embeddings. Not used by "lr".
    pub embedding_dim: usize,
    /// Widths of the hidden layers. Not used by "lr" and "fm"; "custom" has no tower if the list is empty.
    pub hidden: Vec<usize>,
    /// How the embeddings of a bag become one vector.
    pub pooling: Pooling,
    /// Whether a "custom" model has a linear (wide) part.
    pub linear: bool,
    /// Whether a "custom" model has a factorization-machine part.
    pub fm: bool,
    /// Cross layers (DCN v2) of a "custom" model.
    pub cross_layers: usize,
}

/// A kind of model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Logistic regression.
    Lr,
    /// Factorization machine of degree 2.
    Fm,
    /// Wide & Deep: a linear part and a tower.
    #[default]
    WideDeep,
    /// A tower alone.
    CtrDnn,
    /// The parts that `linear`, `fm`, `cross_layers` and `hidden` select.
    Custom,
    /// The model `name` of the program.
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
    /// The spec for rows with this number of slots and dense features. The backend validates it. For an "own" model it has no
    /// parts.
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
