//! How occupied every stage is, over all processes, and how much of each machine's cores a run uses.

use std::collections::BTreeMap;
use std::fmt;

use forebay_actors::{CoreSeconds, Machine, StageReport, WaitKind};
use serde::{Deserialize, Serialize};

use crate::metrics::process_report::ProcessReport;

/// The name of the load of all shards.
pub(super) const SHARDS: &str = "shards";

/// The stage of dense compute.
pub(crate) const COMPUTE: &str = "train";

/// How occupied a stage is in the process where it is most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The stage, or `shards` for all services.
    pub stage: String,
    /// In a cluster, the process in which it is most occupied; for shards, the name of the busiest one.
    #[serde(default)]
    pub at: Option<String>,
    /// Share of the run's wall time that it was busy or waited for something of its own, 0 to 1, for each replica there.
    pub share: f64,
    /// The mean share over all processes (or shards).
    pub mean_share: f64,
    /// Replicas in that process; for shards, all of them.
    pub replicas: usize,
    /// The parts of `share`: `busy`, and what it waited for, by name.
    pub parts: BTreeMap<String, f64>,
    /// Rows per second of the time in which one replica was occupied, in that process. 0 for shards.
    pub true_rate: f64,
    /// The mean true rate of the other processes, if they are more than twice as fast.
    #[serde(default)]
    pub others_true_rate: Option<f64>,
    /// Batches (or calls) that it took in that process.
    pub items: u64,
}

impl Load {
    /// The part that took most of its time.
    pub(super) fn main_part(&self) -> &str {
        self.parts.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or("busy", |(name, _)| name)
    }

    pub(super) fn part(&self, name: &str) -> f64 {
        self.parts.get(name).copied().unwrap_or(0.0)
    }
}

/// The loads of all stages and of the shards, the most occupied first.
pub(super) fn loads(processes: &[&ProcessReport]) -> Vec<Load> {
    let mut stages: Vec<(&str, Vec<(&str, &StageReport)>)> = Vec::new();
    let mut shards = Vec::new();
    for process in processes {
        for stage in &process.report.stages {
            match stages.iter_mut().find(|(name, _)| *name == stage.name) {
                Some((_, all)) => all.push((&process.process, stage)),
                None => stages.push((&stage.name, vec![(&process.process, stage)])),
            }
        }
        shards.extend(process.report.services.iter().map(|shard| (&*shard.name, shard)));
    }
    let mut loads: Vec<Load> = stages.iter().filter_map(|(name, all)| stage(name, all, processes.len() > 1)).collect();
    loads.extend(self::shards(&shards));
    loads.sort_by(|a, b| b.share.total_cmp(&a.share));
    loads
}

fn stage(name: &str, all: &[(&str, &StageReport)], in_cluster: bool) -> Option<Load> {
    let (process, busiest) = all.iter().max_by(|a, b| a.1.occupied_share().total_cmp(&b.1.occupied_share()))?;
    // If the stage is occupied in all processes, the slowest of them is named.
    let saturated = |stage: &StageReport| stage.occupied_share() >= 0.9 * busiest.occupied_share() && stage.rows_in > 0;
    let slowest =
        all.iter().filter(|(_, stage)| saturated(stage)).min_by(|a, b| a.1.true_rate().total_cmp(&b.1.true_rate()));
    let others: Vec<f64> = match slowest {
        Some((slow, _)) => all.iter().filter(|(at, _)| at != slow).map(|(_, stage)| stage.true_rate()).collect(),
        None => Vec::new(),
    };
    let others = others.iter().sum::<f64>() / others.len().max(1) as f64;
    let (at, stage, others_true_rate) = match slowest {
        Some((at, stage)) if others > 2.0 * stage.true_rate() => (at, stage, Some(others)),
        _ => (process, busiest, None),
    };
    Some(Load {
        stage: name.to_owned(),
        at: in_cluster.then(|| (*at).to_owned()),
        share: stage.occupied_share(),
        mean_share: all.iter().map(|(_, stage)| stage.occupied_share()).sum::<f64>() / all.len() as f64,
        replicas: stage.replicas,
        parts: parts(stage),
        true_rate: stage.true_rate(),
        others_true_rate,
        items: stage.items_in,
    })
}

fn shards(all: &[(&str, &StageReport)]) -> Option<Load> {
    let (name, busiest) = all.iter().max_by(|a, b| a.1.busy_share().total_cmp(&b.1.busy_share()))?;
    Some(Load {
        stage: SHARDS.to_owned(),
        at: Some((*name).to_owned()),
        share: busiest.busy_share(),
        mean_share: all.iter().map(|(_, shard)| shard.busy_share()).sum::<f64>() / all.len() as f64,
        replicas: all.len(),
        parts: [("busy".to_owned(), busiest.busy_share())].into(),
        items: busiest.items_in,
        ..Load::default()
    })
}

/// The busy share, the share of each named wait, and `other` waits.
fn parts(stage: &StageReport) -> BTreeMap<String, f64> {
    let waits = stage.waits.iter().filter(|(_, wait)| wait.kind == WaitKind::Waiting);
    let mut parts: BTreeMap<String, f64> = waits.map(|(name, _)| (name.clone(), stage.wait_share(name))).collect();
    let other = stage.waiting_share() - parts.values().sum::<f64>();
    parts.insert("other".into(), other.max(0.0));
    parts.insert("busy".into(), stage.busy_share());
    parts.retain(|_, share| *share >= 0.005);
    parts
}

/// Cores that threads of the run waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BusyCores {
    /// The host, unless it is the host of the first process.
    #[serde(default)]
    pub host: Option<String>,
    /// Its cores that the run may use.
    pub cores: usize,
    /// The part of their time that processes of the run used, 0 to 1.
    pub run: f64,
    /// The part of their time that all else used: other programs, the system, other virtual machines.
    pub others: f64,
    /// The part of the time that threads of the run had work in which they waited for a core.
    pub waited: f64,
}

/// The use of the cores of one host by all processes of the run there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MachineUse {
    pub(super) host: String,
    pub(super) cores: usize,
    /// Set if the processes may use less CPU time than these cores have.
    pub(super) cpu_quota: Option<f64>,
    /// Share of the time of all cores, or of the quota, 0 to 1.
    pub(super) share: f64,
    /// The processes there.
    pub(super) processes: Vec<String>,
    /// `None` if the system does not tell.
    shared: Option<SharedCores>,
}

/// What the cores of a host did in a second, in seconds of all cores.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SharedCores {
    /// Used by the processes of the run.
    run: f64,
    idle: f64,
    /// Used by all else.
    others: f64,
    /// Threads of the run waited for a core, summed over threads.
    waited: f64,
}

/// Threads that waited for a core in less than this part of the time that they had work were hardly held up.
const HELD_UP: f64 = 0.2;

/// Others use a machine if they take this part of its cores, and its cores are full if less than [`FULL`] of them is idle.
const OTHERS: f64 = 0.15;
const FULL: f64 = 0.1;

impl SharedCores {
    fn cores(&self) -> f64 {
        self.run + self.idle + self.others
    }

    /// How many times as much CPU time the run can get: the idle time, or time of others if fewer of its threads than cores are ready on
    /// average. If more are ready, it asks for all cores already, and what it has is its part of them.
    fn headroom(&self) -> f64 {
        let ready = self.run + self.waited;
        ((self.run + self.idle) / self.run).max(self.cores() / ready)
    }
}

impl MachineUse {
    /// How many times as fast the run can be on these cores, if each row takes the CPU time that it takes now.
    pub(super) fn headroom(&self) -> f64 {
        let free = 1.0 / self.share.max(1e-3);
        match self.shared {
            Some(shared) if shared.run > 0.0 => free.min(shared.headroom()),
            _ => free,
        }
    }

    /// Whether hardly any time of its cores was idle.
    pub(super) fn is_full(&self) -> bool {
        self.shared.is_some_and(|shared| shared.idle <= FULL * shared.cores())
    }

    /// Who used the cores, if threads of the run waited for them for much of their time, and that is not their own doing alone while cores
    /// were idle.
    fn busy(&self, first: &ProcessReport) -> Option<BusyCores> {
        let shared = self.shared.filter(|shared| shared.cores() > 0.0)?;
        let waited = shared.waited / (shared.run + shared.waited).max(1e-9);
        let others = shared.others / shared.cores();
        (waited >= HELD_UP && (others >= OTHERS || self.is_full())).then(|| BusyCores {
            host: (first.report.machine.host != self.host).then(|| self.host.clone()),
            cores: self.cores,
            run: shared.run / shared.cores(),
            others,
            waited,
        })
    }
}

/// The cores that threads of the run waited for most, if any.
pub(super) fn busy_cores(machines: &[MachineUse], processes: &[&ProcessReport]) -> Option<BusyCores> {
    let busy = machines.iter().filter_map(|machine| machine.busy(processes.first()?));
    busy.max_by(|a, b| a.waited.total_cmp(&b.waited))
}

impl BusyCores {
    /// Whether other programs are the reason.
    fn by_others(&self) -> bool {
        self.others >= OTHERS
    }
}

impl fmt::Display for BusyCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.host.as_deref().unwrap_or("this machine");
        let (who, used) = if self.by_others() { ("other programs", self.others) } else { ("the run itself", self.run) };
        let cores = if self.cores == 1 { "the only core".to_owned() } else { format!("the {} cores", self.cores) };
        write!(
            f,
            "threads waited for a core {:.0}% of the time that they had work: {who} used {:.0}% of {cores} of {machine}",
            100.0 * self.waited,
            100.0 * used
        )
    }
}

/// The hosts of a run, those with the least free cores first.
pub(super) fn machines(processes: &[&ProcessReport]) -> Vec<MachineUse> {
    let mut hosts: Vec<Vec<&ProcessReport>> = Vec::new();
    for process in processes {
        let limits = |process: &ProcessReport| {
            let Machine { host, cores, cpu_quota, .. } = &process.report.machine;
            (host.clone(), *cores, *cpu_quota)
        };
        if process.report.machine.cores == 0 || process.report.wall.is_zero() {
            continue;
        }
        match hosts.iter_mut().find(|known| limits(known[0]) == limits(process)) {
            Some(known) => known.push(process),
            None => hosts.push(vec![process]),
        }
    }
    let mut machines: Vec<MachineUse> = hosts.iter().filter_map(|processes| machine(processes)).collect();
    machines.sort_by(|a, b| b.share.total_cmp(&a.share));
    machines
}

/// The use of one host by its processes, over the time of the one that ran longest: a process that was lost soon after it began used its
/// CPU time in a small part of the run.
fn machine(processes: &[&ProcessReport]) -> Option<MachineUse> {
    let longest = processes.iter().rev().max_by_key(|process| process.report.wall)?;
    let (seconds, Machine { host, cores, cpu_quota, .. }) =
        (longest.report.wall.as_secs_f64(), &longest.report.machine);
    let run: f64 = processes.iter().map(|process| process.report.machine.cpu.as_secs_f64() / seconds).sum();
    // To the process that ran longest, the other ones are among the others.
    let beside = run - longest.report.machine.cpu.as_secs_f64() / seconds;
    let waited: Option<f64> =
        processes.iter().map(|process| Some(process.report.machine.core_seconds?.waited / seconds)).sum();
    let shared = longest.report.machine.core_seconds.zip(waited).map(|(CoreSeconds { idle, others, .. }, waited)| {
        SharedCores { run, idle: idle / seconds, others: (others / seconds - beside).max(0.0), waited }
    });
    Some(MachineUse {
        host: host.clone(),
        cores: *cores,
        cpu_quota: *cpu_quota,
        share: run / cpu_quota.unwrap_or(*cores as f64),
        processes: processes.iter().map(|process| process.process.clone()).collect(),
        shared,
    })
}
