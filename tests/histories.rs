//! Rows with histories, and attention to them: `forebay data synth --history`, training in one process and in several, bad rows.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{bits, run};
use forebay::Job;

/// Makes rows with histories of up to 8 items.
fn rows(dir: &Path, first: u64, rows: u64) -> PathBuf {
    let folder = dir.join(format!("rows-{first}"));
    let (first, rows) = (first.to_string(), rows.to_string());
    let out = folder.to_str().unwrap();
    let made = ["data", "synth", "--rows", &rows, "--first-row", &first, "--history", "8", "--out", out];
    common::exits(0, run(&made), &[]);
    folder
}

/// A job with attention over them.
fn text(data: &Path, model: &Path) -> String {
    format!(
        "seed = 9\n[data]\ntrain = {data:?}\nshuffle_rows = 3000\n[columns]\ndense = [\"I1..I3\"]\n\
         slots = [{{ column = \"C1..C4\", kind = \"hex\" }}, \"item\", {{ column = \"history\", key_space = \"item\", last = 6 }}]\n\
         [model]\nkind = \"din\"\nembedding_dim = 8\nhidden = [24, 12]\n\
         attention = [{{ history = \"history\", target = \"item\" }}]\nattention_hidden = [16, 8]\n\
         [train]\nbatch_rows = 256\nthreads = 1\n[output]\nmodel = {model:?}\n"
    )
}

#[test]
fn attention_has_the_same_bits_in_one_process_and_in_several() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (rows(dir.path(), 0, 4000), dir.path().join("model"));
    let text = text(&data, &model);
    let trained = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        bits(&common::train(Job::from_toml(&text, &settings).unwrap()))
    };
    let reference = trained(&[]);
    assert!(reference.0.iter().any(|(name, _)| name == "attention.0.1.slope"));
    let replicas = ["pipeline.parse_replicas=3", "pipeline.batch_replicas=2", "data.read_rows=700", "table.shards=3"];
    for settings in [&replicas[..], &["train.threads=2"]] {
        assert!(trained(settings) == reference, "{settings:?}");
    }
    assert!(trained(&["columns.slots=['item', 'history']"]) != reference, "the comparison can fail");

    let file = dir.path().join("job.toml");
    fs::write(&file, &text).unwrap();
    let version = |command, settings: &[&str]| common::version_after(command, &file, settings, &model);
    let alone = version("train", &[]);
    assert_eq!(version("launch", &["placement.readers=1", "placement.ps=2"]), alone);
}

#[cfg(feature = "torch")]
#[test]
fn the_backends_train_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (rows(dir.path(), 0, 2000), dir.path().join("model"));
    let test = rows(dir.path(), 2000, 1000);
    let file = dir.path().join("job.toml");
    fs::write(&file, text(&data, &model)).unwrap();
    let auc = |settings: &[&str]| -> f64 {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        common::exits(0, run(&[&["train", file.to_str().unwrap()][..], &settings].concat()), &[]);
        let ran = run(&["eval", "--model", model.to_str().unwrap(), "--data", test.to_str().unwrap(), "--json"]);
        let said = common::exits(0, ran, &[]);
        serde_json::from_str::<serde_json::Value>(said.trim()).unwrap()["auc"].as_f64().unwrap()
    };
    let (native, torch) = (auc(&[]), auc(&["train.backend=torch"]));
    assert!((native - torch).abs() < 0.002, "{native} {torch}");
    let other = auc(&["model.attention_activation=sigmoid"]);
    assert!((native - other).abs() > 1e-6, "{native} {other}");
}

#[test]
fn histories_are_not_written_as_text_and_have_a_largest_length() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("rows");
    let made = ["data", "synth", "--rows", "10", "--out", out.to_str().unwrap(), "--history"];
    common::exits(2, run(&[&made[..], &["3", "--format", "criteo"]].concat()), &["only rows in Criteo's shape"]);
    common::exits(2, run(&[&made[..], &["10001"]].concat()), &["--history is 10001, expected at most 10000"]);
}
