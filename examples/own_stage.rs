//! A user's own stage in the middle of a pipeline: keeps every click and one in four of the rest, and tells the ledger.
//!
//! `cargo run --release --example own_stage`

use std::sync::{Arc, Mutex};

use forebay::actors::{Batch, Host, Outbox, Place, Stage, StageCx, Topology};
use forebay::connectors::{OnBadRow, ReadOptions, Synthetic, SyntheticSource};
use forebay::models::{DenseOptimizer, ModelSpec, NativeModel};
use forebay::pipelines::flow::ExampleBatch;
use forebay::pipelines::stages::{BatchPlan, Batcher, Lookup, Parse, Push, Train};
use forebay::pipelines::{Columns, Progress, Staleness, job::TableOptions};
use forebay::{Fault, ps::start_table};

/// Keeps all rows with label 1 and one in `one_in` of the others.
struct Downsample {
    one_in: usize,
    seen: usize,
}

impl Stage for Downsample {
    type In = ExampleBatch;
    type Out = ExampleBatch;

    fn describe(&self) -> String {
        format!("1 in {} rows without a click", self.one_in)
    }

    async fn on_batch(
        &mut self,
        batch: ExampleBatch,
        cx: &StageCx,
        out: &mut Outbox<ExampleBatch>,
    ) -> Result<(), Fault> {
        let mut keep = Vec::with_capacity(batch.rows());
        for (row, &label) in batch.labels.iter().enumerate() {
            self.seen += usize::from(label == 0.0);
            if label == 1.0 || self.seen.is_multiple_of(self.one_in) {
                keep.push(row as u32);
            }
        }
        // Rows that do not go on are rejected with a reason: the ledger adds up, or the run fails.
        cx.ledger().reject("downsampled", (batch.rows() - keep.len()) as u64);
        out.send(ExampleBatch::gather(&[batch], &keep)).await
    }
}

fn main() -> anyhow::Result<()> {
    let synthetic = Synthetic { rows: 200_000, ..Default::default() };
    let columns = Columns::default();
    let spec = ModelSpec::lr(columns.slots.len(), columns.dense.len());
    let host = Host::start("ps")?;
    let table = start_table(&host, TableOptions::default().config(spec.parts(), 1), 1)?;
    let push_table = table.clone();
    let plan = BatchPlan {
        rows: 4096,
        window: 0,
        seed: 1,
        drop_last: false,
        accounts: false,
        key_spaces: columns.key_spaces(),
    };
    let progress = Progress::default();
    let watched = progress.clone();
    let model = move || Ok(Box::new(NativeModel::new(spec, DenseOptimizer::adam(1e-3), 1, 1)?) as _);

    let report = Topology::new("downsampled")
        .attach(&host)
        .source("read", Place::Shared, move || SyntheticSource::new(synthetic, ReadOptions::default()))
        .link(8)
        .stage("parse", Place::Own, move || Parse::new(columns, 1, OnBadRow::Fail))
        .link(8)
        .stage("downsample", Place::Shared, || Downsample { one_in: 4, seen: 0 })
        .link(8)
        .stage("batch", Place::Own, move || Batcher::new(plan))
        .link(4)
        .stage("lookup", Place::Shared, move || Lookup::for_training(table, Staleness::new(1)))
        .link(2)
        .stage("train", Place::Own, move || Train::new("lr", Box::new(model), watched, Arc::new(Mutex::new(None))))
        .link(2)
        .sink("push", Place::Shared, move || Push::new(push_table))
        .run()?;
    println!("{report}");
    println!("trained on {} rows", progress.snapshot().rows);
    Ok(())
}
