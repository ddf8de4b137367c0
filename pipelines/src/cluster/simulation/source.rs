//! The source and the stage `batch` of a process that reads: it takes leases, cuts their windows into batches, and reports the windows
//! that are done. `LeaseProgress` is the real one; the rest does as `cluster/lease_client.rs`.

use std::collections::VecDeque;

use forebay_batches::{BatchId, WindowEnd};
use forebay_connectors::Lease;
use forebay_job::Job;
use futures::FutureExt;

use super::super::batches::lease_progress::{LeaseProgress, Report};
use super::super::leases::LeaseReply;
use super::super::members::Role;
use super::super::messages::{CompletedWindows, LeaseRequest, MemberId, RunStatus};
use super::super::receives_in_order;
use super::network::{Answer, Pid, Request};
use super::world::World;

/// As in `cluster/lease_client.rs`.
const MAX_UNSENT_LEASES: usize = 2;

/// What a process reads.
pub(super) struct SimSource {
    pub(super) progress: LeaseProgress,
    /// Batches of a window that carry its end: the batches of its last round.
    in_step: u32,
    /// A run with checkpoints that drains makes one more, and ends its readers, unless it cannot be written.
    checkpoints: bool,
    /// The source reads ahead.
    leases: VecDeque<Lease>,
    /// The window that is cut into batches, and the next of them.
    reading: Option<(Lease, u64, u32)>,
    /// Leases are asked for at this call; `ended`: there are no more.
    asking: Option<u64>,
    requests: u64,
    ask_at: u64,
    ended: bool,
    reporting: Option<u64>,
}

/// A batch that the stage `batch` has made.
pub(super) struct MadeBatch {
    pub(super) id: BatchId,
    pub(super) term: u32,
    pub(super) rows: u64,
    pub(super) closes: Option<WindowEnd>,
}

impl SimSource {
    pub(super) fn new(job: &Job) -> Self {
        Self {
            progress: LeaseProgress::new(receives_in_order(job)),
            in_step: job.in_step() as u32,
            checkpoints: job.checkpoint.to.is_some(),
            leases: VecDeque::new(),
            reading: None,
            asking: None,
            requests: 0,
            ask_at: 0,
            ended: false,
            reporting: None,
        }
    }

    pub(super) fn describe(&self) -> String {
        let Self { reading, leases, asking, ended, reporting, .. } = self;
        format!(
            "reading {reading:?}, {} leases ahead, asking {asking:?}, reporting {reporting:?}, ended {ended}",
            leases.len()
        )
    }

    /// Asks for leases and reports. `told`: the process is to end. A source that is `blocked` cannot pass on its batches, and asks for
    /// nothing.
    pub(super) fn step(&mut self, world: &mut World, pid: Pid, member: MemberId, status: &RunStatus, blocked: bool) {
        if world.processes[pid].told && member.role == Role::Reader {
            self.progress.close();
        }
        if status.begins_no_windows(self.checkpoints) {
            self.progress.close();
        }
        if !blocked {
            self.ask(world, pid, member, status.returned_leases > 0);
        }
        if self.reporting.is_none() && self.progress.wait_for_report().now_or_never().is_some() {
            let Report { done: windows, gives_back } = self.progress.take_report();
            let completed = CompletedWindows { member, windows, gives_back };
            self.reporting = Some(world.call(pid, (Role::Ps, 0), Request::Complete(completed)));
        }
    }

    fn ask(&mut self, world: &mut World, pid: Pid, member: MemberId, lost: bool) {
        if self.asking.is_some() || self.ended {
            return;
        }
        if self.progress.wait_until_closed().now_or_never().is_some() {
            self.ended = true;
            return;
        }
        let room = self.progress.wait_for_room(MAX_UNSENT_LEASES).now_or_never().is_some();
        if self.ask_at <= world.now && (room || lost) {
            self.requests += 1;
            let lease = LeaseRequest { member, data: world.data(), returned_only: !room, number: self.requests };
            self.asking = Some(world.call(pid, (Role::Ps, 0), Request::Lease(lease)));
        }
    }

    /// The next batch, if it is made.
    pub(super) fn next(&mut self, world: &World) -> Option<MadeBatch> {
        loop {
            if self.reading.is_none() {
                let lease = self.leases.pop_front()?;
                self.reading = Some((lease.clone(), lease.windows.start, 0));
            }
            let (lease, window, index) = self.reading.take()?;
            if window >= lease.windows.end {
                continue;
            }
            let (batches, end) = world.window(lease.epoch, window);
            if index == 0 && !self.progress.begin(lease.epoch, window, lease.term) {
                self.reading = Some((lease, window + 1, 0));
                continue;
            }
            let id = BatchId { epoch: lease.epoch, window, index };
            // In rounds all batches of the last round carry the end.
            let closes = (index + self.in_step >= end.batches).then_some(end);
            let (term, rows) = (lease.term, batches[index as usize]);
            let next = if index + 1 < end.batches { (window, index + 1) } else { (window + 1, 0) };
            self.reading = Some((lease, next.0, next.1));
            return Some(MadeBatch { id, term, rows, closes });
        }
    }

    /// Whether no more batches come.
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.asking.is_none() && self.reading.is_none() && self.leases.is_empty()
    }

    /// Whether this was the answer to a call of the source.
    pub(super) fn answered(&mut self, now: u64, call: u64, body: &Answer) -> bool {
        match body {
            Answer::Lease(reply) if self.asking == Some(call) => {
                self.asking = None;
                match reply {
                    LeaseReply::Lease(lease) => {
                        self.progress.add(lease);
                        self.leases.push_back(lease.clone());
                    }
                    LeaseReply::Wait => self.ask_at = now + 200,
                    LeaseReply::Finished => self.ended = true,
                }
                true
            }
            Answer::Done if self.reporting == Some(call) => {
                self.reporting = None;
                self.progress.reported();
                true
            }
            _ => false,
        }
    }
}
