//! `forebay eval --follow`: the checkpoints of a run are evaluated beside it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::common;
use super::damage::flip;
use super::jobs::{ENDLESS, Job, ROWS, Running, rows};

fn follow(job: &Job, more: &[&str]) -> Running {
    job.spawn(command(job, more))
}

fn command(job: &Job, more: &[&str]) -> Command {
    let mut command = common::forebay(&["eval", "--follow", "--json", "--data"]);
    command.arg(rows("parquet")).arg("--model").arg(job.checkpoints());
    command.args(more);
    command
}

fn evaluations(said: &str) -> Vec<Value> {
    said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until there are so many evaluations. Returns them.
fn until_evaluations(follower: &mut Running, number: usize) -> Vec<Value> {
    loop {
        let found = evaluations(&follower.said());
        if found.len() >= number {
            return found;
        }
        follower.check_runs();
    }
}

/// The AUC that `forebay eval` says of a model folder.
fn auc_of(model: &Path) -> f64 {
    let mut command = common::forebay(&["eval", "--json", "--data"]);
    command.arg(rows("parquet")).arg("--model").arg(model);
    let said = command.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice::<Value>(&said.stdout).unwrap()["auc"].as_f64().unwrap()
}

#[test]
fn the_checkpoints_of_a_run_are_evaluated_as_they_appear_and_the_best_model_is_kept() {
    let job = Job::new("parquet", &[ENDLESS]);
    let best = job.folder.path().join("best");
    // It begins before the run.
    let mut follower = follow(&job, &["--best", best.to_str().unwrap()]);
    follower.until_said("waiting for checkpoints in");
    let running = job.start(&[]);
    until_evaluations(&mut follower, 3);
    running.signal(Signal::KILL);
    running.end();
    follower.signal(Signal::TERM);
    let ended = follower.end().with(0);
    let found = evaluations(&ended.said);
    for pair in found.windows(2) {
        for field in ["checkpoint", "trained_rows"] {
            assert!(pair[0][field].as_u64().unwrap() < pair[1][field].as_u64().unwrap(), "{found:?}");
        }
    }
    let value = |of: &Value| of["auc"].as_f64().unwrap();
    let newest_best = found.iter().rfind(|one| one["is_best"] == true).unwrap();
    assert!(found.iter().all(|one| value(one) <= value(newest_best)), "{found:?}");
    assert_eq!(auc_of(&best), value(newest_best));
}

/// Two trainers, and the dense parameters in blocks of two ps.
#[test]
fn the_checkpoints_of_a_cluster_are_evaluated() {
    let processes = ["placement.trainers=2", "placement.ps=2", "placement.readers=1", "data.epochs=1"];
    // The newest checkpoint is compared with the model, so it must be near the end of the run.
    let near_the_end = |job: &Job| job.rows_of_newest() > ROWS / 10 * 9;
    let job = (0..20).map(|_| Job::new("parquet", &processes)).find(|job| {
        job.run_command("launch", &[]).with(0);
        near_the_end(job)
    });
    let job = job.expect("one of 20 runs makes a checkpoint shortly before its end");
    let mut follower = follow(&job, &[]);
    until_evaluations(&mut follower, 1);
    follower.until_said(&format!("waiting for a checkpoint after {}", job.newest()));
    follower.signal(Signal::TERM);
    let ended = follower.end().with(0);
    let [newest] = evaluations(&ended.said).try_into().unwrap();
    assert_eq!(newest["checkpoint"], job.newest());
    let (auc, of_model) = (newest["auc"].as_f64().unwrap(), auc_of(&job.folder.path().join("model")));
    assert!((auc - of_model).abs() < 0.01 && auc > 0.6, "{auc} {of_model}");
}

/// The checkpoint has the types of the columns.
#[test]
fn a_checkpoint_is_evaluated_without_the_files_that_its_run_read() {
    let train = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(rows("parquet")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), train.path().join(file.file_name())).unwrap();
    }
    let job = Job::new("parquet", &[&format!("data.train={}", train.path().display())]);
    job.kill_after(3, &[]);
    train.close().unwrap();
    let mut follower = follow(&job, &[]);
    assert_eq!(until_evaluations(&mut follower, 1)[0]["checkpoint"], job.newest());
    follower.signal(Signal::TERM);
    assert_eq!(follower.end().code, Some(0));
}

#[test]
fn it_ends_when_the_metric_does_not_improve_and_passes_over_a_damaged_checkpoint() {
    let job = Job::new("parquet", &[]);
    job.kill_after(3, &[]);
    // The rows of the newest one; the one before is evaluated.
    let newest = format!("{:06}-", job.newest());
    let damaged = job.files().into_iter().find(|file| file.starts_with(&newest) && file.ends_with(".arrow")).unwrap();
    flip(&job.checkpoints().join(damaged));
    // No AUC is better by so much.
    let mut follower = follow(&job, &["--patience", "1", "--min-delta", "0.9"]);
    assert_eq!(until_evaluations(&mut follower, 1)[0]["checkpoint"], job.newest() - 1);
    let resumed = job.start_with(&["--resume"], &[ENDLESS]);
    let ended = follower.end().with(0).saying(&["did not improve in the last evaluation"]);
    resumed.signal(Signal::KILL);
    resumed.end();
    assert_eq!(evaluations(&ended.said).len(), 2);
}

#[test]
fn a_follower_that_is_started_again_keeps_the_best_model_of_its_run_and_starts_again_with_another_run() {
    let job = Job::new("parquet", &[]);
    job.kill_after(3, &[]);
    let best = job.folder.path().join("best");
    let kept = || std::fs::metadata(best.join("manifest.json")).map(|file| file.ino()).ok();
    let mut follower = follow(&job, &["--best", best.to_str().unwrap()]);
    assert_eq!(until_evaluations(&mut follower, 1)[0]["is_best"], true);
    follower.signal(Signal::KILL);
    follower.end();
    let of_first = kept();
    assert!(of_first.is_some());

    // The same checkpoint is not better than itself.
    let mut follower = follow(&job, &["--best", best.to_str().unwrap()]);
    let again = &until_evaluations(&mut follower, 1)[0];
    assert_eq!((&again["checkpoint"], &again["is_best"]), (&job.newest().into(), &false.into()), "{again}");
    assert!(follower.said().contains("the best model of this run so far is at"), "{}", follower.said());
    assert_eq!(kept(), of_first);

    // Another run in the same folder, whose numbers begin with 1.
    let of_other = Job::new("parquet", &["seed=77"]);
    of_other.kill_after(2, &[]);
    std::fs::rename(job.checkpoints(), job.folder.path().join("before")).unwrap();
    std::fs::rename(of_other.checkpoints(), job.checkpoints()).unwrap();
    let other = &until_evaluations(&mut follower, 2)[1];
    assert_eq!((&other["checkpoint"], &other["is_best"]), (&job.newest().into(), &true.into()), "{other}");
    follower.signal(Signal::TERM);
    follower.end().with(0).saying(&["is of another run"]);
    assert_ne!(kept(), of_first);
    assert_eq!(auc_of(&best), other["auc"].as_f64().unwrap());
}

/// A bug: the command never looked again. There was no best model until one was better than the one that was removed, and a worse one
/// replaced one that had come back.
#[test]
fn a_best_model_that_is_removed_makes_room_for_a_later_one_and_counts_again_when_it_is_back() {
    let job = Job::new("parquet", &[]);
    let [best, away] = ["best", "away"].map(|name| job.folder.path().join(name));
    job.kill_after(3, &[]);
    let follower = follow(&job, &["--best", best.to_str().unwrap()]);
    // Returns all evaluations, once they include the newest checkpoint.
    let all = || {
        follower.until_said(&format!("waiting for a checkpoint after {};", job.newest()));
        evaluations(&follower.said())
    };
    let first = all().remove(0);
    std::fs::rename(&best, &away).unwrap();
    job.kill_after(job.newest() + 1, &["--resume"]);
    let before = all().len();
    assert!(before > 1 && best.join("manifest.json").exists());

    std::fs::remove_dir_all(&best).unwrap();
    std::fs::rename(&away, &best).unwrap();
    job.kill_after(job.newest() + 1, &["--resume"]);
    let after = all().split_off(before);
    follower.signal(Signal::TERM);
    follower.end().with(0).saying(&["is no longer at", "the best model of this run so far is at"]);
    let value = |of: &Value| of["auc"].as_f64().unwrap();
    let newest_best = after.iter().rfind(|one| one["is_best"] == true).unwrap_or(&first);
    assert!(after.iter().all(|one| value(one) <= value(newest_best)), "{first} {after:?}");
    assert!(value(newest_best) >= value(&first), "{first} {after:?}");
    assert_eq!(auc_of(&best), value(newest_best));
}

/// A bug: the command ended, and did not print the evaluation.
#[test]
fn a_best_model_that_the_disk_does_not_take_is_saved_when_there_is_room_and_an_error_at_the_end() {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    let best = job.folder.path().join("best");
    let manifest = best.join("manifest.json");
    let started = || {
        let follow = command(&job, &["--best", best.to_str().unwrap()]);
        let mut follower = job.spawn(with_short_files(&follow));
        follower.until_said("the best model so far cannot be saved");
        follower.check_runs();
        let said = follower.said();
        let (evaluation, warning) = (said.find("\"is_best\":true").unwrap(), said.find("cannot be saved").unwrap());
        assert!(evaluation < warning && !manifest.exists(), "{said}");
        follower
    };
    let follower = started();
    follower.signal(Signal::TERM);
    follower.end().with(3).saying(&["error: the best model so far cannot be saved"]);

    let mut follower = started();
    follower.lift_limit();
    while !manifest.exists() {
        follower.check_runs();
    }
    follower.until_said("the best model so far is saved now");
    follower.signal(Signal::TERM);
    let ended = follower.end();
    let [evaluation] = evaluations(&ended.said).try_into().unwrap();
    assert_eq!((ended.code, auc_of(&best)), (Some(0), evaluation["auc"].as_f64().unwrap()), "{}", ended.said);
}

/// The command in a process that cannot write long files until [`Running::lift_limit`].
fn with_short_files(command: &Command) -> Command {
    let mut limited = Command::new("bash");
    limited.args(["-c", r#"ulimit -S -f 64; exec "$0" "$@""#]).arg(command.get_program()).args(command.get_args());
    limited
}

/// For instance while a folder is copied from another machine, file by file.
#[test]
fn it_waits_while_no_checkpoint_is_whole() {
    let job = Job::new("parquet", &[]);
    job.kill_after(2, &[]);
    let elsewhere = job.folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let files = job.files();
    let (manifests, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.ends_with(".json"));
    let (_, older) = manifests.split_last().expect("a checkpoint");
    // An older checkpoint would be whole before all files of the newest one are back.
    for file in others.iter().chain(older) {
        std::fs::rename(job.checkpoints().join(file), elsewhere.join(file)).unwrap();
    }
    assert!(!others.is_empty());
    let mut follower = follow(&job, &[]);
    follower.until_said("waiting for one that is whole");
    for file in &others {
        std::fs::rename(elsewhere.join(file), job.checkpoints().join(file)).unwrap();
    }
    until_evaluations(&mut follower, 1);
    follower.signal(Signal::TERM);
    let ended = follower.end();
    assert_eq!(
        (ended.code, &evaluations(&ended.said)[0]["checkpoint"]),
        (Some(0), &job.newest().into()),
        "{}",
        ended.said
    );
}

#[test]
fn it_ends_when_nobody_reads_its_evaluations_any_more() {
    let job = Job::new("parquet", &[]);
    job.kill_after(1, &[]);
    let follow = format!(
        "{} eval --follow --json --data {} --model {} 2>/dev/null | head -n 1",
        env!("CARGO_BIN_EXE_forebay"),
        rows("parquet").display(),
        job.checkpoints().display()
    );
    // The shell waits for both ends of the pipe.
    let mut command = Command::new("sh");
    command.args(["-c", &follow]);
    let ended = job.spawn(command).end();
    assert_eq!((ended.code, evaluations(&ended.said).len()), (Some(0), 1), "{}", ended.said);
}

#[test]
fn a_model_folder_is_not_followed() {
    let job = Job::new("parquet", &["data.epochs=1"]);
    assert_eq!(job.run(&[]).code, Some(0));
    let model = job.folder.path().join("model");
    let mut command = common::forebay(&["eval", "--follow", "--data"]);
    command.arg(rows("parquet")).arg("--model").arg(&model);
    job.spawn(command).end().with(2).saying(&["has a manifest.json"]);
}
