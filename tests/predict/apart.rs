//! Predictions whose rows other processes read: the same rows in the same order as in one process, after the loss of any reader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, Int32Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use forebay::connectors::convert::to_csv;
use forebay::net::SecurityFiles;
use forebay::pipelines::Context;
use forebay::pipelines::cluster::{ClusterProcess, PredictionPlan, ProcessConfig, Role};
use forebay::pipelines::roles::Reader;

use super::address::free_address;
use super::{arguments, common, copies, model, names, predict, scores, small_model, text_with_a_bad_line, write};

/// The process ids of the processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// The place of the results, where nothing is yet, and a prediction into it that runs. A test starts another one if the prediction was
/// over too soon: the machine may be fast, or the test may have stood still.
struct Running {
    results: PathBuf,
    run: common::Background,
}

impl Running {
    fn start(dir: &Path, model: &Path, data: &Path, more: &[&str]) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_forebay")), dir, model, data, more)
    }

    /// The same with this file of the program.
    fn start_program(program: &Path, dir: &Path, model: &Path, data: &Path, more: &[&str]) -> Self {
        let results = dir.join("results");
        // The results of the try before.
        let _ = fs::remove_dir_all(&results);
        fs::create_dir(&results).unwrap();
        let out = results.join("scores");
        let mut command = Command::new(program);
        command.args([&arguments(model, data, &out)[..], more].concat()).env_remove("FOREBAY_LOG");
        let run = common::Background::start(&mut command);
        Self { results, run }
    }

    /// Waits until scores of some rows are written. Returns false if the prediction has ended before.
    fn has_scores(&mut self) -> bool {
        self.run.has_staged(&self.results)
    }
}

/// A reader for the process that listens at `address`.
fn reader(model: &Path, data: &Path, address: &str, rank: &str, more: &[&str]) -> common::Background {
    let arguments = arguments(model, data, Path::new(""));
    let arguments = [&arguments[..5], &["--readers", "2", "--join", address, "--rank", rank], more].concat();
    common::Background::start(&mut common::forebay(&arguments))
}

/// Sends a process a signal. Returns false if it has ended before.
fn signal(process: u32, signal: &str) -> bool {
    Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success()
}

#[test]
fn readers_apart_change_neither_the_rows_nor_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=deep_fm"]);
    let data = copies(&common::parquet(dir.path(), 4000, 10_000), 4);
    let keep = ["--keep", "C3,label,I2"];
    let (expected, _) = predict(&folder, &data, &keep);
    assert_eq!(expected.num_rows(), 40_000);
    for readers in ["1", "2"] {
        let (rows, said) = predict(&folder, &data, &[&keep[..], &["--readers", readers]].concat());
        assert!(said.contains("40,000 rows"), "{said}");
        assert!(rows == expected, "{readers} readers");
    }
    let (rows, _) = predict(&folder, &data, &["--readers", "2"]);
    assert_eq!(rows.num_columns(), 1, "nothing is kept");
    assert_eq!(scores(&rows), scores(&expected));
}

#[test]
fn text_and_output_as_csv_are_the_same_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let rows = common::read_rows(&common::parquet(dir.path(), 4000, 12_000));
    let csv = dir.path().join("csv");
    fs::create_dir(&csv).unwrap();
    for part in 0..6 {
        let mut text = Vec::new();
        to_csv(&rows.slice(part * 2000, 2000), true, &mut text).unwrap();
        fs::write(csv.join(format!("part-{part}.csv")), text).unwrap();
    }
    for data in [csv, common::text(dir.path(), 4000, 12_000)] {
        let printed = |more: &[&str]| {
            let keep = ["--quiet", "--keep", "C1,I3"];
            let arguments = [&arguments(&folder, &data, Path::new("-"))[..], &keep, more].concat();
            let output = common::forebay(&arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            output.stdout
        };
        let expected = printed(&[]);
        assert_eq!(expected.iter().filter(|&&byte| byte == b'\n').count(), 12_001);
        assert!(printed(&["--readers", "2"]) == expected, "{}", data.display());
    }
}

/// Does this to the readers of a prediction when scores of some rows are written: `harm` returns false if it came too late. The prediction
/// must say `expected`, and lose and double no row.
fn readers_survive(harm: impl Fn(&[u32]) -> bool, expected: &str) {
    readers_of_program_survive(|| env!("CARGO_BIN_EXE_forebay").into(), harm, expected);
}

/// The same with the file of the program that `program` returns.
fn readers_of_program_survive(program: impl Fn() -> PathBuf, harm: impl Fn(&[u32]) -> bool, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = copies(&common::parquet(dir.path(), 4000, 20_000), 40);
    let options = ["--keep", "C1,I1", "--set", "placement.lease_seconds=10"];
    let (rows, _) = predict(&folder, &data, &options);
    let survived = (0..20).any(|_| {
        let options = [&options[..], &["--readers", "2"]].concat();
        let mut running = Running::start_program(&program(), dir.path(), &folder, &data, &options);
        running.run.wait_for("all members joined", 1);
        if !running.has_scores() || !harm(&children(running.run.id())) {
            return false;
        }
        let Running { results, run } = running;
        let said = common::exits(0, run.wait(), &[]);
        assert!(common::read_rows(&results.join("scores")) == rows, "{said}");
        said.contains(expected)
    });
    assert!(survived, "no prediction said `{expected}`");
}

#[test]
fn a_reader_that_is_killed_is_started_again_and_no_row_is_lost_or_doubled() {
    let again = "was killed by signal 9 (SIGKILL): starts it again in 0.5 s (restart 1 of 10)";
    readers_survive(|readers| readers.first().is_some_and(|&reader| signal(reader, "-KILL")), again);
}

/// A bug: the prediction ended with "No such file or directory".
#[test]
fn a_reader_is_started_again_if_the_file_of_the_program_was_removed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("scores");
    // A copy would be open for writing in processes that other tests start at the same time, and could not be started then.
    let link = || {
        let _ = fs::remove_file(&program);
        fs::hard_link(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
        program.clone()
    };
    let kill = |readers: &[u32]| {
        fs::remove_file(&program).unwrap();
        readers.first().is_some_and(|&reader| signal(reader, "-KILL"))
    };
    readers_of_program_survive(link, kill, "starts it again in 0.5 s (restart 1 of 10)");
}

#[test]
fn readers_that_all_stand_still_are_killed_and_started_again() {
    readers_survive(|readers| readers.iter().all(|&reader| signal(reader, "-STOP")), "hangs: no sign of life for 10s");
}

#[test]
fn readers_join_from_elsewhere_and_one_reads_the_rows_of_a_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = copies(&common::parquet(dir.path(), 4000, 20_000), 40);
    let (expected, _) = predict(&folder, &data, &["--keep", "C1"]);
    let both = ["--keep", "C1", "--set", "placement.lease_seconds=1"];
    let is_lost = (0..20).any(|_| {
        let address = free_address().to_string();
        let listens = ["--readers", "2", "--listen", &address];
        let mut running = Running::start(dir.path(), &folder, &data, &[&both[..], &listens].concat());
        let [lost, stays] = ["0", "1"].map(|rank| reader(&folder, &data, &address, rank, &both));
        if !running.has_scores() {
            return false;
        }
        lost.signal("-KILL");
        let Running { results, run } = running;
        let said = common::exits(0, run.wait(), &[]);
        assert!(common::read_rows(&results.join("scores")) == expected, "{said}");
        // Reader 0 may have come too late to read anything. And if reader 1 stood still for a second, it may join again when the run is
        // over, and waits for the process that scores.
        let is_lost = |rank: u32| said.contains(&format!("reader {rank} sent no heartbeat"));
        if !is_lost(0) || is_lost(1) {
            return false;
        }
        common::exits(0, stays.wait(), &[]);
        true
    });
    assert!(is_lost, "no reader was lost before the last row");
}

#[test]
fn without_any_reader_a_prediction_ends_with_a_fault_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = copies(&common::parquet(dir.path(), 4000, 20_000), 100);
    let both = ["--set", "placement.lease_seconds=1", "--set", "placement.timeout_seconds=10"];
    let has_failed = (0..20).any(|_| {
        let address = free_address().to_string();
        let listens = ["--readers", "2", "--listen", &address];
        let mut running = Running::start(dir.path(), &folder, &data, &[&both[..], &listens].concat());
        let readers = ["0", "1"].map(|rank| reader(&folder, &data, &address, rank, &both));
        if !running.has_scores() {
            return false;
        }
        readers.iter().for_each(|reader| reader.signal("-KILL"));
        let Running { results, run } = running;
        let (code, said) = run.wait();
        if code == Some(0) {
            return false;
        }
        assert!(code == Some(3) && said.contains("there has been no reader for"), "{code:?} {said}");
        assert_eq!(names(&results), Vec::<String>::new());
        true
    });
    assert!(has_failed, "20 predictions were over before their readers were killed");
}

#[test]
fn bad_rows_are_as_in_one_process_and_a_fault_of_a_reader_is_that_of_the_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let data = dir.path().join("data.parquet");
    let list: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
    let ids: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c"), Some("e")]));
    let x: ArrayRef = Arc::new(Float32Array::from(vec![Some(1.0), Some(f32::NAN), None, Some(0.5)]));
    let c: ArrayRef = Arc::new(StringArray::from(vec!["1", "2", "3", "not hex"]));
    write(&data, vec![("x", x), ("c", c), ("list", list), ("id", ids)]);
    let skip = ["--set", "data.on_bad_row=skip", "--keep", "id"];
    let (expected, _) = predict(&model, &data, &skip);
    let (rows, said) = predict(&model, &data, &[&skip[..], &["--readers", "1"]].concat());
    assert_eq!((&rows, scores(&rows).null_count()), (&expected, 2));
    assert!(said.contains("1 row without a score: dense value is not finite"), "{said}");

    let out = dir.path().join("scores");
    let before = names(dir.path());
    for (more, words) in [
        (&["--readers", "1"][..], "row 1 (counted from 0): column `x` is NaN"),
        (&["--readers", "1", "--keep", "idd"], "idd"),
        (&["--readers", "1", "--keep", "score"], "name of the result"),
        (&["--readers", "0"], "0 is not in"),
        (&["--listen", "127.0.0.1:0"], "--readers"),
        (&["--join", "127.0.0.1:1"], "cannot be used with"),
    ] {
        let (code, said) = common::run(&[&arguments(&model, &data, &out)[..], more].concat());
        assert!(code == Some(2) && said.contains(words), "{words}: {code:?} {said}");
        assert_eq!(names(dir.path()), before, "{words}");
    }
}

#[test]
fn lines_that_readers_leave_out_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let file = text_with_a_bad_line(dir.path());
    let (rows, said) = predict(&folder, &file, &["--set", "data.on_bad_row=skip", "--readers", "1"]);
    assert_eq!(rows.num_rows(), 200);
    assert!(said.contains("left out 1 row: the readers say why"), "{said}");
    assert!(said.contains("left out 1 row: too few fields"), "{said}");
}

#[test]
fn a_reader_of_another_prediction_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = common::parquet(dir.path(), 4000, 3000);
    let address = free_address().to_string();
    let listens = ["--keep", "C1", "--readers", "2", "--listen", &address];
    let running = Running::start(dir.path(), &folder, &data, &listens);
    // One with other settings or other rows is refused, and the run goes on.
    let other = common::parquet(dir.path(), 8000, 3000);
    for (data, more) in [(&data, &["--set", "data.read_rows=77"][..]), (&other, &[])] {
        let refused = reader(&folder, data, &address, "0", &[&["--keep", "C1"][..], more].concat());
        common::exits(2, refused.wait(), &["those of `predict` the same --model, --data, --set and --readers"]);
    }
    let readers = ["0", "1"].map(|rank| reader(&folder, &data, &address, rank, &["--keep", "C2,I1"]));
    let Running { results, run } = running;
    let (code, said) = run.wait();
    let words = "a reader sent the kept columns C2, I1, expected C1: start all readers with the same --keep";
    assert!(code == Some(2) && said.contains(words), "{code:?} {said}");
    assert_eq!(names(&results), Vec::<String>::new());
    for reader in readers {
        common::exits(2, reader.wait(), &[words]);
    }
}

#[test]
fn a_signal_ends_the_prediction_and_its_readers() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = copies(&common::parquet(dir.path(), 4000, 20_000), 200);
    let is_stopped = (0..20).any(|_| {
        let mut running = Running::start(dir.path(), &folder, &data, &["--readers", "2"]);
        if !running.has_scores() {
            return false;
        }
        let readers = children(running.run.id());
        running.run.signal("-TERM");
        let Running { results, run } = running;
        let (code, said) = run.wait();
        if code == Some(0) {
            return false;
        }
        assert_eq!(code, Some(5), "{said}");
        assert_eq!(names(&results), Vec::<String>::new());
        assert_eq!(readers.len(), 2);
        assert!(readers.iter().all(|id| !Path::new(&format!("/proc/{id}")).exists()), "{readers:?}");
        // Its end does not wait long for this line: on a busy machine it may be missing.
        said.contains("no scores are written")
    });
    assert!(is_stopped, "20 predictions were over before the signal, or did not say why they end");
}

#[test]
fn a_closed_standard_output_ends_the_readers_without_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = copies(&common::parquet(dir.path(), 4000, 20_000), 50);
    let closed = std::io::pipe().unwrap().1;
    let arguments = [&arguments(&folder, &data, Path::new("-"))[..], &["--readers", "2"]].concat();
    let output = common::forebay(&arguments).stdout(closed).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Lines of readers begin with their name. A reader may warn that it cannot reach the trainer.
    let is_error = |line: &str| line.contains(" ERROR ") || line.rsplit(" | ").any(|said| said.starts_with("error: "));
    assert!(output.status.success() && !said.contains("other readers") && !said.lines().any(is_error), "{said}");
}

#[test]
fn rows_that_are_not_there_are_one_error() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let (nowhere, out) = (dir.path().join("nowhere"), dir.path().join("scores"));
    let (code, said) = common::run(&[&arguments(&model, &nowhere, &out)[..], &["--readers", "2"]].concat());
    assert!(code == Some(2) && said.matches("there is nothing at").count() == 1, "{code:?} {said}");
}

/// A process of a run that listens, or joins, at `address`.
fn process(role: Role, address: &str) -> ClusterProcess {
    let own = if role == Role::Reader { "127.0.0.1:0" } else { address };
    ClusterProcess::new(ProcessConfig {
        role,
        rank: 0,
        listen: own.parse().unwrap(),
        advertise: None,
        coordinator: address.into(),
        run: "predict".into(),
        security: SecurityFiles::default(),
        resume: false,
        drains: false,
        has_checkpoints: false,
        supervised: false,
    })
}

#[test]
fn a_program_reads_apart_and_may_drop_the_predictions() {
    let dir = tempfile::tempdir().unwrap();
    let (model, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = common::parquet(dir.path(), 4000, 20_000);
    let path = data.to_str().unwrap();
    let expected: Vec<RecordBatch> = model.predict(path, &["I1"]).unwrap().map(Result::unwrap).collect();
    for whole in [true, false] {
        let address = free_address().to_string();
        let plan = PredictionPlan::of_model(&model, path, &["I1"], 1).unwrap();
        let mut predictions = model.predict_from_readers(&plan, process(Role::Trainer, &address)).unwrap();
        let (folder, path, at) = (folder.clone(), path.to_owned(), address.clone());
        let reads = std::thread::spawn(move || {
            let context = Context::default();
            let plan = PredictionPlan::of_folder(&folder, &[], path, &["I1"], 1, &context).unwrap();
            process(Role::Reader, &at)
                .take_part(|process| Reader::start_to_predict(&plan, process, &context)?.run(|| false, |_| {}))
        });
        let first = predictions.next().unwrap().unwrap();
        if whole {
            let rest = predictions.by_ref().map(Result::unwrap);
            let all: Vec<RecordBatch> = std::iter::once(first).chain(rest).collect();
            let all = concat_batches(&all[0].schema(), &all).unwrap();
            assert_eq!(all, concat_batches(&expected[0].schema(), &expected).unwrap());
            assert_eq!((predictions.counts().unwrap().rows, predictions.left_out_by_readers()), (20_000, 0));
            assert_eq!(reads.join().unwrap().unwrap().ledger.read, 20_000);
        } else {
            drop(predictions);
            let fault = reads.join().unwrap().unwrap_err().to_string();
            assert!(fault.contains("the rest of the scores is not wanted"), "{fault}");
        }
    }
    let plan = PredictionPlan::of_model(&model, path, &[], 1).unwrap();
    let fault = model.predict_from_readers(&plan, process(Role::Reader, "127.0.0.1:1")).err().unwrap();
    assert!(fault.to_string().contains("reader 0 scores, expected trainer 0"), "{fault}");
}
