//! `predict`: computes the score of every row and sends it on, beside the columns that are kept. It blocks its thread during a
//! forward pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_actors::{Fault, FaultKind, Sink, StageCx};
use forebay_models::sigmoid;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::scorer::Scorer;
use super::train::ModelMaker;
use crate::flow::{KeptRows, ReadyBatch};

/// The name of the column with the scores.
pub(crate) const SCORE: &str = "score";

/// How many rows a prediction wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedRows {
    /// All rows, those without a score included.
    pub rows: u64,
    /// Rows whose score is null because they could not be parsed, by reason.
    pub without_score: BTreeMap<String, u64>,
}

/// The `predict` sink.
pub struct Predict {
    scorer: Scorer,
    scores: mpsc::Sender<RecordBatch>,
    counts: PredictedRows,
}

impl Predict {
    /// Scores with the model that `maker` makes, and adds `correction` to each logit; see
    /// [`DataOptions::logit_correction`](crate::job::DataOptions::logit_correction). Each batch that it sends has the kept columns
    /// and, last, `score`: the probability of label 1, or null for a bad row. Leaves [`PredictedRows`] in the run's results.
    pub fn new(maker: ModelMaker, correction: f32, scores: mpsc::Sender<RecordBatch>) -> Self {
        Self { scorer: Scorer::new(maker, correction), scores, counts: PredictedRows::default() }
    }
}

impl PredictedRows {
    fn count(&mut self, rows: &KeptRows) {
        self.rows += rows.rows() as u64;
        for reason in rows.reasons().iter().flatten() {
            *self.without_score.entry(reason.to_owned()).or_default() += 1;
        }
    }
}

/// The kept columns and the scores of these logits, `[n]`.
fn scored(rows: &KeptRows, logits: &[f32]) -> Result<RecordBatch, Fault> {
    let (mut fields, mut columns): (Vec<Field>, Vec<ArrayRef>) =
        rows.columns().map(|(field, column)| (field.clone(), Arc::clone(column))).unzip();
    let score = |(reason, &logit): (Option<&str>, &f32)| reason.is_none().then(|| sigmoid(logit));
    let scores: Float32Array = rows.reasons().iter().zip(logits).map(score).collect();
    fields.push(Field::new(SCORE, DataType::Float32, true));
    columns.push(Arc::new(scores));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Fault::internal("the scores do not fit the kept columns").because(e))
}

impl Sink for Predict {
    type In = ReadyBatch;

    fn describe(&self) -> String {
        "the score of every row".into()
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.scorer.open()
    }

    async fn write(&mut self, batch: ReadyBatch, _cx: &StageCx) -> Result<(), Fault> {
        let logits = self.scorer.logits(&batch)?;
        if batch.train.kept.iter().map(KeptRows::rows).sum::<usize>() != logits.len() {
            return Err(Fault::user(
                "a stage of the program changed the rows, and did not pass on their `kept` columns",
            ));
        }
        let mut from = 0;
        for rows in &batch.train.kept {
            let to = from + rows.rows();
            let scored = scored(rows, &logits[from..to])?;
            self.counts.count(rows);
            from = to;
            if self.scores.send(scored).await.is_err() {
                return Err(Fault::user("the rest of the scores is not wanted").kind(FaultKind::Drained));
            }
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        cx.leave(std::mem::take(&mut self.counts));
        Ok(())
    }
}
