//! The evaluations of a run, as reports show them and as checkpoints store them.

use forebay_actors::counted;
use forebay_job::EvaluationMetric;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::quality::Evaluation;
use super::retrieval::RecallAt;

/// One evaluation of the model while it trains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationPoint {
    /// Rows of all epochs trained on before it: a row counts once in each epoch.
    pub rows: u64,
    /// Steps taken before it.
    pub steps: u64,
    /// Whole epochs trained on before it.
    pub epochs: u32,
    /// As in [`Evaluation`].
    pub auc: Option<f64>,
    /// As in [`Evaluation`]; `None` if the scores are no probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logloss: Option<f64>,
    /// The GAUC, if `evaluation.group` is set.
    pub gauc: Option<f64>,
    /// Of two towers, the recall at the first of `evaluation.recall_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall: Option<RecallAt>,
    /// Of two towers, the mean reciprocal rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mrr: Option<f64>,
    /// Whether the learning rates of later steps are reduced because of this evaluation (`evaluation.reduce_lr_on_plateau`).
    pub reduced_lr: bool,
}

/// The evaluations of a run while it trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationHistory {
    /// The metric that compares evaluations.
    pub metric: EvaluationMetric,
    /// In their order.
    pub points: Vec<EvaluationPoint>,
    /// The index of the best one; of equal ones, the first.
    pub best: Option<usize>,
    /// The index of the evaluation whose model is kept for `output.model`, or saved there: with `evaluation.keep = "best"` the best one,
    /// unless its model is gone. `None`: the model after the last row is saved.
    pub kept: Option<usize>,
    /// Whether the training stopped before its last row because the metric did not improve.
    pub stopped_early: bool,
}

impl EvaluationPoint {
    pub(crate) fn new(rows: u64, steps: u64, epochs: u32, evaluation: &Evaluation) -> Self {
        let gauc = evaluation.gauc.as_ref().and_then(|gauc| gauc.auc);
        let retrieval = evaluation.retrieval.as_ref();
        Self {
            rows,
            steps,
            epochs,
            auc: evaluation.auc,
            logloss: evaluation.logloss(),
            gauc,
            recall: retrieval.and_then(|retrieval| retrieval.recall.first().copied()),
            mrr: retrieval.map(|retrieval| retrieval.mrr),
            reduced_lr: false,
        }
    }

    /// The value of a metric, if it has one.
    pub fn value(&self, metric: EvaluationMetric) -> Option<f64> {
        let value = match metric {
            EvaluationMetric::Auc => self.auc,
            EvaluationMetric::Logloss => self.logloss,
            EvaluationMetric::Gauc => self.gauc,
            EvaluationMetric::Recall => self.recall.map(|at| at.recall),
            EvaluationMetric::Mrr => self.mrr,
        };
        value.filter(|value| value.is_finite())
    }
}

/// One line: the point, AUC and the other metrics that it has.
impl std::fmt::Display for EvaluationPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.5}"));
        let (rows, epochs) = (counted(self.rows, "row"), counted(self.epochs, "whole epoch"));
        write!(f, "after {rows}, {epochs}: AUC {}", shown(self.auc))?;
        self.recall.map_or(Ok(()), |recall| write!(f, ", {recall}"))?;
        for (name, value) in [("MRR", self.mrr), ("logloss", self.logloss), ("GAUC", self.gauc)] {
            value.map_or(Ok(()), |value| write!(f, ", {name} {value:.5}"))?;
        }
        Ok(())
    }
}

/// A point in a checkpoint. Numbers are text, because JSON has no infinite numbers and no NaN: a run that goes on must read those, too.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPoint {
    rows: u64,
    steps: u64,
    epochs: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logloss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gauc: Option<String>,
    /// The k and the recall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recall: Option<(u32, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mrr: Option<String>,
    /// Only if it is true, so that earlier programs read the other points.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reduced_lr: bool,
}

impl From<EvaluationPoint> for StoredPoint {
    fn from(point: EvaluationPoint) -> Self {
        let EvaluationPoint { rows, steps, epochs, auc, logloss, gauc, recall, mrr, reduced_lr } = point;
        let text = |value: f64| value.to_string();
        Self {
            rows,
            steps,
            epochs,
            auc: auc.map(text),
            logloss: logloss.map(text),
            gauc: gauc.map(text),
            recall: recall.map(|RecallAt { k, recall }| (k, text(recall))),
            mrr: mrr.map(text),
            reduced_lr,
        }
    }
}

impl StoredPoint {
    /// # Errors
    /// The text that is not a number.
    fn point(self) -> Result<EvaluationPoint, String> {
        let Self { rows, steps, epochs, auc, logloss, gauc, recall, mrr, reduced_lr } = self;
        let number = |text: String| text.parse::<f64>().map_err(|_| format!("{text:?} is not a number"));
        let numbers = |text: Option<String>| text.map(number).transpose();
        let recall = recall.map(|(k, text)| number(text).map(|recall| RecallAt { k, recall })).transpose()?;
        let (auc, logloss, gauc, mrr) = (numbers(auc)?, numbers(logloss)?, numbers(gauc)?, numbers(mrr)?);
        Ok(EvaluationPoint { rows, steps, epochs, auc, logloss, gauc, recall, mrr, reduced_lr })
    }
}

pub(crate) fn serialize<S: Serializer>(points: &[EvaluationPoint], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(points.iter().map(|&point| StoredPoint::from(point)))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EvaluationPoint>, D::Error> {
    let stored = Vec::<StoredPoint>::deserialize(from)?;
    stored.into_iter().map(|point| point.point().map_err(de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "super")] Vec<EvaluationPoint>);

    proptest! {
        #[test]
        fn a_checkpoint_has_every_bit_of_a_point(
            auc: Option<u64>, logloss: Option<u64>, gauc: Option<u64>, recall: Option<(u32, u64)>, mrr: Option<u64>, reduced_lr: bool,
        ) {
            let point = EvaluationPoint {
                rows: 1, steps: 2, epochs: 3,
                auc: auc.map(f64::from_bits), logloss: logloss.map(f64::from_bits), gauc: gauc.map(f64::from_bits),
                recall: recall.map(|(k, bits)| RecallAt { k, recall: f64::from_bits(bits) }), mrr: mrr.map(f64::from_bits), reduced_lr,
            };
            let text = serde_json::to_string(&Stored(vec![point])).unwrap();
            let Stored(read) = serde_json::from_str(&text).unwrap();
            let bits = |value: f64| if value.is_nan() { 0 } else { value.to_bits() };
            prop_assert_eq!(read[0].auc.map(bits), point.auc.map(bits));
            prop_assert_eq!(read[0].logloss.map(bits), point.logloss.map(bits));
            prop_assert_eq!(read[0].gauc.map(bits), point.gauc.map(bits));
            let recall = |point: &EvaluationPoint| point.recall.map(|at| (at.k, bits(at.recall)));
            prop_assert_eq!((recall(&read[0]), read[0].mrr.map(bits)), (recall(&point), point.mrr.map(bits)));
            prop_assert_eq!((read[0].reduced_lr, text.contains("reduced_lr")), (reduced_lr, reduced_lr));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let text = r#"[{"rows":1,"steps":1,"epochs":0,"logloss":"low"}]"#;
        let said = serde_json::from_str::<Stored>(text).err().unwrap().to_string();
        assert!(said.contains("\"low\" is not a number"), "{said}");
    }
}
