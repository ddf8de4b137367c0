//! The folder of `--report`: its JSON has all that the text says, and a browser draws its page.
//!
//! Needs Chromium (`make setup-chromium`).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The elements of a page after its scripts have run.
fn drawn(page: &Path, profile: &Path) -> String {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync", "--window-size=1200,800", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("Chromium is not there: make setup-chromium");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_browser_draws_the_run_and_its_json_has_all_that_the_text_says() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    // A name that would end the script of the page, if it were not escaped.
    let rows = at("</script><b>rows");
    let synth = common::forebay(&["data", "synth", "--rows", "60000", "--out", &rows]).output().unwrap();
    assert!(synth.status.success(), "{synth:?}");
    let output = common::forebay(&["train", "--report", &at("report"), "--set", "data.shuffle_rows=0"])
        .args(["--set", &format!("data.train=[{rows:?}]"), "--set", &format!("data.eval=[{rows:?}]")])
        .args(["--set", "train.batch_rows=256", "--set", "evaluation.every={ rows = 20000 }"])
        .output()
        .unwrap();
    let (code, text) = common::code_and_output(&output);
    assert_eq!(code, Some(0), "{text}");

    let report: Value = serde_json::from_str(&fs::read_to_string(at("report/report.json")).unwrap()).unwrap();
    assert_eq!(report["progress"]["rows"], 60000);
    assert!(report["cpu_seconds"].as_f64().unwrap() > 0.0 && report["peak_bytes"].as_u64().unwrap() > 0);
    let auc = report["evaluation"]["evaluation"]["auc"].as_f64().unwrap();
    assert!(text.contains(&format!("AUC {auc:.5}")), "{auc}: {text}");
    let points = report["evaluations"]["points"].as_array().unwrap();
    assert_eq!((points.len(), points[2]["rows"].as_u64()), (3, Some(60000)), "{points:?}");
    let best = report["evaluations"]["best"].as_u64().unwrap() + 1;
    let history = &report["history"];
    let samples = history["seconds"].as_array().unwrap();
    assert!(samples.len() > 1, "{history}");
    let names: Vec<&str> = report["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["read", "parse", "batch", "lookup", "train", "push"]);
    for (stage, name) in history["stages"].as_array().unwrap().iter().zip(&names) {
        assert_eq!(stage["name"], **name);
        assert_eq!(stage["busy"].as_array().unwrap().len(), samples.len());
    }

    let trace: Value = serde_json::from_str(&fs::read_to_string(at("report/trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slices = |name: &str| events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).count();
    let batches = report["stages"][4]["items_in"].as_u64().unwrap();
    assert_eq!((slices("train"), slices("push")), (batches as usize, batches as usize), "a slice for each batch");
    assert!(slices("shards") > 0 && events.iter().any(|event| event["ph"] == "f"), "no waits or no arrows");

    let page = drawn(&dir.path().join("report/report.html"), &dir.path().join("profile"));
    assert!(page.contains("data-drawn=\"1\""), "it was not drawn: {page}");
    for name in names {
        assert!(page.contains(&format!("<b>{name}</b>")), "{name} is not in the graph");
    }
    assert!(page.contains("&lt;/script&gt;&lt;b&gt;rows"), "the title lacks the rows");
    assert!(page.contains(&format!("{best} (best auc)")), "the evaluations are not on the page");
    // Rows and bytes per second, logloss, AUC and calibration, six stages, five links.
    assert_eq!(page.matches("<canvas").count(), 5 + 6 + 5, "{page}");
    assert!(page.contains("60,000") && page.contains(&format!("AUC {auc:.5}")));
}
