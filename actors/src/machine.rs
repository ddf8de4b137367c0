//! The machine that a run uses: its name, the cores that this process may use, the CPU time that the run took, also by thread, and
//! memory.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_base::{CoreTimes, ThreadTimes};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::lock::lock;

/// Where a process runs, and what it used there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the host. Processes of one host share its cores.
    pub host: String,
    /// Cores that the process may use, by its affinity and its cgroup: a whole number, at least 1.
    pub cores: usize,
    /// The CPU seconds per second that its cgroup allows, such as 0.5, if its affinity allows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// CPU time of all threads of the process since the run began; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub cpu: Duration,
    /// Memory of the process that is in RAM, in bytes; 0 if it is not known.
    #[serde(default)]
    pub resident_bytes: u64,
    /// The most memory of the process that was in RAM at one time, in bytes.
    #[serde(default)]
    pub peak_bytes: u64,
    /// The parts of `cpu` by the names of threads, without their numbers, in seconds: `read-decode` for all of `read-decode-0`,
    /// `read-decode-1`. Threads are looked at twice a second, so the last half second of a thread that has ended is missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<String, f64>,
    /// Who used the cores meanwhile; `None` if the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_seconds: Option<CoreSeconds>,
}

/// What the cores that a process may use (by its affinity) did during a run, in seconds, summed over the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreSeconds {
    /// They had no thread to run.
    pub idle: f64,
    /// They ran threads of other processes, or other virtual machines had them.
    pub others: f64,
    /// Threads of the process were ready to run and waited for a core, summed over the threads. As in [`Machine::threads`], the last half
    /// second of a thread that has ended is missing.
    pub waited: f64,
}

/// The time between two looks at the threads: one costs about 10 µs a thread.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Reads what a run uses of its machine. The name and the cores are read once: a report is made several times a second.
#[derive(Clone)]
pub(crate) struct MachineMeter {
    machine: Machine,
    /// CPU time of the process before the run.
    cpu_before: Duration,
    started: Instant,
    /// The cores that the process may use, and their times when the run began.
    cores: Vec<usize>,
    cores_before: Option<CoreTimes>,
    threads: Arc<Mutex<Threads>>,
}

/// The CPU seconds of threads, including threads that have ended.
#[derive(Default)]
struct Threads {
    /// By the number of the thread.
    seen: HashMap<u64, Seen>,
    looked: Option<Instant>,
}

/// A thread: its name, and its CPU time and its waits for a core when the run began, and when it was last seen.
struct Seen {
    name: String,
    before: (f64, f64),
    last: (f64, f64),
}

impl MachineMeter {
    /// The run begins.
    pub(crate) fn start() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let affinity: Vec<usize> = match rustix::thread::sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
            Err(_) => Vec::new(),
        };
        let most = if affinity.is_empty() { cores } else { affinity.len() };
        let cpu_quota = forebay_base::cpu_quota().filter(|quota| *quota < most as f64);
        let machine = Machine { host: host.trim().to_owned(), cores, cpu_quota, ..Machine::default() };
        let mut threads = Threads::default();
        threads.look(|now| now);
        Self {
            machine,
            cpu_before: cpu_time(),
            started: Instant::now(),
            cores_before: times_of(&affinity),
            cores: affinity,
            threads: Arc::new(Mutex::new(threads)),
        }
    }

    /// The machine, with the CPU time since the start.
    pub(crate) fn read(&self) -> Machine {
        let (threads, waited) = lock(&self.threads).read();
        let cpu = cpu_time().saturating_sub(self.cpu_before);
        let memory = forebay_base::resident_memory().unwrap_or_default();
        let times = self.cores_before.zip(times_of(&self.cores));
        let most = self.started.elapsed().as_secs_f64() * self.cores.len() as f64;
        let core_seconds = times.and_then(|(before, now)| core_seconds(before, now, most, cpu.as_secs_f64(), waited));
        let (resident_bytes, peak_bytes) = (memory.now, memory.peak);
        Machine { cpu, threads, resident_bytes, peak_bytes, core_seconds, ..self.machine.clone() }
    }
}

/// The times of these cores.
fn times_of(cores: &[usize]) -> Option<CoreTimes> {
    if cores.is_empty() { None } else { forebay_base::core_times(cores.len(), |core| cores.contains(&core)) }
}

/// What cores did between two looks, of `most` seconds that they had; the process used `cpu` seconds of them.
fn core_seconds(before: CoreTimes, now: CoreTimes, most: f64, cpu: f64, waited: f64) -> Option<CoreSeconds> {
    let (idle, all) = (now.idle - before.idle, now.all - before.all);
    // Some systems do not count the times of cores, and show zeros or the same numbers always.
    (idle >= 0.0 && all >= 0.5 * most).then(|| CoreSeconds { idle, others: (all - idle - cpu).max(0.0), waited })
}

impl Threads {
    /// Records the times of the threads that are alive. For a thread that is seen for the first time, `before` gives its times before the
    /// run, from its current times.
    fn look(&mut self, before: impl Fn((f64, f64)) -> (f64, f64)) {
        for ThreadTimes { number, name, cpu, waited } in forebay_base::thread_times() {
            let now = (cpu, waited);
            let first = || Seen { name: String::new(), before: before(now), last: now };
            let seen = self.seen.entry(number).or_insert_with(first);
            // A thread takes its name after its start.
            (seen.name, seen.last) = (name, now);
        }
        self.looked = Some(Instant::now());
    }

    /// CPU seconds since the start by the names of threads, and the seconds that all of them waited for a core.
    fn read(&mut self) -> (BTreeMap<String, f64>, f64) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.look(|_| (0.0, 0.0));
        }
        let (mut sums, mut waited) = (BTreeMap::new(), 0.0);
        for Seen { name, before, last } in self.seen.values() {
            *sums.entry(group(name).to_owned()).or_insert(0.0) += (last.0 - before.0).max(0.0);
            waited += (last.1 - before.1).max(0.0);
        }
        sums.retain(|_, cpu| *cpu > 0.0);
        (sums, waited)
    }
}

/// The name of a thread without its number.
fn group(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['-', '.'])
}

/// CPU time of all threads of this process, user and system, or 0 without /proc.
fn cpu_time() -> Duration {
    Duration::from_secs_f64(forebay_base::cpu_seconds().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_kind_count_together_and_those_that_ended_stay() {
        assert_eq!(
            [group("read-decode-12"), group("parse.0"), group("train-io1")],
            ["read-decode", "parse", "train-io"]
        );
        assert_eq!([group("ps0-embedding"), group("net")], ["ps0-embedding", "net"]);
        let seen = [(1, "dense-1", 1.0, 3.0), (2, "dense-2", 0.0, 0.5), (3, "batch", 0.25, 0.25)];
        let seen = seen.map(|(number, name, before, last)| {
            (number, Seen { name: name.to_owned(), before: (before, 1.0), last: (last, 1.5) })
        });
        let looked = Some(Instant::now() + Duration::from_secs(3600));
        let mut threads = Threads { seen: seen.into(), looked };
        assert_eq!(threads.read(), (BTreeMap::from([("dense".to_owned(), 2.5)]), 1.5));
    }

    #[test]
    fn the_cores_were_idle_or_used_by_the_process_or_by_others() {
        let (before, now) = (CoreTimes { idle: 10.0, all: 100.0 }, CoreTimes { idle: 11.0, all: 108.0 });
        let expected = CoreSeconds { idle: 1.0, others: 5.0, waited: 3.0 };
        assert_eq!(core_seconds(before, now, 8.0, 2.0, 3.0), Some(expected));
        assert_eq!(core_seconds(before, now, 8.0, 7.5, 3.0).map(|cores| cores.others), Some(0.0));
        assert_eq!(core_seconds(before, before, 8.0, 2.0, 3.0), None, "the system does not count them");
    }

    #[test]
    fn a_report_without_the_times_of_the_cores_is_read() {
        let old = r#"{ "host": "h", "cores": 2, "cpu": 1.5 }"#;
        let machine: Machine = serde_json::from_str(old).unwrap();
        assert_eq!((machine.cores, machine.core_seconds), (2, None));
        assert!(!serde_json::to_string(&machine).unwrap().contains("core_seconds"));
    }

    #[test]
    fn a_machine_says_what_memory_the_process_has() {
        let machine = MachineMeter::start().read();
        assert!(machine.resident_bytes > 0 && machine.resident_bytes <= machine.peak_bytes, "{machine:?}");
    }

    #[test]
    fn the_time_before_the_run_does_not_count() {
        let mut threads = Threads::default();
        threads.look(|now| now);
        // No second look, however late this thread goes on.
        threads.looked = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!threads.seen.is_empty() && threads.read() == (BTreeMap::new(), 0.0));
    }
}
