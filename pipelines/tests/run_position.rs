//! How far a run is: the share of its rows, for each kind of file, also if rows are left out.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

use std::fmt::Write as _;
use std::fs::{File, write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use forebay_pipelines::{Job, RunPosition, Training};
use parquet::arrow::ArrowWriter;

const ROWS_OF_FILE: i32 = 500;

/// Two files of `write`, which is given the labels 0, 1, 0, ... and as many numbers of one digit.
fn folder(write: impl Fn(&Path, &[(i32, i32)])) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<(i32, i32)> = (0..ROWS_OF_FILE).map(|row| (row % 2, row % 7)).collect();
    (0..2).for_each(|file| write(&dir.path().join(file.to_string()), &rows));
    dir
}

fn parquet(at: &Path, rows: &[(i32, i32)]) {
    let column = |of: fn(&(i32, i32)) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("label", column(|row| row.0)), ("c", column(|row| row.1))]).unwrap();
    let file = File::create(at.with_extension("parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn json(at: &Path, rows: &[(i32, i32)]) {
    let lines = rows.iter().fold(String::new(), |mut text, (label, c)| {
        writeln!(text, r#"{{"label":{label},"c":{c}}}"#).unwrap();
        text
    });
    write(at.with_extension("jsonl"), lines).unwrap();
}

/// Where a run of two epochs is after its last row.
fn at_the_end(rows: &Path, more: &[&str]) -> RunPosition {
    let text = format!(
        "data = {{ train = {:?}, epochs = 2, shuffle_rows = 0 }}\ncolumns = {{ label = 'label', dense = [], slots = ['c'] }}\n\
         model.kind = 'lr'\ntrain.batch_rows = 50",
        rows.display().to_string()
    );
    let job = Job::with_settings(&text, more).unwrap();
    let running = Training::new(job).unwrap().start().unwrap();
    let begun = Instant::now();
    while !running.ended() {
        assert!(begun.elapsed() < Duration::from_secs(120), "the run has not ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    let position = running.position();
    assert!(running.wait().is_ok());
    position
}

#[test]
fn at_the_end_of_a_run_all_of_its_rows_are_done() {
    let whole = RunPosition { share: Some(1.0), epoch: 2, epochs: 2 };
    for rows in [folder(parquet), folder(json)] {
        assert_eq!(at_the_end(rows.path(), &[]), whole);
        assert_eq!(at_the_end(rows.path(), &["data.negatives=0.2"]), whole, "rows that are left out are done, too");
    }
}
