//! `--tensorboard FOLDER`: TensorBoard itself reads what a run wrote, and it is what the report says.
//!
//! Needs tensorboard in `.tools/python` (`make setup-python`).
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::path::Path;
use std::process::Command;

use common::run;
use serde_json::Value;

/// Prints the numbers of a folder by name, as TensorBoard shows them: `{ name: [[step, value], ...] }`.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0}).Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
";

fn read(folder: &Path) -> Value {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/python/bin/python");
    assert!(python.exists(), "tensorboard is not there: make setup-python");
    let output = Command::new(python).args(["-c", READ]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn points<'a>(events: &'a Value, name: &str) -> &'a Vec<Value> {
    events[name].as_array().unwrap_or_else(|| panic!("{name} is missing among {events:?}"))
}

/// Rows to train and to evaluate on, and the settings of a small model.
fn settings(dir: &Path) -> Vec<String> {
    let (train, eval) = (common::parquet(dir, 0, 20_000), common::parquet(dir, 20_000, 4_000));
    let sets = [
        format!("data.train={}", train.display()),
        format!("data.eval={}", eval.display()),
        "model.kind=lr".into(),
        "train.batch_rows=500".into(),
        "data.epochs=2".into(),
        format!("output.model={}/model", dir.display()),
    ];
    sets.into_iter().flat_map(|set| ["--set".to_owned(), set]).collect()
}

/// Runs the program with settings, more arguments, and a report. Returns the report.
fn train(command: &str, dir: &Path, sets: &[String], more: &[&str]) -> Value {
    let report = dir.join("report.json");
    let mut args = vec![command, "--report", report.to_str().unwrap()];
    args.extend(sets.iter().map(String::as_str));
    args.extend(more);
    common::exits(0, run(&args), &[]);
    common::read_json(report)
}

#[test]
fn tensorboard_reads_the_evaluations_and_the_end_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let board = dir.path().join("board");
    let flags = ["--tensorboard", board.to_str().unwrap(), "--set", "evaluation.every={ epochs = 1 }"];
    let report = train("train", dir.path(), &settings(dir.path()), &flags);
    let events = read(&board);
    let last = |name: &str| points(&events, name).last().unwrap()[1].as_f64().unwrap();
    assert_eq!(points(&events, "train/rows").last().unwrap(), &serde_json::json!([80, 40_000.0]));
    assert!((last("train/logloss") - report["progress"]["logloss"].as_f64().unwrap()).abs() < 1e-6);
    for name in ["auc", "logloss"] {
        let written = points(&events, &format!("evaluation/{name}"));
        let expected = report["evaluations"]["points"].as_array().unwrap();
        assert_eq!(written.len(), 2, "{written:?}");
        for (written, expected) in written.iter().zip(expected) {
            assert_eq!(written[0], expected["steps"]);
            assert!((written[1].as_f64().unwrap() - expected[name].as_f64().unwrap()).abs() < 1e-6, "{written}");
        }
    }
    assert!(events["waiting batches/parse"].is_array(), "{events}");
}

#[test]
fn the_labels_of_the_best_model_are_at_its_step() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (rows, first, count) in [("train", "0", "6000"), ("eval", "6000", "3000")] {
        let synth = ["data", "synth", "--labels", "2", "--rows", count, "--first-row", first, "--out", &at(rows)];
        common::exits(0, run(&synth), &[]);
    }
    // So fast that later epochs are worse on other rows.
    let sets: [&str; 13] = [
        &format!("data.train={}", at("train")),
        &format!("data.eval={}", at("eval")),
        &format!("output.model={}", at("model")),
        "columns.label=['label', 'buy']",
        "model.kind=shared_bottom",
        "model.hidden=[8]",
        "model.embedding_dim=4",
        "train.batch_rows=100",
        "data.epochs=6",
        "train.optimizer={ kind = 'adam', lr = 0.02 }",
        "table.embedding_optimizer={ kind = 'adam', lr = 0.05 }",
        "evaluation.every={ epochs = 1 }",
        "evaluation.keep=best",
    ];
    let sets: Vec<String> = sets.into_iter().flat_map(|set| ["--set".to_owned(), set.to_owned()]).collect();
    let report = train("train", dir.path(), &sets, &["--tensorboard", &at("board")]);
    let best = &report["evaluations"]["points"][report["evaluations"]["best"].as_u64().unwrap() as usize];
    assert!(best["steps"].as_u64() < report["progress"]["steps"].as_u64(), "the last model is the best: {report}");
    let events = read(&dir.path().join("board"));
    for label in report["evaluation"]["evaluation"]["labels"].as_array().unwrap() {
        let points = points(&events, &format!("evaluation/auc/{}", label["label"].as_str().unwrap()));
        assert_eq!((points.len(), &points[0][0]), (1, &best["steps"]), "{points:?}");
        assert!((points[0][1].as_f64().unwrap() - label["auc"].as_f64().unwrap()).abs() < 1e-6, "{points:?}");
    }
}

#[test]
fn a_run_that_is_resumed_goes_on_in_the_same_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (board, first, second) = (dir.path().join("board"), dir.path().join("first"), dir.path().join("second"));
    let sets = settings(dir.path());
    let of_epochs = |n: i64| [&sets[..], &["--set".to_owned(), format!("data.epochs={n}")]].concat();
    let to = |folder: &Path| format!("checkpoint.to={}", folder.display());
    let often = ["--set", "checkpoint.rows=5000", "--set", "checkpoint.keep=1000", "--set"];
    let flags = [&["--tensorboard", board.to_str().unwrap()], &often[..]].concat();
    // On a fast machine it takes more epochs to a first checkpoint.
    let has_checkpoint = |epochs: &i64| {
        let _ = std::fs::remove_dir_all(&board);
        train("train", dir.path(), &of_epochs(*epochs), &[&flags[..], &[&to(&first)]].concat());
        first.join("checkpoint-000001.json").exists()
    };
    let epochs = [10, 100, 1000].into_iter().find(has_checkpoint).expect("one of these runs makes a checkpoint");
    let sets = of_epochs(epochs);
    // From its first checkpoint again: what was written for later steps is void.
    let from = format!("{}#1", first.display());
    train("train", dir.path(), &sets, &[&flags[..], &[&to(&second), "--resume-from", &from]].concat());
    let events = read(&board);
    let steps: Vec<i64> = points(&events, "train/rows").iter().map(|point| point[0].as_i64().unwrap()).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&(40 * epochs)), "{steps:?}");
    assert_eq!(points(&events, "evaluation/auc").len(), 1, "that of the first session is void: {events}");
}

#[test]
fn a_cluster_writes_the_stages_of_all_processes() {
    let dir = tempfile::tempdir().unwrap();
    let board = dir.path().join("board");
    let flags = ["--tensorboard", board.to_str().unwrap(), "--set", "placement.readers=1", "--set", "placement.ps=1"];
    let report = train("launch", dir.path(), &settings(dir.path()), &flags);
    let events = read(&board);
    assert_eq!(points(&events, "train/rows").last().unwrap()[1], 40_000.0);
    let auc = points(&events, "evaluation/auc");
    assert_eq!(auc.len(), 1);
    let expected = report["evaluation"]["evaluation"]["auc"].as_f64().unwrap();
    assert!((auc[0][1].as_f64().unwrap() - expected).abs() < 1e-6);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let sets = settings(dir.path());
    for command in ["train", "launch"] {
        let mut args = vec![command.to_owned(), "--tensorboard".into(), file.display().to_string()];
        args.extend(sets.clone());
        if command == "launch" {
            args.extend(["--set".into(), "placement.readers=1".into()]);
        }
        let ran = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let text = common::exits(2, ran, &["--tensorboard is ", "file, which is not a folder"]);
        assert!(!text.contains("trained on"), "{text}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}
