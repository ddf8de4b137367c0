//! A process is killed and started again, with the windows and leases of the default job: the run ends with the model that an
//! undisturbed run gives.
//!
//! A process that held parameters takes them with it. Then the run begins a new attempt: all processes join the next attempt.

use rustix::process::Signal;

use super::bits::Bits;
use super::checkpoints::COUNTS;
use super::jobs::{one_process, rows};
use super::processes::{AFTER_THE_END, Ended, Ledger, Run, in_time};

const ROWS: u64 = 200_000;

/// The default job, but for its size: a small model and small batches.
fn settings(placement: &[&str]) -> Vec<String> {
    let mut settings = vec![format!("data.train={}", rows(ROWS).display())];
    let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
    settings.extend(small.iter().chain(placement).map(|setting| (*setting).to_owned()));
    settings
}

/// Starts `names`, kills `victim` after the first window, starts it again, and returns the model and the trainer's log.
fn restarted(names: &[&str], victim: &str, settings: &[String]) -> (Bits, String) {
    restarted_after(1, ROWS, names, victim, settings)
}

/// The same after more windows, in a job that trains on so many `rows`.
fn restarted_after(windows: u64, rows: u64, names: &[&str], victim: &str, settings: &[String]) -> (Bits, String) {
    in_time(|_| {
        let mut run = Run::local(settings);
        run.start(names);
        run.until_windows(windows);
        run.kill(victim);
        let again = format!("{victim}@again");
        run.start(&[&again]);
        let names: Vec<&str> = names.iter().map(|name| if *name == victim { again.as_str() } else { name }).collect();
        let first = names.iter().position(|name| name.starts_with("trainer 0")).unwrap();
        let logs = run.end_well(&names);
        let ledger = Ledger::of(&logs[first]);
        assert_eq!((ledger.rows, ledger.rejected), (rows, 0), "{}", logs[first]);
        (run.model(), logs[first].clone())
    })
}

/// After 33, 49 and 83% of the rows: in the middle of leases, and at the ends of epochs and leases.
const WINDOWS: [u64; 3] = [2, 3, 6];

#[test]
fn a_trainer_may_be_killed_at_any_time() {
    for placement in [["placement.dense=ps", "train.staleness=0"], ["placement.dense=trainer", "train.staleness=0"]] {
        let more = ["placement.readers=1", "placement.ps=2", "data.epochs=2"];
        let settings = settings(&[&more[..], &placement].concat());
        for windows in WINDOWS {
            let (model, log) = restarted_after(windows, 2 * ROWS, &TWO, "trainer 0", &settings);
            let difference = model.difference(&one_process(&settings).0);
            assert_eq!(difference, None, "killed after {windows} windows, {placement:?}: {log}");
        }
    }
}

#[test]
fn one_of_two_synchronous_trainers_may_be_killed_at_any_time() {
    let names = ["ps 0", "trainer 0", "trainer 1", "reader 0"];
    let sync = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true", "data.epochs=2"];
    let settings = settings(&sync);
    let mut calm = Run::local(&settings);
    calm.start(&names);
    calm.end_well(&names);
    for windows in WINDOWS {
        let (model, log) = restarted_after(windows, 2 * ROWS, &names, "trainer 1", &settings);
        assert_eq!(model.difference(&calm.model()), None, "killed after {windows} windows: {log}");
    }
}

fn same_model(names: &[&str], victim: &str, placement: &[&str]) -> String {
    let settings = settings(placement);
    let (model, log) = restarted(names, victim, &settings);
    assert_eq!(model.difference(&one_process(&settings).0), None, "{victim} was killed: {log}");
    log
}

const TWO: [&str; 4] = ["ps 0", "ps 1", "trainer 0", "reader 0"];

#[test]
fn a_ps_that_is_started_again_begins_a_new_attempt() {
    let placement = ["placement.readers=1", "placement.ps=2"];
    let log = same_model(&TWO, "ps 1", &placement);
    assert!(log.contains("begun a new attempt"), "{log}");
}

#[test]
fn the_coordinator_that_is_started_again_begins_a_new_attempt() {
    same_model(&TWO, "ps 0", &["placement.readers=1", "placement.ps=2"]);
}

/// Schedulers do not restart a process that ended without a fault, so the reader must stay, although it has read all rows.
#[test]
fn the_coordinator_may_be_started_again_after_the_last_row() {
    in_time(|_| {
        let (train, eval) =
            (format!("data.train={}", rows(12_000).display()), format!("data.eval={}", rows(48_000).display()));
        // The evaluation of a wide model lasts.
        let wide = ["model.hidden=[1024, 1024]", "train.batch_rows=512", "placement.readers=1", "placement.ps=1"];
        let settings: Vec<String> =
            [&*train, &*eval].iter().chain(&wide).map(|setting| (*setting).to_owned()).collect();
        let mut run = Run::local(&settings);
        run.start(&["ps 0", "trainer 0", "reader 0"]);
        run.until_said("trainer 0", "saved ");
        run.kill("ps 0");
        run.must_go_on("trainer 0");
        run.start(&["ps 0@again"]);
        let logs = run.end_well(&["ps 0@again", "trainer 0", "reader 0"]);
        assert!(logs[1].contains("begun a new attempt"), "{}", logs[1]);
        assert_eq!(logs[1].matches("saved ").count(), 2, "{}", logs[1]);
        assert_eq!(run.model().difference(&one_process(&settings).0), None, "{}", logs[1]);
    });
}

/// A bug: the trainer ignored the signal until it was killed, and when it was started again, all rows were trained on again.
#[test]
fn a_trainer_that_is_asked_to_shut_down_while_the_first_one_saves_leaves_and_may_come_back() {
    in_time(|_| {
        let (train, eval) =
            (format!("data.train={}", rows(12_000).display()), format!("data.eval={}", rows(48_000).display()));
        let folder = tempfile::tempdir().unwrap();
        let to = format!("checkpoint.to={}", folder.path().join("checkpoints").display());
        // The evaluation of a wide model lasts.
        let wide = ["model.hidden=[1024, 1024]", "train.batch_rows=512", "placement.ps=1", "placement.trainers=2"];
        let settings = [&*train, &*eval, &*to, "train.staleness=2"].into_iter().chain(wide).map(str::to_owned);
        let mut run = Run::local(&settings.collect::<Vec<_>>());
        run.start(&["ps 0", "trainer 0", "trainer 1"]);
        run.until_said("trainer 0", "saved ");
        run.signal("trainer 1", Signal::TERM);
        run.end_with("trainer 1", 0, "");
        run.resume("trainer 1@again");
        let logs = run.end_well(&["trainer 0", "ps 0"]);
        assert!(!logs[0].contains("begun a new attempt") && logs[0].matches("saved ").count() == 1, "{}", logs[0]);
        assert!(!logs[1].contains("begins a new attempt"), "{}", logs[1]);
        let Ended { code, log } = run.ended_in_time("trainer 1@again");
        assert!(code == Some(0) && log.contains(AFTER_THE_END), "{code:?} {log}");
    });
}

#[test]
fn a_trainer_with_the_dense_parameters_that_is_started_again_begins_a_new_attempt() {
    same_model(&TWO, "trainer 0", &["placement.readers=1", "placement.ps=2"]);
}

#[test]
fn an_ordered_trainer_without_parameters_may_be_started_again() {
    same_model(&TWO, "trainer 0", &["placement.readers=1", "placement.ps=2", "placement.dense=ps"]);
}

#[test]
fn a_trainer_that_is_the_coordinator_and_reads_may_be_started_again() {
    same_model(&["trainer 0", "reader 0"], "trainer 0", &["placement.readers=1"]);
}

#[test]
fn one_of_two_synchronous_trainers_may_be_started_again() {
    let names = ["ps 0", "trainer 0", "trainer 1", "reader 0"];
    let placement = ["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true"];
    let settings = settings(&placement);
    let mut calm = Run::local(&settings);
    calm.start(&names);
    calm.end_well(&names);
    for victim in ["trainer 0", "trainer 1"] {
        let (model, log) = restarted(&names, victim, &settings);
        assert_eq!(model.difference(&calm.model()), None, "{victim} was killed: {log}");
    }
}

#[test]
fn one_of_two_trainers_that_read_by_themselves_may_be_started_again() {
    let names = ["ps 0", "trainer 0", "trainer 1"];
    let placement = ["placement.ps=1", "placement.trainers=2", "train.staleness=2"];
    for victim in ["trainer 0", "trainer 1"] {
        let (model, _) = restarted(&names, victim, &settings(&placement));
        assert!(model.keys() > 1000);
    }
}

/// Without staleness a trainer has one batch under way. It holds nothing that others lack, so the run goes on, and the table has
/// every row once, no matter which trainer trains on the rest.
#[test]
fn one_of_two_trainers_that_look_up_fresh_rows_may_be_started_again() {
    let names = ["ps 0", "trainer 0", "trainer 1"];
    let placement = ["placement.ps=1", "placement.trainers=2", "placement.dense=ps", "train.staleness=0"];
    let mut settings = settings(&[&COUNTS[..], &placement, &["data.epochs=2"]].concat());
    // The last batch, too, has a power of two of rows.
    settings.push(format!("data.train={}", rows(2 * ROWS).display()));
    for (victim, windows) in [("trainer 0", 1), ("trainer 1", 3)] {
        let (model, log) = restarted_after(windows, 4 * ROWS, &names, victim, &settings);
        let difference = model.difference_of_rows(&one_process(&settings).0);
        assert_eq!(difference, None, "{victim} was killed after {windows} windows: {log}");
    }
}
