//! The description of a model, from a job file or from code; both backends run it.
//!
//! The logit is a sum of optional parts: `linear + fm + cross + tower`.

use serde::{Deserialize, Serialize};

use crate::two_towers::{Similarity, TowerInputs, TwoTowers, TwoTowersLoss};
use crate::{Activation, Attention, AttentionPair, Cross, FinalMlp, ModelError, Norm, Sharing, Tasks, Tower};

/// A click model over `slots` categorical columns and `dense` numeric ones. The logit is the sum of the parts present.
///
/// Shapes, for one row: the values of a slot are pooled into one row vector `[row_dim]`, which the parts share:
/// `[linear (1) | embedding (embedding_dim)]`. A slot without any value pools to zeros.
/// - `linear`: the pooled per-key weights, summed over slots, plus `dense` weights and a bias (logistic regression).
/// - `fm`: the pairwise interactions of the pooled slot embeddings (Rendle, "Factorization Machines", ICDM 2010).
/// - `cross`: the cross network of DCN V2 (Wang et al., WWW 2021) with a linear head of its own, unless the tower is stacked on it.
/// - `tower`: a multi-layer perceptron with one output.
///
/// With `tasks` there are several labels, each with a logit of its own, and none of these parts; with `two_towers` the logit is the
/// similarity of two vectors; with `final_mlp` it is the fusion of two towers.
///
/// `cross`, `tower` (unless stacked), `final_mlp` and `tasks` read `x0 = [slot 0 embedding | slot 1 embedding | .. | dense]`, of
/// `input_width()` numbers. With `slot_dims` these embeddings differ in width.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Categorical columns, at least 1.
    pub slots: usize,
    /// Numeric columns; may be 0.
    #[serde(default)]
    pub dense: usize,
    /// Width of a key's embedding; 0 exactly when no part uses embeddings.
    #[serde(default)]
    pub embedding_dim: usize,
    /// How several values in one slot become one vector.
    #[serde(default)]
    pub pooling: Pooling,
    /// The same for each slot, if not all slots have `pooling`: empty, or one for each slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slot_pooling: Vec<Pooling>,
    /// Width of the embeddings of each slot, if not all slots have `embedding_dim`: empty, or one for each slot, the largest of them
    /// `embedding_dim`. A narrower embedding takes the first numbers of its part of a row. For a slot with width 0 the linear part reads
    /// the weight, and no other part reads the slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slot_dims: Vec<usize>,
    /// Whether the model has the linear (wide) part.
    #[serde(default)]
    pub linear: bool,
    /// Whether the model has the pairwise part of a factorization machine.
    #[serde(default)]
    pub fm: bool,
    /// The multi-layer perceptron, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tower: Option<Tower>,
    /// The cross network, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross: Option<Cross>,
    /// The parts of a model with several labels; such a model has no other part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Tasks>,
    /// The two towers whose vectors are compared, if any; such a model has no other part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub two_towers: Option<TwoTowers>,
    /// Attention in place of the pooled embeddings of histories, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<Attention>,
    /// Two towers over gated copies of `x0` and their fusion, if any; such a model has no other part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_mlp: Option<FinalMlp>,
}

/// How the values of one slot of one row are combined; applies to every part of the row, the linear weight included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The sum.
    #[default]
    Sum,
    /// The sum divided by the number of values.
    Mean,
    /// The largest number of each component. Only its row gets a gradient; of equal numbers, the row of the first value.
    Max,
}

/// One part of a key's row in the sparse table: a name for the job file and a width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPart {
    /// `linear`, `embedding` or `count` for the models of this crate.
    pub name: String,
    /// Weights per key.
    pub dim: usize,
}

impl RowPart {
    /// A part of that name and width.
    pub fn new(name: &str, dim: usize) -> RowPart {
        RowPart { name: name.to_string(), dim }
    }
}

/// The largest width of a layer or a row, and the largest number of columns: products of sizes stay far from overflow.
pub const WIDEST_LAYER: usize = 1 << 20;

/// The most dense parameters: 16 GiB, and as much again for each state of their optimizer.
const MOST_PARAMETERS: usize = 1 << 32;

impl ModelSpec {
    /// Logistic regression: the linear part alone.
    pub fn lr(slots: usize, dense: usize) -> ModelSpec {
        ModelSpec {
            slots,
            dense,
            embedding_dim: 0,
            pooling: Pooling::Sum,
            slot_pooling: Vec::new(),
            slot_dims: Vec::new(),
            linear: true,
            fm: false,
            tower: None,
            cross: None,
            tasks: None,
            two_towers: None,
            attention: None,
            final_mlp: None,
        }
    }

    /// Factorization machine of second order: linear part and pairwise interactions.
    pub fn fm(slots: usize, dense: usize, embedding_dim: usize) -> ModelSpec {
        ModelSpec { embedding_dim, fm: true, ..ModelSpec::lr(slots, dense) }
    }

    /// Wide & Deep (Cheng et al., 2016): linear part and tower.
    pub fn wide_deep(slots: usize, dense: usize, embedding_dim: usize, hidden: &[usize]) -> ModelSpec {
        ModelSpec { linear: true, ..ModelSpec::ctr_dnn(slots, dense, embedding_dim, hidden) }
    }

    /// DeepFM (Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017): linear part,
    /// pairwise part and tower, over the same embeddings. Dense columns enter the linear part and the tower; to enter the
    /// pairwise part, a number must be a slot, in buckets.
    pub fn deep_fm(slots: usize, dense: usize, embedding_dim: usize, hidden: &[usize]) -> ModelSpec {
        ModelSpec { fm: true, ..ModelSpec::wide_deep(slots, dense, embedding_dim, hidden) }
    }

    /// DCN V2 (Wang et al., "DCN V2: Improved Deep & Cross Network", WWW 2021) in its parallel structure: a cross network of
    /// `cross_layers` layers beside a tower.
    ///
    /// The paper puts one linear layer over both outputs, joined: `w [c | d] + b`, where `c` is the last cross vector and `d` the last
    /// hidden layer. This equals `w_c c + w_d d + b`, with `w` cut where `d` begins: the sum of a linear output for each part, as this
    /// crate computes it. Only the bias differs: here it is the sum of two.
    pub fn dcn_v2(
        slots: usize,
        dense: usize,
        embedding_dim: usize,
        cross_layers: usize,
        hidden: &[usize],
    ) -> ModelSpec {
        ModelSpec::ctr_dnn(slots, dense, embedding_dim, hidden).with_cross(cross_layers)
    }

    /// CTR-DNN: the tower alone. The reference widths are `[400, 400, 400]`, the heavy ones `[4096, 2048, 1024]`.
    pub fn ctr_dnn(slots: usize, dense: usize, embedding_dim: usize, hidden: &[usize]) -> ModelSpec {
        ModelSpec { linear: false, embedding_dim, tower: Some(Tower::new(hidden)), ..ModelSpec::lr(slots, dense) }
    }

    /// Several labels over a shared stack of `hidden` layers, with a tower of `task_hidden` layers for each. `weights`: of the labels'
    /// losses. See [`Sharing::SharedBottom`].
    pub fn shared_bottom(
        slots: usize,
        dense: usize,
        embedding_dim: usize,
        hidden: &[usize],
        task_hidden: &[usize],
        weights: &[f32],
    ) -> ModelSpec {
        let sharing = Sharing::SharedBottom { hidden: hidden.to_vec() };
        ModelSpec::builder(slots, dense).with_embedding(embedding_dim).with_tasks(sharing, task_hidden, weights)
    }

    /// Several labels over experts of `hidden` layers. See [`Sharing::Mmoe`].
    pub fn mmoe(
        slots: usize,
        dense: usize,
        embedding_dim: usize,
        experts: usize,
        hidden: &[usize],
        task_hidden: &[usize],
        weights: &[f32],
    ) -> ModelSpec {
        let sharing = Sharing::Mmoe { experts, hidden: hidden.to_vec() };
        ModelSpec::builder(slots, dense).with_embedding(embedding_dim).with_tasks(sharing, task_hidden, weights)
    }

    /// A click and a conversion after it, with a tower of `hidden` layers for each. See [`Sharing::Esmm`].
    pub fn esmm(slots: usize, dense: usize, embedding_dim: usize, hidden: &[usize], weights: &[f32]) -> ModelSpec {
        ModelSpec::builder(slots, dense).with_embedding(embedding_dim).with_tasks(Sharing::Esmm {}, hidden, weights)
    }

    /// DIN (Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018): attention over histories, with an
    /// activation unit of the widths `unit`, and the tower.
    pub fn din(
        slots: usize,
        dense: usize,
        embedding_dim: usize,
        pairs: &[AttentionPair],
        unit: &[usize],
        hidden: &[usize],
    ) -> ModelSpec {
        let unit = Tower { activation: Activation::Prelu, ..Tower::new(unit) };
        ModelSpec::ctr_dnn(slots, dense, embedding_dim, hidden)
            .with_attention(Attention { pairs: pairs.to_vec(), unit })
    }

    /// Two towers with these inputs, hidden layers of these widths and vectors of this length, compared by the cosine over a temperature
    /// of .1, with the loss of single rows.
    pub fn two_towers(
        slots: usize,
        dense: usize,
        embedding_dim: usize,
        user: TowerInputs,
        item: TowerInputs,
        hidden: &[usize],
        vector_dim: usize,
    ) -> ModelSpec {
        let (similarity, loss, tower) = (Similarity::Cosine, TwoTowersLoss::Logloss, Tower::new(hidden));
        let two_towers = TwoTowers { user, item, vector_dim, similarity, temperature: 0.1, loss, tower };
        ModelSpec { two_towers: Some(two_towers), ..ModelSpec::builder(slots, dense).with_embedding(embedding_dim) }
    }

    /// FinalMLP: see [`FinalMlp`].
    pub fn final_mlp(slots: usize, dense: usize, embedding_dim: usize, final_mlp: FinalMlp) -> ModelSpec {
        ModelSpec { final_mlp: Some(final_mlp), ..ModelSpec::builder(slots, dense).with_embedding(embedding_dim) }
    }

    /// A spec without parts. Add parts with the `with_` methods.
    pub fn builder(slots: usize, dense: usize) -> ModelSpec {
        ModelSpec { linear: false, ..ModelSpec::lr(slots, dense) }
    }

    /// Sets the width of the embeddings.
    pub fn with_embedding(mut self, dim: usize) -> ModelSpec {
        self.embedding_dim = dim;
        self
    }

    /// Sets how multi-valued slots are pooled.
    pub fn with_pooling(mut self, pooling: Pooling) -> ModelSpec {
        self.pooling = pooling;
        self
    }

    /// Sets how each slot is pooled.
    pub fn with_slot_pooling(mut self, pooling: Vec<Pooling>) -> ModelSpec {
        self.slot_pooling = pooling;
        self
    }

    /// Sets the width of the embeddings of each slot; the largest is the width of the embeddings in a row.
    pub fn with_slot_dims(mut self, dims: Vec<usize>) -> ModelSpec {
        self.embedding_dim = dims.iter().copied().max().unwrap_or(self.embedding_dim);
        self.slot_dims = dims;
        self
    }

    /// Adds the linear part.
    pub fn with_linear(mut self) -> ModelSpec {
        self.linear = true;
        self
    }

    /// Adds the pairwise part.
    pub fn with_fm(mut self) -> ModelSpec {
        self.fm = true;
        self
    }

    /// Adds a tower with these hidden widths.
    pub fn with_tower(mut self, hidden: &[usize]) -> ModelSpec {
        self.tower = Some(Tower::new(hidden));
        self
    }

    /// Sets the activation of the tower, or of the labels' towers, if there are any.
    pub fn with_activation(mut self, activation: Activation) -> ModelSpec {
        if let Some(tower) = self.tower_mut() {
            tower.activation = activation;
        }
        self
    }

    /// Sets the normalization of the tower, or of the labels' towers, if there are any.
    pub fn with_norm(mut self, norm: Norm) -> ModelSpec {
        if let Some(tower) = self.tower_mut() {
            tower.norm = norm;
        }
        self
    }

    /// Sets the dropout of the tower, or of the labels' towers, if there are any.
    pub fn with_dropout(mut self, rate: f64) -> ModelSpec {
        if let Some(tower) = self.tower_mut() {
            tower.dropout = rate;
        }
        self
    }

    /// Adds a cross network with this many layers of square matrices.
    pub fn with_cross(self, layers: usize) -> ModelSpec {
        self.with_cross_network(Cross::new(layers))
    }

    /// Adds a cross network.
    pub fn with_cross_network(mut self, cross: Cross) -> ModelSpec {
        self.cross = Some(cross);
        self
    }

    /// Makes it a model of several labels.
    pub fn with_tasks(mut self, sharing: Sharing, task_hidden: &[usize], weights: &[f32]) -> ModelSpec {
        self.tasks = Some(Tasks { sharing, weights: weights.to_vec(), tower: Tower::new(task_hidden) });
        self
    }

    /// Sets the similarity and the temperature of two towers, if there are any.
    pub fn with_similarity(mut self, similarity: Similarity, temperature: f32) -> ModelSpec {
        if let Some(two) = &mut self.two_towers {
            (two.similarity, two.temperature) = (similarity, temperature);
        }
        self
    }

    /// Makes the loss of two towers, if there are any, a softmax over the items of the batch, which this slot names.
    pub fn with_in_batch_softmax(mut self, item: usize, log_q: bool) -> ModelSpec {
        if let Some(two) = &mut self.two_towers {
            two.loss = TwoTowersLoss::InBatchSoftmax { item, log_q };
        }
        self
    }

    fn tower_mut(&mut self) -> Option<&mut Tower> {
        let of_two = self.two_towers.as_mut().map(|two| &mut two.tower);
        let of_final = self.final_mlp.as_mut().map(|final_mlp| &mut final_mlp.tower);
        self.tower.as_mut().or(self.tasks.as_mut().map(|tasks| &mut tasks.tower)).or(of_two).or(of_final)
    }

    /// The tower whose activation, norm and dropout hold in all hidden layers: the tower of the model, or of each label.
    pub(crate) fn any_tower(&self) -> Option<&Tower> {
        let of_two = self.two_towers.as_ref().map(|two| &two.tower);
        let of_final = self.final_mlp.as_ref().map(|final_mlp| &final_mlp.tower);
        self.tower.as_ref().or(self.tasks.as_ref().map(|tasks| &tasks.tower)).or(of_two).or(of_final)
    }

    /// Number of labels, and of logits of a row.
    pub fn labels(&self) -> usize {
        self.tasks.as_ref().map_or(1, Tasks::labels)
    }

    /// Adds attention over histories.
    pub fn with_attention(mut self, attention: Attention) -> ModelSpec {
        self.attention = Some(attention);
        self
    }

    /// Refuses a spec that no backend can run.
    ///
    /// # Errors
    /// [`ModelError::Spec`] with the field, what it holds and what it may hold.
    pub fn validate(&self) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        if self.slots == 0 {
            return refuse("slots is 0, at least one categorical column is needed".into());
        }
        let has_parts = self.linear || self.fm || self.tower.is_some() || self.cross.is_some();
        if self.two_towers.is_some() && (has_parts || self.tasks.is_some() || self.attention.is_some()) {
            return refuse("a model with two_towers has no other part".into());
        }
        let is_two = self.two_towers.is_some();
        if self.final_mlp.is_some() && (has_parts || is_two || self.tasks.is_some() || self.attention.is_some()) {
            return refuse("a model with final_mlp has no other part".into());
        }
        match (has_parts || is_two || self.final_mlp.is_some(), &self.tasks) {
            (false, None) => return refuse("no part at all: set at least one of linear, fm, tower, cross".into()),
            (true, Some(_)) => {
                return refuse("a model of several labels (tasks) has no linear, fm, tower or cross part".into());
            }
            _ => {}
        }
        for (name, width) in [("slots", self.slots), ("dense", self.dense), ("embedding_dim", self.embedding_dim)] {
            if width > WIDEST_LAYER {
                return refuse(format!("{name} is {width}, at most {WIDEST_LAYER} is possible"));
            }
        }
        if !self.slot_pooling.is_empty() && self.slot_pooling.len() != self.slots {
            let (found, slots) = (self.slot_pooling.len(), self.slots);
            return refuse(format!(
                "slot_pooling has {found} entries for {slots} slots, expected one for each, or none"
            ));
        }
        self.check_slot_dims()?;
        match (self.uses_embeddings(), self.embedding_dim) {
            (true, 0) => {
                return refuse(
                    "embedding_dim is 0, but fm, tower, cross and tasks need embeddings: set it, 10 for example".into(),
                );
            }
            (false, dim) if dim > 0 => {
                return refuse(format!(
                    "embedding_dim is {dim}, but no part uses embeddings: leave it out, or add fm, tower or cross"
                ));
            }
            _ => {}
        }
        if let Some(tower) = &self.tower {
            tower.validate("tower", WIDEST_LAYER)?;
        }
        if let Some(tasks) = &self.tasks {
            tasks.validate(WIDEST_LAYER)?;
        }
        if let Some(two_towers) = &self.two_towers {
            two_towers.validate(self.slots, self.dense, WIDEST_LAYER)?;
        }
        if let Some(final_mlp) = &self.final_mlp {
            final_mlp.validate(self.slots, WIDEST_LAYER)?;
        }
        if let Some(attention) = &self.attention {
            attention.validate(self.slots, WIDEST_LAYER)?;
            if self.linear {
                return refuse("attention beside a linear part: attention gives no linear weight of a history".into());
            }
        }
        if self.input_width() > WIDEST_LAYER {
            return refuse(format!(
                "slots * embedding_dim + dense is {}, at most {WIDEST_LAYER} is possible",
                self.input_width()
            ));
        }
        if let Some(cross) = &self.cross {
            cross.validate(self.input_width(), self.tower.is_some())?;
        }
        match self.dense_len() {
            parameters if parameters > MOST_PARAMETERS => refuse(format!(
                "the layers have {parameters} weights together, at most {MOST_PARAMETERS} are possible: make them narrower"
            )),
            _ => Ok(()),
        }
    }

    fn check_slot_dims(&self) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        let (dims, dim) = (&self.slot_dims, self.embedding_dim);
        let Some(&widest) = dims.iter().max() else { return Ok(()) };
        if dims.len() != self.slots {
            let (found, slots) = (dims.len(), self.slots);
            return refuse(format!("slot_dims has {found} entries for {slots} slots, expected one for each, or none"));
        }
        if widest != dim {
            return refuse(format!("the largest of slot_dims is {widest}, expected embedding_dim, {dim}"));
        }
        let read_by_linear = self.linear && self.attention.is_none();
        if let Some(slot) = dims.iter().position(|dim| *dim == 0 && !read_by_linear) {
            return refuse(format!(
                "slot_dims[{slot}] is 0, expected at least 1: without a linear part no part reads the slot"
            ));
        }
        let one_width = [("fm", self.fm), ("attention", self.attention.is_some())];
        let Some((part, _)) = one_width.iter().find(|(_, there)| *there) else { return Ok(()) };
        match dims.iter().position(|dim| ![0, widest].contains(dim)) {
            Some(slot) => refuse(format!(
                "slot_dims[{slot}] is {}, but {part} multiplies the embeddings of slots with each other: all must have the width {widest}",
                dims[slot]
            )),
            None => Ok(()),
        }
    }

    /// Width of the embeddings of a slot.
    pub fn dim_of(&self, slot: usize) -> usize {
        self.slot_dims.get(slot).copied().unwrap_or(self.embedding_dim)
    }

    /// Where the embedding of a slot begins in `x0`; for the slot after the last, where all embeddings end.
    pub fn slot_at(&self, slot: usize) -> usize {
        match self.slot_dims.get(..slot) {
            Some(before) if !self.slot_dims.is_empty() => before.iter().sum(),
            _ => slot.saturating_mul(self.embedding_dim),
        }
    }

    /// Width of the embeddings of all slots together.
    pub fn embedded(&self) -> usize {
        self.slot_at(self.slots)
    }

    /// How a slot is pooled.
    pub fn pooling_of(&self, slot: usize) -> Pooling {
        self.slot_pooling.get(slot).copied().unwrap_or(self.pooling)
    }

    /// Whether any part reads embeddings.
    pub fn uses_embeddings(&self) -> bool {
        let of_x0 = self.tower.is_some() || self.cross.is_some() || self.tasks.is_some() || self.final_mlp.is_some();
        self.fm || of_x0 || self.two_towers.is_some()
    }

    /// The parts of a key's row, in the order in which they lie there.
    pub fn parts(&self) -> Vec<RowPart> {
        let mut parts = Vec::new();
        if self.linear {
            parts.push(RowPart::new("linear", 1));
        }
        if self.two_towers.as_ref().is_some_and(TwoTowers::counts_items) {
            parts.push(RowPart::new("count", 1));
        }
        if self.uses_embeddings() {
            parts.push(RowPart::new("embedding", self.embedding_dim));
        }
        parts
    }

    /// Weights per key: the widths of all parts together.
    pub fn row_dim(&self) -> usize {
        self.parts().iter().map(|part| part.dim).sum()
    }

    /// Width of `x0`: all pooled embeddings of a row, then its dense features.
    pub fn input_width(&self) -> usize {
        self.embedded() + self.dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CrossStructure;

    fn message(spec: &ModelSpec) -> String {
        spec.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn layers_that_no_machine_holds_are_refused() {
        let tower = |width| ModelSpec::wide_deep(26, 13, 10, &[width, width]).validate();
        tower(40_000).unwrap();
        let said = tower(1 << 20).unwrap_err().to_string();
        assert!(said.contains("weights together, at most 4294967296 are possible"), "{said}");
    }

    #[test]
    fn presets_are_valid_and_lay_rows_out_linear_first() {
        let specs = [
            ModelSpec::lr(26, 13),
            ModelSpec::fm(26, 13, 8),
            ModelSpec::wide_deep(26, 13, 10, &[400, 400]),
            ModelSpec::ctr_dnn(26, 13, 10, &[4096, 2048, 1024]),
            ModelSpec::builder(3, 0).with_embedding(4).with_cross(2).with_pooling(Pooling::Mean),
            ModelSpec::deep_fm(26, 13, 10, &[400, 400]),
            ModelSpec::dcn_v2(3, 2, 4, 2, &[6, 5]),
            ModelSpec::ctr_dnn(3, 2, 4, &[6, 5])
                .with_activation(Activation::Prelu)
                .with_norm(Norm::Layer)
                .with_dropout(0.1),
            ModelSpec::shared_bottom(3, 2, 4, &[6, 5], &[], &[1.0, 0.5, 2.0]),
            ModelSpec::mmoe(3, 2, 4, 2, &[6, 5], &[3], &[1.0, 0.5]),
            ModelSpec::esmm(3, 2, 4, &[6, 5], &[1.0, 1.0]),
            ModelSpec::din(3, 2, 4, &[AttentionPair { history: 2, target: 0 }], &[7], &[6, 5]),
        ];
        let dims: Vec<usize> = specs.iter().map(ModelSpec::row_dim).collect();
        assert_eq!(dims, [1, 9, 11, 10, 4, 11, 4, 4, 4, 4, 4, 4]);
        for spec in &specs {
            spec.validate().unwrap();
            let text = toml::to_string(spec).unwrap();
            assert_eq!(&toml::from_str::<ModelSpec>(&text).unwrap(), spec, "{text}");
        }
        assert_eq!(specs[2].parts(), [RowPart::new("linear", 1), RowPart::new("embedding", 10)]);
        assert_eq!(specs[3].input_width(), 273);
        assert_eq!(specs[0].dense_len(), 13 + 1);
        assert_eq!(specs[1].dense_len(), 13 + 1);
        assert_eq!(specs[2].dense_len(), 14 + (273 * 400 + 400) + (400 * 400 + 400) + (400 + 1));
        assert_eq!(specs[4].dense_len(), 2 * (12 * 12 + 12) + (12 + 1));
        // The pairwise part has no dense parameters.
        assert_eq!(specs[5].dense_len(), specs[2].dense_len());
        // Two cross layers and their head; the tower and its head.
        let tower = (14 * 6 + 6) + (6 * 5 + 5) + (5 + 1);
        assert_eq!(specs[6].dense_len(), 2 * (14 * 14 + 14) + (14 + 1) + tower);
        // Gamma, beta and a slope for each hidden unit.
        assert_eq!(specs[7].dense_len(), tower + 3 * (6 + 5));
        // The tower without its head, and a head for each label.
        assert_eq!(specs[8].dense_len(), tower + 2 * (5 + 1));
        // Experts, gates, a hidden layer and a head for each label.
        assert_eq!(specs[9].dense_len(), 2 * (tower - (5 + 1)) + 2 * (14 * 2 + 2) + 2 * (5 * 3 + 3 + 3 + 1));
        assert_eq!(specs[10].dense_len(), 2 * tower);
        assert_eq!([0, 8, 9, 10].map(|at: usize| specs[at].labels()), [1, 3, 2, 2]);
        // A layer over four vectors with slopes, and its head.
        assert_eq!(specs[11].dense_len(), tower + (16 * 7 + 7 + 7) + (7 + 1));
    }

    #[test]
    fn an_invalid_spec_says_what_to_change() {
        let ok = ModelSpec::ctr_dnn(2, 1, 4, &[8]);
        assert!(message(&ModelSpec { slots: 0, ..ok.clone() }).contains("slots is 0"));
        assert!(message(&ModelSpec::builder(2, 1)).contains("no part at all"));
        assert!(message(&ModelSpec { embedding_dim: 0, ..ok.clone() }).contains("need embeddings"));
        assert!(message(&ModelSpec { embedding_dim: 3, ..ModelSpec::lr(2, 1) }).contains("no part uses embeddings"));
        assert!(message(&ok.clone().with_tower(&[])).contains("tower.hidden is empty"));
        assert!(message(&ok.clone().with_tower(&[3, 0])).contains("tower.hidden[1] is 0"));
        for (rate, shown) in [(1.0, "1"), (-0.1, "-0.1"), (f64::NAN, "NaN")] {
            assert!(message(&ok.clone().with_dropout(rate)).contains(&format!("tower.dropout is {shown}")), "{rate}");
        }
        let din = |pairs: &[(usize, usize)], unit: &[usize]| {
            let pairs: Vec<AttentionPair> =
                pairs.iter().map(|&(history, target)| AttentionPair { history, target }).collect();
            ModelSpec::din(4, 1, 4, &pairs, unit, &[8])
        };
        din(&[(0, 1), (2, 1)], &[3]).validate().unwrap();
        assert!(message(&din(&[], &[3])).contains("attention.pairs is empty"));
        assert!(message(&din(&[(4, 0)], &[3])).contains("slots 4 and 0, but there are 4"));
        assert!(message(&din(&[(1, 1)], &[3])).contains("slot 1 is a history and a target"));
        assert!(message(&din(&[(0, 1), (2, 0)], &[3])).contains("slot 0 is a history and a target"));
        assert!(message(&din(&[(0, 1), (0, 2)], &[3])).contains("slot 0 is the history of two pairs"));
        assert!(message(&din(&[(0, 1)], &[])).contains("attention.unit.hidden is empty"));
        assert!(message(&din(&[(0, 1)], &[3, 0])).contains("attention.unit.hidden has 0"));
        assert!(message(&din(&[(0, 1)], &[3]).with_linear()).contains("beside a linear part"));
        assert!(message(&ok.clone().with_cross(0)).contains("cross.layers is 0"));
        let low = |rank| Cross { rank: Some(rank), ..Cross::new(2) };
        ok.clone().with_cross_network(low(8)).validate().unwrap();
        for rank in [0, 9] {
            let said = message(&ok.clone().with_cross_network(low(rank)));
            assert!(
                said.contains(&format!("cross.rank is {rank}, expected at least 1 and below the 9 numbers")),
                "{said}"
            );
        }
        let stacked = Cross { structure: CrossStructure::Stacked, ..Cross::new(2) };
        ok.clone().with_cross_network(stacked.clone()).validate().unwrap();
        let alone = ModelSpec::builder(2, 1).with_embedding(4).with_cross_network(stacked);
        assert!(message(&alone).contains("there is no tower"));
        let both = ok.clone().with_tasks(Sharing::Esmm {}, &[3], &[1.0, 1.0]);
        assert!(message(&both).contains("has no linear, fm, tower or cross part"));
        assert!(
            message(&ok.clone().with_slot_pooling(vec![Pooling::Max])).contains("slot_pooling has 1 entries for 2")
        );
        assert!(message(&ModelSpec { slots: usize::MAX, ..ok.clone() }).contains("slots is"));
        assert!(message(&ModelSpec { slots: 1 << 19, embedding_dim: 1 << 19, ..ok }).contains("slots * embedding_dim"));
    }

    #[test]
    fn unknown_fields_are_refused_and_defaults_hold() {
        let spec: ModelSpec = toml::from_str("slots = 26\ndense = 13\nlinear = true").unwrap();
        assert_eq!(spec, ModelSpec::lr(26, 13));
        assert!(toml::from_str::<ModelSpec>("slots = 26\ntowr = { hidden = [1] }").is_err());
        assert!(toml::from_str::<ModelSpec>("slots = 2\ntower = { hidden = [1], widht = 3 }").is_err());
        let norm = |name: &str| {
            toml::from_str::<ModelSpec>(&format!("slots = 2\ntower = {{ hidden = [1], norm = '{name}' }}"))
        };
        assert_eq!(norm("layer").unwrap().tower.unwrap().norm, Norm::Layer);
        assert!(norm("batch").unwrap_err().to_string().contains("there is no batch normalization"));
        assert!(norm("lyer").unwrap_err().to_string().contains("unknown variant `lyer`, expected `none` or `layer`"));
    }
}
