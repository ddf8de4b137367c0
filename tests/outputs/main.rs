//! A finished model is never lost: standard output and error may be closed or full, and a place that cannot be written, or
//! rows of the evaluation that cannot be read, are a fault before the training.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

mod away;
#[path = "../common/mod.rs"]
mod common;
mod disk;
mod drained;
mod pipes;
mod rescue;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray};
use arrow::record_batch::RecordBatch;
use common::Background;
use disk::Disk;
use forebay::Model;
use forebay::pipelines::RunEnd;

/// The 2,000 rows in `dir`, which are made if they are not there.
fn rows_in(dir: &Path) -> PathBuf {
    let rows = dir.join("parquet-0");
    if rows.exists() { rows } else { common::parquet(dir, 0, 2000) }
}

/// A short training of rows in `dir`, with more settings.
fn train(dir: &Path, more: &[&str]) -> Command {
    let rows = rows_in(dir);
    let mut command = common::forebay(&["train", "--set", "model.kind=lr", "--set", "output.retry_for=0s", "--set"]);
    // A model that cannot be saved goes into the working directory.
    command.arg(format!("data.train={}", rows.display())).stdin(Stdio::null()).current_dir(dir);
    command.args(more.iter().flat_map(|setting| ["--set", setting]));
    command
}

fn output(dir: &Path) -> (PathBuf, String) {
    let model = dir.join("model");
    let setting = format!("output.model={}", model.display());
    (model, setting)
}

/// Kills the processes of this role that a launch has started.
fn kill_role(launch: &Background, role: &str) {
    let processes = format!("role {role} .*--parent {}( |$)", launch.id());
    assert!(Command::new("pkill").args(["-KILL", "-f", &processes]).status().unwrap().success());
}

/// Waits until a run has made two more checkpoints, and drains it; its output has these words. The batches that were on their way are fewer
/// than the rows of a checkpoint, so the run has gone on.
fn drained_after_two_checkpoints(mut run: Background, words: &[&str]) {
    let made = run.output().matches("INFO checkpoint ").count();
    run.wait_for("INFO checkpoint ", made + 2);
    run.signal("-TERM");
    common::exits(5, run.wait(), words);
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

/// A bug: a training said nothing, and a prediction that had written its folder had exit code 3.
#[test]
fn a_report_that_standard_output_does_not_take_is_one_warning() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let lost = |command: &mut Command, out: Stdio| {
        let output = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output().unwrap();
        let (code, text) = common::code_and_output(&output);
        assert_eq!(code, Some(0), "{command:?}: {text}");
        text.matches("the report is lost, or a part of it: cannot write to standard output").count()
    };
    for format in ["text", "json"] {
        for (out, warnings) in [(Stdio::from(full()), 1), (Stdio::from(closed()), 0)] {
            assert_eq!(lost(train(dir.path(), &[&setting]).args(["--log-format", format]), out), warnings, "{format}");
            Model::load(&model, 1).unwrap();
        }
    }
    let rows = dir.path().join("parquet-0").display().to_string();
    let data = format!("data.train={rows}");
    let settings = ["model.kind=lr", "placement.readers=1", &data, &setting].map(|setting| ["--set", setting]);
    let launch = [&["launch"][..], &settings.concat()].concat();
    assert_eq!(lost(&mut common::forebay(&launch), full().into()), 1);
    let scores = dir.path().join("scores");
    let (from, to) = (model.display().to_string(), scores.display().to_string());
    let predict = ["predict", "--model", &from, "--data", &rows, "--out", &to];
    assert_eq!(lost(&mut common::forebay(&predict), full().into()), 1);
    assert_eq!(common::read_rows(&scores).num_rows(), 2000);
}

#[test]
fn a_result_that_cannot_be_printed_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    assert!(train(dir.path(), &[&setting]).output().unwrap().status.success());
    let (model, rows) = (model.display().to_string(), dir.path().join("parquet-0").display().to_string());
    // A bug: the help and the version ended with 0.
    for command in [
        &["plan", "--job-file"][..],
        &["eval", "--model", &model, "--data", &rows],
        &["predict", "--model", &model, "--data", &rows, "--out", "-"],
        &["data", "inspect", &rows],
        &["data", "inspect", &rows, "--json"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["train", "--help"],
        &["help", "data"],
        &["--version"],
    ] {
        let output = common::forebay(command).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"), "{output:?}");
    }
}

/// A bug: the old model stayed under a hidden name forever, and no message said what to remove.
#[test]
fn an_old_model_that_cannot_be_removed_is_named_by_this_run_and_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    common::exits(0, common::ended(&mut train(dir.path(), &[&setting])), &[]);
    let mode = |path: &Path, bits| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
    };
    // As if it were of another user.
    mode(&model, 0o555);
    let Some(mut again) = common::bound_by_modes(&train(dir.path(), &[&setting])) else { return };
    let said = [(); 2].map(|()| common::exits(0, common::ended(again.current_dir(dir.path())), &["remove it"]));
    let mut paths = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let old = paths.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(".model.partial-")).unwrap();
    for said in said {
        assert!(said.contains(&format!("{}", old.display())) && said.contains("cannot be removed"), "{said}");
    }
    mode(&old, 0o755);
}

/// Runs a command that must be refused before it trains, with these words.
#[track_caller]
fn refused(command: &mut Command, words: &[&str]) {
    let text = common::exits(2, common::ended(command), words);
    assert!(!text.contains("trained on"), "{text}");
}

/// A bug: a wrong place of the model was found after the model at `train.from` or a checkpoint was loaded, which may take minutes.
#[test]
fn what_cannot_be_written_or_found_is_refused_before_a_model_or_a_checkpoint_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
    let checkpointed = [checkpoints.as_str(), "checkpoint.rows=1000", "data.epochs=1000000"];
    assert!(train(dir.path(), &[&setting]).output().unwrap().status.success());
    let mut run = common::Background::start(&mut train(dir.path(), &checkpointed));
    run.wait_for("INFO checkpoint ", 1);
    drop(run);
    // The fault of one that is loaded.
    fs::remove_dir_all(model.join("tables")).unwrap();
    for entry in fs::read_dir(dir.path().join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension != "json") {
            // Of the same length: a wrong length is seen without loading.
            let bytes = fs::metadata(&path).unwrap().len();
            fs::write(path, "x".repeat(bytes as usize)).unwrap();
        }
    }
    fs::write(dir.path().join("file"), "dear").unwrap();
    let (inside, from) = (dir.path().join("file/in"), format!("train.from={}", model.display()));
    let model = (format!("output.model={}", inside.display()), "could not be saved at output.model");
    let eval = ("data.eval=nowhere.parquet".to_owned(), "could not be evaluated on data.eval");
    // A run of other bad rows is not the run of the checkpoint.
    let bad = (format!("data.on_bad_row={{ write_to = {:?} }}", inside.to_str().unwrap()), "cannot write bad rows to");
    let elsewhere = format!("output.model={}", dir.path().join("model-2").display());
    let from_model = [elsewhere.as_str(), &from];
    let from_checkpoint = [&[elsewhere.as_str()][..], &checkpointed].concat();
    for (settings, arguments, loaded, wrong) in [
        (&from_model[..], &[][..], "shard-0000", &[&model, &eval, &bad][..]),
        (&from_checkpoint[..], &["--resume"][..], "is not used", &[&model, &eval][..]),
    ] {
        common::exits(2, common::ended(train(dir.path(), settings).args(arguments)), &[loaded]);
        for (setting, words) in wrong {
            let settings = [settings, &[setting.as_str()]].concat();
            let text = common::exits(2, common::ended(train(dir.path(), &settings).args(arguments)), &[words]);
            assert!(!text.contains(loaded), "{setting}: {text}");
        }
    }
    assert!(!dir.path().join("model-2").exists());
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    fs::write(dir.path().join("file"), "dear").unwrap();
    for (path, words) in
        [("file/report.json", "Not a dir"), ("file/new/report.json", "Not a dir"), ("file/report", "Not a dir")]
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
            refused(run.arg("--report").arg(&report), &["cannot write the report to", words]);
        }
        assert!(!model.exists());
    }
    // A file of another kind is not replaced, and nothing is put into the folder of the model.
    let file = dir.path().join("file");
    refused(train(dir.path(), &[]).arg("--report").arg(&file), &["a file of another kind is there"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "dear");
    fs::create_dir(&model).unwrap();
    std::os::unix::fs::symlink(&model, dir.path().join("link")).unwrap();
    for argument in ["--report", "--tensorboard"] {
        refused(
            train(dir.path(), &[&setting]).arg(argument).arg(dir.path().join("link/within")),
            &["in the folder of the model"],
        );
    }
    refused(train(dir.path(), &[&setting]).arg("--tensorboard").arg(&model), &["in the folder of the model"]);
    refused(train(dir.path(), &[]).arg("--tensorboard").arg(&file), &["which is not a folder"]);
    // A bug: a local folder `hdfs:` was made.
    for argument in ["--report", "--tensorboard"] {
        refused(
            train(dir.path(), &[]).args([argument, "hdfs://ns/r"]),
            &[argument, "expected a local path without `://`"],
        );
    }
    assert!(!dir.path().join("hdfs:").exists());
    let again = dir.path().join("again");
    fs::write(&again, "").unwrap();
    for _ in 0..2 {
        assert!(
            train(dir.path(), &[]).arg("--report").arg(&again).output().unwrap().status.success(),
            "a report, whatever its name"
        );
    }
    for path in ["new/report.json", "other/new"] {
        let report = dir.path().join(path);
        let run = train(dir.path(), &[]).arg("--report").arg(&report).output().unwrap();
        assert!(run.status.success() && report.exists(), "its folder is made: {path}: {run:?}");
    }
    // A report that is there is replaced at the end and not before.
    let old = dir.path().join("old.json");
    fs::write(&old, "dear").unwrap();
    refused(train(dir.path(), &["data.eval=/nowhere"]).arg("--report").arg(&old), &[]);
    assert_eq!(fs::read_to_string(&old).unwrap(), "dear");
    assert!(train(dir.path(), &[]).arg("--report").arg(&old).output().unwrap().status.success());
    assert!(fs::read_to_string(&old).unwrap().starts_with('{'));
}

/// A bug: `launch` started again with the new rows, and the exit code was 0.
#[test]
fn a_file_that_is_replaced_during_a_launch_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (common::parquet(dir.path(), 0, 3000), common::parquet(dir.path(), 3000, 2000));
    let model = dir.path().join("model");
    let mut launch = common::forebay(&["launch"]);
    let settings = [
        format!("data.train={}", data.display()),
        format!("output.model={}", model.display()),
        "data.epochs=1000000".to_owned(),
        "model.kind=lr".to_owned(),
        "placement.readers=1".to_owned(),
        "placement.ps=1".to_owned(),
    ];
    launch.args(settings.iter().flat_map(|setting| ["--set", setting]));
    let mut launch = common::Background::start(&mut launch);
    launch.wait_for("rows are trained on", 1);
    fs::rename(other.join("part-00000.parquet"), data.join("part-00000.parquet")).unwrap();
    common::exits(2, launch.wait(), &["was replaced or changed after it was listed"]);
    assert!(!model.exists());
}

/// A bug: under `launch` the model was trained again, up to ten times.
#[test]
fn a_model_that_is_saved_is_not_trained_again_for_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let data = format!("data.train={}", common::parquet(dir.path(), 0, 2000).display());
    for command in ["train", "launch"] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_forebay"));
        run.args([command, "--report", "/dev/full", "--set", "model.kind=lr", "--set", &setting]);
        run.args([
            "--set",
            &data,
            "--set",
            if command == "launch" { "placement.readers=1" } else { "placement.readers=0" },
        ]);
        let (code, text) = common::ended(&mut run);
        assert!(
            code == Some(6) && text.contains("cannot write the report to `/dev/full`"),
            "{command}: {code:?} {text}"
        );
        assert!(!text.contains("starts it again"), "{text}");
        let last = text.trim_end().lines().last().unwrap();
        let of_launch = last.starts_with("error: trainer 0 ended with exit code 6: the model is saved");
        assert_eq!(of_launch, command == "launch", "{text}");
        assert_eq!(Model::load(&model, 1).unwrap().training.unwrap().ended, RunEnd::Complete);
        fs::remove_dir_all(&model).unwrap();
    }
    // Without a model, the report is all that the run was for.
    let output = train(dir.path(), &[]).args(["--report", "/dev/full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// A bug: they were compared as text, so the model replaced its own checkpoints.
#[test]
fn a_folder_on_hdfs_is_known_by_each_name_of_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let property = |name: &str, value: &str| format!("<property><name>{name}</name><value>{value}</value></property>");
    let conf = [
        property("fs.defaultFS", "hdfs://names"),
        property("dfs.ha.namenodes.names", "a,b"),
        property("dfs.namenode.rpc-address.names.a", "127.0.0.1:1"),
        property("dfs.namenode.rpc-address.names.b", "127.0.0.2:1"),
    ];
    fs::write(dir.path().join("core-site.xml"), format!("<configuration>{}</configuration>", conf.concat())).unwrap();
    for (model, checkpoints) in [
        ("hdfs://names/al/m", "hdfs:///al/m/ck"),
        ("hdfs:///al/m", "hdfs://127.0.0.2:1/al/m/"),
        ("hdfs://127.0.0.1:1/al/m/", "hdfs://Names/al/m/ck"),
    ] {
        let places = [&format!("output.model={model}")[..], &format!("checkpoint.to={checkpoints}")];
        refused(
            train(dir.path(), &places).env("HADOOP_CONF_DIR", dir.path()),
            &["checkpoint.to is", "in the folder of the model"],
        );
    }
}

#[test]
fn places_in_the_way_of_the_model_and_places_without_room_for_checkpoints_are_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let checkpoints = format!("checkpoint.to={}", model.join("checkpoints").display());
    refused(&mut train(dir.path(), &[&setting, &checkpoints]), &["checkpoint.to is", "in the folder of the model"]);
    fs::create_dir(&model).unwrap();
    std::os::unix::fs::symlink(&model, dir.path().join("link")).unwrap();
    let checkpoints = format!("checkpoint.to={}", dir.path().join("link/checkpoints").display());
    refused(&mut train(dir.path(), &[&setting, &checkpoints]), &["checkpoint.to is", "in the folder of the model"]);
    refused(
        &mut train(dir.path(), &["checkpoint.to=/proc/nowhere/checkpoints"]),
        &["nothing is trained, because checkpoints could not be written to checkpoint.to"],
    );
    let there = dir.path().join("there");
    assert!(train(dir.path(), &[&format!("checkpoint.to={}", there.display())]).output().unwrap().status.success());
    assert!(!there.exists(), "what was written to try is gone");
}

#[test]
fn a_job_that_is_refused_leaves_no_event_file() {
    let dir = tempfile::tempdir().unwrap();
    let board = dir.path().join("board");
    for wrong in ["data.eval=/nowhere", "train.batch_rows=0"] {
        refused(train(dir.path(), &[wrong]).arg("--tensorboard").arg(&board), &[]);
        assert!(!board.exists(), "{wrong}");
    }
}

/// A bug: the run went on without event files, or ended with a model and without its report.
#[test]
fn a_report_and_event_files_on_a_full_disk_are_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    disk.fill_up();
    let rows = format!("data.train={}", common::parquet(dir.path(), 0, 2000).display());
    for (command, readers) in [("train", "placement.readers=0"), ("launch", "placement.readers=1")] {
        for (option, what) in [("--tensorboard", "event files"), ("--report", "the report")] {
            let mut run = common::forebay(&[command, "--set", "model.kind=lr", "--set", &rows, "--set", readers]);
            run.arg(option).arg(disk.0.join("out"));
            let said = format!("error: cannot write {what} to");
            let text = common::exits(3, common::ended(&mut run), &[&said, "the disk is full"]);
            assert!(!text.contains("trained on") && !text.contains("trainer 0"), "{command}: {text}");
        }
    }
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 1, "nothing is left behind but what filled the disk");
    // A run that has trained before goes on.
    let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
    let mut run = train(dir.path(), &[&checkpoints]);
    run.arg("--resume").arg("--tensorboard").arg(disk.0.join("board"));
    let said = ["event files could not be written now", "no more event files for TensorBoard", "trained on 2,000 rows"];
    common::exits(0, common::ended(&mut run), &said);
}

#[test]
fn a_folder_that_is_not_a_model_is_called_so_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let rows = common::parquet(dir.path(), 0, 100).display().to_string();
    let checkpoints = dir.path().join("checkpoints").display().to_string();
    let settings = [&format!("checkpoint.to={checkpoints}"), "checkpoint.rows=100", "data.epochs=1000000"];
    let mut run = common::Background::start(&mut train(dir.path(), &settings));
    run.wait_for("INFO checkpoint ", 1);
    drop(run);
    let nowhere = dir.path().join("nowhere").display().to_string();
    for (folder, words) in [
        (&rows, "such a folder has manifest.json, dense.safetensors and tables/"),
        (&nowhere, "such a folder has manifest.json"),
        (&checkpoints, "it has checkpoints"),
    ] {
        for command in [
            &["serve", "--listen", "127.0.0.1:0", "--model"][..],
            &["eval", "--data", &rows, "--model"],
            &["predict", "--out", "-", "--data", &rows, "--model"],
        ] {
            refused(common::forebay(command).arg(folder), &["is not a model folder", words]);
        }
    }
}

#[test]
fn a_place_that_cannot_hold_a_model_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "dear").unwrap();
    let inside = dir.path().join("file/model");
    let long = dir.path().join("x".repeat(300));
    // Not even root makes a folder in /proc.
    for place in [Path::new("/proc/nowhere/model"), &inside, &long] {
        let setting = format!("output.model={}", place.display());
        let words = "nothing is trained, because the model could not be saved at output.model";
        refused(&mut train(dir.path(), &[&setting]), &[words]);
        let rows = format!("data.train={}", dir.path().join("parquet-0").display());
        let mut launch = common::forebay(&["launch", "--set", "placement.readers=1"]);
        refused(launch.current_dir(dir.path()).args(["--set", &rows, "--set", &setting]), &[words]);
    }
    // Something else is where the model of a drained run would go.
    let (_, setting) = output(dir.path());
    fs::create_dir(dir.path().join("model.partial")).unwrap();
    fs::write(dir.path().join("model.partial/letters"), "dear").unwrap();
    refused(&mut train(dir.path(), &[&setting]), &["model.partial", "not a model"]);
    assert!(train(dir.path(), &[&setting, "output.on_drain=replace"]).output().unwrap().status.success());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "rows, the file, the model and model.partial: {left:?}");
}

/// A Parquet file with these columns.
fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    common::write_parquet(path, &batch);
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
        refused(
            command.arg(format!("data.eval={}", path(name).display())),
            &["could not be evaluated on data.eval", words],
        );
    }
    let mut command = common::forebay(&["train"]);
    command.arg(&job).args(["--set", "model.kind=lr", "--set"]);
    let eval = format!("data.eval={}", path("train.parquet").display());
    common::exits(0, common::ended(command.arg(eval)), &["evaluated on"]);
}

#[test]
fn a_model_does_not_replace_a_folder_with_the_manifest_of_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    fs::create_dir(&model).unwrap();
    for manifest in [r#"{ "format": "forebay export", "version": 1 }"#, r#"{ "name": "a web page" }"#] {
        fs::write(model.join("manifest.json"), manifest).unwrap();
        let (code, text) = common::ended(&mut train(dir.path(), &[&setting]));
        assert!(code == Some(2) && text.contains("it holds something that is not a model"), "{text}");
        assert_eq!(fs::read_to_string(model.join("manifest.json")).unwrap(), manifest);
    }
}

/// A bug: after a kill while a store without renames replaced or removed a model, no later run could write one there.
#[test]
fn a_model_replaces_the_rest_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let table = model.join("tables/embedding");
    fs::create_dir_all(&table).unwrap();
    fs::write(table.join("shard-0007.parquet"), "half").unwrap();
    common::exits(0, common::ended(&mut train(dir.path(), &[&setting])), &[]);
    Model::load(model, 1).unwrap();
}

#[test]
fn a_model_whose_place_is_taken_during_the_training_is_saved_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letters"), "dear").unwrap();
    // A run may be over before its place is taken: then a longer one.
    let taken = (0..6).find_map(|attempt| {
        let epochs = format!("data.epochs={}", 1000 << attempt);
        let mut run = train(dir.path(), &[&setting, &epochs]);
        let mut run = common::Background::start(run.args(["--dashboard", "127.0.0.1:0"]));
        // The place is tried after the plan is printed, and before the first row.
        run.has_trained(1.0);
        let is_taken = fs::rename(&other, &model).is_ok();
        let ended = run.wait();
        if !is_taken {
            fs::remove_dir_all(&model).unwrap();
        }
        is_taken.then_some(ended)
    });
    let text = common::exits(2, taken.expect("every run was over before its place was taken"), &[]);
    let beside = dir.path().join("model.rescued");
    assert!(text.contains("it holds something that is not a model"), "{text}");
    assert!(text.contains(&format!("the model was saved at {} instead", beside.display())), "{text}");
    assert_eq!(Model::load(beside, 1).unwrap().training.unwrap().ended, RunEnd::Complete);
    assert_eq!(fs::read_to_string(model.join("letters")).unwrap(), "dear");
}

#[test]
fn a_job_without_a_place_for_the_model_warns_before_and_says_so_after() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = common::ended(&mut train(dir.path(), &[]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the model will not be saved: the job has no output.model"), "{text}");
    assert!(text.contains("the model was not saved: the job has no output.model"), "{text}");
    let (_, setting) = output(dir.path());
    let (_, text) = common::ended(&mut train(dir.path(), &[&setting]));
    assert!(text.contains("saved") && !text.contains("not saved") && !text.contains("not be saved"), "{text}");
}

#[test]
fn runs_that_write_one_model_at_once_leave_one_of_them_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (model, setting) = output(dir.path());
    for _ in 0..3 {
        let runs: Vec<_> = (0..3).map(|_| common::Background::start(&mut train(dir.path(), &[&setting]))).collect();
        for run in runs {
            common::exits(0, run.wait(), &[]);
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
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    disk.fill_but(16384);
    let report = dir.path().join("report.json");
    let setting = format!("output.model={}", disk.0.join("model").display());
    let output = train(dir.path(), &[&setting]).arg("--report").arg(&report).output().unwrap();
    let (code, text) = common::code_and_output(&output);
    // The model is elsewhere.
    assert_eq!(code, Some(2), "{text}");
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 1, "nothing is left behind but what filled the disk");
    assert!(fs::read_to_string(&report).unwrap().starts_with('{'));
    assert!(text.contains("the disk is full") && text.contains("trained on 2,000 rows"), "{text}");
}

/// A disk that becomes full at any write leaves the old output unchanged and nothing behind.
#[test]
fn a_full_disk_leaves_every_old_output_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let on = |name: &str| disk.0.join(name).display().to_string();
    let done = |command: &mut Command| {
        common::exits(0, common::ended(command), &[]);
    };
    // Models off the disk, with other weights, so that every output differs from the older one.
    let model = |seed: u32| {
        let place = dir.path().join(format!("model-{seed}")).display().to_string();
        done(&mut train(
            dir.path(),
            &[&format!("output.model={place}"), "train.batch_rows=64", &format!("data.epochs={seed}")],
        ));
        place
    };
    let models = [model(1), model(2), model(3)];
    let program = |args: &[&str]| {
        let mut command = common::forebay(args);
        command.stdin(Stdio::null());
        command
    };
    let delta = |n: usize, to: &str| {
        program(&["export", "--model", &models[n + 1], "--delta-from", &models[0], "--to", to, "--replace"])
    };
    type Write<'a> = Box<dyn Fn(usize) -> Command + 'a>;
    let writes: [(&str, Write<'_>); 4] = [
        (
            "model",
            Box::new(|n| {
                let (place, epochs) = (format!("output.model={}", on("model")), format!("data.epochs={}", n + 1));
                train(dir.path(), &[&place, "train.batch_rows=64", &epochs])
            }),
        ),
        ("export", Box::new(|n| program(&["export", "--model", &models[n], "--to", &on("export"), "--replace"]))),
        ("delta", Box::new(|n| delta(n, &on("delta")))),
        (
            "merged",
            Box::new(|n| {
                let place = dir.path().join(format!("delta-{n}")).display().to_string();
                done(&mut delta(n, &place));
                program(&["export", "--model", &models[0], "--apply", &place, "--to", &on("merged"), "--replace"])
            }),
        ),
    ];
    for (name, write) in &writes {
        done(&mut write(0));
        let (old, before) = (disk.contents(name), fs::read_dir(&disk.0).unwrap().count());
        let bytes: usize = old.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes > 10_000, "{name}: {bytes} bytes");
        for left in [0, 4096, bytes as u64 / 2] {
            disk.fill_but(left);
            let (code, text) = common::ended(&mut write(1));
            disk.empty();
            // A finished model is saved off the disk.
            let expected = if text.contains("was saved at") { 2 } else { 3 };
            assert_eq!(code, Some(expected), "{name}, {left} bytes left: {text}");
            assert!(text.contains("the disk is full"), "{name}, {left} bytes left: {text}");
            assert!(disk.contents(name) == old, "{name}, {left} bytes left: the old one has changed");
            assert_eq!(fs::read_dir(&disk.0).unwrap().count(), before, "{name}, {left} bytes left: something stays");
        }
        done(&mut write(1));
        assert!(disk.contents(name) != old, "{name} is written when there is space again");
    }
}

/// A bug: an empty page stayed.
#[test]
fn a_full_disk_leaves_no_part_of_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let pages = disk.0.join("man");
    disk.fill_but(16384);
    let ended = common::ended(&mut common::forebay(&["man", pages.to_str().unwrap()]));
    let text = common::exits(3, ended, &["the disk is full"]);
    assert!(!pages.exists(), "{text}");
}

/// A bug: the file ended within a row.
#[test]
fn bad_rows_on_a_full_disk_end_with_a_whole_row() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let bad = format!("1,oops,{}\n", "7".repeat(90)).repeat(500);
    fs::write(dir.path().join("rows.csv"), format!("label,x,c\n1,0.5,7\n0,0.5,8\n{bad}")).unwrap();
    let folder = disk.0.join("bad").display().to_string();
    disk.fill_but(8192);
    let settings = [
        "data.train=rows.csv",
        "columns.dense=['x']",
        "columns.slots=['c']",
        &format!("data.on_bad_row={{ write_to = {folder:?} }}"),
    ];
    let ended = common::ended(&mut train(dir.path(), &settings));
    let text = common::exits(0, ended, &["trained on 2 rows", "bad rows could not be written to the file of bad rows"]);
    let written = fs::read_to_string(disk.0.join("bad/rejected.tsv")).unwrap();
    assert!(written.ends_with('\n'), "{text}");
    let lines = written.lines().count();
    assert!(text.contains(&format!("; {} bad rows could not be written", 500 - lines)), "{lines} lines: {text}");
}

/// The same for checkpoints: the run goes on, and so does a compaction's folder.
#[test]
fn a_full_disk_leaves_checkpoints_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(dir.path().join("disk")) else { return };
    let to = disk.0.join("checkpoints").display().to_string();
    let settings = [
        &format!("checkpoint.to={to}"),
        // By rows: on a slow machine many more by time would not fit.
        "checkpoint.rows=10000",
        // However many there are, the newest is one of changes.
        "checkpoint.full_every=1000",
        "train.batch_rows=8",
        "train.threads=1",
    ];
    let trained = |epochs: u64, more: &[&str]| {
        let mut command = train(dir.path(), &settings);
        let command = command.args(["--set", &format!("data.epochs={epochs}")]).args(more);
        common::exits(0, common::ended(command), &[])
    };
    let listed =
        |command: &str| common::exits(0, common::ended(&mut common::forebay(&["checkpoint", command, &to])), &[]);
    // Two checkpoints at least: for that a fast machine needs more rows.
    let epochs = (0..8).map(|attempt| 40_u64 << attempt).find(|epochs| {
        let _ = fs::remove_dir_all(&to);
        trained(*epochs, &[]).matches("INFO checkpoint ").count() >= 2
    });
    let epochs = epochs.expect("no run makes two checkpoints");
    assert!(listed("verify").contains("of changes"), "a chain");
    let old = disk.contents("checkpoints");
    for left in [0, 4096, 16384] {
        disk.fill_but(left);
        // More epochs, so that it goes on: so many that a checkpoint is due.
        let fails = |attempt: u32| {
            trained(epochs << attempt, &["--resume"]).contains("a checkpoint failed, and the run goes on")
        };
        assert!((1..8).any(fails), "{left} bytes left: no checkpoint failed");
        let (code, text) = common::ended(&mut common::forebay(&["checkpoint", "compact", &to]));
        disk.empty();
        assert!(code == Some(3) && text.contains("the disk is full"), "{left} bytes left: {code:?} {text}");
        assert!(disk.contents("checkpoints") == old, "{left} bytes left: {text}");
    }
    listed("verify");
    common::exits(0, common::ended(&mut common::forebay(&["checkpoint", "compact", &to])), &[]);
}

/// A bug: the folders above its output stayed.
#[test]
fn a_command_that_fails_leaves_no_folder_that_was_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let at = |name: &str| new.join("deep").join(name).display().to_string();
    let csv = dir.path().join("rows.csv");
    fs::write(&csv, "label,C1\n1,a\n0\n").unwrap();
    let csv = csv.to_str().unwrap();
    let (model, setting) = output(dir.path());
    assert!(train(dir.path(), &[&setting]).output().unwrap().status.success());
    let data = format!("data.train={csv}");
    for field in ["output.model", "checkpoint.to"] {
        let place = format!("{field}={}", at("folder"));
        refused(&mut train(dir.path(), &[&data, &place]), &["has no column"]);
        assert!(!new.exists(), "{field}");
    }
    for (argument, place) in [("--report", "report"), ("--report", "report.json"), ("--tensorboard", "board")] {
        refused(train(dir.path(), &["data.train=/nowhere"]).args([argument, &at(place)]), &["/nowhere"]);
        assert!(!new.exists(), "{argument} {place}");
    }
    let (model, out) = (model.to_str().unwrap(), at("rows"));
    for (arguments, words) in [
        (&["predict", "--model", model, "--data", csv, "--out", &out][..], "has no column"),
        (&["predict", "--model", model, "--data", csv, "--keep", "C1,", "--out", &out], "`C1,` has an empty name"),
        (&["predict", "--model", "/nowhere", "--data", csv, "--out", &out], "/nowhere"),
        (
            &["embed", "--model", model, "--data", csv, "--tower", "item", "--out", &out],
            "no vectors of users and items",
        ),
        (&["export", "--model", "/nowhere", "--to", &out], "/nowhere"),
        (&["data", "convert", csv, "--out", &out], "too few fields"),
    ] {
        refused(&mut common::forebay(arguments), &[words]);
        assert!(!new.exists(), "{arguments:?}");
    }
}
