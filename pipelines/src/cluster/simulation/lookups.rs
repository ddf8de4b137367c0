//! The stage `lookup` of a reader, for runs whose readers look up rows: replicas that each wait for a ticket and then for the rows of
//! every ps, and pass on their batches in order. The tickets are the real ones: the send queue frees them when batches are done.

use std::collections::VecDeque;

use forebay_batches::{Staleness, Ticket};
use forebay_job::{Job, LookupAt};
use futures::FutureExt;

use super::super::messages::{MemberId, RunStatus};
use super::network::{Pid, Request};
use super::source::MadeBatch;
use super::world::World;

pub(super) struct SimLookups {
    staleness: Staleness,
    arrivals: u64,
    under_way: VecDeque<LookUp>,
}

struct LookUp {
    made: MadeBatch,
    arrival: u64,
    ticket: Option<Ticket>,
    /// The open calls to the ps. `None`: it has not asked yet.
    calls: Option<Vec<u64>>,
}

impl SimLookups {
    /// The lookups of the reader of this rank, if readers look up rows.
    pub(super) fn of(job: &Job, rank: u32) -> Option<Self> {
        if job.placement.lookup_at == LookupAt::Trainer {
            return None;
        }
        let tickets = job.placement.tickets(rank, job.train.staleness.batches).expect("a rank of the job");
        Some(Self { staleness: Staleness::new(tickets - 1), arrivals: 0, under_way: VecDeque::new() })
    }

    pub(super) fn describe(&self) -> String {
        let all: Vec<_> = self.under_way.iter().map(|one| (one.made.id, one.ticket.is_some(), &one.calls)).collect();
        format!("{all:?}")
    }

    /// One replica for each ticket.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() > self.staleness.bound()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) fn add(&mut self, made: MadeBatch) {
        self.under_way.push_back(LookUp { made, arrival: self.arrivals, ticket: None, calls: None });
        self.arrivals += 1;
    }

    pub(super) fn step(&mut self, world: &mut World, pid: Pid, member: MemberId, status: &RunStatus) {
        for one in &mut self.under_way {
            if one.ticket.is_none() {
                one.ticket = self.staleness.ticket(one.arrival).now_or_never();
            }
            if one.ticket.is_some() && one.calls.is_none() {
                let ps = status.ps.iter().flatten().filter_map(|(_, address)| address.parse::<Pid>().ok());
                one.calls = Some(ps.map(|ps| world.call_process(pid, ps, Request::Pull(member.attempt))).collect());
            }
        }
    }

    pub(super) fn answered(&mut self, call: u64) {
        for calls in self.under_way.iter_mut().filter_map(|one| one.calls.as_mut()) {
            calls.retain(|open| *open != call);
        }
    }

    /// The first batch, if its rows are here.
    pub(super) fn next(&mut self) -> Option<(MadeBatch, Ticket)> {
        let first = self.under_way.front_mut()?;
        if !first.calls.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let ticket = first.ticket.take()?;
        Some((self.under_way.pop_front()?.made, ticket))
    }
}
