//! What the stages, the thread that evaluates and the end of a run share.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_actors::{Batch, Fault, FaultKind};
use forebay_batches::TrainBatch;
use forebay_job::{EvaluateEvery, Job};
use forebay_models::{DenseModel, NamedTensor};
use tokio::sync::oneshot;

use super::best_models::BestModels;
use super::points::{EvaluationHistory, EvaluationPoint};
use super::stopping;
use crate::context::Context;
use crate::quality::Evaluation;

/// The evaluations of one run while it trains.
pub(crate) struct Evaluations {
    every: EvaluateEvery,
    /// `None` after the end of the pipeline.
    requests: Mutex<Option<Sender<EvaluationRequest>>>,
    /// Until the thread has it.
    received: Mutex<Option<Receiver<EvaluationRequest>>>,
    pub(super) shared: Arc<EvaluationState>,
}

/// Asks for an evaluation at this point. The look-up waits for the answer.
pub(super) struct EvaluationRequest {
    pub(super) epochs: u32,
    pub(super) answer: oneshot::Sender<Result<(), Fault>>,
}

/// What the thread changes.
pub(crate) struct EvaluationState {
    pub(super) job: Job,
    state: Mutex<Inner>,
    /// Set if the best model is kept. Locked while a model is saved, so that a checkpoint made meanwhile waits until it can say which model
    /// it needs. `state`, which is also read for the progress, is not locked then.
    best: Mutex<Option<BestModels>>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) points: Vec<EvaluationPoint>,
    /// The best model is one of the evaluations from this index on. The best model of the earlier ones is gone.
    pub(super) kept_from: usize,
    /// The best model was gone when it was to be saved.
    pub(super) lost_best: bool,
    /// Rows of the batches that were looked up.
    rows: u64,
    pub(super) stopped: bool,
    /// The last point is after the last row, with all gradients applied.
    pub(super) ended: bool,
    /// Set while a barrier for an evaluation is under way.
    pub(super) wants_dense: bool,
    pub(super) dense: Option<DenseCopy>,
    /// The evaluations of this process at the best and at the last point, with the index of each.
    pub(super) at_best: Option<(usize, Evaluation)>,
    pub(super) at_last: Option<(usize, Evaluation)>,
}

/// The dense parameters at a barrier.
pub(super) struct DenseCopy {
    pub(super) parameters: Vec<NamedTensor>,
    /// The state of their optimizer, if the job saves it.
    pub(super) optimizer: Option<Vec<NamedTensor>>,
}

impl Inner {
    /// The index of the best evaluation of those whose models could be kept.
    pub(super) fn best(&self, job: &Job) -> Option<usize> {
        stopping::best(&job.evaluation, &self.points[self.kept_from..]).map(|at| self.kept_from + at)
    }
}

impl EvaluationState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn best(&self) -> MutexGuard<'_, Option<BestModels>> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an evaluation. Returns its index, and whether it is the best so far.
    pub(super) fn add(&self, point: EvaluationPoint, evaluation: Evaluation) -> (usize, bool) {
        let mut state = self.lock();
        let at = state.points.len();
        state.points.push(point);
        let is_best = state.best(&self.job) == Some(at);
        if is_best {
            state.at_best = Some((at, evaluation.clone()));
        }
        state.at_last = Some((at, evaluation));
        (at, is_best)
    }

    pub(super) fn history(&self) -> EvaluationHistory {
        let state = self.lock();
        let options = &self.job.evaluation;
        EvaluationHistory {
            metric: options.metric,
            points: state.points.clone(),
            best: stopping::best(options, &state.points),
            kept: state.best(&self.job).filter(|_| self.job.keeps_best()),
            stopped_early: state.stopped,
        }
    }
}

impl Evaluations {
    /// The evaluations that the job asks for.
    pub(crate) fn of(job: &Job, context: &Context) -> Option<Arc<Self>> {
        let every = job.evaluation.every?;
        let (requests, received) = channel();
        let best =
            job.output.model.as_ref().filter(|_| job.keeps_best()).map(|model| BestModels::beside(model, context));
        let shared = Arc::new(EvaluationState { job: job.clone(), state: Mutex::default(), best: Mutex::new(best) });
        let requests = Mutex::new(Some(requests));
        Some(Arc::new(Self { every, requests, received: Mutex::new(Some(received)), shared }))
    }

    /// Goes on after the evaluations of a checkpoint, which was made after `rows` rows. Blocks on the store of the model.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) fn restore(&self, points: Vec<EvaluationPoint>, rows: u64) -> Result<(), Fault> {
        let options = &self.shared.job.evaluation;
        let mut kept_from = 0;
        if let Some(models) = self.shared.best().as_mut() {
            kept_from = stopping::kept_from(options, &points, |at| models.find(at, &points[at], &self.shared.job))?;
        }
        if let (1.., Some(at)) = (kept_from, stopping::best(options, &points)) {
            tracing::warn!(
                "the best model so far, of evaluation {} ({}), is neither beside output.model nor there: the best one of later \
                 evaluations is kept",
                at + 1,
                points[at]
            );
        }
        let mut state = self.shared.lock();
        state.stopped = stopping::stops_after(options, &points);
        (state.points, state.kept_from, state.rows) = (points, kept_from, rows);
        Ok(())
    }

    pub(super) fn take_requests(&self) -> Option<Receiver<EvaluationRequest>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn requests(&self) -> MutexGuard<'_, Option<Sender<EvaluationRequest>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on no evaluation is asked for, so the thread that evaluates ends.
    pub(super) fn ask_no_more(&self) {
        *self.requests() = None;
    }

    /// Whether no more batches are trained on.
    pub(crate) fn stopped(&self) -> bool {
        self.shared.lock().stopped
    }

    /// Before a batch is looked up: evaluates if it is time. Returns whether the batch is trained on. Called for one batch at a
    /// time.
    ///
    /// # Errors
    /// The evaluation failed, or the run is ending.
    pub(crate) async fn before_look_up(&self, batch: &TrainBatch) -> Result<bool, Fault> {
        let epochs = batch.lineage.epoch;
        let due = {
            let mut state = self.shared.lock();
            if state.stopped {
                return Ok(false);
            }
            let due = stopping::is_due(self.every, state.points.last(), state.rows, epochs);
            state.rows += batch.rows() as u64;
            due
        };
        if !due {
            return Ok(true);
        }
        let ending = || Fault::external("the run ended before its evaluation").kind(FaultKind::Stopped);
        let (answer, answered) = oneshot::channel();
        let asked = self.requests().as_ref().is_some_and(|to| to.send(EvaluationRequest { epochs, answer }).is_ok());
        if !asked {
            return Err(ending());
        }
        answered.await.map_err(|_| ending())??;
        Ok(!self.stopped())
    }

    /// A barrier is at the stage that holds the dense model.
    pub(crate) fn at_barrier(&self, model: &dyn DenseModel) {
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.wants_dense) {
            let optimizer = self.shared.job.output.state.then(|| model.optimizer());
            state.dense = Some(DenseCopy { parameters: model.parameters(), optimizer });
        }
    }

    /// A checkpoint has these evaluations: the model of the best of them is not replaced before a later one.
    pub(crate) fn checkpointed(&self, points: &[EvaluationPoint]) {
        let state = self.shared.lock();
        let best = stopping::best(&self.shared.job.evaluation, points.get(state.kept_from..).unwrap_or_default());
        let best = best.map(|at| state.kept_from + at);
        drop(state);
        if let (Some(at), Some(models)) = (best, self.shared.best().as_mut()) {
            models.checkpoint_needs(at);
        }
    }

    pub(crate) fn history(&self) -> EvaluationHistory {
        self.shared.history()
    }
}
