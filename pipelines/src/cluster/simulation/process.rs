//! A process of the run, and what it does when it is its turn: it plans, joins, sends heartbeats, and works as a member. It begins
//! again when the run does.

use forebay_actors::FaultKind;

use super::super::members::Role;
use super::super::messages::{JoinRequest, MemberId, ProcessRequest, RunPhase, RunStatus};
use super::super::run_state::RunState;
use super::leaving::SimDeparture;
use super::network::{Pid, Place, Request};
use super::ps::SimPs;
use super::reader::SimReader;
use super::trainer::SimTrainer;
use super::world::World;
use crate::checkpoint::MadeCheckpoints;

/// How often a member sends a heartbeat.
const HEARTBEAT: u64 = 300;

/// How often a process says that it runs.
const SIGN_OF_LIFE: u64 = 500;

/// One start of a process.
pub(super) struct Process {
    pub(super) place: Place,
    pub(super) nonce: u64,
    /// Milliseconds between two steps.
    pub(super) pace: u64,
    pub(super) alive: bool,
    /// When it was started.
    pub(super) born: u64,
    /// When it was last stopped, and until when.
    pub(super) paused_at: u64,
    pub(super) paused_until: u64,
    /// When it says next that it runs.
    says_alive: u64,
    /// It loads its part of a checkpoint until then, and joins.
    pub(super) loads: Option<(u64, JoinRequest)>,
    pub(super) coordinator: Option<Box<RunState>>,
    /// When the coordinator finds what an attempt continues from.
    pub(super) finds_origin: Option<u64>,
    pub(super) member: Option<MemberId>,
    /// It has asked for a plan.
    pub(super) asked: bool,
    /// The call that says that its part of a checkpoint is damaged.
    pub(super) cannot_start: Option<u64>,
    /// When the next heartbeat is due, and the last one if it is not answered.
    pub(super) heartbeat: (u64, Option<u64>),
    /// When the coordinator looked at the time.
    pub(super) ticked: u64,
    pub(super) status: Option<RunStatus>,
    /// What it knows of the checkpoints of the run.
    pub(super) made: MadeCheckpoints,
    /// It is asked to shut down.
    pub(super) told: bool,
    /// It has asked the run to drain, in this attempt.
    pub(super) drains: bool,
    /// A reader that was asked to shut down leaves at this call, or ends at this time.
    pub(super) leaves: Option<(u64, u64)>,
    /// How a trainer that the run can do without leaves.
    pub(super) departure: SimDeparture,
    /// When the coordinator's run has ended as drained.
    pub(super) drained_at: Option<u64>,
    pub(super) part: Part,
}

/// What a process does as a member.
pub(super) enum Part {
    None,
    Ps(Box<SimPs>),
    Trainer(Box<SimTrainer>),
    Reader(Box<SimReader>),
}

impl Process {
    pub(super) fn new(place: Place, nonce: u64, pace: u64, now: u64) -> Self {
        Self {
            place,
            nonce,
            pace,
            alive: true,
            born: now,
            paused_at: 0,
            paused_until: 0,
            says_alive: now,
            loads: None,
            coordinator: None,
            finds_origin: None,
            member: None,
            asked: false,
            cannot_start: None,
            heartbeat: (0, None),
            ticked: 0,
            status: None,
            made: MadeCheckpoints::default(),
            told: false,
            drains: false,
            leaves: None,
            departure: SimDeparture::No,
            drained_at: None,
            part: Part::None,
        }
    }

    pub(super) fn phase(&self) -> RunPhase {
        self.status.as_ref().map_or(RunPhase::Gathering, |status| status.phase.clone())
    }

    fn request(&self, digest: &str) -> ProcessRequest {
        let (role, rank) = self.place;
        ProcessRequest { role, rank, job: digest.to_owned(), nonce: self.nonce, made_under: self.made.under() }
    }

    /// The coordinator's run has ended as drained.
    pub(super) fn has_drained(&self) -> bool {
        let phase = self.coordinator.as_ref().map(|state| state.status().phase);
        matches!(phase, Some(RunPhase::Failed(failure)) if failure.kind == FaultKind::Drained)
    }

    pub(super) fn describe(&self) -> String {
        let (role, rank) = self.place;
        let part = match &self.part {
            Part::None => "not joined".into(),
            Part::Ps(ps) => ps.describe(),
            Part::Trainer(trainer) => trainer.describe(),
            Part::Reader(reader) => reader.describe(),
        };
        let coordinator = self.coordinator.as_ref().map(|state| state.status());
        format!("{role} {rank}: {:?}, {:?}, {part} {coordinator:?}", self.member, self.phase())
    }
}

impl World {
    /// Starts again with a plan, unless it is about to leave.
    pub(super) fn starts_again(&mut self, pid: Pid) {
        if self.processes[pid].leaves.is_some() {
            return;
        }
        self.end_connections(pid);
        let process = &mut self.processes[pid];
        (process.member, process.asked, process.status, process.part) = (None, false, None, Part::None);
        (process.heartbeat, process.drains, process.cannot_start) = ((0, None), false, None);
        process.departure = SimDeparture::No;
        process.loads = None;
    }

    /// Ends by itself.
    pub(super) fn ends(&mut self, pid: Pid) {
        self.log(&format!("{} ends", self.name(pid)));
        self.end_connections(pid);
        self.processes[pid].alive = false;
    }

    pub(super) fn step(&mut self, pid: Pid) -> Result<(), String> {
        self.coordinate(pid)?;
        let now = self.now;
        let process = &mut self.processes[pid];
        if process.says_alive <= now {
            process.says_alive = now + SIGN_OF_LIFE;
            let this = process.request(&self.digest);
            self.say_alive(pid, this);
        }
        let process = &mut self.processes[pid];
        let Some(member) = process.member else {
            if !process.asked {
                process.asked = true;
                let plan = process.request(&self.digest);
                self.call(pid, (Role::Ps, 0), Request::Plan(plan));
            } else if let Some((_, join)) = process.loads.take_if(|(until, _)| *until <= now) {
                self.call(pid, (Role::Ps, 0), Request::Join(join));
            }
            return Ok(());
        };
        if process.heartbeat.0 <= now && process.heartbeat.1.is_none() {
            let call = self.call(pid, (Role::Ps, 0), Request::Heartbeat(member));
            self.processes[pid].heartbeat = (now + HEARTBEAT, Some(call));
        }
        if self.follows_termination(pid, member) || matches!(self.processes[pid].phase(), RunPhase::Gathering) {
            return Ok(());
        }
        // The part is taken out while it works on the world.
        match std::mem::replace(&mut self.processes[pid].part, Part::None) {
            Part::Trainer(mut trainer) => {
                trainer.step(self, pid)?;
                self.processes[pid].part = Part::Trainer(trainer);
            }
            Part::Reader(mut reader) => {
                reader.step(self, pid);
                self.processes[pid].part = Part::Reader(reader);
            }
            part => self.processes[pid].part = part,
        }
        Ok(())
    }
}
