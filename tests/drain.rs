//! Ctrl-C: the first drains, saves and reports; the second stops at once.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::path::Path;
use std::time::Duration;

use common::Background;

/// A run that would take hours, 0.7 s after it has printed its plan.
fn endless(data: &Path, dir: &Path) -> Background {
    let report = dir.join("report.json");
    let mut command = common::forebay(&["train", "--report", report.to_str().unwrap()]);
    for setting in [
        format!("data.train={}", data.display()),
        format!("output.model={}", dir.join("model").display()),
        "data.epochs=100000".into(),
        "model.kind=lr".into(),
    ] {
        command.args(["--set", &setting]);
    }
    let mut training = Background::start(&mut command);
    training.wait_for("push", 1);
    std::thread::sleep(Duration::from_millis(700));
    training
}

#[test]
fn the_first_signal_drains_saves_and_reports() {
    for name in ["-INT", "-TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let training = endless(&data, dir.path());
        training.signal(name);
        let (code, text) = training.wait();
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("saved"), "{text}");
        forebay::Model::load(dir.path().join("model"), 1).unwrap();
        let report = std::fs::read_to_string(dir.path().join("report.json")).unwrap();
        let report: forebay::actors::Report = serde_json::from_str(&report).unwrap();
        assert!(report.ledger.delivered > 0, "{report}");
        assert_eq!(report.ledger.read, report.ledger.delivered);
    }
}

#[test]
fn the_second_signal_stops_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = common::parquet(dir.path(), 0, 4000);
    let training = endless(&data, dir.path());
    training.signal("-INT");
    training.signal("-INT");
    let (code, text) = training.wait();
    // Two signals may merge into one, or the drain may end before the second: then the run ended well.
    assert!(matches!(code, Some(130 | 0)), "{code:?}: {text}");
    // The second signal may also come while the model is saved, or after it: then the model is whole or not there, and the
    // program says so.
    let model = dir.path().join("model");
    if text.contains("nothing saved") {
        assert!(!model.exists(), "{text}");
    } else if !text.contains("while the model was saved") {
        assert!(model.exists(), "{text}");
    }
    if model.exists() {
        forebay::Model::load(model, 1).unwrap();
    }
}
