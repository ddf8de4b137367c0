//! Processes are killed, cut off or asked to shut down: every row is trained on once, or all processes end and say why.
//!
//! With `staleness = 0` the model is compared, too: one row lost or doubled changes its bits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::hosts::{Hosts, Line};
use super::jobs::{bad_text, job, one_process};
use super::processes::{Ended, Ledger, Run, in_time, over_too_soon, rows_read};

/// Rows for some seconds of work in small batches.
const ROWS: u64 = 61_440;

/// Settings with small batches, leases of one window, and a short lease time, so that there are many leases to lose.
fn settings(placement: &[&str]) -> Vec<String> {
    let usual = ["train.batch_rows=32", "placement.lease_rows=1024", "placement.lease_seconds=2"];
    job(ROWS, &[&usual, placement].concat())
}

/// No lease is lost, also if a process stands still for a while.
const LONG_LEASE: &str = "placement.lease_seconds=30";

/// Waits until both readers read and several more windows are done.
fn until_both_read(run: &mut Run) {
    for reader in ["reader 0", "reader 1"] {
        run.until_said(reader, "trainer 0 is ");
    }
    let done = run.until_windows(1).windows_done;
    run.until_windows(done + 8);
}

/// Checks that every row was trained on once, and the number of leases given out again.
fn check(log: &str, again: impl Fn(u64) -> bool) -> Ledger {
    let ledger = Ledger::of(log);
    assert_eq!((ledger.rows, ledger.rejected), (ROWS, 0), "{log}");
    assert_eq!(ledger.windows, (ROWS / 1024, ROWS / 1024), "{log}");
    assert!(again(ledger.again), "{} leases were given out again\n{log}", ledger.again);
    ledger
}

/// The same, of a run in which leases must be lost. It has lost none if all rows were read before the harm.
fn check_lost(log: &str) {
    if check(log, |_| true).again == 0 {
        over_too_soon(log);
    }
}

#[test]
fn the_rows_of_a_killed_reader_go_to_another() {
    in_time(|_| {
        for staleness in [0, 4] {
            let staleness = format!("train.staleness={staleness}");
            let settings = settings(&["placement.readers=2", "placement.ps=1", &staleness]);
            let mut run = Run::local(&settings);
            run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
            until_both_read(&mut run);
            run.kill("reader 1");
            let logs = run.end_well(&["trainer 0", "ps 0", "reader 0"]);
            check_lost(&logs[0]);
            assert!(logs[1].contains("reader 1 sent no heartbeat"), "{}", logs[1]);
            if staleness.ends_with('0') {
                assert_eq!(run.model().difference(&one_process(&settings).0), None);
            }
        }
    });
}

const CLUSTER: [&str; 5] = ["ps 0", "ps 1", "trainer 0", "reader 0", "reader 1"];
const HOSTS: [&str; 6] = ["ps0", "ps1", "trainer0", "reader0", "reader1", "spare"];

/// Starts the whole cluster, with a delay at the trainer: without look-ahead a step takes two round trips, so the run lasts longer than
/// any cut here, however fast the machine is.
fn cluster(settings: &[String]) -> Run {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    hosts.line("trainer0", Line { delay_ms: Some(4), ..Line::default() });
    let settings = [&["train.look_ahead=0".to_owned()][..], settings].concat();
    let mut run = Run::on_hosts(&hosts, &HOSTS, "ps0", &settings);
    run.start(&CLUSTER);
    run
}

fn check_kept(log: &str) {
    check(log, |again| again == 0);
}

/// Cuts a host off for ten seconds in the middle of a run.
fn partition(host: &str, placement: &[&str], check: impl Fn(&str)) {
    in_time(|_| {
        let settings = settings(&[&["placement.readers=2", "placement.ps=2"], placement].concat());
        let mut run = cluster(&settings);
        until_both_read(&mut run);
        run.hosts().cut(host);
        let cut = Instant::now();
        run.until("ten seconds are over", |_| (cut.elapsed() > Duration::from_secs(10)).then_some(()));
        run.hosts().mend(host);
        let logs = run.end_well(&CLUSTER);
        check(&logs[2]);
        let trained = one_process(&settings);
        let (model, alone) = (run.model(), &trained.0);
        if settings.iter().any(|setting| setting.starts_with("train.staleness=")) {
            assert_eq!(model.keys(), alone.keys());
        } else {
            assert_eq!(model.difference(alone), None);
        }
    })
}

#[test]
fn the_rows_of_a_reader_that_is_cut_off_go_to_another() {
    partition("reader1", &["placement.lease_seconds=3"], check_lost);
}

#[test]
fn a_reader_that_is_cut_off_for_less_than_its_lease_keeps_it() {
    partition("reader1", &["placement.lease_seconds=60"], check_kept);
}

/// A bug: the run waited for `placement.timeout_seconds`, and then failed.
#[test]
fn a_reader_that_does_not_reach_the_trainer_leaves_its_rows_to_another() {
    in_time(|_| {
        let settings = settings(&["placement.readers=2", "placement.ps=2", "placement.lease_seconds=3"]);
        let mut run = cluster(&settings);
        until_both_read(&mut run);
        run.hosts().cut_between("reader1", "trainer0");
        run.end_with("reader 1", 3, "did not reach its trainers, and has left the run");
        let logs = run.end_well(&["ps 0", "ps 1", "trainer 0", "reader 0"]);
        check(&logs[2], |_| true);
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

#[test]
fn a_reader_that_is_cut_off_while_the_run_ends_leaves_when_it_is_back() {
    in_time(|_| {
        let mut run = cluster(&settings(&["placement.readers=2", "placement.ps=2"]));
        until_both_read(&mut run);
        run.hosts().cut("reader1");
        let logs = run.end_well(&["ps 0", "ps 1", "trainer 0", "reader 0"]);
        check_lost(&logs[2]);
        assert!(run.runs("reader 1"), "it cannot know that the run has ended");
        run.hosts().mend("reader1");
        run.end_with("reader 1", 3, "has ended, and so has the run: its log says how");
    });
}

#[test]
fn a_ps_that_is_cut_off_is_waited_for() {
    partition("ps1", &["placement.lease_seconds=60"], check_kept);
}

#[test]
fn a_ps_that_is_cut_off_with_several_requests_in_flight_is_waited_for() {
    for order in ["train.staleness=4", "train.look_ahead=8"] {
        partition("ps1", &["placement.lease_seconds=60", order], check_kept);
    }
}

#[test]
fn a_restarted_trainer_continues_if_the_ps_hold_the_dense_parameters() {
    in_time(|_| {
        let settings = settings(&["placement.readers=2", "placement.ps=2", "placement.dense=ps"]);
        let mut run = cluster(&settings);
        run.until_windows(4);
        run.kill("trainer 0");
        let done = run.until_status("the coordinator still answers", |_| true).windows_done;
        run.until_said("ps 0", "the run waits: trainer 0 sent no heartbeat");
        run.until_said("reader 0", "trainer 0");
        let later = run.until_status("the coordinator still answers", |_| true).windows_done;
        assert_eq!(later, done, "windows were done while the only trainer was away");
        for name in ["ps 0", "ps 1", "reader 0", "reader 1"] {
            assert!(run.runs(name), "{name}");
        }
        run.start(&["trainer 0@spare"]);
        let logs = run.end_well(&["trainer 0@spare", "ps 0", "ps 1", "reader 0", "reader 1"]);
        check(&logs[0], |_| true);
        assert!(run.model().keys() > 1000);
    });
}

#[test]
fn a_ps_that_is_killed_and_not_started_again_ends_the_run() {
    in_time(|_| {
        let mut run = Run::local(&settings(&["placement.readers=1", "placement.ps=2", "placement.timeout_seconds=4"]));
        run.start(&["ps 0", "ps 1", "trainer 0", "reader 0"]);
        run.until_windows(2);
        let log = run.until_said("ps 1", "listens address=");
        let address = log.split_once("listens address=").unwrap().1.split_whitespace().next().unwrap();
        run.kill("ps 1");
        for name in ["ps 0", "trainer 0", "reader 0"] {
            // The trainer, which cannot push, or the coordinator reaches its timeout first.
            let Ended { code, log } = run.ended(name);
            assert!(
                code == Some(3) && (log.contains("ps 1 sent no heartbeat for 4 s") || log.contains(address)),
                "{log}"
            );
        }
        // The first ps runs the coordinator.
        let mut run = Run::local(&settings(&["placement.readers=1", "placement.ps=2", "placement.timeout_seconds=4"]));
        run.start(&["ps 0", "ps 1", "trainer 0", "reader 0"]);
        run.until_windows(2);
        run.kill("ps 0");
        for name in ["ps 1", "trainer 0", "reader 0"] {
            let Ended { code, log } = run.ended(name);
            let said = ["has not answered for 4 s", "has ended, and so has the run", "gave up waiting for"];
            let said = said.iter().any(|words| log.contains(words));
            assert!(code == Some(3) && said, "{code:?} {log}");
        }
    });
}

#[test]
fn a_bad_row_ends_all_processes_and_is_located() {
    in_time(|_| {
        let (folder, file) = bad_text(ROWS / 4);
        let data = format!("data.train={}", folder.display());
        let places = [data.as_str(), "placement.readers=2", "placement.ps=1"];
        let mut run = Run::local(&settings(&places));
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        for name in ["ps 0", "trainer 0", "reader 0", "reader 1"] {
            let Ended { code, log } = run.ended_in_time(name);
            assert!(code == Some(2) && log.contains(file), "{name} {code:?} {log}");
        }
        // If the job says so, the row is rejected and counted instead.
        let mut run = Run::local(&settings(&[&places[..], &["data.on_bad_row=skip"]].concat()));
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0", "reader 1"]);
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.rejected), (ROWS / 4 - 1, 1), "{}", logs[0]);
    });
}

#[test]
fn a_resumed_reader_whose_rank_was_restarted_ends() {
    in_time(|_| {
        let settings = settings(&["placement.readers=2", "placement.ps=1"]);
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        until_both_read(&mut run);
        run.hold("reader 0");
        run.start(&["reader 0@again"]);
        run.until_said_times("ps 0", "reader 0 joined", 2);
        let done = run.until_windows(1).windows_done;
        run.until_windows(done + 4);
        // The run cannot end meanwhile, because no other reader reads.
        let others = ["reader 0@again", "reader 1"];
        others.iter().for_each(|name| run.hold(name));
        run.go_on("reader 0");
        run.end_with("reader 0", 2, "started again elsewhere: only the newest process");
        others.iter().for_each(|name| run.go_on(name));
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0@again", "reader 1"]);
        check_lost(&logs[0]);
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

#[test]
fn a_resumed_trainer_whose_rank_was_restarted_ends() {
    in_time(|_| {
        let mut run = Run::local(&settings(&["placement.readers=2", "placement.ps=2", "placement.dense=ps"]));
        run.start(&CLUSTER);
        run.until_windows(4);
        run.hold("trainer 0");
        run.start(&["trainer 0@again"]);
        let done = run.until_windows(1).windows_done;
        run.until_windows(done + 4);
        // The run cannot end meanwhile, because no reader reads.
        let readers = ["reader 0", "reader 1"];
        readers.iter().for_each(|name| run.hold(name));
        run.go_on("trainer 0");
        let Ended { code, log } = run.ended("trainer 0");
        readers.iter().for_each(|name| run.go_on(name));
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains("trainer 0 is fenced") || log.contains("trainer 0 was started again elsewhere"), "{log}");
        assert!(!log.contains("saved"), "{log}");
        let logs = run.end_well(&["trainer 0@again", "ps 0", "ps 1", "reader 0", "reader 1"]);
        check(&logs[0], |_| true);
    });
}

#[test]
fn a_reader_asked_to_shut_down_leaves_and_the_others_go_on() {
    in_time(|_| {
        let settings = settings(&["placement.readers=2", "placement.ps=1", LONG_LEASE]);
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        until_both_read(&mut run);
        run.signal("reader 1", Signal::TERM);
        let left = run.end_well(&["reader 1"]);
        if run.status().is_none_or(|status| status.windows_done == status.windows_total) {
            over_too_soon(&left[0]);
        }
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0"]);
        check(&logs[0], |again| again == 0);
        assert!(logs[1].contains("reader 1 left"), "{}", logs[1]);
        let (left, stayed) = (rows_read(&left[0]), rows_read(&logs[2]));
        // The rows that it had read ahead are read again by the other.
        assert!(left > 0 && left + stayed >= ROWS, "{left} and {stayed}");
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

#[test]
fn a_reader_that_joins_late_takes_its_share() {
    in_time(|_| {
        let settings = settings(&["placement.readers=1", "placement.ps=1", LONG_LEASE]);
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0"]);
        run.until_windows(4);
        run.start(&["reader 1"]);
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0", "reader 1"]);
        check(&logs[0], |again| again == 0);
        if rows_read(&logs[3]) == 0 {
            over_too_soon(&logs[3]);
        }
        assert_eq!(rows_read(&logs[2]) + rows_read(&logs[3]), ROWS);
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}
