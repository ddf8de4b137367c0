//! The wiring: the only place with stages, capacities and places, in the order of the README's graph.
//!
//! Comes in: what the stages need. Goes out: a pipeline. Nothing blocks.

use std::sync::{Arc, Mutex};

use forebay_actors::{Pipeline, Place, Replicas, Source, Topology};
use forebay_connectors::Rows;

use crate::job::Job;
use crate::model::Model;
use crate::stages::{Batch, BatchPlan, Evaluate, Evaluation, Lookup, ModelMaker, Parse, Push, Train};
use crate::training::Parts;

/// `source -8→ parse -8→ batch -4→ lookup -2→ train -2→ push`, with the shards beside `lookup` and `push`.
pub(crate) fn training<S: Source<Out = Rows>>(parts: &Parts, source: impl FnOnce() -> S + Send + 'static) -> Pipeline {
    let (job, links) = (&parts.job, &parts.job.pipeline.links);
    let (table, staleness) = (parts.table.clone(), parts.staleness.clone());
    let push_table = parts.table.clone();
    let describe = match parts.own {
        Some(_) => "a model of your own".to_owned(),
        None => format!("{} on {}, {}", job.model.kind, job.train.backend, job.train.device),
    };
    let (factory, progress, dense) = (parts.factory(), parts.progress.clone(), Arc::clone(&parts.dense));
    Topology::new("train")
        .attach(&parts.host)
        .source("read", Place::Shared, source)
        .link(links.parse)
        .replicated("parse", Place::Own, Replicas::ordered(job.pipeline.parse_replicas), parse(job))
        .link(links.batch)
        .stage("batch", Place::Own, batch(job, job.data.shuffle_rows, job.train.batch_rows, job.train.drop_last))
        .link(links.lookup)
        .stage("lookup", Place::Shared, move || Lookup::for_training(table, staleness))
        .link(links.train)
        .stage("train", Place::Own, move || Train::new(describe, Box::new(move || factory()), progress, dense))
        .link(links.push)
        .sink("push", Place::Shared, move || Push::new(push_table))
}

/// `source -8→ parse -8→ batch -4→ lookup -2→ evaluate`, with the shards beside `lookup`.
pub(crate) fn evaluation<S: Source<Out = Rows>>(
    model: &Model,
    source: impl FnOnce() -> S + Send + 'static,
    maker: ModelMaker,
    result: Arc<Mutex<Option<Evaluation>>>,
) -> Pipeline {
    let (job, links) = (&model.job, &model.job.pipeline.links);
    let table = model.table.clone();
    Topology::new("evaluate")
        .attach(&model.host)
        .source("read", Place::Shared, source)
        .link(links.parse)
        .replicated("parse", Place::Own, Replicas::ordered(job.pipeline.parse_replicas), parse(job))
        .link(links.batch)
        .stage("batch", Place::Own, batch(job, 0, EVALUATION_ROWS, false))
        .link(links.lookup)
        .stage("lookup", Place::Shared, move || Lookup::read_only(table))
        .link(links.train)
        .sink("evaluate", Place::Own, move || Evaluate::new(maker, result))
}

/// Rows of a batch in evaluation, where their number changes no result.
const EVALUATION_ROWS: usize = 4096;

fn parse(job: &Job) -> impl Fn(usize) -> Parse + Send + Sync + 'static {
    let (columns, seed, on_bad_row) = (job.columns.clone(), job.seed, job.data.on_bad_row.clone());
    move |_replica| Parse::new(columns.clone(), seed, on_bad_row.clone())
}

fn batch(job: &Job, window: usize, rows: usize, drop_last: bool) -> impl FnOnce() -> Batch + Send + 'static {
    let plan =
        BatchPlan { rows, window, seed: job.seed, drop_last, accounts: false, key_spaces: job.columns.key_spaces() };
    move || Batch::new(plan)
}
