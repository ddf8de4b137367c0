//! A program of your own: `forebay` with a filter, a source and a model that job files can name.
//!
//! On the default job, without a job file: `cargo run --release --example own_program -- train --set data.source=clicks --set 'pipeline.after_read=["drop_large_i3"]'
//! --set model.kind=own --set model.name=tiny`; so do `launch`, `role` and `eval`.

use std::process::ExitCode;

use arrow::array::Int32Array;
use arrow::compute::kernels::cmp::gt;
use forebay::Registry;
use forebay::connectors::{Synthetic, SyntheticSource};
use forebay::models::{ModelSpec, NativeModel};
use forebay::pipelines::OwnModel;

fn main() -> ExitCode {
    let registry = Registry::default()
        .drop_rows("drop_large_i3", |rows| gt(&rows["I3"], &Int32Array::new_scalar(50)))
        .source("clicks", |request| {
            SyntheticSource::new(Synthetic { rows: 20_000, ..Default::default() }, request.options)
        })
        .own_model("tiny", |job| {
            let spec = ModelSpec::ctr_dnn(job.columns.slot_count(), job.columns.dense_inputs(), 4, &[16]);
            let (optimizer, seed) = (job.train.optimizer, job.seed);
            OwnModel::new(spec.parts(), move || NativeModel::new(spec.clone(), optimizer, seed, 1))
        });
    forebay::cli::main(registry)
}
