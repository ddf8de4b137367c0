//! Predicting with a trained model: rows go in, record batches with their scores come out, while they are read.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use arrow::array::RecordBatch;
use forebay_actors::{Control, Fault, FaultKind, Outcome, Pipeline, Report, Running, Source};
use forebay_connectors::Rows;
use forebay_job::Paths;
use tokio::sync::mpsc;

use crate::model::Model;
use crate::registry::{Read, read_from};
use crate::score_columns::ScoreColumns;
use crate::stages::PredictedRows;
use crate::tuning::TuningThread;
use crate::{sources, wiring};

/// Record batches that wait for the caller.
const AHEAD: usize = 4;

impl Model {
    /// Predicts all rows at `paths`: one or several files, folders, globs or URLs. The rows need no label. The result has the columns
    /// `keep`, which may be any of the input, beside the score; see [`Predictions`]. The rows pass the custom stages of the job,
    /// except those that are for training only; the partitions that `data.eval_where` selects have no meaning here.
    ///
    /// # Errors
    /// A user fault if `keep` names a column twice or one called `score`, or nothing is at `path`.
    pub fn predict(&self, paths: impl Into<Paths>, keep: &[&str]) -> Result<Predictions<'_>, Fault> {
        let keep = self.checked(keep)?;
        let mut job = self.job_as_trained().for_evaluation();
        job.data.filter = None;
        let read = sources::to_predict(&job, &self.context, &paths.into(), &keep)?;
        self.warn_of_other_types(read.format);
        self.start_prediction(read, keep)
    }

    /// Predicts all rows of any source.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    pub fn predict_source<S: Source<Out = Rows>>(
        &self,
        make: impl FnOnce() -> S + Send + 'static,
        keep: &[&str],
    ) -> Result<Predictions<'_>, Fault> {
        self.start_prediction(read_from(make), self.checked(keep)?)
    }

    fn start_prediction(&self, read: Read, keep: Vec<String>) -> Result<Predictions<'_>, Fault> {
        Predictions::start(self, "predict", |batches| wiring::prediction(self, read, keep, batches))
    }

    fn checked(&self, keep: &[&str]) -> Result<Vec<String>, Fault> {
        Predictions::checked(keep, ScoreColumns::of(&self.job).names())
    }
}

impl<'m> Predictions<'m> {
    /// Starts the pipeline that `wire` makes around its sink `sink`, which sends on the batches of the result.
    pub(crate) fn start(
        model: &'m Model,
        sink: &'static str,
        wire: impl FnOnce(mpsc::Sender<RecordBatch>) -> Result<Pipeline, Fault>,
    ) -> Result<Self, Fault> {
        let (sender, batches) = mpsc::channel(AHEAD);
        let running = wire(sender)?.start()?;
        let (control, tuning) = (running.control(), TuningThread::of(&model.job, running.control()));
        Ok(Self {
            batches,
            control,
            running: Some(running),
            ending: None,
            counts: None,
            sink,
            _model: PhantomData,
            _tuning: tuning,
        })
    }

    /// The names of the columns to keep, beside those of the result.
    pub(crate) fn checked(keep: &[&str], results: &[String]) -> Result<Vec<String>, Fault> {
        for (at, name) in keep.iter().enumerate() {
            if results.iter().any(|result| result == name) {
                return Err(Fault::user(format!(
                    "`{name}` is the name of the result: a column of this name cannot be kept"
                )));
            }
            if keep[..at].contains(name) {
                return Err(Fault::user(format!("column `{name}` is kept twice, name it once")));
            }
        }
        Ok(keep.iter().map(|&name| name.to_owned()).collect())
    }
}

/// The scores of rows, in the order of the rows: record batches of at most a few thousand rows, with the kept columns and, last,
/// `score`, a 32-bit float: the probability of label 1. A model of several labels gives a column for each ([`ScoreColumns`]). The rows
/// are read, looked up and computed meanwhile, at most a few batches ahead.
///
/// If the job's `data.on_bad_row` is not `fail`, a row that cannot be parsed keeps its place, and its score is null. A line of
/// text that is no row at all, and a row that a stage of the program drops, are missing in the result;
/// [`report`](Self::report) counts them.
///
/// It is an iterator, whose `next` blocks, and ends after the first fault. Async code calls [`next_batch`](Self::next_batch).
/// Dropping it stops the run.
pub struct Predictions<'m> {
    batches: mpsc::Receiver<RecordBatch>,
    control: Control,
    running: Option<Running>,
    ending: Option<Pin<Box<dyn Future<Output = Outcome> + Send>>>,
    counts: Option<PredictedRows>,
    /// The name of the sink that leaves the counts.
    sink: &'static str,
    /// The table of the model answers the look-ups.
    _model: PhantomData<&'m Model>,
    /// Changes the replicas of stages.
    _tuning: Option<TuningThread>,
}

impl Predictions<'_> {
    /// The next batch, or `None` after the last one. Cancel safe.
    ///
    /// # Errors
    /// The first fault of the run.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>, Fault> {
        if let Some(batch) = self.batches.recv().await {
            return Ok(Some(batch));
        }
        if let Some(running) = self.running.take() {
            self.ending = Some(Box::pin(running.outcome()));
        }
        if let Some(ending) = &mut self.ending {
            let outcome = ending.await;
            self.ending = None;
            outcome.result?;
            self.counts = outcome.results.take(self.sink);
        }
        Ok(None)
    }

    /// The meters of the run, and the rows that are missing in the result.
    pub fn report(&self) -> Report {
        self.control.snapshot()
    }

    /// The counts of rows with and without a score, after the last batch. `None` before.
    pub fn counts(&self) -> Option<&PredictedRows> {
        self.counts.as_ref()
    }
}

impl Drop for Predictions<'_> {
    fn drop(&mut self) {
        if !self.control.ended() {
            self.control.kill(Fault::user("the rest of the result is not wanted").kind(FaultKind::Drained));
        }
    }
}

impl Iterator for Predictions<'_> {
    type Item = Result<RecordBatch, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        futures::executor::block_on(self.next_batch()).transpose()
    }
}
