//! CPU seconds and memory of this process, from /proc.

use std::fs;

/// CPU seconds and memory of this process so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Most memory that was resident at once, in bytes.
    pub(crate) peak_bytes: u64,
}

/// Clock ticks per second in /proc: 100 on every Linux, whatever the kernel's own clock.
const TICKS: f64 = 100.0;

impl Usage {
    /// The usage up to now, or `None` without /proc.
    pub(crate) fn now() -> Option<Self> {
        parse(&fs::read_to_string("/proc/self/stat").ok()?, &fs::read_to_string("/proc/self/status").ok()?)
    }
}

fn parse(stat: &str, status: &str) -> Option<Usage> {
    // The program's name, in parentheses, may contain spaces.
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
    fn usage_is_parsed_from_proc() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 1000 10";
        let usage = parse(stat, "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n");
        assert_eq!(usage, Some(Usage { cpu_seconds: 3.0, peak_bytes: 2 << 20 }));
        assert!(Usage::now().is_some_and(|u| u.peak_bytes > 0));
    }
}
