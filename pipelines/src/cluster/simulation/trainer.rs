//! A trainer: it takes batches from its queue, looks them up, computes, pushes to every ps, and says that they are done. The queue,
//! the tickets, the gate, the exact order, the order of steps and the position are the real ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use forebay_batches::wire::metadata::{Header, Reply};
use forebay_batches::{BatchId, Staleness, Ticket};
use forebay_job::LookupAt;
use forebay_ps::{AfterRound, PushId, Round, Stamp, Trainer};
use futures::FutureExt;
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::batches::receive_queue::{Credits, Order, ReceiveQueue};
use super::super::messages::MemberId;
use super::super::ordered;
use super::ahead::SimAhead;
use super::cuts::SimCuts;
use super::network::{Contents, OnStream, Pid, Request, SimPush, StoredCheckpoint};
use super::source::SimSource;
use super::world::World;
use crate::checkpoint::TrainedBatches;
use crate::checkpointer::shared_cut::SharedCut;
use crate::order::exact_order::{Due, ExactOrder, gradients_without_rows};
use crate::order::step_order::StepOrder;

pub(super) struct SimTrainer {
    pub(super) member: Option<MemberId>,
    pub(super) rank: u32,
    /// The ps by rank, from the first status of a run that has started.
    pub(super) ps: Vec<Pid>,
    pub(super) round: Option<u32>,
    steps_by: u64,
    pub(super) receive_queue: ReceiveQueue,
    /// Set if the trainers read by themselves.
    pub(super) source: Option<SimSource>,
    /// By number: the channel, and the replies that wait to be sent.
    pub(super) streams: BTreeMap<u64, (u64, UnboundedReceiver<Reply>)>,
    /// The batches that were trained on before this attempt.
    pub(super) before: TrainedBatches,
    /// With one trainer, the batches that were trained on so far.
    pub(super) position: TrainedBatches,
    /// Set if there are several trainers and checkpoints.
    pub(super) shared: Option<SharedCut>,
    staleness: Staleness,
    pub(super) exact: Option<Arc<ExactOrder>>,
    step_order: Option<Arc<StepOrder>>,
    /// Set if it looks ahead.
    pub(super) ahead: Option<Box<SimAhead>>,
    /// Readers look up the rows: the gate is at the stage `refresh`.
    looked_up: bool,
    pub(super) arrivals: u64,
    pub(super) at_look_up: Option<AtLookUp>,
    /// A batch whose pull must see a round, and has no answer yet.
    pub(super) pulling: Option<Pulling>,
    /// Gradients that are due in an exact order, behind the push before them.
    due: Option<Due>,
    pub(super) computing: VecDeque<Looked>,
    /// Batches whose gradients it has computed in this attempt.
    pub(super) computed: BTreeSet<BatchId>,
    pub(super) compute_at: u64,
    pub(super) step: u64,
    pub(super) pushes: Vec<PushCalls>,
    /// A barrier is on its way: there are no look-ups.
    pub(super) barrier: bool,
    pub(super) source_ended: bool,
    pub(super) cuts: SimCuts,
    pub(super) ending: Ending,
    /// As in `stages/rounds_end.rs`: when a push that waits is given up, and whether one was.
    pub(super) gives_up_at: Option<u64>,
    pub(super) rounds_are_over: bool,
}

/// What the trainer does when all is trained on.
pub(super) enum Ending {
    No,
    /// Reads what the ps hold.
    Reads(Vec<u64>, Vec<Contents>),
    Over,
    /// It has made the last checkpoint of a run that drains, and says so until this time, at this call.
    Drained(u64, u64),
}

pub(super) struct AtLookUp {
    pub(super) looked: Looked,
    pub(super) arrival: u64,
    pub(super) entered: bool,
}

pub(super) struct Looked {
    pub(super) header: Header,
    pub(super) ticket: Option<Ticket>,
}

/// A batch that is looked up.
pub(super) struct Pulling {
    pub(super) looked: Looked,
    /// The step of the round that it must see.
    pub(super) after: u64,
    /// The open calls, one for each ps.
    pub(super) calls: Vec<u64>,
}

/// The calls of one push, one for each ps. `looked`: the batch that is done when all are answered.
pub(super) struct PushCalls {
    pub(super) calls: Vec<u64>,
    pub(super) looked: Option<Looked>,
}

impl SimTrainer {
    pub(super) fn new(world: &World, rank: u32, stored: Option<&StoredCheckpoint>) -> Self {
        let job = &world.job;
        let in_step = job.in_step() as u32;
        let order = match in_step {
            1 if ordered(job) => Order::Data { rank: 0, of: 1 },
            1 => Order::Any,
            of => Order::Data { rank, of },
        };
        let credits = Credits { batches: job.placement.in_flight as u32, bytes: 1 << 30 };
        let before = stored.map(|stored| stored.batches.clone()).unwrap_or_default();
        let exact = ExactOrder::of(job, rank);
        if let (Some(exact), Some(stored)) = (&exact, stored) {
            let kept = stored.kept.get(rank as usize).cloned().unwrap_or_default();
            exact.restore(kept.into_iter().map(|(id, step)| gradients_without_rows(id, step)).collect());
        }
        let several = job.placement.trainers > 1 && job.checkpoint.to.is_some();
        let steps_by = if in_step > 1 { 1 } else { job.placement.trainers as u64 };
        Self {
            member: None,
            rank,
            ps: Vec::new(),
            round: job.round(),
            steps_by,
            receive_queue: ReceiveQueue::new(order, credits),
            source: (job.placement.readers == 0).then(|| SimSource::new(job)),
            streams: BTreeMap::new(),
            position: before.clone(),
            step: before.totals().batches / u64::from(in_step),
            before,
            shared: several.then(SharedCut::default),
            staleness: Staleness::new(job.train.staleness.batches),
            exact,
            step_order: StepOrder::of(job),
            ahead: SimAhead::of(job, world),
            looked_up: job.placement.lookup_at == LookupAt::Reader,
            arrivals: 0,
            at_look_up: None,
            pulling: None,
            due: None,
            computing: VecDeque::new(),
            computed: BTreeSet::new(),
            compute_at: 0,
            pushes: Vec::new(),
            barrier: false,
            source_ended: false,
            cuts: SimCuts::default(),
            ending: Ending::No,
            gives_up_at: None,
            rounds_are_over: false,
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{:?}, at look-up {:?}, pulling {:?}, computing {}, pushes {}, kept {:?}, barrier {}, source ended {}, {}, {:?}",
            self.source.as_ref().map(SimSource::describe),
            self.at_look_up.as_ref().map(|at| (at.looked.header.id, at.entered)),
            self.pulling.as_ref().map(|pulling| (pulling.looked.header.id, pulling.after, pulling.calls.len())),
            self.computing.len(),
            self.pushes.len(),
            self.exact.as_ref().map(|exact| exact.kept().len()),
            self.barrier,
            self.source_ended,
            self.cuts.describe(),
            self.ahead.as_ref().map(|ahead| ahead.describe())
        )
    }

    /// Whether all that was looked up is applied or kept.
    pub(super) fn is_quiet(&self) -> bool {
        let entered = self.at_look_up.as_ref().is_some_and(|at| at.entered);
        let ahead = self.ahead.as_ref().is_some_and(|ahead| !ahead.is_quiet());
        self.computing.is_empty() && self.pulling.is_none() && self.pushes.is_empty() && !entered && !ahead
    }

    pub(super) fn step(&mut self, world: &mut World, pid: Pid) -> Result<(), String> {
        let (Some(member), Some(status)) = (self.member, world.processes[pid].status.clone()) else { return Ok(()) };
        if let Ending::Drained(..) = self.ending {
            self.say_drained(world, pid);
            return Ok(());
        }
        if self.ps.is_empty() {
            let addresses =
                status.ps.iter().flatten().map(|(_, address)| address.parse().map_err(|e| format!("{address}: {e}")));
            self.ps = addresses.collect::<Result<_, _>>()?;
        }
        self.receive_queue.update_status(status.data.as_ref().map(|data| data.windows), status.first_open);
        if let Some(shared) = &self.shared {
            shared.log().forget_before(status.first_open);
        }
        self.receives(world, pid, member, &status);
        match self.ahead {
            Some(_) => self.goes_ahead(world, pid, member)?,
            None => {
                if !self.is_held(world, pid, member) {
                    self.looks_up(world, pid, member);
                }
                self.computes(world, pid, member)?;
            }
        }
        let streams = &mut self.streams;
        for (stream, (_, replies)) in streams.iter_mut() {
            while let Ok(reply) = replies.try_recv() {
                world.on_stream(pid, *stream, OnStream::Reply(reply));
            }
        }
        self.follow_cuts(world, pid, member)?;
        self.lead_cuts(world, pid, member, &status)?;
        self.end(world, pid, member, &status)
    }

    /// As the stage `lookup`.
    fn looks_up(&mut self, world: &mut World, pid: Pid, member: MemberId) {
        self.ends_look_up();
        let Some(at) = self.at_look_up.as_mut().filter(|_| self.pulling.is_none()) else { return };
        let gate = self.shared.as_ref().map(|shared| &shared.gate);
        let enter = |arrival| gate.is_none_or(|gate| gate.enter(arrival).now_or_never().is_some());
        if let Some(step_order) = &self.step_order {
            if let Some(after) = step_order.turn().now_or_never()
                && !self.barrier
                && enter(at.arrival)
            {
                step_order.looks_up();
                self.pull(world, pid, member, after);
            }
            return;
        }
        let Some(exact) = self.exact.clone() else {
            if at.looked.ticket.is_none() {
                let free = self.looked_up.then(Ticket::free);
                at.looked.ticket = free.or_else(|| self.staleness.ticket(at.arrival).now_or_never());
            }
            if !self.barrier && at.looked.ticket.is_some() && enter(at.arrival) {
                self.computing.extend(self.at_look_up.take().map(|at| at.looked));
            }
            return;
        };
        if !at.entered {
            at.entered = !self.barrier && enter(at.arrival);
        }
        // One push at a time.
        if !at.entered || !self.pushes.is_empty() {
            return;
        }
        let mut after = None;
        while let Some(next) = self.due.take().map_or_else(|| exact.next_due().now_or_never(), |due| Some(Some(due))) {
            match next {
                None => {
                    exact.looks_up();
                    return self.pull(world, pid, member, after);
                }
                Some(due) if self.pushes.is_empty() => {
                    // In step with others, the look-up follows before the answer.
                    after = self.round.map(|_| due.batch.step);
                    self.push_due(world, pid, member, due);
                    if self.round.is_none() {
                        return;
                    }
                }
                Some(due) => {
                    self.due = Some(due);
                    return;
                }
            }
        }
    }

    /// Pulls for the batch at the look-up, which must see the round of the step `after`. Without a round, the model of a pull takes no
    /// time.
    fn pull(&mut self, world: &mut World, pid: Pid, member: MemberId, after: Option<u64>) {
        let Some(AtLookUp { looked, .. }) = self.at_look_up.take() else { return };
        match after.filter(|_| !self.rounds_are_over) {
            Some(after) => {
                let trainer = Trainer { rank: self.rank, incarnation: member.incarnation };
                let body = Request::PullAfter(member.attempt, AfterRound { step: after, trainer });
                let calls = self.ask_all_ps(world, pid, &body);
                self.pulling = Some(Pulling { looked, after, calls });
            }
            None => self.computing.push_back(looked),
        }
    }

    /// A look-up ends when its pull is answered, and in an exact order the push before it, too.
    fn ends_look_up(&mut self) {
        let pushed = self.exact.is_none() || self.pushes.is_empty();
        let pulled = self.pulling.take_if(|pulling| pulling.calls.is_empty() && pushed);
        self.computing.extend(pulled.map(|pulling| pulling.looked));
    }

    /// As the stages `train` and `push`.
    fn computes(&mut self, world: &mut World, pid: Pid, member: MemberId) -> Result<(), String> {
        // In step, a trainer pushes its next share after the answer to its last.
        if self.compute_at > world.now || (self.step_order.is_some() && !self.pushes.is_empty()) {
            return Ok(());
        }
        let Some(looked) = self.computing.pop_front() else { return Ok(()) };
        self.compute_at = world.now + world.random.below(80);
        self.step += self.steps_by;
        let id = looked.header.id;
        if !self.computed.insert(id) && world.job.placement.trainers == 1 {
            return Err(format!("{id} is computed twice: dense parameters in the trainer get its gradients twice"));
        }
        match &self.exact {
            Some(exact) => {
                exact.computed(gradients_without_rows(id, self.step));
                self.done(id, looked.header.row);
                self.leave();
            }
            None => self.push(world, pid, member, id.push_id(), (id, self.step), None, Some(looked)),
        }
        Ok(())
    }

    pub(super) fn push_due(&mut self, world: &mut World, pid: Pid, member: MemberId, due: Due) {
        let batch = (due.batch.id, due.batch.step);
        self.push(world, pid, member, due.id, batch, due.acknowledge, None);
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one push")]
    fn push(
        &mut self,
        world: &mut World,
        pid: Pid,
        member: MemberId,
        id: PushId,
        (batch, step): (BatchId, u64),
        acknowledge: Option<u64>,
        looked: Option<Looked>,
    ) {
        let trainer = Some(Trainer { rank: self.rank, incarnation: member.incarnation });
        let stamp = Stamp { id, trainer, round: self.round.map(|trainers| Round { trainers, rows: 1 }) };
        let push = SimPush { stamp, step, batch, acknowledge, rows: Default::default() };
        if let Some(step_order) = &self.step_order {
            step_order.pushed(step);
        }
        if self.rounds_are_over {
            self.applied(looked);
            return;
        }
        let calls = self.ask_all_ps(world, pid, &Request::Push(member.attempt, push));
        self.pushes.push(PushCalls { calls, looked });
    }

    /// Asks every ps. Returns the calls, by rank of the ps.
    pub(super) fn ask_all_ps(&self, world: &mut World, pid: Pid, body: &Request) -> Vec<u64> {
        self.ps.iter().map(|ps| world.call_process(pid, *ps, body.clone())).collect()
    }

    pub(super) fn leave(&self) {
        if let Some(shared) = &self.shared {
            shared.gate.leave();
        }
    }
}
