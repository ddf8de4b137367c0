//! An interval of a run, as its meters show it.

use std::time::Duration;

use forebay_actors::{Report, StageReport};
use forebay_base::MemoryBudget;

use crate::analysis::COMPUTE;

/// An interval of a run.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    /// Its length.
    pub(super) seconds: f64,
    /// Rows that the last stage took in.
    pub(super) rows: f64,
    /// CPU seconds of the process.
    pub(super) cpu: f64,
    /// The stages whose replicas may change, in the tuner's order.
    pub(super) scalable: Vec<StageLoad>,
    /// How occupied the busiest of all other stages and services was, 0 to 1.
    pub(super) others_occupied: f64,
    /// The share of its time that the stage behind the scalable ones had no input, 0 to 1.
    pub(super) starved_behind: f64,
    /// The share of the interval in which a checkpoint or an evaluation held the run up, 0 to 1.
    pub(super) paused: f64,
    /// Bytes of memory that the process may still take; infinite if that is not known.
    pub(super) free_bytes: f64,
    /// The share of its time that dense compute was occupied, 0 to 1, if it runs in this process.
    pub(super) compute: Option<f64>,
}

/// An interval says nothing about a change if a checkpoint or an evaluation held the run up for more than this share of it, unless
/// [`MOST_PAUSED`] intervals in a row were like that.
const PAUSED: f64 = 0.02;
const MOST_PAUSED: u32 = 10;

/// Counts the intervals in a row that said nothing because the run paused.
#[derive(Default)]
pub(super) struct Pauses(u32);

impl Pauses {
    /// Whether this interval says nothing.
    pub(super) fn says_nothing(&mut self, seen: &Observation) -> bool {
        let says_nothing = seen.paused > PAUSED && self.0 < MOST_PAUSED;
        self.0 = if says_nothing { self.0 + 1 } else { 0 };
        says_nothing
    }
}

/// The load of a stage in an interval.
#[derive(Clone, Debug)]
pub(super) struct StageLoad {
    pub(super) name: String,
    /// Its replicas at the end of the interval.
    pub(super) replicas: usize,
    /// Seconds in which its replicas were occupied, summed up.
    pub(super) useful: f64,
    /// The part of `useful` in which their code ran.
    pub(super) busy: f64,
    /// Bytes of memory that a replica is expected to need.
    pub(super) replica_bytes: f64,
}

impl Observation {
    /// Rows per second.
    pub(super) fn rate(&self) -> f64 {
        self.rows / self.seconds
    }

    /// CPU seconds per row of all that is not scaled: decoding, dense compute, shards, network.
    pub(super) fn other_cpu_per_row(&self) -> f64 {
        let scaled: f64 = self.scalable.iter().map(|stage| stage.busy).sum();
        (self.cpu - scaled).max(0.0) / self.rows
    }

    /// The share of its time that a scalable stage was occupied, 0 to 1.
    pub(super) fn occupied(&self, at: usize) -> f64 {
        let stage = &self.scalable[at];
        (stage.useful / (self.seconds * stage.replicas as f64)).min(1.0)
    }
}

/// A shorter interval says too little.
const SHORTEST: f64 = 0.5;

/// In an interval, each scalable stage must have taken at least this many batches, and each replica of it [`BATCHES_EACH`]: a
/// batch of the batch stage is a whole window, whose rows go on in one burst.
const BATCHES: u64 = 8;
const BATCHES_EACH: u64 = 2;

/// The waits of stages that a checkpoint or an evaluation holds up.
const PAUSES: [&str; 2] = ["checkpoint", "evaluation"];

/// Turns the growing meters of a run into intervals.
pub(super) struct MeterReader {
    scalable: Vec<String>,
    before: Option<Report>,
    memory: MemoryBudget,
}

/// A replica holds its input, which for `batch` is a window, and its output, and the allocator keeps as much again.
const HELD: f64 = 2.0;

/// Bytes of memory that a replica of this stage needs, by what it has taken and sent so far.
fn replica_bytes(stage: &StageReport) -> f64 {
    let per = |bytes: u64, of: u64| bytes as f64 / of.max(1) as f64;
    let rows = per(stage.rows_in, stage.items_in);
    HELD * (per(stage.bytes_in, stage.items_in) + rows * per(stage.bytes_out, stage.rows_out))
}

impl MeterReader {
    /// For these stages.
    pub(super) fn new(scalable: Vec<String>, memory: MemoryBudget) -> Self {
        Self { scalable, before: None, memory }
    }

    /// Returns the interval up to this report, and begins the next one. If too little happened in the interval, returns `None`, and the
    /// interval goes on.
    pub(super) fn read(&mut self, report: &Report) -> Option<Observation> {
        let Some(before) = &self.before else {
            self.before = Some(report.clone());
            return None;
        };
        let seconds = report.wall.saturating_sub(before.wall).as_secs_f64();
        let last = report.stages.last().and_then(|stage| change(before, stage))?;
        let mut scalable = Vec::new();
        for name in &self.scalable {
            let stage = report.stage(name)?;
            let change = change(before, stage)?;
            if change.items < BATCHES.max(BATCHES_EACH * stage.replicas as u64) {
                return None;
            }
            scalable.push(StageLoad {
                name: name.clone(),
                replicas: stage.replicas.max(1),
                useful: change.useful,
                busy: change.busy,
                replica_bytes: replica_bytes(stage),
            });
        }
        let compute = report.stage(COMPUTE).and_then(|stage| change(before, stage));
        if seconds < SHORTEST || last.rows == 0.0 || compute.as_ref().is_some_and(|compute| compute.items < BATCHES) {
            return None;
        }
        let fixed = report.stages.iter().filter(|stage| !self.scalable.contains(&stage.name)).chain(&report.services);
        let occupied = |stage: &StageReport| {
            change(before, stage).map_or(0.0, |change| change.useful / (seconds * stage.replicas.max(1) as f64))
        };
        let others_occupied = fixed.map(occupied).fold(0.0, f64::max).min(1.0);
        let last_scalable = report.stages.iter().rposition(|stage| self.scalable.contains(&stage.name));
        let behind = last_scalable.and_then(|at| report.stages.get(at + 1));
        let starved = |stage: &StageReport| {
            change(before, stage).map_or(0.0, |change| change.starved / (seconds * stage.replicas.max(1) as f64))
        };
        let starved_behind = behind.map_or(0.0, starved).min(1.0);
        let held_up = |stage: &StageReport| change(before, stage).map_or(0.0, |change| change.paused);
        let paused = (report.stages.iter().map(held_up).fold(0.0, f64::max) / seconds).min(1.0);
        let cpu = report.machine.cpu.saturating_sub(before.machine.cpu).as_secs_f64();
        let compute = compute.map(|compute| (compute.useful / seconds).min(1.0));
        let free_bytes = self.memory.free_beside(report.machine.resident_bytes);
        self.before = Some(report.clone());
        let rows = last.rows;
        Some(Observation { seconds, rows, cpu, scalable, others_occupied, starved_behind, paused, free_bytes, compute })
    }
}

struct StageChange {
    items: u64,
    rows: f64,
    useful: f64,
    busy: f64,
    starved: f64,
    /// Seconds of all replicas in [`PAUSES`].
    paused: f64,
}

/// The change of the meters of a stage or a service since the report `before`.
fn change(before: &Report, stage: &StageReport) -> Option<StageChange> {
    let was = before.stages.iter().chain(&before.services).find(|was| was.name == stage.name)?;
    let busy = stage.busy.saturating_sub(was.busy).as_secs_f64();
    Some(StageChange {
        items: stage.items_in.saturating_sub(was.items_in),
        rows: stage.rows_in.saturating_sub(was.rows_in) as f64,
        useful: busy + stage.waiting.saturating_sub(was.waiting).as_secs_f64(),
        busy,
        starved: stage.starved.saturating_sub(was.starved).as_secs_f64(),
        paused: pauses(stage).saturating_sub(pauses(was)).as_secs_f64(),
    })
}

fn pauses(stage: &StageReport) -> Duration {
    PAUSES.iter().filter_map(|wait| stage.waits.get(*wait)).map(|wait| wait.total).sum()
}
