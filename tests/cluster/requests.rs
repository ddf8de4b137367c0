//! Look-ups and pushes over a long line: as many in flight as the bound on staleness allows.

use serde_json::Value;

use super::jobs::job;
use super::line::hosts;
use super::processes::{Ledger, Run};

const ROWS: u64 = 8192;

/// The trainer's report of a run with one ps, 25 ms away.
fn report(staleness: u32, epochs: u64) -> Value {
    let (bound, epochs) = (format!("train.staleness={staleness}"), format!("data.epochs={epochs}"));
    let settings = job(ROWS, &["model.kind=lr", "placement.ps=1", &bound, &epochs]);
    let mut run = Run::on_hosts(&hosts(), &["ps0", "trainer0"], "ps0", &settings);
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

#[test]
fn the_round_trip_to_a_ps_is_hidden_as_far_as_staleness_allows() {
    let (one, several) = (report(0, 1), report(5, 1));
    let ((replicas, look_ups), (_, pushes)) = (under_way(&one, "lookup"), under_way(&one, "push"));
    assert!(replicas == 1 && look_ups + pushes <= 1.0, "one after the other: {look_ups} and {pushes} at once");
    let ((replicas, look_ups), (_, pushes)) = (under_way(&several, "lookup"), under_way(&several, "push"));
    println!("with staleness 5, {look_ups:.2} look-ups and {pushes:.2} pushes were under way at once");
    assert!(replicas == 6 && look_ups + pushes > 1.5, "at once {look_ups} and {pushes}");
}

/// Measures. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn how_many_batches_go_over_a_long_line() {
    for (staleness, epochs) in [(0, 2), (1, 4), (3, 8), (7, 16)] {
        let report = report(staleness, epochs);
        let (wall, rows) = (report["wall"].as_f64().unwrap(), report["ledger"]["delivered"].as_f64().unwrap());
        let ((_, look_ups), (_, pushes)) = (under_way(&report, "lookup"), under_way(&report, "push"));
        println!(
            "staleness {staleness}: {:.1} batches/s, {look_ups:.2} and {pushes:.2} under way",
            rows / 256.0 / wall
        );
    }
}
