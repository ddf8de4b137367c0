//! Runs of real processes whose limit is known, because a test made it: what the merged report names, and what it advises.
//!
//! The limits are slower than anything else by a large factor, so that other work on the machine changes no verdict.

use std::sync::Arc;

use forebay::pipelines::{LimitKind, RunReport};

use super::hosts::{Hosts, Line};
use super::jobs::job;
use super::processes::{Ledger, Run, in_time, over_too_soon};

/// Batches of 256 rows: 47.
const ROWS: u64 = 12_000;

const PS: [&str; 4] = ["ps 0", "ps 1", "trainer 0", "reader 0"];

/// The report of a run on hosts of its own, one for each process, with these lines.
fn report_on_hosts(names: &[&str], lines: &[(&str, Line)], settings: &[String]) -> RunReport {
    let places: Vec<String> = names.iter().map(|name| name.replace(' ', "")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let hosts = Arc::new(Hosts::new(&places));
    lines.iter().for_each(|(name, line)| hosts.line(name, *line));
    let mut run = Run::on_hosts(&hosts, &places, "ps0", settings);
    start(&mut run, names);
    report(&mut run, names)
}

/// Starts these processes; the trainer writes its report.
fn start(run: &mut Run, names: &[&str]) {
    let file = run.folder().join("report.json");
    for name in names {
        let more = if *name == "trainer 0" { &["--report", file.to_str().unwrap()][..] } else { &[] };
        run.start_with(name, more);
    }
}

/// Waits until these have ended. Returns the report of the run.
fn report(run: &mut Run, names: &[&str]) -> RunReport {
    run.end_well(names);
    serde_json::from_slice(&std::fs::read(run.folder().join("report.json")).unwrap()).unwrap()
}

fn far(delay_ms: u32) -> Line {
    Line { delay_ms: Some(delay_ms), rate_mbit: None }
}

fn narrow(rate_mbit: u32) -> Line {
    Line { delay_ms: None, rate_mbit: Some(rate_mbit) }
}

fn advised(report: &RunReport) -> Option<(&str, &str)> {
    report.analysis.change.as_ref().map(|change| (change.field.as_str(), change.value.as_str()))
}

#[test]
fn a_ps_that_is_far_away_is_named_and_more_batches_under_way_are_advised() {
    let settings = job(ROWS, &["placement.readers=1", "placement.ps=2", "train.look_ahead=0"]);
    let report = report_on_hosts(&PS, &[("ps1", far(60))], &settings);
    let limit = report.analysis.limit.as_ref().unwrap();
    assert!(["staleness", "lookup", "push"].contains(&limit.name.as_str()), "{report}");
    let verdict = report.analysis.to_string();
    assert!(verdict.contains("ps 1 takes "), "{report}");
    assert_eq!(advised(&report).unwrap().0, "train.look_ahead", "{report}");
}

#[test]
fn a_ps_with_a_slow_network_is_named_and_nothing_is_advised_that_helps_all() {
    let settings = job(ROWS, &["placement.readers=1", "placement.ps=2", "train.look_ahead=8"]);
    let report = report_on_hosts(&PS, &[("ps1", narrow(4))], &settings);
    let limit = report.analysis.limit.as_ref().unwrap();
    assert_eq!((limit.bound(), limit.waits_for.as_deref()), (Some("table"), Some("shards")), "{report}");
    assert!(report.analysis.to_string().contains("ps 1 takes "), "{report}");
    assert_eq!(advised(&report), None, "{report}");
}

#[test]
fn a_ps_with_a_slow_network_is_named_when_trainers_are_in_step() {
    let more = ["placement.readers=1", "placement.ps=2", "placement.trainers=2", "train.sync=true"];
    let names = ["ps 0", "ps 1", "trainer 0", "trainer 1", "reader 0"];
    let report = report_on_hosts(&names, &[("ps1", narrow(4))], &job(ROWS, &more));
    assert!(report.analysis.to_string().contains("ps 1 takes "), "{report}");
}

#[test]
fn networks_of_all_ps_that_are_full_are_relieved_by_one_more_ps() {
    let settings = job(ROWS, &["placement.readers=1", "placement.ps=2", "train.look_ahead=8"]);
    let report = report_on_hosts(&PS, &[("ps0", narrow(4)), ("ps1", narrow(4))], &settings);
    let limit = report.analysis.limit.as_ref().unwrap();
    assert_eq!((limit.bound(), limit.waits_for.as_deref()), (Some("table"), Some("shards")), "{report}");
    assert_eq!(advised(&report), Some(("placement.ps", "3")), "{report}");
}

const FOUR: [&str; 6] = ["ps 0", "trainer 0", "reader 0", "reader 1", "reader 2", "reader 3"];

/// A job with enough rows that a reader which joins late gets leases, too.
fn four_readers(more: &[&str]) -> Vec<String> {
    let readers = ["placement.readers=4", "placement.ps=1", "placement.lease_rows=1024", "data.epochs=8"];
    job(ROWS, &[&readers, more].concat())
}

#[test]
fn the_network_of_one_reader_among_four_is_named() {
    in_time(|_| {
        // Few batches may be on their way, so that the reader notices that its network is full.
        let settings = four_readers(&["placement.in_flight=2"]);
        let report = report_on_hosts(&FOUR, &[("reader2", narrow(1))], &settings);
        let limit = report.analysis.limit.as_ref().unwrap();
        assert_eq!((limit.kind, limit.name.as_str()), (LimitKind::Link, "ship to receive"), "{report}");
        assert_eq!(limit.process.as_deref(), Some("reader 2"), "{report}");
        assert_eq!(advised(&report), Some(("placement.compress", "\"lz4\"")), "{report}");
    });
}

#[test]
fn a_reader_whose_batches_are_long_on_their_way_is_named() {
    in_time(|_| {
        // So many may be on their way at once, 16 leases, that the reader itself may notice nothing. A batch is a whole window: with four
        // for each, the trainer took as long for its steps on a busy machine as it waited for the batches.
        let settings = four_readers(&["train.batch_rows=1024", "placement.in_flight=16"]);
        let report = report_on_hosts(&FOUR, &[("reader2", narrow(1))], &settings);
        let limit = report.analysis.limit.as_ref().unwrap();
        assert_eq!((limit.bound(), limit.process.as_deref()), (Some("input"), Some("reader 2")), "{report}");
        assert!(report.analysis.to_string().contains("for batches of reader 2"), "{report}");
    });
}

#[test]
fn leases_of_a_lost_reader_that_have_not_run_out_are_the_limit() {
    in_time(|_| {
        let more = ["placement.readers=2", "placement.ps=1", "placement.lease_rows=1024", "placement.lease_seconds=30"];
        let names = ["ps 0", "trainer 0", "reader 0", "reader 1"];
        // So many epochs that the run is not over before the reader is held.
        let mut run = Run::local(&job(ROWS, &[&more[..], &["data.epochs=30"]].concat()));
        start(&mut run, &names);
        // It holds a lease until that runs out, and trainers take batches in the order of the data.
        run.until_said("reader 1", "trainer 0 is ");
        run.until_windows(1);
        run.hold("reader 1");
        let logs = run.end_well(&names[..3]);
        if Ledger::of(&logs[1]).again == 0 {
            over_too_soon(&logs[1]);
        }
        let report = report(&mut run, &names[..3]);
        let limit = report.analysis.limit.as_ref().unwrap();
        assert_eq!((limit.kind, limit.name.as_str()), (LimitKind::Lease, "lost leases"), "{report}");
        assert_eq!(advised(&report), None, "{report}");
    });
}
