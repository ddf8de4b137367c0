//! A trainer that looks ahead: what the stages `lookup`, `train` and `push` do together in `order/look_ahead.rs`. The tickets, the order
//! and the cache of rows are the real ones. Pushes go over a stream to each ps, as `RequestStream` sends them: what has no answer when it
//! breaks is sent again, in its order.

use std::collections::{BTreeMap, VecDeque};

use forebay_batches::{BatchId, Staleness};
use forebay_job::Job;
use forebay_ps::{BegunBatch, CachedBatch, CachedRows, Stamp, Trainer};
use futures::FutureExt;

use super::super::messages::MemberId;
use super::network::{OnStream, Pid, Request, SimPush};
use super::rows::{grads, holder, keys, of_ps, rows_seen, table_config};
use super::trainer::{Looked, SimTrainer};
use super::world::World;
use crate::order::look_ahead::AheadOrder;

pub(super) struct SimAhead {
    tickets: Staleness,
    order: AheadOrder,
    cache: CachedRows,
    under_way: VecDeque<Ahead>,
    /// By rank of the ps.
    streams: Vec<PushStream>,
    /// What each batch must see.
    expected: BTreeMap<BatchId, Vec<f32>>,
}

/// A batch between its look-up and its push.
struct Ahead {
    looked: Looked,
    number: u64,
    keys: Vec<u64>,
    at: At,
}

enum At {
    Waits,
    /// By rank of the ps: the open call, and the whole rows that have come.
    Asked(BegunBatch, Vec<(u64, Option<Vec<f32>>)>),
    Filled(CachedBatch),
    Computing(CachedBatch, Vec<f32>),
    /// With the number of its step.
    Stepped(CachedBatch, Vec<f32>, u64),
    /// The open pushes.
    Pushed(CachedBatch, Vec<u64>),
    Over,
}

#[derive(Default)]
struct PushStream {
    open: Option<u64>,
    /// The oldest first.
    unanswered: VecDeque<(u64, Request)>,
}

impl SimAhead {
    /// For a job that looks ahead. `world` says which rows each batch must see.
    pub(super) fn of(job: &Job, world: &World) -> Option<Box<Self>> {
        let k = job.train.look_ahead.or(0);
        (k > 0).then(|| {
            Box::new(Self {
                tickets: Staleness::new(k),
                order: AheadOrder::default(),
                cache: CachedRows::new(&table_config()).expect("a small table fits in memory"),
                under_way: VecDeque::new(),
                streams: (0..job.placement.ps).map(|_| PushStream::default()).collect(),
                expected: rows_seen(world),
            })
        })
    }

    pub(super) fn describe(&self) -> String {
        let batches: Vec<_> = self.under_way.iter().map(|one| (one.looked.header.id, one.at.name())).collect();
        let unanswered: Vec<_> = self.streams.iter().map(|stream| stream.unanswered.len()).collect();
        format!("ahead {batches:?}, {unanswered:?} pushes without an answer")
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A batch with this number is not looked up.
    pub(super) fn skip(&mut self, number: u64) {
        self.tickets.skip(number);
        self.order.skip(number);
    }

    /// Whether this was the answer to a pull.
    pub(super) fn pulled(&mut self, call: u64, rows: &[f32]) -> bool {
        for one in &mut self.under_way {
            if let At::Asked(_, calls) = &mut one.at
                && let Some((_, whole)) = calls.iter_mut().find(|(open, _)| *open == call)
            {
                *whole = Some(rows.to_vec());
                return true;
            }
        }
        false
    }

    pub(super) fn push_answered(&mut self, call: u64) {
        self.streams.iter_mut().for_each(|stream| stream.unanswered.retain(|(open, _)| *open != call));
        for one in &mut self.under_way {
            if let At::Pushed(_, calls) = &mut one.at {
                calls.retain(|open| *open != call);
            }
        }
    }

    /// Whether it was a stream of pushes that broke.
    pub(super) fn stream_broke(&mut self, broken: u64) -> bool {
        let stream = self.streams.iter_mut().find(|stream| stream.open == Some(broken));
        stream.is_some_and(|stream| stream.open.take().is_some())
    }

    /// Opens the streams that are broken, and sends what has no answer.
    fn open_streams(&mut self, world: &mut World, pid: Pid, ps: &[Pid]) {
        for (stream, ps) in self.streams.iter_mut().zip(ps) {
            if stream.open.is_some() || stream.unanswered.is_empty() {
                continue;
            }
            let open = world.new_stream(pid, *ps);
            stream.open = Some(open);
            for (call, body) in &stream.unanswered {
                world.on_stream(pid, open, OnStream::Request { call: *call, body: body.clone() });
            }
        }
    }

    fn push(&mut self, world: &mut World, pid: Pid, rank: usize, body: Request) -> u64 {
        let (call, stream) = (world.transport.number(), &mut self.streams[rank]);
        stream.unanswered.push_back((call, body.clone()));
        if let Some(open) = stream.open {
            world.on_stream(pid, open, OnStream::Request { call, body });
        }
        call
    }
}

impl At {
    fn name(&self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Asked(..) => "asked",
            Self::Filled(_) => "filled",
            Self::Computing(..) => "computing",
            Self::Stepped(..) => "stepped",
            Self::Pushed(..) => "pushed",
            Self::Over => "over",
        }
    }
}

impl SimTrainer {
    /// All work under way goes on, in every order of the replicas.
    pub(super) fn goes_ahead(&mut self, world: &mut World, pid: Pid, member: MemberId) -> Result<(), String> {
        let Some(mut ahead) = self.ahead.take() else { return Ok(()) };
        if !self.barrier
            && let Some(mut at) = self.at_look_up.take()
        {
            at.looked.ticket = ahead.tickets.ticket(at.arrival).now_or_never();
            match at.looked.ticket {
                Some(_) => {
                    let (looked, number) = (at.looked, at.arrival);
                    let keys = keys(looked.header.id);
                    ahead.under_way.push_back(Ahead { looked, number, keys, at: At::Waits });
                }
                None => self.at_look_up = Some(at),
            }
        }
        let first = world.random.below(ahead.under_way.len().max(1) as u64) as usize;
        for place in 0..ahead.under_way.len() {
            let place = (first + place) % ahead.under_way.len();
            self.one_goes_on(&mut ahead, place, world, pid, member)?;
        }
        ahead.under_way.retain(|one| !matches!(one.at, At::Over));
        ahead.open_streams(world, pid, &self.ps);
        self.ahead = Some(ahead);
        Ok(())
    }

    fn one_goes_on(
        &mut self,
        ahead: &mut SimAhead,
        place: usize,
        world: &mut World,
        pid: Pid,
        member: MemberId,
    ) -> Result<(), String> {
        let one = &mut ahead.under_way[place];
        let (id, rows, number) = (one.looked.header.id, one.looked.header.row, one.number);
        one.at = match std::mem::replace(&mut one.at, At::Over) {
            At::Waits if ahead.order.may_ask(number) => {
                let begun = ahead.cache.begin(&one.keys).map_err(|e| e.to_string())?;
                ahead.order.asked(number);
                let calls = self.ps.iter().enumerate().map(|(rank, ps)| {
                    let missing = begun.missing().iter().copied();
                    let missing = missing.filter(|key| holder(*key, self.ps.len()) == rank).collect();
                    (world.call_process(pid, *ps, Request::PullWhole(member.attempt, missing)), None)
                });
                let calls = calls.collect();
                At::Asked(begun, calls)
            }
            At::Asked(begun, calls) if calls.iter().all(|(_, whole)| whole.is_some()) => {
                let whole = whole_rows(&begun, &calls);
                At::Filled(ahead.cache.fill(begun, &whole))
            }
            At::Filled(batch) if ahead.order.may_read(number) => {
                let mut seen = Vec::new();
                ahead.cache.read(&batch, &mut seen);
                if ahead.expected.get(&id) != Some(&seen) {
                    return Err(format!("{id} sees {seen:?}, expected {:?}", ahead.expected.get(&id)));
                }
                self.compute_at = world.now + world.random.below(80);
                At::Computing(batch, grads(id, &seen))
            }
            At::Computing(batch, grads) if self.compute_at <= world.now && ahead.order.may_read(number) => {
                if !self.computed.insert(id) {
                    return Err(format!("{id} is computed twice"));
                }
                self.step += 1;
                ahead.cache.step(&batch, &grads, self.step);
                ahead.order.stepped(number);
                At::Stepped(batch, grads, self.step)
            }
            At::Stepped(batch, grads, step) if ahead.order.may_push(number) => {
                let trainer = Some(Trainer { rank: self.rank, incarnation: member.incarnation });
                let stamp = Stamp { id: id.push_id(), trainer, round: None };
                let (keys, ps) = (one.keys.clone(), self.ps.len());
                let mut calls = Vec::new();
                for rank in 0..ps {
                    let rows = of_ps(&keys, &grads, rank, ps);
                    let push = SimPush { stamp, step, batch: id, acknowledge: None, rows };
                    calls.push(ahead.push(world, pid, rank, Request::Push(member.attempt, push)));
                }
                ahead.order.pushed(number);
                ahead.under_way[place].at = At::Pushed(batch, calls);
                return Ok(());
            }
            At::Pushed(batch, calls) if calls.is_empty() => {
                ahead.cache.release(batch);
                self.done(id, rows);
                one.looked.ticket = None;
                At::Over
            }
            at => at,
        };
        Ok(())
    }
}

/// The rows that came, in the order of the missing keys.
fn whole_rows(begun: &BegunBatch, calls: &[(u64, Option<Vec<f32>>)]) -> Vec<f32> {
    let mut of_ps: Vec<_> = calls.iter().map(|(_, whole)| whole.as_deref().unwrap_or_default()).collect();
    let width = table_config().row_dim() + table_config().state_dim();
    let missing = begun.missing().iter();
    missing.flat_map(|key| of_ps[holder(*key, calls.len())].split_off(..width).unwrap_or_default().to_vec()).collect()
}
