//! Scores the rows of one request on the thread that calls it, with the code of `predict`: parse, batch, look up, compute.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use forebay_actors::Fault;
use forebay_batches::{BatchPlan, Batcher, Parse, TrainBatch};
use forebay_connectors::OnBadRow;
use forebay_models::{DenseModel, ModelError};
use serde::{Serialize, Serializer};

use super::request_rows::RequestRows;
use super::score_queue::ScoreQueue;
use super::serving_model::ServingModel;
use super::split_batch::SplitBatch;
use super::{arrow_rows, json_rows};
use crate::columns::score_columns::{SCORE, ScoreColumns};
use crate::fault::model_fault;
use crate::model::model_version::ModelVersion;

/// The scores of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// The version of the model that scored all of its rows.
    pub version: ModelVersion,
    /// By the name of the column that `predict` writes, one for each row, in their order: the probability of label 1; `None` for a bad
    /// row. (In the answer, `score` of one label is called `scores`.)
    #[serde(flatten, serialize_with = "in_answer")]
    pub scores: Vec<(String, Vec<Option<f32>>)>,
    /// Why rows have no score.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_rows: Vec<BadScore>,
}

impl Scores {
    /// Rows of the request.
    pub fn rows(&self) -> usize {
        self.scores.first().map_or(0, |(_, scores)| scores.len())
    }

    /// The scores as columns of 32-bit numbers under the names that `predict` writes, and the column `error`: why a row has no score.
    ///
    /// # Errors
    /// Internal: the columns do not fit together.
    pub fn columns(&self) -> Result<RecordBatch, Fault> {
        let mut errors = vec![None; self.rows()];
        self.bad_rows.iter().for_each(|bad| errors[bad.row] = Some(bad.error.as_str()));
        let scores = self.scores.iter().map(|(name, scores)| {
            let scores: ArrayRef = Arc::new(Float32Array::from(scores.clone()));
            (name.as_str(), scores, true)
        });
        let errors: ArrayRef = Arc::new(StringArray::from(errors));
        RecordBatch::try_from_iter_with_nullable(scores.chain([("error", errors, true)]))
            .map_err(|e| Fault::internal("the columns of scores do not fit together").because(e))
    }
}

/// `score` as `scores`, and other columns under their names.
fn in_answer<S: Serializer>(scores: &[(String, Vec<Option<f32>>)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(scores.iter().map(|(name, scores)| (if name == SCORE { "scores" } else { name }, scores)))
}

/// Why a row has no score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadScore {
    /// Number of the row in the request, from 0.
    pub row: usize,
    /// What is wrong with it.
    pub error: String,
}

/// A request that other threads may help with.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) model: Arc<ServingModel>,
    pub(super) batch: Arc<SplitBatch>,
}

/// Products that are worth another thread: a tenth of a millisecond, as long as it may take to wake it.
const WORTH_A_THREAD: usize = 10 << 20;
/// Rows that matrix products compute together.
const TILE: usize = 6;

/// The state of one thread that scores.
pub(super) struct RowScorer {
    model: Arc<ServingModel>,
    parse: Parse,
    batcher: Batcher,
    dense: Box<dyn DenseModel>,
    /// Rows of a request that are worth another thread.
    part: usize,
    correction: f32,
    columns: ScoreColumns,
    rows: Vec<f32>,
    logits: Vec<f32>,
}

impl RowScorer {
    pub(super) fn new(model: Arc<ServingModel>) -> Result<Self, Fault> {
        let job = &model.job;
        let plan = BatchPlan {
            rows: usize::MAX,
            window: 0,
            seed: job.seed,
            drop_last: false,
            mark_window_ends: false,
            key_spaces: job.columns.key_spaces(),
            missing: Vec::new(),
        };
        let dense = model.dense_model()?;
        Ok(Self {
            part: (WORTH_A_THREAD / dense.flat_len().max(1) + 1).next_multiple_of(TILE),
            parse: Parse::new(&model.as_trained.columns, job.seed, OnBadRow::Skip)
                .one_value_in(job.single_slots())
                .for_prediction(Vec::new()),
            batcher: Batcher::new(plan),
            dense,
            correction: job.data.logit_correction(),
            columns: ScoreColumns::of(job),
            rows: Vec::new(),
            logits: Vec::new(),
            model,
        })
    }

    /// Replaces the model by `model`.
    pub(super) fn adopt(&mut self, model: Arc<ServingModel>) -> Result<(), Fault> {
        if Arc::ptr_eq(&self.model, &model) {
            return Ok(());
        }
        if !Arc::ptr_eq(&self.model.columns, &model.columns) {
            *self = Self::new(model)?;
            return Ok(());
        }
        // A delta: the same columns and structure.
        self.dense.load(&model.dense).map_err(model_fault)?;
        self.dense.pack_weights();
        self.model = model;
        Ok(())
    }

    /// Computes rows of a request that another thread has begun, with the same model.
    pub(super) fn help(&mut self, batch: &SplitBatch) {
        batch.help(&mut *self.dense);
    }

    /// The scores of the rows of a request. Other threads of `queue` that have nothing to do help.
    ///
    /// # Errors
    /// A user fault that says what is wrong with the rows, or with the type of a column.
    pub(super) fn score<R>(&mut self, rows: &RequestRows, queue: &ScoreQueue<R, Part>) -> Result<Scores, Fault> {
        let version = self.model.version();
        let batch = match rows {
            RequestRows::Json(body) => json_rows::parse(&self.model.columns, body)?,
            RequestRows::Arrow(batch) => {
                self.model.check_types(batch.schema_ref())?;
                arrow_rows::select(&self.model.columns, batch)?
            }
        };
        let Some(batch) = batch else {
            let scores = self.columns.names().iter().map(|name| (name.clone(), Vec::new())).collect();
            return Ok(Scores { version, scores, bad_rows: Vec::new() });
        };
        let (examples, bad) = self.parse.examples_of(batch)?;
        let batch = self.batcher.whole(examples);
        self.model.rows.read(&batch.unique, &mut self.rows);
        self.predict(batch, queue).map_err(model_fault)?;
        self.logits.iter_mut().for_each(|logit| *logit += self.correction);
        let column = |(column, name): (usize, &String)| {
            let logits = self.logits.chunks_exact(self.columns.labels());
            let mut scores: Vec<_> = logits.map(|logits| Some(self.columns.score(column, logits))).collect();
            bad.iter().for_each(|(row, _)| scores[*row] = None);
            (name.clone(), scores)
        };
        let scores = self.columns.names().iter().enumerate().map(column).collect();
        let bad_rows = bad.into_iter().map(|(row, error)| BadScore { row, error }).collect();
        Ok(Scores { version, scores, bad_rows })
    }

    /// The logits of a batch whose table rows are in `rows`.
    fn predict<R>(&mut self, batch: TrainBatch, queue: &ScoreQueue<R, Part>) -> Result<(), ModelError> {
        let helpers = (batch.rows / self.part).saturating_sub(1);
        if helpers == 0 || !self.dense.has_independent_rows() || !queue.has_idle_threads() {
            let batch = batch.dense_batch(&self.rows);
            self.dense.predict(&batch, &mut self.logits)?;
            return batch.check_logits(&self.logits, self.model.model_name());
        }
        let batch = Arc::new(SplitBatch::new(batch, std::mem::take(&mut self.rows), self.part));
        queue.ask_for_help(&Part { model: Arc::clone(&self.model), batch: Arc::clone(&batch) }, helpers);
        batch.finish(&mut *self.dense, &mut self.logits)
    }
}
