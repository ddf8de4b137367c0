//! CPU seconds of this process and of its threads, from /proc.

use std::fs;

/// Clock ticks per second in /proc: 100 on every Linux, for every clock of the kernel.
const TICKS: f64 = 100.0;

/// User and system time of all threads of this process, in seconds; `None` without /proc.
pub fn cpu_seconds() -> Option<f64> {
    parse(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// User and system time of the threads of this process that are alive, in seconds: number, name and time of each. Empty without
/// /proc. The kernel cuts names to 15 bytes.
pub fn thread_cpu_seconds() -> Vec<(u64, String, f64)> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    // A thread may end meanwhile.
    let thread = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?.to_owned();
        Some((entry.file_name().to_str()?.parse().ok()?, name, parse(&stat)?))
    };
    threads.flatten().filter_map(thread).collect()
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

    #[test]
    fn threads_have_their_names_and_their_own_times() {
        let spinning = std::thread::Builder::new().name("a) spinning".to_owned()).spawn(|| {
            let begun = std::time::Instant::now();
            let own = || thread_cpu_seconds().into_iter().find(|(_, name, _)| name == "a) spinning");
            // Until the kernel has counted a tick of it.
            while own().is_some_and(|(.., cpu)| cpu == 0.0) && begun.elapsed().as_secs() < 60 {}
            own()
        });
        let own = spinning.unwrap().join().unwrap();
        assert!(own.as_ref().is_some_and(|(.., cpu)| *cpu > 0.0 && *cpu < 10.0), "{own:?}");
    }
}
