//! `forebay bench device` on the CPU and `forebay bench headspace`: the numbers agree with each other, and what cannot be
//! measured is refused.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{forebay, run};
use serde_json::Value;

const SMALL: [&str; 10] =
    ["bench", "device", "--tower", "16-8", "--batch-rows", "64,96", "--batches", "12", "--warm-up", "2"];

/// A small measurement, with `more` on top of its flags or in their place.
fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let kept = SMALL[2..].chunks(2).filter(|flag| !more.contains(&flag[0])).flatten().copied();
    ["bench", "device"].into_iter().chain(kept).chain(more.iter().copied()).collect()
}

/// One object a line on standard output.
fn lines(more: &[&str]) -> Vec<Value> {
    let output = forebay(&with(&[&["--json"], more].concat())).output().unwrap();
    common::exits(0, common::code_and_output(&output), &[]);
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sane(line: &Value, rows: u64, stages: &[&str]) {
    let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
    assert_eq!(line["batch_rows"], rows);
    // Batches that were under way when the measurement began do not count.
    assert!(line["rows"].as_u64().unwrap() >= rows && line["rows"].as_u64().unwrap() <= 12 * rows, "{line}");
    assert!((number("rows_per_second") - number("rows") / number("seconds")).abs() < 1.0, "{line}");
    assert!(number("busy_share") > 0.0 && number("busy_share") <= 1.0, "{line}");
    assert!((number("busy_share") + number("stall_share") - 1.0).abs() < 1e-9, "{line}");
    // 26 slots of 16 numbers and 13 dense features, 16, 8, 1: 6 flops a weight.
    let flops = 6.0 * f64::from((26 * 16 + 13) * 16 + 16 * 8 + 8);
    assert!((number("gflops_per_second") / (number("rows_per_second") * flops / 1e9) - 1.0).abs() < 1e-6, "{line}");
    let named: Vec<&str> =
        line["stage_nanoseconds_per_row"].as_array().unwrap().iter().map(|pair| pair[0].as_str().unwrap()).collect();
    assert_eq!(named, stages);
}

#[test]
fn the_native_backend_is_measured_inline() {
    let lines = lines(&["--backend", "native"]);
    assert_eq!(lines.len(), 2);
    for (line, rows) in lines.iter().zip([64, 96]) {
        assert_eq!((&line["transfers"], &line["tower"]), (&"inline".into(), &"16-8".into()));
        sane(line, rows, &["feed", "train", "done"]);
    }
    let text = common::exits(0, run(&with(&["--backend", "native"])), &[]);
    let table: Vec<&str> = text.lines().collect();
    assert!(table[0].contains("rows/s") && table[0].contains("stall"), "{text}");
    assert!(table[1].starts_with("16-8") && table[1].contains("inline") && table.len() == 3, "{text}");
}

#[test]
fn invalid_flags_are_refused_by_name() {
    for (more, words) in [
        (&["--batches", "7"][..], &["--batches", "at least 8"][..]),
        (&["--batch-rows", "0"], &["--batch-rows"]),
        (&["--unique-per-row", "0"], &["--unique-per-row is 0"]),
        (&["--unique-per-row", "27"], &["at most 26"]),
        (&["--unique-per-row", "NaN"], &["NaN"]),
        (&["--batch-rows", "many"], &["many"]),
        (&["--backend", "abacus"], &["abacus", "native"]),
        (&["--backend", "native", "--transfers", "apart"], &["train.transfers", "native"]),
        (&["--backend", "native", "--device", "cuda:0"], &["cuda:0", "cpu"]),
        (&["--tower", "wide"], &["wide"]),
        (&["--tower", "16-8,"], &["--tower has an empty entry"]),
    ] {
        common::exits(2, run(&with(more)), words);
    }
}

#[cfg(not(feature = "torch"))]
#[test]
fn without_libtorch_the_error_names_the_feature() {
    common::exits(2, run(&with(&["--backend", "torch"])), &["--features torch"]);
}

#[cfg(feature = "torch")]
#[test]
fn cpu_tensors_are_measured_apart_and_inline() {
    let lines = lines(&["--threads", "1"]);
    let ways: Vec<&Value> = lines.iter().map(|line| &line["transfers"]).collect();
    assert_eq!(ways, ["apart", "inline", "apart", "inline"]);
    for (line, rows) in lines.iter().zip([64, 64, 96, 96]) {
        let apart = line["transfers"] == "apart";
        let between = if apart { &["upload", "train", "download"][..] } else { &["train"] };
        sane(line, rows, &[&["feed"], between, &["done"]].concat());
    }
    common::exits(2, run(&with(&["--device", "gpu"])), &["\"gpu\" is unknown"]);
    common::exits(2, run(&with(&["--device", "cuda:4096"])), &["LD_LIBRARY_PATH"]);
}

#[test]
fn headspace_tells_the_speed_of_the_feed_and_of_training_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 3000);
    let train = format!("data.train={}", data.display());
    let small =
        ["--set", &train, "--set", "model.kind=lr", "--set", "model.hidden=[]", "--set", "train.batch_rows=256"];
    let all = ["bench", "headspace", "--rows", "1000", "--passes", "2"].into_iter().chain(small);
    let output = forebay(&all.clone().chain(["--json"]).collect::<Vec<_>>()).output().unwrap();
    common::exits(0, common::code_and_output(&output), &[]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Whole batches, once through the feed and twice through the training.
    assert_eq!((&found["feed"]["rows"], &found["training"]["rows"]), (&1024.into(), &2048.into()), "{found}");
    for part in ["feed", "training"] {
        let number = |name: &str| found[part][name].as_f64().unwrap_or_else(|| panic!("{name} in {found}"));
        assert!((number("rows_per_second") * number("seconds") / number("rows") - 1.0).abs() < 1e-6, "{found}");
    }
    let ran = run(&all.collect::<Vec<_>>());
    common::exits(0, ran, &["training, fed from memory", " is the limit", "memory", "lookup", "push"]);

    let several = ["bench", "headspace", "--set", &train, "--set", "placement.ps=1"];
    let (code, text) = run(&several);
    assert!(code != Some(0) && text.contains("placement"), "{text}");
    let (code, text) = run(&["bench", "headspace", "--set", "data.train=missing"]);
    assert!(code != Some(0) && text.contains("missing"), "{text}");
}

/// A bug: it waited forever for an evaluation that nothing made.
#[test]
fn headspace_of_a_job_that_evaluates_during_training_makes_no_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 1000);
    let train = format!("data.train={}", data.display());
    let settings = [
        &train,
        "data.eval=missing",
        "evaluation.every={ rows = 256 }",
        "evaluation.patience=2",
        "model.kind=lr",
        "model.hidden=[]",
    ];
    let settings = settings.iter().chain(&["train.batch_rows=256"]).flat_map(|setting| ["--set", setting]);
    let all: Vec<&str> = ["bench", "headspace", "--rows", "512"].into_iter().chain(settings).collect();
    let ended = common::Background::start(&mut forebay(&all)).wait();
    common::exits(0, ended, &["training, fed from memory"]);
}

#[test]
fn overlap_refuses_zeros_and_names_whole_paths() {
    for flag in ["--batch-rows", "--megabytes-per-second", "--epochs"] {
        let (code, text) = run(&["bench", "overlap", "--data", "rows", flag, "0"]);
        assert!(code == Some(2) && text.contains(flag), "{flag}: {text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.parquet").display().to_string();
    common::exits(2, run(&["bench", "overlap", "--data", &missing]), &[&format!("there is nothing at `{missing}`")]);
    let broken = dir.path().join("broken.parquet");
    std::fs::write(&broken, "these are no rows").unwrap();
    let broken = broken.display().to_string();
    let (code, text) = run(&["bench", "overlap", "--data", &broken]);
    assert!(code.is_some_and(|code| code != 0) && text.contains(&format!("`{broken}")), "{text}");
}
