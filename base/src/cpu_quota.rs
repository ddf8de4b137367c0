//! The CPU time that the cgroups of this process allow.

use std::fs;
use std::path::Path;

use crate::cgroup::cgroup_folders;

/// The CPU seconds per second that the tightest cgroup around this process allows, such as 0.5; `None` without a limit.
pub fn cpu_quota() -> Option<f64> {
    quota_below(Path::new("/"))
}

fn quota_below(root: &Path) -> Option<f64> {
    let versions: [fn(&Path) -> Option<f64>; 2] = [of_version_1, of_version_2];
    let groups = cgroup_folders(root, "cpu", versions);
    groups.iter().filter_map(|(folder, quota)| quota(folder)).min_by(f64::total_cmp)
}

fn of_version_1(folder: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    quota(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// The file has both numbers, such as `50000 100000`.
fn of_version_2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (time, period) = text.trim().split_once(' ')?;
    quota(time, period)
}

/// CPU time in a period, both in microseconds. The time is `max`, in version 1 -1, if there is no limit.
fn quota(time: &str, period: &str) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    Some(number(time)? / number(period)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::Root;

    #[test]
    fn the_quota_is_that_of_the_tightest_group_around_the_process() {
        let two = Root::new(
            "quota-two",
            &[
                ("proc/self/cgroup", "0::/pod/box\n"),
                ("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/pod/cpu.max", "50000 100000\n"),
                ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ],
        );
        assert_eq!(quota_below(&two.0), Some(0.5));
        let one = Root::new(
            "quota-one",
            &[
                ("proc/self/cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/a\n0::/\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "225000\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(quota_below(&one.0), Some(2.25));
    }

    #[test]
    fn without_a_limit_there_is_no_quota() {
        let free =
            Root::new("quota-free", &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "max 100000\n")]);
        assert_eq!(quota_below(&free.0), None);
        assert_eq!(quota_below(Path::new("/nowhere")), None);
    }
}
