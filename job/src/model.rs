//! The `[model]` section of a job: a kind of model and its sizes.

use forebay_actors::Fault;
use forebay_models::{Activation, Cross, CrossStructure, MOST_LABELS, ModelSpec, Norm, Pooling, Similarity};
use serde::{Deserialize, Serialize};

use super::towers::{TowerColumns, TowerLoss};
use crate::columns::name_list;

/// The model: its kind and its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOptions {
    /// The kind of model.
    pub kind: ModelKind,
    /// Name of an "own" model in the program's `Registry`, for instance `my_model`. An "own" model uses no
    /// other field of `[model]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Width of the embeddings. From 1 to 65536, together with the other weights of a row. Not used by "lr".
    pub embedding_dim: usize,
    /// Widths of the hidden layers. "shared_bottom": the layers that labels share; "mmoe": each expert; "esmm": each label's tower;
    /// "final_mlp": the first tower. Not used by "lr" and "fm"; "custom" has no tower if the list is empty, and the towers of "two_towers"
    /// are then one linear layer each. The widths of this and the other lists are from 1 to 1048576.
    pub hidden: Vec<usize>,
    /// The activation of the hidden layers. Models without a tower refuse another than `relu`.
    pub activation: Activation,
    /// The normalization of the hidden layers, before their activation. Models without a tower refuse it.
    pub norm: Norm,
    /// The share of the outputs of each hidden layer that a training step drops, from 0 to below 1. Models without a tower refuse it.
    pub dropout: f64,
    /// How the embeddings of a bag become one vector.
    pub pooling: Pooling,
    /// Whether a "custom" model has a linear (wide) part, for instance `true`. Default: false. The other kinds refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<bool>,
    /// Whether a "custom" model has a factorization-machine part, for instance `true`. Default: false. The other kinds refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fm: Option<bool>,
    /// Cross layers of "dcn_v2" and "custom", at most 64, for instance `3`. Default: 3 for "dcn_v2", none for "custom". The other kinds
    /// refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_layers: Option<usize>,
    /// The rank of the weights of the cross layers, for instance `64`: each is the product of two matrices, which have
    /// `2 * rank * width` numbers instead of `width * width`. Default: square matrices. Refused without cross layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross_rank: Option<usize>,
    /// How the cross layers and the tower are combined. Refused without cross layers.
    pub cross_structure: CrossStructure,
    /// Experts of "mmoe", from 1 to 64, for instance `8`. Default: 4. The other kinds refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<usize>,
    /// Widths of the hidden layers of each label's tower, over the layers that labels share, for instance `[64]`; `[]` is one linear
    /// output. Default: `[128, 64]`. The kinds but "shared_bottom" and "mmoe" refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_hidden: Option<Vec<usize>>,
    /// Widths of the hidden layers of the second tower of "final_mlp", for instance `[800]`. Default: those of `hidden`. The other
    /// kinds refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_hidden: Option<Vec<usize>>,
    /// Heads of the fusion of "final_mlp", for instance `10`: a number that divides the last widths of both towers. Default: 1. The other
    /// kinds refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Whether the towers of "final_mlp" read gated copies of the input (the paper's feature selection).
    pub feature_gates: bool,
    /// Widths of the hidden layers of each gate, for instance `[800]`; `[]` is one linear layer. Default: `[64]`. Refused without
    /// `feature_gates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate_hidden: Option<Vec<usize>>,
    /// Columns whose embeddings the gate of the first tower of "final_mlp" reads, for instance `["user_id"]`. Default: none; the gate then
    /// reads a learned vector and is the same for all rows.
    #[serde(deserialize_with = "name_list", skip_serializing_if = "Vec::is_empty")]
    pub first_context: Vec<String>,
    /// The same for the second tower, for instance `["item_id", "city"]`.
    #[serde(deserialize_with = "name_list", skip_serializing_if = "Vec::is_empty")]
    pub second_context: Vec<String>,
    /// Histories with attention to a target, in "din" and "custom", for instance `[{ history = "history", target = "item" }]`. The weighted
    /// sum of the values replaces the pooled embedding of the history.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<HistoryAttention>,
    /// Widths of the hidden layers of attention, at least one. The default is that of FuxiCTR's DIN.
    pub attention_hidden: Vec<usize>,
    /// The activation of these layers.
    pub attention_activation: Activation,
    /// What the user tower of "two_towers" reads, for instance `{ slots = ["user_id", "history"], dense = ["age"] }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<TowerColumns>,
    /// What the item tower of "two_towers" reads, for instance `{ slots = ["item_id", "brand"], hidden = [128] }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<TowerColumns>,
    /// Length of the vectors of "two_towers", for instance `32`. Default: 64. From 1 to 1048576.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector_dim: Option<usize>,
    /// How "two_towers" compare the vector of a user with that of an item.
    pub similarity: Similarity,
    /// The divisor of the similarity of "two_towers", for instance `0.1`. Default: for the cosine 0.05 with in-batch softmax and 0.2
    /// without, for the inner product 1. A number above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// The loss of "two_towers".
    pub loss: TowerLoss,
    /// The slot of the item tower that identifies the item of a row, with one value in each row, for instance `item_id`. Only `loss =
    /// "in_batch_softmax"` uses it. Default: the only slot of the item tower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// Whether "in_batch_softmax" corrects for the frequency of items in the batches: frequent items are negatives more often.
    pub log_q: bool,
}

/// A history, and what attention compares it with. Both are columns of `columns.slots`, and normally share a `key_space`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryAttention {
    /// The slot with the history: a column of lists.
    pub history: String,
    /// The slot of the target, with one value in each row.
    pub target: String,
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
    /// DCN v2 (Wang et al., WWW 2021): a cross network and a tower, in parallel or stacked (`cross_structure`).
    DcnV2,
    /// A tower alone.
    CtrDnn,
    /// Several labels, each with a tower over shared hidden layers (Caruana, 1997).
    SharedBottom,
    /// Several labels, each with a tower over a mixture of shared experts by its own gate (MMoE: Ma et al., KDD 2018).
    Mmoe,
    /// Two labels, a click and a conversion after it, each with a tower over the same embeddings (ESMM: Ma et al., SIGIR 2018).
    Esmm,
    /// DIN (Zhou et al., KDD 2018): a tower over embeddings, with attention over histories.
    Din,
    /// FinalMLP (Mao et al., AAAI 2023): two towers over gated copies of the input, and a bilinear fusion of their outputs.
    FinalMlp,
    /// A tower for users and one for items, whose vectors are compared (DSSM: Huang et al., CIKM 2013).
    TwoTowers,
    /// The parts that `linear`, `fm`, `cross_layers`, `attention` and `hidden` select.
    Custom,
    /// The model `name` of the program.
    Own,
}

/// What depends on the kind alone. Each answer names all kinds, so that the compiler asks it for a new one.
impl ModelKind {
    /// Every kind, in the order of their declaration.
    pub(crate) const ALL: [Self; 14] = [
        Self::Lr,
        Self::Fm,
        Self::WideDeep,
        Self::DeepFm,
        Self::DcnV2,
        Self::CtrDnn,
        Self::SharedBottom,
        Self::Mmoe,
        Self::Esmm,
        Self::Din,
        Self::FinalMlp,
        Self::TwoTowers,
        Self::Custom,
        Self::Own,
    ];

    /// Whether the dense parameters are a weight for each dense input and a bias.
    pub fn dense_is_linear(self) -> bool {
        match self {
            Self::Lr | Self::Fm => true,
            Self::WideDeep | Self::DeepFm | Self::DcnV2 | Self::CtrDnn | Self::Din | Self::FinalMlp => false,
            Self::SharedBottom | Self::Mmoe | Self::Esmm | Self::TwoTowers | Self::Custom | Self::Own => false,
        }
    }

    /// How the kind uses `hidden`.
    pub(crate) fn tower(self) -> TowerUse {
        match self {
            Self::Lr | Self::Fm => TowerUse::Never,
            Self::WideDeep | Self::DeepFm | Self::DcnV2 | Self::CtrDnn | Self::Din | Self::FinalMlp => TowerUse::Always,
            Self::SharedBottom | Self::Mmoe | Self::Esmm => TowerUse::Always,
            Self::Custom | Self::TwoTowers => TowerUse::MayBeEmpty,
            Self::Own => TowerUse::OfProgram,
        }
    }

    /// Whether the kind takes several labels. The other kinds take one.
    pub(crate) fn takes_several_labels(self) -> bool {
        match self {
            Self::SharedBottom | Self::Mmoe | Self::Esmm => true,
            Self::Lr | Self::Fm | Self::WideDeep | Self::DeepFm | Self::DcnV2 | Self::CtrDnn => false,
            Self::Din | Self::FinalMlp | Self::TwoTowers | Self::Custom | Self::Own => false,
        }
    }

    /// Cross layers by default; `None` for a kind that has none.
    fn default_cross_layers(self) -> Option<usize> {
        match self {
            Self::DcnV2 => Some(DCN_V2_CROSS_LAYERS),
            Self::Custom => Some(0),
            Self::Lr | Self::Fm | Self::WideDeep | Self::DeepFm | Self::CtrDnn | Self::SharedBottom => None,
            Self::Mmoe | Self::Esmm | Self::Din | Self::FinalMlp | Self::TwoTowers | Self::Own => None,
        }
    }

    /// Whether the kind has cross layers, if `cross_layers` does not say 0.
    pub(crate) fn takes_cross_layers(self) -> bool {
        self.default_cross_layers().is_some()
    }
}

/// How a kind of model uses `hidden`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TowerUse {
    /// The kind has no tower.
    Never,
    /// At least one hidden layer.
    Always,
    /// An empty list is no tower, or a tower of one linear layer.
    MayBeEmpty,
    /// A model of the program decides itself.
    OfProgram,
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
            Self::SharedBottom => "shared_bottom",
            Self::Mmoe => "mmoe",
            Self::Esmm => "esmm",
            Self::Din => "din",
            Self::FinalMlp => "final_mlp",
            Self::TwoTowers => "two_towers",
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
            linear: None,
            fm: None,
            cross_layers: None,
            cross_rank: None,
            cross_structure: CrossStructure::default(),
            experts: None,
            task_hidden: None,
            second_hidden: None,
            heads: None,
            feature_gates: true,
            gate_hidden: None,
            first_context: Vec::new(),
            second_context: Vec::new(),
            attention: Vec::new(),
            attention_hidden: vec![64],
            attention_activation: Activation::Prelu,
            user: None,
            item: None,
            vector_dim: None,
            similarity: Similarity::default(),
            temperature: None,
            loss: TowerLoss::default(),
            item_id: None,
            log_q: true,
        }
    }
}

/// Cross layers of "dcn_v2" by default: FuxiCTR's default, and what BARS publishes for Criteo_x4.
const DCN_V2_CROSS_LAYERS: usize = 3;

/// Experts of "mmoe" and widths of the labels' towers by default: FuxiCTR's defaults.
const EXPERTS: usize = 4;
const TASK_HIDDEN: [usize; 2] = [128, 64];

impl ModelOptions {
    /// Checks combinations of values; the fault names the field.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if (self.kind == ModelKind::Own) != self.name.is_some() {
            return Err(Fault::user(
                "model.kind = \"own\" and model.name must be set together: the name is that of a model in the \
                 program's registry",
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Fault::user(format!(
                "model.dropout is {}, expected at least 0 and below 1: the share of the outputs that a step drops",
                self.dropout
            )));
        }
        if self.attention.is_empty() && self.kind == ModelKind::Din {
            return Err(Fault::user(
                "model.kind is \"din\", but model.attention is empty, expected at least one history and its target: \
                 [{ history = \"history\", target = \"item\" }]; without histories, set kind to \"ctr_dnn\"",
            ));
        }
        let has_part = self.linear == Some(true) || self.fm == Some(true) || self.cross_layer_count() > 0;
        if self.kind == ModelKind::Custom && !has_part && self.hidden.is_empty() {
            return Err(Fault::user(
                "model.kind is \"custom\", but the model has no part: set model.linear, model.fm, model.cross_layers or model.hidden",
            ));
        }
        if self.kind == ModelKind::DcnV2 && self.cross_layers == Some(0) {
            return Err(Fault::user(
                "model.cross_layers is 0, but model.kind is \"dcn_v2\": leave cross_layers out for 3, or set kind to \"ctr_dnn\" \
                 for a tower alone",
            ));
        }
        if self.cross_layer_count() > 0 && self.cross_rank == Some(0) {
            return Err(Fault::user("model.cross_rank is 0, expected at least 1: leave it out for square matrices"));
        }
        if self.cross_layer_count() > 0 && self.cross_structure == CrossStructure::Stacked && self.hidden.is_empty() {
            return Err(Fault::user(
                "model.cross_structure is \"stacked\", but model.hidden is empty, so that there is no tower to stack: set hidden, or \
                 leave cross_structure out",
            ));
        }
        Ok(())
    }

    /// Checks that the kind of model takes this number of labels.
    pub(super) fn check_labels(&self, labels: usize) -> Result<(), Fault> {
        match (self.kind.takes_several_labels(), labels) {
            (false, 1) => Ok(()),
            (false, _) => Err(Fault::user(format!(
                "columns.label has {labels} labels, but model.kind is \"{}\", which takes one: set model.kind to \"shared_bottom\", \
                 \"mmoe\" or \"esmm\", or name one label",
                self.kind
            ))),
            (true, 1) => Err(Fault::user(format!(
                "columns.label has one label, but model.kind is \"{}\", which takes several: list them, for instance \
                 [\"click\", \"buy\"], or set model.kind to \"ctr_dnn\" for one",
                self.kind
            ))),
            (true, labels) if self.kind == ModelKind::Esmm && labels != 2 => Err(Fault::user(format!(
                "columns.label has {labels} labels, but model.kind is \"esmm\", which takes two: a click, and a conversion after it"
            ))),
            (true, labels) if labels > MOST_LABELS => {
                Err(Fault::user(format!("columns.label has {labels} labels, expected at most {MOST_LABELS}")))
            }
            (true, _) => Ok(()),
        }
    }

    /// Cross layers that the model has, by its kind and its `cross_layers`.
    pub(super) fn cross_layer_count(&self) -> usize {
        self.kind.default_cross_layers().map_or(0, |default| self.cross_layers.unwrap_or(default))
    }

    /// Whether rows have a linear weight for each slot.
    pub(super) fn has_linear(&self) -> bool {
        match self.kind {
            ModelKind::Lr | ModelKind::Fm | ModelKind::WideDeep | ModelKind::DeepFm => true,
            ModelKind::Custom => self.linear == Some(true),
            ModelKind::DcnV2 | ModelKind::CtrDnn | ModelKind::SharedBottom | ModelKind::Mmoe => false,
            ModelKind::Esmm | ModelKind::Din | ModelKind::FinalMlp | ModelKind::TwoTowers | ModelKind::Own => false,
        }
    }

    /// The cross network of a model that has cross layers.
    fn cross(&self) -> Cross {
        Cross { layers: self.cross_layer_count(), rank: self.cross_rank, structure: self.cross_structure }
    }

    /// The spec for rows with this number of slots and dense features, and labels whose losses have these weights.
    /// [`Job::model_spec`](crate::Job::model_spec) adds what depends on the names of columns. For an "own" model and for two towers it has
    /// no parts.
    pub fn spec(&self, slots: usize, dense: usize, labels: &[f32]) -> ModelSpec {
        let (dim, hidden) = (self.embedding_dim, &self.hidden[..]);
        let task_hidden = self.task_hidden.as_deref().unwrap_or(&TASK_HIDDEN);
        let spec = match self.kind {
            ModelKind::Lr => ModelSpec::lr(slots, dense),
            ModelKind::Fm => ModelSpec::fm(slots, dense, self.embedding_dim),
            ModelKind::WideDeep => ModelSpec::wide_deep(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::DeepFm => ModelSpec::deep_fm(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::DcnV2 => ModelSpec::ctr_dnn(slots, dense, dim, hidden).with_cross_network(self.cross()),
            ModelKind::CtrDnn | ModelKind::Din => ModelSpec::ctr_dnn(slots, dense, self.embedding_dim, &self.hidden),
            ModelKind::SharedBottom => ModelSpec::shared_bottom(slots, dense, dim, hidden, task_hidden, labels),
            ModelKind::Mmoe => {
                let experts = self.experts.unwrap_or(EXPERTS);
                ModelSpec::mmoe(slots, dense, dim, experts, hidden, task_hidden, labels)
            }
            ModelKind::Esmm => ModelSpec::esmm(slots, dense, dim, hidden, labels),
            ModelKind::FinalMlp => ModelSpec::final_mlp(slots, dense, dim, self.final_mlp()),
            ModelKind::Own | ModelKind::TwoTowers => ModelSpec::builder(slots, dense),
            ModelKind::Custom => {
                let mut spec = ModelSpec::builder(slots, dense);
                if self.linear == Some(true) {
                    spec = spec.with_linear();
                }
                if self.fm == Some(true) {
                    spec = spec.with_fm();
                }
                if self.cross_layer_count() > 0 {
                    spec = spec.with_cross_network(self.cross());
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
    use crate::Job;

    fn spec(kind: &str, more: &str) -> ModelSpec {
        let text = format!("[model]\nkind = \"{kind}\"\nembedding_dim = 4\nhidden = [6, 5]\n{more}");
        let job = Job::from_toml(&text, &[]).unwrap();
        job.check().unwrap();
        assert_eq!(job.model.kind.to_string(), kind);
        assert_eq!(Job::from_toml(&job.to_toml(), &[]).unwrap(), job);
        job.model.spec(3, 2, &job.columns.label.weights())
    }

    #[test]
    fn all_kinds_are_in_the_list_in_their_order() {
        assert!(ModelKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        assert_eq!(ModelKind::ALL.last(), Some(&ModelKind::Own), "the last kind");
    }

    #[test]
    fn the_named_kinds_are_the_same_as_custom_models_of_their_parts() {
        let custom = |more: &str| spec("custom", more);
        assert_eq!(spec("deep_fm", ""), custom("linear = true\nfm = true"));
        assert_eq!(spec("dcn_v2", ""), custom("cross_layers = 3"));
        assert_eq!(spec("dcn_v2", "cross_layers = 2"), custom("cross_layers = 2"));
        let factors = "cross_layers = 2\ncross_rank = 3\ncross_structure = 'stacked'";
        assert_eq!(spec("dcn_v2", factors), custom(factors));
        assert_eq!(spec("dcn_v2", factors).dense_len(), 2 * (14 * 3 + 3 * 14 + 14) + spec("ctr_dnn", "").dense_len());
        assert_eq!(spec("wide_deep", ""), custom("linear = true"));
        assert_eq!(spec("ctr_dnn", ""), custom("cross_layers = 0"));
        assert_eq!(spec("ctr_dnn", ""), custom(""));
    }

    #[test]
    fn models_of_several_labels_have_their_weights_and_their_sizes() {
        let of = |kind: &str, more: &str| {
            spec(kind, &format!("{more}\n[columns]\nlabel = ['click', {{ column = 'buy', weight = 0.5 }}]"))
        };
        let weights = [1.0, 0.5];
        assert_eq!(of("shared_bottom", ""), ModelSpec::shared_bottom(3, 2, 4, &[6, 5], &[128, 64], &weights));
        assert_eq!(of("mmoe", ""), ModelSpec::mmoe(3, 2, 4, 4, &[6, 5], &[128, 64], &weights));
        assert_eq!(of("mmoe", "experts = 2\ntask_hidden = []"), ModelSpec::mmoe(3, 2, 4, 2, &[6, 5], &[], &weights));
        assert_eq!(of("esmm", ""), ModelSpec::esmm(3, 2, 4, &[6, 5], &weights));
    }

    #[test]
    fn labels_that_do_not_fit_the_model_are_refused() {
        let refused = |settings: &[&str]| {
            Job::with_settings("", settings).and_then(|job| job.check()).expect_err("refused").to_string()
        };
        let two = "columns.label=['click', 'buy']";
        let names: Vec<String> = (0..65).map(|at| format!("label{at}")).collect();
        let too_many = format!("columns.label={names:?}");
        for (settings, words) in [
            (
                &[two][..],
                "columns.label has 2 labels, but model.kind is \"wide_deep\", which takes one: set model.kind to",
            ),
            (&["model.kind=mmoe"], "columns.label has one label, but model.kind is \"mmoe\""),
            (
                &["model.kind=esmm", "columns.label=['a', 'b', 'c']"],
                "columns.label has 3 labels, but model.kind is \"esmm\"",
            ),
            (&["model.kind=mmoe", two, "data.negatives=0.5"], "data.negatives"),
            (
                &["model.kind=mmoe", two, "evaluation.label=buyy"],
                "which columns.label does not have, did you mean `buy`?",
            ),
            (&["model.kind=mmoe", "columns.label=['click', 'click']"], "two labels called `click`"),
            (&["model.kind=mmoe", "columns.label=['click', { column = 'b', weight = 0 }]"], "gives `b` the weight 0"),
            (&["columns.label={ column = 'click', weight = 2 }"], "has the weight 2, but it is the only label"),
            (
                &["columns.label={ column = 'click', mask_missing = true }"],
                "columns.label has mask_missing, but it is the only label",
            ),
            (&["columns.label=['click', { column = 'buy', mask_mising = true }]"], "mask_mising"),
            (&["columns.label=[]"], "a list of these"),
            (&["model.kind=mmoe", too_many.as_str()], "columns.label has 65 labels, expected at most 64"),
        ] {
            let said = refused(settings);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn cross_layers_that_cannot_be_are_refused() {
        for (model, words) in [
            ("kind = 'dcn_v2'\ncross_layers = 0", "model.cross_layers is 0, but model.kind is \"dcn_v2\""),
            ("kind = 'dcn_v2'\ncross_rank = 0", "model.cross_rank is 0, expected at least 1"),
            ("kind = 'custom'\ncross_layers = 0\nhidden = []", "model.kind is \"custom\", but the model has no part"),
            (
                "kind = 'custom'\ncross_layers = 2\ncross_structure = 'stacked'\nhidden = []",
                "model.cross_structure is \"stacked\", but model.hidden is empty",
            ),
            ("kind = 'dcn_v2'\ncross_structure = 'stack'", "expected `parallel` or `stacked`"),
        ] {
            let fault = Job::from_toml(&format!("[model]\n{model}"), &[]).and_then(|job| job.check());
            let fault = fault.expect_err(model).to_string();
            assert!(fault.contains(words), "{fault}");
        }
    }
}
