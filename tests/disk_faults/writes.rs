//! Outputs on a disk that fails: a model, checkpoints, predictions, an export.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use forebay::Model;

use super::common;
use super::failing_disk::{Ended, Fails};
use super::sweep::{Case, EIO, names_the_file, sweep};

/// Calls that write.
const WRITES: &[&str] = &["w", "s", "n", "o"];

pub(super) const ROWS: u64 = 2000;

/// Rows, and models of one epoch and two, made once.
pub(super) struct Made {
    folder: tempfile::TempDir,
}

pub(super) fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = Made { folder: tempfile::tempdir().unwrap() };
        common::parquet(made.folder.path(), 0, ROWS);
        for epochs in [1, 2] {
            let place = format!("output.model={}", made.model(epochs).display());
            common::exits(0, common::ended(&mut made.train(epochs, &[&place])), &[]);
        }
        made
    })
}

impl Made {
    pub(super) fn rows(&self) -> PathBuf {
        self.folder.path().join("parquet-0")
    }

    pub(super) fn model(&self, epochs: u64) -> PathBuf {
        self.folder.path().join(format!("model-{epochs}"))
    }

    pub(super) fn train(&self, epochs: u64, more: &[&str]) -> Command {
        let (data, epochs) = (format!("data.train={}", self.rows().display()), format!("data.epochs={epochs}"));
        let fixed = ["model.kind=lr", "output.retry_for=0s", "train.batch_rows=128", "train.threads=1", &data, &epochs];
        let mut command = common::forebay(&["train"]);
        command.args(fixed.iter().chain(more).flat_map(|setting| ["--set", setting]));
        command
    }
}

pub(super) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The bytes of all files below a folder except `manifest.json`, which has a time.
fn bytes(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => files.extend(bytes(&entry)),
            false => files.push((entry.clone(), fs::read(&entry).unwrap())),
        }
    }
    files.retain(|(file, _)| !file.ends_with("manifest.json"));
    files.sort();
    files.into_iter().map(|(file, bytes)| (file.strip_prefix(folder).unwrap_or(&file).to_owned(), bytes)).collect()
}

fn failed_by_disk(ended: &Ended, fails: Fails) {
    let Ended { code, text, .. } = ended;
    assert!(matches!(code, Some(2 | 3)), "{fails:?}: {code:?} {text}");
    names_the_file(text, fails);
}

/// The names in `folder`. If no folder can be opened, the staged folder stays hidden, until the next program removes it.
fn left(folder: &Path, fails: Fails) -> Vec<String> {
    let cannot_remove = fails.kinds == "o" && fails.and_later;
    names(folder).into_iter().filter(|name| !(cannot_remove && name.starts_with('.'))).collect()
}

/// A training that replaces an older model.
struct SavesModel;

impl Case for SavesModel {
    fn prepare(&self, folder: &Path) -> Command {
        let made = made();
        fs::create_dir(folder.join("disk")).unwrap();
        copy(&made.model(1), &folder.join("disk/model"));
        let place = format!("output.model={}", folder.join("disk/model").display());
        let mut command = made.train(2, &[&place]);
        command.current_dir(folder);
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let place = folder.join("disk/model");
        let rows = Model::load(&place, 1).unwrap().training.unwrap().rows;
        let rescued = folder.join("model.rescued");
        match ended.code {
            Some(0) => assert!(rows == 2 * ROWS && !rescued.exists(), "{fails:?}: {}", ended.text),
            _ => {
                failed_by_disk(ended, fails);
                assert!([ROWS, 2 * ROWS].contains(&rows), "{fails:?}: {rows} {}", ended.text);
                // What was trained is not lost, unless the run was refused before it trained.
                let trained = ended.text.contains("trained on 4,000 rows");
                assert_eq!(trained, rescued.exists(), "{fails:?}: {}", ended.text);
                if trained {
                    assert_eq!(Model::load(&rescued, 1).unwrap().training.unwrap().rows, 2 * ROWS);
                }
            }
        }
        assert_eq!(left(&folder.join("disk"), fails), ["model"], "{fails:?}: {}", ended.text);
    }
}

#[test]
fn a_model_that_cannot_be_saved_leaves_the_older_one_and_is_not_lost() {
    sweep(&SavesModel, WRITES, 8);
}

/// A training that keeps its best model beside its output.
struct KeepsBest;

impl Case for KeepsBest {
    fn prepare(&self, folder: &Path) -> Command {
        fs::create_dir(folder.join("disk")).unwrap();
        let place = format!("output.model={}", folder.join("disk/model").display());
        let eval = format!("data.eval={}", made().rows().display());
        let best = ["evaluation.every={ rows = 500 }", "evaluation.keep=best"];
        let mut command = made().train(2, &[&best[..], &[&place, &eval]].concat());
        command.current_dir(folder);
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let Ended { code, text, .. } = ended;
        let (place, rescued) = (folder.join("disk/model"), folder.join("model.rescued"));
        let trained = text.contains("trained on 4,000 rows");
        match code {
            Some(0 | 6) => {
                assert!(trained && !rescued.exists(), "{fails:?}: {text}");
                let rows = Model::load(&place, 1).unwrap().training.unwrap().rows;
                assert!(rows <= 2 * ROWS, "{fails:?}: {rows}");
                if *code == Some(6) {
                    assert!(text.contains("the training goes on without this model"), "{fails:?}: {text}");
                }
            }
            _ => {
                failed_by_disk(ended, fails);
                assert_eq!((trained, place.exists()), (rescued.exists(), false), "{fails:?}: {text}");
                if trained {
                    Model::load(&rescued, 1).unwrap();
                }
            }
        }
        for name in left(&folder.join("disk"), fails) {
            assert!(["model", "model.best-0", "model.best-1"].contains(&name.as_str()), "{fails:?}: {name}");
        }
    }
}

/// A bug: the training ended, and nothing was saved.
#[test]
fn a_best_model_that_cannot_be_kept_costs_no_training() {
    sweep(&KeepsBest, WRITES, 6);
}

/// A training that makes checkpoints.
struct MakesCheckpoints;

impl Case for MakesCheckpoints {
    fn prepare(&self, folder: &Path) -> Command {
        fs::create_dir(folder.join("disk")).unwrap();
        let to = format!("checkpoint.to={}", folder.join("disk/checkpoints").display());
        // Long enough for several, on a fast machine too.
        let more = ["checkpoint.rows=10000", "checkpoint.full_every=3", &to];
        let mut command = made().train(100, &more);
        command.current_dir(folder);
        command
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let text = &ended.text;
        // Before the first row the place is tried.
        if ended.code != Some(0) {
            failed_by_disk(ended, fails);
            assert!(!text.contains("trained on"), "{fails:?}: {text}");
            return;
        }
        assert!(text.contains("trained on 200,000 rows"), "{fails:?}: {text}");
        let said = text.lines().filter(|line| line.contains(EIO));
        said.for_each(|line| assert!(line.contains(" WARN "), "{fails:?}: {line}"));
        let folder = folder.join("disk/checkpoints");
        if fs::read_dir(&folder).is_ok_and(|mut files| {
            files.any(|file| file.unwrap().file_name().to_str().unwrap().starts_with("checkpoint-"))
        }) {
            let (code, verified) = common::run(&["checkpoint", "verify", folder.to_str().unwrap()]);
            assert_eq!(code, Some(0), "{fails:?}: {text} {verified}");
        }
        let left = left(&folder, fails);
        assert!(!left.iter().any(|name| name.starts_with('.')), "{fails:?}: {left:?}");
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_a_warning_and_all_others_stay_whole() {
    sweep(&MakesCheckpoints, WRITES, 4);
}

/// Scores beside older ones.
struct Predicts;

impl Case for Predicts {
    fn prepare(&self, folder: &Path) -> Command {
        let made = made();
        fs::create_dir(folder.join("disk")).unwrap();
        let out = folder.join("disk/scores");
        let text = |path: PathBuf| path.display().to_string();
        let (model, rows) = (text(made.model(1)), text(made.rows()));
        common::forebay(&["predict", "--model", &model, "--data", &rows, "--out", &text(out)])
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let out = folder.join("disk/scores");
        match ended.code {
            Some(0) => assert_eq!(common::read_rows(&out).num_rows() as u64, ROWS),
            _ => {
                failed_by_disk(ended, fails);
                assert!(!out.exists() || common::read_rows(&out).num_rows() as u64 == ROWS, "{fails:?}");
            }
        }
        let left = left(&folder.join("disk"), fails);
        assert!(left.is_empty() || left == ["scores"], "{fails:?}: {left:?} {}", ended.text);
    }
}

#[test]
fn scores_that_cannot_be_written_do_not_appear() {
    sweep(&Predicts, WRITES, 6);
}

/// An export that replaces an older one.
struct Exports;

impl Case for Exports {
    fn prepare(&self, folder: &Path) -> Command {
        let made = made();
        fs::create_dir(folder.join("disk")).unwrap();
        copy(old_export(), &folder.join("disk/export"));
        let (model, to) = (made.model(2).display().to_string(), folder.join("disk/export").display().to_string());
        common::forebay(&["export", "--model", &model, "--to", &to, "--replace"])
    }

    fn check(&self, folder: &Path, ended: &Ended, fails: Fails) {
        let (place, old) = (folder.join("disk/export"), bytes(old_export()));
        match ended.code {
            Some(0) => assert!(bytes(&place) != old, "{fails:?}: {}", ended.text),
            _ => {
                failed_by_disk(ended, fails);
                let whole = bytes(&place).len() == old.len();
                assert!(whole, "{fails:?}: {}", ended.text);
            }
        }
        assert_eq!(left(&folder.join("disk"), fails), ["export"], "{fails:?}: {}", ended.text);
    }
}

/// The export of another model.
fn old_export() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = made();
        let (model, to) = (made.model(1).display().to_string(), made.folder.path().join("export"));
        common::exits(0, common::run(&["export", "--model", &model, "--to", to.to_str().unwrap()]), &[]);
        to
    })
}

#[test]
fn an_export_that_cannot_be_written_leaves_the_older_one() {
    sweep(&Exports, WRITES, 6);
}
