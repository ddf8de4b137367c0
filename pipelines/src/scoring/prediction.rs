//! Predicting with a trained model: rows go in, record batches with their scores come out, while they are read.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_actors::{Control, Fault, FaultKind, IoRuntime, Outcome, Pipeline, Report, Running, Source};
use forebay_connectors::Rows;
use forebay_job::Paths;
use forebay_net::Handler;
use tokio::sync::mpsc;

use crate::cluster::batches::handler::BatchHandler;
use crate::cluster::batches::receive_queue::{Credits, Order, ReceiveQueue};
use crate::cluster::{ClusterProcess, PredictionPlan};
use crate::columns::kept_columns::check_kept;
use crate::columns::score_columns::ScoreColumns;
use crate::extension::registry::{Read, read_own};
use crate::extension::source_progress::SourceProgress;
use crate::metrics::scored_rows::ScoredRows;
use crate::model::Model;
use crate::roles::prediction_run::{PredictionRun, RunReaders};
use crate::sources;
use crate::stages::PredictedRows;
use crate::training::wiring;
use crate::tuning::TuningThread;

/// Record batches that wait for the caller.
const AHEAD: usize = 4;

impl Model {
    /// Predicts all rows at `paths`: one or several files, folders, globs or URLs. The rows need no label. The result has the columns
    /// `keep`, which may be any of the input, beside the score; see [`Predictions`]. The rows pass the custom stages of the job,
    /// except those that are for training only; the partitions that `data.eval_where` selects have no meaning here.
    ///
    /// # Errors
    /// A user fault if `keep` names a column twice or one called `score`, or nothing is at one of `paths`.
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
        self.start_prediction(read_own(make), self.checked(keep)?)
    }

    /// Predicts the rows of `plan`, which readers in other processes read, parse and batch: see [`predict`](Self::predict) for the result.
    /// This process listens as `process` says, which is trainer 0, and readers join there. Must not be called inside a runtime, because it
    /// waits until it listens. Dropping the predictions ends the readers.
    ///
    /// # Errors
    /// A user fault: the address cannot be listened at, or `process` is not trainer 0.
    pub fn predict_from_readers(
        &self,
        plan: &PredictionPlan,
        process: ClusterProcess,
    ) -> Result<Predictions<'_>, Fault> {
        let receive_queue = Arc::new(ReceiveQueue::new(Order::Data { rank: 0, of: 1 }, Credits::of(&plan.job)));
        let handler: Arc<dyn Handler> = Arc::new(BatchHandler::new(Arc::clone(&receive_queue)));
        let run = PredictionRun::join(&self.context, process, &plan.job, handler)?;
        let started = Predictions::start(self, "predict", |scores| {
            Ok(wiring::prediction_of_received(self, plan.keep.clone(), receive_queue, run.member(), scores))
        });
        match started {
            Ok(predictions) => Ok(predictions.of_run(run)),
            Err(fault) => Err(run.fail(fault)),
        }
    }

    fn start_prediction(&self, read: Read, keep: Vec<String>) -> Result<Predictions<'_>, Fault> {
        let source = read.progress.clone();
        let started = Predictions::start(self, "predict", |batches| wiring::prediction(self, read, keep, batches))?;
        Ok(started.reading(source))
    }

    fn checked(&self, keep: &[&str]) -> Result<Vec<String>, Fault> {
        check_kept(keep, ScoreColumns::of(&self.job).names())
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
            source: SourceProgress::default(),
            run: None,
            readers: None,
            left_out: 0,
            io: model.context.io.clone(),
            _model: PhantomData,
            _tuning: tuning,
        })
    }

    /// The predictions of the rows of a source in this process.
    pub(crate) fn reading(mut self, source: SourceProgress) -> Self {
        self.source = source;
        self
    }

    /// The predictions of batches that come from the readers of `run`.
    pub(crate) fn of_run(mut self, run: PredictionRun) -> Self {
        run.kill_when_failed(self.control.clone());
        (self.readers, self.run) = (run.readers(), Some(run));
        self
    }
}

/// The outcome, and the rows that readers in other processes left out, once these know it.
type Ending = Pin<Box<dyn Future<Output = (Outcome, u64)> + Send>>;

/// The scores of rows, in the order of the rows: record batches of at most a few thousand rows, with the kept columns and, last,
/// `score`, a 32-bit float: the probability of label 1. A model of several labels gives a column for each ([`ScoreColumns`]). The rows
/// are read, looked up and computed meanwhile, at most a few batches ahead.
///
/// If the job's `data.on_bad_row` is not `fail`, a row that cannot be parsed keeps its place, and its score is null. A line of text that is
/// not a row, and a row that a stage of the program drops, are missing in the result; [`report`](Self::report) counts them.
///
/// It is an iterator, whose `next` blocks, and ends after the first fault. Async code calls [`next_batch`](Self::next_batch).
/// Dropping it stops the run.
pub struct Predictions<'m> {
    batches: mpsc::Receiver<RecordBatch>,
    control: Control,
    running: Option<Running>,
    ending: Option<Ending>,
    counts: Option<PredictedRows>,
    /// The name of the sink that leaves the counts.
    sink: &'static str,
    /// How far the source in this process has read.
    source: SourceProgress,
    /// Set while readers in other processes take part.
    run: Option<PredictionRun>,
    readers: Option<RunReaders>,
    /// Rows that these readers left out.
    left_out: u64,
    io: IoRuntime,
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
            let (run, io) = (self.run.take(), self.io.clone());
            self.ending = Some(Box::pin(async move {
                let mut outcome = running.outcome().await;
                let Some(run) = run else { return (outcome, 0) };
                // It blocks, and the caller may be in a runtime.
                let result = std::mem::replace(&mut outcome.result, Ok(()));
                let told = io.handle().spawn_blocking(move || run.ended(result)).await;
                let told = told.unwrap_or_else(|e| Err(Fault::of_task("the end of a prediction panicked", e)));
                let left_out = told.unwrap_or_else(|fault| {
                    outcome.result = Err(fault);
                    0
                });
                (outcome, left_out)
            }));
        }
        if let Some(ending) = &mut self.ending {
            let (outcome, left_out) = ending.await;
            self.ending = None;
            outcome.result?;
            (self.counts, self.left_out) = (outcome.results.take(self.sink), left_out);
        }
        Ok(None)
    }

    /// Returns a function that tells the readers in other processes that the run has ended, if any do not know it yet.
    fn readers_notifier(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        if let Some(run) = self.run.take() {
            return Some(Box::new(move || run.give_up()));
        }
        let ending = self.ending.take().filter(|_| self.readers.is_some())?;
        Some(Box::new(move || drop(futures::executor::block_on(ending))))
    }

    /// Ends the run with `fault`, which [`next_batch`](Self::next_batch) returns after the batches that are done.
    pub fn fail(&self, fault: Fault) {
        self.control.kill(fault);
    }

    /// Whether the run has ended. Batches that it has left may still wait.
    pub fn ended(&self) -> bool {
        self.control.ended()
    }

    /// A reader has died after the run has [`ended`](Self::ended), and is not started again: then [`next_batch`](Self::next_batch) does not
    /// wait until this reader knows of the end.
    pub fn reader_has_ended(&self, rank: u32) {
        if let Some(readers) = &self.readers {
            readers.has_ended(rank);
        }
    }

    /// The readers that have given no sign of life for `placement.lease_seconds`, such as `reader 1`: they hang, or are cut off.
    pub fn silent_readers(&self) -> Vec<String> {
        self.readers.as_ref().map_or_else(Vec::new, RunReaders::silent)
    }

    /// Rows that readers in other processes left out, after the last batch; their reports say why. See
    /// [`Model::predict_from_readers`].
    pub fn left_out_by_readers(&self) -> u64 {
        self.left_out
    }

    /// How far the run is. The part of all rows is known if this process reads them.
    pub fn scored(&self) -> ScoredRows {
        ScoredRows::of(&self.control.ledger(), self.source.total_rows())
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
        let Some(told) = self.readers_notifier() else { return };
        // On a thread of its own: it blocks, and the caller may be in a runtime.
        match std::thread::Builder::new().spawn(told) {
            Ok(thread) => drop(thread.join()),
            Err(e) => {
                let fault = Fault::no_thread("a thread", e);
                tracing::warn!("readers are not told that the prediction has ended: {fault}");
            }
        }
    }
}

impl Iterator for Predictions<'_> {
    type Item = Result<RecordBatch, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        futures::executor::block_on(self.next_batch()).transpose()
    }
}
