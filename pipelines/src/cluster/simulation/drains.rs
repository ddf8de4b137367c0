//! Processes that are asked to shut down (SIGTERM): one of them while the run goes on, all readers, or all. A reader leaves, and so does a
//! trainer that the run can do without (`leaving.rs`); another trainer or a ps has the run drain. A run that has ended as drained is
//! started again with `--resume`, as a user does. In some runs the store takes no last checkpoint: they are over, with the model of what
//! was trained on.

use forebay_base::mix64;

use super::super::members::Role;
use super::super::messages::{FailRequest, Failure, MemberId, RunPhase};
use super::network::{Answer, Pid, Place, Request};
use super::process::Part;
use super::trainer::{Ending, SimTrainer};
use super::world::{Event, World};

/// Chosen so that the store of no seed of `ONCE_WRONG` in `tests.rs` refuses the last checkpoint.
const NO_LAST_CHECKPOINT: u64 = 5 << 32;

/// As in `cluster/session.rs`.
const SHUTDOWN_DEADLINE: u64 = 5000;

impl World {
    /// One process is asked to shut down; if it is a reader, at every other time all readers are.
    pub(super) fn terminate_one(&mut self, place: Place) {
        let all = place.0 == Role::Reader && self.now.is_multiple_of(2);
        for other in self.places() {
            if let (true, Some(pid)) = (other == place || all && other.0 == Role::Reader, self.newest(other)) {
                self.terminate(pid);
            }
        }
    }

    /// All processes are asked to shut down, as by Ctrl-C of `launch`.
    pub(super) fn terminate_all(&mut self) {
        for place in self.places() {
            if let Some(pid) = self.newest(place) {
                let at = self.now + self.random.below(50);
                self.at(at, Event::Terminate(pid));
            }
        }
    }

    pub(super) fn terminate(&mut self, pid: Pid) {
        if !self.processes[pid].alive {
            return;
        }
        self.log(&format!("{} is asked to shut down", self.name(pid)));
        self.counted.told += 1;
        self.processes[pid].told = true;
        let place = self.processes[pid].place;
        if place.0 != Role::Reader && !self.is_dispensable(place) {
            self.told_at.get_or_insert(self.now);
        }
    }

    /// What a process does that was asked to shut down. Returns whether it does nothing else.
    pub(super) fn follows_termination(&mut self, pid: Pid, member: MemberId) -> bool {
        let (now, phase) = (self.now, self.processes[pid].phase());
        let is_dispensable = self.is_dispensable((member.role, member.rank));
        let process = &mut self.processes[pid];
        if let Some((_, until)) = process.leaves {
            if until <= now {
                self.ends(pid);
            }
            return true;
        }
        if !process.told {
            return false;
        }
        match member.role {
            Role::Reader => {
                let done = matches!(&process.part, Part::Reader(reader) if reader.done);
                if done {
                    let call = self.call(pid, (Role::Ps, 0), Request::Leave(member, Vec::new()));
                    self.processes[pid].leaves = Some((call, now + SHUTDOWN_DEADLINE));
                    self.has_left(pid);
                }
                done
            }
            Role::Trainer if is_dispensable => {
                self.departs(pid, member);
                false
            }
            // A trainer asks once its pipeline runs.
            Role::Ps | Role::Trainer => {
                if !process.drains && (member.role == Role::Ps || phase != RunPhase::Gathering) {
                    process.drains = true;
                    self.call(pid, (Role::Ps, 0), Request::Drain(member));
                }
                false
            }
        }
    }

    /// A reader has left. Another may be started, and must be if no other reaches the trainers. While all others are asked to shut down,
    /// too, none is started: they have to leave without it.
    fn has_left(&mut self, pid: Pid) {
        // Of several processes in a place, only the last takes part.
        let last = |place: Place| self.processes.iter().rposition(|process| process.place == place);
        let readers = self.places().into_iter().filter(|(role, _)| *role == Role::Reader);
        let others = readers.filter_map(last).filter(|other| *other != pid).map(|other| &self.processes[other]);
        let stay = others.filter(|other| other.alive && other.leaves.is_none() && !self.is_cut_for_ever(other.place));
        let told: Vec<bool> = stay.map(|other| other.told).collect();
        let starts = told.is_empty() || told.contains(&false) && self.random.below(2) == 0;
        if starts {
            let at = self.now + 500 + self.random.below(5000);
            self.at(at, Event::Start(self.reader_to_start(self.processes[pid].place)));
        }
    }

    /// The place of the reader to start when the one of `place` is gone: another one, if that never reaches the trainers again.
    pub(super) fn reader_to_start(&self, place: Place) -> Place {
        let reaches = |other: &Place| other.0 == Role::Reader && !self.is_cut_for_ever(*other);
        if reaches(&place) { place } else { self.places().into_iter().find(reaches).unwrap_or(place) }
    }

    /// A process learns that the run has ended, and ends. The coordinator's process stays until the others know it, too.
    pub(super) fn hears_the_end(&mut self, pid: Pid) {
        if self.processes[pid].coordinator.is_none() {
            self.ends(pid);
        }
    }

    /// The coordinator's run has ended as drained: when the others have heard it, its process ends, too, and the run is resumed.
    pub(super) fn is_drained(&mut self, pid: Pid) -> Result<(), String> {
        let now = self.now;
        let process = &mut self.processes[pid];
        let since = *process.drained_at.get_or_insert(now);
        let Some(state) = &process.coordinator else { return Ok(()) };
        if u128::from(now - since) < state.notify_timeout().as_millis() {
            return Ok(());
        }
        if self.told_at.is_none() {
            return Err("the run has ended as drained, and no process was asked to shut down".into());
        }
        self.log("the run has ended as drained, and is resumed");
        self.counted.drains += 1;
        self.resumes();
        Ok(())
    }

    /// Whether the store takes no checkpoint of a run that drains: in one of eight runs. Takes no random number, so that other seeds keep
    /// their runs.
    pub(super) fn takes_no_last_checkpoint(&self) -> bool {
        mix64(self.seed ^ NO_LAST_CHECKPOINT).is_multiple_of(8)
    }

    /// Whether such a run gives up while its trainers stand still for the cut.
    pub(super) fn gives_up_at_the_cut(&self) -> bool {
        mix64(self.seed ^ NO_LAST_CHECKPOINT).is_multiple_of(16)
    }

    /// All processes are ended, and started again with `--resume`.
    fn resumes(&mut self) {
        let now = self.now;
        (self.told_at, self.resumed_at) = (None, now);
        for pid in 0..self.processes.len() {
            self.processes[pid].alive = false;
            self.end_connections(pid);
        }
        self.forget_starts();
        for place in self.places() {
            let at = now + self.random.below(500);
            self.at(at, Event::Start(place));
        }
    }
}

impl SimTrainer {
    /// The last checkpoint is made: the pipeline is killed, and the trainer reports why.
    pub(super) fn has_drained(&mut self, world: &mut World, pid: Pid, member: MemberId) -> Result<(), String> {
        if world.told_at.is_none_or(|told| world.published_at < told) {
            return Err("a run ends as drained without a checkpoint since it was told to".into());
        }
        let failure = Failure::drained("stopped");
        let call = world.call(pid, (Role::Ps, 0), Request::Fail(FailRequest { member, failure }));
        self.ending = Ending::Drained(call, world.now + SHUTDOWN_DEADLINE);
        Ok(())
    }

    /// Ends after a while, heard or not. If not, the others fail when they have not heard of it for `placement.timeout_seconds`, and a user
    /// resumes the run.
    pub(super) fn say_drained(&self, world: &mut World, pid: Pid) {
        let Ending::Drained(_, until) = self.ending else { return };
        if until > world.now {
            return;
        }
        world.ends(pid);
        let coordinator = world.newest((Role::Ps, 0)).and_then(|ps| world.processes[ps].coordinator.as_ref());
        if coordinator.is_some_and(|state| !matches!(state.status().phase, RunPhase::Failed(_) | RunPhase::Over)) {
            world.log("a trainer was not heard when it ended; the run fails, and is resumed");
            world.resumes();
        }
    }

    pub(super) fn drained_is_heard(&self, world: &mut World, pid: Pid, call: u64, body: &Answer) -> bool {
        let heard = matches!((&self.ending, body), (Ending::Drained(asked, _), Answer::Done) if *asked == call);
        if heard {
            world.ends(pid);
        }
        heard
    }
}
