//! `forebay launch` is told to drain, and a process dies before it has heard of it, or waits to be started again: it is started, and the
//! run ends as drained, with all that the newest checkpoint has.

use std::path::Path;

use forebay::actors::commas;
use forebay::pipelines::RunReport;
use rustix::process::Signal;
use serde_json::Value;

use super::jobs::{one_process, rows};
use super::launch::start;
use super::processes::{Ended, Ledger, Run, in_time, over_too_soon};
use super::supervise::child;

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
    if code == Some(0) {
        over_too_soon(&log);
    }
    assert_eq!(code, Some(5), "{victim}: {log}");
    assert!(log.contains(&format!("{victim} was killed by signal 9 (SIGKILL): starts it again")), "{log}");
    assert!(log.contains("stopped; --resume continues from "), "{log}");
    let mut run = start(settings, &["--resume"]);
    let log = run.end_well(&["launch"]).remove(0);
    assert_eq!(Ledger::of(&log).rows, ROWS, "{log}");
    let calm: Vec<String> = settings.iter().filter(|setting| !setting.starts_with("checkpoint.")).cloned().collect();
    assert_eq!(run.model().difference(&one_process(&calm).0), None, "{victim}: {log}");
}

const TWO: [&str; 2] = ["placement.readers=1", "placement.ps=2"];

/// A stopped process does not receive the signal. It dies afterwards.
#[test]
fn a_process_that_dies_while_a_launch_drains_is_started_again_and_the_run_ends_as_drained() {
    in_time(|_| {
        for (victim, placement) in
            [("ps 1", &TWO[..]), ("ps 0", &TWO), ("trainer 0", &TWO), ("trainer 0", &["placement.readers=1"])]
        {
            let folder = tempfile::tempdir().unwrap();
            let settings = settings(folder.path(), placement);
            let mut run = start(&settings, &[]);
            run.until_said("launch", "INFO checkpoint ");
            let dies = child(&mut run, victim);
            dies.signal(Signal::STOP);
            run.signal("launch", Signal::TERM);
            run.until_said("launch", "stopping: ");
            dies.kill();
            ends_as_drained(run, victim, &settings);
        }
    });
}

#[test]
fn a_launch_that_drains_while_a_process_waits_to_be_started_again_starts_it() {
    in_time(|_| {
        for victim in ["ps 1", "ps 0"] {
            let folder = tempfile::tempdir().unwrap();
            let settings = settings(folder.path(), &TWO);
            let mut run = start(&settings, &[]);
            run.until_said("launch", "INFO checkpoint ");
            child(&mut run, victim).kill();
            run.until_said("launch", "starts it again in 0.5 s");
            run.signal("launch", Signal::TERM);
            ends_as_drained(run, victim, &settings);
        }
    });
}

/// A bug: `launch` waited for ten minutes. No process starts such a ps again.
#[test]
fn a_ps_that_is_asked_to_shut_down_before_it_has_joined_ends_a_launch_as_drained() {
    in_time(|_| {
        let folder = tempfile::tempdir().unwrap();
        let mut run = start(&settings(folder.path(), &TWO), &[]);
        // It joins when the coordinator goes on, so it is told before that.
        let coordinator = child(&mut run, "ps 0");
        coordinator.signal(Signal::STOP);
        run.until_said("launch", "ps 1 listens address=");
        let told = child(&mut run, "ps 1");
        told.signal(Signal::TERM);
        run.until("ps 1 has ended", |_| (!told.runs()).then_some(()));
        coordinator.signal(Signal::CONT);
        let Ended { code, log } = run.ended("launch");
        if !log.contains("ps 1 was asked to shut down before the run began") {
            over_too_soon(&log);
        }
        assert_eq!(code, Some(5), "{log}");
        assert!(log.contains("ps 1 has ended, and is not started again: the run ends"), "{log}");
    });
}

/// A bug: the checkpoint that the processes made when `launch` ended them hid the cause, and the exit code was 5.
#[test]
fn a_launch_that_gives_up_a_reader_names_it_although_a_checkpoint_has_the_rows() {
    in_time(|_| {
        let folder = tempfile::tempdir().unwrap();
        let placement = ["placement.readers=2", "placement.ps=1", "data.epochs=1000"];
        let mut run = start(&settings(folder.path(), &placement), &["--restarts", "0"]);
        run.until_said("launch", "INFO checkpoint ");
        child(&mut run, "reader 1").kill();
        let Ended { code, log } = run.ended("launch");
        assert_eq!(code, Some(3), "{log}");
        assert!(log.contains("error: reader 1 was killed by signal 9 (SIGKILL)"), "{log}");
    });
}

#[test]
fn a_launch_that_is_drained_has_one_report_of_all_processes_with_its_checkpoint() {
    in_time(|_| {
        let one = ["placement.readers=1", "placement.ps=1", "placement.trainers=2"];
        one_report_of_all(&TWO, &["ps 0", "ps 1", "reader 0", "trainer 0"]);
        one_report_of_all(&one, &["ps 0", "reader 0", "trainer 0", "trainer 1"]);
    });
}

/// Drains a launch that makes checkpoints. Its report covers all `processes`.
fn one_report_of_all(placement: &[&str], processes: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), &[placement, &["data.epochs=1000"]].concat());
    let report = folder.path().join("report");
    let mut run = start(&settings, &["--report", report.to_str().unwrap()]);
    run.until_said_times("launch", "INFO checkpoint ", 2);
    run.signal("launch", Signal::TERM);
    let Ended { code, log } = run.ended("launch");
    assert_eq!(code, Some(5), "{log}");
    let file = |name: &str| std::fs::read(report.join(name)).unwrap();
    let of_run: RunReport = serde_json::from_slice(&file("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&file("report.json")).unwrap();
    let drained_to = &report["drained_to"];
    let said = format!("stopped after {} rows", commas(drained_to["rows"].as_u64().unwrap()));
    assert!(log.contains(&said), "{said}: {log}");
    let newest = drained_to["checkpoint"].as_u64().unwrap();
    assert!(folder.path().join("checkpoints").join(format!("checkpoint-{newest:06}.json")).exists(), "{log}");
    assert_eq!(drained_to["rows_of_this_part"], drained_to["rows"], "{log}");
    assert_eq!((&report["training"]["ended"], &report["verdict"]["state"]), (&"drained".into(), &"drained".into()));
    let mut names: Vec<&str> = of_run.processes.iter().map(|process| process.process.as_str()).collect();
    names.sort_unstable();
    // The report waits two seconds for the tables, and not for meters: a process that stood still is not in it.
    let (true, Some(rows)) = (names == processes, report["tables"][0]["rows"].as_u64()) else {
        over_too_soon(&format!("{names:?}, {}: {log}", report["tables"]))
    };
    assert!(rows > 100, "{}", report["tables"]);
    let stages: Vec<&str> = of_run.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(stages, ["read", "parse", "batch", "ship", "receive", "lookup", "train", "push"], "{of_run}");
    assert!(file("report.html").len() > 1000 && file("trace.json").len() > 1000);
}
