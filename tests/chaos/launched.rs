//! A run of `forebay launch`, which starts its processes again when they die or hang. If it ends with a checkpoint, it is resumed.

use std::fs::OpenOptions;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::LONG;
use super::harm::{Cluster, Harm, Victim};
use super::progress::Watch;

/// A run, and where it writes.
pub(crate) struct Launched {
    child: Child,
    settings: Vec<String>,
    log: PathBuf,
    folder: TempDir,
    /// How often it was resumed.
    pub(crate) resumes: usize,
}

/// The exit code of a run that was asked to shut down, and has its checkpoint.
pub(crate) const DRAINED: i32 = 5;

impl Launched {
    /// Runs the job of these settings. `folder` gets its log.
    pub(crate) fn start(folder: TempDir, settings: &[String]) -> Self {
        let log = folder.path().join("log");
        let child = launch(settings, &[], &log);
        Self { child, settings: settings.to_vec(), log, folder, resumes: 0 }
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(crate) fn watch(&self) -> Watch {
        let log = self.log.clone();
        Watch::new(move || {
            let said = std::fs::read(&log)?;
            TcpStream::connect(newest_dashboard(&String::from_utf8_lossy(&said))?)
        })
    }

    /// Waits for the end. Returns the log.
    pub(crate) fn until_ended(&mut self, seed: u64) -> String {
        let (begun, log) = (Instant::now(), self.log.clone());
        let said = || String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        while !self.is_over() {
            assert!(begun.elapsed() < LONG, "seed {seed}: it hangs\n{}", said());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "seed {seed}: launch ended with {status}\n{}", said());
        said()
    }
}

impl Cluster for Launched {
    fn victims(&self) -> Vec<Victim> {
        let launch = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{launch}/task/{launch}/children")).unwrap_or_default();
        let victim = |id: &str| {
            let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
            let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            let role = words.iter().skip_while(|word| *word != "role").nth(1)?.to_string();
            Some(Victim { name: format!("{role} {id}"), role, id: id.parse().ok()? })
        };
        children.split_whitespace().filter_map(victim).collect()
    }

    fn is_over(&mut self) -> bool {
        match self.child.try_wait().unwrap() {
            Some(status) if status.code() == Some(DRAINED) => {
                self.child = launch(&self.settings, &["--resume"], &self.log);
                self.resumes += 1;
                false
            }
            ended => ended.is_some(),
        }
    }

    fn begin(&mut self, harm: Harm, victim: &Victim) -> bool {
        match harm {
            Harm::Kill => signal(victim, Signal::KILL),
            // It starts none again meanwhile: it waits for half a second first.
            Harm::Term => signal(victim, Signal::TERM),
            Harm::TermAll => kill_process(Pid::from_child(&self.child), Signal::TERM).is_ok(),
            Harm::KillAll => self.victims().iter().filter(|victim| signal(victim, Signal::KILL)).count() > 0,
            _ => signal(victim, Signal::STOP),
        }
    }

    fn end(&mut self, harm: Harm, victim: &Victim) {
        // If `launch` has killed the process meanwhile, the signal reaches nothing, or a new process with its number, which is not stopped.
        if matches!(harm, Harm::Stop | Harm::LongStop) {
            signal(victim, Signal::CONT);
        }
    }
}

/// Starts a run of these settings. Its output goes to the end of `log`.
fn launch(settings: &[String], more: &[&str], log: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    // Another process of the run could take a free port.
    command.args(["launch", "--dashboard", "127.0.0.1:0"]).args(more);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    command.spawn().unwrap()
}

/// The address of the dashboard of the first trainer that was started last, as the whole lines of a log say.
fn newest_dashboard(log: &str) -> io::Result<&str> {
    let mut lines = log.split_inclusive('\n').rev();
    let address = lines.find_map(|line| Some(line.strip_suffix('\n')?.split_once("dashboard at http://")?.1));
    address.ok_or_else(|| io::Error::other("no dashboard yet"))
}

fn signal(victim: &Victim, signal: Signal) -> bool {
    Pid::from_raw(victim.id as i32).is_some_and(|id| kill_process(id, signal).is_ok())
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
