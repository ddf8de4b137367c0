//! A program of a user's own, `examples/own_program.rs`: its filter, stages, source and model in one process, in a cluster, in
//! evaluation.
#![allow(clippy::unwrap_used, dead_code, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod faulty;

use std::path::Path;
use std::process::Command;

/// `cargo test` builds the examples first; `cargo test --test own_program` alone does not.
fn own_program(args: &[&str]) -> (Option<i32>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_forebay")).with_file_name("examples").join("own_program");
    let output = Command::new(program).args(args).env_remove("FOREBAY_LOG").output();
    common::code_and_output(&output.expect("the example starts: `cargo build --examples` makes it"))
}

/// A folder with rows, and the models of runs over them.
struct Runs {
    folder: tempfile::TempDir,
}

impl Runs {
    fn new() -> Self {
        let runs = Self { folder: tempfile::tempdir().unwrap() };
        common::exits(0, common::run(&["data", "synth", "--rows", "12000", "--out", &runs.path("rows")]), &[]);
        runs
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Trains the own model with these settings, by `train` or `launch`. Returns what the program prints.
    fn train(&self, command: &str, model: &str, settings: &[&str]) -> String {
        let (train, model) =
            (format!("data.train={}", self.path("rows")), format!("output.model={}", self.path(model)));
        let own =
            ["model.kind=own", "model.name=tiny", "train.batch_rows=256", "data.shuffle_rows=2048", &train, &model];
        let settings = own.into_iter().chain(settings.iter().copied());
        let args: Vec<&str> = [command].into_iter().chain(settings.flat_map(|s| ["--set", s])).collect();
        common::exits(0, own_program(&args), &[])
    }

    /// The quality of a model on all rows.
    fn evaluation(&self, model: &str) -> String {
        let (code, said) = own_program(&["eval", "--model", &self.path(model), "--data", &self.path("rows"), "--json"]);
        assert_eq!(code, Some(0), "{said}");
        said
    }
}

/// The rows trained on and rejected, of all processes of a run.
fn counts(said: &str) -> (u64, u64) {
    let (_, counts) = said.split_once("all processes: ").expect("the first trainer prints the row counts");
    let (trained, rest) = counts.split_once(" rows trained on, ").unwrap();
    let (rejected, _) = rest.split_once(" rejected").unwrap();
    let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
    (number(trained), number(rejected))
}

#[test]
fn an_own_filter_and_an_own_model_give_the_same_model_in_one_process_and_in_a_cluster() {
    let runs = Runs::new();
    let filter = "pipeline.after_read=['drop_large_i3']";
    let alone = runs.train("train", "alone", &[filter]);
    assert!(alone.contains("drop_large_i3"), "{alone}");
    let cluster = [filter, "placement.readers=2", "placement.ps=2", "placement.dense=ps"];
    let apart = runs.train("launch", "apart", &cluster);
    let (trained, rejected) = counts(&apart);
    assert!(trained + rejected == 12_000 && rejected > 0, "{apart}");
    assert_eq!(runs.evaluation("alone"), runs.evaluation("apart"));

    let ran = common::run(&["eval", "--model", &runs.path("alone"), "--data", &runs.path("rows")]);
    common::exits(2, ran, &["pipeline.after_read", "`drop_large_i3`"]);
}

#[test]
fn an_own_source_and_own_stages_give_the_same_model_in_one_process_and_in_a_cluster() {
    let runs = Runs::new();
    let own = ["data.source=clicks", "pipeline.after_parse=['downsample']", "pipeline.after_batch=['bound']"];
    let alone = runs.train("train", "alone", &own);
    assert!(alone.contains("downsampled"), "{alone}");
    // The dense parameters stay in the trainer.
    let cluster = ["placement.readers=2", "placement.ps=1", "placement.dense=trainer"];
    let apart = runs.train("launch", "apart", &[&own[..], &cluster].concat());
    let (trained, rejected) = counts(&apart);
    assert!(trained + rejected == 20_000 && rejected > 5_000, "the rows of the own source: {apart}");
    assert_eq!(runs.evaluation("alone"), runs.evaluation("apart"));

    // The stage over batches does something.
    runs.train("train", "unbounded", &own[..2]);
    assert_ne!(runs.evaluation("alone"), runs.evaluation("unbounded"));
}
