//! A finished model is never lost: standard output and error may be closed or full, and a place that cannot be written, or
//! rows of the evaluation that cannot be read, are a fault before the training.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray};
use arrow::record_batch::RecordBatch;
use forebay::Model;
use forebay::pipelines::RunEnd;
use parquet::arrow::ArrowWriter;

/// A short training of rows in `dir`, with more settings.
fn train(dir: &Path, more: &[&str]) -> Command {
    let rows = dir.join("parquet-0");
    let rows = if rows.exists() { rows } else { common::parquet(dir, 0, 2000) };
    let mut command = common::forebay(&["train", "--set", "model.kind=lr", "--set"]);
    command.arg(format!("data.train={}", rows.display())).stdin(Stdio::null());
    command.args(more.iter().flat_map(|setting| ["--set", setting]));
    command
}

fn output(dir: &Path) -> (PathBuf, String) {
    let model = dir.join("model");
    let setting = format!("output.model={}", model.display());
    (model, setting)
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// Makes a standard output or error.
type Output = fn() -> Stdio;

/// The writing end of a pipe whose reading end is closed.
fn closed() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn a_closed_or_full_output_does_not_lose_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let outputs: [(&str, Output); 3] =
        [("full", || full().into()), ("closed pipe", || closed().into()), ("null", Stdio::null)];
    for (out_name, out) in outputs {
        for (err_name, err) in outputs {
            for format in ["text", "json"] {
                let mut command = train(dir.path(), &[&setting]);
                let status = command.args(["--log-format", format]).stdout(out()).stderr(err()).status().unwrap();
                assert_eq!(status.code(), Some(0), "standard output {out_name}, error {err_name}, {format}");
                assert_eq!(Model::load(&model, 1).unwrap().training.unwrap().ended, RunEnd::Complete);
                fs::remove_dir_all(&model).unwrap();
            }
        }
    }
    // No file descriptors at all.
    let program = env!("CARGO_BIN_EXE_forebay");
    let rows = format!("data.train={}", dir.path().join("parquet-0").display());
    let script = r#"exec "$0" train --set model.kind=lr --set "$1" --set "$2" <&- >&- 2>&-"#;
    let status = Command::new("sh").args(["-c", script, program, &rows, &setting]).status().unwrap();
    assert_eq!(status.code(), Some(0));
    Model::load(&model, 1).unwrap();
}

#[test]
fn a_result_that_cannot_be_printed_is_a_fault() {
    let output = common::forebay(&["plan", "--job-file"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Runs a training that must be refused before it trains. Returns its output.
fn refused(command: &mut Command, code: i32) -> String {
    let (found, text) = common::code_and_output(&command.output().unwrap());
    assert!(found == Some(code) && !text.contains("trained on"), "{found:?}, expected {code}: {text}");
    text
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    fs::write(dir.path().join("file"), "dear").unwrap();
    for (path, words) in
        [("nowhere/report.json", "No such file"), ("file/report.json", "Not a dir"), ("file/report", "Not a dir")]
    {
        let report = dir.path().join(path);
        for command in ["train", "launch"] {
            let mut run = train(dir.path(), &[&setting, "placement.readers=1"]);
            if command == "launch" {
                run = Command::new(env!("CARGO_BIN_EXE_forebay"));
                run.args(["launch", "--set", "placement.readers=1"]);
            } else {
                run.args(["--set", "placement.readers=0"]);
            }
            let text = refused(run.arg("--report").arg(&report), 2);
            assert!(text.contains("cannot write the report to") && text.contains(words), "{command} {path}: {text}");
        }
        assert!(!model.exists());
    }
    // A file that is there is replaced at the end and not before.
    let old = dir.path().join("file");
    refused(train(dir.path(), &["data.eval=/nowhere"]).arg("--report").arg(&old), 2);
    assert_eq!(fs::read_to_string(&old).unwrap(), "dear");
    assert!(train(dir.path(), &[]).arg("--report").arg(&old).output().unwrap().status.success());
    assert!(fs::read_to_string(&old).unwrap().starts_with('{'));
}

#[test]
fn a_place_that_cannot_hold_a_model_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "dear").unwrap();
    let inside = dir.path().join("file/model");
    let long = dir.path().join("x".repeat(300));
    // Not even root makes a folder in /proc.
    for place in [Path::new("/proc/nowhere/model"), &inside, &long] {
        let text = refused(&mut train(dir.path(), &[&format!("output.model={}", place.display())]), 2);
        assert!(text.contains("could not be saved at output.model"), "{text}");
    }
    // Something else is where the model of a drained run would go.
    let (_, setting) = output(dir.path());
    fs::create_dir(dir.path().join("model.partial")).unwrap();
    fs::write(dir.path().join("model.partial/letters"), "dear").unwrap();
    let text = refused(&mut train(dir.path(), &[&setting]), 2);
    assert!(text.contains("model.partial") && text.contains("not a model"), "{text}");
    assert!(train(dir.path(), &[&setting, "output.on_drain=replace"]).output().unwrap().status.success());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "rows, the file, the model and model.partial: {left:?}");
}

/// A Parquet file with these columns.
fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn rows_that_cannot_be_evaluated_are_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let number = || Arc::new(Float32Array::from(vec![1.0, 0.0])) as ArrayRef;
    let word = || Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
    let path = |name: &str| dir.path().join(name);
    parquet(&path("train.parquet"), vec![("label", number()), ("I1", number()), ("C1", word())]);
    parquet(&path("lacks.parquet"), vec![("label", number()), ("I1", number())]);
    parquet(&path("type.parquet"), vec![("label", number()), ("I1", word()), ("C1", word())]);
    fs::write(path("text.txt"), "1\t2\t3\n").unwrap();
    let job = path("job.toml");
    let columns = "[columns]\nlabel = 'label'\ndense = ['I1']\nslots = ['C1']\n";
    fs::write(&job, format!("[data]\ntrain = '{}'\n{columns}", path("train.parquet").display())).unwrap();
    for (name, words) in
        [("nowhere", "nowhere"), ("lacks.parquet", "C1"), ("type.parquet", "column `I1` is"), ("text.txt", "text.txt")]
    {
        let mut command = common::forebay(&["train"]);
        command.arg(&job).args(["--set", "model.kind=lr", "--set"]);
        let text = refused(command.arg(format!("data.eval={}", path(name).display())), 2);
        assert!(text.contains("could not be evaluated on data.eval") && text.contains(words), "{name}: {text}");
    }
    let mut command = common::forebay(&["train"]);
    command.arg(&job).args(["--set", "model.kind=lr", "--set"]);
    let eval = format!("data.eval={}", path("train.parquet").display());
    let (code, text) = common::code_and_output(&command.arg(eval).output().unwrap());
    assert!(code == Some(0) && text.contains("evaluated on"), "{text}");
}

#[test]
fn a_job_without_a_place_for_the_model_warns_before_and_says_so_after() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = common::code_and_output(&train(dir.path(), &[]).output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the model will not be saved: the job has no output.model"), "{text}");
    assert!(text.contains("the model was not saved: the job has no output.model"), "{text}");
    let (_, setting) = output(dir.path());
    let (_, text) = common::code_and_output(&train(dir.path(), &[&setting]).output().unwrap());
    assert!(text.contains("saved") && !text.contains("not saved") && !text.contains("not be saved"), "{text}");
}

#[test]
fn runs_that_write_one_model_at_once_leave_one_of_them_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    for _ in 0..3 {
        let runs: Vec<_> = (0..3).map(|_| common::Background::start(&mut train(dir.path(), &[&setting]))).collect();
        for run in runs {
            let (code, text) = run.wait();
            assert_eq!(code, Some(0), "{text}");
        }
        Model::load(&model, 1).unwrap();
        fs::remove_dir_all(&model).unwrap();
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1, "only the rows are left");
    }
}

#[test]
fn a_full_disk_is_named_and_the_report_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this test needs root, and the right to mount");
        return;
    }
    let (_, text) = {
        let report = dir.path().join("report.json");
        let setting = format!("output.model={}", disk.join("model").display());
        let mut command = train(dir.path(), &[&setting]);
        let output = command.arg("--report").arg(&report).output().unwrap();
        let left = fs::read_dir(&disk).unwrap().count();
        assert!(Command::new("umount").arg(&disk).status().unwrap().success());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(left, 0, "nothing is left behind");
        assert!(fs::read_to_string(&report).unwrap().starts_with('{'));
        common::code_and_output(&output)
    };
    assert!(text.contains("the disk is full") && text.contains("trained on 2,000 rows"), "{text}");
}
