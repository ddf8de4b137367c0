//! Evaluations of a run whose trainers take each step together: the first trainer evaluates the model before a step, and the others hold
//! before the same step until it has.

use std::time::Instant;

use forebay_actors::Fault;

use super::super::members::Role;
use super::super::messages::{EvaluationAt, EvaluationReply, Failure, RunPhase};
use super::RunState;

/// The evaluations of one attempt, by the rows that the model was trained on.
#[derive(Debug, Default)]
pub(super) struct EvaluationTurns {
    /// The newest one that a trainer waits for.
    awaited: Option<u64>,
    /// The newest one that is over.
    over: Option<u64>,
}

impl RunState {
    /// The first trainer has evaluated the model, or goes on without that evaluation.
    ///
    /// # Errors
    /// A user fault for any other member.
    pub(in crate::cluster) fn evaluated(&mut self, request: EvaluationAt, now: Instant) -> Result<(), Fault> {
        let EvaluationAt { member, rows } = request;
        self.heartbeat(member, now)?;
        if (member.role, member.rank) != (Role::Trainer, 0) {
            return Err(Fault::user(format!("{member} says that the model is evaluated, expected trainer 0")));
        }
        self.evaluations.over = self.evaluations.over.max(Some(rows));
        Ok(())
    }

    /// Another trainer waits for an evaluation.
    ///
    /// # Errors
    /// A user fault for any other member.
    pub(in crate::cluster) fn await_evaluation(
        &mut self,
        request: EvaluationAt,
        now: Instant,
    ) -> Result<EvaluationReply, Fault> {
        let EvaluationAt { member, rows } = request;
        self.heartbeat(member, now)?;
        if member.role != Role::Trainer || member.rank == 0 {
            return Err(Fault::user(format!("{member} waits for an evaluation, expected a trainer after the first")));
        }
        self.evaluations.awaited = self.evaluations.awaited.max(Some(rows));
        self.evaluation_reply(request)
    }

    /// As [`await_evaluation`](Self::await_evaluation), of a member that waits for the reply. Does not count as a heartbeat.
    pub(in crate::cluster) fn evaluation_reply(&self, request: EvaluationAt) -> Result<EvaluationReply, Fault> {
        if !self.is_current(&request.member) {
            return Err(Failure::rolled_back().fault());
        }
        // A run that has drained without the rows of a lost reader may lack the batch that the first trainer evaluates before.
        let goes_on = !matches!(self.phase, RunPhase::Running | RunPhase::Draining);
        Ok(match self.stopped_after {
            Some(_) => EvaluationReply::Stop,
            None if goes_on || self.evaluations.over >= Some(request.rows) => EvaluationReply::GoOn,
            None => EvaluationReply::Wait,
        })
    }

    /// Whether a trainer waits for an evaluation that is not over.
    pub(super) fn is_evaluated(&self) -> bool {
        self.evaluations.awaited > self.evaluations.over
    }
}
