//! A run of several processes that evaluates its model while it trains: its evaluations, its model and its end are those of one process, to
//! the bit, also after a process was killed.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::bits::Bits;
use super::jobs::{job, rows};
use super::processes::{Ledger, Run, in_time, over_too_soon, rows_read};

const ROWS: u64 = 4000;

/// No evaluation but the first is an improvement.
const NEVER_BETTER: &str = "evaluation.min_delta=0.5";

const REDUCES: &str = "evaluation.reduce_lr_on_plateau={ factor = 0.3 }";

fn settings(rows_of: u64, more: &[&str]) -> Vec<String> {
    let eval = format!("data.eval={}", rows(1000).display());
    let fast =
        ["train.optimizer", "table.embedding_optimizer"].map(|of| format!("{of}={{ kind = 'adam', lr = 0.01 }}"));
    job(rows_of, &[&[eval.as_str(), fast[0].as_str(), fast[1].as_str(), "placement.lease_rows=1024"], more].concat())
}

fn report(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The model and the evaluations of a job in one process.
fn alone(settings: &[String]) -> (Bits, Value) {
    let folder = tempfile::tempdir().unwrap();
    let (model, written) = (folder.path().join("model"), folder.path().join("report.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["train", "--report"]).arg(&written).arg("--set").arg(format!("output.model={}", model.display()));
    let of_one = settings.iter().filter(|s| !s.starts_with("placement.") && !s.starts_with("train.look_ahead="));
    let output = command.args(of_one.flat_map(|setting| ["--set", setting])).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (Bits::read(&model), report(&written)["evaluations"].clone())
}

/// The names of the processes of a placement.
fn processes(settings: &[String]) -> Vec<String> {
    let number = |field: &str| {
        let of = settings.iter().find_map(|s| s.strip_prefix("placement.")?.strip_prefix(field)?.strip_prefix('='));
        of.map_or(0, |number| number.parse::<u32>().unwrap())
    };
    let named = |role: &'static str, many: u32| (0..many).map(move |rank| format!("{role} {rank}"));
    named("trainer", number("trainers").max(1))
        .chain(named("ps", number("ps")))
        .chain(named("reader", number("readers")))
        .collect()
}

/// Starts the processes of a placement. The first one, trainer 0, writes its report.
fn start(run: &mut Run, settings: &[String]) -> Vec<String> {
    let (names, written) = (processes(settings), run.folder().join("report.json"));
    for name in &names {
        match name.as_str() {
            "trainer 0" => run.start_with(name, &["--report", written.to_str().unwrap()]),
            name => run.start(&[name]),
        }
    }
    names
}

fn end_well(run: &mut Run, names: &[String]) -> (Vec<String>, Value) {
    let logs = run.end_well(&names.iter().map(String::as_str).collect::<Vec<_>>());
    (logs, report(&run.folder().join("report.json")))
}

#[test]
fn evaluations_and_model_are_those_of_one_process() {
    let last = ["evaluation.every={ epochs = 1 }", "evaluation.keep=last"];
    let best = ["evaluation.every={ rows = 1500 }", "evaluation.keep=best"];
    for (kept, placement) in [
        (last, &["placement.readers=2", "placement.ps=2"][..]),
        (best, &["placement.readers=0", "placement.ps=1", "placement.dense=ps"]),
        (last, &["placement.readers=1", "placement.ps=2", "train.look_ahead=4"]),
        (last, &["placement.readers=2", "placement.ps=1", "train.staleness={ exactly = 3 }"]),
        (best, &["placement.readers=1", "placement.ps=0"]),
    ] {
        let settings = settings(ROWS, &[&kept[..], &["data.epochs=3", NEVER_BETTER, REDUCES], placement].concat());
        let mut run = Run::local(&settings);
        let names = start(&mut run, &settings);
        let (logs, report) = end_well(&mut run, &names);
        let (model, evaluations) = alone(&settings);
        assert!(evaluations["points"].as_array().unwrap().iter().any(|point| point["reduced_lr"] == true));
        assert_eq!(report["evaluations"], evaluations, "{placement:?}: {}", logs[0]);
        assert_eq!(run.model().difference(&model), None, "{placement:?}: {}", logs[0]);
        assert_eq!(Ledger::of(&logs[0]).rows, 3 * ROWS, "{}", logs[0]);
        // The rates count.
        if placement.contains(&"placement.dense=ps") {
            let constant: Vec<String> =
                settings.iter().filter(|s| *s != REDUCES && *s != NEVER_BETTER).cloned().collect();
            assert_ne!(alone(&constant).1["points"], evaluations["points"]);
        }
    }
}

/// With bounded staleness two runs differ, but whole epochs lie before each evaluation, although two readers read.
#[test]
fn whole_epochs_lie_before_an_evaluation_with_bounded_staleness_too() {
    let more = [
        "data.epochs=3",
        "train.staleness=2",
        "placement.readers=2",
        "placement.ps=1",
        "evaluation.every={ epochs = 1 }",
    ];
    let settings = settings(ROWS, &more);
    let mut run = Run::local(&settings);
    let names = start(&mut run, &settings);
    let (logs, report) = end_well(&mut run, &names);
    let points = report["evaluations"]["points"].as_array().unwrap();
    let of = |field: &str| points.iter().map(|point| point[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("rows"), of("epochs")), (vec![ROWS, 2 * ROWS, 3 * ROWS], vec![1, 2, 3]), "{}", logs[0]);
}

#[test]
fn the_training_stops_early_in_all_processes() {
    let stops = ["data.epochs=20", "evaluation.every={ epochs = 1 }", "evaluation.patience=2", NEVER_BETTER];
    for placement in [
        &["placement.readers=2", "placement.ps=1"][..],
        &["placement.readers=0", "placement.ps=2", "placement.dense=ps", "train.staleness=1"],
        &["placement.readers=1", "placement.ps=0", "train.staleness={ exactly = 2 }"],
    ] {
        let settings = settings(ROWS, &[&stops[..], placement].concat());
        let mut run = Run::local(&settings);
        let names = start(&mut run, &settings);
        let (logs, report) = end_well(&mut run, &names);
        assert!(logs[0].contains("stopped early, after 12,000 rows"), "{placement:?}: {}", logs[0]);
        assert_eq!(report["evaluations"]["stopped_early"], true, "{}", logs[0]);
        let (ledger, said) = (&report["ledger"], Ledger::of(&logs[0]));
        assert_eq!((&ledger["delivered"], said.rows), (&Value::from(3 * ROWS), 3 * ROWS), "{}", logs[0]);
        let rejected: u64 = ledger["rejected"].as_object().unwrap().values().map(|rows| rows.as_u64().unwrap()).sum();
        assert_eq!(ledger["read"].as_u64().unwrap(), 3 * ROWS + rejected, "{ledger}");
        let readers = names.iter().zip(&logs).filter(|(name, _)| name.starts_with("reader"));
        let read: Vec<u64> = readers.map(|(_, log)| rows_read(log)).collect();
        if !read.is_empty() {
            assert_eq!(read.iter().sum::<u64>(), 3 * ROWS + rejected, "{ledger}");
        }
        if !placement.contains(&"train.staleness=1") {
            let (model, evaluations) = alone(&settings);
            assert_eq!(report["evaluations"], evaluations, "{}", logs[0]);
            assert_eq!(run.model().difference(&model), None, "{placement:?}: {}", logs[0]);
        }
    }
}

/// A process with state is killed between two evaluations, and the run continues from its checkpoint: no evaluation is lost or made twice.
#[test]
fn a_run_whose_process_was_killed_goes_on_with_its_evaluations_and_its_best_model() {
    for (killed, placement) in [
        ("ps 1", &["placement.readers=1", "placement.ps=2", "placement.dense=ps"][..]),
        ("trainer 0", &["placement.readers=1", "placement.ps=1"]),
    ] {
        in_time(|_| {
            let folder = tempfile::tempdir().unwrap();
            let to = format!("checkpoint.to={}", folder.path().display());
            let more =
                ["data.epochs=2", "evaluation.every={ rows = 2500 }", "evaluation.keep=best", NEVER_BETTER, REDUCES];
            let more = [&more[..], &["checkpoint.rows=2000", &to], placement].concat();
            let mut settings = settings(10_000, &more);
            let mut run = Run::local(&settings);
            let mut names = start(&mut run, &settings);
            run.until_said_times("trainer 0", "INFO evaluation ", 3);
            run.until_said_times("trainer 0", "INFO checkpoint ", 2);
            run.kill(killed);
            let again = format!("{killed}@again");
            let written = run.folder().join("report.json");
            let flags = ["--report", written.to_str().unwrap()];
            run.resume_with(&again, if killed == "trainer 0" { &flags } else { &[] });
            let at = names.iter().position(|name| name == killed).unwrap();
            names[at] = again;
            let (logs, report) = end_well(&mut run, &names);
            if !logs[at].contains("checkpoint ") {
                over_too_soon(&logs[at]);
            }
            settings.retain(|setting| !setting.starts_with("checkpoint."));
            let (model, evaluations) = alone(&settings);
            assert_eq!(report["evaluations"], evaluations, "{}", logs[0]);
            assert_eq!(run.model().difference(&model), None, "{}", logs[0]);
        });
    }
}

/// Two trainers in step, whose batches are together as large as those of [`alone`].
const IN_STEP: [&str; 4] = ["placement.readers=2", "placement.trainers=2", "train.sync=true", "train.batch_rows=128"];

/// Runs the processes of a placement to their end. Returns the model, the report and the log of trainer 0.
fn finished(settings: &[String]) -> (Bits, Value, String) {
    let mut run = Run::local(settings);
    let names = start(&mut run, settings);
    let (mut logs, report) = end_well(&mut run, &names);
    (run.model(), report, logs.swap_remove(0))
}

fn numbers(report: &Value, field: &str) -> Vec<u64> {
    let points = report["evaluations"]["points"].as_array().unwrap();
    points.iter().map(|point| point[field].as_u64().unwrap()).collect()
}

#[test]
fn trainers_in_step_evaluate_after_the_steps_of_one_trainer_and_their_model_stays_the_same() {
    for staleness in ["train.staleness=0", "train.staleness={ exactly = 2 }"] {
        let more = [&IN_STEP[..], &["placement.ps=2", "data.epochs=2", staleness]].concat();
        let every = ["evaluation.every={ rows = 1500 }", "evaluation.keep=last"];
        let (model, report, log) = finished(&settings(ROWS, &[&more[..], &every].concat()));
        let (without, ..) = finished(&settings(ROWS, &more));
        assert_eq!(model.difference(&without), None, "{staleness}: {log}");
        let evaluations = alone(&settings(ROWS, &["data.epochs=2", staleness, every[0], every[1]])).1;
        let one = serde_json::json!({ "evaluations": evaluations });
        for field in ["rows", "steps", "epochs"] {
            assert_eq!(numbers(&report, field), numbers(&one, field), "{staleness}: {log}");
        }
        assert_eq!(Ledger::of(&log).rows, 2 * ROWS, "{log}");
        assert!(numbers(&report, "rows").contains(&1536), "an evaluation lies within an epoch: {log}");
    }
}

/// The rows of data.eval have keys that the first look-ups after the evaluation create.
#[test]
fn trainers_in_step_look_up_nothing_while_the_model_is_evaluated() {
    let eval = format!("data.eval={}", rows(8000).display());
    let more = [&IN_STEP[..], &["placement.ps=1", "data.shuffle=false", &eval]].concat();
    let point = |count, every: &str| {
        let (.., report, log) = finished(&settings(count, &[&more[..], &[every]].concat()));
        let point = report["evaluations"]["points"][0].clone();
        assert_eq!(point["rows"], 2048, "{log}");
        (point["auc"].clone(), point["logloss"].clone())
    };
    // The first rows of the longer run are those of the shorter one, which evaluates after its last row.
    let ends_there = point(2048, "evaluation.every={ rows = 4096 }");
    for _ in 0..2 {
        assert_eq!(point(ROWS, "evaluation.every={ rows = 2048 }"), ends_there);
    }
}

#[test]
fn trainers_in_step_keep_the_best_model_and_reduce_learning_rates_at_one_step() {
    let more = [&IN_STEP[..], &["placement.ps=2", "data.epochs=6"]].concat();
    let fast = "table.embedding_optimizer={ kind = 'adam', lr = 0.1 }";
    // Most of these rows are not trained on.
    let eval = format!("data.eval={}", rows(8000).display());
    let best = ["evaluation.every={ epochs = 1 }", "evaluation.keep=best", "evaluation.metric=logloss", fast, &eval];
    let (model, report, log) = finished(&settings(ROWS, &[&more[..], &best].concat()));
    let at = report["evaluations"]["best"].as_u64().unwrap();
    assert!(at < 5, "the model must become worse: {log}");
    let epochs = format!("data.epochs={}", at + 1);
    let (ends_there, ..) = finished(&settings(ROWS, &[&more[..], &[fast, &epochs]].concat()));
    assert_eq!(model.difference(&ends_there), None, "{log}");

    let reduced = [&more[..], &[best[0], NEVER_BETTER, REDUCES]].concat();
    let (model, report, log) = finished(&settings(ROWS, &reduced));
    assert!(log.contains("the learning rates are multiplied by 0.3"), "{log}");
    let (again, other, _) = finished(&settings(ROWS, &reduced));
    assert_eq!((model.difference(&again), &report["evaluations"]), (None, &other["evaluations"]), "{log}");
    let (constant, ..) = finished(&settings(ROWS, &more));
    assert!(model.difference(&constant).is_some(), "the rates count");
}

#[test]
fn trainers_in_step_stop_early_after_the_same_step() {
    for staleness in ["train.staleness=0", "train.staleness={ exactly = 3 }"] {
        let more = [&IN_STEP[..], &["placement.ps=1", staleness]].concat();
        let stops = ["evaluation.every={ epochs = 1 }", "evaluation.patience=2", "evaluation.keep=last", NEVER_BETTER];
        let (model, report, log) = finished(&settings(ROWS, &[&more[..], &stops, &["data.epochs=20"]].concat()));
        assert!(log.contains("stopped early, after 12,000 rows"), "{staleness}: {log}");
        assert_eq!(report["evaluations"]["stopped_early"], true, "{log}");
        let said = Ledger::of(&log);
        assert_eq!((said.rows, said.batches), (3 * ROWS, 2 * numbers(&report, "steps")[2]), "{log}");
        let (three_epochs, ..) = finished(&settings(ROWS, &[&more[..], &["data.epochs=3"]].concat()));
        assert_eq!(model.difference(&three_epochs), None, "{staleness}: {log}");
    }
}

/// The rows of data.eval are away when one of the trainers is killed: the first tries to evaluate, and the other waits for it.
#[test]
fn a_trainer_in_step_that_is_killed_during_an_evaluation_is_started_again_and_no_evaluation_is_lost() {
    for killed in ["trainer 0", "trainer 1"] {
        in_time(|_| {
            let folder = tempfile::tempdir().unwrap();
            let (to, eval, away) = ["checkpoints", "eval", "away"].map(|name| folder.path().join(name)).into();
            copy_rows(&rows(1000), &eval);
            let (to, data) = (format!("checkpoint.to={}", to.display()), format!("data.eval={}", eval.display()));
            let best = ["evaluation.every={ rows = 2500 }", "evaluation.keep=best", "data.epochs=2", &data];
            let undisturbed = settings(10_000, &[&IN_STEP[..], &best, &["placement.ps=1"]].concat());
            let mut settings = undisturbed.clone();
            settings.extend(["checkpoint.rows=2000".to_owned(), to]);
            let mut run = Run::local(&settings);
            let mut names = start(&mut run, &settings);
            run.until_said_times("trainer 0", "INFO evaluation ", 2);
            std::fs::rename(&eval, &away).unwrap();
            run.until_said("trainer 0", "is not made yet");
            run.kill(killed);
            std::fs::rename(&away, &eval).unwrap();
            let (again, written) = (format!("{killed}@again"), run.folder().join("report.json"));
            let flags = ["--report", written.to_str().unwrap()];
            run.resume_with(&again, if killed == "trainer 0" { &flags } else { &[] });
            let at = names.iter().position(|name| name == killed).unwrap();
            names[at] = again;
            let (logs, report) = end_well(&mut run, &names);
            let (model, other, _) = finished(&undisturbed);
            assert_eq!(report["evaluations"], other["evaluations"], "{}", logs[0]);
            assert_eq!(run.model().difference(&model), None, "{}", logs[0]);
        });
    }
}

fn copy_rows(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
