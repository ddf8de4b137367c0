//! Jobs with checkpoints, and their processes.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;

use super::bits::Bits;
use super::common;

/// The deadline of every wait.
const LONG: Duration = Duration::from_secs(120);

pub(crate) const ROWS: u64 = 250_000;

/// A setting of a run that is over only when the test ends it, however fast the machine is.
pub(crate) const ENDLESS: &str = "data.epochs=100000";

/// Rows as Parquet or as text, made once.
pub(crate) fn rows(format: &str) -> PathBuf {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let folder = MADE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        for format in ["parquet", "criteo"] {
            let (rows, out) = (ROWS.to_string(), folder.path().join(format));
            synth(&["--rows", &rows, "--group-rows", "8192", "--format", format], &out);
        }
        folder
    });
    folder.path().join(format)
}

/// Makes rows at `out`, with `forebay data synth`.
pub(crate) fn synth(options: &[&str], out: &Path) {
    let args = [&["data", "synth", "--out", out.to_str().unwrap()][..], options].concat();
    common::exits(0, common::run(&args), &[]);
}

/// A run of `forebay train` in a folder of its own.
pub(crate) struct Job {
    pub(crate) folder: TempDir,
    settings: Vec<String>,
    /// The run has more epochs than the settings say if a run that was stopped had begun more.
    least_epochs: Cell<u64>,
}

/// How a process ended.
pub(crate) struct Ended {
    /// `None`: by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Ended {
    /// Asserts that it ended with this code.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.said);
        self
    }

    /// Asserts that its output has these words.
    #[track_caller]
    pub(crate) fn saying(self, words: &[&str]) -> Self {
        for words in words {
            assert!(self.said.contains(words), "no {words:?} in: {}", self.said);
        }
        self
    }
}

impl Job {
    /// A small Wide & Deep job, with a checkpoint every 10,000 rows.
    pub(crate) fn new(format: &str, more: &[&str]) -> Self {
        let (mut job, rows) = (Self::without_checkpoints(&[]), rows(format));
        job.settings.push(format!("data.train={}", rows.display()));
        job.settings.push(format!("checkpoint.to={}", job.checkpoints().display()));
        job.set(&["checkpoint.rows=10000", "data.epochs=2"]);
        job.set(more);
        job
    }

    /// A small Wide & Deep job over rows that `more` names.
    pub(crate) fn without_checkpoints(more: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let settings = vec![format!("output.model={}", folder.path().join("model").display())];
        let mut job = Self { folder, settings, least_epochs: Cell::new(0) };
        job.set(&["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=256", "train.threads=1"]);
        job.set(more);
        job
    }

    pub(crate) fn set(&mut self, settings: &[&str]) {
        self.settings.extend(settings.iter().map(|setting| (*setting).to_owned()));
    }

    /// The same job in a folder of its own, without checkpoints.
    pub(crate) fn undisturbed(&self) -> Self {
        let (folder, settings) = (TempDir::new().unwrap(), self.settings.clone());
        let mut job = Self { folder, settings, least_epochs: self.least_epochs.clone() };
        let model = format!("output.model={}", job.folder.path().join("model").display());
        let to = format!("checkpoint.to={}", job.checkpoints().display());
        job.set(&[&model, &to, "checkpoint.rows=1000000000"]);
        job
    }

    /// How often the run reads its rows.
    pub(crate) fn epochs(&self) -> u64 {
        let set = self.settings.iter().rev().find_map(|setting| setting.strip_prefix("data.epochs="));
        set.map_or(1_u64, |epochs| epochs.parse().unwrap()).max(self.least_epochs.get())
    }

    /// A command of the program with the settings of the job.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = common::forebay(&[name]);
        let epochs = format!("data.epochs={}", self.epochs());
        command.args(self.settings.iter().chain([&epochs]).flat_map(|setting| ["--set", setting]));
        command
    }

    pub(crate) fn start(&self, flags: &[&str]) -> Running {
        self.start_with(flags, &[])
    }

    /// Starts the program with further settings.
    pub(crate) fn start_with(&self, flags: &[&str], more: &[&str]) -> Running {
        let mut command = self.command("train");
        command.args(flags).args(more.iter().flat_map(|setting| ["--set", setting]));
        self.spawn(command)
    }

    /// Starts the program. It cannot write files of more than this many KiB, until [`Running::lift_limit`].
    pub(crate) fn start_limited(&self, most_kib: u64) -> Running {
        self.spawn(self.limited_command(most_kib))
    }

    /// The command of [`start_limited`](Self::start_limited).
    pub(crate) fn limited_command(&self, most_kib: u64) -> Command {
        let job = self.command("train");
        let mut command = Command::new("bash");
        command.args(["-c", &format!(r#"ulimit -S -f {most_kib}; exec "$0" "$@""#)]);
        command.arg(job.get_program()).args(job.get_args());
        command
    }

    /// Starts any command, with its output in a file.
    pub(crate) fn spawn(&self, mut command: Command) -> Running {
        let log = tempfile::NamedTempFile::new_in(self.folder.path()).unwrap().into_temp_path().keep().unwrap();
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Running { child: command.spawn().unwrap(), log, begun: Instant::now() }
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, flags: &[&str]) -> Ended {
        self.start(flags).end()
    }

    /// Runs `train` or `launch` to its end.
    pub(crate) fn run_command(&self, name: &str, flags: &[&str]) -> Ended {
        let mut command = self.command(name);
        command.args(flags);
        self.spawn(command).end()
    }

    /// Starts an endless run, and kills it once there is a checkpoint of this number. Returns what it said. See
    /// [`go_beyond`](Self::go_beyond).
    pub(crate) fn kill_after(&self, checkpoint: u64, flags: &[&str]) -> String {
        self.stop_after(checkpoint, flags, &[], Signal::KILL, None)
    }

    /// The same with further settings, and the run is asked to shut down.
    pub(crate) fn drain_after(&self, checkpoint: u64, flags: &[&str], more: &[&str]) -> String {
        self.stop_after(checkpoint, flags, more, Signal::TERM, Some(5))
    }

    fn stop_after(&self, checkpoint: u64, flags: &[&str], more: &[&str], by: Signal, code: Option<i32>) -> String {
        let mut running = self.start_with(flags, &[more, &[ENDLESS]].concat());
        self.until_checkpoint(checkpoint, &mut running);
        running.signal(by);
        let ended = running.end();
        assert_eq!(ended.code, code, "{}", ended.said);
        self.go_beyond(&self.checkpoints());
        ended.said
    }

    /// Gives the job so many epochs that a run which continues from the newest checkpoint of this folder has a whole one before it.
    pub(crate) fn go_beyond(&self, checkpoints: &Path) {
        let position = newest_position(checkpoints).expect("a checkpoint");
        let batches = &position["batches"];
        let whole = batches["windows"].as_object().unwrap().keys().map(|epoch| epoch.parse::<u64>().unwrap());
        let open = batches["open"].as_array().unwrap().iter().map(|window| window["epoch"].as_u64().unwrap());
        let newest = whole.chain(open).max().unwrap_or(0);
        self.least_epochs.set(self.least_epochs.get().max(newest + 2));
    }

    /// The rows that the newest checkpoint has; 0: there is none.
    pub(crate) fn rows_of_newest(&self) -> u64 {
        newest_position(&self.checkpoints()).map_or(0, |position| position["rows"].as_u64().unwrap())
    }

    /// Runs a command of `forebay checkpoint` on the job's checkpoints. Returns its exit code and its output.
    pub(crate) fn checkpoint(&self, name: &str, more: &[&str]) -> (Option<i32>, String) {
        let folder = self.checkpoints();
        common::run(&[&["checkpoint", name, folder.to_str().unwrap()], more].concat())
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.folder.path().join("checkpoints")
    }

    /// The names of the checkpoints' files, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        names(&self.checkpoints())
    }

    /// The number of the newest checkpoint; 0: there is none.
    pub(crate) fn newest(&self) -> u64 {
        let number = |name: &String| name.strip_prefix("checkpoint-")?.strip_suffix(".json")?.parse().ok();
        self.files().iter().filter_map(number).max().unwrap_or(0)
    }

    /// The manifest of the newest checkpoint.
    pub(crate) fn newest_manifest(&self) -> PathBuf {
        self.checkpoints().join(format!("checkpoint-{:06}.json", self.newest()))
    }

    /// Waits until there is a checkpoint of this number.
    pub(crate) fn until_checkpoint(&self, number: u64, running: &mut Running) {
        let has_it = self.has_checkpoint_while(number, running);
        assert!(has_it, "it ended before checkpoint {number}: {}", running.said());
    }

    /// Waits until there is a checkpoint of this number, or the run is over. Returns whether there was one first.
    pub(crate) fn has_checkpoint_while(&self, number: u64, running: &mut Running) -> bool {
        let begun = Instant::now();
        while self.newest() < number {
            assert!(begun.elapsed() < LONG, "no checkpoint {number}: {}", running.said());
            if running.child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    pub(crate) fn model(&self) -> Bits {
        Bits::read(&self.folder.path().join("model"))
    }
}

/// Lists a folder: the names of its files, sorted, without hidden files. A folder that does not exist has none.
fn names(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).filter(|n| !n.starts_with('.')).collect();
    names.sort();
    names
}

/// The position of the newest checkpoint in a folder.
fn newest_position(checkpoints: &Path) -> Option<Value> {
    let newest = names(checkpoints).into_iter().rfind(|name| name.starts_with("checkpoint-"))?;
    let mut manifest: Value = common::read_json(checkpoints.join(newest));
    Some(manifest["position"].take())
}

pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    begun: Instant,
}

impl Running {
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    pub(crate) fn until_said(&self, words: &str) {
        let begun = Instant::now();
        while !self.said().contains(words) {
            assert!(begun.elapsed() < LONG, "it did not say {words:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits a moment for more output.
    pub(crate) fn check_runs(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it has ended: {}", self.said());
        assert!(self.begun.elapsed() < LONG, "it takes too long: {}", self.said());
        std::thread::sleep(Duration::from_millis(10));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Lets the process write files of any length.
    pub(crate) fn lift_limit(&self) {
        let no_limit = Rlimit { current: None, maximum: None };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, no_limit).unwrap();
    }

    /// Stops the process (SIGSTOP), and waits until all of its threads stand still, or it has ended.
    pub(crate) fn hold(&self) {
        self.signal(Signal::STOP);
        let (begun, threads) = (Instant::now(), format!("/proc/{}/task", self.child.id()));
        while !std::fs::read_dir(&threads).unwrap().flatten().all(|thread| stands_still(&thread.path())) {
            assert!(begun.elapsed() < LONG, "it does not stand still: {}", self.said());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn end(mut self) -> Ended {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ended { code: status.code(), said: self.said() };
            }
            if begun.elapsed() > LONG {
                let _ = self.child.kill();
                panic!("it did not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether a thread is stopped or has ended. One thread may still write a file when another one is stopped.
fn stands_still(thread: &Path) -> bool {
    // A thread that has ended has no file.
    let status = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
}

/// A test that fails leaves no process behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
