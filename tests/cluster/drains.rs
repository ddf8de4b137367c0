//! Readers and runs that are asked to shut down while their leases are long: they finish the windows that they have begun. And runs
//! that cannot go on: processes that wait for others hear it.

use std::net::TcpListener;

use rustix::process::Signal;

use super::bits::Bits;
use super::jobs::{job, one_process};
use super::processes::{Ended, Ledger, Run, in_time, over_too_soon, rows_read};

const ROWS: u64 = 262_144;

/// Windows of 1,024 rows. A lease has at most 128 of them, so many that no drain gets to its end.
const LEASE: u64 = 128;

fn settings(placement: &[&str]) -> Vec<String> {
    job(ROWS, &[&["train.batch_rows=32", "placement.lease_seconds=2", "data.epochs=8"], placement].concat())
}

/// Tells `process` to end, and checks that the run ended within its first lease and that the counts agree.
fn drained(names: &[&str], process: &str, placement: &[&str]) {
    in_time(|_| {
        // No process is lost, also if one stands still for a while.
        let mut run = Run::local(&settings(&[placement, &["placement.lease_seconds=30"]].concat()));
        run.start(names);
        run.until_windows(1);
        run.signal(process, Signal::TERM);
        let ended: Vec<Ended> = names.iter().map(|name| run.ended(name)).collect();
        let Ended { code, log: trainer } = &ended[names.iter().position(|name| *name == "trainer 0").unwrap()];
        assert_eq!(*code, Some(5), "{trainer}");
        assert!(ended.iter().all(|ended| matches!(ended.code, Some(0 | 5))), "{trainer}");
        let ledger = Ledger::of(trainer);
        // The signal may have come so late that a second lease had begun.
        if ledger.windows.0 >= LEASE {
            over_too_soon(trainer);
        }
        assert!(ledger.windows.0 > 0, "{ledger:?} {trainer}");
        assert_eq!((ledger.rows, ledger.rejected, ledger.again), (ledger.windows.0 * 1024, 0, 0), "{trainer}");
        assert!(Bits::read(&run.folder().join("model.partial")).keys() > 100);
    });
}

#[test]
fn a_drain_ends_after_the_windows_that_the_readers_have_begun() {
    drained(&["ps 0", "trainer 0", "reader 0"], "trainer 0", &["placement.readers=1", "placement.ps=1"]);
}

#[test]
fn a_drain_ends_after_the_windows_that_a_trainer_which_reads_has_begun() {
    drained(&["ps 0", "trainer 0"], "trainer 0", &["placement.ps=1"]);
}

#[test]
fn a_reader_asked_to_shut_down_gives_the_rest_of_its_lease_to_another() {
    in_time(|_| {
        let settings = job(ROWS / 8, &["train.batch_rows=32", "placement.readers=2", "placement.ps=1"]);
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        run.until_said("reader 1", "trainer 0 is ");
        run.until_windows(1);
        run.signal("reader 1", Signal::TERM);
        let left = run.end_well(&["reader 1"]);
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0"]);
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.rejected, ledger.again), (ROWS / 8, 0, 0), "{}", logs[0]);
        // The signal may have come so late that it had read all.
        if rows_read(&left[0]) >= ROWS / 8 {
            over_too_soon(&left[0]);
        }
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

/// A bug: one gave its windows back, and the other waited until the trainer would take later ones that it had begun.
#[test]
fn readers_that_are_all_asked_to_shut_down_leave_and_another_one_reads_the_rest() {
    in_time(|_| {
        let settings = job(ROWS / 4, &["train.batch_rows=32", "placement.readers=2", "placement.ps=1"]);
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0", "reader 1"]);
        run.until_windows(1);
        // One that has not reached the trainer yet would end otherwise: "before the run began".
        for reader in ["reader 0", "reader 1"] {
            run.until_said(reader, "trainer 0 is");
        }
        run.hold("trainer 0");
        run.signal("reader 0", Signal::TERM);
        run.signal("reader 1", Signal::TERM);
        run.go_on("trainer 0");
        run.end_well(&["reader 0", "reader 1"]);
        run.start(&["reader 0@again"]);
        let logs = run.end_well(&["trainer 0", "ps 0", "reader 0@again"]);
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.rejected, ledger.again), (ROWS / 4, 0, 0), "{}", logs[0]);
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

#[test]
fn a_run_without_readers_ends_after_the_timeout() {
    in_time(|_| {
        let mut run = Run::local(&settings(&["placement.readers=1", "placement.ps=1", "placement.timeout_seconds=4"]));
        run.start(&["ps 0", "trainer 0", "reader 0"]);
        run.until_windows(1);
        run.kill("reader 0");
        for name in ["ps 0", "trainer 0"] {
            run.end_with(name, 3, "there has been no reader for");
        }
    });
}

/// The push of a synchronous step waits for the other trainer, which stands still.
#[test]
fn a_trainer_that_waits_for_the_others_of_its_step_hears_that_the_run_has_failed() {
    in_time(|_| {
        let placement = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true"];
        let mut run = Run::local(&settings(&[&placement[..], &["placement.timeout_seconds=4"]].concat()));
        run.start(&["ps 0", "trainer 0", "trainer 1", "reader 0"]);
        run.until_windows(1);
        run.hold("trainer 1");
        for name in ["trainer 0", "reader 0", "ps 0"] {
            let Ended { code, log } = run.ended(name);
            assert!(code == Some(3) && log.contains("trainer 1 sent no heartbeat for 4 s"), "{name} {code:?} {log}");
        }
    });
}

/// Otherwise a process that waits would end only after `placement.timeout_seconds`, or at the second signal.
#[test]
fn a_process_that_waits_for_the_coordinator_ends_when_it_is_told_to() {
    let settings = settings(&["placement.readers=1", "placement.ps=2"]);
    for name in ["reader 0", "trainer 0", "ps 1"] {
        let mut run = Run::local(&settings);
        run.start(&[name]);
        run.until_said(name, "the coordinator at");
        run.signal(name, Signal::TERM);
        run.end_with(name, 5, "was asked to shut down before the run began");
    }
}

#[test]
fn a_process_that_waits_for_others_ends_when_it_is_told_to() {
    let settings = job(ROWS / 8, &["train.batch_rows=32", "placement.readers=1", "placement.ps=1"]);
    let mut run = Run::local(&settings);
    run.start(&["ps 0", "reader 0"]);
    run.until_said("reader 0", "waiting for trainer 0");
    run.signal("reader 0", Signal::TERM);
    run.end_with("reader 0", 5, "was asked to shut down before the run began");
    // The others wait for another one.
    run.start(&["trainer 0", "reader 0@again"]);
    let logs = run.end_well(&["trainer 0", "ps 0", "reader 0@again"]);
    assert_eq!(Ledger::of(&logs[0]).rows, ROWS / 8, "{}", logs[0]);

    // Without its trainer the run cannot go on.
    let mut run = Run::local(&[&settings[..], &["placement.ps=2".to_owned()]].concat());
    let names = ["ps 0", "trainer 0", "reader 0"];
    run.start(&names);
    run.until_said("trainer 0", "waiting for ps 1");
    run.signal("trainer 0", Signal::TERM);
    for name in names {
        run.end_with(name, 5, "stopped before");
    }
}

/// A bug: it tried for `placement.timeout_seconds`, ten minutes, and all others waited for it. `launch` had such a ps when it had no file
/// descriptors left for connections.
#[test]
fn a_trainer_that_does_not_reach_a_ps_ends_with_the_run_that_is_asked_to_shut_down() {
    let settings = job(ROWS / 8, &["train.batch_rows=32", "placement.ps=2"]);
    for told in ["trainer 0", "ps 1"] {
        let mut run = Run::local(&settings);
        // Takes connections, and answers nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        run.start(&["ps 0", "trainer 0"]);
        run.start_with("ps 1", &["--advertise", &silent.local_addr().unwrap().to_string()]);
        run.until_said("trainer 0", "waiting for table `embedding` on ps 1");
        run.signal(told, Signal::TERM);
        for name in ["trainer 0", "ps 0", "ps 1"] {
            run.end_with(name, 5, "trainer 0 was asked to shut down before it had reached the ps");
        }
    }
}

/// A bug: it tried for `placement.timeout_seconds`, ten minutes, and the run waited for the windows that it had begun.
#[test]
fn a_reader_that_does_not_reach_a_trainer_ends_when_it_is_told_to() {
    in_time(|_| {
        let steps = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true"];
        let mut run = Run::local(&settings(&[&steps[..], &["placement.lease_seconds=30"]].concat()));
        // Takes connections, and answers nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        run.start(&["ps 0", "trainer 0", "reader 0"]);
        run.start_with("trainer 1", &["--advertise", &silent.local_addr().unwrap().to_string()]);
        run.until_said("reader 0", "waiting for trainer 1: ");
        run.signal("reader 0", Signal::TERM);
        run.end_well(&["reader 0"]);
        run.signal("trainer 0", Signal::TERM);
        run.end_with("trainer 0", 5, "drained before it had trained on a row");
        let Ended { code, log } = run.ended("trainer 1");
        assert_eq!(code, Some(5), "{log}");
        run.end_well(&["ps 0"]);
    });
}
