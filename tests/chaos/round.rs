//! One run of `forebay launch` whose processes are killed and stopped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay::actors::commas;
use forebay_base::SplitMix64;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ROWS;
use super::bits::Bits;

/// A round that lasts longer hangs.
const LONG: Duration = Duration::from_secs(180);

/// What does not depend on what happens.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Promise {
    /// Every number of the model.
    Bits,
    /// Which rows are trained on, and how often: the job trains a table that counts them.
    Rows,
}

/// Settings of a job whose table counts rows, exactly and in any order: the steps are so small that every gradient is that of a
/// new model, a power of two.
const COUNTS: [&str; 4] = [
    "data.epochs=4",
    "model.kind=lr",
    "table.linear_optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
    "train.optimizer={kind=\"sgd\",lr=8.673617379884035e-19}",
];

pub(crate) struct Placement {
    pub(crate) promises: Promise,
    pub(crate) settings: &'static [&'static str],
}

pub(crate) struct Round<'a> {
    pub(crate) seed: u64,
    pub(crate) rows: &'a Path,
    pub(crate) placement: &'a Placement,
}

/// How a round ended.
pub(crate) struct Done {
    pub(crate) model: Bits,
    pub(crate) log: String,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    /// Attempts of the run after the first.
    pub(crate) attempts: usize,
    pub(crate) seconds: f64,
}

/// A run, and where it writes.
struct Launched {
    child: Child,
    log: PathBuf,
    folder: TempDir,
}

impl Round<'_> {
    /// The model of a run in which nothing dies.
    pub(crate) fn undisturbed(&self) -> Bits {
        let mut calm = self.launch(false);
        calm.until_ended(self.seed);
        Bits::read(&calm.folder.path().join("model"))
    }

    /// Runs, with one to four kills at random times, and some processes stopped for a moment.
    pub(crate) fn run(&self, random: &mut SplitMix64) -> Done {
        let begun = Instant::now();
        let mut run = self.launch(true);
        let (mut kills, mut stops) = (0, 0);
        // On a loaded machine they come late.
        while run.processes().is_empty() && run.child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        for _ in 0..1 + random.next_u64() % 4 {
            std::thread::sleep(Duration::from_millis(200 + random.next_u64() % 2000));
            let processes = run.processes();
            if processes.is_empty() || run.child.try_wait().unwrap().is_some() {
                break;
            }
            let victim = processes[random.next_u64() as usize % processes.len()];
            if random.next_u64().is_multiple_of(4) {
                stops += usize::from(kill_process(victim, Signal::STOP).is_ok());
                std::thread::sleep(Duration::from_millis(random.next_u64() % 2000));
                let _ = kill_process(victim, Signal::CONT);
            } else {
                kills += usize::from(kill_process(victim, Signal::KILL).is_ok());
            }
        }
        let log = run.until_ended(self.seed);
        let epochs = if self.placement.promises == Promise::Rows { 4 } else { 1 };
        let counted = format!("all processes: {} rows trained on, 0 rejected", commas(epochs * ROWS));
        assert!(log.contains(&counted), "seed {}: not {counted:?} in\n{log}", self.seed);
        let attempts = log.matches("the run begins anew").count();
        let model = Bits::read(&run.folder.path().join("model"));
        Done { model, log, kills, stops, attempts, seconds: begun.elapsed().as_secs_f64() }
    }

    fn launch(&self, checkpoints: bool) -> Launched {
        let folder = TempDir::new().unwrap();
        let mut settings = vec![
            format!("data.train={}", self.rows.display()),
            format!("output.model={}", folder.path().join("model").display()),
        ];
        let small = ["seed=9", "model.embedding_dim=4", "model.hidden=[16]", "train.batch_rows=512", "train.threads=1"];
        let counts: &[&str] = if self.placement.promises == Promise::Rows { &COUNTS } else { &[] };
        settings.extend(small.iter().chain(counts).chain(self.placement.settings).map(|setting| (*setting).to_owned()));
        if checkpoints {
            settings.push(format!("checkpoint.to={}", folder.path().join("checkpoints").display()));
            settings.push("checkpoint.rows=50000".to_owned());
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("launch");
        for setting in &settings {
            command.args(["--set", setting]);
        }
        let log = folder.path().join("log");
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Launched { child: command.spawn().unwrap(), log, folder }
    }
}

impl Launched {
    /// The processes that `launch` has started and that still run.
    fn processes(&self) -> Vec<Pid> {
        let launch = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{launch}/task/{launch}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Waits for the end. Returns the log.
    fn until_ended(&mut self, seed: u64) -> String {
        let begun = Instant::now();
        loop {
            let said = || String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned();
            match self.child.try_wait().unwrap() {
                Some(status) if status.success() => return said(),
                Some(status) => panic!("seed {seed}: launch ended with {status}\n{}", said()),
                None if begun.elapsed() > LONG => panic!("seed {seed}: it hangs\n{}", said()),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
