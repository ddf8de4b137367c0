//! A run of real processes: `forebay role ...`, on loopback or each on a host of its own, with logs, signals and deadlines.
//!
//! Every wait fails after [`LONG`] with all logs. Dropping a run kills its processes.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::actors::IoRuntime;
use forebay::net::{Dialer, Identity, Limits, Peer, Security};
use forebay::pipelines::cluster::RunStatus;
use futures::executor::block_on;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::address::free_address;
use super::bits::Bits;
use super::hosts::Hosts;
use super::relay::Relay;
use super::trust::{self, Trust};

/// The deadline of every wait.
pub(crate) const LONG: Duration = Duration::from_secs(120);

const MOMENT: Duration = Duration::from_millis(20);

/// What a process says that has waited for others for `placement.timeout_seconds`.
const LATE: &str = "did not join within";

/// The coordinator's port on a host.
const PORT: u16 = 7600;

/// What a process says that was started again when the run had ended.
pub(crate) const AFTER_THE_END: &str = "INFO the run has ended";

/// What a panic says if a run was over, or had not begun in time, before a test did to it what the test is about.
const OVER: &str = "the run was over too soon";

/// Does a test again if the run was over too soon: the machine may be fast, or the test may have stood still. `test` gets the number of
/// the try, from 0.
pub(crate) fn in_time<T>(test: impl Fn(u64) -> T) -> T {
    const TRIES: u64 = 20;
    for number in 0..TRIES - 1 {
        match catch_unwind(AssertUnwindSafe(|| test(number))) {
            Ok(done) => return done,
            Err(panic) if panic.downcast_ref::<String>().is_some_and(|said| said.contains(OVER)) => {}
            Err(panic) => resume_unwind(panic),
        }
    }
    test(TRIES - 1)
}

/// Ends a try of [`in_time`].
pub(crate) fn over_too_soon(log: &str) -> ! {
    panic!("{OVER}: {log}")
}

/// A run of processes.
pub(crate) struct Run {
    // Dropped in this order: processes end before their hosts and their folder are removed.
    processes: Vec<Process>,
    settings: Vec<String>,
    /// The address of the coordinator.
    coordinator: SocketAddr,
    hosts: Option<Arc<Hosts>>,
    trust: Option<Trust>,
    _relay: Option<Relay>,
    peer: Peer,
    folder: TempDir,
}

/// How a process ended.
pub(crate) struct Ended {
    /// `None`: by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
}

struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    code: Option<Option<i32>>,
}

/// The row counts that the first trainer prints at the end of a run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) batches: u64,
    pub(crate) windows: (u64, u64),
    pub(crate) again: u64,
}

impl Run {
    /// Processes on this machine's loopback, without TLS or token.
    pub(crate) fn local(settings: &[String]) -> Self {
        let free = free_address();
        let peer = peer(&Security::none(), &free.to_string());
        Self::new(settings, free, None, None, None, peer)
    }

    /// Processes on hosts named after them ("reader 1" on reader1), with TLS and a token; the coordinator on `first`.
    pub(crate) fn on_hosts(hosts: &Arc<Hosts>, names: &[&str], first: &str, settings: &[String]) -> Self {
        let (folder, hosts) = (TempDir::new().unwrap(), Arc::clone(hosts));
        let trust =
            Trust::new(&folder.path().join("trust"), names.iter().map(|name| hosts[*name].address().to_string()));
        let coordinator = SocketAddr::new(hosts[first].address().into(), PORT);
        let relay = Relay::new(&hosts, first, coordinator);
        let peer = peer(&trust.security(), &relay.address());
        Self { folder, ..Self::new(settings, coordinator, Some(hosts), Some(trust), Some(relay), peer) }
    }

    fn new(
        settings: &[String],
        coordinator: SocketAddr,
        hosts: Option<Arc<Hosts>>,
        trust: Option<Trust>,
        relay: Option<Relay>,
        peer: Peer,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let (processes, settings) = (Vec::new(), settings.to_vec());
        Self { processes, settings, coordinator, hosts, trust, _relay: relay, peer, folder }
    }

    /// Where the coordinator listens.
    pub(crate) fn coordinator(&self) -> SocketAddr {
        self.coordinator
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        self.hosts.as_ref().expect("this run is on loopback")
    }

    /// The folder of this run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the processes of these names.
    pub(crate) fn start(&mut self, names: &[&str]) {
        for name in names {
            self.start_with(name, &[]);
        }
    }

    /// Starts a process as a supervisor does after its end: with `--resume`.
    pub(crate) fn resume(&mut self, name: &str) {
        self.resume_with(name, &[]);
    }

    /// The same with `more` flags.
    pub(crate) fn resume_with(&mut self, name: &str, more: &[&str]) {
        self.start_process(name, more, &["--resume"]);
    }

    /// Starts "reader 1", or "reader 1@spare": the same rank on the host `spare`, or a second process of it. `more` overrides
    /// the flags that every process is given.
    pub(crate) fn start_with(&mut self, name: &str, more: &[&str]) {
        self.start_process(name, more, &[]);
    }

    fn start_process(&mut self, name: &str, more: &[&str], switches: &[&str]) {
        assert!(self.processes.iter().all(|process| process.name != name), "{name} was started before: add @something");
        let (process, place) = name.split_once('@').unwrap_or((name, ""));
        let (role, rank) = process.split_once(' ').expect("a name is a role and a rank");
        let host = if place.is_empty() { process.replace(' ', "") } else { place.to_owned() };
        let program = env!("CARGO_BIN_EXE_forebay");
        let (mut command, here) = match &self.hosts {
            Some(hosts) => (hosts[host.as_str()].command(program), hosts[host.as_str()].address().into()),
            None => (Command::new(program), self.coordinator.ip()),
        };
        let listen = SocketAddr::new(here, if self.is_first(process) { self.coordinator.port() } else { 0 });
        let mut flags = vec![("--rank", rank.to_owned()), ("--coordinator", self.coordinator.to_string())];
        flags.push(("--listen", listen.to_string()));
        let trust = self.trust.iter().flat_map(|trust| trust::flags(&trust.files)).collect::<Vec<_>>();
        let mut args: Vec<String> =
            flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).chain(trust).collect();
        for pair in more.chunks(2) {
            if let Some(at) = args.iter().position(|arg| *arg == pair[0]) {
                args.drain(at..at + 2);
            }
        }
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        command.args(["role", role]).args(args).args(switches);
        self.start_command(name, command);
    }

    /// Starts `command` with the settings of the job.
    pub(crate) fn start_command(&mut self, name: &str, mut command: Command) {
        for setting in self.settings.iter().chain([&format!("output.model={}", self.model_folder().display())]) {
            command.args(["--set", setting]);
        }
        let log = self.folder.path().join(format!("{name}.log"));
        self.processes.push(Process::start(name, command, log));
    }

    fn is_first(&self, process: &str) -> bool {
        let has_ps = self.settings.iter().any(|s| s.starts_with("placement.ps=") && s != "placement.ps=0");
        process == if has_ps { "ps 0" } else { "trainer 0" }
    }

    fn model_folder(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// The status of the run. `None`: the coordinator does not answer.
    pub(crate) fn status(&self) -> Option<RunStatus> {
        block_on(self.peer.action("coordinator.status", &(), Duration::from_secs(5))).ok()
    }

    /// Waits until the status of the run fulfils `holds`.
    pub(crate) fn until_status(&mut self, what: &str, mut holds: impl FnMut(&RunStatus) -> bool) -> RunStatus {
        self.until(what, |run| run.status().filter(|status| holds(status)))
    }

    /// Waits until `done` windows are done. Fails with [`over_too_soon`] if that are all.
    pub(crate) fn until_windows(&mut self, done: u64) -> RunStatus {
        let status = self.until(&format!("{done} windows are done"), |run| {
            let names: Vec<String> = run.processes.iter().map(|process| process.name.clone()).collect();
            names.iter().for_each(|name| run.must_go_on(name));
            run.status().filter(|status| status.windows_done >= done)
        });
        if status.windows_done == status.windows_total {
            self.fail(OVER);
        }
        status
    }

    /// Fails if a process has ended by itself; with [`over_too_soon`] if the run is over or has not begun in time.
    pub(crate) fn must_go_on(&mut self, name: &str) {
        let Some(Ended { code: Some(code), log }) = self.process(name).ended() else { return };
        let why = if code == 0 || log.contains(LATE) { OVER } else { "it must go on" };
        self.fail(&format!("{name} has ended: {why}"));
    }

    /// Waits until the output of a process contains this. Returns all its output.
    pub(crate) fn until_said(&mut self, name: &str, words: &str) -> String {
        self.until_said_times(name, words, 1)
    }

    /// Waits until the output of a process contains this `times` times. Returns all its output.
    pub(crate) fn until_said_times(&mut self, name: &str, words: &str, times: usize) -> String {
        self.until(&format!("{name} says {words:?} {times} times"), |run| {
            let has_ended = run.process(name).ended().is_some();
            let said = Some(run.process(name).said()).filter(|said| said.matches(words).count() >= times);
            if has_ended && said.is_none() {
                run.must_go_on(name);
            }
            said
        })
    }

    /// Waits until a process has ended.
    pub(crate) fn ended(&mut self, name: &str) -> Ended {
        self.until(&format!("{name} has ended"), |run| run.process(name).ended())
    }

    /// The same, if it may be a process that has started so late that the run is over: then it fails with [`over_too_soon`].
    pub(crate) fn ended_in_time(&mut self, name: &str) -> Ended {
        let first = if self.is_first("ps 0") { "ps 0" } else { "trainer 0" };
        self.until(&format!("{name} has ended"), |run| {
            let is_first = |process: &&mut Process| process.name.split('@').next() == Some(first);
            let coordinator = run.processes.iter_mut().rfind(is_first);
            let is_over = coordinator.and_then(Process::ended).is_some_and(|ended| ended.code.is_some());
            let ended = run.process(name).ended();
            let last = run.process(name).said().lines().next_back().map(str::to_owned).unwrap_or_default();
            if is_over && ended.is_none() && last.contains("waiting for the coordinator at") {
                run.fail(&format!("{name} came too late: {OVER}"));
            }
            ended
        })
    }

    /// Waits until these have ended with exit code 0. Returns their output.
    pub(crate) fn end_well(&mut self, names: &[&str]) -> Vec<String> {
        let mut logs = Vec::new();
        for name in names {
            let Ended { code, log } = self.ended_in_time(name);
            if log.contains(AFTER_THE_END) {
                self.fail(&format!("{name} came too late: {OVER}"));
            }
            if code != Some(0) {
                self.fail(&format!("{name} ended with {code:?}"));
            }
            logs.push(log);
        }
        logs
    }

    /// Waits until a process has ended with this exit code, and checks its output.
    pub(crate) fn end_with(&mut self, name: &str, code: i32, words: &str) {
        let ended = self.ended(name);
        if ended.code != Some(code) || !ended.log.contains(words) {
            let why = if ended.code == Some(0) || ended.log.contains(LATE) { OVER } else { "a fault" };
            self.fail(&format!("{name} ended with {:?}, expected {code} and {words:?}: {why}", ended.code));
        }
    }

    /// Whether a process runs.
    pub(crate) fn runs(&mut self, name: &str) -> bool {
        self.process(name).ended().is_none()
    }

    /// The id of a process.
    pub(crate) fn id(&mut self, name: &str) -> u32 {
        self.process(name).child.id()
    }

    /// Kills a process.
    pub(crate) fn kill(&mut self, name: &str) {
        self.process(name).signal(Signal::KILL);
        self.ended(name);
        self.must_go_on(name);
    }

    /// Sends a signal to a process.
    pub(crate) fn signal(&mut self, name: &str, signal: Signal) {
        self.process(name).signal(signal);
    }

    /// Stops a process (SIGSTOP): its connections stay.
    pub(crate) fn hold(&mut self, name: &str) {
        self.process(name).signal(Signal::STOP);
        self.until(&format!("{name} stands still"), |run| {
            run.must_go_on(name);
            run.process(name).stands_still().then_some(())
        });
    }

    /// Lets a stopped process continue.
    pub(crate) fn go_on(&mut self, name: &str) {
        self.process(name).signal(Signal::CONT);
    }

    /// The model that was saved.
    pub(crate) fn model(&self) -> Bits {
        Bits::read(&self.model_folder())
    }

    /// Waits until `found` returns something. Fails with all logs at the deadline.
    pub(crate) fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            if begun.elapsed() > LONG {
                self.fail(&format!("waited {LONG:?} until {what}"));
            }
            std::thread::sleep(MOMENT);
        }
    }

    /// Panics, with all logs.
    pub(crate) fn fail(&mut self, what: &str) -> ! {
        let mut logs = String::new();
        for process in &mut self.processes {
            let (code, said) = (process.ended().map(|ended| ended.code), process.said());
            logs += &format!("=== {} (ended: {code:?})\n{said}\n", process.name);
        }
        panic!("{logs}{what}");
    }

    fn process(&mut self, name: &str) -> &mut Process {
        self.processes
            .iter_mut()
            .find(|process| process.name == name)
            .unwrap_or_else(|| panic!("{name} was not started"))
    }
}

impl Process {
    fn start(name: &str, mut command: Command, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("FOREBAY_")) {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { name: name.to_owned(), child: command.spawn().unwrap(), log, code: None }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    fn ended(&mut self) -> Option<Ended> {
        if self.code.is_none() {
            self.code = self.child.try_wait().unwrap().map(|status| status.code());
        }
        self.code.map(|code| Ended { code, log: self.said() })
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(Ended { code, log }) = self.ended() {
            let why = if code == Some(0) { OVER } else { "it must go on" };
            panic!("{} has ended with {code:?}, {why}: {log}", self.name);
        }
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn stands_still(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ledger {
    /// From the log of the first trainer.
    pub(crate) fn of(log: &str) -> Self {
        let line = log.lines().find_map(|line| line.split_once("all processes: ")).unwrap_or_else(|| panic!("{log}")).1;
        let number = |word: &str| word.replace(',', "").parse::<u64>().ok();
        let numbers: Vec<u64> = line.split(' ').filter_map(number).collect();
        let [rows, rejected, batches, done, windows, again] = numbers[..] else { panic!("{line}") };
        Self { rows, rejected, batches, windows: (done, windows), again }
    }
}

/// The number of rows that a reader printed.
pub(crate) fn rows_read(log: &str) -> u64 {
    let line =
        log.lines().rfind(|line| line.contains("read ") && line.ends_with(" rows")).unwrap_or_else(|| panic!("{log}"));
    line.rsplit(' ').nth(1).unwrap().replace(',', "").parse().unwrap()
}

fn peer(security: &Security, address: &str) -> Peer {
    let identity = Identity { run: "forebay".into(), role: "a test".into(), incarnation: 0, attempt: 1 };
    let io = IoRuntime::new("net", 1);
    Dialer::new(&io, security, &identity, &Limits::default()).unwrap().peer(address).unwrap()
}
