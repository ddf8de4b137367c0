//! From attempt to attempt: what a process continues from, joins, and the loss of processes with state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_actors::{Domain, Fault, FaultKind};

use super::super::members::{self, Role};
use super::super::messages::{
    CannotStartRequest, Failure, JoinReply, JoinRequest, MemberId, PlanReply, ProcessRequest, RunPhase,
};
use super::evaluation_turns::EvaluationTurns;
use super::{DamagedCheckpoints, Origin, RunState};

/// Longer than two heartbeat intervals of any member.
const TWO_HEARTBEATS: Duration = Duration::from_millis(1200);

impl RunState {
    /// A process runs, joined or not: it may load its part of a checkpoint. Returns the number of
    /// this start of the coordinator if the run has made checkpoints.
    ///
    /// # Errors
    /// A user fault for another job.
    pub(in crate::cluster) fn alive(&mut self, process: &ProcessRequest, now: Instant) -> Result<Option<u64>, Fault> {
        let &ProcessRequest { role, rank, nonce, made_under, .. } = process;
        self.check_job(role, rank, &process.job)?;
        self.members.note_sign_of_life(role, rank, nonce, now);
        if let Some(start) = made_under {
            self.note_checkpoints(start, now);
        }
        Ok(self.has_checkpoints.then_some(self.start))
    }

    /// A process knows, from the coordinator with this number of its start, that the run has made checkpoints. If this coordinator did not
    /// know it, and the attempt begins without one, the disk of the checkpoints was not mounted: the run begins a new attempt.
    fn note_checkpoints(&mut self, start: u64, now: Instant) {
        let is_new = !std::mem::replace(&mut self.has_checkpoints, true);
        let has_own = |origin: &Origin| origin.checkpoint.is_some_and(|checkpoint| !checkpoint.elsewhere);
        let lacks_them = self.origin.as_ref().is_some_and(|origin| !has_own(origin));
        let is_over = matches!(self.phase, RunPhase::Over | RunPhase::Failed(_));
        if is_new && start != self.start && lacks_them && !is_over {
            self.begin_attempt("the run has made checkpoints, and this attempt begins without one", now);
        }
    }

    /// The run has made checkpoints before this process of the coordinator was started.
    pub(in crate::cluster) fn has_made_checkpoints(&mut self) {
        self.has_checkpoints = true;
    }

    /// A process has started. If the run cannot go on without the state of the process's predecessor, the run begins a new attempt.
    ///
    /// # Errors
    /// A user fault for another job.
    pub(in crate::cluster) fn plan(&mut self, request: &ProcessRequest, now: Instant) -> Result<PlanReply, Fault> {
        let &ProcessRequest { role, rank, nonce, .. } = request;
        self.alive(request, now)?;
        let is_restart = self.members.is_restart(role, rank, nonce);
        // The predecessor does the rest of its work.
        let is_early = is_restart && self.members.is_leaving(role, rank, self.settings.lease_timeout, now);
        if is_restart
            && !is_early
            && let Some(lost) = self.lost_by_restart_of(role, rank)
        {
            self.begin_attempt(&format!("{role} {rank} was started again, {lost}"), now);
        }
        if let Some(failure) = self.failure_for(role, rank) {
            return Ok(PlanReply::Failed(failure));
        }
        let is_late = is_restart && role == Role::Trainer && rank > 0 && self.phase == RunPhase::Finished;
        let waits = is_late || is_early || self.has_no_work_for(role, rank);
        if waits && self.phase != RunPhase::Over {
            // The process has nothing to do yet; if the run does not begin a new attempt, perhaps never.
            self.end_notices.add_waiting(role, rank);
            return Ok(PlanReply::Wait);
        }
        if self.phase == RunPhase::Over {
            self.mark_notified_if_ended(role, rank);
            return Ok(PlanReply::Over);
        }
        self.end_notices.mark_asked(role, rank);
        Ok(match &self.origin {
            Some(origin) => {
                // A trainer that joins late may find that the checkpoint was removed.
                let manifest = origin.manifest.as_ref().filter(|_| self.members.may_leave(role, rank)).cloned();
                PlanReply::Plan { attempt: self.attempt, checkpoint: origin.checkpoint, manifest }
            }
            None => PlanReply::Wait,
        })
    }

    /// The attempt that still needs an origin, and the damaged checkpoints, which cannot be the origin.
    pub(in crate::cluster) fn attempt_without_origin(&self) -> Option<(u64, Arc<DamagedCheckpoints>)> {
        self.origin.is_none().then(|| (self.attempt, Arc::clone(&self.damaged)))
    }

    /// Sets what an attempt continues from, unless another has begun since.
    pub(in crate::cluster) fn set_origin(&mut self, attempt: u64, origin: Origin) {
        if self.attempt == attempt {
            self.has_checkpoints |= origin.checkpoint.is_some_and(|checkpoint| !checkpoint.elsewhere);
            self.origin = Some(origin);
            self.end_if_drained();
        }
    }

    /// The run was over before this process of the coordinator was started. Processes that have asked learn it from this one, others from
    /// the folder of the checkpoints.
    pub(in crate::cluster) fn was_over_before(&mut self) {
        self.phase = RunPhase::Over;
    }

    /// The attempt has no origin to continue from.
    pub(in crate::cluster) fn no_origin(&mut self, fault: &Fault) {
        self.fail_run(Failure::of(fault));
    }

    /// A process cannot load what the attempt continues from. If that is a checkpoint, and it is damaged, the run begins a new attempt from
    /// an older one; else the run fails.
    pub(in crate::cluster) fn cannot_start(&mut self, request: CannotStartRequest, now: Instant) {
        let CannotStartRequest { role, rank, attempt, failure } = request;
        if attempt != self.attempt {
            return;
        }
        let failure = Failure { message: format!("{role} {rank}: {}", failure.message), ..failure };
        match self.origin.as_ref().and_then(|origin| origin.checkpoint) {
            Some(checkpoint)
                if failure.kind == FaultKind::Damaged
                    && !matches!(self.phase, RunPhase::Over | RunPhase::Failed(_)) =>
            {
                Arc::make_mut(&mut self.damaged).add(checkpoint, failure.fault());
                self.begin_attempt(&format!("checkpoint {} is damaged", checkpoint.number), now);
            }
            _ => {
                self.fail_run(failure);
                self.mark_notified_if_ended(role, rank);
            }
        }
    }

    /// A process receives the status of the run, or its failure. If the run has ended, the process then knows.
    pub(in crate::cluster) fn mark_notified_if_ended(&mut self, role: Role, rank: u32) {
        if matches!(self.phase, RunPhase::Failed(_) | RunPhase::Over) {
            self.end_notices.mark_notified(role, rank);
        }
    }

    /// The process of the coordinator knows how the run has ended.
    pub(in crate::cluster) fn knows_the_end(&mut self, role: Role, rank: u32) {
        self.end_notices.mark_notified(role, rank);
    }

    /// A process has ended and is not started again, as the program says that has started it. If the run needs it, and has not ended, the
    /// process was asked to shut down before it had joined, or has failed too often: the run ends as drained, or drains without a further
    /// trainer.
    pub(in crate::cluster) fn has_ended(&mut self, role: Role, rank: u32) {
        self.end_notices.mark_gone(role, rank);
        let is_over = matches!(self.phase, RunPhase::Failed(_) | RunPhase::Over);
        let does_without =
            role == Role::Reader || self.members.may_leave(role, rank) || self.members.has_left(role, rank);
        if is_over || does_without {
            return;
        }
        if !self.drain_asked {
            tracing::warn!("{} has ended, and is not started again: the run ends", members::name((role, rank)));
        }
        self.begin_drain();
        let is_over = matches!(self.phase, RunPhase::Failed(_));
        if is_over || (role == Role::Trainer && rank > 0) {
            return;
        }
        // The rows that it held are lost, or nothing saves the model.
        match self.leases {
            None => self.end_drained(),
            Some(_) => {
                let message = format!("stopped without {}", members::name((role, rank)));
                self.fail_run(Failure::drained(message));
            }
        }
    }

    /// How long the coordinator waits, after the end of the run, for processes that do not know of the end yet.
    pub(in crate::cluster) fn notify_timeout(&self) -> Duration {
        match &self.phase {
            RunPhase::Failed(failure)
                if failure.domain != Domain::External
                    || matches!(failure.kind, FaultKind::Drained | FaultKind::Unsaved) =>
            {
                let heard = |role, rank| self.members.was_seen(role, rank);
                self.end_notices.timeout_after_failure(&self.members.present().collect(), heard)
            }
            // After a fault of a disk or a network all processes are started again, the coordinator included, so a short wait is enough.
            RunPhase::Failed(_) => self.end_notices.timeout_for(self.members.present()).min(TWO_HEARTBEATS),
            RunPhase::Over => self.end_notices.timeout_for(self.members.present().chain(self.end_notices.not_joined())),
            _ => Duration::ZERO,
        }
    }

    /// The failure that a process receives if it comes after the run has failed. (The answer to a join does not say that a run is over: the
    /// status does.)
    fn failure_for(&mut self, role: Role, rank: u32) -> Option<Failure> {
        let RunPhase::Failed(failure) = &self.phase else { return None };
        self.end_notices.mark_notified(role, rank);
        Some(failure.clone())
    }

    /// Ends the run when the origin of this attempt is known, if a drain was asked for in an earlier attempt.
    pub(super) fn end_if_drained(&mut self) {
        if self.drain_asked && self.phase == RunPhase::Gathering && self.origin.is_some() {
            self.end_drained();
        }
    }

    /// A process is ready to take part.
    ///
    /// # Errors
    /// A user fault for another job or an unknown rank.
    pub(in crate::cluster) fn join(&mut self, request: JoinRequest, now: Instant) -> Result<JoinReply, Fault> {
        let JoinRequest { role, rank, address, attempt, job, nonce, sampled_settings } = request;
        self.check_job(role, rank, &job)?;
        if attempt != self.attempt {
            return Ok(JoinReply::AttemptIsOver);
        }
        if self.members.is_restart(role, rank, nonce)
            && let Some(lost) = self.lost_by_restart_of(role, rank)
        {
            self.begin_attempt(&format!("{role} {rank} was started again, {lost}"), now);
            return Ok(JoinReply::AttemptIsOver);
        }
        if let Some(failure) = self.failure_for(role, rank) {
            return Ok(JoinReply::Failed(failure));
        }
        let is_new = !self.members.has_left(role, rank) || self.members.is_restart(role, rank, nonce);
        if is_new && self.has_no_work_for(role, rank) {
            // The run has begun to drain since the process asked for its plan.
            return Ok(JoinReply::AttemptIsOver);
        }
        let joined = self.members.join(role, rank, address, nonce, now)?;
        self.end_notices.mark_joined(role, rank);
        let incarnation = joined.incarnation;
        let id = MemberId { role, rank, incarnation, attempt };
        if joined.repeated {
            return Ok(JoinReply::Joined(id));
        }
        if (role, rank) == (Role::Trainer, 0) {
            // A trainer that is started again decides again, and the rows may have changed.
            self.sampled_settings.get_or_insert(sampled_settings);
        }
        if role == self.settings.reader_role {
            self.return_leases_of(rank);
        }
        if role == Role::Trainer {
            // The trainer did not stop for an open cut.
            self.cuts.give_up();
        }
        tracing::info!(incarnation, "{role} {rank} joined");
        self.begin_if_all_joined(now);
        Ok(JoinReply::Joined(id))
    }

    /// Begins the run if it waits for no more members.
    pub(super) fn begin_if_all_joined(&mut self, now: Instant) {
        if self.phase == RunPhase::Gathering && self.members.missing().is_empty() {
            self.phase = RunPhase::Running;
            let absent: Vec<String> =
                self.members.absent_trainers().into_iter().map(|rank| members::name((Role::Trainer, rank))).collect();
            let but = if absent.is_empty() { String::new() } else { format!(" but {}", absent.join(", ")) };
            let waited = now.duration_since(self.started).as_secs_f64();
            tracing::info!("all members{but} joined after {waited:.1} s");
        }
    }

    /// Refuses a process of another job, and a reader where trainers read.
    fn check_job(&self, role: Role, rank: u32, job: &str) -> Result<(), Fault> {
        if role == Role::Reader && self.settings.reader_role != Role::Reader {
            return Err(Fault::user(format!(
                "{role} {rank} wants to join, but placement.readers is 0 and the trainers read: leave it out, or give all processes a job \
                 with readers"
            )));
        }
        let expected = &self.settings.job_digest;
        if job == expected {
            return Ok(());
        }
        Err(Fault::user(format!(
            "{role} {rank} has another job than the coordinator (digests {job} and {expected}): give all processes the same \
             job file and the same --set, and those of `predict` the same --model, --data, --set and --readers"
        )))
    }

    /// What the run loses with a process of this place that was started again. `None`: the run goes on without that.
    fn lost_by_restart_of(&self, role: Role, rank: u32) -> Option<&'static str> {
        if matches!(self.phase, RunPhase::Gathering | RunPhase::Over | RunPhase::Failed(_)) {
            return None;
        }
        match role {
            Role::Reader => None,
            Role::Ps => Some("and its rows are lost"),
            Role::Trainer if self.settings.trainer_keeps_dense => Some("and its dense parameters are lost"),
            // Every row is trained on, and the first trainer saves the model.
            Role::Trainer if rank > 0 && self.phase == RunPhase::Finished && self.has_pushed_all(role, rank) => None,
            // The trainer has reported its batches that are done.
            Role::Trainer if self.members.may_leave(role, rank) && self.members.has_left(role, rank) => None,
            Role::Trainer if self.settings.checkpoints => {
                Some("and what it knew of the rows that are trained on is lost")
            }
            Role::Trainer if self.settings.ordered => Some("and its place in the order of the data is lost"),
            Role::Trainer => None,
        }
    }

    /// Whether a trainer has no gradients left to push when every row is trained on. With an exact order it keeps some until it leaves.
    pub(super) fn has_pushed_all(&self, role: Role, rank: u32) -> bool {
        !self.settings.exact || self.members.has_left(role, rank)
    }

    /// Begins a new attempt. Members of earlier attempts learn it with their next heartbeat, and join again.
    fn begin_attempt(&mut self, why: &str, now: Instant) {
        tracing::warn!("{why}: the run begins a new attempt");
        self.attempt = self.attempt.wrapping_add(1);
        self.origin = (!self.settings.checkpoints).then(Origin::default);
        self.end_notices.begin_attempt(self.members.present());
        self.members.begin_attempt();
        self.members.gone().for_each(|(role, rank)| self.end_notices.mark_notified(role, rank));
        self.done_by_left.clear();
        self.leases = None;
        self.lease_replies.clear();
        self.without_checkpoint = false;
        self.stopped_after = None;
        self.cuts = self.settings.cuts();
        self.evaluations = EvaluationTurns::default();
        self.phase = RunPhase::Gathering;
        self.started = now;
        self.lacks_only_dispensable = None;
        self.last_logged = (now, Vec::new());
        self.end_if_drained();
    }

    /// Whether a member joined the current attempt.
    pub(in crate::cluster) fn is_current(&self, member: &MemberId) -> bool {
        member.attempt == self.attempt
    }

    /// The members that take part in the current attempt, by role and rank.
    pub(in crate::cluster) fn present(&self) -> Vec<(Role, u32)> {
        self.members.present().collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_job::Job;

    use super::super::super::messages::{FailRequest, job_digest};
    use super::*;
    use crate::columns::sampled_settings::SampledSettings;

    /// Checkpoints of one attempt may come late, and must be those of the same run.
    #[test]
    fn all_attempts_of_a_coordinator_have_the_number_of_its_start() {
        let (job, now) = (Job::default(), Instant::now());
        let mut run = RunState::new(&job, 70, now);
        let first = run.status();
        run.begin_attempt("a test", now);
        let second = run.status();
        assert!(second.attempt != first.attempt && second.start == first.start && first.start != 0, "{second:?}");
        assert_ne!(RunState::new(&job, 80, now).status().start, first.start, "another start");
    }

    /// A bug: the disk of the checkpoints was not mounted when the coordinator was started again, and the run trained on all its rows anew.
    #[test]
    fn an_attempt_without_a_checkpoint_is_over_when_a_process_knows_that_the_run_has_made_some() {
        let (mut job, now) = (Job::default(), Instant::now());
        job.checkpoint.to = Some("checkpoints".into());
        let begun = |origin| {
            let mut run = RunState::new(&job, 70, now);
            run.set_origin(70, origin);
            run
        };
        let says = |run: &mut RunState, made_under| {
            let process = ProcessRequest { role: Role::Trainer, rank: 0, job: job_digest(&job), nonce: 1, made_under };
            run.alive(&process, now).unwrap()
        };
        let mut run = begun(Origin::default());
        let start = run.status().start;
        assert_eq!((says(&mut run, None), run.status().attempt), (None, 70));
        assert_eq!((says(&mut run, Some(start)), run.status().attempt), (Some(start), 70), "this attempt made it");
        assert_eq!((says(&mut run, Some(5)), run.status().attempt), (Some(start), 70), "which is newer");
        let mut run = begun(Origin::default());
        assert_eq!((says(&mut run, Some(5)), run.status().attempt), (Some(start), 71));
        assert!(run.attempt_without_origin().is_some() && run.status().has_checkpoints);
        // From a checkpoint of another folder it begins a new attempt, too, and not from one of its own.
        for (elsewhere, attempt) in [(true, 71), (false, 70)] {
            let checkpoint = Some(super::super::OriginCheckpoint { number: 3, elsewhere });
            let mut run = begun(Origin { checkpoint, ..Origin::default() });
            assert_eq!(run.status().has_checkpoints, !elsewhere);
            assert_eq!((says(&mut run, Some(5)), run.status().attempt), (Some(start), attempt));
        }
    }

    /// A bug: every run that was drained to a checkpoint ended ten seconds late.
    #[test]
    fn the_coordinator_does_not_wait_for_the_process_that_reported_the_fault() {
        let (job, now) = (Job::default(), Instant::now());
        let (drained, other) = (FaultKind::Drained, FaultKind::Other);
        for (domain, kind) in [(Domain::User, other), (Domain::External, drained), (Domain::External, other)] {
            let mut run = RunState::new(&job, 7, now);
            let digest = job_digest(&job);
            run.plan(
                &ProcessRequest { role: Role::Trainer, rank: 0, job: digest.clone(), nonce: 1, made_under: None },
                now,
            )
            .unwrap();
            let address = Some("a:1".into());
            let sampled_settings = SampledSettings::default();
            let join = JoinRequest {
                role: Role::Trainer,
                rank: 0,
                address,
                attempt: 7,
                job: digest,
                nonce: 1,
                sampled_settings,
            };
            let JoinReply::Joined(member) = run.join(join, now).unwrap() else { panic!("it did not join") };
            let failure = Failure { kind, ..Failure::new(domain, "stopped") };
            run.fail(FailRequest { member, failure }, now).unwrap();
            assert_eq!(run.notify_timeout(), Duration::ZERO, "{domain:?}, {kind}");
        }
    }
}
