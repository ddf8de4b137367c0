//! Cuts over several trainers: orders to trainers, and what is trained on when all have stopped.

use std::time::Instant;

use forebay_actors::Fault;

use super::super::cuts::{CutOrder, CutReport, Cuts, LeadCutRequest, LeadReply, LeadStep};
use super::super::members::Role;
use super::super::messages::{Failure, MemberId, RunPhase};
use super::{RunState, Settings};
use crate::checkpoint::{TrainedBatches, WindowLog};

impl Settings {
    pub(super) fn cuts(&self) -> Cuts {
        Cuts::new(self.trainers, self.in_step, self.timeout)
    }
}

impl RunState {
    /// A trainer asks what to do, and may report.
    ///
    /// # Errors
    /// A user fault for another role.
    pub(in crate::cluster) fn cut(
        &mut self,
        member: MemberId,
        report: Option<CutReport>,
        now: Instant,
    ) -> Result<CutOrder, Fault> {
        self.heartbeat(member, now)?;
        if member.role != Role::Trainer {
            return Err(Fault::user(format!(
                "{member} asks for its part in the cut of a checkpoint, expected a trainer"
            )));
        }
        report.map_or(Ok(()), |report| self.cuts.report(member.rank, report))?;
        self.cut_order(member)
    }

    /// What a trainer has to do. Does not count as a heartbeat.
    pub(in crate::cluster) fn cut_order(&self, member: MemberId) -> Result<CutOrder, Fault> {
        if !self.is_current(&member) {
            return Err(Failure::rolled_back().fault());
        }
        Ok(if self.may_cut() { self.cuts.order(member.rank) } else { CutOrder::GoOn })
    }

    /// A step of the trainer that leads a cut.
    ///
    /// # Errors
    /// A user fault for any other member than the first trainer.
    pub(in crate::cluster) fn lead_cut(&mut self, request: LeadCutRequest, now: Instant) -> Result<LeadReply, Fault> {
        let member = request.member;
        self.heartbeat(member, now)?;
        if (member.role, member.rank) != (Role::Trainer, 0) {
            return Err(Fault::user(format!("{member} leads a cut, expected trainer 0")));
        }
        if self.may_cut() && request.step == LeadStep::Stop {
            self.cuts.stop(request.cut, request.checkpoint, now);
        }
        self.lead_cut_reply(request)
    }

    /// As [`lead_cut`](Self::lead_cut), of a member that waits for the reply. Does not count as a heartbeat.
    pub(in crate::cluster) fn lead_cut_reply(&mut self, request: LeadCutRequest) -> Result<LeadReply, Fault> {
        let LeadCutRequest { member, cut, step, .. } = request;
        if !self.is_current(&member) {
            return Err(Failure::rolled_back().fault());
        }
        let given_up = |why: &str| Ok(LeadReply::GivenUp(why.to_owned()));
        if !self.may_cut() {
            return Ok(LeadReply::RunEnds);
        }
        match step {
            LeadStep::GoOn if self.cuts.go_on(cut, &self.members.absent_trainers()) => Ok(LeadReply::Whole),
            LeadStep::GoOn => given_up("they stood still for too long"),
            LeadStep::Stop if self.cuts.is_given_up(cut) => given_up(match self.settings.exact {
                true => "one did not stop in time, or the store did not take the gradients that it keeps",
                false => "not all stopped in time",
            }),
            LeadStep::Stop => {
                let absent = self.members.absent_trainers();
                let Some(stopped) = self.cuts.stopped(cut, &absent) else { return Ok(LeadReply::Wait) };
                let kept = stopped.iter().filter_map(|(_, kept)| kept.clone()).collect();
                let logs = stopped.iter().map(|(log, _)| log.as_slice()).chain([self.done_by_left.as_slice()]);
                let logs: Vec<&[WindowLog]> = logs.collect();
                let batches = self.trained(&logs).map(Box::new);
                let batches = batches.ok_or_else(|| Fault::internal("a cut was led before any lease was given"))?;
                Ok(LeadReply::Stopped { batches, kept })
            }
        }
    }

    /// What is trained on: windows that are done, what was done before the attempt, and what the trainers have done, also those that have
    /// left.
    fn trained(&self, logs: &[&[WindowLog]]) -> Option<TrainedBatches> {
        let leases = self.leases.as_ref()?;
        let mut batches = TrainedBatches::of_windows(leases.done_windows(), leases.counts());
        if let Some(origin) = &self.origin {
            batches.add_open_windows(&origin.batches);
        }
        logs.iter().for_each(|log| batches.add_log(log));
        Some(batches)
    }

    pub(super) fn check_cut(&mut self, now: Instant) {
        if self.evaluations.are_awaited() {
            // The trainers stop after the step before which the model is evaluated.
            return self.cuts.discount_until(now);
        }
        if let Some(late) = self.cuts.tick(&self.members.absent_trainers(), now) {
            let late: Vec<String> = late.iter().map(|rank| format!("trainer {rank}")).collect();
            tracing::warn!("a checkpoint is given up: {} did not stop in time", late.join(", "));
        }
    }

    fn may_cut(&self) -> bool {
        matches!(self.phase, RunPhase::Running | RunPhase::Draining) && !self.without_checkpoint
    }
}
