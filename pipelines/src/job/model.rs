//! The `[model]` section of a job: a kind of model and its sizes.

use forebay_actors::Fault;
use forebay_models::{Activation, ModelSpec, Norm, Pooling};
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
    /// The activation of the hidden layers. Not used by models without a tower.
    pub activation: Activation,
    /// The normalization of the hidden layers, before their activation. Not used by models without a tower.
    pub norm: Norm,
    /// The share of the outputs of each hidden layer that a training step drops, from 0 to below 1. Not used by models without a
    /// tower.
    pub dropout: f64,
    /// How the embeddings of a bag become one vector.
    pub pooling: Pooling,
    /// Whether a "custom" model has a linear (wide) part.
    pub linear: bool,
    /// Whether a "custom" model has a factorization-machine part.
    pub fm: bool,
    /// Cross layers of "dcn_v2" and "custom", for instance `3`. Default: 3 for "dcn_v2", none for "custom". Not used by the
    /// other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_layers: Option<usize>,
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
    /// DeepFM (Guo et al., IJCAI 2017): a linear part, a factorization machine and a tower over the same embeddings.
    DeepFm,
    /// DCN v2 (Wang et al., WWW 2021), parallel structure: a cross network beside a tower, both over the same embeddings.
    DcnV2,
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
            Self::DeepFm => "deep_fm",
            Self::DcnV2 => "dcn_v2",
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
            activation: Activation::default(),
            norm: Norm::default(),
            dropout: 0.0,
            pooling: Pooling::default(),
            linear: false,
            fm: false,
            cross_layers: None,
        }
    }
}

/// Cross layers of "dcn_v2" by default: FuxiCTR's default, and what BARS publishes for Criteo_x4.
const DCN_V2_CROSS_LAYERS: usize = 3;

impl ModelOptions {
    /// Checks combinations of values; the fault names the field.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if (self.kind == ModelKind::Own) != self.name.is_some() {
            return Err(Fault::user(
                "model.kind = \"own\" and model.name need each other: the name is that of a model in the program's registry",
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Fault::user(format!(
                "model.dropout is {}, expected at least 0 and below 1: the share of the outputs that a step drops",
                self.dropout
            )));
        }
        if self.kind == ModelKind::DcnV2 && self.cross_layers == Some(0) {
            return Err(Fault::user(
                "model.cross_layers is 0, but model.kind is \"dcn_v2\": leave cross_layers out for 3, or set kind to \"ctr_dnn\" \
                 for a tower alone",
            ));
        }
        Ok(())
    }

    /// Cross layers that the model has, by its kind and its `cross_layers`.
    pub(super) fn cross_layer_count(&self) -> usize {
        match self.kind {
            ModelKind::DcnV2 => self.cross_layers.unwrap_or(DCN_V2_CROSS_LAYERS),
            ModelKind::Custom => self.cross_layers.unwrap_or(0),
            _ => 0,
        }
    }

    /// The spec for rows with this number of slots and dense features. The backend validates it. For an "own" model it has no
    /// parts.
    pub fn spec(&self, slots: usize, dense: usize) -> ModelSpec {
        let spec = match self.kind {
            ModelKind::Lr => ModelSpec::lr(slots, dense),
            ModelKind::Fm => ModelSpec::fm(slots, dense, self.embedding_dim),
            ModelKind::WideDeep => ModelSpec::wide_deep(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::DeepFm => ModelSpec::deep_fm(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::DcnV2 => {
                ModelSpec::dcn_v2(slots, dense, self.embedding_dim, self.cross_layer_count(), &self.hidden)
            }
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
                if self.cross_layer_count() > 0 {
                    spec = spec.with_cross(self.cross_layer_count());
                }
                if !self.hidden.is_empty() {
                    spec = spec.with_tower(&self.hidden);
                }
                if spec.uses_embeddings() { spec.with_embedding(self.embedding_dim) } else { spec }
            }
        };
        spec.with_pooling(self.pooling).with_activation(self.activation).with_norm(self.norm).with_dropout(self.dropout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;

    fn spec(kind: &str, more: &str) -> ModelSpec {
        let text = format!("[model]\nkind = \"{kind}\"\nembedding_dim = 4\nhidden = [6, 5]\n{more}");
        let job = Job::from_toml(&text, &[]).unwrap();
        job.check().unwrap();
        assert_eq!(job.model.kind.to_string(), kind);
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
        job.model.spec(3, 2)
    }

    #[test]
    fn the_named_kinds_are_the_same_as_custom_models_of_their_parts() {
        let custom = |more: &str| spec("custom", more);
        assert_eq!(spec("deep_fm", ""), custom("linear = true\nfm = true"));
        assert_eq!(spec("dcn_v2", ""), custom("cross_layers = 3"));
        assert_eq!(spec("dcn_v2", "cross_layers = 2"), custom("cross_layers = 2"));
        assert_eq!(spec("wide_deep", ""), custom("linear = true"));
        assert_eq!(spec("ctr_dnn", ""), custom("cross_layers = 0"));
        assert_eq!(spec("ctr_dnn", ""), custom(""));
    }

    #[test]
    fn fields_that_a_kind_does_not_use_change_nothing() {
        assert_eq!(spec("deep_fm", "cross_layers = 2\nlinear = false\nfm = false"), spec("deep_fm", ""));
        assert_eq!(spec("dcn_v2", "linear = true\nfm = true"), spec("dcn_v2", ""));
        assert_eq!(spec("ctr_dnn", "cross_layers = 2"), spec("ctr_dnn", ""));
    }

    #[test]
    fn dcn_v2_without_cross_layers_is_refused() {
        let job = Job::from_toml("[model]\nkind = 'dcn_v2'\ncross_layers = 0", &[]).unwrap();
        let fault = job.check().unwrap_err().to_string();
        assert!(fault.contains("model.cross_layers is 0") && fault.contains("ctr_dnn"), "{fault}");
    }
}
