//! A program of a user's own, `examples/own_program.rs`: its filter and its model in one process, in a cluster, in evaluation.
#![allow(clippy::unwrap_used, dead_code, reason = "a test")]

mod common;

use std::path::Path;
use std::process::Command;

/// `cargo test` builds the examples first; `cargo test --test own_program` alone does not.
fn own_program(args: &[&str]) -> (Option<i32>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_forebay")).with_file_name("examples").join("own_program");
    let output = Command::new(program).args(args).env_remove("FOREBAY_LOG").output();
    common::code_and_output(&output.expect("the example starts: `cargo build --examples` makes it"))
}

#[test]
fn an_own_filter_and_an_own_model_give_the_same_model_in_one_process_and_in_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = path("rows");
    let (code, said) = common::run(&["data", "synth", "--rows", "12000", "--out", &data]);
    assert_eq!(code, Some(0), "{said}");
    let train = |command: &str, model: &str, placement: &[&str]| {
        let (train, model) = (format!("data.train={data}"), format!("output.model={}", path(model)));
        let settings = [&train, &model, "pipeline.after_read=['drop_large_i3']", "data.shuffle_rows=2048"];
        let own = ["model.kind=own", "model.name=tiny", "train.batch_rows=256"];
        let settings = settings.into_iter().chain(own).chain(placement.iter().copied());
        let args: Vec<&str> = [command].into_iter().chain(settings.flat_map(|s| ["--set", s])).collect();
        let (code, said) = own_program(&args);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    let score = |model: &str| {
        let (code, said) = own_program(&["eval", "--model", &path(model), "--data", &data, "--json"]);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    let alone = train("train", "alone", &[]);
    assert!(alone.contains("drop_large_i3"), "{alone}");
    let cluster = ["placement.readers=2", "placement.ps=2", "placement.dense=ps"];
    let apart = train("launch", "apart", &cluster);
    let (_, counts) = apart.split_once("all processes: ").expect("the first trainer prints the row counts");
    let (trained, rest) = counts.split_once(" rows trained on, ").unwrap();
    let (rejected, _) = rest.split_once(" rejected").unwrap();
    let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
    assert_eq!(number(trained) + number(rejected), 12_000, "{apart}");
    assert!(number(rejected) > 0, "{apart}");
    assert_eq!(score("alone"), score("apart"));

    let (code, said) = common::run(&["eval", "--model", &path("alone"), "--data", &data]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("pipeline.after_read") && said.contains("`drop_large_i3`"), "{said}");
}
