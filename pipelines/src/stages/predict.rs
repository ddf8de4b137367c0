//! `predict`: computes the score of every row and sends it on, beside the columns that are kept. It blocks its thread during a
//! forward pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_actors::{Fault, FaultKind, Sink, StageCx};
use forebay_batches::{BatchId, KeptRows, ReadyBatch};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::scorer::Scorer;
use crate::cluster::batches::receive_queue::ReceiveQueue;
use crate::columns::score_columns::ScoreColumns;

/// How many rows a prediction wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedRows {
    /// All rows, including rows without a score.
    pub rows: u64,
    /// Rows whose score is null because they could not be parsed, by reason.
    pub without_score: BTreeMap<String, u64>,
}

/// The `predict` sink.
pub struct Predict {
    scorer: Scorer,
    columns: ScoreColumns,
    scores: mpsc::Sender<RecordBatch>,
    counts: PredictedRows,
    received: Option<Received>,
}

/// Where the batches come from, if readers send them.
struct Received {
    /// The columns that must come with the rows.
    keep: Vec<String>,
    queue: Arc<ReceiveQueue>,
}

impl Received {
    /// # Errors
    /// A user fault: a reader was started with other columns to keep.
    fn check(&self, rows: &KeptRows) -> Result<(), Fault> {
        if rows.columns().map(|(field, _)| field.name()).eq(&self.keep) {
            return Ok(());
        }
        let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Fault::user(format!(
            "a reader sent the kept columns {}, expected {}: start all readers with the same --keep",
            names(rows.columns().map(|(field, _)| field.name().as_str()).collect()),
            names(self.keep.iter().map(String::as_str).collect())
        )))
    }
}

impl Predict {
    /// Sends the scores of `scorer`. Each batch that it sends has the kept columns and, last, `score`: the probability of label 1, or null
    /// for a bad row. Leaves [`PredictedRows`] in the run's results.
    pub fn new(scorer: Scorer, scores: mpsc::Sender<RecordBatch>) -> Self {
        Self { scorer, columns: ScoreColumns::default(), scores, counts: PredictedRows::default(), received: None }
    }

    /// Sends these columns of scores instead of `score`.
    #[must_use]
    pub fn with_columns(self, columns: ScoreColumns) -> Self {
        Self { columns, ..self }
    }

    /// Expects batches of readers, with these kept columns, and tells `queue` that a batch is done when its scores are sent.
    #[must_use]
    pub(crate) fn of_received(self, keep: Vec<String>, queue: Arc<ReceiveQueue>) -> Self {
        Self { received: Some(Received { keep, queue }), ..self }
    }
}

impl PredictedRows {
    pub(super) fn count(&mut self, rows: &KeptRows) {
        self.rows += rows.rows() as u64;
        for reason in rows.reasons().iter().flatten() {
            *self.without_score.entry(reason.to_owned()).or_default() += 1;
        }
    }
}

/// The kept columns and the scores of these logits, `[n x labels]`.
fn scored(rows: &KeptRows, of: &ScoreColumns, logits: &[f32]) -> Result<RecordBatch, Fault> {
    let (mut fields, mut values): (Vec<Field>, Vec<ArrayRef>) =
        rows.columns().map(|(field, column)| (field.clone(), Arc::clone(column))).unzip();
    for (column, name) in of.names().iter().enumerate() {
        let of_rows = rows.reasons().iter().zip(logits.chunks_exact(of.labels()));
        let scores: Float32Array =
            of_rows.map(|(reason, logits)| reason.is_none().then(|| of.score(column, logits))).collect();
        fields.push(Field::new(name, DataType::Float32, true));
        values.push(Arc::new(scores));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), values)
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
        let (logits, labels) = (self.scorer.logits(&batch)?, self.columns.labels());
        if batch.train.kept.iter().map(KeptRows::rows).sum::<usize>() * labels != logits.len() {
            return Err(Fault::user(
                "a stage of the program changed the rows, and did not pass on their `kept` columns",
            ));
        }
        let mut from = 0;
        for rows in &batch.train.kept {
            let to = from + rows.rows();
            self.received.as_ref().map_or(Ok(()), |received| received.check(rows))?;
            let scored = scored(rows, &self.columns, &logits[from * labels..to * labels])?;
            self.counts.count(rows);
            from = to;
            if self.scores.send(scored).await.is_err() {
                return Err(Fault::user("the rest of the scores is not wanted").kind(FaultKind::Drained));
            }
        }
        if let Some(Received { queue, .. }) = &self.received {
            queue.batch_done(BatchId::of(&batch.train));
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.scorer.warn_of_unknown_values();
        cx.leave(std::mem::take(&mut self.counts));
        Ok(())
    }
}
