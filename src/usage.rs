//! CPU seconds and memory of this process, from /proc, and of the other processes of a run.

use serde_json::{Value, json};

use crate::actors::Machine;

/// CPU seconds and memory of this process so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Most memory that was resident at once, in bytes.
    pub(crate) peak_bytes: u64,
}

impl Usage {
    /// The usage so far, or `None` without /proc.
    pub(crate) fn now() -> Option<Self> {
        let peak_bytes = forebay_base::resident_memory()?.peak;
        Some(Self { cpu_seconds: forebay_base::cpu_seconds()?, peak_bytes })
    }

    /// The usage of a run, as JSON: the CPU seconds of this process since `before` and of the `others`, and the sum of the peak memory of
    /// this process and of each of the others.
    pub(crate) fn of_run<'a>(before: Option<Self>, others: impl IntoIterator<Item = &'a Machine>) -> Value {
        let (mut cpu, mut peak) = (0.0, 0);
        for machine in others {
            cpu += machine.cpu.as_secs_f64();
            peak += machine.peak_bytes;
        }
        let used = before.zip(Self::now());
        json!({
            "cpu_seconds": used.map(|(before, after)| after.cpu_seconds - before.cpu_seconds + cpu),
            "peak_bytes": used.map(|(_, after)| after.peak_bytes + peak),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn other_processes_count_with_their_cpu_seconds_and_the_most_memory_of_each() {
        let machine = Machine { cpu: Duration::from_secs(3000), peak_bytes: 1 << 40, ..Machine::default() };
        let before = Usage::now();
        let alone = Usage::of_run(before, []);
        let usage = Usage::of_run(before, [&machine, &machine]);
        let seconds = |usage: &Value| usage["cpu_seconds"].as_f64().unwrap();
        // Other tests of this process use some seconds meanwhile.
        assert!(seconds(&alone) < 6000.0 && seconds(&usage) >= 6000.0, "{alone}, {usage}");
        assert!(alone["peak_bytes"].as_u64().unwrap() < 1 << 40, "{alone}");
        assert!(usage["peak_bytes"].as_u64().unwrap() > 2 << 40, "{usage}");
    }
}
