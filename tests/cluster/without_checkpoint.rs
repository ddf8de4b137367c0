//! A run of several processes that is asked to shut down while its last checkpoint cannot be written: its model is saved as in a drained
//! run without checkpoints, and all processes end with the fault.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::actors::commas;
use forebay::pipelines::RunEnd;
use forebay::pipelines::model_folder::Manifest;
use rustix::process::Signal;

use super::bits::Bits;
use super::disk::Disk;
use super::jobs::job;
use super::launch::start;
use super::processes::{Ended, Ledger, Run};
use super::supervise::child;

const ROWS: u64 = 2048;

/// Settings of a run that would take hours. Its checkpoints take little room.
fn settings(checkpoints: &Path, placement: &[&str]) -> Vec<String> {
    let to = format!("checkpoint.to={}", checkpoints.display());
    let small = ["model.kind=lr", "checkpoint.rows=5000", "checkpoint.full_every=1", "checkpoint.keep=1", &to];
    let long = ["data.epochs=1000000", "output.retry_for=0s", "placement.lease_seconds=30"];
    job(ROWS, &[&small[..], &long, placement].concat())
}

/// Waits until a checkpoint of the run has failed. `prevents` is called until then.
fn until_one_fails(run: &mut Run, name: &str, mut prevents: impl FnMut()) {
    let log = run.folder().join(format!("{name}.log"));
    run.until("a checkpoint fails", |run| {
        run.must_go_on(name);
        prevents();
        let said = fs::read_to_string(&log).unwrap_or_default();
        said.contains("a checkpoint failed, and the run goes on").then_some(())
    });
}

/// Checks the model that the run has saved, and that the log of its first trainer names it.
fn check_saved(run: &Run, log: &str) {
    let partial = run.folder().join("model.partial");
    let training = Manifest::read(partial.to_str().unwrap()).unwrap().training.unwrap();
    let (ledger, rows) = (Ledger::of(log), training.rows);
    assert_eq!((rows, training.ended), (ledger.rows, RunEnd::Drained), "{log}");
    assert!(rows > 5000 && ledger.rejected == 0 && ledger.windows.0 < ledger.windows.1, "{ledger:?} {log}");
    let at = partial.display();
    let stopped =
        format!("stopped after {} rows without a checkpoint of them; their model is saved at {at}, and", commas(rows));
    assert!(log.contains(&stopped) && log.contains("the last checkpoint is not written"), "{stopped}: {log}");
    assert!(Bits::read(&partial).keys() > 100 && !run.folder().join("model").exists(), "{log}");
}

/// A bug: all that was trained since the checkpoint before was lost.
#[test]
fn the_model_is_saved_if_the_disk_of_the_checkpoints_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let checkpoints = disk.0.join("checkpoints");
    let names = ["ps 0", "ps 1", "trainer 0", "reader 0"];
    let mut run = Run::local(&settings(&checkpoints, &["placement.readers=1", "placement.ps=2"]));
    run.start(&names);
    run.until_said("trainer 0", "INFO checkpoint ");
    until_one_fails(&mut run, "trainer 0", || disk.fill_up());
    run.signal("trainer 0", Signal::TERM);
    let Ended { code, log } = run.ended("trainer 0");
    assert_eq!(code, Some(3), "{log}");
    assert!(
        log.contains("the last checkpoint failed, and is tried again") && log.contains("the disk is full"),
        "{log}"
    );
    check_saved(&run, &log);
    for name in ["ps 0", "ps 1", "reader 0"] {
        run.end_with(name, 3, "trainer 0: stopped after");
    }
    disk.empty();
    let verified =
        Command::new(env!("CARGO_BIN_EXE_forebay")).args(["checkpoint", "verify"]).arg(&checkpoints).output();
    assert!(verified.unwrap().status.success(), "the checkpoint before is whole");
}

/// Puts a file in the place of the folder.
fn replace_by_file(folder: &Path) {
    // The run may make the folder again meanwhile.
    for number in 0.. {
        if folder.is_file() || fs::write(folder, "a file stands in its place").is_ok() {
            return;
        }
        let _ = fs::rename(folder, folder.with_file_name(format!("aside-{number}")));
    }
}

#[test]
fn the_model_of_several_trainers_is_saved_if_the_folder_of_the_checkpoints_is_gone_and_launch_starts_none_again() {
    for placement in [
        &["placement.ps=1", "train.staleness=4"][..],
        &["placement.ps=2", "train.sync=true", "train.staleness={exactly=2}"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = dir.path().join("checkpoints");
        let two = ["placement.readers=1", "placement.trainers=2"];
        let mut run = start(&settings(&checkpoints, &[&two, placement].concat()), &[]);
        run.until_said("launch", "INFO checkpoint ");
        until_one_fails(&mut run, "launch", || replace_by_file(&checkpoints));
        run.signal("launch", Signal::TERM);
        let Ended { code, log } = run.ended("launch");
        assert_eq!(code, Some(2), "{placement:?}: {log}");
        assert!(!log.contains("starts it again"), "{log}");
        check_saved(&run, &log);
    }
}

/// A bug: all processes were started again, as after any fault of a disk.
#[test]
fn a_launch_that_saves_no_model_of_a_drained_run_says_what_is_lost_and_starts_none_again() {
    for told in ["launch", "ps 0"] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = dir.path().join("checkpoints");
        let placement = ["placement.readers=1", "placement.ps=1", "output.on_drain=discard"];
        let mut run = start(&settings(&checkpoints, &placement), &[]);
        run.until_said("launch", "INFO checkpoint ");
        until_one_fails(&mut run, "launch", || replace_by_file(&checkpoints));
        match told {
            "launch" => run.signal("launch", Signal::TERM),
            process => child(&mut run, process).signal(Signal::TERM),
        }
        let Ended { code, log } = run.ended("launch");
        assert_eq!(code, Some(3), "{told}: {log}");
        let lost = "what was trained on since the checkpoint before is lost";
        assert!(log.contains(lost) && !log.contains("starts it again"), "{told}: {log}");
        assert!(!["model", "model.partial"].iter().any(|name| run.folder().join(name).exists()), "{told}: {log}");
    }
}
