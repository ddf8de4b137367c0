//! The report of a run that is drained to a checkpoint.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::common;
use super::jobs::{ENDLESS, Ended, Job};

/// Starts the job, and tells it to end when it has `more` checkpoints. `meanwhile` is called before that.
fn drained(job: &Job, flags: &[&str], more: u64, meanwhile: impl FnOnce()) -> Ended {
    let mut running = job.start(flags);
    job.until_checkpoint(job.newest() + more, &mut running);
    meanwhile();
    running.signal(Signal::TERM);
    running.end()
}

fn read(file: &Path) -> Value {
    common::read_json(file)
}

/// Drains a run with a report. Returns the report, and the rows that the newest checkpoint has.
fn report(job: &Job, flags: &[&str]) -> (Value, u64) {
    let folder = job.folder.path().join("report");
    drained(job, &[flags, &["--report", folder.to_str().unwrap()]].concat(), 2, || {}).with(5);
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("\"drained_to\""), "the page has the report");
    let slices = read(&folder.join("trace.json"))["traceEvents"].as_array().unwrap().len();
    assert!(slices > 10, "{slices} slices");
    let manifest = read(&job.newest_manifest());
    (read(&folder.join("report.json")), manifest["position"]["rows"].as_u64().unwrap())
}

fn check(job: &Job, report: &Value, rows: u64, rows_before: u64) {
    let drained_to = json!({
        "checkpoint": job.newest(),
        "folder": job.checkpoints().to_str().unwrap(),
        "rows": rows,
        "rows_of_this_part": rows - rows_before,
    });
    assert_eq!(report["drained_to"], drained_to);
    assert_eq!((&report["training"]["ended"], &report["training"]["rows"]), (&json!("drained"), &json!(rows)));
    assert_eq!(report["verdict"]["state"], "drained");
    let before = json!(rows_before);
    assert_eq!((&report["progress"]["rows_before"], &report["trained_before"]["rows"]), (&before, &before));
    // Training goes on while the last checkpoint is written.
    assert!(report["progress"]["rows"].as_u64().unwrap() >= rows, "{}", report["progress"]);
    assert!(report["ledger"]["delivered"].as_u64().unwrap() >= rows - rows_before, "{}", report["ledger"]);
    let stages: Vec<&str> =
        report["stages"].as_array().unwrap().iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["read", "parse", "batch", "lookup", "train", "push"]);
    assert!(report["tables"][0]["rows"].as_u64().unwrap() > 100, "{}", report["tables"]);
    assert_eq!(report["slots"].as_array().unwrap().len(), 26);
    assert!(report["evaluation"].is_null() && report["saved"].is_null());
}

#[test]
fn has_the_checkpoint_and_the_rows_of_its_part_of_the_run() {
    let job = Job::new("parquet", &[ENDLESS]);
    let (first, rows) = report(&job, &[]);
    check(&job, &first, rows, 0);
    let (second, more) = report(&job, &["--resume"]);
    assert!(more > rows, "{more} after {rows}");
    check(&job, &second, more, rows);
}

/// A folder is in the place of the report.
#[test]
fn that_cannot_be_written_does_not_change_how_the_run_ends() {
    let job = Job::new("parquet", &[ENDLESS]);
    let file = job.folder.path().join("report.json");
    let flags = ["--report", file.to_str().unwrap()];
    let ended = drained(&job, &flags, 1, || std::fs::create_dir_all(file.join("in the way")).unwrap()).with(5);
    ended.saying(&["no whole report: cannot write the report to", "has them: --resume goes on"]);
}
