//! `forebay launch`: all processes of a job as children of one, with one log and one Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay::actors::IoRuntime;
use forebay::net::{Dialer, Identity, Limits, Peer, Security, SecurityFiles};
use forebay::pipelines::cluster::RunStatus;
use forebay::pipelines::model_folder::Manifest;
use forebay::pipelines::{RunEnd, RunReport};
use futures::executor::block_on;
use rustix::process::Signal;

use super::bits::Bits;
use super::jobs::{job, one_process};
use super::processes::{AFTER_THE_END, Ended, Ledger, Run, in_time, over_too_soon};

const ROWS: u64 = 12_000;

/// Starts `forebay launch` as the only process of a run.
fn launch(settings: &[String]) -> Run {
    start(settings, &[])
}

/// The same with more arguments.
pub(crate) fn start(settings: &[String], more: &[&str]) -> Run {
    let mut run = Run::local(settings);
    start_in(&mut run, more);
    run
}

/// Starts `forebay launch` as the only process of this run.
pub(crate) fn start_in(run: &mut Run, more: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("launch").args(more).env("TMPDIR", run.folder());
    run.start_command("launch", command);
}

#[test]
fn one_command_gives_the_model_of_one_process_and_one_log() {
    in_time(|_| {
        let settings = job(ROWS, &["placement.readers=2", "placement.ps=2"]);
        let mut run = launch(&settings);
        let log = run.end_well(&["launch"]).remove(0);
        for name in ["reader 0", "reader 1", "ps 0", "ps 1", "trainer 0"] {
            if !log.lines().any(|line| line.starts_with(&format!("{name:<10} | "))) {
                over_too_soon(&format!("{name} says nothing: {log}"));
            }
        }
        assert_eq!(Ledger::of(&log).rows, ROWS, "{log}");
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
        assert_eq!(left(run.folder()), ["launch.log", "model"]);
        // The trainer parses no row: readers do.
        let training = Manifest::read(run.folder().join("model").to_str().unwrap()).unwrap().training.unwrap();
        assert_eq!(training.types["I1"].to_string(), "integers");
        assert_eq!(training.types.len(), 39);
    });
}

#[test]
fn a_cluster_does_not_continue_from_a_model_of_rows_of_other_types() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), job(ROWS, &["placement.readers=1", "placement.ps=1"]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["train", "--set"]).arg(format!("output.model={}", first.display()));
    let output = command.args(job(ROWS, &[]).iter().flat_map(|setting| ["--set", setting])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let manifest = first.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    // A manifest that was changed on purpose has no checksum.
    let text = format!("{}\n}}", text.split_once(",\n  \"checksum\"").unwrap().0);
    std::fs::write(&manifest, text.replace("\"I3\": \"integer\"", "\"I3\": \"number\"")).unwrap();
    let mut run = start(&second, &["--set", &format!("train.from={}", first.display())]);
    run.end_with("launch", 2, "column `I3` has integers in these rows, and the model was trained on numbers");
}

#[test]
fn a_cluster_has_one_report_with_the_meters_of_all_processes_and_no_reader_has_a_verdict() {
    in_time(|_| {
        // The run starts with one reader. Eight epochs take long enough for the other reader to join and read.
        let rows = ["placement.readers=2", "placement.ps=2", "placement.lease_rows=1024", "data.epochs=8"];
        let settings = job(ROWS, &rows);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut run = start(&settings, &["--report", file.path().to_str().unwrap()]);
        let log = run.end_well(&["launch"]).remove(0);
        let report: RunReport = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        let names: Vec<&str> = report.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["read", "parse", "batch", "ship", "receive", "lookup", "train", "push"], "{report}");
        let mut processes: Vec<&str> = report.processes.iter().map(|process| process.process.as_str()).collect();
        processes.sort_unstable();
        if processes == ["ps 0", "ps 1", "reader 0", "trainer 0"] || report.stages[0].replicas == 1 {
            over_too_soon(&format!("the other reader has not read: {log}"));
        }
        assert_eq!(processes, ["ps 0", "ps 1", "reader 0", "reader 1", "trainer 0"]);
        let shards: Vec<&str> = report.services.iter().map(|shard| shard.name.as_str()).collect();
        assert_eq!(
            shards,
            ["ps0.0-embedding", "ps0.1-embedding", "ps1.0-embedding", "ps1.1-embedding"],
            "two of each ps: {report}"
        );
        assert_eq!((report.stages[0].replicas, report.stages[0].rows_out), (2, 8 * ROWS), "{report}");
        // All shares are over the run's wall time.
        for stage in &report.stages {
            let times = stage.busy + stage.waiting + stage.starved + stage.blocked + stage.idle;
            assert_eq!(times, stage.wall, "{stage:?}");
        }
        let verdict = report.analysis.to_string();
        let said: Vec<&str> = log.lines().filter(|line| line.contains(&verdict)).collect();
        assert!(said.len() == 1 && said[0].starts_with("trainer 0"), "{verdict}: {log}");
    });
}

#[test]
fn everything_that_a_launch_prints_is_json_if_it_is_asked_to() {
    let settings = job(ROWS, &["placement.readers=1", "placement.ps=1"]);
    let mut run = start(&settings, &["--log-format", "json"]);
    let log = run.end_well(&["launch"]).remove(0);
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    let result = lines.iter().find(|line| line["trained"].is_object()).unwrap_or_else(|| panic!("no result: {log}"));
    assert_eq!((&result["process"], &result["trained"]["training"]["rows"]), (&"trainer 0".into(), &ROWS.into()));
    assert!(lines.iter().any(|line| line["process"] == "reader 0" && line["read"].is_object()), "{log}");
}

/// A bug: the coordinator waited ten seconds for processes that had looked for themselves, and was asked to shut down.
#[test]
fn a_launch_that_resumes_a_run_which_has_ended_starts_no_process() {
    let checkpoints = tempfile::tempdir().unwrap();
    let to = format!("checkpoint.to={}", checkpoints.path().join("checkpoints").display());
    let mut run = launch(&job(ROWS, &["placement.readers=1", "placement.ps=2", &to]));
    run.end_well(&["launch"]);
    let model = run.model();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["launch", "--resume"]);
    run.start_command("launch@again", command);
    run.end_with("launch@again", 0, AFTER_THE_END);
    let log = run.ended("launch@again").log;
    assert!(!log.contains("stopping") && !log.contains("listens"), "{log}");
    assert_eq!(run.model().difference(&model), None);
}

/// The names of what is in a folder.
pub(crate) fn left(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The file with the token of a launch, as docs/cluster.md says: a file in its memory.
fn token_of(launch: u32) -> PathBuf {
    let files = std::fs::read_dir(format!("/proc/{launch}/fd")).unwrap().map(|file| file.unwrap().path());
    let is_token = |file: &PathBuf| {
        std::fs::read_link(file).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:forebay-token"))
    };
    files.into_iter().find(is_token).expect("launch has made its token before it starts a process")
}

/// Connects to the coordinator of a launch: its address is in the log, its token in the memory of `launch`.
fn coordinator(run: &mut Run) -> Peer {
    let log = run.until_said("launch", "ps 0 listens address=");
    let address = log.split_once("ps 0 listens address=").unwrap().1.split_whitespace().next().unwrap().to_owned();
    let files = SecurityFiles { token_file: Some(token_of(run.id("launch"))), ..SecurityFiles::default() };
    let identity = Identity { run: "launch".into(), role: "a test".into(), incarnation: 0, attempt: 1 };
    let (io, security) = (IoRuntime::new("net", 1), Security::load(&files).unwrap());
    Dialer::new(&io, &security, &identity, &Limits::default()).unwrap().peer(&address).unwrap()
}

#[test]
fn the_first_signal_drains_all_processes_and_the_row_counts_add_up() {
    for signal in [Signal::INT, Signal::TERM] {
        let endless = ["placement.readers=2", "placement.ps=2", "data.epochs=100000", "placement.lease_rows=2048"];
        let mut run = launch(&job(ROWS, &endless));
        let peer = coordinator(&mut run);
        run.until("some windows are done", |_| {
            let status: Option<RunStatus> =
                block_on(peer.action("coordinator.status", &(), Duration::from_secs(5))).ok();
            status.filter(|status| status.windows_done > 4)
        });
        run.signal("launch", signal);
        let Ended { code, log } = run.ended("launch");
        assert_eq!(code, Some(5), "{log}");
        let ledger = Ledger::of(&log);
        assert!(ledger.windows.0 > 4 && ledger.windows.0 < ledger.windows.1, "{ledger:?} {log}");
        let trained = log.split_once("trained on ").unwrap().1.split(' ').next().unwrap().replace(',', "");
        assert_eq!(ledger.rows.to_string(), trained, "the counts agree: {log}");
        let partial = run.folder().join("model.partial");
        assert!(Bits::read(&partial).keys() > 1000);
        let training = Manifest::read(partial).unwrap().training.unwrap();
        assert_eq!((training.rows, training.ended), (ledger.rows, RunEnd::Drained));
        assert_eq!(training.steps, ledger.batches);
        assert_eq!(left(run.folder()), ["launch.log", "model.partial"]);
    }
}

#[test]
fn a_fault_of_one_process_ends_the_launch_with_its_exit_code() {
    let mut run = launch(&job(ROWS, &["placement.readers=1", "placement.ps=1", "data.train=/nowhere/rows.parquet"]));
    let Ended { code, log } = run.ended("launch");
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("reader 0   | error: ") && log.contains("/nowhere/rows.parquet"), "{log}");
}
