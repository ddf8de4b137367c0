//! Inputs on a disk that fails: rows, the model of `predict`, checkpoints of `--resume`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::common;
use super::failing_disk::{Ended, Fails};
use super::sweep::{Case, EIO, names_the_file, sweep};

const READS: &[&str] = &["o", "r", "t"];

const ROWS: u64 = 2000;

fn settings(command: &mut Command, of: &[&str]) {
    command.args(of.iter().flat_map(|setting| ["--set", setting]));
}

/// Either the fault has passed, and nothing is missing, or the error names a file of the disk.
fn whole_or_named(ended: &Ended, fails: Fails, whole: &str) {
    let Ended { code, text, .. } = ended;
    if *code == Some(0) {
        assert!(text.contains(whole), "{fails:?}: no {whole:?} in: {text}");
        return;
    }
    assert!(fails.first > 0, "without a fault: {text}");
    assert_eq!(*code, Some(3), "{fails:?}: {text}");
    names_the_file(text, fails);
    assert!(!text.contains("saved "), "{fails:?}: {text}");
}

/// A training whose rows are on the disk.
struct ReadsRows {
    text: bool,
}

impl Case for ReadsRows {
    fn prepare(&self, folder: &Path) -> Command {
        let disk = folder.join("disk");
        std::fs::create_dir(&disk).unwrap();
        let rows = if self.text { common::text(&disk, 0, ROWS) } else { common::parquet(&disk, 0, ROWS) };
        let (data, model) = (format!("data.train={}", rows.display()), folder.join("model"));
        let mut command = common::forebay(&["train"]);
        let model = format!("output.model={}", model.display());
        settings(&mut command, &["model.kind=lr", "train.batch_rows=128", &data, &model]);
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        whole_or_named(ended, fails, "trained on 2,000 rows");
        assert_eq!(folder.join("model").exists(), ended.code == Some(0), "{fails:?}: {}", ended.text);
    }
}

#[test]
fn rows_of_parquet_files_that_cannot_be_read_are_a_fault_that_names_the_file() {
    sweep(&ReadsRows { text: false }, READS, 8);
}

#[test]
fn rows_of_text_files_that_cannot_be_read_are_a_fault_that_names_the_file() {
    sweep(&ReadsRows { text: true }, READS, 8);
}

/// A run that continues from a checkpoint on the disk.
struct Resumes;

impl Resumes {
    fn train(folder: &Path, epochs: u64) -> Command {
        let (rows, to) = (folder.join("parquet-0"), folder.join("disk"));
        let mut command = common::forebay(&["train"]);
        let data = format!("data.train={}", rows.display());
        let (to, model) = (format!("checkpoint.to={}", to.display()), folder.join("model"));
        let model = format!("output.model={}", model.display());
        let rest = ["model.kind=lr", "train.batch_rows=128", "checkpoint.rows=10000", "train.threads=1"];
        settings(&mut command, &[&rest[..], &[&data, &to, &model, &format!("data.epochs={epochs}")]].concat());
        command
    }

    /// The manifest of the newest checkpoint.
    fn newest(folder: &Path) -> Option<PathBuf> {
        let files = std::fs::read_dir(folder.join("disk")).ok()?.map(|file| file.unwrap().path());
        files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with("checkpoint-")).max()
    }
}

impl Case for Resumes {
    fn prepare(&self, folder: &Path) -> Command {
        common::parquet(folder, 0, ROWS);
        // The run is asked to shut down once it has a checkpoint, however fast the machine is.
        let mut run = common::Background::start(&mut Self::train(folder, 100_000));
        common::until("the run makes a checkpoint", || {
            assert!(run.is_running(), "{}", run.output());
            Self::newest(folder).is_some()
        });
        run.signal("-TERM");
        common::exits(5, run.wait(), &[]);
        let manifest = std::fs::read(Self::newest(folder).unwrap()).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let epochs = manifest["position"]["rows"].as_u64().unwrap() / ROWS + 1;
        std::fs::write(folder.join("epochs"), epochs.to_string()).unwrap();
        let mut command = Self::train(folder, epochs);
        // Reads of its own checkpoints are no reads of the first one.
        command.args(["--resume", "--set", "checkpoint.rows=1000000000"]);
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let epochs: u64 = std::fs::read_to_string(folder.join("epochs")).unwrap().parse().unwrap();
        let whole = format!("trained on {} rows", forebay::actors::commas(epochs * ROWS));
        whole_or_named(ended, fails, &whole);
        // It never continues from an older checkpoint, nor from none.
        for words in ["damaged", "is not used", "begins at the start"] {
            assert!(!ended.text.contains(words), "{fails:?}: {}", ended.text);
        }
    }
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_tried_again_and_never_passed_over() {
    sweep(&Resumes, READS, 3);
}

/// Scores of a model on the disk.
struct Predicts;

impl Case for Predicts {
    fn prepare(&self, folder: &Path) -> Command {
        let rows = common::parquet(folder, 0, ROWS);
        let model = folder.join("disk/model");
        let mut train = common::forebay(&["train"]);
        let place = format!("output.model={}", model.display());
        settings(&mut train, &["model.kind=lr", &format!("data.train={}", rows.display()), &place]);
        assert!(train.output().unwrap().status.success());
        let (model, rows) = (model.display().to_string(), rows.display().to_string());
        let out = folder.join("scores").display().to_string();
        common::forebay(&["predict", "--model", &model, "--data", &rows, "--out", &out])
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        whole_or_named(ended, fails, "");
        let out = folder.join("scores");
        assert_eq!(out.exists(), ended.code == Some(0), "{fails:?}: {}", ended.text);
        assert!(!out.exists() || common::read_rows(&out).num_rows() as u64 == ROWS);
    }
}

#[test]
fn a_model_that_cannot_be_read_gives_no_scores() {
    // Files of a model are opened without a look at their metadata by path.
    sweep(&Predicts, &READS[..2], 6);
}

/// A training that evaluates on rows of the disk.
struct Evaluates;

impl Case for Evaluates {
    fn prepare(&self, folder: &Path) -> Command {
        let disk = folder.join("disk");
        std::fs::create_dir(&disk).unwrap();
        let data = format!("data.train={}", common::parquet(folder, 0, ROWS).display());
        let eval = format!("data.eval={}", common::parquet(&disk, ROWS, 500).display());
        let model = format!("output.model={}", folder.join("model").display());
        let rest = ["model.kind=lr", "train.batch_rows=128", "evaluation.every={ rows = 500 }", "output.retry_for=0s"];
        let mut command = common::forebay(&["train"]);
        settings(&mut command, &[&rest[..], &[&data, &eval, &model]].concat());
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let Ended { code, text, .. } = ended;
        let trained = text.contains("trained on 2,000 rows");
        match code {
            Some(0) => assert!(text.contains("evaluated on"), "{fails:?}: {text}"),
            // The model is saved, and its evaluation failed.
            Some(6) => names_the_file(text, fails),
            // Before the first row the evaluation is tried.
            _ => {
                assert!(*code == Some(3) && !trained, "{fails:?}: {code:?} {text}");
                names_the_file(text, fails);
            }
        }
        assert_eq!((trained, folder.join("model").exists()), (*code != Some(3), trained), "{fails:?}: {text}");
        for missed in text.lines().filter(|line| line.contains(" is missed, and the training goes on without it")) {
            assert!(missed.contains(EIO) && missed.contains("/disk/"), "{fails:?}: {missed}");
        }
    }
}

/// A bug: the training ended, and nothing was saved.
#[test]
fn rows_of_an_evaluation_that_cannot_be_read_cost_no_training() {
    sweep(&Evaluates, READS, 8);
}
