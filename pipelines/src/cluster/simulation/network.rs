//! What travels between processes, and when it arrives.

use std::collections::BTreeMap;

use forebay_batches::BatchId;
use forebay_batches::wire::metadata::{Header, Reply};
use forebay_ps::{AfterRound, ExportBlock, Stamp};

use super::super::cuts::{CutOrder, CutRequest, LeadCutRequest, LeadReply};
use super::super::leases::LeaseReply;
use super::super::members::Role;
use super::super::messages::{
    CannotStartRequest, CompletedWindows, FailRequest, JoinReply, JoinRequest, LeaseRequest, MemberId, PlanReply,
    ProcessRequest, RunStatus, StopEarlyRequest,
};
use super::super::ps_snapshots::SnapshotRequest;
use crate::checkpoint::WindowLog;

/// A role and a rank.
pub(super) type Place = (Role, u32);

/// The number of a start of a process. Addresses are these numbers.
pub(super) type Pid = usize;

/// What a ps holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    /// How often the pushes of each batch were applied.
    pub(super) applied: BTreeMap<BatchId, u32>,
    /// In a run that looks ahead.
    pub(super) rows: Option<ExportBlock>,
}

/// The push of one trainer.
#[derive(Clone, Debug)]
pub(super) struct SimPush {
    pub(super) stamp: Stamp,
    pub(super) step: u64,
    pub(super) batch: BatchId,
    /// Pushes of lower sources are applied.
    pub(super) acknowledge: Option<u64>,
    /// In a run that looks ahead: the keys that the ps has, and their gradients.
    pub(super) rows: (Vec<u64>, Vec<f32>),
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Alive(ProcessRequest),
    Plan(ProcessRequest),
    Join(JoinRequest),
    CannotStart(CannotStartRequest),
    Heartbeat(MemberId),
    Lease(LeaseRequest),
    Complete(CompletedWindows),
    StopEarly(StopEarlyRequest),
    Over(MemberId),
    Drain(MemberId),
    WithoutCheckpoint(MemberId),
    Leaving(MemberId),
    Leave(MemberId, Vec<WindowLog>),
    Fail(FailRequest),
    Cut(Box<CutRequest>),
    LeadCut(LeadCutRequest),
    /// To a ps, from a member of this attempt.
    Push(u64, SimPush),
    /// What a trainer in step pulls, which must see a round.
    PullAfter(u64, AfterRound),
    Snapshot(u64, SnapshotStep, SnapshotRequest),
    Contents(u64),
    Pull(u64),
    /// The whole rows of these keys.
    PullWhole(u64, Vec<u64>),
}

/// What a trainer asks of the snapshots of a ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotStep {
    Begin,
    Written,
    Keep,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Plan(PlanReply),
    Join(JoinReply),
    Status(Box<RunStatus>),
    Lease(LeaseReply),
    Cut(CutOrder),
    Lead(LeadReply),
    /// Whether a trainer leaves while the run goes on.
    Leaving(bool),
    Contents(Contents),
    Rows(Vec<f32>),
    /// To a pull that must see a round: how many batches are applied.
    Sees(u64),
    Done,
    /// The request is of another attempt, or its receiver is not ready: the sender tries again.
    Later,
    Refused(String),
}

/// What goes over a stream from a reader to a trainer and back, or from a trainer to a ps and back.
#[derive(Clone, Debug)]
pub(super) enum OnStream {
    Open { attempt: u64, reader: String },
    Batch(Header),
    Reply(Reply),
    Request { call: u64, body: Request },
    Answer { call: u64 },
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Request {
        call: u64,
        body: Request,
    },
    Answer {
        call: u64,
        body: Answer,
    },
    Stream {
        stream: u64,
        body: OnStream,
    },
    Broke {
        stream: u64,
    },
    /// The answer to a sign of life: see `MadeCheckpoints::are_there`.
    CheckpointsAreThere(u64),
}

/// The position of a run in the store, with what each ps holds and what the trainers keep.
#[derive(Clone, Debug)]
pub(super) struct StoredCheckpoint {
    pub(super) batches: crate::checkpoint::TrainedBatches,
    pub(super) contents: Vec<Contents>,
    pub(super) kept: Vec<Vec<(BatchId, u64)>>,
}
