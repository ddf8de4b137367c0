//! Evaluations while a model is trained: they change no bit, the training stops when the metric stops improving, the best model is saved,
//! and a run that was killed goes on with the same history.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use forebay::pipelines::RunEnd;
use forebay::pipelines::model_folder::Manifest;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::bits::Bits;
use super::common;
use super::damage::flip;
use super::jobs::{ENDLESS, Ended, Job, ROWS, synth};

/// Few rows to train on, which a model learns by heart, and rows that the training does not see.
fn few_rows() -> (PathBuf, PathBuf) {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let folder = MADE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        for (name, first, rows) in [("train", "0", "6000"), ("test", "6000000", "6000")] {
            let options = ["--rows", rows, "--first-row", first, "--group-rows", "1024"];
            synth(&options, &folder.path().join(name));
        }
        folder
    });
    (folder.path().join("train"), folder.path().join("test"))
}

fn on_test_rows(more: &[&str]) -> Vec<String> {
    let test = format!("data.eval={}", few_rows().1.display());
    more.iter().map(|setting| (*setting).to_owned()).chain([test]).collect()
}

const LEARNS_FAST: [&str; 2] =
    ["train.optimizer={ kind = 'adam', lr = 0.002 }", "table.embedding_optimizer={ kind = 'adam', lr = 0.003 }"];

/// Settings of a model that is best early, and then becomes worse.
const TOO_FAST: [&str; 2] =
    ["train.optimizer={ kind = 'adam', lr = 0.1 }", "table.embedding_optimizer={ kind = 'adam', lr = 0.1 }"];

/// A run over few rows, that learns fast.
pub(super) fn few(more: &[&str]) -> Job {
    let train = format!("data.train={}", few_rows().0.display());
    let more = on_test_rows(&[&[train.as_str()], &LEARNS_FAST[..], more].concat());
    Job::without_checkpoints(&more.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same rows and checkpoints as in the tests of resuming.
fn many(more: &[&str]) -> Job {
    let more = on_test_rows(more);
    Job::new("parquet", &more.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs to the end, and returns what was said and the report.
pub(super) fn run(job: &Job, flags: &[&str]) -> (String, Value) {
    let report = job.folder.path().join("report.json");
    let ended = job.run(&[&["--report", report.to_str().unwrap()], flags].concat()).with(0);
    (ended.said, common::read_json(report))
}

fn metrics(report: &Value, metric: &str) -> Vec<f64> {
    let points = report["evaluations"]["points"].as_array().unwrap_or_else(|| panic!("{}", report["evaluations"]));
    points.iter().map(|point| point[metric].as_f64().unwrap()).collect()
}

/// No best model is left beside the model, except hidden folders of processes that were killed.
fn nothing_beside(job: &Job) {
    let names: Vec<String> = std::fs::read_dir(job.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("model.best"))
        .collect();
    assert_eq!(names, [""; 0]);
}

#[test]
fn evaluations_change_no_bit_of_the_model() {
    for more in [&[][..], &["train.staleness={ exactly = 3 }", "table.shards=3"], &["table.admission.count=2"]] {
        let more = [&["data.epochs=2"], more].concat();
        let without = few(&more);
        run(&without, &[]);
        for (every, points) in [("{ rows = 1000 }", 12), ("{ rows = 1 }", 48), ("{ epochs = 1 }", 2)] {
            let job = few(&[&more[..], &[&format!("evaluation.every={every}")]].concat());
            let (said, report) = run(&job, &[]);
            assert_eq!(job.model().difference(&without.model()), None, "{every} {more:?}");
            assert_eq!(metrics(&report, "auc").len(), points, "{every} {more:?} {said}");
            assert!(said.contains(&format!("of {points} evaluations was that of evaluation")), "{said}");
            nothing_beside(&job);
        }
    }
}

/// Where a run stops, by the plain definition.
fn stops_at(aucs: &[f64], patience: usize) -> Option<usize> {
    let mut best = 0;
    for at in 1..aucs.len() {
        if aucs[at] > aucs[best] {
            best = at;
        } else if at - best == patience {
            return Some(at);
        }
    }
    None
}

#[test]
fn the_training_stops_when_the_metric_no_longer_improves_and_the_best_model_is_saved() {
    let epochs = |n: usize| format!("data.epochs={n}");
    let every = "evaluation.every={ epochs = 1 }";
    let all = run(&few(&[&epochs(9), every]), &[]).1;
    let aucs = metrics(&all, "auc");
    assert_eq!(all["evaluations"]["stopped_early"], false);
    for patience in [1, 2] {
        let stop =
            stops_at(&aucs, patience).unwrap_or_else(|| panic!("the rows are too many to learn by heart: {aucs:?}"));
        let best = stop - patience;
        assert!(stop < 8, "{aucs:?}");
        let job = few(&[&epochs(9), every, &format!("evaluation.patience={patience}")]);
        let (said, report) = run(&job, &[]);
        assert_eq!(metrics(&report, "auc"), aucs[..=stop], "{said}");
        assert_eq!(report["evaluations"]["best"], best);
        assert_eq!(report["evaluations"]["stopped_early"], true);
        assert_eq!(report["evaluation"]["evaluation"]["auc"], aucs[best], "that of the model that was saved");
        assert!(said.contains("stopped early, after "), "{said}");
        assert!(said.contains(&format!("was that of evaluation {}, ", best + 1)), "{said}");
        let (ledger, rows) = (&report["ledger"], 6000 * (stop as u64 + 1));
        // A reader that stood still meanwhile had read none.
        let rejected = ledger["rejected"]["read after the training had stopped early"].as_u64().unwrap_or(0);
        assert_eq!((&ledger["delivered"], ledger["read"].as_u64()), (&rows.into(), Some(rows + rejected)), "{ledger}");
        nothing_beside(&job);

        let ends_there = |epochs_there: usize| {
            let job = few(&[&epochs(epochs_there)]);
            run(&job, &[]);
            (job.model(), manifest(&job.folder.path().join("model")).training.unwrap())
        };
        let (bits, training) = ends_there(best + 1);
        assert_eq!(job.model().difference(&bits), None, "{said}");
        let saved = manifest(&job.folder.path().join("model")).training.unwrap();
        assert_eq!((saved.rows, saved.steps, saved.epochs), (training.rows, training.steps, training.epochs));
        assert_eq!(saved.ended, RunEnd::StoppedEarly);

        let last = few(&[&epochs(9), every, &format!("evaluation.patience={patience}"), "evaluation.keep=last"]);
        run(&last, &[]);
        assert_eq!(last.model().difference(&ends_there(stop + 1).0), None);
    }
}

/// A bug: with exact staleness the run hung, because batches that were read after the stop counted as looked up.
#[test]
fn a_training_with_any_staleness_stops_early() {
    let stops = ["evaluation.every={ rows = 1024 }", "evaluation.patience=1", "evaluation.min_delta=0.5"];
    // With exact staleness the last gradients are applied after the stop, and the model is evaluated again.
    for (staleness, points) in [("0", 2), ("2", 2), ("{ exactly = 1 }", 3), ("{ exactly = 2 }", 3)] {
        let staleness = format!("train.staleness={staleness}");
        let job = few(&[&stops[..], &["train.batch_rows=128", &staleness]].concat());
        let (said, report) = run(&job, &[]);
        assert!(said.contains("stopped early, after 2,048 rows"), "{staleness}: {said}");
        assert_eq!(
            (metrics(&report, "auc").len(), &report["ledger"]["delivered"]),
            (points, &2048.into()),
            "{staleness}"
        );
    }
}

#[test]
fn a_run_that_is_resumed_with_another_group_compares_only_later_evaluations() {
    let mut job = few(&["evaluation.every={ rows = 2000 }", "evaluation.keep=best"]);
    let to = format!("checkpoint.to={}", job.checkpoints().display());
    job.set(&[&to, "checkpoint.rows=10000"]);
    job.kill_after(2, &[]);
    let before = job.rows_of_newest();
    let gauc = ["--resume", "--set", "evaluation.metric=gauc", "--set", "evaluation.group=C1"];
    let (said, report) = run(&job, &gauc);
    assert!(said.contains("they have no GAUC as the job measures it"), "{said}");
    assert!(metrics(&report, "rows").iter().all(|&rows| rows >= before as f64), "{said}");
    assert!(!metrics(&report, "gauc").is_empty(), "{said}");
}

fn manifest(folder: &Path) -> Manifest {
    Manifest::read(folder).unwrap()
}

/// The best model is the last one, and with the logloss another one.
#[test]
fn the_best_model_may_be_the_last_or_that_of_another_metric() {
    let best = few(&["data.epochs=1", "evaluation.every={ rows = 2500 }", "evaluation.keep=best"]);
    let (_, report) = run(&best, &[]);
    assert_eq!(report["evaluations"]["best"], 2, "{}", report["evaluations"]);
    let plain = few(&["data.epochs=1"]);
    run(&plain, &[]);
    assert_eq!(best.model().difference(&plain.model()), None);
    nothing_beside(&best);

    let logloss =
        few(&["data.epochs=6", "evaluation.every.epochs=1", "evaluation.metric=logloss", "evaluation.keep=best"]);
    let (_, report) = run(&logloss, &[]);
    let found = metrics(&report, "logloss");
    let lowest = found.iter().copied().fold(f64::MAX, f64::min);
    assert_eq!(report["evaluations"]["best"], found.iter().position(|&value| value == lowest).unwrap(), "{found:?}");
    assert_eq!(report["evaluation"]["evaluation"]["logloss"], lowest);
}

const EVERY: &str = "evaluation.every={ rows = 40000 }";

/// A run with checkpoints is killed and goes on: the same evaluations, none twice, and the same best model. Returns the report.
pub(super) fn kill_and_resume(more: &[&str], kills: u64) -> Value {
    let more = [&[EVERY, "evaluation.keep=best"], more].concat();
    let job = many(&more);
    let mut flags: &[&str] = &[];
    let mut evaluated = 0;
    for kill in 0..kills {
        evaluated += job.kill_after(job.newest() + 3 + 2 * kill, flags).matches("evaluation ").count();
        flags = &["--resume"];
    }
    let (said, report) = run(&job, flags);
    let undisturbed = job.undisturbed();
    let (_, expected) = run(&undisturbed, &[]);
    assert_eq!(report["evaluations"], expected["evaluations"], "{said}");
    assert!(evaluated > 0, "it was killed before the first evaluation");
    assert_eq!(job.model().difference(&undisturbed.model()), None, "{said}");
    nothing_beside(&job);
    report
}

#[test]
fn a_run_that_was_killed_goes_on_with_its_history_and_its_best_model() {
    kill_and_resume(&[], 3);
    kill_and_resume(&["evaluation.metric=logloss", "table.shards=2", "train.staleness={ exactly = 2 }"], 2);
    // The best is early, and the processes after the kills have to find it.
    kill_and_resume(&TOO_FAST, 2);
}

/// The run has removed the folder of its best model, which is at `output.model` alone.
#[test]
fn a_run_that_has_ended_keeps_its_best_model_when_it_is_resumed() {
    // The best is early.
    let job = many(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best"]].concat());
    job.kill_after(6, &[]);
    let (_, first) = run(&job, &["--resume"]);
    let (model, history) = (job.model(), &first["evaluations"]);
    let (said, again) = run(&job, &["--resume"]);
    assert_eq!(&again["evaluations"], history, "{said}");
    assert_eq!(job.model().difference(&model), None, "{said}");
    nothing_beside(&job);
    // Else the best one is made again.
    let best = &history["points"][history["best"].as_u64().unwrap() as usize];
    if best["rows"].as_u64() < Some(job.rows_of_newest()) {
        assert!(!said.contains("is neither beside output.model nor there"), "{said}");
        let (said, _) = run(&job, &["--resume", "--set", "output.state=true"]);
        assert!(said.contains("was saved without the state of its optimizers"), "{said}");
        assert!(manifest(&job.folder.path().join("model")).optimizer.is_none());
    }
}

#[test]
fn a_run_that_stopped_early_stops_again_when_it_is_resumed() {
    let every = "evaluation.every={ rows = 100000 }";
    let small = ["evaluation.patience=1", "evaluation.min_delta=0.5", every, "checkpoint.rows=2000"];
    // A run of a fast machine may be over before its first checkpoint.
    let mut runs = (0..20).map(|_| {
        let job = many(&small);
        let (said, report) = run(&job, &[]);
        (job, said, report)
    });
    let (job, said, report) = runs.find(|(job, ..)| job.newest() > 0).expect("one of 20 runs makes a checkpoint");
    assert!(said.contains("did not improve by 0.5 in the last"), "{said}");
    assert_eq!(metrics(&report, "auc").len(), 2, "{said}");
    let model = job.model();
    std::fs::remove_dir_all(job.folder.path().join("model")).unwrap();
    // The newest checkpoint may be one of before the last evaluation, or of after it.
    let (said, again) = run(&job, &["--resume"]);
    assert!(said.contains("continues from checkpoint"), "{said}");
    assert_eq!(again["evaluations"]["points"], report["evaluations"]["points"], "{said}");
    if !said.contains("is gone") {
        assert_eq!(job.model().difference(&model), None, "{said}");
    }
    // With more patience it goes on to its last row.
    let (_, on) = run(&job, &["--resume", "--set", "evaluation.patience=100"]);
    assert!(metrics(&on, "auc").len() as u64 >= 2 * ROWS / 100_000, "{}", on["evaluations"]);
}

#[test]
fn a_kill_leaves_an_older_model_and_a_best_model_that_is_whole() {
    let job = many(&[EVERY, "evaluation.keep=best"]);
    let other = few(&["data.epochs=1"]);
    run(&other, &[]);
    let model = job.folder.path().join("model");
    std::fs::rename(other.folder.path().join("model"), &model).unwrap();
    let older = job.model();
    let running = job.start_with(&[], &[ENDLESS]);
    running.until_said("evaluation 2 after");
    running.signal(Signal::KILL);
    running.end();
    assert_eq!(job.model().difference(&older), None);
    let mut best = ["model.best-0", "model.best-1"].map(|place| job.folder.path().join(place)).to_vec();
    best.retain(|place| place.exists());
    assert!(!best.is_empty());
    for best in best {
        assert_eq!(manifest(&best).training.unwrap().ended, RunEnd::StoppedEarly);
        forebay::Model::load(best, 1).unwrap();
    }
}

fn refused(job: &Job, words: &[&str]) -> Ended {
    job.run(&[]).with(2).saying(words)
}

#[test]
fn what_cannot_be_evaluated_is_found_before_the_first_row() {
    refused(&few(&["evaluation.patience=2"]), &["evaluation.patience is 2, but evaluation.every is not set"]);
    refused(&few(&["evaluation.every.epochs=1", "evaluation.metric=gauc"]), &["evaluation.group is not set"]);
    refused(&few(&["evaluation.metric=logloss2"]), &["did you mean `logloss`?"]);
    let train = format!("data.train={}", few_rows().0.display());
    let every = "evaluation.every.rows=1000";
    let missing = Job::without_checkpoints(&[&train, every, "data.eval=no/such/rows"]);
    let ended = refused(&missing, &["data.eval", "no/such/rows"]);
    assert!(!ended.said.contains("trained on"), "{}", ended.said);
    refused(&Job::without_checkpoints(&[&train, every]), &["evaluation.every is set, but data.eval is not"]);
    let taken = few(&[every, "evaluation.keep=best"]);
    std::fs::create_dir(taken.folder.path().join("model.best-1")).unwrap();
    std::fs::write(taken.folder.path().join("model.best-1/notes"), "mine").unwrap();
    refused(&taken, &["model.best-1", "it holds something that is not a model"]);
}

/// A bug: the run ended, and said the place of the batch that waited for the evaluation.
#[test]
fn a_best_model_is_kept_when_the_full_disk_has_room_again() {
    let settings = ["evaluation.every.rows=2000", "evaluation.keep=best", "model.hidden=[512, 512]"];
    let job = few(&[&settings[..], &["output.retry_for=10min"]].concat());
    let report = job.folder.path().join("report.json");
    let mut command = job.limited_command(900);
    command.arg("--report").arg(&report);
    let running = job.spawn(command);
    running.until_said("the model of evaluation 1 is not kept yet, trying again for ");
    running.lift_limit();
    let ended = running.end().with(0);
    let ended = ended.saying(&["the model of evaluation 1, the best so far, cannot be saved to ", "model.best-0"]);
    assert!(!ended.said.contains(", split 0, row "), "{}", ended.said);
    let undisturbed = few(&settings);
    let (_, expected) = run(&undisturbed, &[]);
    let found: Value = common::read_json(report);
    assert_eq!(found["evaluations"], expected["evaluations"], "{}", ended.said);
    assert_eq!(job.model().difference(&undisturbed.model()), None);
    nothing_beside(&job);
}

/// Puts something that no model replaces in the places of the best models, while the run stands still.
fn block_places(job: &Job) {
    for place in ["model.best-0", "model.best-1"].map(|place| job.folder.path().join(place)) {
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("notes"), "mine").unwrap();
    }
}

/// A bug: the run ended, and nothing was saved.
#[test]
fn a_best_model_that_cannot_be_kept_costs_no_training_and_is_not_said_to_be_kept() {
    let settings = ["data.epochs=9", "evaluation.every={ epochs = 1 }", "evaluation.keep=best"];
    let undisturbed = few(&settings);
    let (_, expected) = run(&undisturbed, &[]);
    let last = few(&[&settings[..2], &["evaluation.keep=last"]].concat());
    run(&last, &[]);
    let aucs = metrics(&expected, "auc");
    let best = first_best(&aucs);
    assert!((1..8).contains(&best), "the best one is neither the first nor the last: {aucs:?}");
    // A run of a fast machine may have its best model before it stands still.
    let not_kept = (0..20).any(|_| {
        let job = few(&settings);
        let report = job.folder.path().join("report.json");
        let running = job.start(&["--report", report.to_str().unwrap()]);
        running.until_said("evaluation 1 after");
        running.hold();
        block_places(&job);
        running.signal(Signal::CONT);
        let ended = running.end();
        if ended.code != Some(6) {
            return false;
        }
        let ended = ended.saying(&["its model is gone, ", "another one was saved, as a line above says"]);
        let found: Value = common::read_json(report);
        assert_eq!(
            (metrics(&found, "auc"), &found["evaluations"]["best"]),
            (aucs.clone(), &best.into()),
            "{}",
            ended.said
        );
        // The last model is saved: it belongs to the last evaluation, or all kept models are gone.
        let kept = &found["evaluations"]["kept"];
        assert!(*kept == Value::Null || *kept == 8, "{kept}");
        assert_eq!(job.model().difference(&last.model()), None, "{}", ended.said);
        ended.said.contains("the training goes on without this model, which will not be saved")
    });
    assert!(not_kept, "every run had its best model before it stood still");
}

/// A bug: the run ended. A missed evaluation is one of `pipelines/tests/missed_evaluations.rs`.
#[test]
fn an_evaluation_waits_for_rows_that_are_away() {
    let folder = TempDir::new().unwrap();
    let (rows, away) = (folder.path().join("rows"), folder.path().join("away"));
    synth(&["--rows", "6000", "--first-row", "6000000", "--group-rows", "1024"], &rows);
    let eval = format!("data.eval={}", rows.display());
    let settings =
        ["data.epochs=60", "evaluation.every={ epochs = 1 }", "evaluation.patience=50", "output.retry_for=10min"];
    let mut job = few(&settings);
    job.set(&[&eval]);
    let report = job.folder.path().join("report.json");
    let running = job.start(&["--report", report.to_str().unwrap()]);
    running.until_said("evaluation 1 after");
    std::fs::rename(&rows, &away).unwrap();
    running.until_said("is not made yet, trying again for ");
    std::fs::rename(&away, &rows).unwrap();
    let ended = running.end().with(0).saying(&["the rows of data.eval cannot be scored"]);
    let undisturbed = few(&settings);
    let (_, expected) = run(&undisturbed, &[]);
    let found: Value = common::read_json(report);
    assert_eq!(found["evaluations"], expected["evaluations"], "{}", ended.said);
    assert_eq!(job.model().difference(&undisturbed.model()), None);
}

/// A run that is drained while its checkpoints cannot be written saves its best model, and keeps it for the run that goes on.
#[test]
fn a_best_model_that_an_earlier_checkpoint_needs_stays_when_the_last_one_cannot_be_written() {
    // The best is early.
    let job = many(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best"]].concat());
    let mut running = job.start_with(&[], &[ENDLESS]);
    job.until_checkpoint(9, &mut running);
    running.hold();
    let (folder, aside) = (job.checkpoints(), job.folder.path().join("aside"));
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::write(&folder, "a file stands in its place").unwrap();
    running.signal(Signal::CONT);
    running.signal(Signal::TERM);
    let ended = running.end().with(2).saying(&["the last checkpoint is not written", "model.partial"]);
    assert!(manifest(&job.folder.path().join("model.partial")).training.is_some());
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    job.go_beyond(&folder);
    let (said, report) = run(&job, &["--resume"]);
    assert!(!said.contains("is neither beside output.model nor there"), "{}{said}", ended.said);
    let undisturbed = job.undisturbed();
    let (_, expected) = run(&undisturbed, &[]);
    assert_eq!(report["evaluations"], expected["evaluations"], "{said}");
    assert_eq!(job.model().difference(&undisturbed.model()), None, "{said}");
    nothing_beside(&job);
}

/// The index of the largest of these; of equal ones, the first.
fn first_best(values: &[f64]) -> usize {
    values.iter().position(|value| values.iter().all(|other| other <= value)).unwrap()
}

/// The evaluations that the newest checkpoint has.
fn evaluations_of_newest(job: &Job) -> usize {
    let manifest: Value = common::read_json(job.newest_manifest());
    manifest["position"]["evaluations"].as_array().map_or(0, Vec::len)
}

/// Removes the best models of a run beside its output and there.
fn remove_best(job: &Job) {
    for name in ["model.best-0", "model.best-1", "model"] {
        let place = job.folder.path().join(name);
        if place.exists() {
            std::fs::remove_dir_all(place).unwrap();
        }
    }
}

/// Resumes a run to its end. The models of its first `gone` evaluations are gone. Checks that the best one of the others is saved, and that
/// the exit code says whether it is the best of all. Returns the history.
fn resumed_without_best(job: &Job, gone: usize) -> Value {
    let report = job.folder.path().join("report.json");
    let ended = job.run(&["--resume", "--report", report.to_str().unwrap()]);
    let mut found: Value = common::read_json(report);
    let aucs = metrics(&found, "auc");
    // The model after the last row is in memory.
    let first = gone.min(aucs.len() - 1);
    let (best, kept) = (first_best(&aucs), first + first_best(&aucs[first..]));
    let ended = ended.with(if best == kept { 0 } else { 6 });
    assert!(ended.said.contains("is neither beside output.model nor there") || best >= gone, "{}", ended.said);
    let history = &found["evaluations"];
    assert_eq!((&history["best"], &history["kept"]), (&best.into(), &kept.into()), "{}", ended.said);
    if best != kept {
        let said = format!("its model is gone, that of evaluation {} was saved", kept + 1);
        assert!(ended.said.contains(&said), "no {said:?} in: {}", ended.said);
    }
    let saved = manifest(&job.folder.path().join("model")).training.unwrap();
    assert_eq!(saved.rows, history["points"][kept]["rows"].as_u64().unwrap(), "{}", ended.said);
    found["evaluations"].take()
}

/// A bug: the second resume kept only models of evaluations after it, and the exit code was 0.
#[test]
fn a_run_whose_best_model_is_gone_keeps_the_best_later_one_over_two_resumes() {
    // The rate grows, so the best is early, and the best one after it comes before the second kill.
    let rate = |of: &str| format!("{of}={{ kind = 'adam', lr = {{ peak = 5, warmup_steps = 2000 }} }}");
    let rates = ["train.optimizer", "table.embedding_optimizer"].map(rate);
    let job = many(&[&rates[0], &rates[1], EVERY, "evaluation.keep=best"]);
    job.kill_after(13, &[]);
    let gone = evaluations_of_newest(&job);
    assert!(gone > 1, "130,000 rows have {gone} evaluations");
    remove_best(&job);
    let said = job.kill_after(job.newest() + 18, &["--resume"]);
    assert!(
        said.contains("is neither beside output.model nor there: the best one of later evaluations is kept"),
        "{said}"
    );
    assert!(evaluations_of_newest(&job) > gone, "{said}");
    let history = resumed_without_best(&job, gone);
    let undisturbed = job.undisturbed();
    let (_, expected) = run(&undisturbed, &[]);
    assert_eq!(
        (&history["points"], &history["best"]),
        (&expected["evaluations"]["points"], &expected["evaluations"]["best"])
    );
    let best = history["best"].as_u64().unwrap() as usize;
    assert!(best < gone, "the best is not early: {history}");
    nothing_beside(&job);
}

/// A bug: the exit code was 0, although the best model was not saved.
#[test]
fn a_finished_run_whose_best_model_is_gone_says_so_when_it_is_resumed() {
    let job = many(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best"]].concat());
    job.kill_after(6, &[]);
    run(&job, &["--resume"]);
    let gone = evaluations_of_newest(&job);
    remove_best(&job);
    let history = resumed_without_best(&job, gone);
    let best = history["best"].as_u64().unwrap() as usize;
    assert!(best < gone, "the best is not early: {history}");
    let model = job.model();
    let again = job.run(&["--resume"]).with(6);
    assert_eq!(job.model().difference(&model), None, "{}", again.said);
}

/// Another run with the same `output.model` has left its best model in the place of the resumed run's.
#[test]
fn the_best_model_of_another_job_is_not_that_of_a_resumed_run() {
    let job = many(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best"]].concat());
    job.kill_after(13, &[]);
    let gone = evaluations_of_newest(&job);
    for place in ["model.best-0", "model.best-1"].map(|place| job.folder.path().join(place).join("manifest.json")) {
        let Ok(text) = std::fs::read_to_string(&place) else { continue };
        assert!(text.contains("\"seed\": 9,"), "{text}");
        // Without its checksum, as an earlier program wrote it.
        let (signed, _) = text.rsplit_once(",\n  \"checksum\"").unwrap();
        std::fs::write(&place, signed.replace("\"seed\": 9,", "\"seed\": 77,") + "\n}\n").unwrap();
    }
    resumed_without_best(&job, gone);
}

/// A best model that was damaged beside the output is not saved as if it were whole.
#[test]
fn a_damaged_best_model_is_not_saved_and_another_one_is() {
    let job = many(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best"]].concat());
    let mut running = job.start_with(&[], &[ENDLESS]);
    running.until_said("evaluation 3 after");
    job.until_checkpoint(job.newest() + 1, &mut running);
    running.signal(Signal::KILL);
    running.end();
    job.go_beyond(&job.checkpoints());
    for place in ["model.best-0", "model.best-1"] {
        let dense = job.folder.path().join(place).join("dense.safetensors");
        if dense.exists() {
            flip(&dense);
        }
    }
    let ended = job.run(&["--resume"]);
    // If a later evaluation was the best, the damaged one is not needed.
    let is_needed = ended.said.contains("dense.safetensors is damaged");
    assert_eq!(ended.code, Some(if is_needed { 6 } else { 0 }), "{}", ended.said);
    Bits::read(&job.folder.path().join("model"));
    forebay::Model::load(job.folder.path().join("model"), 1).unwrap();
}

/// Another run with the same `output.model` removes or replaces the best model at its end.
#[test]
fn a_best_model_that_is_gone_or_of_another_run_is_not_saved() {
    let other = few(&[EVERY, "seed=77"]);
    assert_eq!(other.run(&[]).code, Some(0));
    for replace in [false, true] {
        // The best one is early as a rule, and a run that is fast may be over before it stands still.
        let tried = (0..20).any(|_| misses_its_best_model(&other, replace));
        assert!(tried, "no run has missed its best model");
    }
}

/// Removes the best model of a run, or replaces it by the best model of `other`. Returns whether the run needed it.
fn misses_its_best_model(other: &Job, replace: bool) -> bool {
    let job = few(&[&TOO_FAST[..], &[EVERY, "evaluation.keep=best", "data.epochs=40"]].concat());
    let report = job.folder.path().join("report.json");
    let running = job.start(&["--report", report.to_str().unwrap()]);
    running.until_said("evaluation 4 after");
    running.hold();
    let model = job.folder.path().join("model");
    for place in ["model.best-0", "model.best-1"].map(|place| job.folder.path().join(place)) {
        if place.exists() {
            std::fs::remove_dir_all(&place).unwrap();
            if replace {
                let mut copy = Command::new("cp");
                let copied = copy.arg("-r").arg(other.folder.path().join("model")).arg(&place);
                assert!(copied.status().unwrap().success());
            }
        }
    }
    running.signal(Signal::CONT);
    let ended = running.end();
    let is_missed = ended.said.contains("is not at ");
    let ended = ended.with(if is_missed { 6 } else { 0 });
    let report: Value = common::read_json(report);
    let aucs = metrics(&report, "auc");
    let best = aucs.iter().position(|auc| aucs.iter().all(|other| other <= auc)).unwrap();
    assert_eq!(report["evaluations"]["best"], best, "{}", ended.said);
    assert!(ended.said.contains(&format!("was that of evaluation {}, ", best + 1)), "{}", ended.said);
    if is_missed {
        assert_eq!(report["evaluations"]["kept"], Value::Null, "{}", ended.said);
        assert!(ended.said.contains("its model is gone, the model after the last row was saved"), "{}", ended.said);
        assert!(ended.said.contains("The model after the last row is saved"), "{}", ended.said);
        assert_eq!(Manifest::read(&model).unwrap().training.unwrap().ended, RunEnd::Complete, "{}", ended.said);
    } else {
        // A later evaluation was the best.
        assert!(ended.said.contains("its model was saved"), "{}", ended.said);
        assert_eq!(report["evaluations"]["kept"], best, "{}", ended.said);
    }
    assert!(Bits::read(&model).difference(&other.model()).is_some());
    is_missed
}
