//! `evaluate`: predicts every row, and computes exact AUC, logloss and calibration over all rows. It keeps 8 bytes per row, 12 if
//! rows have weights, and blocks its thread during a forward pass.

use forebay_actors::{Fault, Sink, StageCx};
use forebay_models::{
    ReliabilityBin, auc_weighted, clicks_over_predicted, loss_sum, normalized_entropy, reliability, sigmoid,
};
use serde::{Deserialize, Serialize};

use super::scorer::Scorer;
use super::train::ModelMaker;
use crate::flow::ReadyBatch;

/// The quality of a model's scores on some rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Rows scored.
    pub rows: u64,
    /// Rows with label 1.
    pub positives: u64,
    /// Weighted mean of the labels: the share of rows with label 1.
    pub positive_rate: f64,
    /// Exact area under the ROC curve of the scores of the weighted rows; ties count half. `None` if all labels are the same.
    pub auc: Option<f64>,
    /// Weighted mean of the cross entropy in nats.
    pub logloss: f64,
    /// See [`forebay_models::normalized_entropy`].
    pub normalized_entropy: Option<f64>,
    /// See [`forebay_models::clicks_over_predicted`].
    pub copc: Option<f64>,
    /// At most ten bins of about equally many rows, by ascending score; see [`forebay_models::reliability`].
    pub reliability: Vec<ReliabilityBin>,
}

/// Most bins of the reliability table.
const BINS: usize = 10;

impl Evaluation {
    fn new(logits: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Self {
        let weight = |row: usize| weights.map_or(1.0, |weights| f64::from(weights[row]));
        let all: f64 = (0..labels.len()).map(weight).sum();
        let positive = labels.iter().enumerate().map(|(row, &label)| weight(row) * f64::from(label)).sum::<f64>();
        let (positive_rate, logloss) = (positive / all, loss_sum(logits, labels, weights) / all);
        // As a prediction gives them, so that its scores make the same AUC.
        let scores: Vec<f32> = logits.iter().map(|&logit| sigmoid(logit)).collect();
        Self {
            rows: labels.len() as u64,
            positives: labels.iter().filter(|&&label| label == 1.0).count() as u64,
            positive_rate,
            auc: auc_weighted(&scores, labels, weights),
            logloss,
            normalized_entropy: normalized_entropy(logloss, positive_rate),
            copc: clicks_over_predicted(&scores, labels, weights),
            reliability: reliability(&scores, labels, weights, BINS),
        }
    }

    /// The reliability table as two lines: the mean score of each bin, and the share of rows with label 1.
    pub fn reliability_lines(&self) -> String {
        let line = |name: &str, value: fn(&ReliabilityBin) -> f64| {
            self.reliability.iter().fold(format!("  {name:9}"), |line, bin| line + &format!(" {:.4}", value(bin)))
        };
        line("predicted", |bin| bin.predicted) + "\n" + &line("observed", |bin| bin.observed)
    }
}

/// One line, without the reliability table.
impl std::fmt::Display for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows, {:.2}% positive, ", self.rows, 100.0 * self.positive_rate)?;
        match self.auc {
            Some(auc) => write!(f, "AUC {auc:.5}, ")?,
            None => write!(f, "AUC undefined (one class only), ")?,
        }
        write!(f, "logloss {:.5}", self.logloss)?;
        if let Some(entropy) = self.normalized_entropy {
            write!(f, ", normalised entropy {entropy:.4}")?;
        }
        self.copc.map_or(Ok(()), |copc| write!(f, ", COPC {copc:.4}"))
    }
}

/// The `evaluate` sink.
pub struct Evaluate {
    scorer: Scorer,
    logits: Vec<f32>,
    labels: Vec<f32>,
    /// `[n]`, or empty.
    weights: Vec<f32>,
}

impl Evaluate {
    /// Scores with the model that `maker` makes, and adds `correction` to each logit; see
    /// [`DataOptions::logit_correction`](crate::job::DataOptions::logit_correction). Leaves the [`Evaluation`] in the run's results.
    pub fn new(maker: ModelMaker, correction: f32) -> Self {
        let scorer = Scorer::new(maker, correction);
        Self { scorer, logits: Vec::new(), labels: Vec::new(), weights: Vec::new() }
    }
}

impl Sink for Evaluate {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        "exact AUC, logloss and calibration".into()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.scorer.open()
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        self.logits.extend_from_slice(self.scorer.logits(&batch)?);
        self.labels.extend_from_slice(&batch.train.labels);
        self.weights.extend_from_slice(&batch.train.weights);
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        if self.labels.is_empty() {
            return Err(Fault::user("no rows to evaluate"));
        }
        let weights = (!self.weights.is_empty()).then_some(&self.weights[..]);
        if weights.is_some_and(|weights| weights.iter().all(|&weight| weight == 0.0)) {
            return Err(Fault::user("no rows to evaluate: all of them weigh 0"));
        }
        cx.leave(Evaluation::new(&self.logits, &self.labels, weights));
        Ok(())
    }
}
