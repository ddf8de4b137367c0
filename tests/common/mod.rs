//! What the whole-system tests share: rows, jobs, and the program.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::disallowed_methods, reason = "tests block their own threads")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use forebay::actors::StageCx;
use forebay::connectors::convert::{ParquetOptions, TextOptions, block_on, to_criteo_text, to_parquet};
use forebay::connectors::{ReadOptions, Synthetic, SyntheticSource};
use forebay::pipelines::Trained;
use forebay::{Job, Training};
use futures::executor::block_on as blocking;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::de::DeserializeOwned;

/// Synthetic rows `first..first + rows` as Parquet with small row groups.
pub(crate) fn parquet(dir: &Path, first: u64, rows: u64) -> PathBuf {
    let folder = dir.join(format!("parquet-{first}"));
    let mut source = synthetic(first, rows);
    let options = ParquetOptions { group_rows: 1024, file_groups: 3, ..ParquetOptions::default() };
    block_on(to_parquet(&mut source, &StageCx::detached("write"), &folder, &options, |_| {}))
        .expect("rows are written");
    folder
}

/// Writes a Parquet file with these rows.
pub(crate) fn write_parquet(path: &Path, rows: &RecordBatch) {
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), rows.schema(), None).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

/// The rows of all Parquet files of a folder, in the order of the files.
pub(crate) fn read_rows(path: &Path) -> RecordBatch {
    let mut files: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "parquet"));
    files.sort();
    read_files(&files)
}

/// The rows of a Parquet file.
pub(crate) fn read_file(path: &Path) -> RecordBatch {
    read_files(&[path.to_owned()])
}

fn read_files(files: &[PathBuf]) -> RecordBatch {
    let batches = files
        .iter()
        .flat_map(|file| ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap());
    let batches: Vec<RecordBatch> = batches.map(Result::unwrap).collect();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// The same as Criteo text.
pub(crate) fn text(dir: &Path, first: u64, rows: u64) -> PathBuf {
    let folder = dir.join(format!("text-{first}"));
    let mut source = synthetic(first, rows);
    let cx = StageCx::detached("write");
    block_on(to_criteo_text(&mut source, &cx, &folder, &TextOptions::default(), |_| {})).expect("rows are written");
    folder
}

fn synthetic(first: u64, rows: u64) -> SyntheticSource {
    SyntheticSource::new(Synthetic { rows, first, seed: 5, cap: 500, ..Synthetic::default() }, ReadOptions::default())
}

/// A small Wide & Deep job over `data`, with settings on top.
pub(crate) fn job(data: &Path, settings: &[&str]) -> Job {
    let mut all = vec![
        format!("data.train={}", data.display()),
        "data.shuffle_rows=3000".to_owned(),
        "data.read_rows=700".to_owned(),
        "model.embedding_dim=6".to_owned(),
        "model.hidden=[24, 12]".to_owned(),
        "train.batch_rows=256".to_owned(),
        "train.threads=1".to_owned(),
    ];
    all.extend(settings.iter().map(|s| (*s).to_owned()));
    Job::from_toml("seed = 9", &all).expect("the job is valid")
}

/// Trains to the end.
pub(crate) fn train(job: Job) -> Trained {
    Training::new(job).expect("the job fits together").run().expect("the run ends well")
}

/// Every number of a model: dense parameters by name, and each key's row.
pub(crate) type Bits = (Vec<(String, Vec<u32>)>, BTreeMap<u64, Vec<u32>>);

pub(crate) fn bits(trained: &Trained) -> Bits {
    let model = &trained.model;
    let to_bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let dense = model.dense.iter().map(|t| (t.name.clone(), to_bits(&t.data))).collect();
    let mut rows = BTreeMap::new();
    for shard in 0..model.table.shards() {
        let mut from = 0;
        loop {
            let page = blocking(model.table.export(shard, from, 1000)).expect("the shards are there");
            if page.keys.is_empty() {
                break;
            }
            from += page.keys.len();
            for (key, row) in page.keys.iter().zip(page.weights.chunks(model.table.row_dim())) {
                assert!(rows.insert(*key, to_bits(row)).is_none(), "key {key} is in two places");
            }
        }
    }
    (dense, rows)
}

/// The program, with arguments.
pub(crate) fn forebay(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).env_remove("FOREBAY_LOG");
    command
}

/// The command as a program that mode bits bind: `root` gives up the capabilities that pass over them. `None`: this machine does not let
/// it.
pub(crate) fn bound_by_modes(command: &Command) -> Option<Command> {
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let without = "--bounding-set=-dac_override,-dac_read_search";
    if is_root && !Command::new("setpriv").args([without, "true"]).status().is_ok_and(|ended| ended.success()) {
        eprintln!("skipped: setpriv cannot drop capabilities");
        return None;
    }
    let mut bound = Command::new(if is_root { "setpriv".as_ref() } else { command.get_program() });
    if is_root {
        bound.arg(without).arg(command.get_program());
    }
    bound.args(command.get_args()).env_remove("FOREBAY_LOG");
    Some(bound)
}

/// Runs the program to its end. Returns its exit code and its output.
pub(crate) fn run(args: &[&str]) -> (Option<i32>, String) {
    ended(&mut forebay(args))
}

/// Runs a command to its end. Returns its exit code and its output.
pub(crate) fn ended(command: &mut Command) -> (Option<i32>, String) {
    code_and_output(&command.output().expect("the program starts"))
}

/// The version of the model at `model` after `train` or `launch` with a job file that saves it there.
pub(crate) fn version_after(command: &str, job: &Path, settings: &[&str], model: &Path) -> String {
    let settings = settings.iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
    exits(0, run(&[&[command, job.to_str().unwrap()][..], &settings].concat()), &[]);
    forebay::Model::load(model, 1).unwrap().version().unwrap().to_string()
}

/// The exit code, and standard output and error as one text.
pub(crate) fn code_and_output(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    (output.status.code(), text)
}

/// Asserts that a program ended with this code, and that its output has these words. Returns the output.
#[track_caller]
pub(crate) fn exits(code: i32, (found, text): (Option<i32>, String), words: &[&str]) -> String {
    assert!(found == Some(code) && words.iter().all(|word| text.contains(word)), "{found:?}, {words:?}: {text}");
    text
}

/// The value in a file of JSON.
pub(crate) fn read_json<T: DeserializeOwned>(path: impl AsRef<Path>) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The AUC of rows that are a label and a score each, pair by pair: the share of pairs of a positive and a negative row whose scores are in
/// the right order, ties counted half. `None` without such pairs.
pub(crate) fn auc_by_pairs(rows: &[(f64, f64)]) -> Option<f64> {
    let with = |label: f64| rows.iter().filter(move |row| row.0 == label).map(|row| row.1);
    let (mut right, mut pairs) = (0.0, 0.0);
    for positive in with(1.0) {
        for negative in with(0.0) {
            pairs += 1.0;
            right += if positive > negative { 1.0 } else { f64::from(u8::from(positive == negative)) / 2.0 };
        }
    }
    (pairs > 0.0).then(|| right / pairs)
}

/// A test fails when it has waited this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// Waits until `holds`; fails at the deadline.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(within_deadline(holds), "not after {DEADLINE:?}: {what}");
}

/// Waits until `holds` or until the deadline. Returns whether it holds.
fn within_deadline(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Whether a folder that is not yet whole, with files besides the probe that a command begins with, is in `dir`.
pub(crate) fn is_staged(dir: &Path) -> bool {
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let partial = names(dir).into_iter().filter(|name| name.contains(".partial-"));
    partial.flat_map(|name| names(&dir.join(name))).any(|file| file != "probe")
}

/// The rows trained on, by the metrics at the address of a dashboard.
fn trained_rows(address: &str) -> Option<f64> {
    let (mut stream, mut text) = (TcpStream::connect(address).ok()?, String::new());
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    stream.read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("forebay_train_rows_total "))?.trim().parse().ok()
}

/// A program that runs while the test goes on. It is killed on drop, so that it does not outlive a test that failed.
pub(crate) struct Background {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let output = Arc::new(Mutex::new(Vec::new()));
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("standard output is piped")),
            Box::new(child.stderr.take().expect("standard error is piped")),
        ];
        let readers = pipes.map(|mut pipe| {
            let output = Arc::clone(&output);
            std::thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(n @ 1..) = pipe.read(&mut part) {
                    output.lock().expect("no reader panics").extend_from_slice(&part[..n]);
                }
            })
        });
        Self { child, output, readers: readers.into() }
    }

    /// What it has written so far to standard output and error.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no reader panics")).into_owned()
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the program is our child").is_none()
    }

    /// Waits until it has written these words, `times` times.
    pub(crate) fn wait_for(&mut self, words: &str, times: usize) {
        let found = within_deadline(|| {
            // The threads that read its last lines may end later than it does.
            let is_over = !self.is_running() && self.readers.iter().all(JoinHandle::is_finished);
            let output = self.output();
            let found = output.matches(words).count() >= times;
            assert!(!is_over || found, "it ended without {words:?}: {output}");
            found
        });
        assert!(found, "no {words:?} after {DEADLINE:?}: {}", self.output());
    }

    /// Waits until the metrics of a training with `--dashboard 127.0.0.1:0` show that it has begun and has trained on this many rows.
    /// Returns false if it has ended before.
    pub(crate) fn has_trained(&mut self, rows: f64) -> bool {
        // The plan is printed after the address, and before the run begins.
        self.wait_for("push", 1);
        let said = self.output();
        let (_, address) = said.split_once("dashboard at http://").expect("the training has a dashboard");
        let address = address.split_whitespace().next().expect("a line has its whole address");
        let mut runs = true;
        until("it trains", || {
            runs = self.is_running();
            !runs || trained_rows(address).is_some_and(|trained| trained >= rows)
        });
        runs
    }

    /// Waits until a folder with files is staged in `dir`: see [`is_staged`]. Returns false if the program has ended before.
    pub(crate) fn has_staged(&mut self, dir: &Path) -> bool {
        let mut staged = false;
        until("files are staged", || {
            let runs = self.is_running();
            staged = is_staged(dir);
            staged || !runs
        });
        staged
    }

    /// Sends it a signal, for instance `-INT`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success(), "{name} was not sent");
    }

    /// Waits until it has ended. Returns its exit code and its output.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        until("the program ends", || !self.is_running());
        self.readers.drain(..).for_each(|reader| reader.join().expect("no reader panics"));
        (self.child.wait().expect("it has ended").code(), self.output())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
