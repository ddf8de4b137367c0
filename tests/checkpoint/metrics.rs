//! The report of a resumed run has the running logloss and AUC of an undisturbed one, to the bit.

use std::path::Path;

use serde_json::Value;

use super::common;
use super::jobs::Job;

/// What a report says of the progress, without the times and what was before the last resume.
pub(crate) fn progress(report: &Path) -> Value {
    let mut report: Value = common::read_json(report);
    let mut progress = report["progress"].take();
    let fields = progress.as_object_mut().unwrap();
    assert!(fields["logloss"].as_f64().unwrap() > 0.0 && fields["auc"].as_f64().unwrap() > 0.5, "{fields:?}");
    fields.retain(|name, _| !name.ends_with("seconds") && name != "rows_before");
    progress
}

/// Runs the job to its end. Returns what its report says.
fn report(job: &Job, flags: &[&str]) -> Value {
    let report = job.folder.path().join("report.json");
    job.run(&[flags, &["--report", report.to_str().unwrap()]].concat()).with(0);
    progress(&report)
}

fn undisturbed(job: &Job) -> Value {
    report(&job.undisturbed(), &[])
}

fn kill_and_resume(format: &str, more: &[&str]) {
    let job = Job::new(format, more);
    job.kill_after(1, &[]);
    job.kill_after(job.newest() + 2, &["--resume"]);
    assert_eq!(report(&job, &["--resume"]), undisturbed(&job));
}

#[test]
fn of_one_label() {
    kill_and_resume("parquet", &[]);
}

#[test]
fn of_exact_staleness_and_text() {
    kill_and_resume("criteo", &["train.staleness={ exactly = 3 }"]);
}

/// The metrics are of the first label; not all rows have it.
#[test]
fn of_several_labels() {
    let label = "columns.label=['label', { column = 'I2', positive = '>= 3', name = 'many' }]";
    kill_and_resume("parquet", &["model.kind=mmoe", "model.task_hidden=[8]", label]);
}

#[test]
fn of_a_run_that_was_drained_and_goes_on_elsewhere_from_a_compacted_checkpoint() {
    let job = Job::new("parquet", &[]);
    job.drain_after(2, &[], &[]);
    let best = job.folder.path().join("best").display().to_string();
    common::exits(0, job.checkpoint("compact", &["--to", &best]), &[]);
    std::fs::remove_dir_all(job.checkpoints()).unwrap();
    let resumed = report(&job, &["--resume-from", &best]);
    assert_eq!(resumed, undisturbed(&job));
}

/// Checkpoints of earlier programs have no metrics: the metrics of the run start again, and nothing else does.
#[test]
fn a_checkpoint_without_them_is_gone_on_from() {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    let manifest = job.newest_manifest();
    let mut json: Value = common::read_json(&manifest);
    let fields = json.as_object_mut().unwrap();
    // With the checksum of the text.
    assert!(fields.remove("metrics").is_some() && fields.remove("checksum").is_some());
    std::fs::write(&manifest, serde_json::to_vec(&json).unwrap()).unwrap();
    let (resumed, undisturbed) = (report(&job, &["--resume"]), undisturbed(&job));
    assert_eq!((&resumed["rows"], &resumed["steps"]), (&undisturbed["rows"], &undisturbed["steps"]));
    assert_ne!(resumed["auc"], undisturbed["auc"]);
}
