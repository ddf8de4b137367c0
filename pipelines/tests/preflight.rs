//! The checks of a run before its first row.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use arrow::error::ArrowError;
use forebay_connectors::StreamSource;
use forebay_connectors::staged::fail_points::{PointFailure, arm};
use forebay_pipelines::{Job, Trained, Training};

/// Trains on 1000 rows, with a checkpoint every 300.
fn train(checkpoints: &Path, resume: bool, more: &[&str]) -> Trained {
    let text = format!(
        "columns = {{ label = 'label', dense = [], slots = ['c'] }}\nmodel.kind = 'lr'\ntrain.batch_rows = 50\n\
         data.shuffle_rows = 0\ncheckpoint = {{ to = {:?}, rows = 300 }}",
        checkpoints.display().to_string()
    );
    let rows = || {
        let column = |of: fn(i32) -> i32| Arc::new(Int32Array::from_iter_values((0..1000).map(of))) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("label", column(|row| row % 2)), ("c", column(|row| row % 7))]);
        StreamSource::new("rows", futures::stream::iter([Ok::<_, ArrowError>(batch.unwrap())]))
    };
    let job = Job::with_settings(&text, more).unwrap();
    Training::builder(job).source(rows).resume(resume).run().unwrap()
}

/// A bug: a run that continued from a checkpoint or a model wrote its probes before it loaded this, and again before its first row.
#[test]
fn a_run_probes_its_outputs_once() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoints, others, model) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("model"));
    let probes = |checkpoints: &Path, resume, more: &[&str]| {
        // A number of a point that no run reaches.
        let armed = arm(checkpoints, usize::MAX, PointFailure::Error);
        let trained = train(checkpoints, resume, more);
        let points = armed.passed();
        let made = points.iter().filter(|point| point.starts_with("before create") && point.contains("probe")).count();
        (made, trained)
    };
    let (made, trained) = probes(&checkpoints, false, &[]);
    assert_eq!(made, 1, "a new run");
    trained.model.save(model.to_str().unwrap()).unwrap();
    assert_eq!(probes(&checkpoints, true, &[]).0, 1, "from a checkpoint");
    let from = format!("train.from={}", model.display());
    assert_eq!(probes(&others, false, &[&from]).0, 1, "from a model");
}
