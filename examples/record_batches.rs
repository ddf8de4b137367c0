//! A pipeline inside another program, fed with record batches that the program already holds: here a stream that is
//! made on the fly; in a data platform a query's result.
//!
//! `cargo run --release --example record_batches`

use std::sync::Arc;

use arrow::array::{Float32Array, Int32Array, StringArray};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use forebay::connectors::StreamSource;
use forebay::{Job, Training};
use futures::stream;

/// 1,000 visits: who, where, how long. Visitors of even age who look at `/buy` click.
fn visits(hour: i32) -> Result<RecordBatch, ArrowError> {
    let rows = 0..1000;
    let age = |i: i32| 18 + (i * 7 + hour * 13) % 50;
    let page = |i: i32| ["/", "/news", "/buy"][((i + hour) % 3) as usize];
    let clicked = |i: i32| i32::from(age(i) % 2 == 0 && page(i) == "/buy");
    RecordBatch::try_from_iter([
        ("clicked", Arc::new(Int32Array::from_iter_values(rows.clone().map(clicked))) as _),
        ("seconds", Arc::new(Float32Array::from_iter_values(rows.clone().map(|i| (i % 60) as f32 / 60.0))) as _),
        ("page", Arc::new(StringArray::from_iter_values(rows.clone().map(page))) as _),
        ("age", Arc::new(Int32Array::from_iter_values(rows.map(age))) as _),
    ])
}

fn main() -> anyhow::Result<()> {
    let job = Job::from_toml(
        r#"
        columns = { label = "clicked", dense = ["seconds"], slots = ["page", "age"] }
        model = { kind = "fm", embedding_dim = 8 }
        train = { batch_rows = 256 }
        data = { shuffle_rows = 4096 }
        "#,
        &[],
    )?;
    let trained =
        Training::builder(job).source(|| StreamSource::new("visits", stream::iter((0..200).map(visits)))).run()?;
    println!("{}", trained.report);

    let (evaluation, _) =
        trained.model.evaluate_source(|| StreamSource::new("visits", stream::iter((200..220).map(visits))))?;
    println!("hours that were not trained on: {evaluation}");
    Ok(())
}
