//! CPU seconds of this process, from /proc.

use std::fs;

/// Clock ticks per second in /proc: 100 on every Linux, whatever the kernel's own clock.
const TICKS: f64 = 100.0;

/// User and system time of all threads of this process, in seconds; `None` without /proc.
pub fn cpu_seconds() -> Option<f64> {
    parse(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse(stat: &str) -> Option<f64> {
    // The program's name, in parentheses, may contain spaces.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_seconds_are_parsed_from_proc() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 1000 10";
        assert_eq!(parse(stat), Some(3.0));
        assert_eq!(parse("17 (a"), None);
        assert!(cpu_seconds().is_some());
    }
}
