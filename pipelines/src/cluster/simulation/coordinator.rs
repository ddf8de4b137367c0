//! The coordinator's share of a ps: the real state machine, its clock, and its requests.

use forebay_actors::{Fault, FaultKind};

use super::super::messages::RunPhase;
use super::super::run_state::Origin;
use super::network::{Answer, Pid, Request};
use super::world::World;
use crate::checkpoint::OriginCheckpoint;

/// The time between two ticks.
const TICK: u64 = 100;

impl World {
    /// The coordinator's share of a step.
    pub(super) fn coordinate(&mut self, pid: Pid) -> Result<(), String> {
        let (now, instant) = (self.now, self.instant());
        let late = now + self.random.below(200);
        let process = &mut self.processes[pid];
        let Some(state) = &mut process.coordinator else { return Ok(()) };
        if now >= process.ticked + TICK {
            process.ticked = now;
            state.tick(instant);
        }
        if let RunPhase::Failed(failure) = state.status().phase {
            if failure.kind == FaultKind::Drained {
                return self.is_drained(pid);
            }
            return Err(format!("the run has failed: {}", failure.message));
        }
        let Some((attempt, damaged)) = state.attempt_without_origin() else {
            process.finds_origin = None;
            return Ok(());
        };
        if *process.finds_origin.get_or_insert(late) > now {
            return Ok(());
        }
        if self.waits_for_checkpoints(pid) {
            return Ok(());
        }
        let away = self.store_is_away();
        let whole = |(number, _): &(&u64, _)| !damaged.has(OriginCheckpoint::own(**number));
        let newest = self
            .store
            .iter()
            .rev()
            .filter(|_| !away)
            .find(whole)
            .map(|(number, stored)| (*number, stored.batches.clone()));
        let data = self.data();
        let origin = match newest {
            Some((number, batches)) => {
                self.counted.resumes += 1;
                Origin { checkpoint: Some(OriginCheckpoint::own(number)), batches, data: Some(data), manifest: None }
            }
            None => {
                self.began_without = Some(attempt).filter(|_| away);
                Origin::default()
            }
        };
        if let Some(state) = &mut self.processes[pid].coordinator {
            state.set_origin(attempt, origin);
        }
        Ok(())
    }

    /// A request comes.
    pub(super) fn request(&mut self, pid: Pid, from: (Pid, u64), body: Request) -> Result<(), String> {
        let instant = self.instant();
        let of_ps = matches!(
            body,
            Request::Push(..)
                | Request::PullAfter(..)
                | Request::Snapshot(..)
                | Request::Contents(_)
                | Request::Pull(_)
                | Request::PullWhole(..)
        );
        if of_ps {
            return self.asks_ps(pid, from, body);
        }
        let Some(state) = &mut self.processes[pid].coordinator else {
            self.answer(pid, from, Answer::Later);
            return Ok(());
        };
        if let Request::Alive(process) = &body {
            let start = state.alive(process, instant).map_err(|fault| fault.to_string())?;
            if let Some(start) = start {
                self.say_checkpoints_are_there(pid, from.0, start);
            }
            return Ok(());
        }
        let refused = |fault: Fault| Answer::Refused(fault.to_string());
        let done = |result: Result<(), Fault>| result.map_or_else(refused, |()| Answer::Done);
        let answer = match body {
            Request::Plan(plan) => state.plan(&plan, instant).map_or_else(refused, Answer::Plan),
            Request::Join(join) => state.join(join, instant).map_or_else(refused, Answer::Join),
            Request::CannotStart(request) => {
                state.cannot_start(request, instant);
                Answer::Done
            }
            Request::Heartbeat(member) => {
                let mut alive = Ok(());
                if state.is_current(&member) {
                    alive = state.heartbeat(member, instant);
                    state.mark_notified_if_ended(member.role, member.rank);
                }
                alive.map_or_else(refused, |()| Answer::Status(Box::new(state.status())))
            }
            Request::Lease(lease) => state.lease(lease, instant).map_or_else(refused, Answer::Lease),
            Request::Complete(completed) => done(state.complete(completed, instant)),
            Request::StopEarly(request) => done(state.stop_early(request, instant)),
            Request::Over(member) => {
                let over = state.over(member, instant);
                self.over |= matches!(state.status().phase, RunPhase::Over);
                done(over)
            }
            Request::Drain(member) => done(state.drain(member, instant)),
            Request::WithoutCheckpoint(member) => done(state.drain_without_checkpoint(member, instant)),
            Request::Leaving(member) => state.leaving(member, instant).map_or_else(refused, Answer::Leaving),
            Request::Leave(member, log) => done(state.leave(member, log, instant)),
            Request::Fail(fail) => done(state.fail(fail, instant)),
            Request::Cut(cut) => state.cut(cut.member, cut.report, instant).map_or_else(refused, Answer::Cut),
            Request::LeadCut(lead) => state.lead_cut(lead, instant).map_or_else(refused, Answer::Lead),
            _ => Answer::Later,
        };
        if let Answer::Refused(why) = &answer
            && (why.contains("does not add up")
                || why.contains("which no reader was given")
                || why.contains("ahead of it"))
        {
            return Err(why.clone());
        }
        self.answer(pid, from, answer);
        Ok(())
    }
}
