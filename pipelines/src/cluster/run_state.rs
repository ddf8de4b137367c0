//! The run as the coordinator sees it: a state machine over the requests of its members, without a clock and without IO.
//!
//! It owns the members ([`Members`]) and the leases ([`LeaseBook`]) and moves the run from phase to phase. Every method takes
//! the time from its caller. [`RunState::tick`] must be called a few times a second. Every request of a member is checked like
//! a [heartbeat](RunState::heartbeat), and fails as that does.

use std::time::{Duration, Instant};

use forebay_actors::{Domain, Fault};
use forebay_connectors::DataPlan;

use super::absent_readers::AbsentReaders;
use super::leases::{LeaseBook, LeaseReply, windows_per_lease};
use super::members::{Expected, Members, Role};
use super::messages::{
    CompletedWindows, FailRequest, Failure, JoinReply, JoinRequest, LeaseRequest, MemberId, PlanReply, PlanRequest,
    RunPhase, RunStatus, job_digest,
};
use crate::checkpoint::TrainedBatches;
use crate::job::{DenseAt, Job};

/// Rows of a row group as Forebay and most other writers make them.
const ROW_GROUP_ROWS: u64 = 131_072;

/// Warn about a member that sent no heartbeat for this long, and repeat a warning after this long.
const WARN_AFTER_SILENCE: Duration = Duration::from_secs(10);

/// Log a change of the missing members only after this long: at the start of a run the list changes often.
const LOG_MISSING_AFTER: Duration = Duration::from_secs(2);

/// What the job says about the run.
struct Settings {
    job_digest: String,
    /// Processes that read.
    readers: u32,
    /// The role of these processes.
    reader_role: Role,
    trainer_keeps_dense: bool,
    lease_rows: u64,
    window_rows: u64,
    /// Trainers take batches in the order of the data.
    ordered: bool,
    /// The run has checkpoints.
    checkpoints: bool,
    /// A reader without a heartbeat for this long loses its leases.
    lease_timeout: Duration,
    /// The run fails when a ps or trainer is missing or silent for this long.
    timeout: Duration,
}

/// What an attempt goes on from; the default is the start of the run.
#[derive(Default)]
pub(super) struct Origin {
    /// The number of the checkpoint.
    pub(super) checkpoint: Option<u64>,
    /// What is trained on.
    pub(super) batches: TrainedBatches,
    /// What was read.
    pub(super) data: Option<DataPlan>,
}

/// The state of one run.
pub(super) struct RunState {
    settings: Settings,
    /// See [`RunStatus::attempt`].
    attempt: u64,
    /// What the attempt goes on from. `None`: not known yet.
    origin: Option<Origin>,
    members: Members,
    /// `None` until the first reader says what there is to read.
    leases: Option<LeaseBook>,
    phase: RunPhase,
    started: Instant,
    /// When missing or silent members were last logged, and their names.
    last_logged: (Instant, Vec<String>),
    absent_readers: AbsentReaders,
}

impl RunState {
    /// A run of `job` that starts `now`. The number of its first `attempt` must differ between starts of the coordinator.
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
            lease_rows: placement.lease_rows as u64,
            window_rows: crate::sources::window_rows(job, job.in_step()) as u64,
            ordered: super::ordered(job),
            checkpoints: job.checkpoint.to.is_some(),
            lease_timeout: Duration::from_secs_f64(placement.lease_seconds),
            timeout: placement.timeout(),
        };
        Self {
            settings,
            attempt,
            origin: job.checkpoint.to.is_none().then(Origin::default),
            members: Members::new(expected),
            leases: None,
            phase: RunPhase::Gathering,
            started: now,
            last_logged: (now, Vec::new()),
            absent_readers: AbsentReaders::default(),
        }
    }

    /// The status of the run that every member receives.
    pub(super) fn status(&self) -> RunStatus {
        let leases = self.leases.as_ref();
        RunStatus {
            attempt: self.attempt,
            phase: self.phase.clone(),
            missing: self.members.missing(),
            ps: self.members.addresses(Role::Ps),
            trainers: self.members.addresses(Role::Trainer),
            data: leases.map(|leases| leases.data().clone()),
            first_open: leases.map_or((0, 0), LeaseBook::first_open),
            counts: leases.map(LeaseBook::counts).unwrap_or_default(),
            windows_done: leases.map_or(0, LeaseBook::windows_done),
            windows_total: leases.map_or(0, LeaseBook::windows_total),
            reassigned_leases: leases.map_or(0, LeaseBook::reassigned_leases),
            lost_leases: leases.map_or(0, LeaseBook::lost_leases),
        }
    }

    /// Returns the leases of silent readers, ends the run if a ps or trainer is missing or silent for too long, and logs both.
    pub(super) fn tick(&mut self, now: Instant) {
        let silence = self.settings.lease_timeout;
        let role = self.settings.reader_role;
        for reader in self.members.lost_readers(role, silence, now) {
            let leases = self.return_leases_of(reader);
            tracing::warn!(leases, "{role} {reader} sent no heartbeat for {silence:?}: its rows go to others");
        }
        // While the run drains, returned leases go to no other reader, so they may be the last that it waited for.
        self.finish_if_done();
        self.check_missing(now);
        self.check_silent(now);
        self.check_readers(now);
    }

    /// Trainers that read by themselves are checked with the other trainers.
    fn check_readers(&mut self, now: Instant) {
        let waits = self.phase == RunPhase::Running
            && self.settings.reader_role == Role::Reader
            && !self.members.list(now).any(|member| member.role == Role::Reader && member.present);
        let left = match &self.leases {
            Some(leases) => {
                format!(
                    "{} of {} windows are not done",
                    leases.windows_total() - leases.windows_done(),
                    leases.windows_total()
                )
            }
            None => "nothing was read".to_owned(),
        };
        if let Some(message) = self.absent_readers.check(waits, &left, self.settings.timeout, now) {
            self.fail_run(Failure::new(Domain::External, message));
        }
    }

    /// A process has started. If the run cannot go on without what its predecessor held, the run begins anew.
    ///
    /// # Errors
    /// A user fault for another job.
    pub(super) fn plan(&mut self, request: &PlanRequest, now: Instant) -> Result<PlanReply, Fault> {
        let &PlanRequest { role, rank, nonce, .. } = request;
        self.check_job(role, rank, &request.job)?;
        if self.members.is_restart(role, rank, nonce)
            && let Some(lost) = self.lost_with(role)
        {
            self.begin_attempt(&format!("{role} {rank} was started again, {lost}"), now);
        }
        Ok(match &self.origin {
            Some(origin) => PlanReply::Plan { attempt: self.attempt, checkpoint: origin.checkpoint },
            None => PlanReply::Wait,
        })
    }

    /// The attempt that still needs an origin.
    pub(super) fn attempt_without_origin(&self) -> Option<u64> {
        self.origin.is_none().then_some(self.attempt)
    }

    /// Sets what an attempt goes on from, unless another has begun since.
    pub(super) fn set_origin(&mut self, attempt: u64, origin: Origin) {
        if self.attempt == attempt {
            self.origin = Some(origin);
        }
    }

    /// A process is ready to take part.
    ///
    /// # Errors
    /// A user fault for another job or an unknown rank.
    pub(super) fn join(&mut self, request: JoinRequest, now: Instant) -> Result<JoinReply, Fault> {
        let JoinRequest { role, rank, address, attempt, job, nonce } = request;
        self.check_job(role, rank, &job)?;
        if attempt != self.attempt {
            return Ok(JoinReply::AttemptIsOver);
        }
        if self.members.is_restart(role, rank, nonce)
            && let Some(lost) = self.lost_with(role)
        {
            self.begin_attempt(&format!("{role} {rank} was started again, {lost}"), now);
            return Ok(JoinReply::AttemptIsOver);
        }
        let joined = self.members.join(role, rank, address, nonce, now)?;
        let incarnation = joined.incarnation;
        let id = MemberId { role, rank, incarnation, attempt };
        if joined.repeated {
            return Ok(JoinReply::Joined(id));
        }
        if role == self.settings.reader_role {
            self.return_leases_of(rank);
        }
        tracing::info!(incarnation, "{role} {rank} joined");
        if self.phase == RunPhase::Gathering && self.members.missing().is_empty() {
            self.phase = RunPhase::Running;
            tracing::info!("all members joined after {:.1} s", now.duration_since(self.started).as_secs_f64());
        }
        Ok(JoinReply::Joined(id))
    }

    fn check_job(&self, role: Role, rank: u32, job: &str) -> Result<(), Fault> {
        let expected = &self.settings.job_digest;
        if job == expected {
            return Ok(());
        }
        Err(Fault::user(format!(
            "{role} {rank} has another job than the coordinator (digests {job} and {expected}): give all processes the same \
             job file and the same --set"
        )))
    }

    /// What the run loses with a process of this role that was started again, if it cannot go on without it.
    fn lost_with(&self, role: Role) -> Option<&'static str> {
        if matches!(self.phase, RunPhase::Gathering | RunPhase::Over | RunPhase::Failed(_)) {
            return None;
        }
        match role {
            Role::Reader => None,
            Role::Ps => Some("and its rows are lost"),
            Role::Trainer if self.settings.trainer_keeps_dense => Some("and its dense parameters are lost"),
            Role::Trainer if self.settings.checkpoints => {
                Some("and what it knew of the rows that are trained on is lost")
            }
            Role::Trainer if self.settings.ordered => Some("and its place in the order of the data is lost"),
            Role::Trainer => None,
        }
    }

    /// Begins the run anew. Members of earlier attempts learn it with their next heartbeat, and join again.
    fn begin_attempt(&mut self, why: &str, now: Instant) {
        tracing::warn!("{why}: the run begins anew");
        self.attempt = self.attempt.wrapping_add(1);
        self.origin = (!self.settings.checkpoints).then(Origin::default);
        self.members.begin_attempt();
        self.leases = None;
        self.phase = RunPhase::Gathering;
        self.started = now;
        self.last_logged = (now, Vec::new());
    }

    /// Whether a member joined the current attempt.
    pub(super) fn is_current(&self, member: &MemberId) -> bool {
        member.attempt == self.attempt
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

    /// A reader asks for windows to read.
    ///
    /// # Errors
    /// A user fault if the reader finds other data than the first reader found; the run's failure if it has failed.
    pub(super) fn lease(&mut self, request: LeaseRequest, now: Instant) -> Result<LeaseReply, Fault> {
        let LeaseRequest { member, data, lost_only } = request;
        self.heartbeat(member, now)?;
        match &self.phase {
            RunPhase::Running => {}
            RunPhase::Gathering => return Ok(LeaseReply::Wait),
            RunPhase::Failed(failure) => return Err(failure.fault()),
            // The trainer makes a checkpoint and ends the run.
            RunPhase::Draining if self.settings.checkpoints => return Ok(LeaseReply::Wait),
            RunPhase::Draining | RunPhase::Finished | RunPhase::Over => return Ok(LeaseReply::Finished),
        }
        let (settings, origin) = (&self.settings, &self.origin);
        if let Some(before) = origin.as_ref().and_then(|origin| origin.data.as_ref())
            && (DataPlan { epochs: data.epochs, ..before.clone() }) != data
        {
            return Err(Fault::user(format!(
                "the rows are not those of the checkpoint: {data:?}, expected {before:?}; go on with the same files, or begin a \
                 new run with another checkpoint.to"
            )));
        }
        let leases = self.leases.get_or_insert_with(|| {
            let mut book = LeaseBook::new(data.clone(), settings.window_rows, settings.lease_windows(&data));
            if let Some(origin) = origin {
                book.skip(&origin.batches);
            }
            book
        });
        if *leases.data() != data {
            return Err(Fault::user(format!(
                "{} {} finds other data than the first reader: {data:?}, expected {:?}. All readers must find the same \
                 files, unchanged during the run",
                member.role,
                member.rank,
                leases.data()
            )));
        }
        Ok(if lost_only { leases.lease_lost_range(member.rank) } else { leases.lease_next_range(member.rank) })
    }

    /// Every batch of some windows is done.
    ///
    /// # Errors
    /// An internal fault, which also ends the run, if the row counts of a window do not add up.
    pub(super) fn complete(&mut self, completed: CompletedWindows, now: Instant) -> Result<(), Fault> {
        self.heartbeat(completed.member, now)?;
        let Some(leases) = &mut self.leases else {
            return Err(Fault::internal("a window was completed before any lease was given"));
        };
        if let Err(fault) = completed.windows.iter().try_for_each(|windows| leases.complete(windows)) {
            self.fail_run(Failure::new(fault.domain, fault.to_string()));
            return Err(fault);
        }
        if completed.gives_back {
            leases.give_back(completed.member.rank);
        }
        self.finish_if_done();
        Ok(())
    }

    /// A member cannot go on. The run fails, unless the member is a reader with an external fault (its disk or its network) and
    /// another reader can take its rows.
    pub(super) fn fail(&mut self, request: FailRequest, now: Instant) -> Result<(), Fault> {
        let FailRequest { member: MemberId { role, rank, .. }, failure } = request;
        self.heartbeat(request.member, now)?;
        let failure = Failure { message: format!("{role} {rank}: {}", failure.message), ..failure };
        if role != Role::Reader || failure.domain != Domain::External {
            self.fail_run(failure);
            return Ok(());
        }
        self.members.leave(role, rank, request.member.incarnation);
        let leases = self.return_leases_of(rank);
        if self.members.list(now).any(|member| member.role == Role::Reader && member.present) {
            tracing::warn!(leases, "{}: its rows go to other readers", failure.message);
        } else {
            self.fail_run(failure);
        }
        Ok(())
    }

    /// A member ends as it should.
    pub(super) fn leave(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        self.members.leave(member.role, member.rank, member.incarnation);
        if member.role == self.settings.reader_role {
            self.return_leases_of(member.rank);
        }
        tracing::info!("{} {} left", member.role, member.rank);
        Ok(())
    }

    /// Readers begin no more windows. When those that they have begun are done, the run is finished.
    pub(super) fn drain(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        if matches!(self.phase, RunPhase::Gathering | RunPhase::Running) {
            self.phase = RunPhase::Draining;
            self.finish_if_done();
        }
        Ok(())
    }

    /// The model is saved: all processes may end.
    pub(super) fn over(&mut self, member: MemberId, now: Instant) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        if self.phase == RunPhase::Finished {
            self.phase = RunPhase::Over;
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
            tracing::error!("the run has failed: {}", failure.message);
            self.phase = RunPhase::Failed(failure);
        }
    }

    fn finish_if_done(&mut self) {
        let ordered = self.settings.ordered;
        let done = match self.phase {
            RunPhase::Running => self.leases.as_ref().is_some_and(LeaseBook::is_finished),
            RunPhase::Draining if self.settings.checkpoints => false,
            RunPhase::Draining => self.leases.as_ref().is_none_or(|leases| leases.is_drained(ordered)),
            _ => false,
        };
        if done {
            self.phase = RunPhase::Finished;
        }
    }

    fn check_missing(&mut self, now: Instant) {
        if self.phase != RunPhase::Gathering {
            return;
        }
        let (missing, timeout) = (self.members.missing(), self.settings.timeout);
        let waited = now.duration_since(self.started);
        if waited > timeout {
            let message = format!(
                "{} did not join within {:.0} s (placement.timeout_seconds): see the logs of these processes, and check \
                 that they reach the coordinator",
                missing.join(", "),
                timeout.as_secs_f64()
            );
            return self.fail_run(Failure::new(Domain::External, message));
        }
        let (logged_at, logged) = &self.last_logged;
        if now.duration_since(*logged_at) > WARN_AFTER_SILENCE || (missing != *logged && waited > LOG_MISSING_AFTER) {
            tracing::info!("waiting for {}", missing.join(", "));
            self.last_logged = (now, missing);
        }
    }

    fn check_silent(&mut self, now: Instant) {
        if !matches!(self.phase, RunPhase::Running | RunPhase::Draining | RunPhase::Finished) {
            return;
        }
        let timeout = self.settings.timeout;
        let silent: Vec<_> = self
            .members
            .list(now)
            .filter(|member| member.role != Role::Reader && member.present)
            .filter(|member| member.silence > WARN_AFTER_SILENCE.min(timeout))
            .collect();
        if let Some(member) = silent.iter().find(|member| member.silence > timeout) {
            let message = format!(
                "{} {} sent no heartbeat for {:.0} s (placement.timeout_seconds)",
                member.role,
                member.rank,
                member.silence.as_secs_f64()
            );
            return self.fail_run(Failure::new(Domain::External, message));
        }
        if let Some(first) = silent.first()
            && now.duration_since(self.last_logged.0) > WARN_AFTER_SILENCE
        {
            let names: Vec<String> = silent.iter().map(|member| format!("{} {}", member.role, member.rank)).collect();
            let seconds = first.silence.as_secs_f64();
            tracing::warn!("the run waits: {} sent no heartbeat for {seconds:.0} s", names.join(", "));
            self.last_logged = (now, names);
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
