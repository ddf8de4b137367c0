//! The store of the checkpoints cannot be reached for a while when the coordinator is started again, as a disk that is not mounted: it
//! looks as if the run had made no checkpoint. The run must not begin at the start while a process, or the supervisor, knows better.

use forebay_base::mix64;

use super::super::members::Role;
use super::super::messages::MemberId;
use super::network::{Message, Pid};
use super::world::{Event, World};

/// Chosen so that the store cannot be reached in no seed of `ONCE_WRONG` in `tests.rs`.
const AWAY: u64 = 1 << 38;

/// The longest time that the store cannot be reached.
const LONGEST: u64 = 8000;

/// The time between two looks of the coordinator at a store without checkpoints.
const LOOKS: u64 = 1000;

impl World {
    /// The coordinator is started again: in one of eight runs the store cannot be reached at each of these times. Not if all processes are
    /// new and there is no supervisor: then none knows of the checkpoints. Takes no random number, so that other seeds keep their runs.
    pub(super) fn store_may_be_away(&mut self, pid: Pid) {
        if self.store.is_empty() {
            return;
        }
        if self.is_supervised()
            && let Some(state) = &mut self.processes[pid].coordinator
        {
            state.has_made_checkpoints();
        }
        let is_known =
            self.is_supervised() || self.processes.iter().any(|other| other.alive && other.made.under().is_some());
        if is_known && mix64(self.seed ^ AWAY).is_multiple_of(8) {
            self.away_until = self.now + mix64(self.seed ^ self.now) % LONGEST;
            self.log(&format!("the store cannot be reached until {}", self.away_until));
            self.counted.away += 1;
        }
    }

    /// Whether the coordinator waits for the checkpoints of its run. Then it looks again later.
    pub(super) fn waits_for_checkpoints(&mut self, pid: Pid) -> bool {
        let (away, now) = (self.store_is_away(), self.now);
        let process = &mut self.processes[pid];
        let knows = process.coordinator.as_ref().is_some_and(|state| state.status().has_checkpoints);
        if away && knows {
            process.finds_origin = Some(now + LOOKS);
            self.counted.waits += 1;
        }
        away && knows
    }

    pub(super) fn store_is_away(&self) -> bool {
        self.now < self.away_until
    }

    /// A process that knew before that the run has made checkpoints takes part in no attempt that begins without one. With a supervisor,
    /// which tells each new coordinator, no attempt begins so.
    pub(super) fn check_begins_with_checkpoint(&self, pid: Pid, member: MemberId) -> Result<(), String> {
        let coordinator = self.newest((Role::Ps, 0)).and_then(|pid| self.processes[pid].coordinator.as_ref());
        let start = coordinator.map(|state| state.status().start);
        let knew = self.processes[pid].made.under();
        let began_without = self.began_without == Some(member.attempt);
        if began_without && self.is_supervised() {
            return Err("the run begins at the start, and the supervisor knew that it has made checkpoints".into());
        }
        if began_without && knew.is_some() && knew != start {
            return Err(format!(
                "the run begins at the start, and {} knew that it has made checkpoints",
                self.name(pid)
            ));
        }
        Ok(())
    }

    /// The coordinator answers a sign of life: the run has made checkpoints.
    pub(super) fn say_checkpoints_are_there(&mut self, from: Pid, to: Pid, start: u64) {
        if !self.is_cut_off(from) && !self.is_cut_off(to) {
            self.at(self.now + 5, Event::Deliver { to, from, message: Message::CheckpointsAreThere(start) });
        }
    }
}
