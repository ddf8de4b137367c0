//! Look-ups and pushes over a long line: as many in flight as the bound on staleness, or the look-ahead, allows. In step with other
//! trainers, a look-up follows right behind the push before it.

use std::sync::Arc;

use serde_json::Value;

use super::hosts::{Hosts, Line};
use super::jobs::job;
use super::line::{LONG_LINE, hosts};
use super::processes::{Ledger, Run, in_time};

const ROWS: u64 = 8192;

/// A look-up waits for the push before it.
const IN_TURN: [&str; 2] = ["train.staleness=0", "train.look_ahead=0"];

/// The trainer's report of a run with one ps, 25 ms away.
fn report(order: &[&str], epochs: u64) -> Value {
    report_at(LONG_LINE, order, epochs)
}

/// The same with another line.
fn report_at(line: Line, order: &[&str], epochs: u64) -> Value {
    let epochs = format!("data.epochs={epochs}");
    let settings = job(ROWS, &[&["model.kind=lr", "placement.ps=1", &epochs], order].concat());
    let hosts = hosts();
    ["ps0", "trainer0"].iter().for_each(|name| hosts.line(name, line));
    let mut run = Run::on_hosts(&hosts, &["ps0", "trainer0"], "ps0", &settings);
    let file = run.folder().join("report.json");
    run.start(&["ps 0"]);
    run.start_with("trainer 0", &["--report", file.to_str().unwrap()]);
    let logs = run.end_well(&["trainer 0", "ps 0"]);
    let rows = Ledger::of(&logs[0]).rows;
    assert!(rows > 0 && rows.is_multiple_of(ROWS), "{}", logs[0]);
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The replicas of a stage, and its requests in flight on average.
fn under_way(report: &Value, name: &str) -> (u64, f64) {
    let stages = report["stages"].as_array().unwrap();
    let stage = stages.iter().find(|stage| stage["name"] == name).unwrap_or_else(|| panic!("{report}"));
    let seconds = stage["waits"]["shards"]["total"].as_f64().unwrap();
    (stage["replicas"].as_u64().unwrap(), seconds / report["wall"].as_f64().unwrap())
}

/// The report of a run with several requests under way. A machine that stands still for a while has fewer on average, so it tries again.
fn with_several(order: &[&str]) -> Value {
    let is_several = |report: &Value| under_way(report, "lookup").1 + under_way(report, "push").1 > 1.5;
    (0..20).map(|_| report(order, 1)).find(is_several).expect("the requests of one of 20 runs overlap")
}

#[test]
fn the_round_trip_to_a_ps_is_hidden_as_far_as_staleness_allows() {
    let (one, several) = (report(&IN_TURN, 1), with_several(&["train.staleness=5"]));
    let ((replicas, look_ups), (_, pushes)) = (under_way(&one, "lookup"), under_way(&one, "push"));
    assert!(replicas == 1 && look_ups + pushes <= 1.0, "one after the other: {look_ups} and {pushes} at once");
    let ((replicas, look_ups), (_, pushes)) = (under_way(&several, "lookup"), under_way(&several, "push"));
    println!("with staleness 5, {look_ups:.2} look-ups and {pushes:.2} pushes were under way at once");
    assert_eq!(replicas, 6);
}

#[test]
fn the_round_trip_to_a_ps_is_hidden_by_look_ahead() {
    let ahead = with_several(&["train.look_ahead=5"]);
    let ((replicas, look_ups), (_, pushes)) = (under_way(&ahead, "lookup"), under_way(&ahead, "push"));
    println!("with look-ahead 5, {look_ups:.2} look-ups and {pushes:.2} pushes were under way at once");
    assert_eq!(replicas, 6);
    assert_eq!(ahead["staleness_observed"], 0);
    let cost = |name: &str| ahead["look_ahead"][name].as_u64().unwrap();
    assert_eq!(cost("batches"), 5);
    assert!(cost("rows_pulled") < cost("keys") && cost("most_rows") > 0, "{}", ahead["look_ahead"]);
}

const IN_STEP: [&str; 4] = ["ps0", "trainer0", "trainer1", "reader0"];

/// A run of two trainers in step whose line to the ps is this one, and the report of the first.
fn in_step(line: Line, order: &str, epochs: u64) -> (Run, Value) {
    let epochs = format!("data.epochs={epochs}");
    let placement = ["placement.ps=1", "placement.readers=1", "placement.trainers=2", "train.sync=true"];
    let settings = job(ROWS, &[&placement[..], &["model.kind=fm", "train.batch_rows=128", order, &epochs]].concat());
    in_time(|_| {
        let hosts = Arc::new(Hosts::new(&IN_STEP));
        // The reader is near.
        IN_STEP[..3].iter().for_each(|name| hosts.line(name, line));
        let mut run = Run::on_hosts(&hosts, &IN_STEP, "ps0", &settings);
        let file = run.folder().join("report.json");
        run.start(&["ps 0", "trainer 1", "reader 0"]);
        run.start_with("trainer 0", &["--report", file.to_str().unwrap()]);
        let logs = run.end_well(&["trainer 0", "trainer 1", "ps 0", "reader 0"]);
        assert!(Ledger::of(&logs[0]).rows.is_multiple_of(ROWS), "{}", logs[0]);
        (run, serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap())
    })
}

#[test]
fn trainers_in_step_train_the_same_model_over_a_long_line() {
    let (short, long) = (Line::default(), LONG_LINE);
    for order in ["train.staleness=0", "train.staleness={ exactly = 0 }", "train.staleness={ exactly = 2 }"] {
        let ((near, report), (far, _)) = (in_step(short, order, 1), in_step(long, order, 1));
        assert_eq!(near.model().difference(&far.model()), None, "{order}");
        // Also the pulls that are held for the end of a round count as replies of the ps.
        let stages = report["stages"].as_array().unwrap();
        let lookup = stages.iter().find(|stage| stage["name"] == "lookup").unwrap();
        assert_eq!(lookup["by_process"]["ps 0"]["count"], report["all_trainers"]["steps"], "{order}: {lookup}");
    }
}

/// Measures. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn how_many_steps_of_two_trainers_go_over_a_long_line() {
    for order in ["train.staleness=0", "train.staleness={ exactly = 1 }"] {
        let (_, report) = in_step(LONG_LINE, order, 4);
        let (wall, steps) = (report["wall"].as_f64().unwrap(), report["all_trainers"]["steps"].as_f64().unwrap());
        println!("{order}: {steps} steps, {:.1} steps/s", steps / wall);
    }
}

/// Measures. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn how_many_batches_go_over_a_long_line() {
    let most =
        ["train.staleness=1", "train.staleness=3", "train.staleness=7", "train.look_ahead=7", "train.look_ahead=8"];
    let most = most.into_iter().zip([4, 8, 16, 16, 16]).map(|(setting, epochs)| (vec![setting], epochs));
    for (order, epochs) in std::iter::once((IN_TURN.to_vec(), 2)).chain(most) {
        let report = report(&order, epochs);
        let (wall, rows) = (report["wall"].as_f64().unwrap(), report["ledger"]["delivered"].as_f64().unwrap());
        let ((_, look_ups), (_, pushes)) = (under_way(&report, "lookup"), under_way(&report, "push"));
        println!(
            "{order:?}: {:.1} batches/s, {look_ups:.2} and {pushes:.2} under way, {}",
            rows / 256.0 / wall,
            report["look_ahead"]
        );
    }
}

/// Measures. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn from_which_round_trip_on_look_ahead_is_faster() {
    for delay in [0, 1, 2, 5] {
        let line = Line { delay_ms: (delay > 0).then_some(delay), ..Line::default() };
        for rows in [256_u32, 2048] {
            for order in [IN_TURN[1], "train.look_ahead=8"] {
                let batch = format!("train.batch_rows={rows}");
                let report = report_at(line, &[order, &batch, "data.shuffle_rows=4096"], 30);
                let (wall, all) = (report["wall"].as_f64().unwrap(), report["ledger"]["delivered"].as_f64().unwrap());
                println!("{delay} ms, {order}, {rows} rows: {:.1} batches/s", all / f64::from(rows) / wall);
            }
        }
    }
}
