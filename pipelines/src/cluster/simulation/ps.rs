//! A ps: it applies each push once, and gives snapshots. `ExactlyOnce` with its fences and rounds and `SnapshotTurns` are the real
//! ones. It counts how often the pushes of each batch were applied, and has rows only in runs that look ahead.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_batches::BatchId;
use forebay_ps::{AfterRound, ExactlyOnce, PushAnswer, PushOutcome, Share, Stamp, Table, Trainer};
use tokio::sync::oneshot::Receiver;

use super::super::ps_snapshots::SnapshotRequest;
use super::super::snapshot_turns::SnapshotTurns;
use super::faults::FAULTS_UNTIL;
use super::network::{Answer, Contents, Message, OnStream, Pid, Request, SimPush, SnapshotStep};
use super::process::Part;
use super::rows::new_table;
use super::world::{Event, World};

/// The most time that a snapshot takes to be written.
const WRITING: u64 = 900;

/// The most time that a ps takes to begin a snapshot when it is late: longer than trainers stand still for one.
const LATE: u64 = 20_000;

/// A process, and the number of its call.
type Caller = (Pid, u64);

type Outcome = Result<PushOutcome, Fault>;

pub(super) struct SimPs {
    attempt: u64,
    /// How often the pushes of each batch were applied.
    applied: BTreeMap<BatchId, u32>,
    /// The rows of a run that looks ahead.
    table: Option<Table>,
    once: ExactlyOnce<Vec<BatchId>>,
    /// The pushes that wait for the end of a round.
    waiting: Vec<(Caller, Receiver<Outcome>)>,
    /// The pulls that wait for the end of a round.
    held: Vec<(Caller, Receiver<Result<(), Fault>>)>,
    /// By rank of the trainer: the newest incarnation that has pushed.
    newest: BTreeMap<u32, u64>,
    /// Snapshots begin then.
    begins_at: u64,
    snapshots: SnapshotTurns<Contents>,
    /// A snapshot that is written until then.
    writing: Option<(u64, SnapshotRequest, Contents)>,
}

impl SimPs {
    pub(super) fn new(attempt: u64, contents: Contents, has_rows: bool) -> Self {
        let Contents { applied, rows: stored } = contents;
        let table = has_rows.then(|| {
            let mut table = new_table();
            if let Some(rows) = stored {
                table.import(&rows.keys, &rows.weights, Some(&rows.state)).expect("rows of the same table");
            }
            table
        });
        Self {
            attempt,
            applied,
            table,
            once: ExactlyOnce::default(),
            waiting: Vec::new(),
            held: Vec::new(),
            newest: BTreeMap::new(),
            begins_at: 0,
            snapshots: SnapshotTurns::default(),
            writing: None,
        }
    }

    pub(super) fn describe(&self) -> String {
        let (batches, pushes, pulls) = (self.applied.len(), self.waiting.len(), self.held.len());
        format!("{batches} batches, {pushes} pushes and {pulls} pulls wait for a round")
    }

    /// As the acknowledger does with each status.
    fn acknowledge(&mut self, (epoch, window): (u32, u64)) {
        self.once.acknowledge_before(BatchId { epoch, window, index: 0 }.push_id().series);
    }

    /// Returns the callers that get an answer, and their answers; or why an answer is wrong.
    fn push(&mut self, from: Caller, push: SimPush) -> Result<Vec<(Caller, Answer)>, String> {
        let SimPush { stamp, step, batch, acknowledge, rows: (keys, grads) } = push;
        if let Some(before) = acknowledge {
            self.once.acknowledge_applied_before(before);
        }
        let (applied, table) = (&mut self.applied, &mut self.table);
        let apply = |batches: &Vec<BatchId>, step| {
            batches.iter().for_each(|batch| *applied.entry(*batch).or_default() += 1);
            table.as_mut().map_or(Ok(()), |table| Ok(table.push(&keys, &grads, step)?))
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
        let applied = self.applied.len() as u64;
        self.held.retain_mut(|(from, end)| match end.try_recv() {
            Ok(end) => {
                answers.push((*from, end.map_or_else(|fault| refused(&fault), |()| Answer::Sees(applied))));
                false
            }
            Err(_) => true,
        });
        Ok(answers)
    }

    /// Returns the answer to a pull that must see a round. `None`: it is held.
    fn pull_after(&mut self, from: Caller, after: AfterRound) -> Option<Answer> {
        // A call that is sent again has lost its connection, and with it the pull that was held.
        self.held.retain(|(of, _)| *of != from);
        match self.once.pull(after) {
            Ok(None) => Some(Answer::Sees(self.applied.len() as u64)),
            Ok(Some(end)) => {
                self.held.push((from, end));
                None
            }
            Err(fault) => Some(refused(&fault)),
        }
    }

    fn check_once(&self) -> Result<(), String> {
        match self.applied.iter().find(|(_, times)| **times != 1) {
            Some((batch, times)) => Err(format!("{batch} was applied {times} times")),
            None => Ok(()),
        }
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
                    self.writing = Some((until, request, self.contents()));
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

    /// The contents of the ps.
    fn contents(&mut self) -> Contents {
        let rows = self.table.as_mut().map(|table| table.export(0, usize::MAX));
        Contents { applied: self.applied.clone(), rows }
    }

    fn pull_whole(&mut self, keys: &[u64]) -> Result<Vec<f32>, String> {
        let mut rows = Vec::new();
        let table = self.table.as_mut().ok_or("a ps without rows was asked for some")?;
        table.pull_whole(keys, &mut rows).map_err(|e| e.to_string())?;
        Ok(rows)
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
        | Request::PullAfter(attempt, _)
        | Request::Snapshot(attempt, ..)
        | Request::Contents(attempt)
        | Request::PullWhole(attempt, _)
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
            Request::PullAfter(_, after) => {
                let answer = ps.pull_after(from, after);
                self.counted.held += u64::from(answer.is_none());
                answer.map(|answer| (from, answer)).into_iter().collect()
            }
            Request::Snapshot(_, step, request) => {
                let answer = ps.snapshot(step, request, until);
                vec![(from, answer.unwrap_or_else(|fault| refused(&fault)))]
            }
            Request::Contents(_) => vec![(from, Answer::Contents(ps.contents()))],
            Request::PullWhole(_, keys) => vec![(from, Answer::Rows(ps.pull_whole(&keys)?))],
            _ => vec![(from, Answer::Done)],
        };
        ps.check_once()?;
        answers.into_iter().for_each(|(to, answer)| self.answer(pid, to, answer));
        Ok(())
    }

    /// The push of a trainer that looks ahead. A server of another attempt ends the stream.
    pub(super) fn asks_ps_by_stream(&mut self, pid: Pid, stream: u64, call: u64, body: Request) -> Result<(), String> {
        let process = &mut self.processes[pid];
        let joined = process.member.map(|member| member.attempt);
        let first_open = process.status.as_ref().map(|status| status.first_open);
        let (Part::Ps(ps), Request::Push(attempt, push)) = (&mut process.part, body) else {
            self.break_stream(stream);
            return Ok(());
        };
        if joined != Some(attempt) || ps.attempt != attempt {
            self.break_stream(stream);
            return Ok(());
        }
        first_open.into_iter().for_each(|first_open| ps.acknowledge(first_open));
        let answers = ps.push((pid, call), push)?;
        ps.check_once()?;
        for (_, answer) in answers {
            match answer {
                Answer::Done => self.on_stream(pid, stream, OnStream::Answer { call }),
                answer => self.log(&format!("a push by stream was answered with {answer:?}")),
            }
        }
        Ok(())
    }
}

/// A sender tries again after a retryable fault.
fn refused(fault: &Fault) -> Answer {
    if fault.retryable { Answer::Later } else { Answer::Refused(fault.to_string()) }
}
