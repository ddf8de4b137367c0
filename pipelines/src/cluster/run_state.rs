//! The run as the coordinator sees it: a state machine over the requests of its members, without a clock and without IO.
//!
//! It owns the members ([`Members`]) and the leases ([`LeaseBook`]) and moves the run from phase to phase. Every method takes the time from
//! its caller. [`RunState::tick`] must be called a few times a second. Every request of a member is checked like a
//! [heartbeat](RunState::heartbeat), and fails for the same reasons.
//!
//! More of its methods: `run_state/attempts.rs` (joins, losses), `run_state/cutting.rs` (cuts), `run_state/leaving.rs` (trainers that
//! leave), `run_state/evaluating.rs` and `run_state/evaluation_turns.rs` (evaluations), `run_state/silence.rs` (timeouts),
//! `run_state/end_notices.rs` (the end).

mod attempts;
mod cutting;
mod end_notices;
mod evaluating;
mod evaluation_turns;
mod leaving;
mod silence;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_actors::{Domain, Fault, FaultKind};
use forebay_batches::RowCounts;
use forebay_connectors::DataPlan;
use forebay_job::{DenseAt, Job};

use self::end_notices::EndNotices;
use self::evaluation_turns::EvaluationTurns;
use super::absent_readers::AbsentReaders;
use super::cuts::Cuts;
use super::leases::{LeaseBook, LeaseReply, windows_per_lease};
use super::members::{self, Expected, Members, Role};
use super::messages::{
    CompletedWindows, FailRequest, Failure, LeaseRequest, MemberId, RunPhase, RunStatus, StopEarlyRequest, job_digest,
};
use crate::checkpoint::{DamagedCheckpoints, OriginCheckpoint, TrainedBatches, WindowLog, check_rows};
use crate::columns::sampled_settings::SampledSettings;

/// Rows of a row group as Forebay and most other writers make them.
const ROW_GROUP_ROWS: u64 = 131_072;

/// The settings of the job that the coordinator needs.
struct Settings {
    job_digest: String,
    /// Processes that read.
    readers: u32,
    /// The role of these processes.
    reader_role: Role,
    trainer_keeps_dense: bool,
    /// The only trainer reads its own rows. Its leases are not returned when it is silent: no other process could take them, and it
    /// would train on the same batches twice.
    reads_alone: bool,
    lease_rows: u64,
    window_rows: u64,
    /// Trainers take batches in the order of the data.
    ordered: bool,
    /// The run has checkpoints.
    checkpoints: bool,
    trainers: usize,
    /// The run goes on without trainers that have left, all but the first.
    trainers_may_leave: bool,
    /// Gradients are pushed as late as exact staleness says.
    exact: bool,
    /// Trainers take each step together.
    in_step: bool,
    /// A reader without a heartbeat for this long loses its leases.
    lease_timeout: Duration,
    /// The run fails when a ps or trainer is missing or silent for this long.
    timeout: Duration,
}

/// What an attempt continues from; the default is the start of the run.
#[derive(Default)]
pub(super) struct Origin {
    pub(super) checkpoint: Option<OriginCheckpoint>,
    /// What is trained on.
    pub(super) batches: TrainedBatches,
    /// What was read.
    pub(super) data: Option<DataPlan>,
    /// The manifest of the checkpoint, as JSON: see [`PlanReply::Plan`](super::messages::PlanReply::Plan).
    pub(super) manifest: Option<String>,
}

/// The state of one run.
pub(super) struct RunState {
    settings: Settings,
    /// See [`RunStatus::attempt`].
    attempt: u64,
    /// See [`RunStatus::start`].
    start: u64,
    /// What the attempt continues from. `None`: not known yet.
    origin: Option<Origin>,
    /// Checkpoints that a process could not load: no attempt continues from them.
    damaged: Arc<DamagedCheckpoints>,
    members: Members,
    /// What the first trainer of the first attempt decided. All later attempts have the same.
    sampled_settings: Option<SampledSettings>,
    /// What the first reader of the first attempt found. Later attempts read the same.
    data: Option<DataPlan>,
    /// `None` until the first reader of the attempt says what there is to read.
    leases: Option<LeaseBook>,
    /// By rank of the reader: its incarnation, the number of its last request for a lease, and the reply.
    lease_replies: BTreeMap<u32, (u64, u64, LeaseReply)>,
    phase: RunPhase,
    started: Instant,
    /// When [`tick`](Self::tick) was last called.
    ticked: Instant,
    /// When a window was last done.
    progressed: Instant,
    /// Since when the attempt waits for nothing but trainers that the run can do without.
    lacks_only_dispensable: Option<Instant>,
    /// When missing or silent members were last logged, and their names.
    last_logged: (Instant, Vec<String>),
    /// See [`RunStatus::silent`].
    silent: Vec<String>,
    absent_readers: AbsentReaders,
    cuts: Cuts,
    evaluations: EvaluationTurns,
    /// What trainers that have left this attempt had done in windows that are not done.
    done_by_left: Vec<WindowLog>,
    /// A member has asked for a drain, in this attempt or an earlier one.
    drain_asked: bool,
    /// See [`RunStatus::without_checkpoint`].
    without_checkpoint: bool,
    /// What was trained on when the training stopped early.
    stopped_after: Option<RowCounts>,
    /// See [`RunStatus::has_checkpoints`].
    has_checkpoints: bool,
    end_notices: EndNotices,
}

impl RunState {
    /// A run of `job` that starts at `now`. The number of its first `attempt` must differ between starts of the coordinator.
    pub(super) fn new(job: &Job, attempt: u64, now: Instant) -> Self {
        let placement = &job.placement;
        let expected = Expected {
            ps: placement.ps as u32,
            trainers: placement.trainers as u32,
            readers: placement.readers as u32,
        };
        let settings = Settings {
            job_digest: job_digest(job),
            readers: (placement.readers.max(placement.trainers)) as u32,
            reader_role: if placement.readers > 0 { Role::Reader } else { Role::Trainer },
            trainer_keeps_dense: placement.dense() == DenseAt::Trainer,
            reads_alone: placement.readers == 0 && placement.trainers == 1,
            lease_rows: placement.lease_rows as u64,
            window_rows: crate::window_rows::window_rows(job, job.in_step()) as u64,
            ordered: super::ordered(job),
            checkpoints: job.checkpoint.to.is_some(),
            trainers: placement.trainers,
            trainers_may_leave: job.trainers_may_leave(),
            exact: job.train.staleness.exactly,
            in_step: job.round().is_some(),
            lease_timeout: Duration::from_secs_f64(placement.lease_seconds),
            timeout: placement.timeout(),
        };
        Self {
            cuts: settings.cuts(),
            members: Members::new(expected, now).trainers_may_leave(settings.trainers_may_leave),
            settings,
            attempt,
            // Not 0, which stands for none.
            start: attempt | 1,
            origin: job.checkpoint.to.is_none().then(Origin::default),
            damaged: Arc::default(),
            sampled_settings: None,
            data: None,
            leases: None,
            lease_replies: BTreeMap::new(),
            phase: RunPhase::Gathering,
            started: now,
            ticked: now,
            progressed: now,
            lacks_only_dispensable: None,
            last_logged: (now, Vec::new()),
            silent: Vec::new(),
            absent_readers: AbsentReaders::default(),
            evaluations: EvaluationTurns::default(),
            done_by_left: Vec::new(),
            drain_asked: false,
            without_checkpoint: false,
            stopped_after: None,
            has_checkpoints: false,
            end_notices: EndNotices::new(expected),
        }
    }

    /// The status of the run that every member receives.
    pub(super) fn status(&self) -> RunStatus {
        let leases = self.leases.as_ref();
        RunStatus {
            attempt: self.attempt,
            start: self.start,
            phase: self.phase.clone(),
            missing: self.members.missing(),
            silent: self.silent.clone(),
            ps: self.members.addresses(Role::Ps),
            trainers: self.members.addresses(Role::Trainer),
            readers: self.members.readers(),
            data: leases.map(|leases| leases.data().clone()),
            first_open: leases.map_or((0, 0), LeaseBook::first_open),
            counts: self.counts(),
            windows_done: leases.map_or(0, LeaseBook::windows_done),
            windows_total: leases.map_or(0, LeaseBook::windows_total),
            lost_leases: leases.map_or(0, LeaseBook::lost_leases),
            returned_leases: leases.map_or(0, LeaseBook::returned_leases),
            without_checkpoint: self.without_checkpoint,
            has_checkpoints: self.has_checkpoints,
            stopped_early: self.stopped_after.is_some(),
        }
    }

    /// See [`RunStatus::counts`].
    fn counts(&self) -> RowCounts {
        let of_windows = self.leases.as_ref().map(LeaseBook::counts).unwrap_or_default();
        self.stopped_after.map_or(of_windows, |stopped| RowCounts { rejected: of_windows.rejected, ..stopped })
    }

    /// See [`RunStatus::silent`].
    pub(super) fn silent(&self) -> &[String] {
        &self.silent
    }

    /// Finds silent members, returns the leases of silent readers, ends the run if a ps or trainer is missing or silent for too long, and
    /// logs both.
    pub(super) fn tick(&mut self, now: Instant) {
        self.discount_own_pause(now);
        let silence = self.settings.lease_timeout;
        let role = self.settings.reader_role;
        self.silent = self.members.silent(silence, now).into_iter().map(members::name).collect();
        for reader in self.members.newly_lost(role, silence, now) {
            if self.settings.reads_alone {
                continue;
            }
            let leases = self.return_leases_of(reader);
            // When all rows are trained on, readers end, and leave nothing to read.
            if leases > 0 || matches!(self.phase, RunPhase::Running | RunPhase::Draining) {
                tracing::warn!(
                    leases,
                    "{role} {reader} sent no heartbeat for {silence:?}: the coordinator leases its windows to other readers"
                );
            }
        }
        // A run that drains without a checkpoint gives out no returned leases, so it may have waited for these alone.
        self.finish_if_done();
        self.check_missing(now);
        self.check_silent(now);
        self.check_readers(now);
        self.check_cut(now);
    }

    /// A member is alive. Every request of a member counts as a heartbeat.
    ///
    /// # Errors
    /// The run has begun a new attempt since the member joined, or its rank was started again.
    pub(super) fn heartbeat(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        if !self.is_current(&member) {
            return Err(Failure::rolled_back().fault());
        }
        self.members.heartbeat(member.role, member.rank, member.incarnation, now)
    }

    /// What a sample of the rows decided in this run. A member asks after all have joined.
    ///
    /// # Errors
    /// As [`heartbeat`](Self::heartbeat); an internal fault before the first trainer has joined.
    pub(super) fn sampled_settings(&mut self, member: MemberId, now: Instant) -> Result<SampledSettings, Fault> {
        self.heartbeat(member, now)?;
        self.sampled_settings.clone().ok_or_else(|| Fault::internal("no trainer has read a sample of the rows yet"))
    }

    /// A reader asks for windows to read. If the reader repeats a request, because the reply was lost, it gets the same reply again. A
    /// second lease would leave the windows of the first one unread.
    ///
    /// # Errors
    /// As [`lease_again`](Self::lease_again).
    pub(super) fn lease(&mut self, request: LeaseRequest, now: Instant) -> Result<LeaseReply, Fault> {
        let (MemberId { rank, incarnation, .. }, number) = (request.member, request.number);
        self.heartbeat(request.member, now)?;
        self.check_reads(&request.member, "asks for a lease")?;
        if self.members.has_left(request.member.role, rank) {
            // The reader sent the request before it left, and would not read the windows.
            return Ok(LeaseReply::Finished);
        }
        match self.lease_replies.get(&rank) {
            Some((of, last, reply)) if *of == incarnation && number == *last => return Ok(reply.clone()),
            Some((of, last, _)) if *of == incarnation && number < *last => return Ok(LeaseReply::Wait),
            _ => {}
        }
        let reply = self.lease_again(request, now)?;
        self.lease_replies.insert(rank, (incarnation, number, reply.clone()));
        Ok(reply)
    }

    /// A reader asks for windows for the first time with this number.
    ///
    /// # Errors
    /// A user fault if the reader finds other data than the first reader found; the run's failure if it has failed.
    fn lease_again(&mut self, request: LeaseRequest, now: Instant) -> Result<LeaseReply, Fault> {
        let LeaseRequest { member, data, returned_only, .. } = request;
        self.heartbeat(member, now)?;
        match &self.phase {
            RunPhase::Running => {}
            RunPhase::Gathering => return Ok(LeaseReply::Wait),
            RunPhase::Failed(failure) => return Err(failure.fault()),
            // The trainer makes a checkpoint and ends the run. Until then, a step of several trainers may need lost rows.
            RunPhase::Draining if self.makes_checkpoints() => {
                let lost = |leases: &mut LeaseBook| leases.lease_returned_range(member.rank);
                return Ok(self.leases.as_mut().map_or(LeaseReply::Wait, lost));
            }
            RunPhase::Draining | RunPhase::Finished | RunPhase::Over => return Ok(LeaseReply::Finished),
        }
        let (settings, origin) = (&self.settings, &self.origin);
        let numbered = |data: &Option<DataPlan>| data.as_ref().is_some_and(DataPlan::has_windows);
        if origin.as_ref().is_some_and(|origin| origin.checkpoint.is_some() && !numbered(&origin.data)) {
            return Err(Fault::user(
                "one process made the checkpoint, and it cuts text into other batches than several processes do: \
                 resume in one process",
            ));
        }
        if let Some(before) = origin.as_ref().and_then(|origin| origin.data.as_ref()) {
            check_rows(before, &data)?;
        }
        let expected = self.data.get_or_insert_with(|| data.clone());
        if let Some(what) = data.difference(expected) {
            return Err(Fault::user(format!(
                "{} {} finds other data than the first reader: {what}. All readers must find the same files, unchanged during \
                 the run",
                member.role, member.rank,
            )));
        }
        let leases = self.leases.get_or_insert_with(|| {
            let mut book = LeaseBook::new(data.clone(), settings.window_rows, settings.lease_windows(&data));
            if let Some(origin) = origin {
                book.skip(&origin.batches);
            }
            book
        });
        Ok(if returned_only { leases.lease_returned_range(member.rank) } else { leases.lease_next_range(member.rank) })
    }

    /// # Errors
    /// A user fault for a member that does not read.
    fn check_reads(&self, member: &MemberId, what: &str) -> Result<(), Fault> {
        let reads = self.settings.reader_role;
        match member.role == reads {
            true => Ok(()),
            false => Err(Fault::user(format!("{member} {what}, expected a {reads}"))),
        }
    }

    /// Every batch of some windows is done.
    ///
    /// # Errors
    /// An internal fault, which also ends the run, if the row counts of a window do not add up.
    pub(super) fn complete(&mut self, completed: CompletedWindows, now: Instant) -> Result<(), Fault> {
        self.heartbeat(completed.member, now)?;
        self.check_reads(&completed.member, "has completed windows")?;
        let Some(leases) = &mut self.leases else {
            return Err(Fault::internal("a window was completed before any lease was given"));
        };
        let before = leases.windows_done();
        let counted = completed.windows.iter().try_for_each(|windows| leases.complete(windows));
        if leases.windows_done() > before {
            self.progressed = now;
        }
        if let Err(fault) = counted {
            self.fail_run(Failure::of(&fault));
            return Err(fault);
        }
        if completed.gives_back {
            leases.give_back(completed.member.rank);
        }
        self.finish_if_done();
        Ok(())
    }

    /// A member cannot go on. The run fails, unless the member is a reader with an external fault (its disk or its network) and another
    /// reader can take its rows. If the run has failed already, that is why the member cannot go on.
    pub(super) fn fail(&mut self, request: FailRequest, now: Instant) -> Result<(), Fault> {
        let FailRequest { member: MemberId { role, rank, .. }, failure } = request;
        self.heartbeat(request.member, now)?;
        let failure = Failure { message: format!("{role} {rank}: {}", failure.message), ..failure };
        let has_failed = matches!(self.phase, RunPhase::Failed(_));
        if role != Role::Reader || failure.domain != Domain::External || has_failed {
            self.fail_run(failure);
            // The member ends with this fault and sends no more requests.
            self.mark_notified_if_ended(role, rank);
            return Ok(());
        }
        self.members.leave(role, rank, request.member.incarnation);
        let leases = self.return_leases_of(rank);
        if self.members.list(now).any(|member| member.role == Role::Reader && member.present) {
            tracing::warn!(leases, "{}: the coordinator leases its windows to other readers", failure.message);
        } else {
            self.fail_run(failure);
        }
        Ok(())
    }

    /// Readers begin no more windows. When the windows that they have begun are done, the run is finished. A run with checkpoints goes on
    /// until its first trainer ends it with a last checkpoint, or says that this checkpoint cannot be written. A run that begins a new
    /// attempt before that ends at once. The request counts, too, if the member has not joined the newest attempt yet.
    pub(super) fn drain(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        if self.is_current(&member) {
            self.heartbeat(member, now)?;
        }
        if member.role == Role::Reader {
            return Err(Fault::user(format!(
                "{member} asked to drain the run, expected a ps or a trainer: to take a reader out of the run, stop its process"
            )));
        }
        self.begin_drain();
        Ok(())
    }

    /// As [`drain`](Self::drain). The process of the coordinator may ask for it before it has joined.
    pub(super) fn begin_drain(&mut self) {
        self.drain_asked = true;
        if matches!(self.phase, RunPhase::Gathering | RunPhase::Running) {
            self.phase = RunPhase::Draining;
            self.finish_if_done();
        }
    }

    /// The last checkpoint of a run that drains cannot be written: the run ends as one without checkpoints, and saves its model. The
    /// request drains the run, too, because it may come before the request for the drain.
    ///
    /// # Errors
    /// A user fault for any other member than the first trainer.
    pub(super) fn drain_without_checkpoint(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        if (member.role, member.rank) != (Role::Trainer, 0) {
            return Err(Fault::user(format!(
                "{member} says that the last checkpoint cannot be written, expected trainer 0"
            )));
        }
        self.drain(member, now)?;
        if self.phase == RunPhase::Draining {
            self.without_checkpoint = self.settings.checkpoints;
            self.finish_if_done();
        }
        Ok(())
    }

    /// Whether a drain ends with a checkpoint.
    fn makes_checkpoints(&self) -> bool {
        self.settings.checkpoints && !self.without_checkpoint
    }

    /// An earlier process of the coordinator was asked to drain the run. The run ends as soon as its origin is known.
    pub(super) fn drains_from_the_start(&mut self) {
        self.drain_asked = true;
        self.end_if_drained();
    }

    /// The model is saved: all processes may end.
    pub(super) fn over(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        if (member.role, member.rank) != (Role::Trainer, 0) {
            return Err(Fault::user(format!("{member} says that the model is saved, expected trainer 0")));
        }
        if self.phase == RunPhase::Finished {
            self.phase = RunPhase::Over;
        }
        self.mark_notified_if_ended(member.role, member.rank);
        Ok(())
    }

    /// The first trainer has stopped early, and with it all that take their steps together: they train on no more batches, so the run is
    /// finished, whatever readers have read.
    ///
    /// # Errors
    /// A user fault for any other member than the first trainer, and if other trainers take their own steps.
    pub(super) fn stop_early(&mut self, request: StopEarlyRequest, now: Instant) -> Result<(), Fault> {
        let StopEarlyRequest { member, trained } = request;
        self.heartbeat(member, now)?;
        let alone = self.settings.trainers == 1 || self.settings.in_step;
        if (member.role, member.rank, alone) != (Role::Trainer, 0, true) {
            return Err(Fault::user(format!(
                "{member} stops the training early, expected the only trainer, or trainer 0 with train.sync"
            )));
        }
        if matches!(self.phase, RunPhase::Running | RunPhase::Draining) {
            self.stopped_after = Some(trained);
            self.phase = RunPhase::Finished;
        }
        Ok(())
    }

    /// Makes the leases of a reader available to others. Returns their number.
    fn return_leases_of(&mut self, reader: u32) -> usize {
        self.leases.as_mut().map_or(0, |leases| leases.return_leases_of(reader))
    }

    fn fail_run(&mut self, failure: Failure) {
        // The first fault wins, and a run that is over stays over.
        if !matches!(self.phase, RunPhase::Failed(_) | RunPhase::Over) {
            match failure.kind == FaultKind::Drained {
                true => tracing::info!("{}", failure.message),
                false => tracing::error!("the run has failed: {}", failure.message),
            }
            self.phase = RunPhase::Failed(failure);
        }
    }

    /// Ends a run that is to be drained and has read nothing in this attempt: the origin of the attempt has all rows that were trained on.
    fn end_drained(&mut self) {
        let message = match self.origin.as_ref().map(|origin| origin.checkpoint) {
            // The coordinator still looks for it.
            None => "stopped; --resume continues from the newest checkpoint, if there is one".to_owned(),
            Some(Some(OriginCheckpoint { number, .. })) => {
                format!("stopped; --resume continues from checkpoint {number}, and trains on the rows after it again")
            }
            Some(None) => {
                let first = if self.settings.checkpoints { "checkpoint" } else { "batch" };
                format!("stopped before the first {first}: the run has trained on no rows")
            }
        };
        self.fail_run(Failure::drained(message));
    }

    fn finish_if_done(&mut self) {
        let nothing_read = self.phase == RunPhase::Draining && self.leases.is_none();
        // No batch was read, so a trainer cannot make a last checkpoint; or no ps and trainer has joined that could end the run.
        if nothing_read && (self.settings.checkpoints || !self.members.has_ps_and_trainers()) {
            return self.end_drained();
        }
        let ordered = self.settings.ordered;
        let done = match self.phase {
            RunPhase::Running => self.leases.as_ref().is_some_and(LeaseBook::is_finished),
            RunPhase::Draining if self.makes_checkpoints() => false,
            RunPhase::Draining => self.leases.as_ref().is_none_or(|leases| leases.is_drained(ordered)),
            _ => false,
        };
        if done {
            self.phase = RunPhase::Finished;
        }
    }
}

impl Settings {
    /// Windows of a lease: `placement.lease_rows`, but few enough that every reader gets several leases. If trainers take
    /// batches in order, readers work in parallel only if the next windows soon belong to another reader: then a lease has at
    /// most a row group.
    fn lease_windows(&self, data: &DataPlan) -> u64 {
        let rows = if self.ordered { self.lease_rows.min(ROW_GROUP_ROWS) } else { self.lease_rows };
        windows_per_lease(rows / self.window_rows.max(1), data, self.readers)
    }
}

#[cfg(test)]
mod tests;
