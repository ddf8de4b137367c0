//! Leased sources that break their rules or give nothing, in one process and in several: the run ends with a fault that names the source
//! and the window, or the log names the source. The program is `faulty_sources.rs`.

use std::path::Path;
use std::process::Command;

use super::common::{self, Background};

/// The program with `train` or `launch`, and a small job that reads this source.
fn faulty(folder: &Path, command: &str, source: &str, more: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_forebay")).with_file_name("examples").join("faulty_sources");
    let (source, model) = (format!("data.source={source}"), format!("output.model={}", folder.join("model").display()));
    let settings = ["model.kind=lr", "train.batch_rows=256", "data.shuffle_rows=2048", &source, &model];
    let mut started = Command::new(program);
    started.arg(command).env_remove("FOREBAY_LOG").env("TMPDIR", folder);
    started.args(settings.iter().chain(more).flat_map(|setting| ["--set", setting]));
    started
}

const CLUSTER: [&str; 3] = ["placement.readers=2", "placement.ps=1", "placement.lease_rows=4096"];

#[test]
fn a_source_that_breaks_its_leases_ends_the_run_of_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    for (source, expected) in [
        ("beyond", "the source `beyond` returned rows of window 100"),
        ("fewer", "the source `fewer` closed window"),
        ("more", "the source `more` closed window"),
        ("other_plan", "other names or sizes of files"),
    ] {
        let ended = common::ended(&mut faulty(folder.path(), "launch", source, &CLUSTER));
        let said = common::exits(2, ended, &[expected]);
        assert!(!folder.path().join("model").exists(), "{source} left a model: {said}");
        let rows = match source {
            "fewer" => "after 2,047 rows, expected 2,048 by its plan",
            "more" => "after 2,049 rows, expected 2,048 by its plan",
            _ => continue,
        };
        assert!(said.contains(rows), "{said}");
    }
}

#[test]
fn a_source_that_gives_nothing_is_named_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let start = |command: &str, source: &str, more: &[&str]| {
        Background::start(&mut faulty(folder.path(), command, source, more))
    };
    // All at once: each says it after a minute.
    let mut runs = [
        (start("train", "blocks", &[]), "the source `read` (blocks: Faulty) has given no rows for "),
        (start("launch", "blocks", &CLUSTER), "the source `read` (blocks: Faulty) has given no rows for "),
        (start("train", "waits", &[]), "the source `waits` has returned no rows for 60 s"),
        (
            start("launch", "waits", &CLUSTER),
            "the source `waits` has returned no rows for 60 s, and the run waits for its window",
        ),
    ];
    for (run, expected) in &mut runs {
        run.wait_for(expected, 1);
    }
}
