//! A disk or a file that cannot be reached while a run, or a process of a launch, is started again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{self, Background};
use super::disk::Disk;
use super::rescue::bind;
use super::{drained_after_two_checkpoints, kill_role, rows_in, train};

/// `forebay launch` of a long job with these settings.
fn launch(dir: &Path, more: &[&str]) -> Command {
    let mut command = common::forebay(&["launch"]);
    let rows = format!("data.train={}", rows_in(dir).display());
    let fixed = ["model.kind=lr", "train.batch_rows=128", "data.epochs=1000000", "placement.ps=1", rows.as_str()];
    for setting in fixed.iter().chain(more) {
        command.args(["--set", setting]);
    }
    command.current_dir(dir);
    command
}

/// Makes `link` lead to `target` from one moment to the next. If there is no target, no process can make a folder below the link, as below
/// the mount point of a disk that is not mounted.
fn lead(link: &Path, target: &str) {
    let other = link.with_extension("other");
    symlink(target, &other).unwrap();
    fs::rename(&other, link).unwrap();
}

/// A launch that has made checkpoints, which cannot be reached. One of its processes was killed since. Returns the link that led to them.
fn without_its_checkpoints(dir: &Path, victim: &str, more: &[&str]) -> (Background, PathBuf) {
    let link = dir.join("disk");
    fs::create_dir(dir.join("mounted")).unwrap();
    lead(&link, "mounted");
    let checkpoints = format!("checkpoint.to={}", link.join("checkpoints").display());
    let fixed = ["placement.readers=1", "checkpoint.rows=20000", checkpoints.as_str()];
    let mut run = Background::start(&mut launch(dir, &[&fixed, more].concat()));
    run.wait_for("INFO checkpoint ", 2);
    lead(&link, "nowhere");
    kill_role(&run, victim);
    (run, link)
}

const WAITS: &str = "the run waits for its checkpoints, trying again for ";

/// A bug: the run trained on all its rows anew. The trainer is no coordinator, and the ps is.
#[test]
fn a_launched_run_waits_for_the_disk_of_its_checkpoints_and_continues_from_them() {
    for victim in ["trainer", "ps"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut run, link) = without_its_checkpoints(dir.path(), victim, &[]);
        run.wait_for(WAITS, 1);
        lead(&link, "mounted");
        run.wait_for("continues from checkpoint ", 1);
        assert!(!run.output().contains("was written by another run"), "{victim}: {}", run.output());
        drained_after_two_checkpoints(run, &["has no checkpoint now, and the run has made checkpoints there"]);
    }
}

#[test]
fn a_launched_run_whose_checkpoints_stay_away_ends_and_does_not_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let (run, ..) = without_its_checkpoints(dir.path(), "ps", &["output.retry_for=1s"]);
    let text = common::exits(3, run.wait(), &["has no checkpoint now, and the run has made checkpoints there"]);
    assert_eq!(text.matches("all members joined").count(), 1, "{text}");
}

/// A bug: the run ended, and said that nothing was trained. The first trainer holds no state, so the run goes on without a new attempt.
#[test]
fn a_launched_run_goes_on_while_the_rows_of_its_evaluation_are_away() {
    let dir = tempfile::tempdir().unwrap();
    let (eval, away) = (common::parquet(dir.path(), 2000, 500), dir.path().join("away"));
    let eval_at = format!("data.eval={}", eval.display());
    let no_state = ["placement.trainers=2", "train.staleness=2", "placement.readers=1", eval_at.as_str()];
    let mut run = Background::start(&mut launch(dir.path(), &no_state));
    run.wait_for("all members joined", 1);
    fs::rename(&eval, &away).unwrap();
    kill_role(&run, "trainer .*--rank 0");
    run.wait_for("trainer 0 joined", 2);
    run.wait_for("WARN the model could not be evaluated on data.eval now: ", 1);
    fs::rename(&away, &eval).unwrap();
    run.signal("-TERM");
    let (code, text) = run.wait();
    assert!(code == Some(5) && !text.contains("nothing is trained"), "{text}");
}

/// A bug: the run went on with a warning that its best model was gone, and wrote to the disk beneath.
#[test]
fn a_run_that_goes_on_waits_for_the_disk_of_its_model() {
    for launched in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let Some(store) = Disk::mount(dir.path().join("store")) else { return };
        let point = dir.path().join("disk");
        fs::create_dir(&point).unwrap();
        let unmount = || assert!(Command::new("umount").arg("--lazy").arg(&point).status().unwrap().success());
        let model = format!("output.model={}", point.join("models/model").display());
        let eval = format!("data.eval={}", common::parquet(dir.path(), 2000, 500).display());
        let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        // Only a run in one process evaluates while it trains.
        let keeps =
            if launched { &[][..] } else { &["evaluation.every={ rows = 20000 }", "evaluation.keep=best", &eval] };
        let more = [keeps, &["checkpoint.rows=20000", &model, &checkpoints]].concat();
        let command = |resume: &[&str], retry_for: &str| {
            let more = [&more[..], &["data.epochs=1000000", "train.batch_rows=128", retry_for]].concat();
            let mut command = match launched {
                true => launch(dir.path(), &[&more[..], &["placement.readers=1"]].concat()),
                false => train(dir.path(), &more),
            };
            command.args(resume);
            command
        };
        bind(&store.0, &point);
        let mut first = Background::start(&mut command(&[], "output.retry_for=1s"));
        first.wait_for(if launched { "INFO checkpoint " } else { "evaluation 2" }, 1);
        drained_after_two_checkpoints(first, &[]);
        unmount();
        let resume = if launched { &["--resume", "--restarts", "0"][..] } else { &["--resume"] };
        let ended = common::ended(&mut command(resume, "output.retry_for=1s"));
        let text = common::exits(3, ended, &["is not mounted any more", "name another output.model"]);
        assert!(!text.contains("is neither beside output.model"), "{text}");
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "{text}");
        let mut run = Background::start(&mut command(&["--resume"], "output.retry_for=10min"));
        run.wait_for("the run waits for the disk of output.model, trying again for ", 1);
        bind(&store.0, &point);
        run.wait_for("INFO checkpoint ", 1);
        assert!(!run.output().contains("is neither beside output.model"), "{}", run.output());
        drained_after_two_checkpoints(run, &["continues from checkpoint "]);
        assert!(launched || store.0.join("models").is_dir());
        unmount();
    }
}
