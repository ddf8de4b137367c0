//! A Slurm cluster for one test, made with `scripts/slurm`, and runs on it, started with `deploy/slurm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Nodes ps0, gpu0, cpu0, cpu1, ... in partitions ps, gpu and cpu (gpu0 is also the last node of cpu). Dropping it stops the
/// cluster and removes its folder.
pub(crate) struct Slurm {
    dir: PathBuf,
}

/// A run started with `deploy/slurm/submit`.
pub(crate) struct Run {
    /// The run's folder: `logs`, `token`, `tls`, `jobs`.
    pub(crate) folder: PathBuf,
    pub(crate) ps: u32,
    pub(crate) trainers: u32,
    pub(crate) readers: u32,
}

/// A job, or one task of an array, that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// The number of the job: the same for all tasks of an array.
    pub(crate) job: u32,
    /// The array's index.
    pub(crate) index: Option<u32>,
    /// Empty while it waits.
    pub(crate) node: String,
    /// `RUNNING`, `PENDING`, ...
    pub(crate) state: String,
}

impl Slurm {
    /// Starts a cluster and waits until every node is idle.
    pub(crate) fn up(nodes: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let slurm = Self { dir: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("slurm-{process}-{number}")) };
        slurm.script("up", &["--nodes", &nodes.to_string(), "--owner", &process.to_string()]);
        slurm
    }

    /// A folder that all nodes see. It is removed with the cluster.
    pub(crate) fn shared(&self) -> PathBuf {
        let shared = self.dir.join("shared");
        std::fs::create_dir_all(&shared).unwrap();
        shared
    }

    /// `deploy/slurm/submit JOB OPTIONS --program PROGRAM`, with each role in its own partition.
    pub(crate) fn submit(&self, job: &Path, program: &Path, options: &[&str]) -> Run {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let folder = self.shared().join(format!("run-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command = self.command("deploy/slurm/submit");
        command.arg(job).arg("--program").arg(program).arg("--run").arg(&folder);
        for (role, partition) in [("ps", "ps"), ("reader", "cpu"), ("trainer", "gpu")] {
            command.args([format!("--partition-{role}"), partition.to_owned()]);
        }
        done(command.args(options));
        let jobs: Vec<u32> = lines(&folder.join("jobs")).iter().map(|line| line.parse().unwrap()).collect();
        Run { folder, ps: jobs[0], trainers: jobs[1], readers: jobs.get(2).copied().unwrap_or(0) }
    }

    /// Runs `deploy/slurm/submit`, which must fail, and returns its output.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let mut command = self.command("deploy/slurm/submit");
        let output = command.args(arguments).current_dir(self.shared()).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "submit {arguments:?} was to fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs `deploy/slurm/add-readers`. Returns the number of their job.
    pub(crate) fn add_readers(&self, run: &Run, more: u32) -> u32 {
        done(self.command("deploy/slurm/add-readers").arg(&run.folder).arg(more.to_string()));
        lines(&run.folder.join("jobs")).last().unwrap().parse().unwrap()
    }

    /// The tasks that wait or run, in order.
    pub(crate) fn tasks(&self) -> Vec<Task> {
        let said = self.run("squeue", &["--noheader", "--array", "--format=%F|%K|%N|%T"]);
        let mut tasks: Vec<Task> = said.lines().map(task).collect();
        tasks.sort_by_key(|task| (task.job, task.index));
        tasks
    }

    /// Waits until `count` tasks run and none waits.
    pub(crate) fn all_run(&self, count: usize) -> Vec<Task> {
        wait_until("all tasks run", || {
            let tasks = self.tasks();
            (tasks.len() == count && tasks.iter().all(|task| task.state == "RUNNING")).then_some(tasks)
        })
    }

    /// Starts requeued tasks at once: Slurm would hold them back for two minutes.
    pub(crate) fn start_requeued_now(&self) {
        let waiting = self.run("squeue", &["--noheader", "--array", "--states=PENDING", "--format=%F %K"]);
        for line in waiting.lines() {
            let (job, index) = line.trim().split_once(' ').unwrap();
            let id = if index == "N/A" { job.to_owned() } else { format!("{job}_{index}") };
            self.run("scontrol", &["update", &format!("jobid={id}"), "starttime=now"]);
        }
    }

    /// `kill -9` of the node's slurmd. Slurm gives up the node 25 to 30 s later; its processes continue.
    pub(crate) fn kill_node(&self, node: &str) {
        self.script("kill-node", &[node]);
    }

    /// Runs one of Slurm's commands and returns its output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        done(self.environment(Command::new(program)).args(arguments))
    }

    fn script(&self, command: &str, arguments: &[&str]) -> String {
        done(Command::new(format!("{ROOT}/scripts/slurm")).arg(command).arg(&self.dir).args(arguments))
    }

    fn command(&self, script: &str) -> Command {
        self.environment(Command::new(Path::new(ROOT).join(script)))
    }

    fn environment(&self, mut command: Command) -> Command {
        // Look for a ps that has moved every second, not twice a minute. Start a program that was killed again at once.
        command.env("SLURM_CONF", self.dir.join("etc/slurm.conf"));
        command.env("FOREBAY_LOOK_SECONDS", "1").env("FOREBAY_RESTART_SECONDS", "0");
        command
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // A panic here would abort a test that panics already. The watcher stops the cluster, too.
        let _ = Command::new(format!("{ROOT}/scripts/slurm")).arg("down").arg(&self.dir).arg("--remove").output();
    }
}

impl Run {
    /// The output of a process so far; `name` is like `reader-0`. Empty if it has not started.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("logs/{name}.log"))).unwrap_or_default()
    }
}

/// Calls `ask` until it returns something. Panics after two minutes.
pub(crate) fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "two minutes have passed, and not: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn task(line: &str) -> Task {
    let [job, index, node, state] = line.trim().split('|').collect::<Vec<_>>()[..] else {
        panic!("squeue said {line}")
    };
    Task { job: job.parse().unwrap(), index: index.parse().ok(), node: node.to_owned(), state: state.to_owned() }
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// Runs a command that must succeed, and returns its output.
fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}; run `make setup`"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} failed:\n{stdout}{stderr}");
    stdout.into_owned()
}
