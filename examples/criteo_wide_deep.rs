//! The whole pipeline in code, stage by stage: rows, Wide & Deep, a report, a model folder.
//!
//! `cargo run --release --example criteo_wide_deep [rows]`

use forebay::actors::{Host, Place, Replicas, Topology};
use forebay::connectors::{OnBadRow, ReadOptions, Synthetic, SyntheticSource};
use forebay::pipelines::stages::{BatchPlan, Batcher, Lookup, Parse, Push, Train};
use forebay::pipelines::{JobModel, Progress, Registry, Staleness};
use forebay::{Job, Model, ps::start_table};

fn main() -> anyhow::Result<()> {
    let rows = std::env::args().nth(1).map_or(Ok(100_000), |n| n.parse())?;
    let job = Job { seed: 42, ..Default::default() }; // Wide & Deep over label, I1..I13, C1..C26
    let (columns, seed) = (job.columns.clone(), job.seed);
    let source = move |first, rows| {
        SyntheticSource::new(Synthetic { first, rows, seed, ..Default::default() }, ReadOptions::default())
    };

    // Sparse rows: the linear part under FTRL and the embedding under Adam, in two shards.
    let host = Host::start("ps")?;
    let dense = JobModel::of(&job, &Registry::default())?;
    let table = start_table(&host, dense.table_config(&job), 2)?;
    let plan = BatchPlan {
        rows: 2048,
        window: 65_536,
        seed,
        drop_last: false,
        mark_window_ends: false,
        key_spaces: columns.key_spaces(),
        missing: Vec::new(),
    };
    let (lookup, push) = (Lookup::for_training(&table, &Staleness::new(1)), Push::new(&table));
    let make_model = dense.maker();

    let outcome = Topology::new("criteo")
        .attach(&host)
        .source("read", Place::Shared, move || source(0, rows))
        .link(8)
        .replicated("parse", Place::Own, Replicas::ordered(2), move |_| Parse::new(&columns, seed, OnBadRow::Fail))
        .link(8)
        .stage("batch", Place::Own, move || Batcher::new(plan))
        .link(4)
        .stage("lookup", Place::Shared, move || lookup)
        .link(2)
        .stage("train", Place::Own, move || Train::new("wide & deep", make_model, Progress::default()))
        .link(2)
        .sink("push", Place::Shared, move || push)
        .start()?
        .wait();
    outcome.result?;
    println!("{}", outcome.report);

    let dense = outcome.results.take("train").expect("the train stage leaves the dense parameters");
    let model = Model::from_parts(job, host, table, dense)?;
    println!("rows that were not trained on: {}", model.evaluate_source(move || source(rows, 20_000))?.0);
    let folder = tempfile::tempdir()?;
    let saved = model.save(folder.path().join("model").display().to_string())?;
    println!("{} files saved", saved.files().count());
    Ok(())
}
