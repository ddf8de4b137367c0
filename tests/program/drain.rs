//! Ctrl-C: the first drains, saves beside an older model and reports; the second stops at once.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::actors::{FaultKind, Verdict};
use forebay::pipelines::model_folder::Manifest;
use forebay::pipelines::{RunEnd, Snapshot};
use forebay::{Model, Training};

use super::common::{self, Background};

/// Longer than the time within which several signals are one.
const LATER: Duration = Duration::from_millis(700);

/// Settings of a run that would take hours.
fn endless(data: &Path, dir: &Path) -> Vec<String> {
    vec![
        format!("data.train={}", data.display()),
        format!("output.model={}", dir.join("model").display()),
        "data.epochs=100000".into(),
        "model.kind=lr".into(),
    ]
}

/// Starts a training, and waits until its metrics show that it has begun and has trained on this many rows.
fn start(settings: &[String], dir: &Path, rows: f64) -> Background {
    let report = dir.join("report.json");
    let mut command = common::forebay(&["train", "--report", report.to_str().unwrap(), "--dashboard", "127.0.0.1:0"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let mut training = Background::start(&mut command);
    assert!(training.has_trained(rows), "{}", training.output());
    training
}

#[test]
fn the_first_signal_drains_saves_and_reports() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let training = start(&endless(&data, dir.path()), dir.path(), 1.0);
        training.signal(name);
        let text = common::exits(5, training.wait(), &[]);
        let report = std::fs::read_to_string(dir.path().join("report.json")).unwrap();
        let report: forebay::actors::Report = serde_json::from_str(&report).unwrap();
        assert!(report.ledger.delivered > 0, "{report}");
        assert_eq!(report.ledger.read, report.ledger.delivered);
        let partial = dir.path().join("model.partial");
        assert!(text.contains(&format!("saved {}", partial.display())), "{text}");
        assert!(text.contains("stopping: trains on what was read, then saves the model (a second"), "{text}");
        assert!(!dir.path().join("model").exists(), "{text}");
        let training = Model::load(partial, 1).unwrap().training.unwrap();
        assert_eq!((training.rows, training.ended), (report.ledger.delivered, RunEnd::Drained));
        assert_eq!(training.epochs, (training.rows - 1) / 4000, "epochs that were completed: {training:?}");
    }
}

/// A bug: it said that it trains on what was read.
#[test]
fn a_run_with_checkpoints_says_that_it_ends_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
    let training = start(&[&endless(&data, dir.path())[..], &[checkpoints]].concat(), dir.path(), 1.0);
    training.signal("-INT");
    let said = ["stopping: the run ends with a checkpoint of what it has trained on", "--resume goes on"];
    let text = common::exits(5, training.wait(), &said);
    assert!(!text.contains("trains on what was read"), "{text}");
}

#[test]
fn a_drained_run_leaves_an_older_model_unless_the_job_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let settings = endless(&data, dir.path());
    let (model, partial) = (dir.path().join("model"), dir.path().join("model.partial"));
    let mut short: Vec<&str> = vec!["train"];
    short.extend(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
    assert_eq!(common::run(&[&short[..], &["--set", "data.epochs=1"]].concat()).0, Some(0));
    let manifest = |folder: &Path| Manifest::read(folder).unwrap();
    let old = manifest(&model);
    let training = old.training.clone().unwrap();
    assert_eq!((training.rows, training.epochs, training.ended), (4000, 1, RunEnd::Complete));
    let drained = |on_drain: &str| {
        let training = start(&[&settings[..], &[format!("output.on_drain={on_drain}")]].concat(), dir.path(), 1.0);
        training.signal("-TERM");
        common::exits(5, training.wait(), &[])
    };
    let same_as_before = || serde_json::json!(manifest(&model)) == serde_json::json!(old);

    let text = drained("discard");
    assert!(text.contains("was not saved") && same_as_before() && !partial.exists(), "{text}");
    let text = drained("partial");
    assert!(text.contains("\nthe run was drained, and nothing was written to") && same_as_before(), "{text}");
    let file = || std::fs::metadata(partial.join("manifest.json")).unwrap().ino();
    let first = file();
    // A second one replaces the first.
    drained("partial");
    assert!(same_as_before() && file() != first);
    drained("replace");
    assert_eq!(manifest(&model).training.unwrap().ended, RunEnd::Drained);
}

#[test]
fn a_drain_after_the_last_row_was_read_does_not_make_the_run_partial() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    // A wide model: its steps take longer than the reading. All batches have room in the links. A fast machine needs a wider one.
    let links = ["pipeline.links.lookup=16", "data.shuffle_rows=1024", "data.read_rows=4000"];
    let was_drained = |hidden: &str| {
        let job = common::job(&data, &[&links[..], &[hidden]].concat());
        let (mut calls, drained) = (0, Arc::<AtomicBool>::default());
        let drains = Arc::clone(&drained);
        let training = Training::builder(job).on_progress(move |running| {
            let report = running.report();
            let read = report.stages.iter().find(|stage| stage.name == "read").map_or(0, |stage| stage.rows_out);
            calls += u32::from(read == 4000);
            // The second call is 100 ms later: the source has seen its end meanwhile, unless it stood still.
            if calls == 2 && running.progress().rows < 4000 {
                running.drain();
                drains.store(true, Ordering::SeqCst);
            }
        });
        let trained = training.run().unwrap();
        assert_eq!(trained.training.rows, 4000);
        drained.load(Ordering::SeqCst) && trained.training.ended == RunEnd::Complete
    };
    let models = ["[1024, 1024]", "[1024, 1024]", "[2048, 2048]", "[4096, 4096]"];
    assert!(models.into_iter().any(|hidden| was_drained(&format!("model.hidden={hidden}"))), "no run was complete");
}

#[test]
fn a_run_that_is_drained_to_a_checkpoint_has_a_report_only_if_one_was_asked_for() {
    for asks in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let to = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        let job = common::job(&data, &["data.epochs=100000", &to]);
        let running = Training::new(job).unwrap().start().unwrap().report_if_drained(asks);
        let mut drains = false;
        let ended = running.wait_with(Duration::from_millis(10), |running| {
            if running.progress().rows > 0 && !drains {
                running.drain();
                drains = true;
            }
        });
        let failed = ended.err().unwrap();
        assert_eq!(failed.fault.kind, FaultKind::Drained, "{}", failed.fault);
        assert_eq!(failed.report.verdict, Verdict::Drained);
        assert_eq!(failed.drained.map(|drained| drained.tables.is_empty()), asks.then_some(false));
    }
}

/// A bug: a run that went on over Parquet did not know how far it was, and over text it counted the rows of the checkpoint twice.
#[test]
fn a_resumed_run_knows_how_far_it_is() {
    let none: &[&str] = &[];
    let files = [common::parquet, common::text];
    for (rows_of, settings) in [(files[0], none), (files[0], &["data.negatives=0.2"]), (files[1], none)] {
        let dir = tempfile::tempdir().unwrap();
        let data = rows_of(dir.path(), 0, 4000);
        let to = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        // Drains the run after `more` rows. Returns how many it says are done, and how many it was trained on a moment later.
        let drained = |resume: bool, more: u64| {
            let job = common::job(&data, &[&["data.epochs=100000", "model.kind=lr", &to][..], settings].concat());
            let running = Training::builder(job).resume(resume).build().unwrap().start().unwrap();
            let mut seen = None;
            let ended = running.wait_with(Duration::from_millis(1), |running| {
                let share = running.position().share;
                let Snapshot { rows, rows_before, .. } = running.progress();
                let own = rows - rows_before;
                if seen.is_none() && own >= more && (share.is_some() || own > 500_000) {
                    seen = Some((share.map(|share| share * 4000.0 * 100_000.0), rows));
                    running.drain();
                }
            });
            assert_eq!(ended.err().unwrap().fault.kind, FaultKind::Drained);
            seen.unwrap()
        };
        let (before, _) = drained(false, 40_000);
        let (done, rows) = drained(true, 1);
        // Of text the rows of all epochs are an estimate.
        let most = if settings.is_empty() { 1.2 * rows as f64 } else { f64::INFINITY };
        let least = 0.6 * before.unwrap_or(40_000.0);
        assert!(done.is_some_and(|done| (least..most).contains(&done)), "{done:?} of {rows}, {before:?} before");
    }
}

/// A run with so wide a model that its drain takes many seconds.
fn slow_to_drain(dir: &Path) -> Background {
    let data = common::parquet(dir, 0, 4000);
    let slow = ["model.kind=ctr_dnn", "model.hidden=[2048, 2048]", "train.batch_rows=4000"].map(String::from);
    start(&[&endless(&data, dir)[..], &slow].concat(), dir, 0.0)
}

#[test]
fn the_second_signal_stops_at_once() {
    // A drain may be over before the second signal: it had read few rows, or the test stood still.
    let is_stopped = (0..20).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut training = slow_to_drain(dir.path());
        training.signal("-INT");
        common::until("it drains, or is over", || training.output().contains("stopping:") || !training.is_running());
        if !training.is_running() {
            return false;
        }
        // It stands still meanwhile, so that the drain is not over first.
        training.signal("-STOP");
        std::thread::sleep(LATER);
        training.signal("-INT");
        training.signal("-CONT");
        let (code, text) = training.wait();
        if code == Some(5) {
            return false;
        }
        assert_eq!(code, Some(130), "{text}");
        // The run may save already. And its end does not wait long for this line: on a busy machine it may be missing.
        if !text.contains("nothing saved") {
            return false;
        }
        let (model, partial) = (dir.path().join("model"), dir.path().join("model.partial"));
        assert!(!model.exists() && !partial.exists(), "{text}");
        true
    });
    assert!(is_stopped, "no run was stopped at once and said so");
}

/// A bug: these commands left hidden folders.
#[test]
fn commands_that_write_a_folder_stop_at_the_first_signal_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, work) = (common::parquet(dir.path(), 0, 4000), dir.path().join("work"));
    let (data, model, out) = (data.to_str().unwrap(), dir.path().join("model"), work.join("out"));
    let wide = ["model.kind=fm", "model.embedding_dim=512"];
    common::train(common::job(Path::new(data), &wide)).model.save(&model).unwrap();
    let text = dir.path().join("many");
    std::fs::create_dir(&text).unwrap();
    let rows = std::fs::read(common::text(dir.path(), 0, 4000).join("part-00000.txt")).unwrap();
    for part in 0..200 {
        std::fs::write(text.join(format!("{part}.txt")), &rows).unwrap();
    }
    let (model, text, out) = (model.to_str().unwrap(), text.to_str().unwrap(), out.to_str().unwrap());
    for command in [
        &["data", "synth", "--rows", "1000000000", "--group-rows", "1000", "--out", out][..],
        &["data", "synth", "--rows", "1000000000", "--format", "criteo", "--out", out],
        &["data", "convert", text, "--group-rows", "1000", "--out", out],
        &["export", "--model", model, "--to", out],
    ] {
        for name in ["-TERM", "-INT"] {
            // A command that was over before the signal is run again.
            let is_stopped = (0..20).any(|_| {
                std::fs::create_dir_all(&work).unwrap();
                let mut run = Background::start(&mut common::forebay(command));
                if run.has_staged(&work) {
                    run.signal(name);
                }
                let (code, said) = run.wait();
                if code == Some(0) {
                    std::fs::remove_dir_all(&work).unwrap();
                    return false;
                }
                assert_eq!(code, Some(5), "{command:?}: {said}");
                assert!(said.contains("error: stopped: "), "{command:?}: {said}");
                assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "{command:?}: {said}");
                // Its end does not wait long for this line: on a busy machine it may be missing.
                said.contains("nothing is written")
            });
            assert!(is_stopped, "{command:?} is always over before the signal, or does not say why it ends");
        }
    }
}

/// `timeout` signals the program and its process group.
#[test]
fn two_signals_within_a_moment_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let settings = endless(&data, dir.path());
    let program = env!("CARGO_BIN_EXE_forebay");
    // On a busy machine a run may not have begun after 4 s, or handle the second signal long after the first.
    let is_one = ["4", "4", "20", "60"].into_iter().any(|seconds| {
        let mut command = std::process::Command::new("timeout");
        command.args([seconds, program, "train"]).args(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
        let (code, text) = Background::start(&mut command).wait();
        // `timeout` says 124 for every exit code of the program.
        assert_eq!(code, Some(124), "{text}");
        let partial = dir.path().join("model.partial");
        text.contains("stopping:")
            && !text.contains("stopped at once")
            && partial.exists()
            && Manifest::read(partial).unwrap().training.unwrap().ended == RunEnd::Drained
    });
    assert!(is_one, "no run was drained");
}

#[test]
fn the_end_of_the_terminal_does_not_end_a_run_under_nohup() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let settings = endless(&data, dir.path());
    let mut command = std::process::Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_forebay"), "train"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
    let mut training = Background::start(&mut command);
    training.wait_for("push", 1);
    std::thread::sleep(LATER);
    training.signal("-HUP");
    std::thread::sleep(LATER);
    assert!(training.is_running() && !training.output().contains("stopping:"), "{}", training.output());
    training.signal("-TERM");
    common::exits(5, training.wait(), &[]);
}
