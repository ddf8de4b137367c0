//! Trainings that continue from the model of an earlier one: `train.from`, `output.state`.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::bits::Bits;
use super::damage::flip;
use super::jobs::{ENDLESS, Ended, Job, synth};

/// Rows of a day: 64 batches.
const DAY: u64 = 16_384;

/// So many days of so many rows, each in a folder of its own, and all of them in one.
fn days(count: u64, rows: u64) -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("all")).unwrap();
    for day in 0..count {
        let (first, out) = ((day * rows).to_string(), folder.path().join(format!("day-{day}")));
        let rows = rows.to_string();
        synth(&["--rows", &rows, "--first-row", &first, "--group-rows", "4096"], &out);
        for file in std::fs::read_dir(&out).unwrap().map(|file| file.unwrap()) {
            let name = format!("{day:02}-{}", file.file_name().into_string().unwrap());
            std::fs::copy(file.path(), folder.path().join("all").join(name)).unwrap();
        }
    }
    folder
}

/// A job over some of these rows in their order, without checkpoints. It keeps the state of the optimizers.
fn job(rows: &Path, more: &[&str]) -> Job {
    let train = format!("data.train={}", rows.display());
    let own = ["data.shuffle=false", "data.shuffle_rows=0", "output.state=true", &train];
    Job::without_checkpoints(&[&own, more].concat())
}

fn model_of(job: &Job) -> PathBuf {
    job.folder.path().join("model")
}

fn ended_well(ended: Ended) -> String {
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    ended.said
}

/// Trains the rows of all days at once, and then day by day, each day with a command and settings of its own. Compares the models.
fn compare(day_rows: u64, days: &[(&str, &[&str])], all: &[&str]) {
    let rows = self::days(days.len() as u64, day_rows);
    let at_once = job(&rows.path().join("all"), all);
    ended_well(at_once.run(&[]));
    let mut before: Option<Job> = None;
    for (day, (command, settings)) in days.iter().enumerate() {
        let job = job(&rows.path().join(format!("day-{day}")), settings);
        let from = before.as_ref().map(|job| model_of(job).display().to_string());
        let flags: Vec<&str> = from.iter().flat_map(|model| ["--from", model]).collect();
        let said = ended_well(job.run_command(command, &flags));
        if let Some(model) = &from {
            assert!(said.contains(&format!("continues from the model {model}")), "{said}");
        }
        before = Some(job);
    }
    let steps = std::fs::read_to_string(model_of(before.as_ref().unwrap()).join("manifest.json")).unwrap();
    assert!(steps.contains(&format!("\"steps\": {}", days.len() as u64 * day_rows / 256)), "{steps}");
    assert_eq!(Bits::read(&model_of(before.as_ref().unwrap())).difference(&at_once.model()), None);
}

#[test]
fn ten_days_one_by_one_give_the_model_of_all_at_once() {
    let adam = ["table.embedding_optimizer.kind=adam", "table.embedding_optimizer.lr=0.001"];
    // A quarter of the rows of other tests: ten programs are started.
    compare(DAY / 4, &[("train", &adam[..]); 10], &adam);
}

#[test]
fn days_may_be_trained_on_other_placements() {
    let apart: &[&str] = &["placement.readers=1", "placement.ps=2", "placement.dense=ps", "table.shards=2"];
    let dense_here: &[&str] = &["placement.readers=1", "placement.ps=1", "placement.dense=trainer"];
    compare(DAY, &[("launch", apart), ("launch", dense_here), ("train", &[])], &[]);
    compare(DAY, &[("train", &["table.shards=3"]), ("launch", apart), ("launch", apart)], &[]);
}

#[test]
fn keys_that_wait_and_the_age_of_rows_pass_from_day_to_day() {
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=8000", "table.eviction.max_rows=65536"];
    let apart = [&rules[..], &["placement.readers=1", "placement.ps=2", "table.shards=2"]].concat();
    compare(DAY, &[("train", &rules), ("launch", &apart), ("train", &rules)], &rules);
}

#[test]
fn a_model_without_state_gives_its_weights_alone() {
    let rows = days(2, DAY);
    let first = job(&rows.path().join("day-0"), &["output.state=false"]);
    ended_well(first.run(&[]));
    let from = model_of(&first).display().to_string();
    // Another optimizer: it starts without state in any case.
    let second = job(&rows.path().join("day-1"), &["train.optimizer.kind=sgd", "train.optimizer.lr=0.0"]);
    let said = ended_well(second.run(&["--from", &from]));
    assert!(said.contains("no state of optimizers, so they start without any"), "{said}");
    // With a learning rate of 0, the dense parameters are those of the first day.
    let dense = |job: &Job| std::fs::read(model_of(job).join("dense.safetensors")).unwrap();
    assert_eq!(dense(&first), dense(&second));
    assert!(second.model().keys() > first.model().keys(), "new keys have rows");
}

/// A bug: no rate could be changed without a loss of the state, which does not depend on it.
#[test]
fn a_learning_rate_may_change_and_the_state_stays() {
    let rows = days(2, DAY);
    let first = job(&rows.path().join("day-0"), &[]);
    ended_well(first.run(&[]));
    let from = model_of(&first).display().to_string();
    let second = job(&rows.path().join("day-1"), &["train.optimizer={kind=\"adam\", lr=0.0}"]);
    let said = ended_well(second.run(&["--from", &from]));
    assert!(!said.contains("start without any"), "{said}");
    // The steps of this day alone.
    assert!(said.contains("trained on 16,384 rows in ") && said.contains(", 64 steps, "), "{said}");
    let dense = |job: &Job| std::fs::read(model_of(job).join("dense.safetensors")).unwrap();
    assert_eq!(dense(&first), dense(&second), "with a learning rate of 0");
}

#[test]
fn a_run_with_checkpoints_continues_from_them_and_not_from_the_model_again() {
    let rows = days(2, DAY);
    let first = job(&rows.path().join("day-0"), &[]);
    ended_well(first.run(&[]));
    let from = model_of(&first).display().to_string();
    let folder = TempDir::new().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let to = format!("checkpoint.to={}", checkpoints.display());
    let killed = job(&rows.path().join("day-1"), &[&to, "checkpoint.rows=10000"]);
    let running = killed.start_with(&["--from", &from], &[ENDLESS]);
    running.until_said("checkpoint 1 after");
    running.signal(rustix::process::Signal::KILL);
    assert_eq!(running.end().code, None);
    killed.go_beyond(&checkpoints);
    let said = ended_well(killed.run(&["--from", &from, "--resume"]));
    assert!(said.contains("continues from checkpoint") && !said.contains("continues from the model"), "{said}");
    let undisturbed = job(&rows.path().join("day-1"), &[&format!("data.epochs={}", killed.epochs())]);
    ended_well(undisturbed.run(&["--from", &from]));
    assert_eq!(killed.model().difference(&undisturbed.model()), None);
}

#[test]
fn a_model_that_does_not_fit_is_refused_by_the_name_of_the_field() {
    let rows = days(2, DAY);
    let first = job(&rows.path().join("day-0"), &[]);
    ended_well(first.run(&[]));
    let from = model_of(&first).display().to_string();
    let refused = |command: &str, settings: &[&str], words: &[&str]| {
        let second = job(&rows.path().join("day-1"), settings);
        second.run_command(command, &["--from", &from]).with(2).saying(words);
        assert!(!model_of(&second).exists());
    };
    refused("train", &["model.embedding_dim=8"], &["model.embedding_dim is 4 there and 8 here"]);
    refused("train", &["seed=10"], &["seed is 9 there and 10 here"]);
    refused(
        "train",
        &["train.optimizer={kind=\"adam\", beta1=0.5}"],
        &["train.optimizer.beta1 is 0.9", "there and 0.5 here"],
    );
    refused("train", &["table.linear_optimizer={kind=\"ftrl\", alpha=0.5}"], &["table.linear_optimizer.alpha is "]);
    let link = rows.path().join("link");
    std::os::unix::fs::symlink(&from, &link).unwrap();
    let parent = link.with_file_name("../").join(rows.path().file_name().unwrap()).join("link");
    for same in [format!("{from}/"), format!("file://{from}"), link.display().to_string(), parent.display().to_string()]
    {
        refused("train", &[&format!("output.model={same}")], &["is where the run saves its own model"]);
    }
    refused("launch", &["placement.ps=1", "seed=10"], &["seed is 9 there and 10 here"]);
    let nothing = job(&rows.path().join("day-1"), &[]);
    let ended = nothing.run(&["--from", &rows.path().join("nothing").display().to_string()]).with(2);
    ended.saying(&["nothing is not a model folder"]);
    flip(&model_of(&first).join("optimizer.safetensors"));
    refused("train", &[], &["optimizer.safetensors", "is damaged"]);
}
