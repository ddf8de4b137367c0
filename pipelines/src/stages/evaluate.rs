//! `evaluate`: predicts every row, and computes the exact AUC and the logloss over all rows. It keeps 8 bytes per row, and
//! blocks its thread during a forward pass.

use forebay_actors::{Fault, Sink, StageCx};
use forebay_models::{DenseModel, auc_exact, logloss, sigmoid};
use serde::{Deserialize, Serialize};

use super::train::ModelMaker;
use crate::fault::model_fault;
use crate::flow::ReadyBatch;

/// The scores of a model on some rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Rows scored.
    pub rows: u64,
    /// Share of rows with label 1.
    pub positive_rate: f64,
    /// Exact area under the ROC curve of the scores; ties count half. `None` if all labels are the same.
    pub auc: Option<f64>,
    /// Mean cross entropy in nats.
    pub logloss: f64,
}

impl std::fmt::Display for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows, {:.2}% positive, ", self.rows, 100.0 * self.positive_rate)?;
        match self.auc {
            Some(auc) => write!(f, "AUC {auc:.5}, ")?,
            None => write!(f, "AUC undefined (one class only), ")?,
        }
        write!(f, "logloss {:.5}", self.logloss)
    }
}

/// The `evaluate` sink.
pub struct Evaluate {
    maker: Option<ModelMaker>,
    model: Option<Box<dyn DenseModel>>,
    scratch: Vec<f32>,
    logits: Vec<f32>,
    labels: Vec<f32>,
}

impl Evaluate {
    /// Scores with the model that `maker` makes, and leaves the [`Evaluation`] in the run's results.
    pub fn new(maker: ModelMaker) -> Self {
        Self { maker: Some(maker), model: None, scratch: Vec::new(), logits: Vec::new(), labels: Vec::new() }
    }
}

impl Sink for Evaluate {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        "exact AUC and logloss".into()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let maker = self.maker.take().expect("a sink is opened once");
        self.model = Some(maker().map_err(model_fault)?);
        Ok(())
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        let model = self.model.as_mut().expect("opened before the first batch");
        model.predict(&batch.dense_batch(), &mut self.scratch).map_err(model_fault)?;
        self.logits.extend_from_slice(&self.scratch);
        self.labels.extend_from_slice(&batch.train.labels);
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        let rows = self.labels.len();
        if rows == 0 {
            return Err(Fault::user("no rows to evaluate"));
        }
        // As a prediction gives them: its scores make the same AUC.
        let scores: Vec<f32> = self.logits.iter().map(|&logit| sigmoid(logit)).collect();
        let positive = self.labels.iter().map(|&l| f64::from(l)).sum::<f64>();
        cx.leave(Evaluation {
            rows: rows as u64,
            positive_rate: positive / rows as f64,
            auc: auc_exact(&scores, &self.labels),
            logloss: logloss(&self.logits, &self.labels),
        });
        Ok(())
    }
}
