//! A stage of your own in the middle of training: it keeps every click and one in four of the other rows.
//!
//! `cargo run --release --example own_stage`

use forebay::actors::{Outbox, Stage, StageCx};
use forebay::connectors::{ReadOptions, Synthetic, SyntheticSource};
use forebay::pipelines::flow::{ExampleBatch, ExampleRow};
use forebay::{Fault, Job, Training};

/// Whether a row stays. All processes decide alike, because only its label and a hash of its keys matter.
fn keep(row: ExampleRow<'_>) -> bool {
    let hash = (0..26).flat_map(|slot| row.keys(slot)).fold(0_u64, |hash, key| hash.rotate_left(5) ^ key);
    row.label() == 1.0 || hash.is_multiple_of(4)
}

struct Downsample;

impl Stage for Downsample {
    type In = ExampleBatch;
    type Out = ExampleBatch;

    async fn on_batch(
        &mut self,
        batch: ExampleBatch,
        cx: &StageCx,
        out: &mut Outbox<ExampleBatch>,
    ) -> Result<(), Fault> {
        // Counts the rows that it leaves out: the ledger adds up, or the run fails.
        out.send(batch.retain_rows(cx, "downsampled", keep)).await
    }
}

fn main() -> anyhow::Result<()> {
    let rows = |first, rows| Synthetic { first, rows, ..Default::default() };
    let trained = Training::builder(Job::from_toml("model.kind = 'lr'", &[])?)
        .source(move || SyntheticSource::new(rows(0, 200_000), ReadOptions::default()))
        .after_parse("downsample", || Downsample)
        .training_only("downsample")
        .run()?;
    println!("{}", trained.report);
    let test = move || SyntheticSource::new(rows(200_000, 20_000), ReadOptions::default());
    println!("all rows of the test set: {}", trained.model.evaluate_source(test)?.0);
    Ok(())
}
