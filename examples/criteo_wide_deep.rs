//! The whole pipeline in code: rows, Wide & Deep, a report.
//!
//! `cargo run --release --example criteo_wide_deep [rows]`

use std::sync::{Arc, Mutex};

use forebay::actors::{Host, Place, Replicas, Topology};
use forebay::connectors::{ReadOptions, Synthetic, SyntheticSource};
use forebay::models::{DenseOptimizer, ModelSpec, NativeModel};
use forebay::pipelines::stages::{BatchPlan, Batcher, Lookup, Parse, Push, Train};
use forebay::pipelines::{Columns, Progress, Staleness, job::TableOptions};
use forebay::{connectors::OnBadRow, ps::start_table};

fn main() -> anyhow::Result<()> {
    let rows = std::env::args().nth(1).map_or(Ok(100_000), |n| n.parse())?;
    let seed = 42;
    let synthetic = Synthetic { rows, seed, ..Default::default() };
    let columns = Columns::default(); // label, I1..I13, C1..C26
    let spec = ModelSpec::wide_deep(columns.slots.len(), columns.dense.len(), 16, &[400, 400, 400]);

    // Sparse rows: the linear part under FTRL and the embedding under Adagrad, in two shards.
    let host = Host::start("ps")?;
    let table = start_table(&host, TableOptions::default().config(spec.parts(), seed), 2)?;

    let (staleness, progress, dense) = (Staleness::new(1), Progress::default(), Arc::new(Mutex::new(None)));
    let plan = BatchPlan {
        rows: 2048,
        window: 65_536,
        seed,
        drop_last: false,
        accounts: false,
        key_spaces: columns.key_spaces(),
    };
    let (lookup_table, push_table, watched) = (table.clone(), table, progress.clone());
    let model = move || Ok(Box::new(NativeModel::new(spec, DenseOptimizer::adam(1e-3), seed, 2)?) as _);

    let report = Topology::new("criteo")
        .attach(&host)
        .source("read", Place::Shared, move || SyntheticSource::new(synthetic, ReadOptions::default()))
        .link(8)
        .replicated("parse", Place::Own, Replicas::ordered(2), move |_| {
            Parse::new(columns.clone(), seed, OnBadRow::Fail)
        })
        .link(8)
        .stage("batch", Place::Own, move || Batcher::new(plan))
        .link(4)
        .stage("lookup", Place::Shared, move || Lookup::for_training(lookup_table, staleness))
        .link(2)
        .stage("train", Place::Own, move || Train::new("wide & deep", Box::new(model), watched, dense))
        .link(2)
        .sink("push", Place::Shared, move || Push::new(push_table))
        .run()?;

    println!("{report}");
    let last = progress.snapshot();
    println!("{} rows, running logloss {:.4}, running AUC {:.4}", last.rows, last.logloss, last.auc.unwrap_or(0.5));
    Ok(())
}
