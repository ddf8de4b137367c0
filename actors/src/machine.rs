//! The machine that a run uses: its name, the cores that this process may use, the CPU time that the run took, also by thread, and
//! memory.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
}

/// The time between two looks at the threads: one costs about 10 µs a thread.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Reads what a run uses of its machine. The name and the cores are read once: a report is made several times a second.
#[derive(Clone)]
pub(crate) struct MachineMeter {
    machine: Machine,
    /// CPU time of the process before the run.
    cpu_before: Duration,
    threads: Arc<Mutex<Threads>>,
}

/// The CPU seconds of threads, including threads that have ended.
#[derive(Default)]
struct Threads {
    /// By the number of the thread: its name, its time when the run began, and when it was last seen.
    seen: HashMap<u64, (String, f64, f64)>,
    looked: Option<Instant>,
}

impl MachineMeter {
    /// The run begins.
    pub(crate) fn start() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let affinity = rustix::thread::sched_getaffinity(None).map_or(cores, |set| set.count() as usize);
        let cpu_quota = forebay_base::cpu_quota().filter(|quota| *quota < affinity as f64);
        let machine = Machine { host: host.trim().to_owned(), cores, cpu_quota, ..Machine::default() };
        let mut threads = Threads::default();
        threads.look(|cpu| cpu);
        Self { machine, cpu_before: cpu_time(), threads: Arc::new(Mutex::new(threads)) }
    }

    /// The machine, with the CPU time since the start.
    pub(crate) fn read(&self) -> Machine {
        let threads = lock(&self.threads).read();
        let cpu = cpu_time().saturating_sub(self.cpu_before);
        let memory = forebay_base::resident_memory().unwrap_or_default();
        Machine { cpu, threads, resident_bytes: memory.now, peak_bytes: memory.peak, ..self.machine.clone() }
    }
}

impl Threads {
    /// Records the CPU times of the threads that are alive. For a thread that is seen for the first time, `before` gives its CPU time
    /// before the run, from its current CPU time.
    fn look(&mut self, before: impl Fn(f64) -> f64) {
        for (number, name, cpu) in forebay_base::thread_cpu_seconds() {
            // A thread takes its name after its start.
            let (known, _, last) = self.seen.entry(number).or_insert_with(|| (name.clone(), before(cpu), cpu));
            (*known, *last) = (name, cpu);
        }
        self.looked = Some(Instant::now());
    }

    /// CPU seconds since the start by the names of threads.
    fn read(&mut self) -> BTreeMap<String, f64> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.look(|_| 0.0);
        }
        let mut sums = BTreeMap::new();
        for (name, before, last) in self.seen.values() {
            *sums.entry(group(name).to_owned()).or_insert(0.0) += (last - before).max(0.0);
        }
        sums.retain(|_, cpu| *cpu > 0.0);
        sums
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
        let seen = seen.map(|(number, name, before, last)| (number, (name.to_owned(), before, last)));
        let looked = Some(Instant::now() + Duration::from_secs(3600));
        let mut threads = Threads { seen: seen.into(), looked };
        assert_eq!(threads.read(), BTreeMap::from([("dense".to_owned(), 2.5)]));
    }

    #[test]
    fn a_machine_says_what_memory_the_process_has() {
        let machine = MachineMeter::start().read();
        assert!(machine.resident_bytes > 0 && machine.resident_bytes <= machine.peak_bytes, "{machine:?}");
    }

    #[test]
    fn the_time_before_the_run_does_not_count() {
        let mut threads = Threads::default();
        threads.look(|cpu| cpu);
        // No second look, however late this thread goes on.
        threads.looked = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!threads.seen.is_empty() && threads.read().is_empty());
    }
}
