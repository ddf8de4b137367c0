//! A job over folders `day=.../hour=...`: which are trained on, which are evaluated on, a folder as a feature.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{File, create_dir_all};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray};
use arrow::record_batch::RecordBatch;
use forebay_pipelines::{Job, Training};
use parquet::arrow::ArrowWriter;

/// `rows` rows whose label is 1 from noon on: only the folder tells.
fn write(root: &Path, day: u32, hour: u32, rows: usize) {
    let folder = root.join(format!("day=2026-11-{day}/hour={hour:02}"));
    create_dir_all(&folder).unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("label", Arc::new(Int32Array::from(vec![i32::from(hour >= 12); rows]))),
        ("word", Arc::new(StringArray::from(vec!["same"; rows]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(folder.join("part-0.parquet")).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn job(root: &Path, more: &[&str]) -> Job {
    let text = format!(
        r#"
        [data]
        train = "{root}"
        where = "day < '2026-11-20' and hour != 23"
        eval = "{root}"
        eval_where = "day = '2026-11-20'"
        [columns]
        label = "label"
        dense = []
        slots = ["word", "hour"]
        [model]
        kind = "lr"
        [train]
        batch_rows = 50
        "#,
        root = root.display()
    );
    Job::with_settings(&text, more).unwrap()
}

#[test]
fn a_job_trains_on_some_folders_evaluates_on_others_and_learns_from_their_names() {
    let dir = tempfile::tempdir().unwrap();
    for day in 18..21 {
        for hour in [3, 15] {
            write(dir.path(), day, hour, 400);
        }
    }
    write(dir.path(), 18, 23, 10);
    let trained = Training::new(job(dir.path(), &["data.epochs=5"])).unwrap().run().unwrap();
    assert_eq!(trained.progress.rows, 5 * 4 * 400);
    let (evaluation, _) = trained.model.evaluate(dir.path().to_str().unwrap()).unwrap();
    assert_eq!((evaluation.rows, evaluation.auc), (800, Some(1.0)));
    // Without a predicate for it, everything is evaluated on.
    let mut model = trained.model;
    model.job = job(dir.path(), &["data.eval_where="]);
    assert_eq!(model.evaluate(dir.path().to_str().unwrap()).unwrap().0.rows, 2410);
}

#[test]
fn a_predicate_that_selects_nothing_or_does_not_fit_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 18, 3, 1);
    for (filter, says) in [("day = '2027'", "`day` has \"2026-11-18\""), ("dya = '2027'", "did you mean `day`?")] {
        let job = job(dir.path(), &[&format!("data.where={filter}")]);
        let said = Training::new(job).err().unwrap().to_string();
        assert!(said.contains(says), "{said}");
    }
}
