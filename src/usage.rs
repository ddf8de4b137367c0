//! CPU seconds and memory of this process, from /proc.

use std::fs;

use serde_json::{Value, json};

/// CPU seconds and memory of this process so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Most memory that was resident at once, in bytes.
    pub(crate) peak_bytes: u64,
}

impl Usage {
    /// The usage up to now, or `None` without /proc.
    pub(crate) fn now() -> Option<Self> {
        let peak_bytes = peak_bytes(&fs::read_to_string("/proc/self/status").ok()?)?;
        Some(Self { cpu_seconds: forebay_base::cpu_seconds()?, peak_bytes })
    }

    /// As JSON: the CPU seconds from `before` to now, and the most memory until now.
    pub(crate) fn since(before: Option<Self>) -> Value {
        let used = before.zip(Self::now());
        json!({
            "cpu_seconds": used.map(|(before, after)| after.cpu_seconds - before.cpu_seconds),
            "peak_bytes": used.map(|(_, after)| after.peak_bytes),
        })
    }
}

fn peak_bytes(status: &str) -> Option<u64> {
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_parsed_from_proc() {
        assert_eq!(peak_bytes("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert!(Usage::now().is_some_and(|u| u.peak_bytes > 0));
    }
}
