//! `forebay launch` is told to drain, and a process dies before it has heard of it, or waits to be started again: it is started, and the
//! run ends as drained, with all that the newest checkpoint has.

use std::path::Path;

use rustix::process::{Signal, kill_process};

use super::jobs::{one_process, rows};
use super::launch::start;
use super::processes::{Ended, Ledger, Run};
use super::supervise::children;

const ROWS: u64 = 400_000;

/// A job with a checkpoint every 20,000 rows.
pub(crate) fn settings(folder: &Path, placement: &[&str]) -> Vec<String> {
    let mut settings = vec![
        format!("data.train={}", rows(ROWS).display()),
        format!("checkpoint.to={}", folder.join("checkpoints").display()),
        "checkpoint.rows=20000".to_owned(),
    ];
    let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
    settings.extend(small.iter().chain(placement).map(|setting| (*setting).to_owned()));
    settings
}

fn ends_as_drained(mut run: Run, victim: &str, settings: &[String]) {
    let Ended { code, log } = run.ended("launch");
    assert_eq!(code, Some(5), "{victim}: {log}");
    assert!(log.contains(&format!("{victim} was killed by signal 9 (SIGKILL): starts it again")), "{log}");
    assert!(log.contains("has all rows that are trained on: --resume goes on"), "{log}");
    let mut run = start(settings, &["--resume"]);
    let log = run.end_well(&["launch"]).remove(0);
    assert_eq!(Ledger::of(&log).rows, ROWS, "{log}");
    let calm: Vec<String> = settings.iter().filter(|setting| !setting.starts_with("checkpoint.")).cloned().collect();
    assert_eq!(run.model().difference(&one_process(&calm).0), None, "{victim}: {log}");
}

const TWO: [&str; 2] = ["placement.readers=1", "placement.ps=2"];

/// A process that is stopped does not hear the signal. It dies after it.
#[test]
fn a_process_that_dies_while_a_launch_drains_is_started_again_and_the_run_ends_as_drained() {
    for (victim, placement) in
        [("ps 1", &TWO[..]), ("ps 0", &TWO), ("trainer 0", &TWO), ("trainer 0", &["placement.readers=1"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), placement);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "INFO checkpoint ");
        let dies = children(&mut run).into_iter().find(|child| child.name == victim).unwrap();
        kill_process(dies.id, Signal::STOP).unwrap();
        run.signal("launch", Signal::TERM);
        run.until_said("launch", "stopping: ");
        dies.kill();
        ends_as_drained(run, victim, &settings);
    }
}

#[test]
fn a_launch_that_drains_while_a_process_waits_to_be_started_again_starts_it() {
    for victim in ["ps 1", "ps 0"] {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), &TWO);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "INFO checkpoint ");
        children(&mut run).into_iter().find(|child| child.name == victim).unwrap().kill();
        run.until_said("launch", "starts it again in 0.5 s");
        run.signal("launch", Signal::TERM);
        ends_as_drained(run, victim, &settings);
    }
}
