//! The one change of the job that is most likely to help, and how much.

use std::fmt;

use forebay_job::{Backend, ByteSize, Job, StalenessRule};
use serde::{Deserialize, Serialize};

use super::limit::{AT_SHARDS, Certainty, Limit, LimitKind, SHIP_TO_RECEIVE, awaited, pauses};
use super::load::{COMPUTE, Load, MachineUse, SHARDS};
use super::others;
use crate::metrics::process_report::ProcessReport;

/// A change of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The field of the job, for instance `pipeline.parse_replicas`.
    pub field: String,
    /// Its new value, as the job file says it.
    pub value: String,
    /// How many times as fast the run is expected to be; for `train.threads` at most, because part of a step runs on one thread.
    pub gain: f64,
    /// The limit after the change.
    pub then: String,
}

/// The field whose gain is an upper bound: how much of a step runs on one thread is not measured, and light models leave little to divide.
const THREADS: &str = "train.threads";

/// The field whose change gives another model.
const STALENESS: &str = "train.staleness";

/// The field that lets the same number of batches be under way without a change of the model, in jobs that may look ahead.
const LOOK_AHEAD: &str = "train.look_ahead";

/// How many times as much CPU time a row takes with look-ahead: measured from 1.24 for `lr` to 1.40 for `fm` (docs/cluster-performance.md).
const LOOK_AHEAD_CPU: f64 = 1.4;

/// Less gain than this is not worth a change.
const WORTH: f64 = 1.1;

/// A change of the job with its gain, before the machines, the readers and the pauses of the run limit the gain.
struct Draft {
    field: String,
    value: String,
    gain: f64,
    /// The next limit, and how occupied it is then in the time that one second of the run took.
    then: (String, f64),
}

/// What a change does to the loads: the share of each stage for which `hits` holds, or of its part, is multiplied by `factor`.
struct Effect<'a> {
    hits: Box<dyn Fn(&str) -> bool + 'a>,
    /// `None`: the whole share.
    part: Option<&'a str>,
    factor: f64,
}

impl Effect<'_> {
    /// The share of a load after the change.
    fn after(&self, load: &Load) -> f64 {
        match self.part {
            _ if !(self.hits)(&load.stage) => load.share,
            None => load.share * self.factor,
            // The shards themselves wait for nothing.
            Some(_) if load.stage == SHARDS => load.share * self.factor,
            Some(part) => load.share - load.part(part) * (1.0 - self.factor),
        }
    }
}

/// The change that moves this limit, if the job has one and the machines have the cores.
pub(super) fn advise(
    limit: &Limit,
    certainty: Certainty,
    loads: &[Load],
    machines: &[MachineUse],
    processes: &[&ProcessReport],
    job: &Job,
) -> Option<Change> {
    let far = others::ps_are_far(processes);
    // Changes for all processes do not help if one process is slower than the others. But if it is a ps that is only farther away, more
    // batches under way help.
    let at_ps = limit.kind == LimitKind::Staleness || AT_SHARDS.contains(&limit.name.as_str());
    let farther = far == Some(true) && at_ps;
    if certainty == Certainty::Unclear || (limit.skew.is_some() && !farther) {
        return None;
    }
    // A job may pin fewer cores than the machine has. In a run of several processes `pipeline.cores` is the share of one process, which its
    // work may exceed.
    let pinned = if job.placement.is_one_process() { job.pipeline.cores.or(usize::MAX) } else { usize::MAX };
    let cores = cores_of(limit, machines, processes).min(pinned);
    let draft = match limit.kind {
        LimitKind::Cores | LimitKind::Lease | LimitKind::Evaluation => return None,
        LimitKind::Staleness => tickets(limit, loads, job),
        LimitKind::Link => link(limit, loads, job)?,
        LimitKind::Stage | LimitKind::Wait | LimitKind::Shard => {
            let (field, value, effect) = knob(limit, loads, (cores, machines), far, processes, job)?;
            let after = loads.iter().map(|load| (load, effect.after(load)));
            let (next, share) = after.max_by(|a, b| a.1.total_cmp(&b.1))?;
            // If the load of a stage falls by a factor, the run gets faster by at most this factor.
            let gain = (limit.share / share.max(1e-3)).min(1.0 / effect.factor);
            Draft { field, value, gain, then: (next.stage.clone(), share) }
        }
    };
    let draft = if limit.bound() == Some("input") { draft } else { after_readers(draft, processes) };
    let change = within_cores(after_pauses(draft, processes), machines, processes);
    (change.gain >= WORTH).then_some(change)
}

/// Trainers that get faster wait for readers as long as before.
fn after_readers(draft: Draft, processes: &[&ProcessReport]) -> Draft {
    let waits = awaited(processes);
    if waits > draft.then.1 { Draft { then: ("receive".to_owned(), waits), ..draft } } else { draft }
}

/// Evaluations and checkpoints take as long as before, and no row is trained on meanwhile.
fn after_pauses(draft: Draft, processes: &[&ProcessReport]) -> Change {
    let Draft { field, value, gain, then: (stage, share) } = draft;
    let (pause, paused) = pauses(processes);
    let then = if paused > share { pause.to_owned() } else { stage };
    Change { field, value, gain: gain.min(1.0 / (paused + share).max(1e-3)), then }
}

/// A row takes as much CPU time as before, or with look-ahead more, so no change is faster than the cores.
fn within_cores(change: Change, machines: &[MachineUse], processes: &[&ProcessReport]) -> Change {
    let begins = change.field == LOOK_AHEAD && !looks_ahead(processes);
    let times = if begins { LOOK_AHEAD_CPU } else { 1.0 };
    let headrooms = machines.iter().map(|machine| (machine, machine.headroom() / times));
    let Some((machine, headroom)) = headrooms.min_by(|a, b| a.1.total_cmp(&b.1)) else { return change };
    match change.gain > headroom {
        true => {
            let cores = if machine.cpu_quota.is_some() { "the CPU quota" } else { "the machine's cores" };
            Change { gain: headroom, then: cores.to_owned(), ..change }
        }
        false => change,
    }
}

/// Whether rows are pulled ahead: in jobs that may do so, a look-up has a replica for each batch under way.
fn looks_ahead(processes: &[&ProcessReport]) -> bool {
    let mut stages = processes.iter().flat_map(|process| &process.report.stages);
    stages.any(|stage| stage.name == "lookup" && stage.replicas > 1)
}

/// Cores of the machine that the limit is on.
fn cores_of(limit: &Limit, machines: &[MachineUse], processes: &[&ProcessReport]) -> usize {
    let holds_shard = || holder_of_shard(&limit.name, processes).map(|(process, _)| process);
    let process = limit.process.as_ref().or_else(holds_shard);
    let runs = |machine: &&MachineUse| process.is_some_and(|process| machine.processes.contains(process));
    machines.iter().find(runs).or(machines.first()).map_or(1, |machine| machine.cores)
}

/// The process with this shard of a table, and how many shards it has.
fn holder_of_shard<'a>(name: &str, processes: &[&'a ProcessReport]) -> Option<(&'a String, usize)> {
    let shards = |process: &ProcessReport| {
        let shards = process.report.services.iter().filter(|service| service.rows_held.is_some());
        let (here, others): (Vec<_>, Vec<_>) = shards.partition(|shard| shard.name == name);
        (!here.is_empty()).then_some(here.len() + others.len())
    };
    processes.iter().find_map(|process| Some((&process.process, shards(process)?)))
}

/// The field that relieves a stage, its new value, and the effect.
fn knob<'a>(
    limit: &'a Limit,
    loads: &[Load],
    (cores, machines): (usize, &[MachineUse]),
    far: Option<bool>,
    processes: &[&ProcessReport],
    job: &Job,
) -> Option<(String, String, Effect<'a>)> {
    let name = limit.name.as_str();
    let itself = move |factor| Effect { hits: Box::new(move |stage| stage == name), part: None, factor };
    let part = |part, factor| Effect { hits: Box::new(move |stage| stage == name), part: Some(part), factor };
    // Enough to make another stage the limit, as far as there are cores.
    let others = loads.iter().filter(|load| load.stage != name).map(|load| load.share).fold(0.1, f64::max);
    let more = |n: usize| {
        let wanted = (n as f64 * limit.share / others).ceil() as usize;
        Some(wanted.max(n + 1).min(cores.max(1))).filter(|&m| m > n)
    };
    match (limit.kind, name, limit.waits_for.as_deref()) {
        (LimitKind::Shard, ..) => {
            // The dense parameters in a ps are no shard, and cannot be divided.
            let (shards, factor) = (2 * holder_of_shard(name, processes)?.1, 0.5);
            let hits = |stage: &str| stage == SHARDS || AT_SHARDS.contains(&stage);
            let effect = Effect { hits: Box::new(hits), part: Some("shards"), factor };
            (shards <= cores).then(|| ("table.shards".into(), shards.to_string(), effect))
        }
        // The run tunes this stage by itself.
        (_, stage, None | Some("other")) if job.tuned_stages().iter().any(|tuned| tuned == stage) => None,
        (_, "parse", None | Some("other")) => {
            let n = limit.replicas.max(1);
            more(n).map(|m| ("pipeline.parse_replicas".into(), m.to_string(), itself(n as f64 / m as f64)))
        }
        (_, "batch", None | Some("other")) if limit.replicas < cores => {
            let n = limit.replicas.max(1);
            more(n).map(|m| ("pipeline.batch_replicas".into(), m.to_string(), itself(n as f64 / m as f64)))
        }
        // The run adds decode threads by itself. A compressed file has one at most.
        (_, _, Some("decode")) if job.data.decode_threads.is_auto() || is_one_compressed_file(job) => None,
        (_, _, Some("decode")) => {
            let n = job.decode_threads();
            more(n).map(|m| ("data.decode_threads".into(), m.to_string(), part("decode", n as f64 / m as f64)))
        }
        // Without a number in the job, the source fetches more ahead by itself if that helps.
        (_, _, Some("store")) => job.data.read_ahead.map(|bytes| {
            let twice = ByteSize(bytes.0.saturating_mul(2));
            ("data.read_ahead".into(), format!("\"{twice}\""), part("store", 0.5))
        }),
        (_, COMPUTE, None) if job.train.backend == Backend::Native => {
            let n = job.dense_threads();
            (n < cores).then(|| (THREADS.into(), cores.to_string(), itself(n as f64 / cores as f64)))
        }
        // The ps are near but answer late: their machines or their networks are overloaded.
        (_, stage, Some("shards")) if AT_SHARDS.contains(&stage) && far == Some(false) => {
            if wait_for_cores(machines, processes, limit.share) {
                return None;
            }
            let (n, m) = (job.placement.ps, job.placement.ps + 1);
            let hits = |stage: &str| AT_SHARDS.contains(&stage);
            let effect = Effect { hits: Box::new(hits), part: Some("shards"), factor: n as f64 / m as f64 };
            Some(("placement.ps".into(), m.to_string(), effect))
        }
        // With `{ exactly = k }` a trainer makes one look-up and one push at a time, for any k.
        (_, stage, Some("shards")) if AT_SHARDS.contains(&stage) && !job.train.sync && !job.train.staleness.exactly => {
            // The stage has a replica for each ticket.
            let n = if job.may_look_ahead() { limit.replicas.max(1) } else { job.train.staleness.batches + 1 };
            let m = (n as f64 * limit.share / others).ceil().min(8.0) as usize;
            let hits = |stage: &str| AT_SHARDS.contains(&stage);
            let effect = Effect { hits: Box::new(hits), part: None, factor: n as f64 / m.max(1) as f64 };
            (m > n).then(|| {
                let (field, value) = under_way(job, m);
                (field, value, effect)
            })
        }
        (_, "read" | "cut" | "batch" | "ship", None | Some("other")) if job.placement.readers > 0 => {
            let (n, m) = (job.placement.readers, job.placement.readers + 1);
            let hits = |stage: &str| ["read", "parse", "cut", "batch", "ship"].contains(&stage);
            let effect = Effect { hits: Box::new(hits), part: None, factor: n as f64 / m as f64 };
            Some(("placement.readers".into(), m.to_string(), effect))
        }
        _ => None,
    }
}

/// Whether the ps answer late because they wait for the cores of the one machine that all processes share: more ps would share them, too.
/// `late` is the share of the run that trainers wait for replies.
fn wait_for_cores(machines: &[MachineUse], processes: &[&ProcessReport], late: f64) -> bool {
    let [machine] = machines else { return false };
    let waited = |process: &&ProcessReport| {
        let waited = process.report.machine.core_seconds.map_or(0.0, |cores| cores.waited);
        waited / process.report.wall.as_secs_f64().max(1e-3)
    };
    let ps = processes.iter().filter(|process| !process.report.services.is_empty());
    machine.is_full() && ps.map(waited).fold(0.0, f64::max) >= 0.5 * late
}

/// The bytes per second of the store that a stage waits for, if a larger `data.read_ahead` would hardly help. That is so if
/// `data.read_ahead` holds all bytes that were read, or more than the store gives in a second: few stores take a second for a request.
///
/// The rate counts the bytes that the store gave, not the bytes that the run needed: bytes that are fetched again, because a lease was
/// lost, count again.
pub(super) fn store_rate(limit: &Limit, processes: &[&ProcessReport], job: &Job) -> Option<f64> {
    limit.waits_for.as_ref().filter(|what| *what == "store")?;
    let of_limit = |process: &&&ProcessReport| limit.process.as_ref().is_none_or(|name| *name == process.process);
    let mut waiting =
        processes.iter().filter(of_limit).filter_map(|process| Some((process, process.stage(&limit.name)?)));
    let (bytes, seconds) =
        waiting.next().map(|(process, stage)| (stage.bytes_fetched as f64, process.report.wall.as_secs_f64()))?;
    let holds = job.data.first_read_ahead() as f64;
    (bytes > 0.0 && bytes <= holds * seconds.max(1.0)).then(|| bytes / seconds.max(1e-3))
}

/// Whether the job names one compressed file, and no folder or glob.
fn is_one_compressed_file(job: &Job) -> bool {
    let compressed = |path: &str| path.ends_with(".gz") || path.ends_with(".zst");
    let is_file = |path: &str| compressed(path) && !path.contains(['*', '?', '[', '{']);
    job.data.train.as_ref().is_some_and(|paths| matches!(paths.0.as_slice(), [path] if is_file(path)))
}

/// More batches under way at once. What look-up, compute and push do not take in turn takes as long as before.
fn tickets(limit: &Limit, loads: &[Load], job: &Job) -> Draft {
    let n = limit.replicas + 1;
    let (next, share) = loads.first().map_or(("", 1.0), |load| (load.stage.as_str(), load.share));
    let m = ((n as f64 / share.max(0.1)).ceil() as usize).max(n + 1);
    let after = (1.0 - limit.share).max(0.0) + limit.share * n as f64 / m as f64;
    let gain = 1.0 / after.max(share).max(1e-3);
    let (field, value) = under_way(job, m);
    Draft { field, value, gain, then: (next.to_owned(), share) }
}

/// The field that lets `tickets` batches be under way, and its value.
fn under_way(job: &Job, tickets: usize) -> (String, String) {
    if job.may_look_ahead() {
        return (LOOK_AHEAD.into(), (tickets - 1).min(Job::MOST_LOOK_AHEAD).to_string());
    }
    // With a step of all trainers, only an exact staleness gives all of them the same rows.
    let exactly = job.train.sync || job.train.staleness.exactly;
    (STALENESS.into(), StalenessRule { batches: tickets - 1, exactly }.to_string())
}

fn link(limit: &Limit, loads: &[Load], job: &Job) -> Option<Draft> {
    let next = loads.first()?;
    let (then, most) = ((next.stage.clone(), next.share), 1.0 / next.share.max(1e-3));
    if limit.name == SHIP_TO_RECEIVE {
        // LZ4 halves keys and floats.
        let field = "placement.compress".to_owned();
        let draft = Draft { field, value: "\"lz4\"".into(), gain: most.min(2.0), then };
        return job.placement.compress.is_none().then_some(draft);
    }
    let to = limit.name.rsplit(' ').next()?;
    let field = ["parse", "batch", "lookup", "train", "push"].contains(&to).then(|| format!("pipeline.links.{to}"))?;
    Some(Draft { field, value: (limit.replicas * 4).to_string(), gain: most, then })
}

impl Change {
    /// Writes the change as text. `of` is the limit that it moves.
    pub(super) fn say(&self, of: &Limit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, gain, then } = self;
        let about = if field == THREADS { "at most" } else { "about" };
        match *then == of.name {
            true => write!(
                f,
                "{field} = {value} would make it {about} {gain:.1} times as fast, with the limit still at {then}"
            )?,
            false => write!(f, "{field} = {value} would move the limit to {then}, {about} {gain:.1} times as fast")?,
        }
        match field.as_str() {
            // The only advice that changes the trained model.
            STALENESS => f.write_str("; the model is then another: compare the AUC"),
            _ => Ok(()),
        }
    }
}
