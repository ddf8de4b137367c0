//! What a process does with the answers that it gets, and with what comes on its streams.

use forebay_actors::{Domain, FaultKind};
use forebay_base::mix64;

use super::super::members::Role;
use super::super::messages::{
    CannotStartRequest, Failure, JoinReply, JoinRequest, MemberId, PlanReply, RunPhase, job_digest,
};
use super::leaving::SimDeparture;
use super::network::{Answer, OnStream, Pid, Place, Request};
use super::process::{Part, Process};
use super::ps::SimPs;
use super::reader::SimReader;
use super::trainer::SimTrainer;
use super::world::World;
use crate::checkpoint::OriginCheckpoint;
use crate::columns::sampled_settings::SampledSettings;

impl World {
    /// The answer to a call.
    pub(super) fn answered(&mut self, pid: Pid, call: u64, body: Answer) -> Result<(), String> {
        let process = &mut self.processes[pid];
        let (role, rank) = process.place;
        match body {
            _ if process.leaves.is_some_and(|(asked, _)| asked == call) => self.ends(pid),
            // It has said that its part is damaged.
            Answer::Done if process.cannot_start == Some(call) => self.starts_again(pid),
            Answer::Plan(PlanReply::Failed(_) | PlanReply::Over) | Answer::Join(JoinReply::Failed(_)) => {
                self.hears_the_end(pid)
            }
            Answer::Plan(PlanReply::Wait) => process.asked = false,
            Answer::Plan(PlanReply::Plan { attempt, checkpoint, .. }) => {
                if checkpoint.is_some_and(|at| self.is_damaged(at.number, (role, rank))) {
                    self.counted.damaged += 1;
                    let failure =
                        Failure { kind: FaultKind::Damaged, ..Failure::new(Domain::User, "its part is damaged") };
                    let request = CannotStartRequest { role, rank, attempt, failure };
                    let call = self.call(pid, (Role::Ps, 0), Request::CannotStart(request));
                    self.processes[pid].cannot_start = Some(call);
                    return Ok(());
                }
                let process = &self.processes[pid];
                let join = JoinRequest {
                    role,
                    rank,
                    address: (role != Role::Reader).then(|| pid.to_string()),
                    attempt,
                    job: job_digest(&self.job),
                    nonce: process.nonce,
                    sampled_settings: SampledSettings::default(),
                };
                self.load(pid, attempt, checkpoint)?;
                match self.loading_time(pid) {
                    0 => {
                        self.call(pid, (Role::Ps, 0), Request::Join(join));
                    }
                    time => self.processes[pid].loads = Some((self.now + time, join)),
                }
            }
            Answer::Leaving(leaves) => self.may_leave(pid, leaves),
            Answer::Done if matches!(process.departure, SimDeparture::Leaves(asked) if asked == call) => {
                self.trainer_has_left(pid);
            }
            Answer::Join(JoinReply::AttemptIsOver) => self.starts_again(pid),
            Answer::Join(JoinReply::Joined(member)) => {
                self.check_no_twin(pid, member)?;
                self.check_begins_with_checkpoint(pid, member)?;
                self.processes[pid].member = Some(member);
                self.joined(pid, member);
            }
            Answer::Status(status) => {
                process.heartbeat.1 = None;
                let Some(member) = process.member else { return Ok(()) };
                if status.attempt != member.attempt {
                    self.starts_again(pid);
                } else if matches!(status.phase, RunPhase::Failed(_)) {
                    self.hears_the_end(pid);
                } else {
                    process.status = Some(*status);
                }
            }
            Answer::Refused(why) if why.contains("started again elsewhere") => self.ends(pid),
            Answer::Refused(why)
                if why.contains(": stopped") || why.contains("stopped before") || why.contains("stopped; --resume") =>
            {
                self.hears_the_end(pid);
            }
            // The run has begun a new attempt: the next heartbeat says so. Or the coordinator was started again.
            Answer::Refused(_) if process.member.is_none() => self.starts_again(pid),
            Answer::Refused(why) if why.contains("new attempt") || why.contains("unknown to the coordinator") => {
                self.starts_again(pid);
            }
            body => match std::mem::replace(&mut process.part, Part::None) {
                Part::Trainer(mut trainer) => {
                    trainer.answered(self, pid, call, body)?;
                    self.processes[pid].part = Part::Trainer(trainer);
                }
                Part::Reader(mut reader) => {
                    reader.answered(self, call, &body);
                    self.processes[pid].part = Part::Reader(reader);
                }
                part => process.part = part,
            },
        }
        Ok(())
    }

    /// No two processes of a place are the same member.
    fn check_no_twin(&self, pid: Pid, member: MemberId) -> Result<(), String> {
        let twin = |(at, other): (Pid, &Process)| at != pid && other.member == Some(member);
        if self.processes.iter().enumerate().any(twin) {
            return Err(format!("two processes are {member} of incarnation {}", member.incarnation));
        }
        Ok(())
    }

    /// Whether the part of a checkpoint that this process loads is damaged: in two of five runs, one part of every other
    /// checkpoint, but never of the first.
    fn is_damaged(&self, number: u64, place: Place) -> bool {
        let hash = mix64(self.seed ^ mix64(number));
        let holders: Vec<Place> = self.places().into_iter().filter(|(role, _)| *role != Role::Reader).collect();
        let one_of_two = self.seed % 5 > 2 && number > 1 && hash.is_multiple_of(2);
        one_of_two && holders[(hash >> 32) as usize % holders.len()] == place
    }

    /// Loads what an attempt begins with.
    fn load(&mut self, pid: Pid, attempt: u64, checkpoint: Option<OriginCheckpoint>) -> Result<(), String> {
        let stored = match checkpoint {
            None => None,
            Some(OriginCheckpoint { number, .. }) => {
                Some(self.store.get(&number).ok_or(format!("checkpoint {number} is not there"))?.clone())
            }
        };
        let (role, rank) = self.processes[pid].place;
        self.processes[pid].part = match role {
            Role::Ps => {
                let contents = stored.map(|stored| stored.contents[rank as usize].clone());
                let contents = contents.unwrap_or_default();
                Part::Ps(Box::new(SimPs::new(attempt, contents, self.looks_ahead())))
            }
            Role::Trainer => Part::Trainer(Box::new(SimTrainer::new(self, rank, stored.as_ref()))),
            Role::Reader => Part::Reader(Box::new(SimReader::new(&self.job, rank))),
        };
        Ok(())
    }

    fn joined(&mut self, pid: Pid, member: MemberId) {
        self.counted.attempts += u64::from(member.role == Role::Trainer && member.rank == 0);
        if let Part::Trainer(trainer) = &mut self.processes[pid].part {
            trainer.member = Some(member);
        }
    }

    pub(super) fn comes_by_stream(&mut self, pid: Pid, stream: u64, body: OnStream) -> Result<(), String> {
        if let OnStream::Request { call, body } = body {
            return self.asks_ps_by_stream(pid, stream, call, body);
        }
        let member = self.processes[pid].member;
        match std::mem::replace(&mut self.processes[pid].part, Part::None) {
            Part::Trainer(mut trainer) => {
                trainer.comes_by_stream(self, stream, member, body)?;
                self.processes[pid].part = Part::Trainer(trainer);
            }
            Part::Reader(mut reader) => {
                reader.comes_by_stream(stream, body);
                self.processes[pid].part = Part::Reader(reader);
            }
            part => {
                self.processes[pid].part = part;
                self.break_stream(stream);
            }
        }
        Ok(())
    }

    pub(super) fn stream_broke(&mut self, pid: Pid, stream: u64) {
        match &mut self.processes[pid].part {
            Part::Trainer(trainer) => trainer.stream_broke(stream),
            Part::Reader(reader) => reader.stream_broke(stream),
            _ => {}
        }
    }
}
