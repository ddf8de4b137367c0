//! Sources, conversion and inspection from the outside.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod arrow_ipc;
mod conformance;
mod convert;
mod criteo;
mod csv;
mod formats;
mod json_lines;
mod leases;
mod parquet;
mod partition;
mod stores;
mod text;
mod writing;

use std::path::Path;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Source, StageCx};
use forebay_connectors::Rows;

/// A context of its own for one source.
fn cx() -> StageCx {
    StageCx::detached("test")
}

/// All batches, with the numbering checked.
async fn read<S: Source<Out = Rows>>(source: &mut S, cx: &StageCx) -> Result<Vec<Rows>, Fault> {
    source.open(cx).await?;
    let mut all = Vec::new();
    while let Some(rows) = source.next(cx).await? {
        assert_eq!(rows.lineage.seq, all.len() as u64);
        assert!(rows.batch.num_rows() > 0);
        all.push(rows);
    }
    Ok(all)
}

/// The rows of several batches as one.
fn joined(all: &[Rows]) -> RecordBatch {
    let schema = all[0].batch.schema();
    concat_batches(&schema, all.iter().map(|rows| &rows.batch)).unwrap()
}

/// All rows of a source as one batch.
async fn all(mut source: impl Source<Out = Rows>) -> RecordBatch {
    joined(&read(&mut source, &cx()).await.unwrap())
}

/// What the fault of a source says that must not be read.
async fn why_refused(mut source: impl Source<Out = Rows>) -> String {
    read(&mut source, &cx()).await.expect_err("it must not be read").to_string()
}

/// Epoch, split, first row and rows of each batch, and their values.
fn shape(all: &[Rows]) -> Vec<(u32, u32, u64, RecordBatch)> {
    all.iter().map(|r| (r.lineage.epoch, r.lineage.split, r.lineage.row, r.batch.clone())).collect()
}

/// Every file in a folder with its bytes.
fn bytes_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}
