//! Attention over histories: which slots it reads, and the perceptron that weighs each value of a history.

use serde::{Deserialize, Serialize};

use crate::{ModelError, Norm, Tower};

/// Attention over histories, as in DIN (Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018).
///
/// For each pair, let `t` be the pooled embedding of the target and `h_i` the embedding of value i of the history. The vector `sum over i
/// of a(t, h_i) h_i` takes the place of the history's pooled embedding in all parts of the model. The activation unit `a` is a perceptron
/// over `[t | h_i | t - h_i | t * h_i]` with one output. Its outputs are not normalized by a softmax, so that a long history of related
/// values counts for more than a short one. An empty history gives zeros.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The slots; at least one pair. Each has an activation unit of its own.
    pub pairs: Vec<AttentionPair>,
    /// The hidden layers of the activation unit, without norm and dropout.
    pub unit: Tower,
}

/// A history and its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionPair {
    /// The slot with the history.
    pub history: usize,
    /// The slot of the target, with one value in each row.
    pub target: usize,
}

impl Attention {
    /// Refuses attention that no backend can run; the model has `slots` slots, and no layer is wider than `widest`.
    pub(crate) fn validate(&self, slots: usize, widest: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Spec(what));
        if self.pairs.is_empty() {
            return refuse("attention.pairs is empty, at least one history and its target are needed".into());
        }
        for (at, AttentionPair { history, target }) in self.pairs.iter().enumerate() {
            if *history >= slots || *target >= slots {
                return refuse(format!(
                    "attention.pairs[{at}] has the slots {history} and {target}, but there are {slots}, numbered from 0"
                ));
            }
            if self.pairs.iter().any(|other| other.target == *history) {
                return refuse(format!(
                    "attention.pairs: slot {history} is a history and a target, expected one of both"
                ));
            }
            if self.pairs[..at].iter().any(|other| other.history == *history) {
                return refuse(format!("attention.pairs: slot {history} is the history of two pairs, expected one"));
            }
        }
        if self.unit.norm != Norm::None || self.unit.dropout != 0.0 {
            return refuse("attention.unit has a norm or dropout, expected neither".into());
        }
        match self.unit.hidden.iter().find(|&&width| width == 0 || width > widest) {
            Some(width) => refuse(format!("attention.unit.hidden has {width}, expected 1 to {widest}")),
            None if self.unit.hidden.is_empty() => {
                refuse("attention.unit.hidden is empty, at least one hidden layer is needed: [64] for example".into())
            }
            None => Ok(()),
        }
    }
}
