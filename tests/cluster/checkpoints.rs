//! Checkpoints of several processes: whichever process dies, the run goes on from the last one and ends with the model of an
//! undisturbed run.

use super::jobs::{one_process, rows};
use super::processes::{Ledger, Run};

const ROWS: u64 = 400_000;

/// The default job, but for its size, with a checkpoint every 20,000 rows.
fn settings(run: &str, placement: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::Builder::new().prefix(run).tempdir().unwrap();
    let mut settings = vec![
        format!("data.train={}", rows(ROWS).display()),
        format!("checkpoint.to={}", folder.path().join("checkpoints").display()),
        "checkpoint.rows=20000".to_owned(),
    ];
    let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
    settings.extend(small.iter().chain(placement).map(|setting| (*setting).to_owned()));
    (folder, settings)
}

/// Kills each of `victims` after another checkpoint, and starts it again.
fn killed(names: &[&str], victims: &[&str], placement: &[&str]) {
    let (_folder, settings) = settings("victims", placement);
    let mut run = Run::local(&settings);
    let mut running: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    run.start(names);
    for (time, victim) in victims.iter().enumerate() {
        let at = running.iter().position(|name| name.split('@').next() == Some(*victim)).unwrap();
        let trainer = running.iter().find(|name| name.starts_with("trainer 0")).unwrap().clone();
        run.until_said_times(&trainer, "INFO checkpoint ", 1 + time);
        run.kill(&running[at].clone());
        running[at] = format!("{victim}@{time}");
        run.resume(&running[at].clone());
    }
    let names: Vec<&str> = running.iter().map(String::as_str).collect();
    let logs = run.end_well(&names);
    let trainer = &logs[names.iter().position(|name| name.starts_with("trainer 0")).unwrap()];
    let ledger = Ledger::of(trainer);
    assert_eq!((ledger.rows, ledger.rejected), (ROWS, 0), "{trainer}");
    let alone: Vec<String> = settings.iter().filter(|setting| !setting.starts_with("checkpoint.")).cloned().collect();
    assert_eq!(run.model().difference(&one_process(&alone).0), None, "{trainer}");
}

const NAMES: [&str; 4] = ["ps 0", "ps 1", "trainer 0", "reader 0"];
const PLACEMENT: [&str; 2] = ["placement.readers=1", "placement.ps=2"];

#[test]
fn a_ps_dies() {
    killed(&NAMES, &["ps 1"], &PLACEMENT);
}

#[test]
fn a_ps_dies_whose_rows_come_and_go() {
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=40000", "table.eviction.max_rows=65536"];
    killed(&NAMES, &["ps 1"], &[&PLACEMENT[..], &rules].concat());
}

#[test]
fn the_coordinator_dies() {
    killed(&NAMES, &["ps 0"], &PLACEMENT);
}

#[test]
fn the_trainer_dies() {
    killed(&NAMES, &["trainer 0"], &PLACEMENT);
}

#[test]
fn all_die_one_after_the_other() {
    killed(&NAMES, &["reader 0", "trainer 0", "ps 0", "ps 1"], &PLACEMENT);
}

#[test]
fn a_trainer_that_holds_everything_dies() {
    killed(&["trainer 0", "reader 0"], &["trainer 0"], &["placement.readers=1"]);
}

#[test]
fn the_dense_parameters_are_in_the_ps() {
    let placement = [&PLACEMENT[..], &["placement.dense=ps"]].concat();
    killed(&NAMES, &["ps 1", "trainer 0"], &placement);
}

#[test]
fn a_trainer_that_reads_by_itself_dies() {
    killed(&["ps 0", "trainer 0"], &["trainer 0", "ps 0"], &["placement.ps=1"]);
}

#[test]
fn readers_look_up_the_rows() {
    let placement = [&PLACEMENT[..], &["placement.lookup_at=reader"]].concat();
    killed(&NAMES, &["reader 0", "ps 1", "trainer 0"], &placement);
}
