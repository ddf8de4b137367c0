//! A disk that hangs: its calls never return.

use forebay::Model;
use forebay::pipelines::RunEnd;

use super::common::{self, Background};
use super::failing_disk::{hanging, runner};

/// A bug: the drain was not noticed, and the run trained on until its last row.
#[test]
fn a_run_that_is_told_to_end_while_its_checkpoint_hangs_saves_its_model() {
    let Some(runner) = runner() else { return };
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
    let mut command = common::forebay(&["train"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting])).current_dir(folder.path());
    let mut run = Background::start(&mut hanging(runner, &disk, "w", &command));
    common::until("a checkpoint is begun", || {
        assert!(run.is_running(), "{}", run.output());
        let mut files = std::fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with("000001-"))
    });
    run.signal("-TERM");
    let partial = folder.path().join("model.partial");
    let saved = format!("their model is saved at {}, and", partial.display());
    let text = common::exits(3, run.wait(), &["has taken nothing for 10s", "the run ends without it", &saved]);
    let training = Model::load(partial, 1).unwrap().training.unwrap();
    assert!(training.ended == RunEnd::Drained && training.rows >= 10_000, "{training:?} {text}");
    assert!(!model.exists(), "{text}");
}
