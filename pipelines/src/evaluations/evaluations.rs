//! The state that the stages, the thread that evaluates and the end of a run share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_actors::{Batch, Fault, FaultKind};
use forebay_base::LrReduction;
use forebay_batches::TrainBatch;
use forebay_job::{EvaluateEvery, Job};
use forebay_models::{DenseModel, NamedTensor};
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::best_models::BestModels;
use super::learning_rates::LearningRates;
use super::stopping;
use crate::context::Context;
use crate::metrics::evaluation_points::{EvaluationHistory, EvaluationPoint};
use crate::metrics::quality::Evaluation;
use crate::metrics::unknown_values::WarnedSlots;
use crate::model::Model;
use crate::order::lookup_gate::LookupGate;

/// The evaluations of one run while it trains.
pub(crate) struct Evaluations {
    every: EvaluateEvery,
    /// `None` after the end of the pipeline.
    requests: Mutex<Option<Sender<EvaluationRequest>>>,
    /// Until the thread has it.
    received: Mutex<Option<Receiver<EvaluationRequest>>>,
    /// A batch enters it before its look-up, and leaves it when its gradients are applied or, with exact staleness, kept.
    gate: Arc<LookupGate>,
    /// Set if another trainer evaluates.
    elsewhere: Option<AwaitEvaluation>,
    pub(crate) shared: Arc<EvaluationState>,
}

/// Waits until the trainer that evaluates has done so after this many rows of all trainers, or goes on without. Returns whether the
/// training stops there. Fails if the run has failed or the coordinator does not answer.
pub(crate) type AwaitEvaluation = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<bool, Fault>> + Send + Sync>;

/// Asks for an evaluation after these rows, of all trainers, and whole epochs. The look-up waits for the answer.
pub(crate) struct EvaluationRequest {
    pub(super) rows: u64,
    pub(super) epochs: u32,
    pub(super) answer: oneshot::Sender<Result<(), Fault>>,
}

/// What the thread changes.
pub(crate) struct EvaluationState {
    job: Job,
    state: Mutex<EvaluationsState>,
    /// Set if the best model is kept. Locked while a model is saved, so that a checkpoint made meanwhile waits until it can say which model
    /// it needs. `state`, which is also read for the progress, is not locked then.
    best: Mutex<Option<BestModels>>,
    /// The run was asked to shut down: nothing is tried again.
    asked_to_shut_down: AtomicBool,
    pub(crate) warned: WarnedSlots,
}

#[derive(Default)]
pub(crate) struct EvaluationsState {
    pub(crate) points: Vec<EvaluationPoint>,
    /// The evaluations whose models are there: kept, or at the end of the run in memory. One of them is the best model.
    pub(crate) there: BTreeSet<usize>,
    /// Another program has taken the place of a best model.
    pub(crate) taken: bool,
    /// Rows and whole epochs before the last evaluation that was due.
    last_due: Option<(u64, u32)>,
    /// It was missed.
    missed: bool,
    /// The last best model could not be kept.
    not_kept: bool,
    /// An evaluation is under way.
    under_way: bool,
    /// Rows of the batches that were looked up, by all trainers that take their steps together.
    rows: u64,
    pub(super) stopped: bool,
    /// The last point is after the last row, with all gradients applied.
    pub(crate) ended: bool,
    /// Set while a barrier for an evaluation is under way.
    pub(super) wants_dense: bool,
    pub(super) dense: Option<DenseCopy>,
    /// The evaluations of this process at the best and at the last point, with the index of each.
    pub(crate) at_best: Option<(usize, Evaluation)>,
    pub(crate) at_last: Option<(usize, Evaluation)>,
}

/// The dense parameters at a barrier.
pub(crate) struct DenseCopy {
    pub(crate) parameters: Vec<NamedTensor>,
    /// The state of their optimizer, if the job saves it.
    pub(crate) optimizer: Option<Vec<NamedTensor>>,
}

impl EvaluationsState {
    /// The index of the best evaluation of those whose models are there.
    pub(crate) fn best(&self, job: &Job) -> Option<usize> {
        stopping::best_of(&job.evaluation, &self.points, |at| self.there.contains(&at))
    }

    /// The index of the last evaluation.
    pub(crate) fn last(&self) -> Option<usize> {
        self.points.len().checked_sub(1)
    }

    /// Whether the last evaluation was made after this many rows.
    pub(crate) fn last_is_after(&self, rows: u64) -> bool {
        self.points.last().is_some_and(|point| point.rows == rows)
    }
}

impl EvaluationState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, EvaluationsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn best(&self) -> MutexGuard<'_, Option<BestModels>> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the run was asked to shut down.
    pub(super) fn asked_to_shut_down(&self) -> bool {
        self.asked_to_shut_down.load(Ordering::SeqCst)
    }

    /// Adds an evaluation. Returns its index, and whether it is the best so far. If best models are kept, it is compared only with
    /// evaluations whose models are kept.
    pub(crate) fn add(&self, point: EvaluationPoint, evaluation: Evaluation) -> (usize, bool) {
        let (mut state, keeps) = (self.lock(), self.job.keeps_best());
        let at = state.points.len();
        state.points.push(point);
        let counts = |of: usize| of == at || !keeps || state.there.contains(&of);
        let is_best = stopping::best_of(&self.job.evaluation, &state.points, counts) == Some(at);
        (state.at_last, state.missed) = (Some((at, evaluation)), false);
        (at, is_best)
    }

    /// Whether this evaluation, after those that were added, reduces the learning rates.
    pub(super) fn reduces_lr(&self, point: &EvaluationPoint) -> bool {
        stopping::reduces_lr_after(&self.job.evaluation, self.lock().points.iter().chain([point]))
    }

    /// Reduces these rates as far as the evaluations so far say. Blocks.
    ///
    /// # Errors
    /// As [`LearningRates::reduce`].
    pub(super) fn reduce_lr(&self, rates: &LearningRates) -> Result<(), Fault> {
        let reductions = stopping::lr_reductions(&self.job.evaluation, &self.lock().points);
        reductions.map_or(Ok(()), |reductions| rates.reduce(&reductions))
    }

    /// The evaluation that was due last is missed. The next one gets only one try.
    pub(super) fn miss(&self) {
        self.lock().missed = true;
    }

    /// Whether the last evaluation was missed.
    pub(super) fn has_missed(&self) -> bool {
        self.lock().missed
    }

    /// Whether the last best model could not be kept.
    pub(super) fn has_not_kept(&self) -> bool {
        self.lock().not_kept
    }

    /// Keeps the model of evaluation `at`, which was added last, if best models are kept.
    ///
    /// # Errors
    /// The fault of the disk or the store. The model does not count as there.
    pub(super) fn keep(&self, at: usize, model: &Model) -> Result<(), Fault> {
        let (kept, there) = match self.best().as_mut() {
            Some(models) => (models.keep(at, model), models.held()),
            None => return Ok(()),
        };
        let mut state = self.lock();
        (state.there, state.not_kept) = (there, kept.is_err());
        if kept.is_ok() {
            state.at_best = state.at_last.clone();
        }
        kept
    }

    pub(crate) fn history(&self) -> EvaluationHistory {
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
    /// The evaluations that the job asks for. `elsewhere`: another trainer makes them, at the same steps, and this one waits for it.
    pub(crate) fn of(job: &Job, context: &Context, elsewhere: Option<AwaitEvaluation>) -> Option<Arc<Self>> {
        let every = job.evaluation.every?;
        let (requests, received) = channel();
        let kept = job.output.model.as_ref().filter(|_| job.keeps_best() && elsewhere.is_none());
        let best = kept.map(|model| BestModels::beside(model, context));
        let (state, best, asked_to_shut_down) = (Mutex::default(), Mutex::new(best), AtomicBool::default());
        let shared = Arc::new(EvaluationState {
            job: job.clone(),
            state,
            best,
            asked_to_shut_down,
            warned: WarnedSlots::default(),
        });
        let requests = Mutex::new(Some(requests));
        let (received, gate) = (Mutex::new(Some(received)), Arc::default());
        Some(Arc::new(Self { every, requests, received, gate, elsewhere, shared }))
    }

    /// Whether this process makes them.
    pub(crate) fn are_made_here(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Whether an evaluation is under way: no batch is looked up before its end.
    pub(crate) fn is_under_way(&self) -> bool {
        self.shared.lock().under_way
    }

    /// Goes on after the evaluations of a checkpoint, which was made after `rows` rows, and reduces the learning rates as these evaluations
    /// have. If another trainer makes the evaluations, it does both. Blocks on the store of the model.
    ///
    /// # Errors
    /// The store fails, or a fault of [`LearningRates::reduce`].
    pub(crate) fn restore(&self, points: Vec<EvaluationPoint>, rows: u64, rates: &LearningRates) -> Result<(), Fault> {
        let options = &self.shared.job.evaluation;
        let (mut there, best) = (BTreeSet::new(), stopping::best(options, &points));
        if let (Some(models), false) = (self.shared.best().as_mut(), points.is_empty()) {
            there = models.find(&points, &self.shared.job)?;
            let next = stopping::best_of(options, &points, |at| there.contains(&at));
            if let Some(at) = next {
                models.checkpoint_needs(at);
                self.warn_of_state(models, at);
            }
            if let Some(at) = best.filter(|_| next != best) {
                let instead = match next {
                    Some(next) => format!("that of evaluation {} is kept until a later one is better", next + 1),
                    None => "the best one of later evaluations is kept".to_owned(),
                };
                tracing::warn!(
                    "the best model so far, of evaluation {} ({}), is neither beside output.model nor there: {instead}",
                    at + 1,
                    points[at]
                );
            }
        }
        let mut state = self.shared.lock();
        state.stopped = stopping::stops_after(options, &points);
        state.last_due = points.last().map(|point| (point.rows, point.epochs));
        (state.points, state.there, state.rows) = (points, there, rows);
        drop(state);
        if self.are_made_here() { self.shared.reduce_lr(rates) } else { Ok(()) }
    }

    /// Warns that the best model so far, of evaluation `at`, lacks the state of its optimizers, if the job wants it.
    fn warn_of_state(&self, models: &BestModels, at: usize) {
        if let (true, Some(folder)) = (self.shared.job.output.state, models.without_state(at)) {
            tracing::warn!(
                "the best model so far, of evaluation {}, at {folder}, was saved without the state of its optimizers: unless a later one \
                 is better, the model of this run has none, although output.state is true",
                at + 1
            );
        }
    }

    /// The run was asked to shut down: an evaluation, or a model, that a fault prevents is not tried again.
    pub(crate) fn ends(&self) {
        self.shared.asked_to_shut_down.store(true, Ordering::SeqCst);
    }

    /// The requests, for the thread that answers them. Must be called before the pipeline starts.
    pub(crate) fn take_requests(&self) -> Option<Receiver<EvaluationRequest>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn requests(&self) -> MutexGuard<'_, Option<Sender<EvaluationRequest>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No more evaluations are asked for, so the thread that evaluates ends.
    pub(crate) fn close_requests(&self) {
        *self.requests() = None;
    }

    /// Whether no more batches are trained on.
    pub(super) fn stopped(&self) -> bool {
        self.shared.lock().stopped
    }

    /// The gate that [`before_look_up`](Self::before_look_up) enters. A batch that is not looked up skips it.
    pub(crate) fn gate(&self) -> Arc<LookupGate> {
        Arc::clone(&self.gate)
    }

    /// Before a batch is looked up, which has arrived there as number `arrival`: evaluates if it is time, and enters the gate. Before an
    /// evaluation it waits for the `last_push`, which was handed over. Returns whether the batch is trained on. Batches behind it wait.
    /// Dropped before it is ready, the run cannot go on.
    ///
    /// # Errors
    /// The push or the evaluation failed, or the run is ending. Internal: no thread evaluates this run.
    pub(crate) async fn before_look_up(
        &self,
        batch: &TrainBatch,
        arrival: u64,
        last_push: impl Future<Output = Result<(), Fault>>,
    ) -> Result<bool, Fault> {
        self.gate.until_turn(arrival).await;
        let is_trained_on = self.evaluate_if_due(batch, last_push).await?;
        self.gate.enter(arrival).await;
        Ok(is_trained_on)
    }

    /// Evaluates if it is time: when the gradients of all earlier batches are applied or, with exact staleness, kept. Returns whether
    /// `batch` is trained on.
    async fn evaluate_if_due(
        &self,
        batch: &TrainBatch,
        last_push: impl Future<Output = Result<(), Fault>>,
    ) -> Result<bool, Fault> {
        let epochs = batch.lineage.epoch;
        let (due, rows) = {
            let mut state = self.shared.lock();
            if state.stopped {
                return Ok(false);
            }
            let rows = state.rows;
            state.rows += batch.rows() as u64 + u64::from(batch.other_rows);
            let due = stopping::is_due(self.every, state.last_due, rows, epochs);
            if due {
                (state.last_due, state.under_way) = (Some((rows, epochs)), true);
            }
            (due, rows)
        };
        if !due {
            return Ok(true);
        }
        // The other trainers of its step wait for this push, too, if it has to be sent again.
        last_push.await?;
        let stops = match &self.elsewhere {
            Some(evaluated) => evaluated(rows).await?,
            None => {
                self.evaluate(rows, epochs).await?;
                self.stopped()
            }
        };
        let mut state = self.shared.lock();
        (state.stopped, state.under_way) = (stops, false);
        Ok(!stops)
    }

    /// Has the thread that evaluates evaluate the model, when the gradients of all batches that were looked up are applied or, with exact
    /// staleness, kept.
    async fn evaluate(&self, rows: u64, epochs: u32) -> Result<(), Fault> {
        if self.received.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Err(Fault::internal("no thread evaluates this run, whose job has evaluation.every"));
        }
        self.gate.until_all_left().await;
        let ending = || Fault::external("the run ended before its evaluation").kind(FaultKind::Stopped);
        let (answer, answered) = oneshot::channel();
        let asked =
            self.requests().as_ref().is_some_and(|to| to.send(EvaluationRequest { rows, epochs, answer }).is_ok());
        if !asked {
            return Err(ending());
        }
        answered.await.map_err(|_| ending())?
    }

    /// A barrier is at the stage that holds the dense model.
    pub(crate) fn at_barrier(&self, model: &dyn DenseModel) {
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.wants_dense) {
            let optimizer = self.shared.job.output.state.then(|| model.optimizer());
            state.dense = Some(DenseCopy { parameters: model.parameters(), optimizer });
        }
    }

    /// How far the learning rates of the next step are reduced; `None` if the job does not reduce them. No batch is on its way while an
    /// evaluation changes it.
    pub(crate) fn lr_reduction(&self) -> Option<LrReduction> {
        let reductions = stopping::lr_reductions(&self.shared.job.evaluation, &self.shared.lock().points)?;
        Some(reductions.newest())
    }

    /// A checkpoint has these evaluations: the model of the best of them is not replaced before a later one.
    pub(crate) fn checkpointed(&self, points: &[EvaluationPoint]) {
        let state = self.shared.lock();
        let best = stopping::best_of(&self.shared.job.evaluation, points, |at| state.there.contains(&at));
        drop(state);
        if let (Some(at), Some(models)) = (best, self.shared.best().as_mut()) {
            models.checkpoint_needs(at);
        }
    }

    pub(crate) fn history(&self) -> EvaluationHistory {
        self.shared.history()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use super::*;

    /// A bug: a run without a thread that evaluates waited forever for its first evaluation.
    #[test]
    fn an_evaluation_that_no_thread_makes_is_a_fault() {
        let job = Job::from_toml("data.eval = 'rows'\nevaluation.every = { epochs = 1 }", &[]).unwrap();
        let evaluations = Evaluations::of(&job, &Context::default(), None).unwrap();
        let batch = |epoch: u32| {
            let lineage = forebay_actors::Lineage { epoch, ..Default::default() };
            TrainBatch { lineage, rows: 4, ..TrainBatch::default() }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let due = runtime.block_on(async {
            assert!(evaluations.before_look_up(&batch(0), 0, ready(Ok(()))).await.unwrap());
            evaluations.gate().leave();
            tokio::time::timeout(Duration::from_secs(60), evaluations.before_look_up(&batch(1), 1, ready(Ok(())))).await
        });
        let fault = due.expect("the look-up waits for an evaluation that nothing makes").unwrap_err();
        assert!(fault.to_string().contains("no thread evaluates"), "{fault}");
        // The run has ended: the thread that evaluated has, too.
        drop(evaluations.take_requests());
        let fault = runtime.block_on(evaluations.before_look_up(&batch(2), 1, ready(Ok(())))).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Stopped, "{fault}");
    }
}
