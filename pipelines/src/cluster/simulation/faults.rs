//! What befalls processes: they are killed, stand still, are cut off, and are started again.

use super::super::members::Role;
use super::super::run_state::RunState;
use super::network::{Pid, Place};
use super::process::Process;
use super::world::{Event, World};

/// Faults happen in this time, in milliseconds.
pub(super) const FAULTS_UNTIL: u64 = 25_000;

impl World {
    pub(super) fn start(&mut self, place: Place) {
        let pid = self.processes.len();
        let nonce = self.random.next_u64();
        let pace = 4 + self.random.below(20);
        self.processes.push(Process::new(place, nonce, pace));
        self.log(&format!("start {}", self.name(pid)));
        if place == (Role::Ps, 0) {
            let attempt = self.random.next_u64() >> 8;
            self.processes[pid].coordinator = Some(Box::new(RunState::new(&self.job, attempt, self.instant())));
        }
        self.at(self.now, Event::Step(pid));
    }

    fn kill(&mut self, pid: Pid) {
        self.log(&format!("kill {}", self.name(pid)));
        self.processes[pid].alive = false;
        self.end_connections(pid);
    }

    pub(super) fn fault(&mut self) {
        let places = self.places();
        let place = places[self.random.below(places.len() as u64) as usize];
        let restart = self.now + 100 + self.random.below(2500);
        let newest = self.newest(place);
        // A supervisor that has seen a process end as drained starts none again.
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
                self.log(&format!("stop {} until {until}", self.name(pid)));
                self.processes[pid].paused_until = until;
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
