//! A run of `forebay role` processes, each on a host of its own, so that it can be cut off. They have TLS and a token, and what
//! starts them again when they die knows nothing of the run, as Kubernetes does.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::LONG;
use super::harm::{Cluster, Harm, Victim};
use super::hosts::Hosts;
use super::launched::DRAINED;
use super::progress::Watch;
use super::trust::{Trust, flags};

/// The port of the coordinator.
const PORT: u16 = 7600;

/// Where the first trainer shows its metrics, on its own host.
const DASHBOARD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);

/// A process that died is started again after this time.
const RESTART: Duration = Duration::from_millis(500);

pub(crate) struct OnHosts {
    // Processes end before their hosts and their folder are removed.
    processes: Vec<Process>,
    hosts: Arc<Hosts>,
    trust: Trust,
    settings: Vec<String>,
    coordinator: SocketAddr,
    seed: u64,
    folder: TempDir,
    /// How often the run has ended with a checkpoint.
    pub(crate) resumes: usize,
}

struct Process {
    role: &'static str,
    rank: usize,
    child: Child,
    ended: Option<Instant>,
    /// It was asked to shut down, so it is started again also if it has ended with exit code 0.
    told: bool,
    /// It has ended with exit code 0.
    done: bool,
}

impl Process {
    fn host(&self) -> String {
        format!("{}{}", self.role, self.rank)
    }
}

impl OnHosts {
    /// Runs the job of these settings. `folder` gets the logs.
    pub(crate) fn start(folder: TempDir, settings: &[String], seed: u64) -> Self {
        let count = |role: &str, default| {
            let name = format!("placement.{role}=");
            settings.iter().find_map(|setting| setting.strip_prefix(&name)).map_or(default, |n| n.parse().unwrap())
        };
        let roles: [(&str, usize); 3] =
            [("ps", count("ps", 0)), ("trainer", count("trainers", 1)), ("reader", count("readers", 0))];
        let all: Vec<(&str, usize)> =
            roles.into_iter().flat_map(|(role, n)| (0..n).map(move |rank| (role, rank))).collect();
        let names: Vec<String> = all.iter().map(|(role, rank)| format!("{role}{rank}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hosts = Arc::new(Hosts::new(&names));
        let addresses = names.iter().map(|name| hosts[*name].address().to_string());
        let trust = Trust::new(&folder.path().join("trust"), addresses);
        let coordinator = SocketAddr::new(hosts[names[0]].address().into(), PORT);
        let mut run = Self {
            processes: Vec::new(),
            hosts,
            trust,
            settings: settings.to_vec(),
            coordinator,
            seed,
            folder,
            resumes: 0,
        };
        for (role, rank) in all {
            let child = run.spawn(role, rank, false);
            run.processes.push(Process { role, rank, child, ended: None, told: false, done: false });
        }
        run
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    fn log(&self, role: &str, rank: usize) -> PathBuf {
        self.folder.path().join(format!("{role}{rank}.log"))
    }

    fn spawn(&self, role: &str, rank: usize, again: bool) -> Child {
        let host = &self.hosts[format!("{role}{rank}").as_str()];
        let mut command = host.command(env!("CARGO_BIN_EXE_forebay"));
        let coordinates = self.coordinator.ip() == host.address();
        let listen = SocketAddr::new(host.address().into(), if coordinates { PORT } else { 0 });
        command.args(["role", role, "--rank", &rank.to_string(), "--coordinator", &self.coordinator.to_string()]);
        command.args(["--listen", &listen.to_string()]).args(flags(&self.trust.files));
        if (role, rank) == ("trainer", 0) {
            command.args(["--dashboard", &DASHBOARD.to_string()]);
        }
        if again {
            command.arg("--resume");
        }
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("FOREBAY_")) {
            command.env_remove(variable);
        }
        let file = OpenOptions::new().create(true).append(true).open(self.log(role, rank)).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        command.spawn().unwrap()
    }

    fn logs(&self) -> String {
        let log = |process: &Process| {
            let said = std::fs::read(self.log(process.role, process.rank)).unwrap_or_default();
            format!("=== {}\n{}\n", process.host(), String::from_utf8_lossy(&said))
        };
        self.processes.iter().map(log).collect()
    }

    pub(crate) fn watch(&self) -> Watch {
        let hosts = Arc::downgrade(&self.hosts);
        Watch::new(move || {
            let gone = || std::io::Error::other("the hosts are gone");
            // The loopback of a host that is cut off is there.
            hosts.upgrade().ok_or_else(gone)?["trainer0"].run(|| TcpStream::connect(DASHBOARD))
        })
    }

    /// Waits until the first trainer has saved the model and ended. Returns its log.
    pub(crate) fn until_ended(&mut self) -> String {
        let begun = Instant::now();
        while !self.is_over() {
            assert!(begun.elapsed() < LONG, "seed {}: it hangs\n{}", self.seed, self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.logs()
    }

    fn process(&mut self, name: &str) -> &mut Process {
        self.processes.iter_mut().find(|process| process.host() == name).expect("a host has a process")
    }
}

impl Cluster for OnHosts {
    fn victims(&self) -> Vec<Victim> {
        let running = self.processes.iter().filter(|process| process.ended.is_none() && !process.done);
        let victim =
            |process: &Process| Victim { role: process.role.to_owned(), name: process.host(), id: process.child.id() };
        running.map(victim).collect()
    }

    fn is_over(&mut self) -> bool {
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            if process.done {
                continue;
            }
            match process.ended {
                None => {
                    let Some(status) = process.child.try_wait().unwrap() else { continue };
                    process.done = status.code() == Some(0) && !(process.told && process.role == "reader");
                    process.ended = Some(Instant::now());
                    self.resumes += usize::from(process.host() == "trainer0" && status.code() == Some(DRAINED));
                    let name = process.host();
                    let starts_again = matches!(status.code(), None | Some(0 | 3 | DRAINED));
                    assert!(starts_again, "seed {}: {name} ended with {status}\n{}", self.seed, self.logs());
                }
                Some(ended) if ended.elapsed() > RESTART => {
                    let (role, rank) = (process.role, process.rank);
                    let child = self.spawn(role, rank, true);
                    let process = &mut self.processes[at];
                    (process.child, process.ended, process.told) = (child, None, false);
                }
                Some(_) => {}
            }
        }
        // Others end after it, and one that was started again meanwhile waits for a coordinator that has ended.
        self.processes.iter().any(|process| process.done && process.host() == "trainer0")
    }

    fn begin(&mut self, harm: Harm, victim: &Victim) -> bool {
        if harm == Harm::Cut {
            self.hosts.cut(&victim.name);
            return true;
        }
        let signal = match harm {
            Harm::Kill | Harm::KillAll => Signal::KILL,
            Harm::Term | Harm::TermAll => Signal::TERM,
            _ => Signal::STOP,
        };
        let all = matches!(harm, Harm::KillAll | Harm::TermAll);
        let is_meant = |process: &Process| all || process.host() == victim.name && process.child.id() == victim.id;
        let mut reached = false;
        for process in &mut self.processes {
            if process.ended.is_none() && !process.done && is_meant(process) {
                process.told |= signal == Signal::TERM;
                reached |= kill_process(Pid::from_child(&process.child), signal).is_ok();
            }
        }
        reached
    }

    fn end(&mut self, harm: Harm, victim: &Victim) {
        match harm {
            Harm::Kill | Harm::KillAll | Harm::Term | Harm::TermAll => {}
            Harm::Cut => self.hosts.mend(&victim.name),
            Harm::Stop | Harm::LongStop => {
                let process = self.process(&victim.name);
                if process.child.id() == victim.id && process.ended.is_none() {
                    let _ = kill_process(Pid::from_child(&process.child), Signal::CONT);
                }
            }
        }
    }
}

impl Drop for OnHosts {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
