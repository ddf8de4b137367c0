//! Memory that this process may take: what its cgroups allow (version 1 and 2) and what the machine has.

use std::fs;
use std::path::Path;

use crate::cgroup::cgroup_folders;

/// Limits from this number on mean that there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Bytes that this process may still take without swapping or being killed; `None` if unknown. The memory of other processes of the same
/// cgroup and machine counts as taken; cached files that can be dropped do not.
pub fn free_memory() -> Option<u64> {
    least_below(Path::new("/"), free_in, "MemAvailable:")
}

/// Bytes that this process may have at most without swapping or being killed, if no other process takes any; `None` if unknown.
pub fn memory_limit() -> Option<u64> {
    least_below(Path::new("/"), limit_of, "MemTotal:")
}

/// The least of the cgroups' numbers and of a number of the machine.
fn least_below(root: &Path, of_group: fn(&Path, Names) -> Option<u64>, of_machine: &str) -> Option<u64> {
    let groups = cgroup_folders(root, "memory", [VERSION_1, VERSION_2]).into_iter();
    let limited = groups.filter_map(|(folder, names)| of_group(&folder, names));
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let machine = field(&meminfo, of_machine).map(|kib| kib << 10);
    limited.chain(machine).min()
}

/// The names of a version: the file of the limit, the file of the usage, and in `memory.stat` the field of cached files.
type Names = [&'static str; 3];

const VERSION_1: Names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
const VERSION_2: Names = ["memory.max", "memory.current", "inactive_file"];

/// The number that a file of a group has.
fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// The limit of a group, if it has one.
fn limit_of(folder: &Path, [limit, ..]: Names) -> Option<u64> {
    number(folder, limit).filter(|limit| *limit < NO_LIMIT)
}

/// The bytes that a group may still take, if it has a limit.
fn free_in(folder: &Path, names @ [_, used, cached]: Names) -> Option<u64> {
    let limit = limit_of(folder, names)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let used = number(folder, used)?.saturating_sub(field(&stat, cached).unwrap_or(0));
    Some(limit.saturating_sub(used))
}

/// The number after a name at the beginning of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '\t'])))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::Root;

    const MIB: u64 = 1 << 20;

    fn free_below(root: &Path) -> Option<u64> {
        least_below(root, free_in, "MemAvailable:")
    }

    fn limit_below(root: &Path) -> Option<u64> {
        least_below(root, limit_of, "MemTotal:")
    }

    #[test]
    fn the_tightest_group_around_the_process_counts_and_cached_files_are_free() {
        let two = Root::new(
            "two",
            &[
                ("proc/self/cgroup", "0::/pod/box\n"),
                ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"),
                ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/box/memory.current", "5242880\n"),
                ("sys/fs/cgroup/pod/memory.max", "104857600\n"),
                ("sys/fs/cgroup/pod/memory.current", "83886080\n"),
                ("sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 10485760\nactive_file 7\n"),
            ],
        );
        assert_eq!(
            free_below(&two.0),
            Some(30 * MIB),
            "the limit is 100 MiB; 80 MiB are used, and 10 MiB of them are cached files"
        );
        assert_eq!(limit_below(&two.0), Some(100 * MIB));
        let one = Root::new(
            "one",
            &[
                ("proc/self/cgroup", "12:cpu,cpuacct:/a\n7:memory:/a\n0::/\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "20971520\n"),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "31457280\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "31457280\n"),
            ],
        );
        assert_eq!(free_below(&one.0), Some(0), "more is used than the group may have");
        assert_eq!(limit_below(&one.0), Some(20 * MIB));
    }

    #[test]
    fn without_a_limit_it_is_what_the_machine_has() {
        let meminfo = "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n";
        let free = Root::new("free", &[("proc/self/cgroup", "0::/\nnonsense\n"), ("proc/meminfo", meminfo)]);
        assert_eq!((free_below(&free.0), limit_below(&free.0)), (Some(2 * MIB), Some(4 * MIB)));
        assert_eq!(free_below(Path::new("/nowhere")), None);
        assert!(free_memory().is_some_and(|free| free > 0));
    }
}
