//! A model with several labels: the parts that the labels share, and a tower for each of them.

use serde::{Deserialize, Serialize};

use crate::{ModelError, Tower};

/// A model of several labels ("tasks") over `x0`: a tower with one output, the label's logit, for each of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tasks {
    /// What the labels share besides the rows of the table.
    pub sharing: Sharing,
    /// The factor of the loss of each label; at least 2 labels.
    pub weights: Vec<f32>,
    /// The tower of each label. Its `hidden` may be empty: one linear output. Its activation, norm and dropout also hold in the
    /// hidden layers that labels share.
    pub tower: Tower,
}

/// What the labels of a model share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharing {
    /// One stack of hidden layers, which the towers of all labels read (Caruana, "Multitask Learning", Machine Learning 1997).
    SharedBottom {
        /// Widths of its layers; at least one.
        hidden: Vec<usize>,
    },
    /// Several stacks of hidden layers, the experts, and for each label a gate: a softmax over the experts of a linear layer over
    /// `x0`. The tower of a label reads the sum of the experts' outputs, weighted by its gate (Ma et al., "Modeling Task
    /// Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018).
    Mmoe {
        /// Number of experts, at least 1.
        experts: usize,
        /// Widths of the layers of each; at least one.
        hidden: Vec<usize>,
    },
    /// The labels share the rows of the table and no layer: each tower reads `x0`. The first label is a click, the second a click with a
    /// conversion. The second logit is the logit of the product of two probabilities: of a click, and of a conversion after a click (Ma et
    /// al., "Entire Space Multi-Task Model", SIGIR 2018).
    Esmm {},
}

/// The most labels of a model.
pub const MOST_LABELS: usize = 64;

/// The most experts of a model.
pub const MOST_EXPERTS: usize = 64;

impl Tasks {
    /// Number of labels.
    pub fn labels(&self) -> usize {
        self.weights.len()
    }

    /// Whether the second logit is the logit of a product.
    pub fn is_esmm(&self) -> bool {
        self.sharing == Sharing::Esmm {}
    }

    /// The names of the stacks that labels share.
    pub(crate) fn shared(&self) -> Vec<String> {
        match &self.sharing {
            Sharing::SharedBottom { .. } => vec!["bottom".into()],
            Sharing::Mmoe { experts, .. } => (0..*experts).map(|expert| format!("expert.{expert}")).collect(),
            Sharing::Esmm {} => Vec::new(),
        }
    }

    /// The widths of their hidden layers.
    pub(crate) fn shared_hidden(&self) -> &[usize] {
        match &self.sharing {
            Sharing::SharedBottom { hidden } | Sharing::Mmoe { hidden, .. } => hidden,
            Sharing::Esmm {} => &[],
        }
    }

    /// Numbers of each gate: the experts, or 0 without gates.
    pub(crate) fn gate_outputs(&self) -> usize {
        if let Sharing::Mmoe { experts, .. } = self.sharing { experts } else { 0 }
    }

    /// Inputs of each label's tower, for an `x0` of this width.
    pub(crate) fn tower_inputs(&self, x0: usize) -> usize {
        self.shared_hidden().last().copied().unwrap_or(x0)
    }

    /// The number of the first hidden layer of a shared stack among all hidden layers, which dropout uses.
    pub(crate) fn first_of_shared(&self, stack: usize) -> usize {
        stack * self.shared_hidden().len()
    }

    /// The same of a label's tower.
    pub(crate) fn first_of_tower(&self, label: usize) -> usize {
        self.first_of_shared(self.shared().len()) + label * self.tower.hidden.len()
    }

    /// Refuses tasks that no backend can run; `widest` is the largest width of a layer.
    pub(crate) fn validate(&self, widest: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        let labels = self.labels();
        if !(2..=MOST_LABELS).contains(&labels) {
            return refuse(format!("tasks.weights has {labels} labels, expected 2 to {MOST_LABELS}"));
        }
        if let Some(weight) = self.weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            return refuse(format!("tasks.weights has {weight}, expected finite numbers above 0"));
        }
        match &self.sharing {
            Sharing::Esmm {} if labels != 2 => {
                return refuse(format!("esmm has {labels} labels, expected 2: a click and a conversion after it"));
            }
            Sharing::Mmoe { experts, .. } if !(1..=MOST_EXPERTS).contains(experts) => {
                return refuse(format!("tasks.sharing.experts is {experts}, expected 1 to {MOST_EXPERTS}"));
            }
            _ => {}
        }
        if !self.is_esmm() {
            Tower { hidden: self.shared_hidden().to_vec(), ..self.tower.clone() }.validate("tasks.sharing", widest)?;
        }
        if self.is_esmm() || !self.tower.hidden.is_empty() {
            self.tower.validate("tasks.tower", widest)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{ModelSpec, Sharing};

    fn message(change: impl FnOnce(&mut super::Tasks)) -> String {
        let mut spec = ModelSpec::mmoe(3, 2, 4, 2, &[5, 4], &[3], &[1.0, 0.5]);
        change(spec.tasks.as_mut().expect("several labels"));
        spec.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn what_no_backend_can_run_is_refused_by_name() {
        assert!(message(|tasks| tasks.weights.truncate(1)).contains("1 labels, expected 2 to 64"));
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(message(|tasks| tasks.weights[1] = bad).contains(&format!("tasks.weights has {bad}")), "{bad}");
        }
        let hidden = vec![4];
        assert!(message(|tasks| tasks.sharing = Sharing::Mmoe { experts: 0, hidden }).contains("experts is 0"));
        let none = Sharing::SharedBottom { hidden: Vec::new() };
        assert!(message(|tasks| tasks.sharing = none).contains("tasks.sharing.hidden is empty"));
        assert!(message(|tasks| tasks.tower.hidden = vec![0]).contains("tasks.tower.hidden[0] is 0"));
        let three = |tasks: &mut super::Tasks| {
            (tasks.sharing, tasks.weights) = (Sharing::Esmm {}, vec![1.0; 3]);
        };
        assert!(message(three).contains("esmm has 3 labels, expected 2"));
        let bare = |tasks: &mut super::Tasks| {
            (tasks.sharing, tasks.tower.hidden) = (Sharing::Esmm {}, Vec::new());
        };
        assert!(message(bare).contains("tasks.tower.hidden is empty"));
    }

    #[test]
    fn each_hidden_layer_has_a_number_of_its_own() {
        let spec = ModelSpec::mmoe(3, 2, 4, 3, &[5, 4], &[3, 2], &[1.0, 1.0]);
        let tasks = spec.tasks.expect("several labels");
        assert_eq!([0, 1, 2].map(|expert| tasks.first_of_shared(expert)), [0, 2, 4]);
        assert_eq!([0, 1].map(|label| tasks.first_of_tower(label)), [6, 8]);
    }
}
