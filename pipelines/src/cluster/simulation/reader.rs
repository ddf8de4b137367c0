//! A reader: it takes leases, makes batches of their windows, and sends them. The queue and the progress are the real ones.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use forebay_connectors::Lease;
use futures::FutureExt;

use super::super::batches::lease_progress::{LeaseProgress, Report};
use super::super::batches::metadata::{Header, Reply};
use super::super::batches::send_queue::{QueuedBatch, SendQueue};
use super::super::leases::LeaseReply;
use super::super::members::Role;
use super::super::messages::{CompletedWindows, LeaseRequest, RunPhase};
use super::network::{Answer, OnStream, Pid, Request};
use super::world::World;
use crate::flow::BatchId;
use crate::job::Job;

/// As in `lease_client.rs`.
const MAX_UNSENT_LEASES: usize = 2;

pub(super) struct SimReader {
    progress: LeaseProgress,
    send_queue: SendQueue,
    queues: usize,
    /// The source reads ahead.
    leases: VecDeque<Lease>,
    /// The window that is cut into batches, and the next of them.
    reading: Option<(Lease, u64, u32)>,
    /// A batch that waits for room.
    blocked: Option<(usize, QueuedBatch)>,
    /// Leases are asked for at this call; `source_ended`: there are no more.
    asking: Option<u64>,
    requests: u64,
    ask_at: u64,
    source_ended: bool,
    reporting: Option<u64>,
    channels: Vec<SimChannel>,
    /// It has read all, and stays until the run is over.
    done: bool,
}

/// The channel to one trainer.
#[derive(Default)]
struct SimChannel {
    stream: Option<u64>,
    /// `None`: nothing was granted yet.
    credits: u32,
    open_at: u64,
}

impl SimReader {
    pub(super) fn new(job: &Job) -> Self {
        let queues = job.in_step();
        Self {
            progress: LeaseProgress::default(),
            send_queue: SendQueue::new(queues, 4),
            queues,
            leases: VecDeque::new(),
            reading: None,
            blocked: None,
            asking: None,
            requests: 0,
            ask_at: 0,
            source_ended: false,
            reporting: None,
            channels: (0..job.placement.trainers).map(|_| SimChannel::default()).collect(),
            done: false,
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "reading {:?}, {} leases ahead, blocked {:?}, asking {:?}, ended {}, channels {:?}, done {}",
            self.reading,
            self.leases.len(),
            self.blocked.as_ref().map(|(_, queued)| queued.header.id),
            self.asking,
            self.source_ended,
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
        if over {
            self.send_queue.clear();
        }
        self.ask(world, pid, status.returned_leases > 0);
        for _ in 0..2 {
            self.produce(world, status.returned_leases > 0);
        }
        for at in 0..self.channels.len() {
            let address = status.trainers[at].as_ref().map(|(_, address)| address.parse::<Pid>().unwrap_or(0));
            match (self.channels[at].stream, address) {
                (None, Some(trainer)) if !over && self.channels[at].open_at <= world.now => {
                    self.channels[at].stream = Some(world.open_stream(pid, trainer, member.attempt));
                    self.channels[at].credits = 0;
                }
                (Some(stream), _) => self.send(world, pid, at, stream),
                _ => {}
            }
        }
        if self.reporting.is_none() && self.progress.wait_for_report().now_or_never().is_some() {
            let Report { done: windows, gives_back } = self.progress.take_report();
            let completed = CompletedWindows { member, windows, gives_back };
            self.reporting = Some(world.call(pid, (Role::Ps, 0), Request::Complete(completed)));
        }
        let idle = self.source_ended && self.reading.is_none() && self.blocked.is_none() && self.leases.is_empty();
        let empty = self.send_queue.wait_until_empty().now_or_never().is_some();
        self.done = idle && empty && self.progress.wait_until_reported().now_or_never().is_some();
    }

    fn ask(&mut self, world: &mut World, pid: Pid, lost: bool) {
        let Some(member) = world.processes[pid].member else { return };
        // A source that cannot pass on its batches asks for nothing.
        if self.asking.is_some() || self.source_ended || self.blocked.is_some() || self.ask_at > world.now {
            return;
        }
        let room = self.progress.wait_for_room(MAX_UNSENT_LEASES).now_or_never().is_some();
        if room || lost {
            self.requests += 1;
            let lease = LeaseRequest { member, data: world.data(), returned_only: !room, number: self.requests };
            self.asking = Some(world.call(pid, (Role::Ps, 0), Request::Lease(lease)));
        }
    }

    /// Makes a batch, as the source, the stage `batch` and the stage `ship` do.
    fn produce(&mut self, world: &World, lost: bool) {
        if let Some((queue, queued)) = self.blocked.take() {
            let id = queued.header.id;
            let room = self.send_queue.wait_for_room(queue, id).now_or_never().is_some();
            let earlier = self.progress.wait_for_earlier_lease(id).now_or_never().is_some();
            if !(room || earlier || lost) {
                self.blocked = Some((queue, queued));
                return;
            }
            self.send_queue.put(queue, queued);
        }
        if self.reading.is_none() {
            let Some(lease) = self.leases.pop_front() else { return };
            self.reading = Some((lease.clone(), lease.windows.start, 0));
        }
        let Some((lease, window, index)) = self.reading.take() else { return };
        if window >= lease.windows.end {
            return;
        }
        let (batches, end) = world.window(lease.epoch, window);
        let next = if index + 1 < end.batches { (window, index + 1) } else { (window + 1, 0) };
        if index == 0 && !self.progress.begin(lease.epoch, window, lease.term) {
            self.reading = Some((lease, window + 1, 0));
            return;
        }
        let id = BatchId { epoch: lease.epoch, window, index };
        // In rounds all batches of the last round carry the end.
        let closes = (index + self.queues as u32 >= end.batches).then_some(end);
        let rows = batches[index as usize];
        if self.progress.batch_sent(id, lease.term, rows, closes) {
            let header =
                Header { id, term: lease.term, split: 0, row: rows, closes, done_before: 0, urgent: false, labels: 1 };
            let columns = RecordBatch::new_empty(Arc::new(Schema::empty()));
            self.blocked =
                Some((index as usize % self.queues, QueuedBatch { header, columns, bytes: 1, _ticket: None }));
        }
        self.reading = Some((lease, next.0, next.1));
    }

    fn send(&mut self, world: &mut World, pid: Pid, at: usize, stream: u64) {
        loop {
            let credits = self.channels[at].credits;
            let next = self.send_queue.next(at % self.queues, at, |_| credits > 0).now_or_never();
            let Some((header, ..)) = next else { return };
            if !header.urgent {
                self.channels[at].credits -= 1;
            }
            let header = Header { done_before: self.progress.done_before(header.id), ..header };
            world.on_stream(pid, stream, OnStream::Batch(header));
        }
    }

    pub(super) fn comes_by_stream(&mut self, stream: u64, body: OnStream) {
        let Some(channel) = self.channels.iter_mut().find(|channel| channel.stream == Some(stream)) else { return };
        match body {
            OnStream::Reply(Reply::Grant { batches, .. }) => channel.credits += batches,
            OnStream::Reply(Reply::Done(id)) => {
                self.progress.batch_done(id);
                self.send_queue.batch_done(id);
            }
            OnStream::Reply(Reply::Stale(id, term)) => {
                self.send_queue.remove_window_of(id, term);
                self.progress.remove_lease_of(id, term);
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

    pub(super) fn answered(&mut self, world: &World, call: u64, body: Answer) {
        match body {
            Answer::Lease(reply) if self.asking == Some(call) => {
                self.asking = None;
                match reply {
                    LeaseReply::Lease(lease) => {
                        self.progress.add(&lease);
                        self.leases.push_back(lease);
                    }
                    LeaseReply::Wait => self.ask_at = world.now + 200,
                    LeaseReply::Finished => self.source_ended = true,
                }
            }
            Answer::Done if self.reporting == Some(call) => {
                self.reporting = None;
                self.progress.reported();
            }
            _ => {}
        }
    }
}
