//! From attempt to attempt: what a process goes on from, joins, and the loss of processes with state.

use std::time::Instant;

use forebay_actors::Fault;

use super::super::members::Role;
use super::super::messages::{JoinReply, JoinRequest, MemberId, PlanReply, PlanRequest, RunPhase};
use super::{Origin, RunState};

impl RunState {
    /// A process has started. If the run cannot go on without what its predecessor held, the run begins anew.
    ///
    /// # Errors
    /// A user fault for another job.
    pub(in crate::cluster) fn plan(&mut self, request: &PlanRequest, now: Instant) -> Result<PlanReply, Fault> {
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
    pub(in crate::cluster) fn attempt_without_origin(&self) -> Option<u64> {
        self.origin.is_none().then_some(self.attempt)
    }

    /// Sets what an attempt goes on from, unless another has begun since.
    pub(in crate::cluster) fn set_origin(&mut self, attempt: u64, origin: Origin) {
        if self.attempt == attempt {
            self.origin = Some(origin);
        }
    }

    /// A process is ready to take part.
    ///
    /// # Errors
    /// A user fault for another job or an unknown rank.
    pub(in crate::cluster) fn join(&mut self, request: JoinRequest, now: Instant) -> Result<JoinReply, Fault> {
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
        self.lease_replies.clear();
        self.cuts = self.settings.cuts();
        self.phase = RunPhase::Gathering;
        self.started = now;
        self.last_logged = (now, Vec::new());
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
