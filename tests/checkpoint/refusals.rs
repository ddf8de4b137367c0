//! What cannot be resumed is refused by name, and checkpoints that cannot be written cost no run.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::common;
use super::jobs::{Job, synth};

/// What must happen during a run that ends by itself is tried again with more epochs: a fast machine may be too fast for the first ones.
const EPOCHS: [&str; 4] = ["data.epochs=2", "data.epochs=10", "data.epochs=50", "data.epochs=250"];

/// A job with some checkpoints, killed.
fn killed() -> Job {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    job
}

#[test]
fn checkpoints_of_an_earlier_run_are_not_overwritten() {
    let job = killed();
    job.run(&[]).with(2).saying(&["has checkpoints of an earlier run", "--resume"]);
}

#[test]
fn launch_refuses_them_before_it_starts_a_process() {
    let job = killed();
    let to = format!("checkpoint.to={}", job.checkpoints().display());
    let launched = common::run(&["launch", "--set", &to, "--set", "placement.ps=1"]);
    let said = common::exits(2, launched, &["has checkpoints of an earlier run"]);
    assert!(!said.contains("listens"), "{said}");
}

#[test]
fn another_job_is_refused_by_its_fields() {
    let job = killed();
    let ended = job.start_with(&["--resume"], &["train.batch_rows=512", "model.embedding_dim=8"]).end().with(2);
    ended.saying(&["train.batch_rows is 256 there and 512 here", "model.embedding_dim is 4 there and 8 here"]);
}

/// A bug: such a run ended with a model that had trained on more epochs than it said, and several processes counted too few rows.
#[test]
fn fewer_epochs_than_were_begun_are_refused() {
    let few = tempfile::tempdir().unwrap();
    let rows = few.path().join("rows");
    synth(&["--rows", "6000", "--group-rows", "1024"], &rows);
    let job = Job::new("parquet", &[&format!("data.train={}", rows.display())]);
    // 20,000 rows are more than 3 epochs.
    job.kill_after(2, &[]);
    let cluster = ["--restarts", "0", "--set", "placement.readers=1", "--set", "placement.ps=1"];
    let mut begun = 0_u64;
    for (program, more) in [("train", &[][..]), ("launch", &cluster[..])] {
        let flags = [&["--resume", "--set", "data.epochs=1"][..], more].concat();
        let ended = job.run_command(program, &flags).with(2);
        let (_, said) = ended.said.split_once("epochs, and data.epochs is 1: set data.epochs to ").expect(&ended.said);
        begun = said.split(' ').next().unwrap().parse().unwrap();
        assert!((4..=job.epochs()).contains(&begun), "{}", ended.said);
    }
    let whole = format!("trained on {} rows", forebay::actors::commas(begun * 6000));
    // The second one may have only to save.
    for _ in 0..2 {
        job.start_with(&["--resume"], &[&format!("data.epochs={begun}")]).end().with(0).saying(&[&whole]);
    }
}

#[test]
fn other_rows_are_refused() {
    let job = killed();
    // The checkpoint remembers the files, not only their folder.
    let manifest = job.newest_manifest();
    let text = std::fs::read_to_string(&manifest).unwrap();
    let (before, after) = text.split_once("\"fingerprint\": ").unwrap();
    let end = after.find(|c: char| !c.is_ascii_digit()).unwrap();
    // Without its checksum, as an earlier program wrote it.
    let (after, _) = after[end..].split_once(",\n  \"checksum\"").unwrap();
    std::fs::write(&manifest, format!("{before}\"fingerprint\": 7{after}\n}}\n")).unwrap();
    job.run(&["--resume"]).with(2).saying(&["the rows are not those of the checkpoint"]);
}

/// The manifest has no checksum, like manifests of earlier programs.
#[test]
fn a_checkpoint_of_a_later_format_is_not_called_damaged() {
    let job = killed();
    let manifest = job.newest_manifest();
    let text = std::fs::read_to_string(&manifest).unwrap();
    let (signed, _) = text.rsplit_once(",\n  \"checksum\"").unwrap();
    std::fs::write(&manifest, format!("{}\n}}", signed.replacen("\"version\": 1", "\"version\": 77", 1))).unwrap();
    for what in ["list", "verify"] {
        let words = ["version 77 of the format", "it is not damaged"];
        let said = common::exits(2, job.checkpoint(what, &[]), &words);
        assert!(!said.contains("is damaged"), "{said}");
    }
    job.run(&["--resume"]).with(2).saying(&["it is not damaged"]);
}

#[test]
fn text_goes_on_in_the_kind_of_placement_that_began() {
    let job = Job::new("criteo", &[]);
    job.kill_after(1, &[]);
    let mut launch = job.command("launch");
    let said = launch.args(["--resume", "--restarts", "0", "--set", "placement.ps=1"]).output().unwrap();
    common::exits(2, common::code_and_output(&said), &["one process made the checkpoint"]);
}

#[test]
fn resume_without_a_folder_says_so() {
    let job = Job::new("parquet", &[]);
    job.start_with(&["--resume"], &["checkpoint.to="]).end().with(2);
}

#[test]
fn only_the_newest_checkpoints_stay_with_the_files_that_they_name() {
    let job = Job::new("parquet", &["checkpoint.keep=2", "checkpoint.full_every=3"]);
    job.drain_after(5, &[], &[]);
    // Two, and one that builds on another full checkpoint if these two build on the same one.
    assert!((2..=3).contains(&manifests(&job).len()), "{:?}", job.files());
    assert_all_files_are_named(&job);
}

fn manifests(job: &Job) -> Vec<String> {
    job.files().into_iter().filter(|name| name.ends_with(".json")).collect()
}

fn assert_all_files_are_named(job: &Job) {
    let read = |name: &String| std::fs::read_to_string(job.checkpoints().join(name)).unwrap();
    let named: String = manifests(job).iter().map(read).collect();
    let files = job.files();
    for file in files.iter().filter(|name| !name.ends_with(".json")) {
        assert!(named.contains(file.as_str()), "nothing names {file}: {files:?}");
    }
}

/// No file may grow beyond a limit, as on a full disk.
#[test]
fn checkpoints_that_do_not_fit_leave_no_files() {
    let failed = EPOCHS.into_iter().any(|epochs| {
        let job = Job::new("parquet", &["table.shards=2", "checkpoint.full_every=1", "output.retry_for=0s", epochs]);
        let ended = job.start_limited(1024).end();
        assert_eq!(job.files(), [""; 0], "{}", ended.said);
        ended.said.matches("a checkpoint failed, and the run goes on").count() > 1
    });
    assert!(failed, "not two checkpoints of one run failed");
}

#[test]
fn a_folder_that_vanishes_costs_checkpoints_and_not_the_run() {
    let failed = EPOCHS.into_iter().any(|epochs| {
        let job = Job::new("parquet", &[epochs]);
        let mut running = job.start(&[]);
        if job.has_checkpoint_while(1, &mut running) {
            running.hold();
            std::fs::remove_dir_all(job.checkpoints()).unwrap();
            std::fs::write(job.checkpoints(), "a file stands in its place").unwrap();
            running.signal(Signal::CONT);
        }
        let ended = running.end().with(0);
        assert!(job.model().keys() > 1000);
        ended.said.contains("a checkpoint failed, and the run goes on")
    });
    assert!(failed, "no checkpoint was due while the folder was gone");
}

/// A bug: such a run began at the start, or continued from an older checkpoint, and `verify` called the file damaged.
#[test]
fn files_that_may_not_be_looked_at_or_read_are_neither_missing_nor_damaged() {
    let job = killed();
    let folder = job.checkpoints();
    let mode = |path: &Path, bits| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
    };
    let refused = |command: &Command, words: &[&str]| {
        let Some(mut bound) = common::bound_by_modes(command) else { return };
        let said = common::exits(2, common::ended(&mut bound), words);
        assert!(!said.contains("damaged") && !said.contains("begins at the start"), "{said}");
    };
    let list = common::forebay(&["checkpoint", "list", folder.to_str().unwrap()]);
    let verify = common::forebay(&["checkpoint", "verify", folder.to_str().unwrap()]);
    let mut resume = job.command("train");
    resume.arg("--resume");
    mode(&folder, 0o644);
    refused(&list, &["cannot list", "Permission denied"]);
    refused(&job.command("train"), &["Permission denied"]);
    refused(&resume, &["Permission denied"]);
    mode(&folder, 0o755);
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_manifest = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("checkpoint-");
    let manifest: Value = common::read_json(files.filter(is_manifest).max().unwrap());
    let name = manifest["tables"][0]["layers"][0]["files"][0]["path"].as_str().unwrap();
    let rows = folder.join(name);
    mode(&rows, 0o000);
    refused(&verify, &["cannot read", name, "Permission denied"]);
    mode(&rows, 0o644);
}
