//! A reader: it makes batches of the windows of its leases, looks up their rows if readers do, and sends them. The queue, the tickets
//! and the progress are the real ones.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use forebay_batches::Ticket;
use forebay_batches::wire::metadata::{Header, Reply};
use forebay_job::Job;
use futures::FutureExt;

use super::super::batches::send_queue::{QueuedBatch, SendQueue};
use super::super::messages::RunPhase;
use super::lookups::SimLookups;
use super::network::{Answer, OnStream, Pid};
use super::source::{MadeBatch, SimSource};
use super::world::World;
use crate::roles::reader::other_readers_active;

/// As in `roles/reader.rs`, in milliseconds.
const UNTAKEN: u64 = 2000;

/// As in `cluster/session.rs`, in milliseconds.
const UNREACHED: u64 = 5000;

pub(super) struct SimReader {
    source: SimSource,
    /// Set if readers look up rows.
    lookups: Option<SimLookups>,
    send_queue: SendQueue,
    queues: usize,
    /// A batch that waits for room.
    blocked: Option<(usize, QueuedBatch)>,
    channels: Vec<SimChannel>,
    /// Since when there has been a returned lease that no reader has taken, if this one is asked to shut down.
    untaken: Option<u64>,
    /// Since when it has not reached a trainer, if it begins no more windows.
    unreached: Option<u64>,
    /// Since when batches reach no trainer, while others read on.
    blocks: Option<u64>,
    /// It leaves because it does not reach the trainers.
    leaves: bool,
    /// It has read all, and stays until the run is over.
    pub(super) done: bool,
}

/// The channel to one trainer.
#[derive(Default)]
struct SimChannel {
    stream: Option<u64>,
    /// The trainer has granted credits.
    is_open: bool,
    credits: u32,
}

impl SimReader {
    pub(super) fn new(job: &Job, rank: u32) -> Self {
        let queues = job.in_step();
        Self {
            source: SimSource::new(job),
            lookups: SimLookups::of(job, rank),
            send_queue: SendQueue::new(queues, 4),
            queues,
            blocked: None,
            channels: (0..job.placement.trainers).map(|_| SimChannel::default()).collect(),
            untaken: None,
            unreached: None,
            blocks: None,
            leaves: false,
            done: false,
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{}, look-ups {:?}, blocked {:?}, channels {:?}, done {}",
            self.source.describe(),
            self.lookups.as_ref().map(SimLookups::describe),
            self.blocked.as_ref().map(|(_, queued)| queued.header.id),
            self.channels.iter().map(|channel| (channel.stream, channel.credits)).collect::<Vec<_>>(),
            self.done
        )
    }

    pub(super) fn step(&mut self, world: &mut World, pid: Pid) {
        if self.done {
            return;
        }
        let process = &world.processes[pid];
        let (Some(member), Some(status)) = (process.member, process.status.clone()) else { return };
        let over = matches!(status.phase, RunPhase::Finished | RunPhase::Over);
        let is_untaken = process.told && status.returned_leases > 0;
        self.untaken = is_untaken.then(|| self.untaken.unwrap_or(world.now));
        let untaken = self.untaken.is_some_and(|since| world.now - since > UNTAKEN);
        let has_address = |at: usize| status.trainers[at].is_some();
        let channels = self.channels.iter().enumerate();
        let count = channels.filter(|(at, channel)| has_address(*at) && !channel.is_open).count();
        let blocking = if self.queues > 1 { 1 } else { status.trainers.iter().flatten().count() };
        let blocks = count > 0 && count >= blocking && other_readers_active(&status);
        self.blocks = blocks.then(|| self.blocks.unwrap_or(world.now));
        let lease = (world.job.placement.lease_seconds * 1000.0) as u64;
        if self.blocks.is_some_and(|since| world.now - since > 2 * lease) && !self.leaves {
            self.source.progress.close();
            self.leaves = true;
        }
        let is_unreached = self.source.progress.is_closed() && count > 0;
        self.unreached = is_unreached.then(|| self.unreached.unwrap_or(world.now));
        let unreached = self.unreached.is_some_and(|since| world.now - since > UNREACHED);
        let gives_back = untaken || unreached || self.leaves;
        if over || gives_back && self.source.progress.give_all_back(unreached || self.leaves) {
            self.send_queue.clear();
        }
        let full = self.lookups.as_ref().is_some_and(SimLookups::is_full);
        self.source.step(world, pid, member, &status, self.blocked.is_some() || full);
        if let Some(lookups) = &mut self.lookups {
            lookups.step(world, pid, member, &status);
        }
        for _ in 0..2 {
            self.produce(world, status.returned_leases > 0);
        }
        for at in 0..self.channels.len() {
            let address = status.trainers[at].as_ref().map(|(_, address)| address.parse::<Pid>().unwrap_or(0));
            match (self.channels[at].stream, address) {
                (None, Some(trainer)) if !over => {
                    let stream = Some(world.open_stream(pid, trainer, member.attempt));
                    self.channels[at] = SimChannel { stream, ..SimChannel::default() };
                }
                (Some(stream), _) => self.send(world, pid, at, stream),
                _ => {}
            }
        }
        let looking_up = self.lookups.as_ref().is_some_and(|lookups| !lookups.is_empty());
        let idle = self.source.is_at_end() && !looking_up && self.blocked.is_none();
        let empty = self.send_queue.wait_until_empty().now_or_never().is_some();
        self.done = idle && empty && self.source.progress.wait_until_reported().now_or_never().is_some();
        if self.done && self.leaves && other_readers_active(&status) {
            world.counted.unreaching += 1;
            world.processes[pid].told = true;
        }
    }

    /// Makes a batch, as the source, the stages `batch` and `lookup` and the stage `ship` do.
    fn produce(&mut self, world: &World, lost: bool) {
        if let Some((queue, queued)) = self.blocked.take() {
            let id = queued.header.id;
            let room = self.send_queue.wait_for_room(queue, id).now_or_never().is_some();
            let earlier = self.source.progress.wait_for_earlier_lease(id).now_or_never().is_some();
            if !(room || earlier || lost) {
                self.blocked = Some((queue, queued));
                return;
            }
            self.send_queue.put(queue, queued);
        }
        let Some(lookups) = &mut self.lookups else {
            if let Some(made) = self.source.next(world) {
                self.ship(made, None);
            }
            return;
        };
        if !lookups.is_full()
            && let Some(made) = self.source.next(world)
        {
            lookups.add(made);
        }
        if let Some((made, ticket)) = lookups.next() {
            self.ship(made, Some(ticket));
        }
    }

    fn ship(&mut self, made: MadeBatch, ticket: Option<Ticket>) {
        let MadeBatch { id, term, rows, closes } = made;
        if self.source.progress.batch_sent(id, term, rows, closes) {
            let header = Header {
                id,
                term,
                split: 0,
                row: rows,
                closes,
                done_before: 0,
                urgent: false,
                labels: 1,
                other_rows: 0,
            };
            let columns = RecordBatch::new_empty(Arc::new(Schema::empty()));
            let queued = QueuedBatch { header, columns, bytes: 1, rows: 1, _ticket: ticket };
            self.blocked = Some((id.index as usize % self.queues, queued));
        }
    }

    fn send(&mut self, world: &mut World, pid: Pid, at: usize, stream: u64) {
        loop {
            let credits = self.channels[at].credits;
            let next = self.send_queue.next(at % self.queues, at, |_| credits > 0).now_or_never();
            let Some((header, ..)) = next else { return };
            if !header.urgent {
                self.channels[at].credits -= 1;
            }
            let header = Header { done_before: self.source.progress.done_before(header.id), ..header };
            world.on_stream(pid, stream, OnStream::Batch(header));
        }
    }

    pub(super) fn comes_by_stream(&mut self, stream: u64, body: OnStream) {
        let Some(channel) = self.channels.iter_mut().find(|channel| channel.stream == Some(stream)) else { return };
        match body {
            OnStream::Reply(Reply::Grant { batches, .. }) => {
                channel.is_open = true;
                channel.credits += batches;
            }
            OnStream::Reply(Reply::Done(id)) => {
                self.source.progress.batch_done(id);
                self.send_queue.batch_done(id);
            }
            OnStream::Reply(Reply::Stale(id, term)) => {
                self.send_queue.remove_window_of(id, term);
                self.source.progress.remove_lease_of(id, term);
            }
            _ => {}
        }
    }

    pub(super) fn stream_broke(&mut self, stream: u64) {
        if let Some(at) = self.channels.iter().position(|channel| channel.stream == Some(stream)) {
            self.channels[at] = SimChannel::default();
            self.send_queue.channel_broke(at % self.queues, at);
        }
    }

    pub(super) fn answered(&mut self, world: &World, call: u64, body: &Answer) {
        if !self.source.answered(world.now, call, body)
            && let Some(lookups) = &mut self.lookups
        {
            lookups.answered(call);
        }
    }
}
