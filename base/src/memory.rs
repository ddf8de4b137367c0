//! Memory of this process, from /proc.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::free_memory::field;

/// Memory that a process has in RAM, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Now.
    pub now: u64,
    /// The most at one time.
    pub peak: u64,
}

/// The most memory that was read so far. Linux counts pages for each core apart, so its peak may be some pages lower later.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The memory of this process; `None` without /proc. The peak never falls.
pub fn resident_memory() -> Option<ResidentMemory> {
    let memory = parse(&fs::read_to_string("/proc/self/status").ok()?)?;
    let before = PEAK.fetch_max(memory.peak, Ordering::Relaxed);
    Some(ResidentMemory { peak: memory.peak.max(before), ..memory })
}

fn parse(status: &str) -> Option<ResidentMemory> {
    let bytes = |name| field(status, name).map(|kib| kib << 10);
    Some(ResidentMemory { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_parsed_from_proc() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(parse(status), Some(ResidentMemory { now: 1 << 10, peak: 2 << 20 }));
        assert_eq!(parse("Name:\tx\nVmHWM:\t 2048 kB\n"), None);
        assert!(resident_memory().is_some_and(|memory| memory.now > 0 && memory.now <= memory.peak));
    }
}
