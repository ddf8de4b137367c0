//! One of several trainers is asked to shut down: it leaves, and the run goes on. A later process of its rank joins again. A run does not
//! wait long for a trainer that it can do without.

use std::path::Path;

use rustix::process::Signal;

use super::checkpoints::COUNTS;
use super::jobs::{one_process, rows};
use super::launch::start;
use super::processes::{Ended, Ledger, Run, in_time, over_too_soon};
use super::supervise::child;

const ROWS: u64 = 400_000;

/// What a trainer says that has left.
const LEFT: &str = "trainer 1 was asked to shut down and has left the run, which goes on without it";

/// A job of two trainers, with readers and checkpoints or without. A later try of [`in_time`] has more epochs.
fn settings(folder: &Path, readers: u32, checkpoints: bool, number: u64) -> Vec<String> {
    let mut settings = vec![format!("data.train={}", rows(ROWS).display()), format!("placement.readers={readers}")];
    if checkpoints {
        settings.push(format!("checkpoint.to={}", folder.join("checkpoints").display()));
        settings.push("checkpoint.rows=20000".to_owned());
    }
    let small = ["seed=9", "train.batch_rows=512", "train.threads=1", "placement.ps=1", "placement.trainers=2"];
    let more = ["train.staleness=2", "placement.lease_seconds=5"];
    settings.extend(small.iter().chain(&more).chain(&COUNTS).map(|setting| (*setting).to_owned()));
    settings.push(format!("data.epochs={}", epochs(number)));
    settings
}

fn epochs(number: u64) -> u64 {
    6 * (1 + number)
}

fn names(readers: u32) -> Vec<&'static str> {
    ["ps 0", "trainer 0", "trainer 1", "reader 0", "reader 1"][..3 + readers as usize].to_vec()
}

/// The model equals the model of one process that trains on the same rows, and each row counts once.
fn check(run: &Run, log: &str, settings: &[String], number: u64) {
    let ledger = Ledger::of(log);
    assert_eq!((ledger.rows, ledger.rejected), (ROWS * epochs(number), 0), "{log}");
    let calm: Vec<String> = settings
        .iter()
        .filter(|setting| !["checkpoint.", "train.staleness="].iter().any(|free| setting.starts_with(free)))
        .cloned()
        .collect();
    assert_eq!(run.model().difference_of_rows(&one_process(&calm).0), None, "{log}");
}

/// Waits until the run has trained on some rows.
fn until_it_trains(run: &mut Run, checkpoints: bool) {
    run.until_windows(1);
    if checkpoints {
        run.until_said("trainer 0", "INFO checkpoint ");
    }
}

/// Waits until the first trainer has made one more checkpoint.
fn until_another_checkpoint(run: &mut Run) {
    let made = run.until_said("trainer 0", "INFO checkpoint ").matches("INFO checkpoint ").count();
    run.until_said_times("trainer 0", "INFO checkpoint ", made + 1);
}

const ALL: [(u32, bool); 4] = [(0, false), (0, true), (2, false), (2, true)];

#[test]
fn a_trainer_that_is_asked_to_shut_down_leaves_and_the_run_goes_on() {
    for (readers, checkpoints) in ALL {
        in_time(|number| {
            let folder = tempfile::tempdir().unwrap();
            let settings = settings(folder.path(), readers, checkpoints, number);
            let mut run = Run::local(&settings);
            run.start(&names(readers));
            until_it_trains(&mut run, checkpoints);
            run.signal("trainer 1", Signal::TERM);
            run.end_with("trainer 1", 5, LEFT);
            if checkpoints {
                until_another_checkpoint(&mut run);
            }
            let rest: Vec<&str> = names(readers).into_iter().filter(|name| *name != "trainer 1").collect();
            let logs = run.end_well(&rest);
            check(&run, &logs[1], &settings, number);
            assert_eq!(Ledger::of(&logs[1]).again, 0, "it gives its leases back itself: {}", logs[1]);
            assert!(logs[0].contains("trainer 1 left") && !logs[0].contains("begins a new attempt"), "{}", logs[0]);
        });
    }
}

#[test]
fn a_trainer_that_has_left_joins_again_without_a_new_attempt() {
    for (readers, checkpoints) in ALL {
        in_time(|number| {
            let folder = tempfile::tempdir().unwrap();
            let settings = settings(folder.path(), readers, checkpoints, number);
            let mut run = Run::local(&settings);
            run.start(&names(readers));
            until_it_trains(&mut run, checkpoints);
            run.signal("trainer 1", Signal::TERM);
            // Kubernetes starts another while this one leaves.
            run.until_said("ps 0", "trainer 1 was asked to shut down and leaves");
            run.start(&["trainer 1@again"]);
            run.end_with("trainer 1", 5, LEFT);
            let mut rest = names(readers);
            rest[2] = "trainer 1@again";
            let logs = run.end_well(&rest);
            check(&run, &logs[1], &settings, number);
            assert!(!logs[0].contains("begins a new attempt"), "{}", logs[0]);
            assert!(logs[0].matches("trainer 1 joined").count() == 2, "{}", logs[0]);
        });
    }
}

/// It learns from the coordinator what the run continued from.
#[test]
fn a_trainer_joins_again_when_the_checkpoint_that_the_run_went_on_from_is_gone() {
    in_time(|number| {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(folder.path(), 0, true, number);
        settings.push("checkpoint.keep=1".to_owned());
        let mut run = Run::local(&settings);
        run.start(&names(0));
        run.until_said("trainer 0", "INFO checkpoint ");
        names(0).iter().for_each(|name| run.kill(name));
        let mut run = Run::local(&settings);
        names(0).iter().for_each(|name| run.resume(name));
        let log = run.until_said("ps 0", "continues from checkpoint ");
        let origin = log.split_once("continues from checkpoint ").unwrap().1.split_once(' ').unwrap().0.to_owned();
        let origin: u64 = origin.parse().unwrap();
        let manifest = folder.path().join("checkpoints").join(format!("checkpoint-{origin:06}.json"));
        run.until("the checkpoint is gone", |run| {
            run.must_go_on("trainer 0");
            (!manifest.exists()).then_some(())
        });
        run.signal("trainer 1", Signal::TERM);
        run.end_with("trainer 1", 5, LEFT);
        run.resume("trainer 1@again");
        let logs = run.end_well(&["ps 0", "trainer 0", "trainer 1@again"]);
        check(&run, &logs[1], &settings, number);
        assert!(!logs[0].contains("begins a new attempt"), "{}", logs[0]);
    });
}

/// As Kubernetes and Slurm tell all processes to end within a moment.
#[test]
fn a_run_whose_trainers_are_all_asked_to_shut_down_drains_in_whatever_order_they_hear_it() {
    for (readers, checkpoints) in ALL {
        for order in [["trainer 1", "trainer 0"], ["trainer 0", "trainer 1"]] {
            in_time(|number| {
                let folder = tempfile::tempdir().unwrap();
                let settings = settings(folder.path(), readers, checkpoints, number);
                let mut run = Run::local(&settings);
                run.start(&names(readers));
                until_it_trains(&mut run, checkpoints);
                order.iter().for_each(|name| run.signal(name, Signal::TERM));
                let ended: Vec<Ended> = names(readers).iter().map(|name| run.ended(name)).collect();
                let Ended { code, log } = &ended[1];
                if *code == Some(0) {
                    over_too_soon(log);
                }
                assert_eq!((*code, ended[2].code), (Some(5), Some(5)), "{log} {}", ended[2].log);
                assert!(ended.iter().all(|ended| matches!(ended.code, Some(0 | 5))), "{log}");
                if !checkpoints {
                    let ledger = Ledger::of(log);
                    assert!(ledger.rows > 0 && ledger.rejected == 0 && ledger.windows.0 < ledger.windows.1, "{log}");
                    return;
                }
                assert!(log.contains("--resume"), "{log}");
                let mut run = Run::local(&settings);
                names(readers).iter().for_each(|name| run.resume(name));
                let logs = run.end_well(&names(readers));
                check(&run, &logs[1], &settings, number);
            });
        }
    }
}

/// Otherwise the run would wait for it until `placement.timeout_seconds`.
#[test]
fn a_new_attempt_begins_without_a_trainer_that_has_left() {
    in_time(|number| {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(folder.path(), 2, true, number);
        settings.push("placement.ps=2".to_owned());
        let mut run = Run::local(&settings);
        run.start(&[&names(2)[..], &["ps 1"]].concat());
        until_it_trains(&mut run, true);
        run.signal("trainer 1", Signal::TERM);
        run.end_with("trainer 1", 5, LEFT);
        run.kill("ps 1");
        run.resume("ps 1@again");
        let logs = run.end_well(&["ps 0", "trainer 0", "reader 0", "reader 1", "ps 1@again"]);
        check(&run, &logs[1], &settings, number);
        assert!(logs[0].contains("ps 1 was started again"), "{}", logs[0]);
    });
}

#[test]
fn a_launch_goes_on_without_a_trainer_that_has_left_also_with_another_coordinator() {
    in_time(|number| {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 2, true, number);
        let mut run = start(&settings, &[]);
        run.until_said("launch", "INFO checkpoint ");
        child(&mut run, "trainer 1").signal(Signal::TERM);
        run.until_said("launch", LEFT);
        let made = run.until_said("launch", "INFO checkpoint ").matches("INFO checkpoint ").count();
        let log = run.until_said_times("launch", "INFO checkpoint ", made + 1);
        assert!(!log.contains("starts it again"), "{log}");
        child(&mut run, "ps 0").kill();
        let log = run.end_well(&["launch"]).remove(0);
        if !log.contains("ps 0 was killed by signal 9") {
            over_too_soon(&log);
        }
        assert!(
            log.contains("nothing was heard of trainer 1 for 5s (placement.lease_seconds): the run goes on without it"),
            "{log}"
        );
        check(&run, &log, &settings, number);
    });
}

#[test]
fn a_run_goes_on_without_a_trainer_that_is_not_started_again_and_it_joins_later() {
    for readers in [0, 2] {
        in_time(|number| {
            let folder = tempfile::tempdir().unwrap();
            let settings = settings(folder.path(), readers, true, number);
            let mut run = Run::local(&settings);
            run.start(&names(readers));
            until_it_trains(&mut run, true);
            names(readers).iter().for_each(|name| run.kill(name));
            let mut run = Run::local(&settings);
            let mut others = names(readers);
            others.remove(2);
            others.iter().for_each(|name| run.resume(name));
            run.until_said("ps 0", "nothing was heard of trainer 1 for 5s");
            until_it_trains(&mut run, true);
            run.resume("trainer 1");
            let logs = run.end_well(&names(readers));
            check(&run, &logs[1], &settings, number);
            assert!(
                !logs[0].contains("begins a new attempt") && logs[0].contains("all members but trainer 1"),
                "{}",
                logs[0]
            );
            assert!(logs[0].contains("trainer 1 joined"), "{}", logs[0]);
        });
    }
}
