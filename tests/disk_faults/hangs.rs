//! A disk that hangs: its calls never return.

use std::path::Path;

use forebay::Model;
use forebay::pipelines::RunEnd;

use super::common::{self, Background};
use super::failing_disk::{hanging, runner};

/// What a run says whose store takes nothing of its last checkpoint.
const HANGS: &str = "has taken nothing for 10s";

/// A run that would take hours, in `folder`, whose checkpoints are on a disk that hangs. `command`: `train` or `launch`. `None`: the test
/// cannot run here.
fn started(folder: &Path, command: &str, more: &[&str]) -> Option<Background> {
    let (runner, disk) = (runner()?, folder.join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let settings = [
        format!("data.train={}", common::parquet(folder, 0, 2000).display()),
        format!("output.model={}", folder.join("model").display()),
        format!("checkpoint.to={}", disk.join("checkpoints").display()),
        "checkpoint.rows=10000".to_owned(),
        "data.epochs=1000000".to_owned(),
        "model.kind=lr".to_owned(),
        "train.threads=1".to_owned(),
        // The run waits for ten seconds at least.
        "output.retry_for=0s".to_owned(),
    ];
    let mut command = common::forebay(&[command]);
    let settings = settings.iter().map(String::as_str).chain(more.iter().copied());
    command.args(settings.flat_map(|setting| ["--set", setting])).current_dir(folder);
    Some(Background::start(&mut hanging(runner, &disk, "w", &command)))
}

/// Tells a run to end while its first checkpoint hangs, for ten seconds at least. `command`: `train` or `launch`. Its model must have
/// `least` rows. Returns its output; `None` if the test cannot run here.
fn asked_to_shut_down_while_its_checkpoint_hangs(command: &str, more: &[&str], least: u64) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut run = started(folder.path(), command, more)?;
    let checkpoints = folder.path().join("disk/checkpoints");
    common::until("a checkpoint is begun", || {
        assert!(run.is_running(), "{}", run.output());
        let mut files = std::fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with("000001-"))
    });
    run.signal("-TERM");
    let partial = folder.path().join("model.partial");
    let saved = format!("their model is saved at {}, and", partial.display());
    let text = common::exits(3, run.wait(), &[&saved]);
    let training = Model::load(partial, 1).unwrap().training.unwrap();
    assert!(training.ended == RunEnd::Drained && training.rows >= least, "{training:?} {text}");
    assert!(!folder.path().join("model").exists() && !text.contains("starts it again"), "{text}");
    Some(text)
}

/// A bug: the drain was not noticed, and the run trained on until its last row.
#[test]
fn a_run_that_is_asked_to_shut_down_while_its_checkpoint_hangs_saves_its_model() {
    let Some(text) = asked_to_shut_down_while_its_checkpoint_hangs("train", &[], 10_000) else { return };
    assert!(text.contains("the run ends without it") && text.contains(HANGS), "{text}");
}

/// A bug: the run waited for the ps, which wait for the disk.
#[test]
fn a_launch_that_is_asked_to_shut_down_while_its_ps_cannot_write_saves_its_model() {
    let windows = "data.shuffle_rows=1000";
    let one = ["placement.readers=1", "placement.ps=2", windows];
    let two = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.staleness=4", windows];
    for (placement, least) in [(&one[..], 8000), (&two, 1000)] {
        let Some(text) = asked_to_shut_down_while_its_checkpoint_hangs("launch", placement, least) else { return };
        assert!(text.contains(HANGS), "{text}");
    }
}

/// Two trainers with an exact order: they write what they keep, and stand still meanwhile.
const EXACT: [&str; 6] = [
    "placement.readers=1",
    "placement.ps=1",
    "placement.trainers=2",
    "train.sync=true",
    "train.staleness={exactly=2}",
    "data.shuffle_rows=1000",
];

#[test]
fn a_launch_that_is_asked_to_shut_down_while_its_trainers_stand_still_for_a_checkpoint_that_hangs_saves_its_model() {
    let Some(text) = asked_to_shut_down_while_its_checkpoint_hangs("launch", &EXACT, 1000) else { return };
    // The coordinator gives the cut up at the same time.
    assert!([HANGS, "the store did not take the gradients"].iter().any(|why| text.contains(why)), "{text}");
}

/// A bug: the trainers stood still forever.
#[test]
fn a_launch_whose_trainers_cannot_write_what_they_keep_goes_on_without_this_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut run) = started(folder.path(), "launch", &EXACT) else { return };
    // The next checkpoint is not due before the trainers have gone on for 10,000 rows.
    run.wait_for("has still not taken its part of checkpoint 1", 1);
    run.signal("-TERM");
    let saved = format!("their model is saved at {}, and", folder.path().join("model.partial").display());
    let given_up = ["a checkpoint is given up: trainer ", "goes on without its part of checkpoint 1", &saved];
    common::exits(3, run.wait(), &given_up);
}
