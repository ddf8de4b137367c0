//! The wiring: the only place with stages, capacities and places, in the order of the README's graph.
//!
//! Comes in: what the stages need. Goes out: a pipeline. Nothing blocks.
//!
//! One process wires [`feed`] and [`learn`] together; of several, readers ship what the one makes, and trainers receive what
//! the other takes.

use std::sync::{Arc, Mutex};

use forebay_actors::{Flow, Pipeline, Place, Replicas, Source, Topology};
use forebay_connectors::Rows;
use forebay_models::ModelSpec;
use forebay_ps::TableClient;
use tokio::sync::oneshot;

use crate::cluster::batches::receive_queue::ReceiveQueue;
use crate::cluster::batches::send_queue::SendQueue;
use crate::cluster::member::{LeaseClient, Member};
use crate::flow::{GradBatch, ReadyBatch, TrainBatch};
use crate::job::{Job, Transfers};
use crate::model::{Model, ModelFactory, factory};
use crate::progress::Progress;
use crate::sources::window_rows;
use crate::stages::{
    BatchPlan, Batcher, Download, Evaluate, Evaluation, Launch, Lookup, ModelMaker, Parse, Push, Receive, Refresh,
    Ship, Train, TrainedDense, Upload,
};
use crate::staleness::Staleness;
use crate::training::Parts;

/// `source -8→ parse -8→ batch -4→ lookup -2→ train -2→ push`, with the shards beside `lookup` and `push`. Where
/// transfers stand apart, `train` is `upload -1→ train -1→ download`.
pub(crate) fn training<S: Source<Out = Rows>>(parts: &Parts, source: impl FnOnce() -> S + Send + 'static) -> Pipeline {
    learn(feed(Topology::new("train").attach(&parts.host), &parts.job, training_plan(&parts.job), source), parts)
}

/// A reader's part of it: `source -8→ parse -8→ batch -4→ ship`.
pub(crate) fn reading<S: Source<Out = Rows>>(
    job: &Job,
    send_queue: Arc<SendQueue>,
    leases: LeaseClient,
    source: impl FnOnce() -> S + Send + 'static,
) -> Pipeline {
    let trainers = job.in_step() as u32;
    feed(Topology::new("read"), job, training_plan(job), source)
        .sink("ship", Place::Shared, move || Ship::<TrainBatch>::new(send_queue, leases, trainers))
}

/// The same with the look-up at the reader: `source -8→ parse -8→ batch -4→ lookup -2→ ship`.
pub(crate) fn reading_ready<S: Source<Out = Rows>>(
    job: &Job,
    send_queue: Arc<SendQueue>,
    leases: LeaseClient,
    (table, staleness): (TableClient, Staleness),
    source: impl FnOnce() -> S + Send + 'static,
) -> Pipeline {
    let under_way = under_way(job, &staleness);
    let lookup = Lookup::for_training(table, staleness);
    looked_up(feed(Topology::new("read"), job, training_plan(job), source), lookup, under_way)
        .link(job.pipeline.links.train)
        .sink("ship", Place::Shared, move || Ship::<ReadyBatch>::new(send_queue, leases, 1))
}

/// Its trainer: `receive -2→ train -2→ push`.
pub(crate) fn receiving_ready(parts: &Parts, receive_queue: Arc<ReceiveQueue>, member: &Member) -> Pipeline {
    let (status, links) = (member.subscribe(), &parts.job.pipeline.links);
    let flow = Topology::new("train")
        .attach(&parts.host)
        .source("receive", Place::Shared, move || Receive::<ReadyBatch>::new(receive_queue, status, false))
        .link(links.train);
    let flow = match parts.participation.dense().cloned() {
        Some(dense) => {
            let replicas = Replicas::ordered(under_way(&parts.job, &parts.staleness));
            flow.replicated("refresh", Place::Shared, replicas, move |_| Refresh::new(Arc::clone(&dense)))
                .link(links.train)
        }
        None => flow,
    };
    compute(flow, parts)
}

/// A trainer's part of it: `receive -4→ lookup -2→ train -2→ push`.
pub(crate) fn receiving(parts: &Parts, receive_queue: Arc<ReceiveQueue>, member: &Member) -> Pipeline {
    let (status, in_step) = (member.subscribe(), parts.participation.round().is_some());
    let flow = Topology::new("train")
        .attach(&parts.host)
        .source("receive", Place::Shared, move || Receive::<TrainBatch>::new(receive_queue, status, in_step))
        .link(parts.job.pipeline.links.lookup);
    learn(flow, parts)
}

/// `source -8→ parse -8→ batch -4→ lookup -2→ evaluate`, with the shards beside `lookup`.
pub(crate) fn evaluation<S: Source<Out = Rows>>(
    model: &Model,
    source: impl FnOnce() -> S + Send + 'static,
    maker: ModelMaker,
    result: Arc<Mutex<Option<Evaluation>>>,
) -> Pipeline {
    let (job, table) = (&model.job, model.table.clone());
    let plan = BatchPlan { rows: EVALUATION_ROWS, window: 0, drop_last: false, accounts: false, ..training_plan(job) };
    feed(Topology::new("evaluate").attach(&model.host), job, plan, source)
        .stage("lookup", Place::Shared, move || Lookup::read_only(table))
        .link(job.pipeline.links.train)
        .sink("evaluate", Place::Own, move || Evaluate::new(maker, result))
}

/// Rows of a batch in evaluation, where their number changes no result.
const EVALUATION_ROWS: usize = 4096;

fn feed<S: Source<Out = Rows>>(
    topology: Topology,
    job: &Job,
    plan: BatchPlan,
    source: impl FnOnce() -> S + Send + 'static,
) -> Flow<TrainBatch> {
    let links = &job.pipeline.links;
    let (columns, seed, on_bad_row) = (job.columns.clone(), job.seed, job.data.on_bad_row.clone());
    let parse = move |_replica| Parse::new(columns.clone(), seed, on_bad_row.clone());
    topology
        .source("read", Place::Shared, source)
        .link(links.parse)
        .replicated("parse", Place::Own, Replicas::ordered(job.pipeline.parse_replicas), parse)
        .link(links.batch)
        .stage("batch", Place::Own, move || Batcher::new(plan))
        .link(links.lookup)
}

fn learn(flow: Flow<TrainBatch>, parts: &Parts) -> Pipeline {
    let (table, staleness) = (parts.table.clone(), parts.staleness.clone());
    let under_way = under_way(&parts.job, &staleness);
    let lookup = Lookup::for_training(table, staleness).participation(parts.participation.clone());
    compute(looked_up(flow, lookup, under_way).link(parts.job.pipeline.links.train), parts)
}

/// Requests of one kind that a process keeps under way to the ps: one for each ticket, so that the way there and back is
/// hidden. Shards of this process are next door, and one look-up at a time gives the caches to it alone.
fn under_way(job: &Job, staleness: &Staleness) -> usize {
    if job.placement.ps == 0 { 1 } else { (staleness.bound() + 1).min(MOST_UNDER_WAY) }
}

/// More than this hides no way that eight do not, and each holds a batch's rows.
const MOST_UNDER_WAY: usize = 8;

fn looked_up(flow: Flow<TrainBatch>, lookup: Lookup, under_way: usize) -> Flow<ReadyBatch> {
    match under_way {
        1 => flow.stage("lookup", Place::Shared, move || lookup),
        n => flow.replicated("lookup", Place::Shared, Replicas::ordered(n), move |_| lookup.clone()),
    }
}

fn compute(flow: Flow<ReadyBatch>, parts: &Parts) -> Pipeline {
    let (participation, table) = (parts.participation.clone(), parts.table.clone());
    let mut dense = Compute::new(&parts.job, &parts.spec);
    if parts.own.is_some() {
        (dense.describe, dense.factory) = ("a model of your own".into(), parts.factory());
    }
    (dense.progress, dense.trained, dense.steps) =
        (parts.progress.clone(), Arc::clone(&parts.dense), participation.steps());
    let push = Push::new(table).participation(participation);
    let flow = dense.wire(flow).link(parts.job.pipeline.links.push);
    match under_way(&parts.job, &parts.staleness) {
        1 => flow.sink("push", Place::Shared, move || push),
        n => flow.replicated_sink("push", Place::Shared, n, move |_| push.clone()),
    }
}

/// The part of a pipeline that computes, for any that feeds it rows and takes its gradients.
pub struct Compute {
    describe: String,
    factory: ModelFactory,
    transfers: Transfers,
    /// Told of every step.
    pub progress: Progress,
    /// Has the dense parameters after the last batch.
    pub trained: TrainedDense,
    /// Steps that were taken before, and trainers that count steps beside this one.
    steps: (u64, u64),
}

impl Compute {
    /// With the model, the backend and the device of a job.
    pub fn new(job: &Job, spec: &ModelSpec) -> Self {
        Self {
            describe: format!("{} on {}, {}", job.model.kind, job.train.backend, job.train.device),
            factory: factory(job, spec, None),
            transfers: job.train.transfers(),
            progress: Progress::default(),
            trained: TrainedDense::default(),
            steps: (0, 1),
        }
    }

    /// `train`, or, with transfers apart, `upload -1→ train -1→ download`. One batch between them is enough: while the device
    /// works on the batch that `download` waits for, the next one is in its queue already, and the one after it is packed.
    pub fn wire(self, flow: Flow<ReadyBatch>) -> Flow<GradBatch> {
        let Self { describe, factory, transfers, progress, trained, steps } = self;
        let maker: ModelMaker = Box::new(move || factory());
        if transfers == Transfers::Inline {
            let train = move || Train::new(describe, maker, progress, trained).after(steps);
            return flow.stage("train", Place::Own, train);
        }
        let (uploader, upload) = oneshot::channel();
        flow.stage("upload", Place::Own, move || Upload::new(upload))
            .link(1)
            .stage("train", Place::Own, move || Launch::new(describe, maker, uploader, trained))
            .link(1)
            .stage("download", Place::Own, move || Download::new(progress).after(steps))
    }
}

/// How training rows become batches: the same whatever process does it.
fn training_plan(job: &Job) -> BatchPlan {
    BatchPlan {
        rows: job.train.batch_rows,
        window: if job.data.shuffle_rows == 0 { 0 } else { window_rows(job, job.in_step()) },
        seed: job.seed,
        drop_last: job.train.drop_last,
        accounts: !job.placement.is_one_process(),
        key_spaces: job.columns.key_spaces(),
    }
}
