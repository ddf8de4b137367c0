//! FinalMLP as a spec describes it: two towers over gated copies of the input, and the bilinear fusion of their outputs.

use serde::{Deserialize, Serialize};

use crate::{ModelError, Tower};

/// FinalMLP (Mao et al., "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", AAAI 2023).
///
/// Each tower reads `x0 * gate`, element by element, and ends with its last hidden layer, `o1` and `o2`. Both are cut into `heads`
/// parts of equal length. The logit is `w1 . o1 + w2 . o2 + sum over heads h of o2_h . (W_h o1_h) + b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinalMlp {
    /// Activation, norm and dropout of the hidden layers of both towers, and the widths of the first.
    pub tower: Tower,
    /// Widths of the hidden layers of the second tower, if they differ from the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_hidden: Option<Vec<usize>>,
    /// Heads of the fusion, at least 1; the width of the last layer of each tower is a multiple of them.
    pub heads: usize,
    /// The gates of the towers' inputs; without gates both towers read `x0` itself ("DualMLP" with a bilinear fusion).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<FeatureGates>,
}

/// The feature selection of FinalMLP: for each tower a perceptron with one output for each number of `x0`, and
/// `gate = 2 sigmoid(output)`. It reads the pooled embeddings of some slots (its context), or, without slots, a vector of `embedding_dim`
/// numbers that is learnt and the same for all rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureGates {
    /// Widths of the hidden layers of each perceptron, with relu and without norm and dropout; may be empty.
    pub hidden: Vec<usize>,
    /// Slots that the gate of the first tower reads, ascending; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<usize>,
    /// The same of the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub second: Vec<usize>,
}

/// The names of the two towers, which their parameters' names begin with.
pub(crate) const STREAMS: [&str; 2] = ["first", "second"];

impl FinalMlp {
    /// One head, and gates with a learnt context and a hidden layer of 64, over towers of these widths.
    pub fn new(hidden: &[usize]) -> FinalMlp {
        let gates = FeatureGates { hidden: vec![64], ..FeatureGates::default() };
        FinalMlp { tower: Tower::new(hidden), second_hidden: None, heads: 1, gates: Some(gates) }
    }

    /// The widths of the hidden layers of the first (0) or second (1) tower.
    pub(crate) fn hidden(&self, stream: usize) -> &[usize] {
        match &self.second_hidden {
            Some(hidden) if stream == 1 => hidden,
            _ => &self.tower.hidden,
        }
    }

    /// The slots that the gate of a tower reads.
    pub(crate) fn context(&self, stream: usize) -> &[usize] {
        match &self.gates {
            None => &[],
            Some(gates) if stream == 0 => &gates.first,
            Some(gates) => &gates.second,
        }
    }

    /// The number of a tower's first hidden layer among the layers of both towers, which dropout uses.
    pub(crate) fn first_hidden(&self, stream: usize) -> usize {
        stream * self.tower.hidden.len()
    }

    /// The lengths of `o1` and `o2`, of a valid spec.
    pub(crate) fn output_widths(&self) -> [usize; 2] {
        [0, 1].map(|stream| self.hidden(stream).last().copied().unwrap_or(0))
    }

    /// Refuses a FinalMLP that no backend can run; the model has `slots` slots, and no layer is wider than `widest`.
    pub(crate) fn validate(&self, slots: usize, widest: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        self.tower.validate("final_mlp.tower", widest)?;
        if let Some(hidden) = &self.second_hidden {
            Tower { hidden: hidden.clone(), ..self.tower.clone() }.validate("final_mlp.second_hidden", widest)?;
        }
        let widths = self.output_widths();
        if self.heads == 0 || widths.iter().any(|width| !width.is_multiple_of(self.heads)) {
            let [first, second] = widths;
            return refuse(format!(
                "final_mlp.heads is {}, expected a number that divides the last widths of both towers, {first} and {second}",
                self.heads
            ));
        }
        let Some(gates) = &self.gates else { return Ok(()) };
        if let Some(width) = gates.hidden.iter().find(|&&width| width == 0 || width > widest) {
            return refuse(format!("final_mlp.gates.hidden has {width}, expected 1 to {widest}"));
        }
        for (name, context) in STREAMS.into_iter().zip([&gates.first, &gates.second]) {
            let ascending = context.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || context.last().is_some_and(|&last| last >= slots) {
                return refuse(format!(
                    "final_mlp.gates.{name} has the slots {context:?}, expected ascending numbers below {slots}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    fn message(change: impl FnOnce(&mut FinalMlp)) -> String {
        let mut spec = ModelSpec::final_mlp(3, 2, 4, FinalMlp::new(&[6, 4]));
        change(spec.final_mlp.as_mut().expect("FinalMLP"));
        spec.validate().expect_err("must be refused").to_string()
    }

    #[test]
    fn what_no_backend_can_run_is_refused_by_name() {
        ModelSpec::final_mlp(3, 2, 4, FinalMlp::new(&[6, 4])).validate().expect("a valid spec");
        assert!(message(|fm| fm.tower.hidden.clear()).contains("final_mlp.tower.hidden is empty"));
        assert!(message(|fm| fm.second_hidden = Some(vec![3, 0])).contains("final_mlp.second_hidden.hidden[1] is 0"));
        assert!(message(|fm| fm.heads = 0).contains("final_mlp.heads is 0"));
        assert!(
            message(|fm| fm.heads = 3).contains("heads is 3, expected a number that divides the last widths of both")
        );
        assert!(message(|fm| (fm.heads, fm.second_hidden) = (4, Some(vec![6]))).contains("towers, 4 and 6"));
        let gates = |change: fn(&mut FeatureGates)| message(|fm| change(fm.gates.as_mut().expect("gates")));
        assert!(gates(|gates| gates.hidden = vec![3, 0]).contains("final_mlp.gates.hidden has 0"));
        assert!(gates(|gates| gates.first = vec![3]).contains("final_mlp.gates.first has the slots [3]"));
        assert!(gates(|gates| gates.second = vec![1, 0]).contains("final_mlp.gates.second has the slots [1, 0]"));
        let both = ModelSpec::final_mlp(3, 2, 4, FinalMlp::new(&[6, 4])).with_linear().validate().unwrap_err();
        assert!(both.to_string().contains("a model with final_mlp has no other part"), "{both}");
    }

    #[test]
    fn parameters_are_those_of_gates_towers_and_fusion() {
        let (width, towers) = (3 * 4 + 2, 2 * ((14 * 6 + 6) + (6 * 4 + 4)));
        let mut spec = ModelSpec::final_mlp(3, 2, 4, FinalMlp::new(&[6, 4]));
        let gate = |inputs: usize| (inputs * 64 + 64) + (64 * width + width);
        assert_eq!(spec.dense_len(), 2 * (4 + gate(4)) + towers + 4 * 4 + 4 + 4 + 1);
        let parts = spec.final_mlp.as_mut().unwrap();
        parts.heads = 2;
        parts.gates.as_mut().unwrap().second = vec![0, 2];
        assert_eq!(spec.dense_len(), 4 + gate(4) + gate(8) + towers + 4 * 2 + 4 + 4 + 1);
        spec.final_mlp.as_mut().unwrap().gates = None;
        assert_eq!(spec.dense_len(), towers + 4 * 2 + 4 + 4 + 1);
        let text = toml::to_string(&spec).unwrap();
        assert_eq!(toml::from_str::<ModelSpec>(&text).unwrap(), spec, "{text}");
    }
}
