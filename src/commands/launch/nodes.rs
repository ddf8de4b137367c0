//! Binds the processes of a run to the NUMA nodes of the machine: memory that a process touches first is then on the node of its cores
//! (docs/adr/0026-a-process-for-each-numa-node.md).

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where Linux lists the nodes.
const NODES: &str = "/sys/devices/system/node";

/// The cores of a NUMA node that this program may use.
#[derive(Clone)]
pub(super) struct Node {
    number: usize,
    cores: CpuSet,
}

/// The NUMA nodes that processes are bound to: at least two, with equally many cores; else the list is empty.
#[derive(Clone, Default)]
pub(super) struct Nodes(Vec<Node>);

impl Nodes {
    /// The nodes of this machine.
    pub(super) fn of_machine() -> Self {
        sched_getaffinity(None).map_or_else(|_| Self::default(), |allowed| Self::read(Path::new(NODES), &allowed))
    }

    fn read(root: &Path, allowed: &CpuSet) -> Self {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mut nodes: Vec<Node> = entries
            .filter_map(|entry| {
                let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
                Some(Node { number, cores: cores_in(&list, allowed)? })
            })
            .filter(|node: &Node| node.cores.count() > 0)
            .collect();
        nodes.sort_by_key(|node| node.number);
        let are_alike = nodes.windows(2).all(|pair| pair[0].cores.count() == pair[1].cores.count());
        if nodes.len() < 2 || !are_alike { Self::default() } else { Self(nodes) }
    }

    /// These nodes, if this many trainers divide evenly among them; else none. A trainer computes on the cores of one node only.
    pub(super) fn for_trainers(self, trainers: usize) -> Self {
        if self.divide(trainers) { self } else { Self::default() }
    }

    /// The node for process `rank` of `count` with one role. `None`: all nodes, because the processes do not divide evenly among them.
    pub(super) fn of(&self, rank: usize, count: usize) -> Option<&Node> {
        self.divide(count).then(|| &self.0[rank % self.0.len()])
    }

    fn divide(&self, count: usize) -> bool {
        !self.0.is_empty() && count > 0 && count.is_multiple_of(self.0.len())
    }
}

impl Node {
    /// Binds this thread to the cores of the node, runs `start`, and restores the earlier binding. What `start` starts inherits the cores.
    ///
    /// # Errors
    /// Returns the error of the kernel if it refuses a binding: the first, before `start` runs, or the restored one, after it.
    pub(super) fn bound<T>(&self, start: impl FnOnce() -> T) -> io::Result<T> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, &self.cores)?;
        let started = start();
        sched_setaffinity(None, &before)?;
        Ok(started)
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }
}

/// The cores of a list such as `0-3,8-11` that are also `allowed`. `None`: the text is no such list.
fn cores_in(list: &str, allowed: &CpuSet) -> Option<CpuSet> {
    let mut cores = CpuSet::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let part: Range<usize> = first.parse().ok()?..last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU - 1) + 1;
        part.filter(|core| allowed.is_set(*core)).for_each(|core| cores.set(core));
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> CpuSet {
        cores_of(0..CpuSet::MAX_CPU)
    }

    fn cores_of(cores: impl IntoIterator<Item = usize>) -> CpuSet {
        let mut set = CpuSet::new();
        cores.into_iter().for_each(|core| set.set(core));
        set
    }

    fn listed(cores: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core)).collect()
    }

    /// A machine with these nodes, as Linux shows it.
    fn machine(nodes: &[(&str, &str)], allowed: &CpuSet) -> Nodes {
        let root = tempfile::tempdir().unwrap();
        for (name, cores) in nodes {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("cpulist"), cores).unwrap();
        }
        fs::write(root.path().join("online"), "0-1\n").unwrap();
        Nodes::read(root.path(), allowed)
    }

    fn cores(nodes: &Nodes) -> Vec<(usize, Vec<usize>)> {
        nodes.0.iter().map(|node| (node.number, listed(&node.cores))).collect()
    }

    #[test]
    fn nodes_have_their_cores_in_order_of_their_numbers() {
        let two = machine(&[("node1", "2-3,6-7\n"), ("node0", "0-1,4-5\n"), ("nodes", "9\n")], &all());
        assert_eq!(cores(&two), [(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])]);
        // A cgroup or taskset leaves fewer cores.
        let half = machine(&[("node0", "0-3\n"), ("node1", "4-7\n")], &cores_of([0, 1, 6, 7]));
        assert_eq!(cores(&half), [(0, vec![0, 1]), (1, vec![6, 7])]);
        let ten = machine(&[("node0", "0\n"), ("node2", "1\n"), ("node10", "2\n")], &all());
        assert_eq!(cores(&ten).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 2, 10]);
    }

    #[test]
    fn nothing_is_bound_on_one_node_or_on_nodes_that_differ() {
        for nodes in [
            &[("node0", "0-7\n")][..],
            &[],
            &[("node0", "0-6\n"), ("node1", "7\n")],
            // Memory without cores.
            &[("node0", "0-7\n"), ("node1", "\n")],
            &[("node0", "0-3\n"), ("node1", "four\n")],
            &[("node0", "0-3\n"), ("node1", "4-99999999\n")],
        ] {
            assert!(machine(nodes, &all()).0.is_empty(), "{nodes:?}");
        }
        assert!(
            machine(&[("node0", "0-3\n"), ("node1", "4-7\n")], &cores_of(0..4)).0.is_empty(),
            "only one is allowed"
        );
    }

    #[test]
    fn a_role_is_bound_if_every_node_has_as_many_of_it() {
        let two = || machine(&[("node0", "0-3\n"), ("node1", "4-7\n")], &all());
        let places =
            |nodes: &Nodes, count| (0..count).map(|rank| nodes.of(rank, count).map(Node::number)).collect::<Vec<_>>();
        let nodes = two().for_trainers(2);
        assert_eq!(places(&nodes, 2), [Some(0), Some(1)]);
        assert_eq!(places(&nodes, 4), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(places(&nodes, 3), [None, None, None]);
        assert_eq!(places(&nodes, 1), [None]);
        // One trainer would have half of the cores, and three would share them unevenly.
        for trainers in [1, 3] {
            assert_eq!(places(&two().for_trainers(trainers), 2), [None, None], "{trainers}");
        }
        assert_eq!(places(&Nodes::default().for_trainers(2), 2), [None, None]);
    }

    #[test]
    fn what_is_started_has_the_cores_and_this_thread_has_its_own_again() {
        let before = sched_getaffinity(None).unwrap();
        let last = *listed(&before).last().unwrap();
        let node = Node { number: 0, cores: cores_of([last]) };
        let shown =
            node.bound(|| std::process::Command::new("cat").arg("/proc/self/status").output().unwrap()).unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let line = shown.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap();
        assert!(line.ends_with(&format!("\t{last}")), "{line}");
        assert_eq!(listed(&sched_getaffinity(None).unwrap()), listed(&before));
        let none = Node { number: 0, cores: CpuSet::new() };
        assert!(none.bound(|| ()).is_err());
    }
}
