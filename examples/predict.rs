//! Predictions inside another program: rows from anywhere, scores as record batches, while the rows are read.
//!
//! `cargo run --release --example predict`

use std::sync::Arc;

use arrow::array::{AsArray, Int32Array, Int64Array, StringArray};
use arrow::datatypes::{Float32Type, Int64Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use forebay::connectors::StreamSource;
use forebay::{Job, Training};
use futures::stream;

/// 1,000 visits, which have a label if they are to be trained on. Visitors from `/news` who are older than 40 click.
fn visits(hour: i32, labelled: bool) -> Result<RecordBatch, ArrowError> {
    let rows = 0..1000;
    let age = |i: i32| 18 + (i * 7 + hour * 13) % 50;
    let page = |i: i32| ["/", "/news", "/buy"][((i + hour) % 3) as usize];
    let ids = rows.clone().map(|i| i64::from(hour * 1000 + i));
    let mut columns = vec![
        ("visit", Arc::new(Int64Array::from_iter_values(ids)) as _),
        ("page", Arc::new(StringArray::from_iter_values(rows.clone().map(page))) as _),
        ("age", Arc::new(Int32Array::from_iter_values(rows.clone().map(age))) as _),
    ];
    if labelled {
        let clicked = |i: i32| i32::from(page(i) == "/news" && age(i) > 40);
        columns.push(("clicked", Arc::new(Int32Array::from_iter_values(rows.map(clicked))) as _));
    }
    RecordBatch::try_from_iter(columns)
}

fn main() -> anyhow::Result<()> {
    let job = Job::from_toml(
        r#"
        columns = { label = "clicked", dense = [], slots = ["page", "age"] }
        model = { kind = "fm", embedding_dim = 8 }
        train = { batch_rows = 256 }
        "#,
        &[],
    )?;
    let rows = |hours: std::ops::Range<i32>, labelled| stream::iter(hours.map(move |hour| visits(hour, labelled)));
    let model = Training::builder(job).source(move || StreamSource::new("visits", rows(0..300, true))).run()?.model;

    // A saved model does the same: `Model::load("model", 1)?`, and `model.predict("rows/today", &["visit"])?` reads files.
    let mut best = (0.0, 0);
    for batch in model.predict_source(move || StreamSource::new("visits", rows(300..305, false)), &["visit"])? {
        let batch = batch?;
        let visits = batch["visit"].as_primitive::<Int64Type>().values();
        let scores = batch["score"].as_primitive::<Float32Type>().values();
        best = scores.iter().copied().zip(visits.iter().copied()).fold(best, |a, b| if b.0 > a.0 { b } else { a });
    }
    println!("the best of 5,000 visits: {} with a score of {:.3}", best.1, best.0);
    anyhow::ensure!(best.0 > 0.5, "the model learned nothing");
    Ok(())
}
