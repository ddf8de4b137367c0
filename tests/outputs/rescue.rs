//! A trained model that cannot be saved, because the disk is full or was unmounted. It is saved when there is room again, or elsewhere, or
//! by the run that continues from the checkpoint of the first run. No run trains again for it.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use forebay::Model;
use forebay::pipelines::{RunEnd, TrainingSummary};
use tempfile::TempDir;

use super::common::{self, Background};
use super::disk::Disk;
use super::{drained_after_two_checkpoints, kill_role, train};

const LITTLE: u64 = 16384;

/// A folder with a disk in it, which has space for the file that is written to try the place, but not for a model. `None`: it cannot be
/// mounted.
fn full_disk() -> Option<(TempDir, Disk)> {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::mount(dir.path().join("disk"))?;
    disk.fill_but(LITTLE);
    Some((dir, disk))
}

/// A job whose model goes to the disk.
fn onto(disk: &Disk) -> String {
    format!("output.model={}", disk.0.join("model").display())
}

fn set(command: &mut Command, settings: &[&str]) {
    for setting in settings {
        command.args(["--set", setting]);
    }
}

/// What the manifest says of the training, the types of the columns among it.
fn training(model: &Path) -> TrainingSummary {
    Model::load(model, 1).unwrap().training.unwrap()
}

fn rows_of(model: &Path) -> u64 {
    let training = training(model);
    assert_eq!(training.ended, RunEnd::Complete);
    training.rows
}

/// What differs between runs: nothing but times.
fn same_model(one: &Path, other: &Path) -> bool {
    let tables = |model: &Path| fs::read(model.join("tables/embedding/shard-0000.parquet")).unwrap();
    let dense = |model: &Path| fs::read(model.join("dense.safetensors")).unwrap();
    tables(one) == tables(other) && dense(one) == dense(other)
}

#[test]
fn a_model_is_saved_when_the_full_disk_has_room_again() {
    let Some((dir, disk)) = full_disk() else { return };
    let mut run = Background::start(&mut train(dir.path(), &[&onto(&disk), "output.retry_for=10min"]));
    run.wait_for("the model is not saved yet", 1);
    disk.empty();
    let text = common::exits(0, run.wait(), &[]);
    assert_eq!(rows_of(&disk.0.join("model")), 2000);
    assert!(!dir.path().join("model.rescued").exists(), "{text}");
}

#[test]
fn a_model_whose_disk_stays_full_is_saved_in_the_working_directory() {
    let Some((dir, disk)) = full_disk() else { return };
    let mut tries_again = false;
    for number in 1..=20 {
        let output = train(dir.path(), &[&onto(&disk), "output.retry_for=1s"]).output().unwrap();
        let text = common::exits(2, common::code_and_output(&output), &[]);
        let name = if number == 1 { "model.rescued".to_owned() } else { format!("model.rescued-{number}") };
        let place = dir.path().join(name);
        for words in ["the disk is full", &format!("was saved at {}", place.display())] {
            assert!(text.contains(words), "no `{words}` in: {text}");
        }
        assert_eq!(rows_of(&place), 2000);
        // It tries again, unless its first try took longer than a second.
        tries_again |= text.contains("the model is not saved yet");
        if tries_again && number > 1 {
            return;
        }
    }
    panic!("no model was tried to be saved again");
}

/// A bug: the model went to new folders on the disk beneath, and the run ended as if it were saved.
#[test]
fn a_model_whose_disk_is_unmounted_during_the_run_is_saved_elsewhere_and_not_on_the_disk_beneath() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let mount_point = disk.0.clone();
    let place = format!("output.model={}", mount_point.join("models/model").display());
    let mut run = train(dir.path(), &[&place, "output.on_drain=replace", "data.epochs=1000000"]);
    let mut run = Background::start(run.args(["--dashboard", "127.0.0.1:0"]));
    // The place is tried before the first row.
    assert!(run.has_trained(1.0), "{}", run.output());
    // Unmounts it.
    drop(disk);
    run.signal("-TERM");
    let text = common::exits(2, run.wait(), &["is not mounted any more", "was saved at"]);
    assert_eq!(fs::read_dir(mount_point).unwrap().count(), 0, "{text}");
    assert_eq!(training(&dir.path().join("model.rescued")).ended, RunEnd::Drained);
}

/// A run that keeps its best model on a disk which is unmounted before the run is asked to shut down. Returns also the dense parameters
/// that were kept, and the folder that has the files of the disk.
fn best_model_on_an_unmounted_disk(dir: &Path, more: &[&str]) -> Option<(Background, Vec<Vec<u8>>, Disk)> {
    let store = Disk::mount(dir.join("store"))?;
    let point = dir.join("disk");
    fs::create_dir(&point).unwrap();
    bind(&store.0, &point);
    let eval = format!("data.eval={}", common::parquet(dir, 2000, 500).display());
    let place = format!("output.model={}", point.join("model").display());
    // It is best early.
    let too_fast = "table.linear_optimizer={ kind = 'adam', lr = 0.3 }";
    let settings =
        ["evaluation.every={ rows = 500 }", "evaluation.keep=best", "data.epochs=1000000", "train.batch_rows=100"];
    let settings = [&settings[..], &[&eval, &place, too_fast, "output.on_drain=replace"], more].concat();
    let mut run = Background::start(&mut train(dir, &settings));
    run.wait_for("evaluation 8", 1);
    run.signal("-STOP");
    let kept = ["model.best-0", "model.best-1"].map(|name| fs::read(store.0.join(name).join("dense.safetensors")));
    assert!(Command::new("umount").arg("--lazy").arg(&point).status().unwrap().success());
    run.signal("-TERM");
    run.signal("-CONT");
    Some((run, kept.into_iter().filter_map(Result::ok).collect(), store))
}

pub(super) fn bind(from: &Path, to: &Path) {
    assert!(Command::new("mount").arg("--bind").args([from, to]).status().unwrap().success());
}

/// A bug: the best model was taken for one that another program had removed, and the last one was saved.
#[test]
fn the_best_model_is_saved_when_its_disk_is_mounted_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some((mut run, kept, store)) = best_model_on_an_unmounted_disk(dir.path(), &["output.retry_for=10min"]) else {
        return;
    };
    run.wait_for("the model is not saved yet", 1);
    let point = dir.path().join("disk");
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "{}", run.output());
    bind(&store.0, &point);
    let text = common::exits(5, run.wait(), &["is not mounted any more"]);
    let saved = fs::read(point.join("model/dense.safetensors")).unwrap();
    assert!(kept.contains(&saved) && !text.contains("another program"), "{text}");
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
}

#[test]
fn without_the_disk_of_the_best_model_the_last_one_is_saved_and_the_error_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let Some((run, kept, _store)) = best_model_on_an_unmounted_disk(dir.path(), &["output.retry_for=1s"]) else {
        return;
    };
    let best =
        format!("the model after the last row (the best one is in {}", dir.path().join("disk/model.best-").display());
    let text = common::exits(2, run.wait(), &["is not mounted any more", &best, "was saved at"]);
    assert!(!kept.contains(&fs::read(dir.path().join("model.rescued/dense.safetensors")).unwrap()), "{text}");
    assert_eq!(fs::read_dir(dir.path().join("disk")).unwrap().count(), 0, "{text}");
}

#[test]
fn a_signal_ends_the_tries_and_the_model_is_saved_elsewhere() {
    let Some((dir, disk)) = full_disk() else { return };
    let mut run = Background::start(&mut train(dir.path(), &[&onto(&disk), "output.retry_for=10h"]));
    run.wait_for(
        "the model is not saved yet (Ctrl-C ends the tries, output.retry_for sets their time), trying again for ",
        1,
    );
    run.wait_for(" s: the same fault", 1);
    run.signal("-TERM");
    // A bug: it said that the run trains on what was read.
    common::exits(2, run.wait(), &["stopping: the training has ended, and the model is saved, elsewhere if need be"]);
    assert_eq!(rows_of(&dir.path().join("model.rescued")), 2000);
}

#[test]
fn with_checkpoints_the_run_that_goes_on_has_only_to_save() {
    for staleness in ["0", "{ exactly = 2 }"] {
        let Some((dir, disk)) = full_disk() else { return };
        let (to, undisturbed) = (dir.path().join("checkpoints"), dir.path().join("undisturbed"));
        let staleness = format!("train.staleness={staleness}");
        let fixed = [staleness.as_str(), "train.batch_rows=128", "train.threads=1"];
        let checkpoints = format!("checkpoint.to={}", to.display());
        let model = onto(&disk);
        let more = [&fixed[..], &[model.as_str(), checkpoints.as_str()]].concat();
        let text = common::exits(3, common::ended(&mut train(dir.path(), &more)), &[]);
        let said = format!("checkpoint 1 in {} has all 2,000 rows: --resume saves the model", to.display());
        assert!(text.contains(&said) && text.contains("the disk is full"), "{text}");
        assert!(!dir.path().join("model.rescued").exists(), "{text}");
        disk.empty();
        let ran = common::ended(train(dir.path(), &more).arg("--resume"));
        let text = common::exits(0, ran, &["continues from checkpoint 1", "trained on 2,000 rows"]);
        let place = format!("output.model={}", undisturbed.display());
        let more = [&fixed[..], &[place.as_str()]].concat();
        assert!(train(dir.path(), &more).output().unwrap().status.success());
        assert!(same_model(&disk.0.join("model"), &undisturbed), "{text}");
        let (saved, expected) = (training(&disk.0.join("model")), training(&undisturbed));
        assert!(saved == expected && !saved.types.is_empty(), "{saved:?} {expected:?}");
    }
}

/// The run that continues from the checkpoint stops early again, at once.
#[test]
fn with_checkpoints_a_run_that_stopped_early_has_only_to_save() {
    let Some((dir, disk)) = full_disk() else { return };
    let eval = format!("data.eval={}", common::parquet(dir.path(), 2000, 500).display());
    // No evaluation is better by so much: it stops after the second of many.
    let early = [
        "evaluation.every={ rows = 500 }",
        "evaluation.patience=1",
        "evaluation.min_delta=0.9",
        "evaluation.keep=last",
    ];
    let small = ["data.epochs=20", "train.batch_rows=128", "train.threads=1", eval.as_str()];
    let (to, undisturbed) = (dir.path().join("checkpoints"), dir.path().join("undisturbed"));
    let (model, checkpoints) = (onto(&disk), format!("checkpoint.to={}", to.display()));
    let more = [&early[..], &small, &[model.as_str(), checkpoints.as_str()]].concat();
    let ran = common::ended(&mut train(dir.path(), &more));
    let text = common::exits(3, ran, &["checkpoint 1 in", "rows: --resume saves the model"]);
    assert!(!dir.path().join("model.rescued").exists(), "{text}");
    disk.empty();
    let text = common::exits(0, common::ended(train(dir.path(), &more).arg("--resume")), &[]);
    let place = format!("output.model={}", undisturbed.display());
    let more = [&early[..], &small, &[place.as_str()]].concat();
    let calm = common::exits(0, common::ended(&mut train(dir.path(), &more)), &[]);
    // Rows of the first epoch, no more.
    let trained = |text: &str| text.lines().find(|line| line.starts_with("stopped early, after ")).unwrap().to_owned();
    assert_eq!(trained(&text), trained(&calm));
    assert!(same_model(&disk.0.join("model"), &undisturbed), "{text}");
    let (saved, expected) = (training(&disk.0.join("model")), training(&undisturbed));
    assert!(saved == expected && !saved.types.is_empty(), "{saved:?} {expected:?}");
}

/// `forebay launch` of the same job.
fn launch(dir: &Path, more: &[&str]) -> Command {
    let mut command = common::forebay(&["launch"]);
    command.current_dir(dir);
    let rows = format!("data.train={}", common::parquet(dir, 0, 2000).display());
    set(&mut command, &["model.kind=lr", "output.retry_for=0s", "placement.ps=1", "train.batch_rows=128", &rows]);
    set(&mut command, more);
    command
}

#[test]
fn a_launched_run_that_cannot_save_leaves_a_checkpoint_and_is_not_started_again() {
    for placement in [
        &["placement.readers=1"][..],
        &["placement.trainers=2"],
        &["placement.readers=1", "placement.trainers=2", "train.sync=true"],
    ] {
        let Some((dir, disk)) = full_disk() else { return };
        let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        let model = onto(&disk);
        let more = [placement, &[model.as_str(), checkpoints.as_str()]].concat();
        let mut launch = launch(dir.path(), &more);
        let (code, text) = common::ended(&mut launch);
        assert_eq!(code, Some(3), "{placement:?}: {text}");
        for words in ["the disk is full", "checkpoint 1 in", "has all 2,000 rows: --resume saves the model"] {
            assert!(text.contains(words), "{placement:?}: no `{words}` in: {text}");
        }
        assert!(!text.contains("starts it again"), "{placement:?}: {text}");
        assert_eq!(text.matches("all members joined").count(), 1, "{placement:?}: {text}");
        disk.empty();
        let (code, text) = common::ended(launch.arg("--resume"));
        assert_eq!(code, Some(0), "{placement:?}: {text}");
        assert!(text.contains("continues from checkpoint"), "{placement:?}: {text}");
        assert_eq!(rows_of(&disk.0.join("model")), 2000);
    }
}

#[test]
fn a_launched_run_without_checkpoints_ends_with_its_model_elsewhere_and_does_not_train_again() {
    let Some((dir, disk)) = full_disk() else { return };
    let output = launch(dir.path(), &["placement.readers=1", &onto(&disk)]).output().unwrap();
    let text = common::exits(2, common::code_and_output(&output), &[]);
    assert_eq!(rows_of(&dir.path().join("model.rescued")), 2000);
    assert_eq!(text.matches("all members joined").count(), 1, "{text}");
}

/// A bug: it started again, and would have trained for hours to fail again.
#[test]
fn a_launched_run_that_can_save_nowhere_does_not_train_again() {
    let Some((dir, disk)) = full_disk() else { return };
    let mut run = launch(dir.path(), &["placement.readers=1", &onto(&disk)]);
    let output = run.current_dir(&disk.0).env("TMPDIR", &disk.0).output().unwrap();
    let text = common::exits(3, common::code_and_output(&output), &["could not be saved anywhere", "the disk is full"]);
    assert!(!text.contains("starts it again"), "{text}");
    assert_eq!(text.matches("all members joined").count(), 1, "{text}");
}

/// A bug: all processes were started again ten times, in more than a minute.
#[test]
fn a_launch_that_has_no_room_for_its_model_starts_no_process() {
    let Some((dir, disk)) = full_disk() else { return };
    disk.fill_up();
    let output = launch(dir.path(), &["placement.readers=1", &onto(&disk)]).output().unwrap();
    let text = common::exits(3, common::code_and_output(&output), &[]);
    let words = "error: nothing is trained, because the model could not be saved at output.model: cannot write `";
    assert!(text.starts_with(words) && text.contains("the disk is full"), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}

/// A bug: a ps was killed while the disk was full, and the run ended, although it needs the disk only at its end.
#[test]
fn a_launched_run_continues_from_its_checkpoint_while_the_disk_of_its_model_is_full() {
    let Some((dir, disk)) = full_disk() else { return };
    let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
    let more = ["placement.readers=1", "data.epochs=1000000", "checkpoint.rows=20000", &checkpoints, &onto(&disk)];
    let mut run = Background::start(&mut launch(dir.path(), &more));
    run.wait_for("INFO checkpoint ", 1);
    disk.fill_up();
    kill_role(&run, "ps");
    run.wait_for("WARN the model could not be saved at output.model now: cannot write `", 1);
    drained_after_two_checkpoints(run, &["the disk is full", "continues from checkpoint "]);
}

/// As `deploy/slurm` starts them.
#[test]
fn processes_that_are_restarted_on_a_fault_say_by_their_code_that_training_again_would_not_help() {
    for (flag, code) in [(None, 3), (Some("--restarted-on-fault"), 7)] {
        let Some((dir, disk)) = full_disk() else { return };
        let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        let rows = format!("data.train={}", common::parquet(dir.path(), 0, 2000).display());
        let model = onto(&disk);
        let settings = ["model.kind=lr", "output.retry_for=0s", "train.batch_rows=128", "placement.readers=1"];
        let settings = [&settings[..], &[rows.as_str(), checkpoints.as_str(), model.as_str()]].concat();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let start = |role: &str, at: &str| {
            let mut command = common::forebay(&["role", role, at, &address]);
            set(command.args(flag).current_dir(dir.path()), &settings);
            Background::start(&mut command)
        };
        let (trainer, reader) = (start("trainer", "--listen"), start("reader", "--coordinator"));
        common::exits(code, trainer.wait(), &["the disk is full", "--resume saves the model"]);
        reader.wait();
    }
}
