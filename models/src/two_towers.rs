//! Two towers, one for users and one for items, whose vectors are compared: their inputs, the similarity, and the loss.

use serde::{Deserialize, Serialize};

use crate::{ModelError, Tower};

/// Two towers (DSSM: Huang et al., "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data", CIKM 2013). Each
/// makes a vector of its own slots and dense features; the logit of a row is the similarity of both vectors, divided by the temperature.
///
/// A tower is a stack of hidden layers and one linear layer of `vector_dim` outputs, over the embeddings of its slots and then its
/// dense features, each in the order of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwoTowers {
    /// The inputs of the user tower.
    pub user: TowerInputs,
    /// The inputs of the item tower.
    pub item: TowerInputs,
    /// Length of the vectors, at least 1.
    pub vector_dim: usize,
    /// How the vectors are compared.
    pub similarity: Similarity,
    /// The divisor of the similarity: a finite number above 0.
    pub temperature: f32,
    /// The loss.
    #[serde(default)]
    pub loss: TwoTowersLoss,
    /// Activation, norm and dropout of the hidden layers of both towers, and the widths of a tower that has no widths of its own. Without
    /// widths a tower has only its linear layer.
    pub tower: Tower,
}

/// The inputs of one of two towers. Each slot and each dense feature of the model belongs to one tower.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerInputs {
    /// Slots, ascending; at least one.
    pub slots: Vec<usize>,
    /// Dense features, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<usize>,
    /// Widths of the hidden layers, if they differ from [`TwoTowers::tower`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<Vec<usize>>,
}

/// One of two towers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TowerSide {
    /// The tower of users (queries).
    User,
    /// The tower of items (documents).
    Item,
}

impl TowerSide {
    /// Both towers, in the order of their parameters.
    pub const BOTH: [TowerSide; 2] = [TowerSide::User, TowerSide::Item];

    /// `user` or `item`: the name in job files and of the tower's parameters.
    pub fn name(self) -> &'static str {
        match self {
            TowerSide::User => "user",
            TowerSide::Item => "item",
        }
    }
}

/// The similarity of two vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// The cosine: both vectors are brought to length 1, as `v / √(|v|² + 1e-8)`.
    #[default]
    Cosine,
    /// The inner product.
    Dot,
}

/// Added to the square of a vector's length before the root is taken, so that a vector of zeros has a gradient.
pub(crate) const LENGTH_EPSILON: f32 = 1e-8;

/// The loss of two towers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TwoTowersLoss {
    /// The cross entropy of each row's label. The logit has a bias (`similarity.bias`), which does not change an order.
    #[default]
    Logloss,
    /// For each row the cross entropy of its item among the items of all rows of the batch, times label and weight of the row: a row
    /// with label 0 has no loss of its own, but its item is a candidate for the others. The other rows with the item of a row are
    /// left out, and so are rows without an item.
    InBatchSoftmax {
        /// The slot of the item tower whose value says which item a row has.
        item: usize,
        /// Whether the logarithm of each candidate's frequency is subtracted from its logit (Yi et al., "Sampling-Bias-Corrected
        /// Neural Modeling for Large Corpus Item Recommendations", RecSys 2019). Then rows of the table have a part `count`.
        log_q: bool,
    },
}

impl TwoTowers {
    /// The inputs of a tower.
    pub fn inputs(&self, side: TowerSide) -> &TowerInputs {
        match side {
            TowerSide::User => &self.user,
            TowerSide::Item => &self.item,
        }
    }

    /// The widths of the hidden layers of a tower.
    pub fn hidden(&self, side: TowerSide) -> &[usize] {
        self.inputs(side).hidden.as_deref().unwrap_or(&self.tower.hidden)
    }

    /// The number of a tower's first hidden layer among the layers of both towers, which dropout uses.
    pub(crate) fn first_hidden(&self, side: TowerSide) -> usize {
        match side {
            TowerSide::User => 0,
            TowerSide::Item => self.hidden(TowerSide::User).len(),
        }
    }

    /// Whether the loss ties together the rows of a batch.
    pub fn is_in_batch(&self) -> bool {
        matches!(self.loss, TwoTowersLoss::InBatchSoftmax { .. })
    }

    /// Whether rows of the table count how often they were the item of a row.
    pub fn counts_items(&self) -> bool {
        matches!(self.loss, TwoTowersLoss::InBatchSoftmax { log_q: true, .. })
    }

    /// Refuses towers that no backend can run over this many slots and dense features; `widest` is the largest width of a layer.
    pub(crate) fn validate(&self, slots: usize, dense: usize, widest: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        for (what, count, of) in [
            ("slot", slots, [&self.user.slots, &self.item.slots]),
            ("dense feature", dense, [&self.user.dense, &self.item.dense]),
        ] {
            for (inputs, side) in of.iter().zip(TowerSide::BOTH) {
                if !inputs.is_sorted_by(|a, b| a < b) || inputs.last().is_some_and(|&last| last >= count) {
                    return refuse(format!(
                        "two_towers.{} has the {what}s {inputs:?}, expected ascending numbers below {count}",
                        side.name()
                    ));
                }
            }
            for at in 0..count {
                match (of[0].binary_search(&at).is_ok(), of[1].binary_search(&at).is_ok()) {
                    (true, true) => return refuse(format!("two_towers: {what} {at} is in both towers, expected one")),
                    (false, false) => return refuse(format!("two_towers: {what} {at} is in no tower, expected one")),
                    _ => {}
                }
            }
        }
        for side in TowerSide::BOTH {
            let name = side.name();
            if self.inputs(side).slots.is_empty() {
                return refuse(format!("two_towers.{name} has no slot, at least one is needed"));
            }
            let tower = Tower { hidden: self.hidden(side).to_vec(), ..self.tower.clone() };
            if !tower.hidden.is_empty() {
                tower.validate(&format!("two_towers.{name}"), widest)?;
            }
        }
        if self.vector_dim == 0 || self.vector_dim > widest {
            return refuse(format!("two_towers.vector_dim is {}, expected 1 to {widest}", self.vector_dim));
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return refuse(format!(
                "two_towers.temperature is {}, expected a finite number above 0: 0.1 for example",
                self.temperature
            ));
        }
        match self.loss {
            TwoTowersLoss::InBatchSoftmax { item, .. } if !self.item.slots.contains(&item) => {
                refuse(format!("two_towers.loss.item is slot {item}, which is not in the item tower"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelSpec, Pooling, RowPart};

    fn spec() -> ModelSpec {
        let side =
            |slots: &[usize], dense: &[usize]| TowerInputs { slots: slots.into(), dense: dense.into(), hidden: None };
        ModelSpec::two_towers(3, 2, 4, side(&[0, 2], &[1]), side(&[1], &[0]), &[6, 5], 3)
    }

    fn message(change: impl FnOnce(&mut TwoTowers)) -> String {
        let mut spec = spec();
        change(spec.two_towers.as_mut().expect("two towers"));
        spec.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn what_no_backend_can_run_is_refused_by_name() {
        spec().validate().expect("a valid spec");
        assert!(message(|two| two.user.slots.push(3)).contains("user has the slots [0, 2, 3], expected ascending"));
        assert!(message(|two| two.user.slots = vec![2, 0]).contains("[2, 0], expected ascending"));
        assert!(message(|two| two.item.slots = vec![1, 2]).contains("slot 2 is in both towers"));
        assert!(message(|two| two.user.slots = vec![0]).contains("slot 2 is in no tower"));
        assert!(message(|two| two.user.dense = vec![]).contains("dense feature 1 is in no tower"));
        let all = |two: &mut TwoTowers| (two.user.slots, two.item.slots) = (vec![0, 1, 2], vec![]);
        assert!(message(all).contains("two_towers.item has no slot"));
        assert!(message(|two| two.vector_dim = 0).contains("vector_dim is 0"));
        assert!(message(|two| two.item.hidden = Some(vec![3, 0])).contains("two_towers.item.hidden[1] is 0"));
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(message(|two| two.temperature = wrong).contains("temperature is"), "{wrong}");
        }
        let loss = TwoTowersLoss::InBatchSoftmax { item: 2, log_q: false };
        assert!(message(|two| two.loss = loss).contains("slot 2, which is not in the item tower"));
        let both = spec().with_tower(&[3]).validate().unwrap_err().to_string();
        assert!(both.contains("model with two_towers has no other part"), "{both}");
    }

    #[test]
    fn parameters_and_rows_are_those_of_both_towers() {
        let mut spec = spec();
        spec.two_towers.as_mut().unwrap().item.hidden = Some(vec![]);
        let user = (9 * 6 + 6) + (6 * 5 + 5) + (5 * 3 + 3);
        assert_eq!(spec.dense_len(), 1 + user + (5 * 3 + 3));
        assert_eq!(spec.parts(), [RowPart::new("embedding", 4)]);
        let counting = spec.with_in_batch_softmax(1, true);
        assert_eq!(counting.parts(), [RowPart::new("count", 1), RowPart::new("embedding", 4)]);
        assert_eq!(counting.dense_len(), user + (5 * 3 + 3), "no bias");
        let text = toml::to_string(&counting.clone().with_pooling(Pooling::Mean)).unwrap();
        assert_eq!(toml::from_str::<ModelSpec>(&text).unwrap(), counting.with_pooling(Pooling::Mean), "{text}");
    }
}
