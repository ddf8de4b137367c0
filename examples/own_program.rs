//! A program of your own: `forebay` with a filter, two stages, a source and a model that job files can name, in one process and in a
//! cluster.
//!
//! On the default job, without a job file:
//!
//! ```sh
//! cargo run --release --example own_program -- train --set data.source=clicks --set model.kind=own --set model.name=tiny \
//!     --set 'pipeline.after_read=["drop_large_i3"]'
//! ```
//!
//! `launch`, `role` and `eval` take the same settings. `pipeline.after_parse` and `pipeline.after_batch` take the names of the stages.

use std::process::ExitCode;

use arrow::array::Float64Array;
use arrow::compute::{cast, kernels::cmp::gt};
use arrow::datatypes::DataType;
use forebay::actors::{Outbox, Stage, StageCx};
use forebay::connectors::{Synthetic, SyntheticSource};
use forebay::models::{ModelSpec, NativeModel};
use forebay::pipelines::OwnModel;
use forebay::pipelines::flow::{ExampleBatch, TrainBatch};
use forebay::{Fault, Registry};

/// Keeps every click and, by their first key, one in four of the other rows. A decision by the row alone is the same in every process.
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
        let keep = |row: forebay::pipelines::flow::ExampleRow<'_>| {
            row.label() == 1.0 || row.keys(0).first().is_none_or(|key| key.is_multiple_of(4))
        };
        out.send(batch.retain_rows(cx, "downsampled", keep)).await
    }
}

/// Bounds the dense features of batches of their final size. It changes neither rows nor batches, only values.
struct Bound;

impl Stage for Bound {
    type In = TrainBatch;
    type Out = TrainBatch;

    async fn on_batch(
        &mut self,
        mut batch: TrainBatch,
        _cx: &StageCx,
        out: &mut Outbox<TrainBatch>,
    ) -> Result<(), Fault> {
        batch.dense.iter_mut().for_each(|value| *value = value.min(1.0));
        out.send(batch).await
    }
}

/// The allocator of `forebay`: it keeps the memory of batches. The system's allocator returns it to the kernel and fetches it again.
#[global_allocator]
static ALLOCATOR: forebay::cli::MiMalloc = forebay::cli::MiMalloc;

fn main() -> ExitCode {
    let registry = Registry::default()
        // The cast takes all types of numbers. A row without `I3` stays; one with NaN, which `gt` orders above every number, is dropped.
        .drop_rows("drop_large_i3", |rows| gt(&cast(&rows["I3"], &DataType::Float64)?, &Float64Array::new_scalar(50.0)))
        .after_parse("downsample", |_job| Downsample)
        .after_batch("bound", |_job| Bound)
        .leased_source("clicks", |request| {
            let source = SyntheticSource::new(Synthetic { rows: 20_000, ..Default::default() }, request.options);
            match request.leases {
                Some(leases) => source.leasing(leases), // in a cluster, each reader reads the windows of its leases
                None => source,
            }
        })
        .own_model("tiny", |job| {
            let spec = ModelSpec::ctr_dnn(job.columns.slot_count(), job.columns.dense_inputs(), 4, &[16]);
            let (optimizer, seed) = (job.dense_optimizer(), job.seed);
            OwnModel::new(spec.parts(), move || NativeModel::new(spec.clone(), optimizer, seed, 1))
        });
    forebay::cli::main(registry)
}
