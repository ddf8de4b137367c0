//! The faults of processes: they are killed, stand still, are cut off, and are started again. In two of five runs a supervisor kills
//! processes from which the coordinator has heard nothing for too long, as `launch` does. In these runs a process may stand still forever,
//! or load its part of a checkpoint for a long time.

use forebay_base::mix64;

use super::super::members::Role;
use super::super::messages::RunPhase;
use super::super::run_state::RunState;
use super::network::{Pid, Place};
use super::process::Process;
use super::world::{Event, World};

/// Faults happen in this time, in milliseconds.
pub(super) const FAULTS_UNTIL: u64 = 25_000;

/// The end of a pause that never ends.
pub(super) const FOR_EVER: u64 = u64::MAX / 4;

/// A connection breaks after so long without a sign of life: the interval of the product's pings, and how long it waits for an answer.
const KEEP_ALIVE: u64 = 10_000;

/// The time between two looks of the supervisor.
const SUPERVISES: u64 = 1000;

/// Chosen so that no reader of a seed of `ONCE_WRONG` in `tests.rs` is cut from the trainers.
const CUT_FROM_TRAINERS: u64 = 1 << 48;

/// How long a reader reaches no trainer, if it does again: longer than it waits before it leaves.
const LONGEST_CUT: u64 = 12_000;

/// The longest time that a process loads: several times as long as it may be silent.
const LOADING: u64 = 9000;

impl World {
    pub(super) fn start(&mut self, place: Place) {
        let pid = self.processes.len();
        let nonce = self.random.next_u64();
        let pace = 4 + self.random.below(20);
        self.processes.push(Process::new(place, nonce, pace, self.now));
        self.log(&format!("start {}", self.name(pid)));
        if place == (Role::Ps, 0) {
            let attempt = self.random.next_u64() >> 8;
            self.processes[pid].coordinator = Some(Box::new(RunState::new(&self.job, attempt, self.instant())));
            self.store_may_be_away(pid);
        }
        self.at(self.now, Event::Step(pid));
    }

    fn kill(&mut self, pid: Pid) {
        self.log(&format!("kill {}", self.name(pid)));
        self.processes[pid].alive = false;
        self.end_connections(pid);
    }

    /// Stops a process. One that stands still already goes on at the later time.
    fn pause(&mut self, pid: Pid, until: u64) {
        let process = &mut self.processes[pid];
        if process.paused_until <= self.now {
            process.paused_at = self.now;
        }
        process.paused_until = process.paused_until.max(until);
        if until == FOR_EVER {
            self.at(self.now + KEEP_ALIVE, Event::KeepAlive(pid));
        }
    }

    /// The connections of a process that stands still forever break: the others hear nothing of it.
    pub(super) fn keep_alive(&mut self, pid: Pid) {
        if self.processes[pid].alive && self.processes[pid].paused_until == FOR_EVER {
            self.break_streams(pid);
            self.at(self.now + KEEP_ALIVE, Event::KeepAlive(pid));
        }
    }

    pub(super) fn is_supervised(&self) -> bool {
        matches!(self.seed % 5, 0 | 4)
    }

    /// How long the next load of a process takes.
    pub(super) fn loading_time(&self, pid: Pid) -> u64 {
        let hash = mix64(self.seed ^ mix64(self.now) ^ pid as u64);
        if self.is_supervised() && hash.is_multiple_of(4) { (hash >> 32) % LOADING } else { 0 }
    }

    /// Kills processes that are silent for too long, which are then started again.
    pub(super) fn supervise(&mut self) {
        self.at(self.now + SUPERVISES, Event::Supervise);
        let lease = (self.job.placement.lease_seconds * 1000.0) as u64;
        let Some(coordinator) = self.newest((Role::Ps, 0)).filter(|_| self.is_supervised()) else { return };
        let process = &self.processes[coordinator];
        let mut silent = Vec::new();
        if process.paused_until > self.now {
            silent.extend(Some((Role::Ps, 0)).filter(|_| self.now > process.paused_at + lease));
        } else if let Some(status) = process.coordinator.as_ref().map(|state| state.status()) {
            if matches!(status.phase, RunPhase::Failed(_) | RunPhase::Over) {
                return;
            }
            let name = |place: &Place| status.silent.contains(&format!("{} {}", place.0, place.1));
            silent.extend(self.places().into_iter().filter(name));
        }
        for place in silent {
            let Some(pid) = self.newest(place).filter(|pid| self.processes[*pid].born + lease <= self.now) else {
                continue;
            };
            self.counted.hung += 1;
            self.kill(pid);
            self.at(self.now + 500, Event::Start(place));
        }
    }

    /// In one of eight runs of several readers, one of them reaches no trainer from some fault on; in half of these runs it never does
    /// again. Takes no random number, so that other seeds keep their runs.
    fn a_reader_is_cut_from_the_trainers(&mut self) {
        let (hash, readers) = (mix64(self.seed ^ CUT_FROM_TRAINERS), self.job.placement.readers as u64);
        if readers < 2 || !hash.is_multiple_of(8) || !mix64(hash ^ self.now).is_multiple_of(4) {
            return;
        }
        let reader = (Role::Reader, ((hash >> 32) % readers) as u32);
        let until = if hash.is_multiple_of(16) { FOR_EVER } else { self.now + LONGEST_CUT };
        self.log(&format!("{} {} reaches no trainer until {until}", reader.0, reader.1));
        self.transport.cut_from_trainers(reader, until);
        self.counted.cut_from_trainers += 1;
        let is_other = |place: &Place| place.0 == Role::Reader && *place != reader;
        if until == FOR_EVER && !self.places().into_iter().filter(is_other).any(|place| self.newest(place).is_some()) {
            self.at(self.now + LONGEST_CUT, Event::Start(self.reader_to_start(reader)));
        }
    }

    pub(super) fn fault(&mut self) {
        self.a_trainer_leaves();
        self.a_reader_is_cut_from_the_trainers();
        let places = self.places();
        let place = places[self.random.below(places.len() as u64) as usize];
        let restart = self.now + 100 + self.random.below(2500);
        let newest = self.newest(place);
        // A supervisor that has seen a process end as drained restarts no process.
        let ends = newest.is_some_and(|pid| self.processes[pid].has_drained());
        match (self.random.below(20), newest.filter(|_| !ends)) {
            (0..9, Some(pid)) => {
                self.counted.kills += 1;
                self.kill(pid);
                self.at(restart, Event::Start(place));
            }
            (9..13, Some(pid)) => {
                self.counted.pauses += 1;
                let until = self.now + self.random.below(5000);
                let for_ever = self.is_supervised() && mix64(self.seed ^ self.now).is_multiple_of(2);
                let until = if for_ever { FOR_EVER } else { until };
                self.log(&format!("stop {} until {until}", self.name(pid)));
                self.pause(pid, until);
                // Another process takes its place, and it comes back.
                if place != (Role::Ps, 0) && self.random.below(2) == 0 {
                    self.at(restart, Event::Start(place));
                }
            }
            (18, Some(_)) => self.terminate_one(place),
            (19, Some(_)) => self.terminate_all(),
            _ => {
                self.counted.cuts_off += 1;
                let until = self.now + self.random.below(4000);
                self.log(&format!("cut off {} {} until {until}", place.0, place.1));
                self.transport.cut_off(place, until);
            }
        }
        let next = self.now + 200 + self.random.below(5000);
        if next < FAULTS_UNTIL {
            self.at(next, Event::Fault);
        }
    }
}
