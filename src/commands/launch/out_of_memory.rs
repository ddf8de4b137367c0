//! Finds out whether the kernel killed a process because memory ran out, from the kernel's counter.

use std::fs;

/// How many processes the kernel has killed so far because memory ran out, on this machine or in a cgroup with a limit. `None`: the kernel
/// does not say (Linux before 4.13).
pub(super) struct OutOfMemoryKills(Option<u64>);

impl OutOfMemoryKills {
    pub(super) fn so_far() -> Self {
        Self(fs::read_to_string("/proc/vmstat").ok().and_then(|counters| count_in(&counters)))
    }

    /// Whether the kernel has killed more since the last call.
    pub(super) fn are_more(&mut self) -> bool {
        let before = std::mem::replace(self, Self::so_far());
        matches!((before.0, self.0), (Some(before), Some(now)) if now > before)
    }
}

fn count_in(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        assert_eq!(count_in("nr_free_pages 7\noom_kill_x 9\noom_kill 12\n"), Some(12));
        for other in ["", "nr_free_pages 7\n", "oom_kill many\n", "xoom_kill 3\n"] {
            assert_eq!(count_in(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_count_that_grew_says_so() {
        let now = OutOfMemoryKills::so_far().0;
        assert_eq!(OutOfMemoryKills(now.map(|now| now - now.min(1))).are_more(), now.is_some_and(|now| now > 0));
        assert!(!OutOfMemoryKills(None).are_more());
        assert!(!OutOfMemoryKills(Some(u64::MAX)).are_more());
    }
}
