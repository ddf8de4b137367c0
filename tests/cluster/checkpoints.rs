//! Checkpoints of several processes: after the death of any process, the run continues from the last checkpoint and ends with the model of
//! an undisturbed run.

use super::damage::flip;
use super::jobs::{one_process, rows};
use super::processes::{AFTER_THE_END, Ledger, Run, in_time};

const ROWS: u64 = 400_000;

/// The default job, but for its size, with a checkpoint every 20,000 rows.
fn settings(run: &str, placement: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::Builder::new().prefix(run).tempdir().unwrap();
    let mut settings = vec![
        format!("data.train={}", rows(ROWS).display()),
        format!("checkpoint.to={}", folder.path().join("checkpoints").display()),
        "checkpoint.rows=20000".to_owned(),
    ];
    let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
    settings.extend(small.iter().chain(placement).map(|setting| (*setting).to_owned()));
    (folder, settings)
}

/// A job whose table counts rows, exactly and in any order: the steps are so small that every gradient is the gradient of a new model, a
/// power of two. A row that is trained on twice or never changes the weights of its keys.
pub(crate) const COUNTS: [&str; 4] = [
    "data.epochs=6",
    "model.kind=lr",
    "table.linear_optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
    "train.optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
];

/// Kills each of `victims` after another checkpoint, and starts it again. The model must equal the model of one process.
fn killed(names: &[&str], victims: &[&str], placement: &[&str]) {
    let (run, settings, trainer) = killed_run(names, victims, placement);
    assert_eq!(run.model().difference(&one_process(&calm(&settings)).0), None, "{trainer}");
}

/// How often a job reads its rows.
fn epochs(settings: &[String]) -> u64 {
    settings
        .iter()
        .rev()
        .find_map(|setting| setting.strip_prefix("data.epochs="))
        .map_or(1, |epochs| epochs.parse().unwrap())
}

/// The settings of an undisturbed run of one process that trains on the same rows.
fn calm(settings: &[String]) -> Vec<String> {
    let differs = |setting: &&String| !["checkpoint.", "train.staleness="].iter().any(|free| setting.starts_with(free));
    settings.iter().filter(differs).cloned().collect()
}

/// Returns the run, its settings and the log of its first trainer. If the run is over too soon, the next one has more epochs.
fn killed_run(names: &[&str], victims: &[&str], placement: &[&str]) -> (Run, Vec<String>, String) {
    in_time(|number| {
        let (_folder, mut settings) = settings("victims", placement);
        if number > 0 {
            settings.push(format!("data.epochs={}", epochs(&settings) * (1 + number)));
        }
        let mut run = Run::local(&settings);
        let mut running: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        run.start(names);
        for (time, victim) in victims.iter().enumerate() {
            let at = running.iter().position(|name| name.split('@').next() == Some(*victim)).unwrap();
            let trainer = running.iter().find(|name| name.starts_with("trainer 0")).unwrap().clone();
            run.until_said_times(&trainer, "INFO checkpoint ", 1 + time);
            run.kill(&running[at].clone());
            running[at] = format!("{victim}@{time}");
            run.resume(&running[at].clone());
        }
        let names: Vec<&str> = running.iter().map(String::as_str).collect();
        let logs = run.end_well(&names);
        let trainer = &logs[names.iter().position(|name| name.starts_with("trainer 0")).unwrap()];
        let ledger = Ledger::of(trainer);
        assert_eq!((ledger.rows, ledger.rejected), (ROWS * epochs(&settings), 0), "{trainer}");
        let trainer = trainer.clone();
        (run, settings, trainer)
    })
}

const NAMES: [&str; 4] = ["ps 0", "ps 1", "trainer 0", "reader 0"];
const PLACEMENT: [&str; 2] = ["placement.readers=1", "placement.ps=2"];

/// A bug: a trainer that was killed when the model was saved, and started again, waited ten minutes for a coordinator that had ended.
#[test]
fn a_process_that_is_started_again_after_the_end_of_the_run_ends_at_once() {
    let (_folder, settings) = settings("ended", &PLACEMENT);
    let mut run = Run::local(&settings);
    run.start(&NAMES);
    run.end_well(&NAMES);
    let model = run.model();
    let again = |number: u64| NAMES.map(|name| format!("{name}@{number}"));
    for name in again(1) {
        run.resume(&name);
        let model = "the run has ended: it has trained on 400,000 rows, and its model is at ";
        run.end_with(&name, 0, model);
    }
    let all = again(2);
    all.iter().for_each(|name| run.resume(name));
    all.iter().for_each(|name| run.end_with(name, 0, AFTER_THE_END));
    assert_eq!(run.model().difference(&model), None);

    std::fs::remove_dir_all(run.folder().join("model")).unwrap();
    let all = again(3);
    all.iter().for_each(|name| run.resume(name));
    run.end_well(&all.each_ref().map(String::as_str));
    assert_eq!(run.model().difference(&model), None, "without its model the run continues from its newest checkpoint");
}

#[test]
fn a_ps_dies() {
    killed(&NAMES, &["ps 1"], &PLACEMENT);
}

#[test]
fn a_ps_dies_whose_rows_come_and_go() {
    let rules = ["table.admission.count=2", "table.eviction.unseen_rows=40000", "table.eviction.max_rows=65536"];
    killed(&NAMES, &["ps 1"], &[&PLACEMENT[..], &rules].concat());
    let filtered = ["table.admission={ count = 2, bloom = { keys = 5000 } }", "table.eviction.unseen_rows=40000"];
    killed(&NAMES, &["ps 1"], &[&PLACEMENT[..], &filtered].concat());
}

#[test]
fn the_coordinator_dies() {
    killed(&NAMES, &["ps 0"], &PLACEMENT);
}

#[test]
fn the_trainer_dies() {
    killed(&NAMES, &["trainer 0"], &PLACEMENT);
}

#[test]
fn all_die_one_after_the_other() {
    killed(&NAMES, &["reader 0", "trainer 0", "ps 0", "ps 1"], &PLACEMENT);
}

#[test]
fn a_ps_or_trainer_dies_whatever_the_look_ahead_is() {
    killed(&NAMES, &["trainer 0", "ps 1"], &[&PLACEMENT[..], &["train.look_ahead=0"]].concat());
    killed(&NAMES, &["ps 1", "trainer 0", "ps 0"], &[&PLACEMENT[..], &["train.look_ahead=32"]].concat());
}

#[test]
fn a_trainer_that_holds_everything_dies() {
    killed(&["trainer 0", "reader 0"], &["trainer 0"], &["placement.readers=1"]);
}

#[test]
fn the_dense_parameters_are_in_the_ps() {
    let placement = [&PLACEMENT[..], &["placement.dense=ps"]].concat();
    killed(&NAMES, &["ps 1", "trainer 0"], &placement);
}

#[test]
fn a_trainer_that_reads_by_itself_dies() {
    killed(&["ps 0", "trainer 0"], &["trainer 0", "ps 0"], &["placement.ps=1"]);
}

#[test]
fn readers_look_up_the_rows() {
    let placement = [&PLACEMENT[..], &["placement.lookup_at=reader"]].concat();
    killed(&NAMES, &["reader 0", "ps 1", "trainer 0"], &placement);
}

const SYNC: [&str; 5] = ["ps 0", "ps 1", "trainer 0", "trainer 1", "reader 0"];

/// Two trainers that take each step together: the model equals the model of an undisturbed run, to the bit.
fn killed_in_step(victims: &[&str], more: &[&str]) {
    let placement = ["placement.readers=1", "placement.ps=2", "placement.trainers=2", "train.sync=true"];
    let (run, settings, trainer) = killed_run(&SYNC, victims, &[&placement, more].concat());
    let mut undisturbed = Run::local(&calm(&settings));
    undisturbed.start(&SYNC);
    undisturbed.end_well(&SYNC);
    assert_eq!(run.model().difference(&undisturbed.model()), None, "{trainer}");
}

#[test]
fn any_process_of_an_exact_order_dies() {
    killed(&NAMES, &["reader 0", "trainer 0", "ps 0"], &[&PLACEMENT[..], &["train.staleness.exactly=3"]].concat());
    killed(&["ps 0", "trainer 0"], &["trainer 0", "ps 0"], &["placement.ps=1", "train.staleness.exactly=1"]);
    killed_in_step(&["trainer 1", "ps 1", "trainer 0"], &["train.staleness.exactly=2"]);
}

/// Trainers that take their steps by themselves: every row is in the table once.
fn killed_and_counted(names: &[&str], victims: &[&str], placement: &[&str]) {
    let (run, settings, trainer) = killed_run(names, victims, &[&COUNTS[..], placement].concat());
    let alone = one_process(&calm(&settings));
    assert_eq!(run.model().difference_of_rows(&alone.0), None, "{trainer}");
}

#[test]
fn one_of_two_trainers_in_step_dies() {
    killed_in_step(&["trainer 1", "trainer 0"], &[]);
}

#[test]
fn a_ps_or_reader_of_two_trainers_in_step_dies() {
    killed_in_step(&["ps 1", "reader 0", "ps 0"], &[]);
}

#[test]
fn one_of_three_trainers_that_read_by_themselves_dies() {
    let names = ["ps 0", "trainer 0", "trainer 1", "trainer 2"];
    let placement = ["placement.ps=1", "placement.trainers=3", "train.staleness=2"];
    killed_and_counted(&names, &["trainer 2", "ps 0", "trainer 0"], &placement);
}

#[test]
fn one_of_two_trainers_with_readers_dies() {
    let names = ["ps 0", "ps 1", "trainer 0", "trainer 1", "reader 0", "reader 1"];
    let placement = ["placement.readers=2", "placement.ps=2", "placement.trainers=2", "train.staleness=4"];
    killed_and_counted(&names, &["trainer 1", "reader 0", "ps 1", "trainer 0"], &placement);
}

#[test]
fn readers_look_up_the_rows_for_two_trainers() {
    let names = ["ps 0", "trainer 0", "trainer 1", "reader 0"];
    let placement = [
        "placement.readers=1",
        "placement.ps=1",
        "placement.trainers=2",
        "placement.lookup_at=reader",
        "train.staleness=4",
    ];
    killed_and_counted(&names, &["trainer 1", "ps 0"], &placement);
}

/// A checkpoint of two trainers goes on with three, and then with one.
#[test]
fn another_number_of_trainers_goes_on() {
    in_time(|_| {
        let placement = ["placement.ps=1", "placement.dense=ps", "train.staleness=2"];
        let (_folder, settings) = settings("numbers", &[&COUNTS[..], &placement].concat());
        let names = ["ps 0", "trainer 0", "trainer 1", "trainer 2"];
        for trainers in [2, 3, 1] {
            let with = [&settings[..], &[format!("placement.trainers={trainers}")]].concat();
            let (mut run, names) = (Run::local(&with), &names[..=trainers]);
            names.iter().for_each(|name| run.resume(name));
            if trainers > 1 {
                run.until_said("trainer 0", "INFO checkpoint ");
                names.iter().for_each(|name| run.kill(name));
                continue;
            }
            let logs = run.end_well(names);
            assert!(logs[0].contains("continues from checkpoint"), "{}", logs[0]);
            assert_eq!(Ledger::of(&logs[1]).rows, ROWS * epochs(&settings), "{}", logs[1]);
            let alone = one_process(&calm(&settings));
            assert_eq!(run.model().difference_of_rows(&alone.0), None, "{}", logs[1]);
        }
    });
}

#[test]
fn another_number_of_trainers_in_step_is_refused() {
    in_time(|_| {
        let placement = ["placement.readers=1", "placement.ps=1", "train.sync=true", "placement.trainers=2"];
        let (_folder, mut settings) = settings("refused", &placement);
        let names = ["ps 0", "trainer 0", "trainer 1", "reader 0"];
        let mut run = Run::local(&settings);
        run.start(&names);
        run.until_said("trainer 0", "INFO checkpoint ");
        names.iter().for_each(|name| run.kill(name));
        settings.push("placement.trainers=3".to_owned());
        let mut run = Run::local(&settings);
        run.resume("ps 0");
        let words =
            "trainers that take each step together (placement.trainers with train.sync, else 1) is 2 there and 3 here";
        run.end_with("ps 0", 2, words);
    });
}

/// A trainer stands still when the others are asked to stop: the checkpoint is given up, they go on, and a later one has all.
#[test]
fn a_trainer_that_stands_still_holds_up_no_other_for_long() {
    in_time(|_| {
        let names = ["ps 0", "trainer 0", "trainer 1"];
        let placement = ["placement.ps=1", "placement.trainers=2", "train.staleness=2"];
        let (_folder, settings) = settings("still", &[&COUNTS[..], &placement].concat());
        let mut run = Run::local(&settings);
        run.start(&names);
        run.until_said("trainer 0", "INFO checkpoint ");
        run.hold("trainer 1");
        run.until_said("ps 0", "a checkpoint is given up: trainer 1 did not stop in time");
        let said = run.until_said("trainer 0", "a checkpoint failed, and the run goes on");
        run.go_on("trainer 1");
        run.until_said_times("trainer 0", "INFO checkpoint ", said.matches("INFO checkpoint ").count() + 1);
        let logs = run.end_well(&["trainer 0", "trainer 1", "ps 0"]);
        assert_eq!(Ledger::of(&logs[0]).rows, ROWS * epochs(&settings), "{}", logs[0]);
        assert_eq!(run.model().difference_of_rows(&one_process(&calm(&settings)).0), None, "{}", logs[0]);
    });
}

/// A trainer that the run cannot do without is asked to shut down: the run makes one more checkpoint over all of them, ends with exit code
/// 5, and goes on later.
#[test]
fn two_trainers_that_are_drained_leave_a_checkpoint() {
    in_time(|_| {
        for (placement, names, told) in [
            (&["placement.readers=1", "placement.ps=1", "placement.trainers=2", "train.sync=true"][..], 4, "trainer 1"),
            (&["placement.ps=1", "placement.trainers=2", "train.staleness=2"], 3, "trainer 0"),
        ] {
            let names = &["ps 0", "trainer 0", "trainer 1", "reader 0"][..names];
            let (_folder, settings) =
                settings("drained", &[&COUNTS[..], placement, &["checkpoint.rows=1000000000"]].concat());
            let mut run = Run::local(&settings);
            run.start(names);
            run.until_windows(1);
            run.signal(told, rustix::process::Signal::TERM);
            run.end_with("trainer 0", 5, "checkpoint 1 in");
            for name in names {
                run.ended(name);
            }
            let mut run = Run::local(&settings);
            names.iter().for_each(|name| run.resume(name));
            let logs = run.end_well(names);
            let ledger = Ledger::of(&logs[1]);
            assert_eq!((ledger.rows, ledger.rejected), (ROWS * epochs(&settings), 0), "{}", logs[1]);
        }
    });
}

/// A ps cannot read its part of the checkpoint: all end at once with its fault, not after `placement.timeout_seconds`.
#[test]
fn a_checkpoint_that_cannot_be_loaded_ends_all_processes_with_one_fault() {
    in_time(|_| {
        for broken in ["ps 0", "ps 1"] {
            let (folder, settings) = settings("broken", &PLACEMENT);
            let mut run = Run::local(&settings);
            run.start(&NAMES);
            run.until_said("trainer 0", "INFO checkpoint ");
            NAMES.iter().for_each(|name| run.kill(name));
            let manifests =
                || std::fs::read_dir(folder.path().join("checkpoints")).unwrap().map(|file| file.unwrap().path());
            let json = |path: &std::path::Path| path.extension().is_some_and(|kind| kind == "json");
            let words = if broken == "ps 0" {
                // The coordinator finds no checkpoint that is whole.
                manifests().filter(|path| json(path)).for_each(|path| std::fs::write(path, "{").unwrap());
                "no checkpoint in"
            } else {
                // A ps finds rows of another table.
                for path in manifests().filter(|path| json(path)) {
                    let text = std::fs::read_to_string(&path).unwrap();
                    // Without its checksum, as an earlier program wrote it.
                    let (text, _) = text.split_once(",\n  \"checksum\"").unwrap();
                    let text = text.replace("\"dim\": 4", "\"dim\": 3");
                    std::fs::write(&path, format!("{text}\n}}\n")).unwrap();
                }
                "has a table"
            };
            let mut run = Run::local(&settings);
            for name in NAMES {
                run.resume(name);
            }
            // `placement.timeout_seconds` is 600: a process that waits for it misses the deadline of `end_with`.
            for name in NAMES {
                run.end_with(name, 2, words);
            }
        }
    });
}

/// Each process compares the files that it loads with their checksums. The newest checkpoint is no use if one of them is damaged.
#[test]
fn a_run_continues_from_an_older_checkpoint_when_a_process_finds_the_newest_damaged() {
    in_time(|_| {
        let alone = ["placement.readers=1", "placement.ps=0"];
        let in_ps = [&PLACEMENT[..], &["placement.dense=ps"]].concat();
        let exact = [&PLACEMENT[..], &["train.staleness={ exactly = 2 }"]].concat();
        let without_ps = ["trainer 0", "reader 0"];
        for (names, placement, file, finder) in [
            (&NAMES[..], &PLACEMENT[..], "embedding-0000.arrow", "ps 0"),
            (&NAMES[..], &PLACEMENT[..], "embedding-0001.arrow", "ps 1"),
            (&NAMES[..], &in_ps[..], "dense-0001.safetensors", "ps "),
            (&NAMES[..], &PLACEMENT[..], "dense.safetensors", "trainer 0"),
            (&NAMES[..], &exact[..], "kept-0000.safetensors", "trainer 0"),
            (&without_ps[..], &alone[..], "embedding-0000.arrow", "trainer 0"),
        ] {
            let (folder, mut settings) = settings("damaged", placement);
            settings.push("checkpoint.full_every=1".to_owned());
            let mut run = Run::local(&settings);
            run.start(names);
            run.until_said_times("trainer 0", "INFO checkpoint ", 3);
            names.iter().for_each(|name| run.kill(name));
            let checkpoints = folder.path().join("checkpoints");
            let mut files: Vec<_> = std::fs::read_dir(&checkpoints)
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort();
            let manifest = files.iter().rfind(|name| name.starts_with("checkpoint-")).unwrap();
            let newest = &manifest["checkpoint-".len()..][..6];
            let damaged = files.iter().find(|name| name.starts_with(newest) && name.ends_with(file)).unwrap();
            flip(&checkpoints.join(damaged));
            let mut run = Run::local(&settings);
            names.iter().for_each(|name| run.resume(name));
            let logs = run.end_well(names);
            let number: u64 = newest.parse().unwrap();
            let coordinator = &logs[0];
            for said in [
                format!("checkpoint {number} is not used: {finder}"),
                format!("{damaged} is damaged"),
                format!("continues from checkpoint {} in", number - 1),
            ] {
                assert!(coordinator.contains(&said), "{said:?} is not in:\n{coordinator}");
            }
            settings.retain(|setting| !setting.starts_with("checkpoint."));
            assert_eq!(run.model().difference(&one_process(&settings).0), None, "{damaged}");
        }
    });
}

/// A ps dies while the run drains: the drain is not forgotten, and the run ends as drained when all are back.
#[test]
fn a_drain_outlives_a_new_attempt() {
    in_time(|_| {
        let (_folder, settings) = settings("drain", &[&PLACEMENT[..], &["placement.timeout_seconds=60"]].concat());
        let mut run = Run::local(&settings);
        run.start(&NAMES);
        run.until_said("trainer 0", "INFO checkpoint ");
        // The ps stands still, so that the last checkpoint cannot be made, and the process that was asked to shut down dies.
        run.hold("ps 1");
        run.signal("reader 0", rustix::process::Signal::STOP);
        run.signal("trainer 0", rustix::process::Signal::TERM);
        run.until_status("the run drains", |status| status.phase == forebay::pipelines::cluster::RunPhase::Draining);
        run.kill("trainer 0");
        run.kill("ps 1");
        run.go_on("reader 0");
        run.resume("trainer 0@again");
        run.resume("ps 1@again");
        for name in ["trainer 0@again", "ps 0", "ps 1@again", "reader 0"] {
            run.end_with(name, 5, "stopped; --resume continues from checkpoint ");
        }
        let mut run = Run::local(&settings);
        NAMES.iter().for_each(|name| run.resume(name));
        let logs = run.end_well(&NAMES);
        assert_eq!(Ledger::of(&logs[2]).rows, ROWS, "{}", logs[2]);
        assert_eq!(run.model().difference(&one_process(&calm(&settings)).0), None, "{}", logs[2]);
    });
}
