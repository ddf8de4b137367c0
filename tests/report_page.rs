//! The folder of `--report`: its JSON has all that the text says, and a browser draws its page.
//!
//! Needs Chromium (`make setup-chromium`).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
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
    let run = || {
        let output = common::forebay(&["train", "--report", &at("report"), "--set", "data.shuffle_rows=0"])
            .args(["--set", &format!("data.train=[{rows:?}]"), "--set", &format!("data.eval=[{rows:?}]")])
            .args(["--set", "train.batch_rows=256", "--set", "evaluation.every={ rows = 20000 }"])
            // No evaluation but the first is an improvement.
            .args(["--set", "evaluation.min_delta=0.5", "--set", "evaluation.reduce_lr_on_plateau={}"])
            .output()
            .unwrap();
        let text = common::exits(0, common::code_and_output(&output), &[]);
        let report: Value = common::read_json(at("report/report.json"));
        (text, report)
    };
    // A run whose main thread had no core until its end has one sample, and no charts: then the test tries again.
    let samples = |report: &Value| report["history"]["seconds"].as_array().unwrap().len();
    let mut runs = std::iter::repeat_with(run).take(20);
    let (text, report) = runs.find(|(_, report)| samples(report) > 1).expect("a run has two samples");
    assert_eq!(report["progress"]["rows"], 60000);
    assert!(report["cpu_seconds"].as_f64().unwrap() > 0.0 && report["peak_bytes"].as_u64().unwrap() > 0);
    // Read once, at the end of the training: not again after the evaluation.
    let peak = report["peak_bytes"].as_u64().unwrap() >> 20;
    assert!(text.contains(&format!("used {:.1} CPU seconds", report["cpu_seconds"].as_f64().unwrap())), "{text}");
    assert!(text.contains(&format!("at most {peak} MiB of memory")), "{peak}: {text}");
    let auc = report["evaluation"]["evaluation"]["auc"].as_f64().unwrap();
    assert!(text.contains(&format!("AUC {auc:.5}")), "{auc}: {text}");
    let points = report["evaluations"]["points"].as_array().unwrap();
    assert_eq!((points.len(), points[2]["rows"].as_u64()), (3, Some(60000)), "{points:?}");
    let best = report["evaluations"]["best"].as_u64().unwrap() + 1;
    let history = &report["history"];
    let names: Vec<&str> = report["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["read", "parse", "batch", "lookup", "train", "push"]);
    for (stage, name) in history["stages"].as_array().unwrap().iter().zip(&names) {
        assert_eq!(stage["name"], **name);
        assert_eq!(stage["busy"].as_array().unwrap().len(), samples(&report));
    }

    let trace: Value = common::read_json(at("report/trace.json"));
    let events = trace["traceEvents"].as_array().unwrap();
    let slices =
        |of: &str, name: &str| events.iter().filter(|event| event["cat"] == of && event["name"] == name).count();
    let batches = report["stages"][4]["items_in"].as_u64().unwrap() as usize;
    assert_eq!((slices("batch", "train"), slices("batch", "push")), (batches, batches), "a slice for each batch");
    // One shard answers a call for each batch; evaluations look up rows, too.
    assert!(slices("call", "pull") >= batches && slices("call", "push") == batches);
    assert!(slices("wait", "shards") > 0 && events.iter().any(|event| event["ph"] == "f"), "no waits or no arrows");

    let page = drawn(&dir.path().join("report/report.html"), &dir.path().join("profile"));
    assert!(page.contains("data-drawn=\"1\""), "it was not drawn: {page}");
    for name in names {
        assert!(page.contains(&format!("<b>{name}</b>")), "{name} is not in the graph");
    }
    assert!(page.contains("&lt;/script&gt;&lt;b&gt;rows"), "the title lacks the rows");
    assert!(page.contains(&format!("{best} (best auc)")), "the evaluations are not on the page");
    assert_eq!(points[1]["reduced_lr"], true, "{points:?}");
    for (number, point) in (1..).zip(points) {
        let is_best = if number == best { " (best auc)" } else { "" };
        let says = page.contains(&format!("{number}{is_best}, learning rates reduced"));
        assert_eq!(says, point["reduced_lr"] == true, "evaluation {number}: {points:?}");
    }
    // Rows and bytes per second, logloss, AUC and calibration, six stages, five links.
    assert_eq!(page.matches("<canvas").count(), 5 + 6 + 5, "{page}");
    assert!(page.contains("60,000") && page.contains(&format!("AUC {auc:.5}")));
}

/// Begin and end in microseconds, and epoch, window and number of the batch if it has these.
type Slice = (f64, f64, Option<[u64; 3]>);

/// What the events of a trace say about one process: its name, and the slices of each thread.
#[derive(Default)]
struct TracedProcess {
    name: String,
    slices: BTreeMap<u64, Vec<Slice>>,
}

fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap_or_else(|| panic!("no {field}: {event}"))
}

fn traced(events: &[Value]) -> BTreeMap<u64, TracedProcess> {
    let mut processes = BTreeMap::<u64, TracedProcess>::new();
    for event in events {
        let process = processes.entry(number(event, "pid")).or_default();
        match event["ph"].as_str().unwrap() {
            "M" if event["name"] == "process_name" => {
                event["args"]["name"].as_str().unwrap().clone_into(&mut process.name)
            }
            "X" => {
                let (began, took) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                assert!(began >= 0.0 && took >= 0.0, "{event}");
                let args = &event["args"];
                let batch = args["index"].as_u64().map(|index| [number(args, "epoch"), number(args, "window"), index]);
                process.slices.entry(number(event, "tid")).or_default().push((began, began + took, batch));
            }
            _ => {}
        }
    }
    processes
}

/// The batches that arrows follow from a reader to the trainer. Each arrow has one begin and one end, goes forward in time, and each of its
/// points lies in a slice.
fn followed(trace: &Value) -> BTreeSet<(String, [u64; 3])> {
    let events = trace["traceEvents"].as_array().unwrap();
    let processes = traced(events);
    let mut arrows = BTreeMap::<u64, Vec<(&Value, u64)>>::new();
    for event in events.iter().filter(|event| matches!(event["ph"].as_str(), Some("s" | "t" | "f"))) {
        arrows.entry(number(event, "id")).or_default().push((event, number(event, "pid")));
    }
    let mut followed = BTreeSet::new();
    for points in arrows.values() {
        let phases: String = points.iter().map(|(event, _)| event["ph"].as_str().unwrap()).collect();
        assert!(
            phases.starts_with('s') && phases.ends_with('f') && phases.matches('t').count() == phases.len() - 2,
            "{phases}"
        );
        let times: Vec<f64> = points.iter().map(|(event, _)| event["ts"].as_f64().unwrap()).collect();
        assert!(times.is_sorted(), "{points:?}");
        let mut batches = Vec::new();
        for ((event, process), at) in points.iter().zip(times) {
            let slices = &processes[process].slices[&number(event, "tid")];
            let around: Vec<_> = slices.iter().filter(|(began, ended, _)| (*began..=*ended).contains(&at)).collect();
            assert!(!around.is_empty(), "no slice around {event}");
            batches.push((
                processes[process].name.as_str(),
                around.iter().filter_map(|slice| slice.2).collect::<Vec<_>>(),
            ));
        }
        let of = |role: &str| {
            batches.iter().find(|(name, _)| name.starts_with(role)).map(|(name, found)| (*name, found.clone()))
        };
        if let (Some((reader, sent)), Some((_, taken))) = (of("reader"), of("trainer")) {
            let same: Vec<_> = sent.iter().filter(|batch| taken.contains(batch)).collect();
            assert!(!same.is_empty(), "{sent:?} became {taken:?}");
            followed.extend(same.into_iter().map(|batch| (reader.to_owned(), *batch)));
        }
    }
    followed
}

#[test]
fn the_trace_of_a_launch_follows_batches_from_its_readers_to_its_trainer_and_the_report_has_every_process() {
    let dir = tempfile::tempdir().unwrap();
    let rows = common::parquet(dir.path(), 0, 20_000);
    let (data, report) = (format!("data.train={}", rows.display()), dir.path().join("report"));
    // A run that is over before its second reader has joined is run again.
    let mut launched = (0..20).map(|_| {
        let output = common::forebay(&["launch", "--report", report.to_str().unwrap(), "--set", &data])
            .args(["--set", "model.kind=lr", "--set", "train.batch_rows=256", "--set", "data.shuffle_rows=0"])
            .args(["--set", "placement.readers=2", "--set", "placement.ps=2", "--set", "placement.lease_rows=1024"])
            .output()
            .unwrap();
        let text = common::exits(0, common::code_and_output(&output), &[]);
        let trace: Value = common::read_json(report.join("trace.json"));
        (text, trace)
    });
    let names = |trace: &Value| {
        let processes = traced(trace["traceEvents"].as_array().unwrap());
        let mut names: Vec<String> = processes.into_values().map(|process| process.name).collect();
        names.sort_unstable();
        names
    };
    let (text, trace) = launched
        .find(|(_, trace)| names(trace) == ["ps 0", "ps 1", "reader 0", "reader 1", "trainer 0"])
        .expect("both readers read in one of 20 runs");
    // 20,000 rows in windows of 1,024 rows or less.
    assert!(followed(&trace).len() >= 79, "all batches are followed from the readers to the trainer");
    let processes = traced(trace["traceEvents"].as_array().unwrap());
    for ps in processes.values().filter(|process| process.name.starts_with("ps")) {
        let calls: usize = ps.slices.values().map(Vec::len).sum();
        assert!(calls >= 2 * 79, "a pull and a push for each batch, but {calls} calls of {}", ps.name);
    }

    let report: Value = common::read_json(report.join("report.json"));
    let of = |field: &str| -> Vec<f64> {
        report["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|process| process["machine"][field].as_f64().unwrap())
            .collect()
    };
    let peaks = of("peak_bytes");
    assert!(peaks.len() == 5 && peaks.iter().all(|peak| *peak > 1e6), "{peaks:?}");
    // The first trainer reads its own after its last meters.
    assert!(report["peak_bytes"].as_f64().unwrap() >= peaks.iter().sum(), "{} of {peaks:?}", report["peak_bytes"]);
    assert!(report["cpu_seconds"].as_f64().unwrap() >= of("cpu")[1..].iter().sum(), "{}", report["cpu_seconds"]);
    assert!(text.contains("all processes used "), "{text}");
}
