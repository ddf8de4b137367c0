//! The thread that evaluates while a model is trained. It sleeps until the look-up asks. Of several trainers in step, the first has it.
//!
//! A fault of a disk or a store costs no training: the thread tries the evaluation, or keeping the best model, again for
//! `output.retry_for`, and then goes on without it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_actors::{Control, Domain, Fault, FaultKind, Host, counted};
use forebay_job::{Job, ReduceLrOnPlateau, Transfers};
use futures::executor::block_on;

use super::evaluations::{DenseCopy, EvaluationRequest, EvaluationState};
use super::{Evaluations, LearningRates, stopping};
use crate::columns::run_types::{RowTypes, RunTypes};
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::metrics::evaluation_points::EvaluationPoint;
use crate::metrics::progress::Progress;
use crate::metrics::quality::Evaluation;
use crate::metrics::training_summary::TrainingSummary;
use crate::model::Model;
use crate::retries::Retries;

/// Tells the other trainers how many rows were before the evaluation. Fails if the coordinator does not answer.
pub(crate) type TellOthers = Box<dyn Fn(u64) -> Result<(), Fault> + Send>;

/// The run that is evaluated.
pub(crate) struct EvaluatedRun {
    pub(crate) control: Control,
    pub(crate) job: Job,
    pub(crate) context: Context,
    pub(crate) model: JobModel,
    pub(crate) rates: LearningRates,
    pub(crate) progress: Progress,
    pub(crate) types: RunTypes,
    /// The summary that a kept model is saved with, once the evaluation has set its rows, steps and epochs.
    pub(crate) summary: TrainingSummary,
    /// Replaces the dense parameters by the newest ones, if other processes have them. May block on the network.
    pub(crate) latest: Box<dyn Fn(DenseCopy) -> Result<DenseCopy, Fault> + Send>,
    /// Receives each evaluation, after its model is kept if it is the best. Checkpoints after that have the evaluation.
    pub(crate) evaluated: Box<dyn Fn(EvaluationPoint) + Send>,
    /// Whether the processes of the run are shutting down.
    pub(crate) ends: Box<dyn Fn() -> bool + Send>,
    /// Called with the rows and steps of the last evaluation when the metric has stopped improving, before the run is drained.
    pub(crate) stopped: Box<dyn Fn(u64, u64) + Send>,
    /// If other trainers wait for the evaluation, tells them that the one after this many rows is over. Blocks.
    pub(crate) tell_others: Option<TellOthers>,
}

/// Evaluates the model of a run until the run ends.
pub(crate) struct Evaluator {
    evaluations: Arc<Evaluations>,
    thread: Option<JoinHandle<()>>,
}

struct Worker {
    shared: Arc<EvaluationState>,
    run: EvaluatedRun,
}

impl Evaluator {
    /// Evaluates `run` when `requests` ask for it.
    pub(crate) fn start(
        evaluations: &Arc<Evaluations>,
        requests: Option<Receiver<EvaluationRequest>>,
        run: EvaluatedRun,
    ) -> Self {
        let worker = Worker { shared: Arc::clone(&evaluations.shared), run };
        if evaluations.stopped() {
            // The run continues from a checkpoint that was made after the training had stopped.
            worker.stop();
        }
        let answer = move || requests.into_iter().for_each(|requests| worker.answer(&requests));
        let thread = std::thread::Builder::new().name("evaluation".into()).spawn(answer);
        let thread = thread.map_err(|e| {
            let fault = Fault::no_thread("the thread `evaluation`", e);
            tracing::error!("the model cannot be evaluated: {fault}");
        });
        Self { evaluations: Arc::clone(evaluations), thread: thread.ok() }
    }

    /// Ends the thread, after the pipeline that asks has ended. A model that is being kept is written to its end.
    pub(crate) fn end(self) {
        self.evaluations.close_requests();
        if self.thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that evaluates panicked");
        }
    }
}

/// Adds to the fault of an evaluation that it is about rows of `data.eval`, because rows of `data.train` also have places.
fn of_data_eval(fault: Fault) -> Fault {
    if fault.kind == FaultKind::Stopped { fault } else { fault.context("the rows of data.eval cannot be scored") }
}

/// Whether the fault of an evaluation may pass. `scored_before`: an earlier evaluation scored the rows of `data.eval`, so a fault of the
/// rows means that the files have changed since.
fn may_pass(fault: &Fault, scored_before: bool) -> bool {
    if matches!(fault.kind, FaultKind::Stopped | FaultKind::Device | FaultKind::RolledBack) {
        return false;
    }
    match fault.domain {
        Domain::External => true,
        Domain::User => scored_before || fault.kind == FaultKind::NotFound,
        Domain::Internal => false,
    }
}

impl Worker {
    fn answer(&self, requests: &Receiver<EvaluationRequest>) {
        while let Ok(EvaluationRequest { rows, epochs, answer }) = requests.recv() {
            // The look-up would add the lineage of the batch that it holds. No evaluation is about the rows of that batch, and a fault of
            // the rows of data.eval has their place already.
            let evaluated = catch_unwind(AssertUnwindSafe(|| self.evaluate(rows, epochs)))
                .unwrap_or_else(|panic| Err(Fault::of_panic("the thread that evaluates panicked", &*panic)));
            let evaluated = evaluated.map_err(|fault| match fault.lineage.is_some() {
                true => fault,
                false => fault.hide_lineage(),
            });
            // The look-up is gone if the run was killed.
            let _ = answer.send(evaluated);
        }
    }

    /// Evaluates the model as it is, and keeps it if it is the best so far. Goes on without the evaluation, or the best model, if a fault
    /// that may pass prevents it.
    fn evaluate(&self, rows: u64, epochs: u32) -> Result<(), Fault> {
        self.try_to_evaluate(rows, epochs)?;
        match &self.run.tell_others {
            // The end of the training tells them, too.
            Some(tell) if !self.shared.lock().stopped => tell(rows),
            _ => Ok(()),
        }
    }

    fn try_to_evaluate(&self, rows: u64, epochs: u32) -> Result<(), Fault> {
        let model = self.model_now(rows, epochs)?;
        let scored_before = !self.shared.lock().points.is_empty();
        let steps = model.training.as_ref().map_or(0, |training| training.steps);
        let evaluation = match self.scored(&model, rows, scored_before) {
            Err(fault) if may_pass(&fault, scored_before) && !self.run.control.killed() => {
                self.shared.miss();
                tracing::warn!(
                    "the evaluation after {} is missed, and the training goes on without it: {fault}",
                    counted(rows, "row")
                );
                return Ok(());
            }
            scored => scored?,
        };
        let options = &self.run.job.evaluation;
        let point = EvaluationPoint::new(rows, steps, epochs, &evaluation);
        let (others, left_out) = (others(&evaluation), evaluation.left_out());
        if !scored_before {
            stopping::check_first(options, &point)?;
        }
        let point = EvaluationPoint { reduced_lr: self.shared.reduces_lr(&point), ..point };
        let (at, is_best) = self.shared.add(point, evaluation);
        if point.reduced_lr {
            self.shared.reduce_lr(&self.run.rates)?;
        }
        let is_kept = is_best && self.is_kept(at, &model)?;
        // The model is kept before the point is recorded: checkpoints after that name the model.
        (self.run.evaluated)(point);
        let mut state = self.shared.lock();
        let best = match stopping::best(options, &state.points) == Some(at) {
            true => ", the best so far",
            false if is_kept => ", the best so far of those whose models are kept",
            false => "",
        };
        let stops = stopping::stops_after(options, &state.points);
        let reduced = match (point.reduced_lr && !stops, options.reduce_lr_on_plateau) {
            (true, Some(ReduceLrOnPlateau { factor, .. })) => {
                format!("; the learning rates are multiplied by {factor}")
            }
            _ => String::new(),
        };
        tracing::info!("evaluation {} {point}{others}{best}{left_out}{reduced}", at + 1);
        if stops {
            state.stopped = true;
            drop(state);
            self.stop();
        }
        Ok(())
    }

    /// Ends the training: no more batches are trained on.
    fn stop(&self) {
        let (rows, steps) = self.shared.lock().points.last().map_or((0, 0), |point| (point.rows, point.steps));
        (self.run.stopped)(rows, steps);
        self.run.control.drain();
    }

    /// Scores `data.eval` with the model after `rows` rows.
    fn scored(&self, model: &Model, rows: u64, scored_before: bool) -> Result<Evaluation, Fault> {
        let Some(paths) = &self.run.job.data.eval else {
            return Err(Fault::internal("a job without data.eval evaluates"));
        };
        let not_yet = format!("the evaluation after {} is not made yet", counted(rows, "row"));
        let passes = |fault: &Fault| may_pass(fault, scored_before);
        // No batch is trained on while the evaluation is tried again, so a fault that lasts costs this time only once.
        self.retry(&not_yet, self.shared.has_missed(), &passes, || {
            model.evaluate_unless(paths.clone(), &self.shared.warned, || self.run.control.ended()).map_err(of_data_eval)
        })
    }

    /// Keeps the model of evaluation `at`, the best so far, if best models are kept. Returns false if the disk or the store does not take
    /// it.
    ///
    /// # Errors
    /// A defect.
    fn is_kept(&self, at: usize, model: &Model) -> Result<bool, Fault> {
        let not_yet = format!("the model of evaluation {} is not kept yet", at + 1);
        let passes = |fault: &Fault| fault.domain == Domain::External;
        let kept = self.retry(&not_yet, self.shared.has_not_kept(), &passes, || self.shared.keep(at, model));
        match kept {
            Err(fault) if fault.domain == Domain::Internal => Err(fault),
            Err(fault) => {
                tracing::warn!("the training goes on without this model, which will not be saved: {fault}");
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }

    /// Tries for `output.retry_for`, until the run is asked to shut down. `once`: tries once, because the last action has failed for that
    /// long.
    fn retry<T>(
        &self,
        not_yet: &str,
        once: bool,
        passes: &dyn Fn(&Fault) -> bool,
        attempt: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let timeout = if once { Duration::ZERO } else { self.run.job.output.retry_for.0 };
        let EvaluatedRun { control, ends, .. } = &self.run;
        let gives_up = || self.shared.asked_to_shut_down() || ends() || control.killed() || control.ended();
        Retries { not_yet, timeout, passes, gives_up: &gives_up }.run(attempt)
    }

    /// The model after all batches that were looked up, which have `rows` rows and `epochs` whole epochs.
    fn model_now(&self, rows: u64, epochs: u32) -> Result<Model, Fault> {
        self.shared.lock().wants_dense = true;
        let first = match self.run.job.train.transfers() {
            Transfers::Apart => "upload",
            Transfers::Inline => "train",
        };
        block_on(self.run.control.barrier_at(first))?;
        let dense = self.shared.lock().dense.take();
        let Some(dense) = dense else {
            return Err(Fault::internal("a barrier has passed without the dense parameters"));
        };
        let DenseCopy { parameters: dense, optimizer } = (self.run.latest)(dense)?;
        let steps = self.run.progress.snapshot().steps;
        let mut summary = self.run.summary.clone();
        if let Some(RowTypes { types, lists }) = self.run.types.get() {
            (summary.types, summary.lists) = (types.0, lists);
        }
        let training = TrainingSummary { rows, steps, epochs: u64::from(epochs), ..summary };
        Ok(Model {
            job: self.run.job.clone(),
            dense,
            optimizer,
            table: self.run.rates.table.clone(),
            training: Some(training),
            approximates: None,
            model: self.run.model.clone(),
            // The host of the run serves the table, and this host serves nothing.
            host: Host::start("evaluation")?,
            context: self.run.context.clone(),
        })
    }
}

/// The AUC and the logloss of the labels other than `evaluation.label`.
fn others(evaluation: &Evaluation) -> String {
    let others = evaluation.labels.iter().filter(|other| other.label != evaluation.label);
    others.fold(String::new(), |line, other| {
        if !other.is_measured() {
            return line + &format!("; {other}");
        }
        let auc = other.auc.map_or_else(|| "undefined".to_owned(), |auc| format!("{auc:.5}"));
        let logloss = other.logloss().map_or_else(String::new, |logloss| format!(", logloss {logloss:.5}"));
        line + &format!("; {}: AUC {auc}{logloss}", other.label.as_deref().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_disk_or_a_store_may_pass_and_those_of_rows_that_were_scored_before() {
        let away = || Fault::external("the store cannot be reached");
        let nothing = || Fault::user("there is nothing at `rows`");
        for (fault, at_first, later) in [
            (away(), true, true),
            (away().kind(FaultKind::Device), false, false),
            (away().kind(FaultKind::Stopped), false, false),
            (away().kind(FaultKind::RolledBack), false, false),
            (nothing(), false, true),
            (nothing().kind(FaultKind::NotFound), true, true),
            (nothing().kind(FaultKind::Stopped), false, false),
            (Fault::internal("a defect"), false, false),
        ] {
            assert_eq!((may_pass(&fault, false), may_pass(&fault, true)), (at_first, later), "{fault:?}");
        }
    }
}
