//! What the benchmarks share: the clock of the process, and settings from the environment.

/// User and system time of this process, in seconds, to 10 ms.
pub(crate) fn cpu_seconds() -> f64 {
    forebay_base::cpu_seconds().unwrap_or(f64::NAN)
}

/// The number that a variable of the environment holds.
pub(crate) fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
