//! CPU seconds of this process, of its threads and of the cores, from /proc.

use std::fs;

/// Clock ticks per second in /proc: 100 on every Linux, for every clock of the kernel.
const TICKS: f64 = 100.0;

/// User and system time of all threads of this process, in seconds; `None` without /proc.
pub fn cpu_seconds() -> Option<f64> {
    parse(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// What a thread of this process has used so far.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTimes {
    /// Its number.
    pub number: u64,
    /// Its name. The kernel cuts names to 15 bytes.
    pub name: String,
    /// User and system time, in seconds.
    pub cpu: f64,
    /// Seconds in which it was ready to run, and other threads had the cores; 0 if the kernel does not count them.
    pub waited: f64,
}

/// The times of the threads of this process that are alive. Empty without /proc.
pub fn thread_times() -> Vec<ThreadTimes> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    // A thread may end meanwhile.
    let thread = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let name = stat.get(stat.find('(')? + 1..stat.rfind(')')?)?.to_owned();
        let waited = fs::read_to_string(entry.path().join("schedstat")).ok().and_then(|stat| waited(&stat));
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some(ThreadTimes { number, name, cpu: parse(&stat)?, waited: waited.unwrap_or(0.0) })
    };
    threads.flatten().filter_map(thread).collect()
}

/// What cores have done since the machine started, summed over the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreTimes {
    /// Seconds in which they had no thread to run.
    pub idle: f64,
    /// All seconds.
    pub all: f64,
}

/// The times of the cores that `counts` holds for; `None` without /proc, or if one of `cores` cores is missing there.
pub fn core_times(cores: usize, counts: impl Fn(usize) -> bool) -> Option<CoreTimes> {
    core_times_in(&fs::read_to_string("/proc/stat").ok()?, cores, counts)
}

fn core_times_in(stat: &str, cores: usize, counts: impl Fn(usize) -> bool) -> Option<CoreTimes> {
    let (mut found, mut sum) = (0, CoreTimes::default());
    for line in stat.lines() {
        let mut fields = line.split_whitespace();
        let Some(core) = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok()) else { continue };
        if !counts(core) {
            continue;
        }
        // User, nice, system, idle, waiting for a disk, interrupts, taken by other virtual machines. Guests count as user time already.
        let ticks: Vec<f64> = fields.take(8).map_while(|ticks| ticks.parse().ok()).collect();
        sum.idle += ticks.iter().skip(3).take(2).sum::<f64>() / TICKS;
        sum.all += ticks.iter().sum::<f64>() / TICKS;
        found += 1;
    }
    (found == cores).then_some(sum)
}

/// The second number of a thread's `schedstat` is the nanoseconds that it waited for a core.
fn waited(schedstat: &str) -> Option<f64> {
    Some(schedstat.split_whitespace().nth(1)?.parse::<u64>().ok()? as f64 / 1e9)
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
            let own = || thread_times().into_iter().find(|thread| thread.name == "a) spinning");
            // Until the kernel has counted a tick of it.
            while own().is_some_and(|thread| thread.cpu == 0.0) && begun.elapsed().as_secs() < 60 {}
            own()
        });
        let own = spinning.unwrap().join().unwrap();
        assert!(own.as_ref().is_some_and(|thread| thread.cpu > 0.0 && thread.cpu < 10.0), "{own:?}");
    }

    #[test]
    fn times_of_cores_are_those_of_the_cores_that_count() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 50 200 50 0 0 0 70 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu2 0 0 0 100 0 0 0 300 0 0\nintr 5";
        let times = core_times_in(stat, 2, |core| core != 1);
        assert_eq!(times, Some(CoreTimes { idle: 3.5, all: 8.0 }));
        assert_eq!(core_times_in(stat, 4, |_| true), None, "a core is missing");
        assert_eq!((waited("5000 1500000000 7"), waited("")), (Some(1.5), None));
    }
}
