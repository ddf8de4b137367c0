//! A run that is asked to shut down while its last checkpoint cannot be written: its model is saved as in a drained run without
//! checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use forebay::Model;
use forebay::pipelines::RunEnd;

use super::common::{self, Background};
use super::disk::Disk;
use super::{output, train};

/// Starts a run that would take hours, and waits for its first checkpoint.
fn started(dir: &Path, checkpoints: &Path, more: &[&str]) -> Background {
    let to = format!("checkpoint.to={}", checkpoints.display());
    let (_, model) = output(dir);
    let long = ["data.epochs=1000000", "checkpoint.rows=5000", "train.batch_rows=128", "train.threads=1"];
    let mut run = Background::start(&mut train(dir, &[&long[..], &[&to, &model], more].concat()));
    run.wait_for("INFO checkpoint ", 1);
    run
}

/// Tells the run to end once one of its checkpoints has failed. `prevents` is called until then.
fn asked_to_shut_down(run: Background, mut prevents: impl FnMut()) -> (Option<i32>, String) {
    common::until("a checkpoint fails", || {
        prevents();
        run.output().contains("a checkpoint failed, and the run goes on")
    });
    run.signal("-TERM");
    run.wait()
}

/// The rows that the partial model has.
fn rows_of_partial(partial: &Path) -> u64 {
    let training = Model::load(partial, 1).unwrap().training.unwrap();
    assert_eq!(training.ended, RunEnd::Drained);
    training.rows
}

/// A bug: the run ended at once, and all that it had trained was lost.
#[test]
fn the_model_is_saved_if_the_disk_of_the_checkpoints_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let (checkpoints, partial) = (disk.0.join("checkpoints"), dir.path().join("model.partial"));
    let run = started(dir.path(), &checkpoints, &[]);
    let ended = asked_to_shut_down(run, || disk.fill_up());
    let saved = format!("without a checkpoint of them; their model is saved at {}, and", partial.display());
    let words =
        ["the last checkpoint failed, and is tried again", "the last checkpoint is not written", "the disk is full"];
    let text = common::exits(3, ended, &words);
    assert!(text.contains(&saved) && text.contains(&format!("saved {}: ", partial.display())), "{text}");
    assert!(!dir.path().join("model").exists(), "{text}");
    assert!(rows_of_partial(&partial) > 5000);
    disk.empty();
    common::exits(0, common::run(&["checkpoint", "verify", checkpoints.to_str().unwrap()]), &[]);
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

/// Drains a run whose folder of checkpoints has become a file.
fn drained_without_folder(dir: &Path, on_drain: &str) -> (Option<i32>, String) {
    let checkpoints: PathBuf = dir.join("checkpoints");
    let run = started(dir, &checkpoints, &[&format!("output.on_drain={on_drain}")]);
    asked_to_shut_down(run, || replace_by_file(&checkpoints))
}

#[test]
fn the_job_says_where_the_model_goes_if_the_folder_of_the_checkpoints_is_gone() {
    for (on_drain, name) in [("partial", "model.partial"), ("replace", "model")] {
        let dir = tempfile::tempdir().unwrap();
        let text =
            common::exits(2, drained_without_folder(dir.path(), on_drain), &["the last checkpoint is not written"]);
        let place = dir.path().join(name);
        assert!(text.contains(&format!("their model is saved at {}, and", place.display())), "{text}");
        assert!(rows_of_partial(&place) > 5000);
    }
    let dir = tempfile::tempdir().unwrap();
    let lost = ["the last checkpoint failed", "what was trained on since the checkpoint before is lost"];
    let text = common::exits(3, drained_without_folder(dir.path(), "discard"), &lost);
    assert!(["model", "model.partial"].iter().all(|name| !dir.path().join(name).exists()), "{text}");
}
