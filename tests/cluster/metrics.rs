//! The report of a run whose processes died has the running logloss and AUC of an undisturbed one, to the bit, where the model has
//! its bits.

use std::path::Path;

use serde_json::Value;

use super::jobs::job;
use super::processes::{Run, in_time};

const ROWS: u64 = 61_440;

/// What a report says of the progress of the first trainer, without the times and what was before the last attempt.
fn progress(report: &Path) -> Value {
    let mut report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let mut progress = report["progress"].take();
    let fields = progress.as_object_mut().unwrap();
    assert!(fields["logloss"].as_f64().unwrap() > 0.0 && fields["auc"].as_f64().unwrap() > 0.5, "{fields:?}");
    fields.retain(|name, _| !name.ends_with("seconds") && name != "rows_before");
    progress
}

/// Runs these processes. After two checkpoints each of `victims` is killed and started again.
fn run(names: &[&str], victims: &[&str], placement: &[&str]) -> Value {
    in_time(|_| {
        let folder = tempfile::tempdir().unwrap();
        let to = format!("checkpoint.to={}", folder.path().join("checkpoints").display());
        let rows = if victims.is_empty() { "checkpoint.rows=1000000000" } else { "checkpoint.rows=4000" };
        let settings = job(ROWS, &[&[to.as_str(), rows, "train.batch_rows=32"], placement].concat());
        let mut run = Run::local(&settings);
        let report = run.folder().join("report.json");
        let flags = ["--report", report.to_str().unwrap()];
        let mut running: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        for name in names {
            run.start_with(name, if *name == "trainer 0" { &flags } else { &[] });
        }
        for (time, victim) in victims.iter().enumerate() {
            let trainer = running.iter().find(|name| name.starts_with("trainer 0")).unwrap().clone();
            run.until_said_times(&trainer, "INFO checkpoint ", 2);
            let at = running.iter().position(|name| name.split('@').next() == Some(*victim)).unwrap();
            run.kill(&running[at].clone());
            running[at] = format!("{victim}@{time}");
            run.resume_with(&running[at].clone(), if *victim == "trainer 0" { &flags } else { &[] });
        }
        let names: Vec<&str> = running.iter().map(String::as_str).collect();
        run.end_well(&names);
        progress(&report)
    })
}

fn compare(names: &[&str], victims: &[&str], placement: &[&str]) {
    assert_eq!(run(names, victims, placement), run(names, &[], placement));
}

#[test]
fn of_one_trainer() {
    let names = ["ps 0", "ps 1", "trainer 0", "reader 0"];
    compare(&names, &["trainer 0", "ps 1"], &["placement.readers=1", "placement.ps=2"]);
    compare(&names, &["ps 1"], &["placement.readers=1", "placement.ps=2", "placement.dense=ps"]);
}

#[test]
fn of_an_exact_order() {
    let placement = ["placement.readers=1", "placement.ps=1", "train.staleness.exactly=2"];
    compare(&["ps 0", "trainer 0", "reader 0"], &["trainer 0"], &placement);
}

/// The report belongs to the first trainer.
#[test]
fn of_trainers_that_take_each_step_together() {
    let names = ["ps 0", "trainer 0", "trainer 1", "reader 0"];
    let placement = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true"];
    compare(&names, &["trainer 0", "trainer 1"], &placement);
    compare(&names, &["ps 0"], &[&placement[..], &["train.staleness.exactly=2"]].concat());
}
