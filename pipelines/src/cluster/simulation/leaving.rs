//! Trainers that are asked to shut down and that the run can do without: they finish what they have taken, and leave. Half of them are
//! started again later; the others never, also when the coordinator was started again, which knows nothing of them.

use forebay_base::mix64;
use futures::FutureExt;

use super::super::batches::lease_progress::LeaseProgress;
use super::super::members::Role;
use super::super::messages::{MemberId, RunPhase};
use super::network::{Pid, Place, Request};
use super::process::Part;
use super::trainer::SimTrainer;
use super::world::{Event, World};
use crate::checkpoint::WindowLog;

/// How far the departure of a trainer is.
pub(super) enum SimDeparture {
    No,
    /// It asks whether the run goes on without it.
    Asks,
    /// It finishes what it has taken.
    Begun,
    /// It says at this call that it has left.
    Leaves(u64),
    /// The run drains instead.
    Drains,
}

impl World {
    /// Whether the run goes on without the process of this place, and it is no reader.
    pub(super) fn is_dispensable(&self, (role, rank): Place) -> bool {
        self.job.trainers_may_leave() && role == Role::Trainer && rank > 0
    }

    /// In half of the runs that can do without some trainers, one of those is asked to shut down at every other fault. Takes no random
    /// number, so that other seeds keep their runs.
    pub(super) fn a_trainer_leaves(&mut self) {
        let hash = mix64(self.seed ^ self.now);
        if !self.job.trainers_may_leave() || !self.seed.is_multiple_of(2) || !hash.is_multiple_of(2) {
            return;
        }
        let rank = 1 + (hash >> 32) as u32 % (self.job.placement.trainers as u32 - 1);
        if let Some(pid) = self.newest((Role::Trainer, rank)) {
            self.terminate(pid);
        }
    }

    /// What a trainer that was asked to shut down does for its departure. Meanwhile it does the rest of its work.
    pub(super) fn departs(&mut self, pid: Pid, member: MemberId) {
        let phase = self.processes[pid].phase();
        match self.processes[pid].departure {
            SimDeparture::No => {
                self.call(pid, (Role::Ps, 0), Request::Leaving(member));
                self.processes[pid].departure = SimDeparture::Asks;
            }
            // It ends with the others.
            SimDeparture::Begun if !matches!(phase, RunPhase::Finished | RunPhase::Over) => {
                let done = match &self.processes[pid].part {
                    // It has not begun.
                    Part::Trainer(_) if phase == RunPhase::Gathering => Vec::new(),
                    Part::Trainer(trainer) if trainer.has_ended() => trainer.done_in_open_windows(),
                    _ => return,
                };
                let call = self.call(pid, (Role::Ps, 0), Request::Leave(member, done));
                self.processes[pid].departure = SimDeparture::Leaves(call);
            }
            _ => {}
        }
    }

    /// The answer to a trainer that was asked to shut down.
    pub(super) fn may_leave(&mut self, pid: Pid, leaves: bool) {
        let process = &mut self.processes[pid];
        let Some(member) = process.member else { return };
        if leaves {
            process.departure = SimDeparture::Begun;
            if let Part::Trainer(trainer) = &process.part {
                trainer.takes_no_more();
            }
            return;
        }
        process.departure = SimDeparture::Drains;
        self.told_at.get_or_insert(self.now);
        self.call(pid, (Role::Ps, 0), Request::Drain(member));
    }

    /// The coordinator knows that a trainer has left.
    pub(super) fn trainer_has_left(&mut self, pid: Pid) {
        self.counted.left += 1;
        self.ends(pid);
        let place = self.processes[pid].place;
        if self.newest(place).is_none() && self.random.below(2) == 0 {
            let at = self.now + 200 + self.random.below(5000);
            self.at(at, Event::Start(place));
        }
    }
}

impl SimTrainer {
    /// As `Departure::begin`.
    fn takes_no_more(&self) {
        match &self.source {
            Some(source) => source.progress.close(),
            None => self.receive_queue.end(),
        }
    }

    /// Whether all that it has taken is done, and the rest of its leases is given back.
    fn has_ended(&self) -> bool {
        let given_back = |progress: &LeaseProgress| progress.wait_until_given_back().now_or_never().is_some();
        let idle = self.source_ended && self.at_look_up.is_none() && self.is_quiet();
        idle && self.source.as_ref().is_none_or(|source| given_back(&source.progress))
    }

    fn done_in_open_windows(&self) -> Vec<WindowLog> {
        self.shared.as_ref().map(|shared| shared.log().windows()).unwrap_or_default()
    }
}
