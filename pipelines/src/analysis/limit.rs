//! Which stage, shard, link or machine limits a run.

use std::fmt;

use forebay_actors::{StageReport, counted};
use forebay_job::Job;
use serde::{Deserialize, Serialize};

use super::load::{COMPUTE, Load, MachineUse, SHARDS, loads};
use super::others;
use crate::metrics::process_report::{LOST_READERS, ProcessReport};

/// How certain the analysis is that this limit is the bottleneck of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// The limit was occupied for at least 85% of the run, and the next one for clearly less.
    Sure,
    /// The limit was occupied for most of the run, or others were occupied for nearly as much.
    Likely,
    /// Nothing was occupied for most of the run, or there were too few batches to tell.
    #[default]
    Unclear,
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The work of a stage.
    Stage,
    /// What a stage waits for: a store, its decode threads, a device, the round trip to the shards.
    Wait,
    /// The busiest shard.
    Shard,
    /// Look-up, compute and push take turns, because `train.staleness` lets no more batches be under way.
    Staleness,
    /// The network from readers to trainers, or a link whose capacity is too small for batches that arrive unevenly.
    Link,
    /// Readers have no lease: all windows are given out, or the coordinator is slow to give more. Or a reader was lost with a lease that
    /// has not run out (`lost leases`).
    Lease,
    /// Evaluations while the model is trained: nothing is trained on meanwhile.
    Evaluation,
    /// The cores of a machine, or the CPU quota of the processes there.
    Cores,
}

/// What limits a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The stage, the shard, the link (`ship to receive`), `staleness`, `evaluation`, or the host.
    pub name: String,
    /// In a cluster, the process. For [`LimitKind::Cores`], one of those on that host, unless it is the host of the first process.
    #[serde(default)]
    pub process: Option<String>,
    /// For [`LimitKind::Wait`], what the stage waits for.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// How occupied it is, 0 to 1.
    pub share: f64,
    /// Replicas of the stage in that process, shards, or cores.
    pub replicas: usize,
    /// How it differs from the others of its kind: a slow process, a shard with more than its part.
    #[serde(default)]
    pub skew: Option<String>,
    /// For [`LimitKind::Cores`], the CPU seconds per second that a cgroup allows, if that is less than the cores have.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
}

/// The stages that wait for shards.
pub(super) const AT_SHARDS: [&str; 3] = ["lookup", "refresh", "push"];

/// Leases of readers that were lost, until they run out.
const LOST_LEASES: &str = "lost leases";

/// The limit and the wait of the look-up for evaluations.
const EVALUATION: &str = "evaluation";

/// The waits of a look-up that is held up although there is room below.
const PAUSES: [&str; 2] = ["checkpoint", EVALUATION];

/// The link from readers to trainers.
pub(super) const SHIP_TO_RECEIVE: &str = "ship to receive";

/// Shares from which a limit is sure, or likely.
const SURE: f64 = 0.85;
const LIKELY: f64 = 0.6;

/// A stage that is occupied for less of the run is idle.
const IDLE: f64 = 0.3;

/// Fewer batches than this say little.
const FEW_BATCHES: u64 = 20;

/// The share of the trainers' time from which replies of a slow ps hold up the steps of trainers in step.
const LATE: f64 = 0.1;

/// The share of its cores from which a machine is the limit.
const CORES_USED_UP: f64 = 0.9;

/// Finds the limit. `None` if no stage has worked.
pub(super) fn find(
    processes: &[&ProcessReport],
    loads: &[Load],
    machines: &[MachineUse],
    job: &Job,
) -> Option<(Limit, Certainty)> {
    let Some(top) = loads.first().filter(|load| load.share > 0.0) else {
        // A source that has only waited has sent nothing, so no stage after it has worked.
        return between_stages(processes, 0.0, job).map(|limit| after_batches(processes, limit));
    };
    if let Some(limit) = of_evaluations(processes, loads) {
        // Nothing is trained on meanwhile, so the number of batches says nothing.
        let certainty = by_share(&limit);
        return Some((limit, certainty));
    }
    if let Some((limit, waited)) = of_step(processes, loads, job) {
        return Some((limit, if waited >= SURE { Certainty::Sure } else { Certainty::Likely }));
    }
    let limit = of_load(top, loads, processes);
    // The cores limit a stage that computes, but not one that waits for a store.
    let computes = limit.computes();
    if let Some(machine) = machines.first().filter(|machine| computes && machine.share >= CORES_USED_UP) {
        return Some((
            of_machine(machine, processes),
            if machine.share >= 0.95 { Certainty::Sure } else { Certainty::Likely },
        ));
    }
    if limit.share < SURE
        && let Some(limit) = between_stages(processes, limit.share, job)
    {
        return Some(after_batches(processes, limit));
    }
    let next = loads.iter().skip(1).find(|load| !same_cause(&limit, load)).map_or(0.0, |load| load.share);
    let certainty = match limit.share {
        share if top.items < FEW_BATCHES && share > 0.0 => Certainty::Unclear,
        share if share >= SURE && next < share - 0.1 => Certainty::Sure,
        share if share >= LIKELY => Certainty::Likely,
        _ => Certainty::Unclear,
    };
    Some((limit, certainty))
}

/// The certainty of a limit that is no stage.
fn by_share(limit: &Limit) -> Certainty {
    if limit.share >= SURE { Certainty::Sure } else { Certainty::Likely }
}

/// A limit between stages, with its certainty: unclear until some batches have arrived, in a training at the trainers. A lost reader is
/// known without them.
fn after_batches(processes: &[&ProcessReport], limit: Limit) -> (Limit, Certainty) {
    let stages = || processes.iter().flat_map(|process| &process.report.stages);
    let trains = stages().any(|stage| stage.name == COMPUTE);
    let batches: u64 = match trains {
        true => stages().filter(|stage| stage.name == COMPUTE).map(|stage| stage.items_in).sum(),
        false => stages().map(|stage| stage.items_in).max().unwrap_or(0),
    };
    let few = batches < FEW_BATCHES && limit.name != LOST_LEASES;
    let certainty = if few { Certainty::Unclear } else { by_share(&limit) };
    (limit, certainty)
}

/// The limit that the most occupied load points to.
fn of_load(load: &Load, loads: &[Load], processes: &[&ProcessReport]) -> Limit {
    let part = load.main_part();
    let waits = part != "busy";
    if load.stage == SHARDS {
        return of_shards(load);
    }
    if part == "shards"
        && let Some(shards) = loads.iter().find(|other| other.stage == SHARDS && other.share >= 0.5 * load.share)
    {
        return Limit { share: load.share, ..of_shards(shards) };
    }
    let skew = match (&load.at, load.others_true_rate) {
        _ if part == "shards" => others::slow_ps(processes).map(|(words, _)| words),
        (Some(at), Some(others)) => {
            Some(format!("{at} does {:.0} rows/s where the others do {others:.0}", load.true_rate))
        }
        _ if load.at.is_some() && load.mean_share < 0.6 * load.share => {
            Some(format!("the mean of all processes is {:.0}%", 100.0 * load.mean_share))
        }
        _ => None,
    };
    Limit {
        kind: if waits { LimitKind::Wait } else { LimitKind::Stage },
        name: load.stage.clone(),
        process: load.at.clone(),
        waits_for: waits.then(|| part.to_owned()),
        share: load.share,
        replicas: load.replicas,
        skew,
        cpu_quota: None,
    }
}

fn of_shards(load: &Load) -> Limit {
    let skewed = load.replicas > 1 && load.mean_share < 0.6 * load.share;
    Limit {
        kind: LimitKind::Shard,
        name: load.at.clone().unwrap_or_default(),
        process: None,
        waits_for: None,
        share: load.share,
        replicas: load.replicas,
        skew: skewed.then(|| format!("the mean of all shards is {:.0}%", 100.0 * load.mean_share)),
        cpu_quota: None,
    }
}

fn of_machine(machine: &MachineUse, all: &[&ProcessReport]) -> Limit {
    let MachineUse { host, cores, cpu_quota, share, processes, .. } = machine;
    // The first process prints the verdict: "this machine" means its host.
    let elsewhere = all.first().is_some_and(|first| first.report.machine.host != *host);
    let process = processes.first().filter(|_| elsewhere).cloned();
    Limit { cpu_quota: *cpu_quota, process, ..between(LimitKind::Cores, host, *share, *cores) }
}

/// Finds a limit that lies between two stages: the tickets of `train.staleness`, the network to the trainers, leases that do not come,
/// or a link with a small capacity. Of tickets and input, the one that takes more of the run counts. `None` if a stage is occupied for
/// nearly as large a share of the run.
fn between_stages(processes: &[&ProcessReport], occupied: f64, job: &Job) -> Option<Limit> {
    let of_input = of_readers(processes, job).or_else(|| of_leases(processes));
    let longer =
        [of_input, of_tickets(processes, job)].into_iter().flatten().max_by(|a, b| a.share.total_cmp(&b.share));
    longer.or_else(|| of_links(processes)).filter(|limit| limit.share > occupied + 0.1)
}

/// A limit without a process and skew.
fn between(kind: LimitKind, name: impl Into<String>, share: f64, replicas: usize) -> Limit {
    let (name, share) = (name.into(), share.min(1.0));
    Limit { kind, name, process: None, waits_for: None, share, replicas, skew: None, cpu_quota: None }
}

/// The mean share of a stage over all processes that have it.
fn mean(processes: &[&ProcessReport], name: &str, share: impl Fn(&StageReport) -> f64) -> f64 {
    let stages = processes.iter().flat_map(|process| &process.report.stages);
    let shares: Vec<f64> = stages.filter(|stage| stage.name == name).map(share).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

/// The share of the run that trainers wait for batches of readers.
pub(super) fn awaited(processes: &[&ProcessReport]) -> f64 {
    mean(processes, "receive", |stage| stage.wait_share("readers"))
}

/// The limit, if evaluations take more time than any stage is occupied, and more than look-up, compute and push together.
fn of_evaluations(processes: &[&ProcessReport], loads: &[Load]) -> Option<Limit> {
    let share = mean(processes, "lookup", |stage| stage.wait_share(EVALUATION));
    let in_turn = mean(processes, "lookup", |stage| stage.wait_share("ticket") + stage.occupied_share());
    // Evaluations keep the shards busy, too.
    let stages = loads.iter().filter(|load| load.stage != SHARDS).map(|load| load.share);
    let most = stages.fold(in_turn, f64::max);
    (share >= 0.3 && share > most).then(|| between(LimitKind::Evaluation, EVALUATION, share, 1))
}

/// With `train.sync`, what limits the trainer that the steps wait for, and the share of the run that the other trainers wait for it.
fn of_step(processes: &[&ProcessReport], all: &[Load], job: &Job) -> Option<(Limit, f64)> {
    let waits = |load: &&Load| load.stage == "push" && load.main_part() == "shards" && load.items >= FEW_BATCHES;
    all.iter().find(waits).filter(|_| job.train.sync)?;
    if all.iter().any(|load| load.stage == SHARDS && load.share >= IDLE) {
        return None;
    }
    // A trainer that gets the replies of a slow ps last also begins its step last.
    if others::slow_ps(processes).is_some_and(|(_, waited)| waited >= LATE) {
        return None;
    }
    let (trainer, skew, waited) = others::slow_trainer(processes).filter(|(.., waited)| *waited >= IDLE)?;
    // Either the others wait for most of the time, or this trainer has more to do than they wait.
    let first = all.first().filter(|first| waits(first) || first.at.as_ref() == Some(&trainer.process));
    first?;
    let own = loads(&[trainer]);
    let top = own.iter().find(|load| load.stage != "push")?;
    let limit = of_load(top, &own, processes);
    Some((Limit { process: Some(trainer.process.clone()), skew: Some(skew), ..limit }, waited))
}

/// The name of the longer pause of the look-ups, evaluations or checkpoints, and the share of the run that both take.
pub(super) fn pauses(processes: &[&ProcessReport]) -> (&'static str, f64) {
    let shares = PAUSES.map(|pause| mean(processes, "lookup", |stage| stage.wait_share(pause)));
    let longer = if shares[0] > shares[1] { PAUSES[0] } else { PAUSES[1] };
    (longer, shares.iter().sum())
}

/// The limit, if as many batches are under way as staleness allows.
fn of_tickets(processes: &[&ProcessReport], job: &Job) -> Option<Limit> {
    let ticket = mean(processes, "lookup", |stage| stage.wait_share("ticket"));
    if ticket < 0.2 {
        return None;
    }
    let in_turn = ticket + mean(processes, "lookup", StageReport::occupied_share);
    let replicas = processes.iter().find_map(|process| process.stage("lookup")).map_or(1, |lookup| lookup.replicas);
    // Look-ahead has a replica for each ticket.
    let bound = if job.may_look_ahead() { replicas.max(1) - 1 } else { job.train.staleness.batches };
    let skew = others::slow_ps(processes).map(|(words, _)| words);
    if bound > 0 && others::ps_are_far(processes) == Some(false) {
        // With several batches under way, more of them would only wait longer for a reply.
        let waits_for = Some("shards".into());
        return Some(Limit { waits_for, skew, ..between(LimitKind::Wait, "lookup", in_turn, replicas) });
    }
    Some(Limit { skew, ..between(LimitKind::Staleness, "staleness", in_turn, bound) })
}

/// The limit, if trainers wait for batches of readers: these are on their way, or one reader is slower than the others.
fn of_readers(processes: &[&ProcessReport], job: &Job) -> Option<Limit> {
    let awaited = awaited(processes);
    if awaited < 0.3 {
        return None;
    }
    let (reader, in_flight) = (others::awaited_reader(processes), job.placement.in_flight);
    if reader.as_deref() == Some(LOST_READERS) {
        // Meanwhile the others fill their links, and wait for leases, too.
        return Some(between(LimitKind::Lease, LOST_LEASES, awaited, readers(processes)));
    }
    let process = processes.iter().find(|process| Some(&process.process) == reader.as_ref());
    // If a reader stood still while its link blocked it, its meter counts all this time as blocked.
    let stood_still = process.is_some_and(|process| others::is_seldom_awaited(processes, process));
    // The links of other readers are full, because their batches come after the batches of this reader.
    let held_up = match process.and_then(|process| process.stage("ship")) {
        Some(ship) => ship.wait_share("trainer"),
        None => mean(processes, "ship", |stage| stage.wait_share("trainer")),
    };
    if !stood_still && held_up.min(awaited) >= 0.3 {
        let limit = between(LimitKind::Link, SHIP_TO_RECEIVE, held_up.min(awaited), in_flight);
        return Some(Limit { process: reader, ..limit });
    }
    let process: &ProcessReport = process?;
    let own = loads(&[process]);
    // The newest meters of a process that stands still are old.
    let of_run = process.report.wall.as_secs_f64() / processes.first()?.report.wall.as_secs_f64().max(1e-3);
    Some(match own.first().filter(|load| load.share * of_run >= IDLE) {
        Some(top) => {
            let skew = Some("the other readers are in time".into());
            Limit { share: awaited.min(1.0), process: reader, skew, ..of_load(top, &own, processes) }
        }
        None => {
            let skew = Some("its stages are idle meanwhile, so its network or its machine is slow".into());
            Limit { process: reader, skew, ..between(LimitKind::Link, SHIP_TO_RECEIVE, awaited, in_flight) }
        }
    })
}

fn readers(processes: &[&ProcessReport]) -> usize {
    processes.iter().filter(|process| process.stage("read").is_some()).count()
}

/// All windows are given out, and trainers have no batches. Readers that have read all rows wait for leases, too, while trainers work.
fn of_leases(processes: &[&ProcessReport]) -> Option<Limit> {
    let mut lease = mean(processes, "read", |stage| stage.wait_share("lease"));
    if processes.iter().any(|process| process.stage("receive").is_some()) {
        lease = lease.min(awaited(processes));
    }
    (lease >= 0.3).then(|| between(LimitKind::Lease, "leases", lease, readers(processes)))
}

/// A link whose capacity is too small for batches that arrive unevenly.
fn of_links(processes: &[&ProcessReport]) -> Option<Limit> {
    let links = processes.iter().flat_map(|process| process.report.links.iter().zip(process.report.stages.windows(2)));
    let uneven = links.map(|(link, ends)| (link, without_room(&ends[0]).min(ends[1].starved_share())));
    let (link, share) = uneven.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share)| *share >= 0.3)?;
    Some(between(LimitKind::Link, format!("{} to {}", link.from, link.to), share, link.capacity.max_items()))
}

/// The share of its time in which a stage had no room below.
fn without_room(stage: &StageReport) -> f64 {
    stage.blocked_share() - PAUSES.iter().map(|pause| stage.wait_share(pause)).sum::<f64>()
}

fn same_cause(limit: &Limit, load: &Load) -> bool {
    load.stage == limit.name
        || (limit.kind == LimitKind::Shard && (load.stage == SHARDS || load.main_part() == "shards"))
}

impl Limit {
    /// Whether its threads compute, and do not wait for a store or a reply.
    pub(super) fn computes(&self) -> bool {
        self.waits_for.as_deref().is_none_or(|what| what == "decode")
    }

    /// Whether it is no stage and no shard, so that nothing is occupied.
    pub(super) fn is_between_stages(&self) -> bool {
        !matches!(self.kind, LimitKind::Stage | LimitKind::Wait | LimitKind::Shard)
    }

    /// The side of the dense compute that the limit is on: `input`, `compute`, `table`; or else `staleness`, `evaluation`. `None` for the
    /// cores of a machine.
    pub fn bound(&self) -> Option<&'static str> {
        match self.kind {
            LimitKind::Cores => None,
            LimitKind::Staleness => Some("staleness"),
            LimitKind::Evaluation => Some(EVALUATION),
            LimitKind::Shard => Some("table"),
            _ if AT_SHARDS.contains(&self.name.as_str()) => Some("table"),
            _ if [COMPUTE, "upload", "download"].contains(&self.name.as_str()) => Some("compute"),
            _ => Some("input"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, percent, n) = (&self.name, format_args!("{:.0}%", 100.0 * self.share), self.replicas);
        let replicas = if n == 1 { "replica" } else { "replicas" };
        let machine = if self.process.is_some() { name.as_str() } else { "this machine" };
        match (self.kind, &self.waits_for) {
            (LimitKind::Wait, Some(what)) => {
                write!(f, "{name} is {percent} occupied and waits for {}", words(name, what))?
            }
            (LimitKind::Stage | LimitKind::Wait, _) => write!(f, "{name} is {percent} busy in {n} {replicas}")?,
            (LimitKind::Shard, _) => write!(f, "shard {name} is the busiest of {n} and is {percent} of the wait")?,
            (LimitKind::Staleness, _) => write!(f, "look-up, compute and push take turns {percent} of the time")?,
            (LimitKind::Link, _) if name == SHIP_TO_RECEIVE && self.process.is_some() => {
                write!(f, "trainers wait {percent} of the time for batches")?
            }
            (LimitKind::Link, _) => {
                write!(f, "the link {name} ({}) holds both ends up {percent} of the time", counted(n, "batch"))?
            }
            (LimitKind::Lease, _) if name == LOST_LEASES => {
                write!(f, "trainers wait {percent} of the time until leases of lost readers run out")?
            }
            (LimitKind::Lease, _) => write!(f, "read waits for leases {percent} of the time in {n} {replicas}")?,
            (LimitKind::Evaluation, _) => write!(
                f,
                "evaluations take {percent} of the time; evaluate less often with evaluation.every, or on fewer rows with data.eval"
            )?,
            (LimitKind::Cores, _) => match self.cpu_quota.map(|quota| (100.0 * quota).round() / 100.0) {
                Some(1.0) => write!(f, "the CPU quota (1 core) is used up: {percent} used")?,
                Some(quota) => write!(f, "the CPU quota ({quota} cores) is used up: {percent} used")?,
                None if n == 1 => write!(f, "the only core of {machine} is the limit: {percent} used")?,
                None => write!(f, "the {n} cores of {machine} are the limit: {percent} used")?,
            },
        }
        if let Some(process) = self.process.as_ref().filter(|_| self.kind != LimitKind::Cores) {
            write!(f, " of {process}")?;
        }
        if let Some(skew) = &self.skew {
            write!(f, "; {skew}")?;
        }
        Ok(())
    }
}

/// What a wait is for, in words.
fn words<'a>(stage: &str, what: &'a str) -> &'a str {
    match what {
        "decode" => "its decode threads",
        "store" => "the store",
        "shards" if AT_SHARDS.contains(&stage) => "the round trip to the shards",
        "other" => "something that it awaits",
        what => what,
    }
}
