//! `forebay plan` with the report of a training, from outside.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::common::{self, run};

const JOB: [&str; 6] = ["--set", "model.kind=lr", "--set", "train.batch_rows=64", "--set", "pipeline.cores=1"];

/// Trains on 6,000 rows and returns the path of the report.
fn report(dir: &Path) -> String {
    let rows = common::parquet(dir, 0, 6000);
    let (train, model) =
        (format!("data.train={}", rows.display()), format!("output.model={}", dir.join("model").display()));
    let report = dir.join("report.json").display().to_string();
    let (code, text) = run(&[&["train", "--set", &train, "--set", &model, "--report", &report][..], &JOB[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    report
}

fn planned(report: &str, more: &[&str]) -> (Option<i32>, String) {
    run(&[&["plan", "--profile", report][..], &JOB[..], more].concat())
}

#[test]
fn the_report_of_a_training_has_all_that_a_plan_needs() {
    let dir = tempfile::tempdir().unwrap();
    let path = report(dir.path());
    let report: Value = common::read_json(&path);
    assert_eq!(report["version"], 1);
    assert_eq!(report["settings"]["train"]["batch_rows"], 64);
    assert!(report["saved"]["bytes"].as_u64().unwrap() > 1000 && report["saved"]["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["stages"][0]["bytes_fetched"].as_u64().unwrap() > 1000, "{}", report["stages"][0]);
    let held = report["services"][0]["rows_held"].as_u64().unwrap();
    assert!(held > 1000, "{held}");
    let grown = report["history"]["table_rows"].as_array().unwrap();
    assert!(grown.iter().all(|rows| rows.as_u64().unwrap() <= held), "{grown:?}");

    // A run this short may have used no tick of the CPU's clock.
    if report["machine"]["cpu"] == json!(0.0) {
        return;
    }
    let (code, text) = planned(&path, &["--rows", "1e9", "--deadline", "100h", "--machine", "cores=2,price=0.5"]);
    assert_eq!(code, Some(0), "{text}");
    let dense = "each trainer: 14 dense parameters with 56 bytes of weights";
    for word in
        ["machines: ", "limits (rows/s, how busy)", "links", "table: ", dense, "checkpoint: ", "costs ", "assumed"]
    {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let (code, text) = planned(&path, &["--json", "--set", "placement.readers=2", "--set", "placement.ps=1"]);
    assert_eq!(code, Some(0), "{text}");
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["machines"], json!({ "readers": 2, "ps": 1, "trainers": 1 }));
    assert_eq!(plan["rows"], 6000.0);
    assert_eq!(plan["dense"]["parameters"], 14);
    // The rows of the larger run need not be there yet, nor the rows of the evaluation.
    let later =
        ["--set", "data.train=hdfs://nowhere.invalid:8020/next", "--set", "data.eval=next/year", "--rows", "1e6"];
    let text = common::exits(0, planned(&path, &later), &["machines: ", "1.000 M rows"]);
    assert!(!text.contains("nowhere"), "{text}");
}

#[test]
fn the_graph_of_a_job_comes_with_the_memory_of_its_dense_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let train = format!("data.train={}", common::parquet(dir.path(), 0, 10).display());
    let wide = ["plan", "--set", &train, "--set", "model.kind=ctr_dnn", "--set", "model.hidden=[30000, 20000]"];
    let text = common::exits(0, run(&wide), &[]);
    // 13 numbers and 26 embeddings of 16.
    let parameters = 429 * 30_000 + 30_000 + 30_000 * 20_000 + 20_000 + 20_001_u64;
    assert!(
        text.contains("612,940,001 dense parameters with 2.5 GB of weights") && parameters == 612_940_001,
        "{text}"
    );
    let text = common::exits(0, run(&[&wide[..], &["--json"]].concat()), &[]);
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["dense"]["parameters"], parameters);
    assert_eq!(plan["dense"]["gradients"], 9 * 4 * parameters);
    assert!(plan["stages"].is_array(), "{plan}");
}

/// A bug: all rows of the model were loaded first.
#[test]
fn the_graph_of_a_job_that_continues_from_a_model_does_not_load_it() {
    let dir = tempfile::tempdir().unwrap();
    report(dir.path());
    let model = dir.path().join("model");
    fs::remove_dir_all(model.join("tables")).unwrap();
    let (train, from) =
        (format!("data.train={}", dir.path().join("parquet-0").display()), format!("train.from={}", model.display()));
    let graph = |more: &[&str]| run(&[&["plan", "--set", &train, "--set", &from][..], &JOB[..], more].concat());
    let text = common::exits(0, graph(&[]), &[]);
    assert!(text.contains("14 dense parameters"), "{text}");
    // That it fits the job is checked.
    common::exits(2, graph(&["--set", "seed=77"]), &["cannot continue from the model", "seed"]);
    // A bug: scores were corrected by the new share, which the weights did not know.
    common::exits(2, graph(&["--set", "data.negatives=0.1"]), &["cannot continue from the model", "data.negatives"]);
}

#[test]
fn a_run_that_fails_replaces_the_report_of_an_earlier_one_and_is_not_planned_with() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, report) = (dir.path().join("rows.jsonl"), dir.path().join("report"));
    let columns = "columns={ label = 'label', dense = [], slots = [{ column = 'a', kind = 'int' }] }";
    let good: String = (0..3000).map(|i| format!("{{\"label\":{},\"a\":{}}}\n", i % 2, i % 37)).collect();
    let train = |text: &str| {
        fs::write(&rows, text).unwrap();
        let data = format!("data.train={}", rows.display());
        run(&[&["train", "--report", report.to_str().unwrap(), "--set", &data, "--set", columns][..], &JOB[..]]
            .concat())
    };
    let verdict = || -> Value {
        let text = fs::read_to_string(report.join("report.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["verdict"].take()
    };
    let (code, text) = train(&good);
    assert!(code == Some(0) && verdict()["state"] == "finished", "{}: {text}", verdict());

    common::exits(2, train(&format!("{good}{{\"label\":7,\"a\":1}}\n")), &[]);
    let message = verdict()["message"].as_str().unwrap().to_owned();
    assert!(verdict()["state"] == "failed" && message.contains("column `label` is 7"), "{}", verdict());
    let page = fs::read_to_string(report.join("report.html")).unwrap();
    assert!(page.contains("column `label` is 7"), "the page is that of the failed run, too");
    let (code, text) = planned(&report.join("report.json").display().to_string(), &[]);
    assert!(code == Some(2) && text.contains("its run failed") && text.contains("column `label` is 7"), "{text}");
}

#[test]
fn what_cannot_be_planned_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = report(dir.path());
    let refused = |report: &str, more: &[&str], words: &[&str]| {
        common::exits(2, planned(report, more), words);
    };
    refused("nowhere.json", &[], &["nowhere.json", "--report"]);
    let other = dir.path().join("other.json");
    fs::write(&other, "{}").unwrap();
    refused(&other.display().to_string(), &[], &["other.json", "no stages"]);
    refused(&path, &["--deadline", "soon"], &["deadline", "\"soon\"", "5h"]);
    refused(&path, &["--rows", "many"], &["rows", "\"many\"", "1e11"]);
    refused(&path, &["--rows", "1e300"], &["rows", "1e300", "1 to 1e18"]);
    refused(&path, &["--machine", "gpu:cores=1"], &["no role `gpu`", "reader, ps, trainer"]);
    refused(&path, &["--assume", "latency=1ms"], &["no assumption `latency`", "round_trip"]);
    refused(&path, &["--set", "train.batch_rows=32"], &["train.batch_rows is 64 there and 32 here"]);
    common::exits(2, run(&["plan", "--deadline", "5h"]), &["--profile"]);
}
