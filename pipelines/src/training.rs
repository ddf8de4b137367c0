//! A training run. [`Training::builder`] wires it.
//!
//! Read in this order, in `training/`: `training/builder.rs`, `training/resources.rs` (what the stages need), `training/preflight.rs`
//! (checks before the first row), `training/wiring.rs` (connects the stages of each role), this file, `training/evaluated_run.rs` and
//! `training/trained_evaluations.rs`, `training/ended_run.rs` (the end), `training/drained.rs`, `training/failed_training.rs` and
//! `training/early_leave.rs` (other ends), `training/run_report.rs`. `training/headspace.rs`: the speed with a perfect feed.

pub(crate) mod builder;
pub(crate) mod drained;
pub(crate) mod early_leave;
mod ended_run;
pub(crate) mod evaluated_run;
pub(crate) mod failed_training;
pub(crate) mod headspace;
pub(crate) mod preflight;
pub(crate) mod resources;
pub(crate) mod run_report;
pub(crate) mod trained_evaluations;
pub(crate) mod wiring;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_actors::{Fault, LedgerReport, Pipeline, Plan, Report, Results, Running, Track};
use forebay_job::{Job, RunEnd};
use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

use crate::checkpoint::KeptWriter;
use crate::checkpointer::checkpoint_thread::{Checkpointer, NewestCheckpoint};
use crate::checkpointer::drain::DrainWithout;
use crate::checkpointer::last::LastCheckpoint;
use crate::checkpointer::{follow_cuts, watch_run};
use crate::cluster::meters::MeterSender;
use crate::cluster::{ClusterSession, RunStatus};
use crate::dense_model::dense_memory::DenseMemory;
use crate::evaluations::{Evaluations, Evaluator};
use crate::metrics::evaluation_points::EvaluationHistory;
use crate::metrics::progress::Snapshot;
use crate::metrics::slots_seen::{SlotReport, SlotsSeen};
use crate::metrics::training_summary::TrainingSummary;
use crate::model::Model;
use crate::order::look_ahead::LookAheadReport;
use crate::stages::TRAINED_BEFORE;
use crate::training::failed_training::FailedTraining;
use crate::training::resources::Resources;
use crate::training::run_report::RunReport;
use crate::tuning::TuningThread;

/// How often [`Training::run`] calls the function given to `on_progress`.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Called with the run while it runs.
pub(crate) type OnProgress = Box<dyn FnMut(&RunningTraining) + Send>;

/// A wired run that has not started.
pub struct Training {
    pub(crate) resources: Resources,
    pub(crate) pipeline: Pipeline,
    pub(crate) on_progress: Option<OnProgress>,
}

impl fmt::Debug for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Training").field("plan", &self.pipeline.plan().name).finish_non_exhaustive()
    }
}

impl Training {
    /// Makes this process a member of a cluster.
    pub(crate) fn session(mut self, session: ClusterSession) -> Self {
        self.resources.session = Some(session);
        self
    }

    /// The graph, with capacities, replicas and places.
    pub fn plan(&self) -> &Plan {
        self.pipeline.plan()
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.resources.job
    }

    /// The memory that the dense parameters will take; `None` for an own model, which may have any.
    pub fn dense_memory(&self) -> Option<DenseMemory> {
        self.resources.model.spec.as_ref().map(|spec| DenseMemory::of(&self.resources.job, spec))
    }

    /// Starts it. Before that, the process that saves the model checks that it can: see [`preflight`](crate::preflight).
    ///
    /// # Errors
    /// A user fault if the memory that this process may have is too small for the dense parameters. A fault of
    /// [`preflight`](crate::preflight). In a cluster, all members end with it.
    pub fn start(self) -> Result<RunningTraining, Fault> {
        let Self { mut resources, pipeline, .. } = self;
        let requests = resources.evaluations.as_ref().and_then(|evaluations| evaluations.take_requests());
        let started = resources.check_memory().and_then(|()| match &resources.session {
            Some(session) if session.member.id().rank != 0 => pipeline.start(),
            _ => resources.check_before_start().and_then(|()| pipeline.start()),
        });
        let running = match &resources.session {
            None => started?,
            Some(session) => {
                let running = started.map_err(|fault| session.cannot_start(fault))?;
                session.kill_when_failed(running.control());
                running
            }
        };
        let cut_point = resources.participation.cut_point().cloned();
        let leads = resources.session.as_ref().is_none_or(|session| session.member.id().rank == 0);
        let checkpoints = resources.checkpoints.take();
        let keeper = checkpoints.as_ref().zip(resources.exact.clone());
        let keeper = keeper.map(|(checkpoints, exact)| KeptWriter { folder: checkpoints.folder.clone(), exact });
        let checkpoints = checkpoints.filter(|_| leads);
        let without_checkpoint: DrainWithout = match &resources.session {
            Some(session) => session.member.drains_without_checkpoint(),
            None => {
                let run = running.control();
                Box::new(move || run.drain())
            }
        };
        let checkpointer = checkpoints.map(|checkpoints| checkpoints.start(running.control(), without_checkpoint));
        let mut cuts = None;
        if let (Some(session), Some(cut_point)) = (&resources.session, cut_point) {
            cuts = cut_point.shared().map(|shared| follow_cuts(session, Arc::clone(shared), keeper));
            let end_run = checkpointer.as_ref().map(Checkpointer::end_run);
            watch_run(session, cut_point, end_run, running.control());
        }
        let evaluations = resources.evaluations.as_ref().filter(|evaluations| evaluations.are_made_here());
        let evaluator = evaluations
            .map(|evaluations| Evaluator::start(evaluations, requests, resources.evaluated_run(running.control())));
        let meters = resources.session.as_ref().map(|session| {
            let run = running.control();
            MeterSender::start(&session.member, move || run.snapshot())
        });
        let tuning = TuningThread::of_training(&resources.job, running.control(), &resources.dense_threads);
        let reports_drained = false;
        Ok(RunningTraining { running, resources, checkpointer, evaluator, cuts, meters, tuning, reports_drained })
    }

    /// Starts it and waits.
    ///
    /// # Errors
    /// The first fault. [`RunningTraining::wait`] gives the report with it.
    pub fn run(mut self) -> Result<Trained, Fault> {
        let on_progress = self.on_progress.take();
        let running = self.start()?;
        match on_progress {
            Some(show) => running.wait_with(PROGRESS_EVERY, show),
            None => running.wait(),
        }
        .map_err(Fault::from)
    }
}

/// A run that has started.
pub struct RunningTraining {
    running: Running,
    resources: Resources,
    /// Makes the checkpoints of the run.
    checkpointer: Option<Checkpointer>,
    /// Evaluates the model while it is trained.
    evaluator: Option<Evaluator>,
    /// With several trainers and checkpoints: stops this one while a checkpoint is cut.
    cuts: Option<AbortOnDropHandle<()>>,
    /// In a cluster, sends the meters of this process and receives the meters of the others.
    meters: Option<MeterSender>,
    /// Changes the replicas of stages.
    tuning: Option<TuningThread>,
    reports_drained: bool,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunPosition {
    /// The part of all rows of all epochs that was trained on or left out, 0 to 1, if the source knows how many there are. For text files
    /// it is an estimate. `None`, too, while a resumed run with `data.negatives` reads text again: its checkpoint does not say how many
    /// rows were left out.
    pub share: Option<f64>,
    /// The epoch that is read, from 1.
    pub epoch: u32,
    /// All epochs.
    pub epochs: u32,
}

/// The result of a run that succeeded: it was drained, or it reached the end of its rows.
pub struct Trained {
    /// The model.
    pub model: Model,
    /// Meters of every stage and link of the run, the ledger, and what limited the run.
    pub report: RunReport,
    /// The timeline of each stage of this process; in a cluster by the clock of the coordinator.
    pub timeline: Vec<Track>,
    /// What custom stages left with [`StageCx::leave`](forebay_actors::StageCx::leave), by stage and type.
    pub results: Results,
    /// Rows, steps and epochs trained, and whether the run was drained before its last row.
    pub training: TrainingSummary,
    /// Rows, steps, running logloss and AUC at the end.
    pub progress: Snapshot,
    /// The largest staleness: how many earlier batches were unapplied at a look-up.
    pub staleness_observed: u64,
    /// What look-ahead has done; `None` in a job without.
    pub look_ahead: Option<LookAheadReport>,
    /// The counts of the slots; `None` in a cluster, if the counts of another trainer did not come.
    pub(crate) slots: Option<SlotsSeen>,
    /// Set if the run was drained, and its last checkpoint could not be written: why. The model has rows that no checkpoint has. A run that
    /// continues from an earlier checkpoint trains on them again.
    pub unwritten_checkpoint: Option<Fault>,
    pub(crate) evaluations: Option<Arc<Evaluations>>,
    /// The digest of the job as it was given.
    pub(crate) job_digest: String,
    /// Makes one more checkpoint, if the run makes them.
    pub(crate) last_checkpoint: Mutex<Option<LastCheckpoint>>,
    /// Set in a cluster; the caller ends it with [`ClusterSession::over`] or [`ClusterSession::leave`].
    pub session: Option<ClusterSession>,
}

impl fmt::Debug for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, training, progress, .. } = self;
        let mut shown = f.debug_struct("Trained");
        shown.field("model", &model.model.describe).field("training", training).field("progress", progress);
        shown.finish_non_exhaustive()
    }
}

impl Trained {
    /// The counts of each slot in the rows that were trained on since the run was started or resumed, over all trainers. `None` in a
    /// cluster, if the counts of another trainer did not come. Blocks on the shards.
    ///
    /// # Errors
    /// If a shard does not answer.
    pub fn slots(&self) -> Result<Option<Vec<SlotReport>>, Fault> {
        let Model { job, table, .. } = &self.model;
        self.slots.as_ref().map(|slots| slots.report(&job.columns, table)).transpose()
    }

    /// Makes a checkpoint of the whole run: a run that continues from it only has to save the model. `status`: in a cluster, the status of
    /// the run. Returns the number and the folder of the checkpoint; `None` if the run makes no checkpoints. Blocks on the store.
    pub fn leave_checkpoint(&self, status: Option<&RunStatus>) -> Option<Result<(u64, String), Fault>> {
        let mut last = self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_mut().map(|last| last.make(status))
    }

    /// Leaves a note beside the checkpoints that the run has ended and its model is saved: a process of the run that is killed after that,
    /// and started again, ends at once. Does nothing if the run makes no checkpoints, or was drained. Call it when nothing is left to do
    /// but to end. Blocks on the store.
    ///
    /// # Errors
    /// The store fails. The run has ended nevertheless.
    pub fn note_finished(&self) -> Result<(), Fault> {
        let (job, ended) = (&self.model.job, self.training.ended);
        let last = self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref().filter(|_| ended != RunEnd::Drained) {
            Some(last) => last.note_finished(self.job_digest.clone(), job.output.folder(ended), self.training.rows),
            None => Ok(()),
        }
    }
}

impl RunningTraining {
    /// Rows, steps, recent logloss and AUC.
    pub fn progress(&self) -> Snapshot {
        self.resources.progress.snapshot()
    }

    /// The current meters of this process.
    pub fn report(&self) -> Report {
        self.running.snapshot()
    }

    /// The current report of the run.
    pub fn run_report(&self) -> RunReport {
        let others = self.meters.as_ref().map(MeterSender::others).unwrap_or_default();
        self.resources.run_report(self.report(), others)
    }

    /// The job that it trains.
    pub fn job(&self) -> &Job {
        &self.resources.job
    }

    /// In a cluster, the status of the run.
    pub fn status(&self) -> Option<RunStatus> {
        self.resources.session.as_ref().map(ClusterSession::status)
    }

    /// The staleness of the newest look-up: how many earlier batches were unapplied.
    pub fn staleness_now(&self) -> u64 {
        self.resources.staleness.newest()
    }

    /// The largest staleness so far: how many earlier batches were unapplied at a look-up.
    pub fn staleness_observed(&self) -> u64 {
        self.resources.staleness.observed()
    }

    /// What look-ahead has done so far; `None` in a job without.
    pub fn look_ahead(&self) -> Option<LookAheadReport> {
        self.resources.look_ahead.as_ref().map(|look_ahead| look_ahead.report())
    }

    /// The newest checkpoint that this process has made, if there is any.
    pub fn newest_checkpoint(&self) -> Option<NewestCheckpoint> {
        self.checkpointer.as_ref().and_then(Checkpointer::newest)
    }

    /// The evaluations so far; `None` if the job has no `evaluation.every`.
    pub fn evaluations(&self) -> Option<EvaluationHistory> {
        self.resources.evaluations.as_ref().map(|evaluations| evaluations.history())
    }

    /// How far the run is.
    pub fn position(&self) -> RunPosition {
        let resources = &self.resources;
        let epochs = resources.job.data.epochs as u32;
        let (done, of, epoch) = match &resources.session {
            Some(session) => {
                let status = session.status();
                (Some(status.windows_done), Some(status.windows_total).filter(|&of| of > 0), status.first_open.0)
            }
            None => (self.rows_done(), resources.source.total_rows(), resources.source.epoch()),
        };
        let share = done.zip(of).map(|(done, of)| (done as f64 / of as f64).min(1.0));
        RunPosition { share, epoch: (epoch + 1).min(epochs.max(1)), epochs }
    }

    /// Rows that were trained on or left out, of a run in one process.
    fn rows_done(&self) -> Option<u64> {
        let (now, ledger) = (self.progress(), self.running.ledger());
        match self.resources.participation.cut_point().and_then(|cut_point| cut_point.rows_not_read_again()) {
            // The rows of other windows are read again. Rows that were trained on before count as rejected.
            Some(not_read_again) => Some(not_read_again + (now.rows - now.rows_before) + ledger.rejected_total()),
            None => rows_done_of_all(&now, &ledger, self.resources.job.data.negatives < 1.0),
        }
    }

    /// Changes the replicas of `parse` or, if its stage is replicated, of `batch`, from their next batch on. The model does not
    /// depend on it. A knob that is `"auto"` may change them again.
    ///
    /// # Errors
    /// As [`Control::scale`](forebay_actors::Control::scale).
    pub fn scale(&self, stage: &str, replicas: usize) -> Result<(), Fault> {
        self.running.scale(stage, replicas)
    }

    /// Whether the run has ended, so that [`wait`](Self::wait) will not block.
    pub fn ended(&self) -> bool {
        self.running.ended()
    }

    /// Ends the run early. A run with checkpoints makes one more, and ends with a fault of the kind
    /// [`FaultKind::Drained`](forebay_actors::FaultKind::Drained). A run without stops its source (in a cluster, the sources of all
    /// readers) and still trains on the rows that were read. So does a run whose last checkpoint cannot be written, if the job saves the
    /// model of a drained run: see [`Trained::unwritten_checkpoint`].
    ///
    /// One of several trainers, but not the first and not with `train.sync`, leaves instead, and the run goes on. It trains on what it has
    /// taken, and ends with a fault of the kind [`FaultKind::Drained`](forebay_actors::FaultKind::Drained), too.
    pub fn drain(&self) {
        if let Some(evaluations) = &self.resources.evaluations {
            evaluations.ends();
        }
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.end_run().end_run_with_checkpoint();
        }
        match (&self.resources.session, &self.resources.departure) {
            (Some(session), Some(departure)) => session.leave_or_drain(departure.clone()),
            // The coordinator remembers the drain, even if this process dies first.
            (Some(session), None) => session.drain(),
            (None, _) if self.checkpointer.is_none() => self.running.drain(),
            (None, _) => {}
        }
    }

    /// Stops at once. Batches under way are lost.
    pub fn kill(&self, fault: Fault) {
        self.running.kill(fault);
    }

    /// Calls `show` once per interval `every` until the run is over, and returns as soon as it is. Blocks; inside a runtime, call it in
    /// `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_with(self, every: Duration, mut show: impl FnMut(&Self)) -> Result<Trained, Box<FailedTraining>> {
        while !self.ended() {
            show(&self);
            self.running.wait_for_end(every);
        }
        self.wait()
    }

    /// Whether [`FailedTraining::drained`] has a report, for which the ps are asked about their tables. Default: false.
    #[must_use]
    pub fn report_if_drained(self, yes: bool) -> Self {
        Self { reports_drained: yes, ..self }
    }
}

/// Rows that are not trained on. The progress of the run counts the rows that were trained on before it was resumed.
fn left_out(ledger: &LedgerReport) -> u64 {
    ledger.rejected_total() - ledger.rejected.get(TRAINED_BEFORE).copied().unwrap_or(0)
}

/// As [`RunningTraining::rows_done`], for a run that reads all rows again if it is resumed. Its progress has the rows that were trained on
/// before. The rows that `data.negatives` left out before are known only when they are read again. `samples`: `data.negatives` leaves rows
/// out.
fn rows_done_of_all(now: &Snapshot, ledger: &LedgerReport, samples: bool) -> Option<u64> {
    let reads_again = now.rows_before > 0 && now.rows == now.rows_before;
    (!(samples && reads_again)).then(|| now.rows + left_out(ledger))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::progress::Progress;

    /// A bug: the progress of a resumed run counted the rows of the checkpoint twice.
    #[test]
    fn rows_trained_on_before_the_run_was_resumed_are_not_left_out() {
        let rejected = [(TRAINED_BEFORE.to_owned(), 500), ("bad".to_owned(), 7)].into();
        assert_eq!(left_out(&LedgerReport { read: 600, delivered: 93, rejected, ..LedgerReport::default() }), 7);
        assert_eq!(left_out(&LedgerReport::default()), 0);
    }

    /// A bug: the percentage of a resumed run over text rose within its first seconds by all the rows that `data.negatives` had left out.
    #[test]
    fn the_rows_that_were_left_out_are_not_known_until_they_are_read_again() {
        let now = |rows, rows_before| {
            let none = Progress::default().snapshot();
            Snapshot { rows, rows_before, ..none }
        };
        let ledger = |trained_before, negatives| {
            let rejected = [(TRAINED_BEFORE.to_owned(), trained_before), ("negative".to_owned(), negatives)].into();
            LedgerReport { rejected, ..LedgerReport::default() }
        };
        assert_eq!(rows_done_of_all(&now(500, 500), &ledger(100, 400), true), None);
        assert_eq!(rows_done_of_all(&now(500, 500), &ledger(100, 0), false), Some(500));
        assert_eq!(rows_done_of_all(&now(501, 500), &ledger(500, 2000), true), Some(2501));
        assert_eq!(rows_done_of_all(&now(0, 0), &ledger(0, 40), true), Some(40), "it is not resumed");
    }
}
