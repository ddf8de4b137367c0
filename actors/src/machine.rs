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

impl Machine {
    /// This machine; `cpu_before` is what [`cpu_time`] returned when the run began.
    pub(crate) fn since(cpu_before: Duration) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            host: host.trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu_time().saturating_sub(cpu_before),
        }
    }
}

/// CPU time of all threads of this process, user and system, or 0 without /proc.
pub(crate) fn cpu_time() -> Duration {
    Duration::from_secs_f64(forebay_base::cpu_seconds().unwrap_or(0.0))
}
