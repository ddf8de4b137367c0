//! A ps: it applies each push once, and gives snapshots. `ExactlyOnce` with its fences and rounds and `SnapshotTurns` are the real
//! ones. In the place of rows it has how often the pushes of each batch were applied.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_ps::{ExactlyOnce, PushAnswer, PushOutcome, Share, Stamp, Trainer};
use tokio::sync::oneshot::Receiver;

use super::super::ps_snapshots::SnapshotRequest;
use super::super::snapshot_turns::SnapshotTurns;
use super::faults::FAULTS_UNTIL;
use super::network::{Answer, Contents, Message, Pid, Request, SimPush, SnapshotStep};
use super::process::Part;
use super::world::{Event, World};
use crate::flow::BatchId;

/// The most time that a snapshot takes to be written.
const WRITING: u64 = 900;

/// The most time that a ps takes to begin a snapshot when it is late: longer than trainers stand still for one.
const LATE: u64 = 20_000;

/// A process, and the number of its call.
type Caller = (Pid, u64);

type Outcome = Result<PushOutcome, Fault>;

pub(super) struct SimPs {
    attempt: u64,
    contents: Contents,
    once: ExactlyOnce<Vec<BatchId>>,
    /// Those that wait for the end of a round.
    waiting: Vec<(Caller, Receiver<Outcome>)>,
    /// By rank of the trainer: the newest incarnation that has pushed.
    newest: BTreeMap<u32, u64>,
    /// Snapshots begin then.
    begins_at: u64,
    snapshots: SnapshotTurns<Contents>,
    /// A snapshot that is written until then.
    writing: Option<(u64, SnapshotRequest, Contents)>,
}

impl SimPs {
    pub(super) fn new(attempt: u64, contents: Contents) -> Self {
        Self {
            attempt,
            contents,
            once: ExactlyOnce::default(),
            waiting: Vec::new(),
            newest: BTreeMap::new(),
            begins_at: 0,
            snapshots: SnapshotTurns::default(),
            writing: None,
        }
    }

    pub(super) fn describe(&self) -> String {
        format!("{} batches, {} wait for a round", self.contents.len(), self.waiting.len())
    }

    /// As the acknowledger does with each status.
    fn acknowledge(&mut self, (epoch, window): (u32, u64)) {
        self.once.acknowledge_before(BatchId { epoch, window, index: 0 }.push_id().series);
    }

    /// Returns who gets an answer now, and which; or why that is wrong.
    fn push(&mut self, from: Caller, push: SimPush) -> Result<Vec<(Caller, Answer)>, String> {
        let SimPush { stamp, step, batch, acknowledge } = push;
        if let Some(before) = acknowledge {
            self.once.acknowledge_before(before);
        }
        let contents = &mut self.contents;
        let apply = |batches: &Vec<BatchId>, _| {
            batches.iter().for_each(|batch| *contents.entry(*batch).or_default() += 1);
            Ok(())
        };
        let merge = |shares: Vec<Share<Vec<BatchId>>>| shares.into_iter().flat_map(|share| share.payload).collect();
        let mut answers = match self.once.push(Some(stamp), step, vec![batch], merge, apply) {
            Ok(PushAnswer::Done(_, outcome)) => {
                if outcome == PushOutcome::Applied {
                    self.check_not_replaced(stamp)?;
                }
                vec![(from, Answer::Done)]
            }
            Ok(PushAnswer::Waiting(outcome)) => {
                self.waiting.push((from, outcome));
                Vec::new()
            }
            Err(fault) => vec![(from, Answer::Refused(fault.to_string()))],
        };
        self.waiting.retain_mut(|(from, outcome)| match outcome.try_recv() {
            Ok(outcome) => {
                let answer = outcome.map_or_else(|fault| Answer::Refused(fault.to_string()), |_| Answer::Done);
                answers.push((*from, answer));
                false
            }
            Err(_) => true,
        });
        Ok(answers)
    }

    /// From the first push of a trainer on, processes that it has replaced change nothing.
    fn check_not_replaced(&mut self, stamp: Stamp) -> Result<(), String> {
        let Some(Trainer { rank, incarnation }) = stamp.trainer else { return Ok(()) };
        let newest = self.newest.entry(rank).or_default();
        *newest = incarnation.max(*newest);
        if incarnation == *newest {
            return Ok(());
        }
        Err(format!("incarnation {incarnation} of trainer {rank} changes rows after incarnation {newest} has"))
    }

    /// As `SnapshotHandler`. `until`: a snapshot that begins is written then.
    fn snapshot(&mut self, step: SnapshotStep, request: SnapshotRequest, until: u64) -> Result<Answer, Fault> {
        Ok(match step {
            SnapshotStep::Begin => {
                if self.snapshots.begin(request)? {
                    self.snapshots.begun(request);
                    self.writing = Some((until, request, self.contents.clone()));
                }
                Answer::Done
            }
            SnapshotStep::Written => self.snapshots.written(request)?.cloned().map_or(Answer::Later, Answer::Contents),
            SnapshotStep::Keep => {
                self.snapshots.keep(request)?;
                Answer::Done
            }
        })
    }

    fn write(&mut self, now: u64) {
        if let Some((_, request, contents)) = self.writing.take_if(|(until, ..)| *until <= now) {
            self.snapshots.wrote(request, Ok(contents));
        }
    }
}

impl World {
    /// A request comes to the shards of a ps.
    pub(super) fn asks_ps(&mut self, pid: Pid, from: Caller, body: Request) -> Result<(), String> {
        let exactly = self.job.train.staleness.exactly;
        let (now, until) = (self.now, self.now + self.random.below(WRITING));
        let late = now < FAULTS_UNTIL && self.random.below(60) == 0;
        let begins = self.random.below(LATE);
        let process = &mut self.processes[pid];
        let status = process.status.as_ref().map(|status| status.first_open);
        let joined = process.member.map(|member| member.attempt);
        let (Request::Push(attempt, _)
        | Request::Snapshot(attempt, ..)
        | Request::Contents(attempt)
        | Request::Pull(attempt)) = body
        else {
            return Ok(());
        };
        let serves = |ps: &&mut Box<SimPs>| joined == Some(attempt) && ps.attempt == attempt;
        let ps = if let Part::Ps(ps) = &mut process.part { Some(ps).filter(serves) } else { None };
        let Some(ps) = ps else {
            self.answer(pid, from, Answer::Later);
            return Ok(());
        };
        if let (Some(first_open), false) = (status, exactly) {
            ps.acknowledge(first_open);
        }
        if let Request::Snapshot(_, SnapshotStep::Begin, _) = &body {
            if late && ps.begins_at <= now {
                ps.begins_at = now + begins;
            }
            if ps.begins_at > now {
                let (time, (sender, call)) = (ps.begins_at, from);
                self.at(time, Event::Deliver { to: pid, from: sender, message: Message::Request { call, body } });
                return Ok(());
            }
        }
        ps.write(now);
        let answers = match body {
            Request::Push(_, push) => ps.push(from, push)?,
            Request::Snapshot(_, step, request) => {
                let answer = ps.snapshot(step, request, until);
                vec![(from, answer.unwrap_or_else(|fault| refused(&fault)))]
            }
            Request::Contents(_) => vec![(from, Answer::Contents(ps.contents.clone()))],
            _ => vec![(from, Answer::Done)],
        };
        if let Some((batch, times)) = ps.contents.iter().find(|(_, times)| **times != 1) {
            return Err(format!("{batch} was applied {times} times"));
        }
        answers.into_iter().for_each(|(to, answer)| self.answer(pid, to, answer));
        Ok(())
    }
}

/// A sender tries again after a retryable fault.
fn refused(fault: &Fault) -> Answer {
    if fault.retryable { Answer::Later } else { Answer::Refused(fault.to_string()) }
}
