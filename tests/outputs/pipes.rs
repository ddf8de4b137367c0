//! Named pipes in the place of files and folders: a job may come through one, nothing else does, and none is waited for forever.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{common, drained_after_two_checkpoints, kill_role, refused, train};
use common::Background;

fn pipe(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// A job in a file of `dir`.
fn job(dir: &Path, more: &str) -> PathBuf {
    let (rows, file) = (common::parquet(dir, 0, 2000), dir.join("job.toml"));
    let text = format!(
        "data.train = '{}'\noutput.model = '{}'\nmodel.kind = 'lr'\n{more}\n",
        rows.display(),
        dir.join("model").display()
    );
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn a_job_may_come_through_a_pipe() {
    for (command, more) in [("train", ""), ("launch", "placement.readers = 1")] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(r#""$0" {command} <(cat "$1")"#);
        let run = Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_forebay")])
            .arg(job(dir.path(), more))
            .output();
        let (code, text) = common::code_and_output(&run.unwrap());
        assert_eq!(code, Some(0), "{command}: {text}");
        let model = forebay::Model::load(dir.path().join("model"), 1).unwrap();
        assert_eq!(model.training.unwrap().rows, 2000);
    }
}

/// A bug: a process that was started again trained the default job, or the others refused it.
#[test]
fn a_launch_goes_on_with_its_job_when_the_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let more = "placement.readers = 1\ndata.epochs = 1000000\ncheckpoint.to = 'checkpoints'\ncheckpoint.rows = 20000";
    let file = job(dir.path(), more);
    let mut run = Background::start(common::forebay(&["launch"]).arg(&file).current_dir(dir.path()));
    run.wait_for("checkpoint 1 after", 1);
    fs::write(&file, "seed = 5\n").unwrap();
    kill_role(&run, "reader");
    run.wait_for("starts it again", 1);
    drained_after_two_checkpoints(run, &[]);
}

#[test]
fn a_signal_ends_a_program_that_waits_for_its_job() {
    let ended = |command: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let run = Background::start(common::forebay(command).arg(pipe(dir.path(), "job")));
        let status = PathBuf::from(format!("/proc/{}/status", run.id()));
        // Until it listens to SIGTERM, the system ends it.
        let listens = || {
            let text = fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << 14 != 0
        };
        common::until("it listens to signals", listens);
        run.signal("-TERM");
        let (code, text) = run.wait();
        assert_eq!(code, Some(5), "{command:?}: {text}");
        text
    };
    for command in [&["train"][..], &["launch"], &["role", "trainer"]] {
        // Its end does not wait long for this line: on a busy machine it may be missing.
        let says_so = |_: i32| ended(command).contains("stopping: nothing has begun yet");
        assert!((0..20).any(says_so), "{command:?} does not say why it ends");
    }
}

#[test]
fn pipes_in_the_place_of_files_and_folders_are_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let at = pipe(dir.path(), "pipe").display().to_string();
    for field in ["data.train", "data.eval", "train.from", "checkpoint.to", "output.model", "checkpoint.from"] {
        let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
        refused(&mut train(dir.path(), &[&checkpoints, &format!("{field}={at}")]), &["pipe"]);
    }
    refused(train(dir.path(), &[]).args(["--tensorboard", &at]), &["which is not a folder"]);
    for command in [&["eval", "--data", "x"][..], &["predict", "--data", "x", "--out", "-"], &["export", "--to", "x"]] {
        refused(common::forebay(command).args(["--model", &at]).current_dir(dir.path()), &[]);
    }
}

#[test]
fn a_model_folder_with_a_pipe_in_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    for file in ["manifest.json", "dense.safetensors", "tables/embedding/shard-0000.parquet"] {
        let setting = format!("output.model={}", model.display());
        assert!(train(dir.path(), &[&setting, "table.shards=1"]).output().unwrap().status.success());
        fs::remove_file(model.join(file)).unwrap();
        pipe(&model, file);
        for command in [&["eval", "--data", "x"][..], &["serve", "--listen", "127.0.0.1:0"]] {
            refused(common::forebay(command).arg("--model").arg(&model), &[file, "it is a pipe or a device"]);
        }
        fs::remove_dir_all(&model).unwrap();
    }
}

/// A bug: the log of a training, or of a server, waited forever for the reader of a pipe, and with it the model.
#[test]
fn a_run_whose_output_nobody_reads_saves_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b'x'; 1 << 16]).unwrap();
    let mut run = common::forebay(&["train"]);
    run.arg(job(dir.path(), "")).stdout(writer.try_clone().unwrap()).stderr(writer);
    assert!(run.status().unwrap().success());
    assert_eq!(forebay::Model::load(dir.path().join("model"), 1).unwrap().training.unwrap().rows, 2000);
    drop(reader);
}

/// A bug: it waited forever to open the pipe.
#[test]
fn a_report_to_a_named_pipe_that_nobody_reads_is_an_error_after_the_model_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let report = pipe(dir.path(), "report.json");
    let mut run = common::forebay(&["train"]);
    let ran = common::ended(run.arg(job(dir.path(), "")).arg("--report").arg(&report));
    common::exits(6, ran, &["no process reads the pipe"]);
    assert_eq!(forebay::Model::load(dir.path().join("model"), 1).unwrap().training.unwrap().rows, 2000);
}
