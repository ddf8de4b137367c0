//! A disk that hangs: its calls never return.

use forebay::Model;
use forebay::pipelines::RunEnd;

use super::common::{self, Background};
use super::failing_disk::{hanging, runner};

/// Tells a run to end while its first checkpoint hangs, for ten seconds at least. `command`: `train` or `launch`. Its model must have
/// `least` rows. Returns its output; `None` if the test cannot run here.
fn told_to_end_while_its_checkpoint_hangs(command: &str, more: &[&str], least: u64) -> Option<String> {
    let runner = runner()?;
    let folder = tempfile::tempdir().unwrap();
    let (disk, model) = (folder.path().join("disk"), folder.path().join("model"));
    std::fs::create_dir(&disk).unwrap();
    let checkpoints = disk.join("checkpoints");
    let settings = [
        format!("data.train={}", common::parquet(folder.path(), 0, 2000).display()),
        format!("output.model={}", model.display()),
        format!("checkpoint.to={}", checkpoints.display()),
        "checkpoint.rows=10000".to_owned(),
        "data.epochs=1000000".to_owned(),
        "model.kind=lr".to_owned(),
        "train.threads=1".to_owned(),
        // The run waits for ten seconds at least.
        "output.retry_for=0s".to_owned(),
    ];
    let mut command = common::forebay(&[command]);
    let settings = settings.iter().map(String::as_str).chain(more.iter().copied());
    command.args(settings.flat_map(|setting| ["--set", setting])).current_dir(folder.path());
    let mut run = Background::start(&mut hanging(runner, &disk, "w", &command));
    common::until("a checkpoint is begun", || {
        assert!(run.is_running(), "{}", run.output());
        let mut files = std::fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with("000001-"))
    });
    run.signal("-TERM");
    let partial = folder.path().join("model.partial");
    let saved = format!("their model is saved at {}, and", partial.display());
    let text = common::exits(3, run.wait(), &["has taken nothing for 10s", &saved]);
    let training = Model::load(partial, 1).unwrap().training.unwrap();
    assert!(training.ended == RunEnd::Drained && training.rows >= least, "{training:?} {text}");
    assert!(!model.exists() && !text.contains("starts it again"), "{text}");
    Some(text)
}

/// A bug: the drain was not noticed, and the run trained on until its last row.
#[test]
fn a_run_that_is_told_to_end_while_its_checkpoint_hangs_saves_its_model() {
    let Some(text) = told_to_end_while_its_checkpoint_hangs("train", &[], 10_000) else { return };
    assert!(text.contains("the run ends without it"), "{text}");
}

/// A bug: the run waited for the ps, which wait for the disk.
#[test]
fn a_launch_that_is_told_to_end_while_its_ps_cannot_write_saves_its_model() {
    let windows = "data.shuffle_rows=1000";
    told_to_end_while_its_checkpoint_hangs("launch", &["placement.readers=1", "placement.ps=2", windows], 8000);
    let two = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.staleness=4", windows];
    told_to_end_while_its_checkpoint_hangs("launch", &two, 1000);
}

/// With an exact order the trainers themselves write what they keep, and stand still meanwhile.
#[test]
fn a_launch_that_is_told_to_end_while_its_trainers_stand_still_for_a_checkpoint_that_hangs_saves_its_model() {
    let exact = ["train.sync=true", "train.staleness={exactly=2}", "data.shuffle_rows=1000"];
    let two = ["placement.readers=1", "placement.ps=1", "placement.trainers=2"];
    told_to_end_while_its_checkpoint_hangs("launch", &[&two[..], &exact].concat(), 1000);
}
