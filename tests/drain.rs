//! Ctrl-C: the first drains, saves and reports; the second stops at once.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run that would take hours, and its report and model.
fn endless(data: &Path, dir: &Path) -> Child {
    let set = [
        format!("data.train={}", data.display()),
        format!("output.model={}", dir.join("model").display()),
        "data.epochs=100000".into(),
        "model.kind=lr".into(),
    ];
    let report = dir.join("report.json");
    let mut command = common::forebay(&["train", "--report", report.to_str().unwrap()]);
    for setting in &set {
        command.args(["--set", setting]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Until the run is under way: it has announced its plan, and has had a moment to read.
fn under_way(child: &mut Child) {
    let mut seen = Vec::new();
    let mut stderr = child.stderr.take().unwrap();
    let mut byte = [0];
    while !seen.ends_with(b"push") {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let moment = Instant::now();
    while moment.elapsed() < Duration::from_millis(700) {
        std::thread::yield_now();
    }
}

#[test]
fn the_first_signal_drains_saves_and_reports() {
    for name in ["-INT", "-TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let data = common::parquet(dir.path(), 0, 4000);
        let mut child = endless(&data, dir.path());
        under_way(&mut child);
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{text}");
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
    let mut child = endless(&data, dir.path());
    under_way(&mut child);
    signal(&child, "-INT");
    signal(&child, "-INT");
    let code = child.wait_with_output().unwrap().status.code();
    // Two signals may merge into one, or the drain may win the race: then the run ended well.
    assert!(matches!(code, Some(130 | 0)), "{code:?}");
    if code == Some(130) {
        assert!(!dir.path().join("model").exists());
    }
}
