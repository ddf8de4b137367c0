//! `forebay launch`: all processes of a job, as child processes on this machine.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::{Fault, Job};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::train;
use crate::exit;
use crate::logs::Logs;
use crate::stop::Stop;

/// Run all processes of a job on this machine: forebay launch JOB.toml
///
/// Starts the readers, ps and trainers that the job's [placement] names, with one merged log. They listen on loopback only,
/// with a token of this run. Ctrl-C drains: the run trains on the rows that it has read, then evaluates and saves. A second
/// Ctrl-C stops at once.
#[derive(Args)]
#[command(after_help = "Example:
  forebay launch examples/criteo.toml --set placement.readers=2 --set placement.ps=2")]
pub(crate) struct Launch {
    /// The job file. Default: the default job.
    job: Option<PathBuf>,
    /// Override a field of the job; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The first trainer writes its report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// One process of the run.
struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Launch {
    pub(crate) fn run(self, logs: &Logs) -> Result<(), Fault> {
        let job = train::load(self.job.as_deref(), &self.settings)?;
        job.check()?;
        let stop = Stop::listen()?;
        let token = Token::new()?;
        let mut processes = self.start(&job, logs, &token)?;
        let mut draining = false;
        let mut first_failure = None;
        loop {
            for process in &mut processes {
                process.poll()?;
                if let Some(status) = process.ended
                    && !status.success()
                    && first_failure.is_none()
                {
                    first_failure = Some((process.name.clone(), status));
                }
            }
            if processes.iter().all(|process| process.ended.is_some()) {
                break;
            }
            if !draining && (stop.asked() || cannot_continue(&processes)) {
                draining = true;
                processes.iter().filter(|p| p.ended.is_none()).for_each(|p| p.signal(Signal::TERM));
            }
            wait(Duration::from_millis(50));
        }
        // The first trainer succeeds only if every row is trained on and the model is saved, whichever readers were lost.
        let saved = processes.iter().any(|p| p.name == "trainer 0" && p.ended.is_some_and(|status| status.success()));
        match first_failure {
            Some((name, status)) if !saved => Err(failed(&name, status)),
            _ => Ok(()),
        }
    }

    fn start(&self, job: &Job, logs: &Logs, token: &Token) -> Result<Vec<Process>, Fault> {
        let cannot = |what: &str| Fault::external(format!("cannot {what}"));
        let program = std::env::current_exe().map_err(|e| cannot("find this program").because(e))?;
        // The port was free a moment ago, and the coordinator binds it at once.
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .map_err(|e| cannot("find a free port").because(e))?
            .port();
        let coordinator = format!("127.0.0.1:{port}");
        let placement = &job.placement;
        let roles = [("ps", placement.ps), ("trainer", placement.trainers), ("reader", placement.readers)];
        let mut processes = Vec::new();
        for (role, count) in roles {
            for rank in 0..count {
                let mut command = Command::new(&program);
                command.args(logs.arguments()).args(["role", role]).args(&self.job);
                for setting in &self.settings {
                    command.args(["--set", setting]);
                }
                command
                    .arg("--rank")
                    .arg(rank.to_string())
                    .args(["--coordinator", &coordinator])
                    .args(["--run", "launch"]);
                command.arg("--token-file").arg(&token.file);
                let coordinates = rank == 0 && role == if placement.ps > 0 { "ps" } else { "trainer" };
                command.args(["--listen", if coordinates { &coordinator } else { "127.0.0.1:0" }]);
                if let (Some(report), "trainer", 0) = (&self.report, role, rank) {
                    command.arg("--report").arg(report);
                }
                processes.push(Process::start(format!("{role} {rank}"), command)?);
            }
        }
        Ok(processes)
    }
}

/// Whether the other processes cannot continue: a ps or a trainer was killed, or every reader failed. (A process that fails by
/// itself reports to the coordinator, which ends the others.)
fn cannot_continue(processes: &[Process]) -> bool {
    let is_reader = |p: &&Process| p.name.starts_with("reader");
    let mut readers = processes.iter().filter(is_reader).peekable();
    processes.iter().any(|p| !is_reader(&p) && p.was_killed())
        || readers.peek().is_some() && readers.all(|p| p.ended.is_some_and(|status| !status.success()))
}

impl Process {
    fn start(name: String, mut command: Command) -> Result<Self, Fault> {
        use std::os::unix::process::CommandExt as _;
        // In a process group of its own: Ctrl-C reaches only `launch`, which passes it on once.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Fault::external(format!("cannot start {name}")).because(e))?;
        if let Some(out) = child.stdout.take() {
            merge(&name, out, |line| println!("{line}"));
        }
        if let Some(err) = child.stderr.take() {
            merge(&name, err, |line| eprintln!("{line}"));
        }
        Ok(Self { name, child, ended: None })
    }

    fn poll(&mut self) -> Result<(), Fault> {
        if self.ended.is_none() {
            let status = self.child.try_wait();
            self.ended = status.map_err(|e| Fault::external(format!("cannot wait for {}", self.name)).because(e))?;
        }
        Ok(())
    }

    /// Ended by a signal or a panic, so it reported nothing to the coordinator.
    fn was_killed(&self) -> bool {
        let reported = [exit::USER, exit::EXTERNAL, exit::INTERNAL].map(i32::from);
        self.ended
            .is_some_and(|status| !status.success() && !status.code().is_some_and(|code| reported.contains(&code)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Prints each line with the name of its process, on a thread of its own.
fn merge(name: &str, from: impl std::io::Read + Send + 'static, print: fn(std::fmt::Arguments<'_>)) {
    let name = format!("{name:<10}");
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            print(format_args!("{name} | {line}"));
        }
    });
}

/// The token of this run, in a file that is removed when the run ends.
struct Token {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Token {
    fn new() -> Result<Self, Fault> {
        use std::io::Read as _;
        let cannot = |e: std::io::Error| Fault::external("cannot make a token for the run").because(e);
        let mut bytes = [0_u8; 32];
        std::fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).map_err(cannot)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = tempfile::Builder::new().prefix("forebay-").tempdir().map_err(cannot)?;
        let file = folder.path().join("token");
        std::fs::write(&file, token).map_err(cannot)?;
        Ok(Self { file, _folder: folder })
    }
}

fn failed(name: &str, status: ExitStatus) -> Fault {
    let what = format!("{name} ended with {status}: its last lines say why");
    match status.code().map(|code| code as u8) {
        Some(exit::USER) => Fault::user(what),
        Some(exit::EXTERNAL) | None => Fault::external(what),
        Some(_) => Fault::internal(what),
    }
}

/// The program's own thread may sleep: no arbiter runs on it.
#[allow(clippy::disallowed_methods)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}
