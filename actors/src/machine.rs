//! The machine that a run uses: its name, the cores that this process may use, and the CPU time that the run took.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a process runs, and what it used there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the host. Processes of one host share its cores.
    pub host: String,
    /// Cores that the process may use, by its affinity and its cgroup.
    pub cores: usize,
    /// CPU time of all threads of the process since the run began; in JSON, seconds.
    #[serde(with = "crate::seconds")]
    pub cpu: Duration,
}

/// Reads what a run uses of its machine. The name and the cores are read once: a report is made several times a second.
#[derive(Clone)]
pub(crate) struct MachineMeter {
    machine: Machine,
    /// CPU time of the process before the run.
    cpu_before: Duration,
}

impl MachineMeter {
    /// The run begins.
    pub(crate) fn start() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = Machine { host: host.trim().to_owned(), cores, cpu: Duration::ZERO };
        Self { machine, cpu_before: cpu_time() }
    }

    /// The machine, with the CPU time since the start.
    pub(crate) fn read(&self) -> Machine {
        Machine { cpu: cpu_time().saturating_sub(self.cpu_before), ..self.machine.clone() }
    }
}

/// CPU time of all threads of this process, user and system, or 0 without /proc.
fn cpu_time() -> Duration {
    Duration::from_secs_f64(forebay_base::cpu_seconds().unwrap_or(0.0))
}
