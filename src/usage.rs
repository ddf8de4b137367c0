//! What this process has used: CPU seconds and memory, from the kernel.
//!
//! Blocks for microseconds on /proc. On a system without it, nothing is known.

use std::fs;

/// CPU and memory so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads.
    pub(crate) cpu_seconds: f64,
    /// Most memory that was resident at once.
    pub(crate) peak_bytes: u64,
}

/// Clock ticks per second in /proc: 100 on every Linux, whatever the kernel's own clock.
const TICKS: f64 = 100.0;

impl Usage {
    /// Up to now.
    pub(crate) fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/self/stat").ok()?, &fs::read_to_string("/proc/self/status").ok()?)
    }
}

fn parse(stat: &str, status: &str) -> Option<Usage> {
    // The name of the program, in parentheses, may hold spaces.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let user: f64 = fields.nth(11)?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Usage { cpu_seconds: (user + system) / TICKS, peak_bytes: kib << 10 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 1000 10";
        let usage = parse(stat, "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n");
        assert_eq!(usage, Some(Usage { cpu_seconds: 3.0, peak_bytes: 2 << 20 }));
        assert!(Usage::now().is_some_and(|u| u.peak_bytes > 0));
    }
}
