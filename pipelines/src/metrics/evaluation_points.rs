//! The evaluations of a run, as reports show them and as checkpoints store them.

use forebay_actors::counted;
use forebay_job::EvaluationMetric;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::quality::Evaluation;

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
    /// As in [`Evaluation`].
    pub logloss: f64,
    /// The GAUC, if `evaluation.group` is set.
    pub gauc: Option<f64>,
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
        Self { rows, steps, epochs, auc: evaluation.auc, logloss: evaluation.logloss, gauc, reduced_lr: false }
    }

    /// The value of a metric, if it has one.
    pub fn value(&self, metric: EvaluationMetric) -> Option<f64> {
        let value = match metric {
            EvaluationMetric::Auc => self.auc,
            EvaluationMetric::Logloss => Some(self.logloss),
            EvaluationMetric::Gauc => self.gauc,
        };
        value.filter(|value| value.is_finite())
    }
}

/// One line: the point, AUC, logloss and GAUC.
impl std::fmt::Display for EvaluationPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.5}"));
        let (rows, epochs) = (counted(self.rows, "row"), counted(self.epochs, "whole epoch"));
        write!(f, "after {rows}, {epochs}: AUC {}, logloss {:.5}", shown(self.auc), self.logloss)?;
        self.gauc.map_or(Ok(()), |gauc| write!(f, ", GAUC {gauc:.5}"))
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
    logloss: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gauc: Option<String>,
    /// Only if it is true, so that earlier programs read the other points.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reduced_lr: bool,
}

pub(crate) fn serialize<S: Serializer>(points: &[EvaluationPoint], to: S) -> Result<S::Ok, S::Error> {
    let text = |value: f64| value.to_string();
    to.collect_seq(points.iter().map(|&EvaluationPoint { rows, steps, epochs, auc, logloss, gauc, reduced_lr }| {
        StoredPoint {
            rows,
            steps,
            epochs,
            auc: auc.map(text),
            logloss: text(logloss),
            gauc: gauc.map(text),
            reduced_lr,
        }
    }))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EvaluationPoint>, D::Error> {
    let number = |text: String| text.parse::<f64>().map_err(|_| de::Error::custom(format!("{text:?} is not a number")));
    let point = |StoredPoint { rows, steps, epochs, auc, logloss, gauc, reduced_lr }: StoredPoint| {
        let (auc, gauc) = (auc.map(number).transpose()?, gauc.map(number).transpose()?);
        Ok(EvaluationPoint { rows, steps, epochs, auc, logloss: number(logloss)?, gauc, reduced_lr })
    };
    Vec::<StoredPoint>::deserialize(from)?.into_iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "super")] Vec<EvaluationPoint>);

    proptest! {
        #[test]
        fn a_checkpoint_has_every_bit_of_a_point(auc: Option<u64>, logloss: u64, gauc: Option<u64>, reduced_lr: bool) {
            let point = EvaluationPoint {
                rows: 1, steps: 2, epochs: 3,
                auc: auc.map(f64::from_bits), logloss: f64::from_bits(logloss), gauc: gauc.map(f64::from_bits), reduced_lr,
            };
            let text = serde_json::to_string(&Stored(vec![point])).unwrap();
            let Stored(read) = serde_json::from_str(&text).unwrap();
            let bits = |value: f64| if value.is_nan() { 0 } else { value.to_bits() };
            prop_assert_eq!(read[0].auc.map(bits), point.auc.map(bits));
            prop_assert_eq!(bits(read[0].logloss), bits(point.logloss));
            prop_assert_eq!(read[0].gauc.map(bits), point.gauc.map(bits));
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
