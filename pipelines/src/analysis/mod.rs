//! The analysis of a run: its limit, how certain that is, how long the dense compute stands still, and the one change that is most likely
//! to help.
//!
//! All of it follows from the meters ([`StageReport`]) of all processes. A stage is *occupied* while it is busy or waits for something of
//! its own, such as a store or a reply; then its input is there and there is room below. The stage whose occupied share of the run's wall
//! time is near 1 is the limit. The true rate of a stage is its rows per occupied second. So without this stage the rest could run 1 /
//! share times as fast (Kalavri et al., "Three steps is all you need: fast, accurate, automatic scaling decisions for distributed streaming
//! dataflows", OSDI 2018).
//!
//! Read in this order: `load.rs` (how occupied every stage is), `limit.rs` (which of them limits), `others.rs` (which
//! other process a stage waits for), `advice.rs` (what to change).

mod advice;
mod limit;
mod load;
mod others;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use forebay_actors::{StageReport, Verdict, size};
use forebay_job::Job;
use serde::{Deserialize, Serialize};

pub use self::advice::Change;
pub use self::limit::{Certainty, Limit, LimitKind};
pub(crate) use self::load::COMPUTE;
pub use self::load::{BusyCores, Load};
use crate::metrics::process_report::ProcessReport;

/// A run is starting for this long: its meters say nothing yet.
const STARTING: Duration = Duration::from_secs(1);

/// The conclusions from the meters of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Whether the run is under way for less than a second, so that nothing is known yet.
    pub starting: bool,
    /// What limits the run.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// How sure that is.
    #[serde(default)]
    pub certainty: Certainty,
    /// Share of the run's wall time in which the device, or the train stage, did not compute: 0 to 1, the mean of all trainers.
    #[serde(default)]
    pub stall_share: Option<f64>,
    /// The part of `stall_share` in which there was no batch to compute.
    #[serde(default)]
    pub starved_share: Option<f64>,
    /// The change that is most likely to help.
    #[serde(default)]
    pub change: Option<Change>,
    /// Bytes per second of the store, if it is the limit, and more `data.read_ahead` would hardly help.
    #[serde(default)]
    pub store_rate: Option<f64>,
    /// Who used the cores, if threads of the run waited for them for much of their time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<BusyCores>,
    /// All stages, and all shards as one, the most occupied first.
    #[serde(default)]
    pub loads: Vec<Load>,
}

impl Analysis {
    /// Analyses a run of `job` from the reports of its processes. The first process is a trainer. `device` is the compute time of
    /// the GPU by its own clock, if it is known.
    pub fn new(processes: &[&ProcessReport], job: &Job, device: Option<Duration>) -> Self {
        let Some(first) = processes.first() else { return Self::default() };
        let wall = first.report.wall;
        if first.report.verdict == Verdict::Running && wall < STARTING {
            return Self { starting: true, ..Self::default() };
        }
        let (stall_share, starved_share) = stalls(processes, device, wall);
        let loads = load::loads(processes);
        let machines = load::machines(processes);
        let Some((limit, certainty)) = limit::find(processes, &loads, &machines, job) else {
            return Self { stall_share, starved_share, loads, ..Self::default() };
        };
        // The cores that are the limit need no second sentence.
        let cores = load::busy_cores(&machines, processes).filter(|_| limit.kind != LimitKind::Cores);
        let certainty = match certainty {
            // A stage also counts as busy while its thread waits for a core.
            Certainty::Sure if cores.is_some() && limit.computes() => Certainty::Likely,
            certainty => certainty,
        };
        let store_rate = advice::store_rate(&limit, processes, job);
        // More read-ahead is the only change for a stage that waits for the store.
        let change = match store_rate {
            Some(_) => None,
            None => advice::advise(&limit, certainty, &loads, &machines, processes, job),
        };
        Self {
            starting: false,
            limit: Some(limit),
            certainty,
            stall_share,
            starved_share,
            change,
            store_rate,
            cores,
            loads,
        }
    }

    /// The verdict in a few words, for a line of progress: `parse 98%`.
    pub fn short(&self) -> String {
        match &self.limit {
            _ if self.starting => "starting".into(),
            Some(limit) if self.certainty != Certainty::Unclear => {
                // The name of the host says little.
                let name = if limit.kind == LimitKind::Cores { "cores" } else { limit.name.as_str() };
                format!("{name} {:.0}%", 100.0 * limit.share)
            }
            Some(_) => "no clear limit".into(),
            None => String::new(),
        }
    }
}

/// The share of the run in which the dense compute stood still, and the part of it without a batch.
fn stalls(processes: &[&ProcessReport], device: Option<Duration>, wall: Duration) -> (Option<f64>, Option<f64>) {
    let stages: Vec<&StageReport> =
        processes.iter().flat_map(|process| &process.report.stages).filter(|stage| stage.name == COMPUTE).collect();
    if stages.is_empty() {
        return (None, None);
    }
    let mean =
        |share: fn(&StageReport) -> f64| stages.iter().map(|stage| share(stage)).sum::<f64>() / stages.len() as f64;
    let computes = match device {
        Some(device) if !wall.is_zero() => device.as_secs_f64() / wall.as_secs_f64(),
        _ => mean(StageReport::busy_share),
    };
    let stall = (1.0 - computes).clamp(0.0, 1.0);
    (Some(stall), Some(mean(StageReport::starved_share).min(stall)))
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(limit) = &self.limit else {
            return f.write_str(if self.starting { "starting" } else { "no stage has worked yet" });
        };
        let stall = self.stall_share.unwrap_or(0.0);
        match (self.certainty, limit.bound()) {
            (Certainty::Unclear, _) if limit.is_between_stages() => {
                write!(f, "no clear limit: {limit}; dense compute stalls {:.0}%", 100.0 * stall)
            }
            (Certainty::Unclear, _) => {
                let (name, percent) = (&limit.name, 100.0 * limit.share);
                write!(
                    f,
                    "no clear limit: {name} is occupied most, {percent:.0}%; dense compute stalls {:.0}%",
                    100.0 * stall
                )
            }
            (_, Some(bound)) => write!(f, "{bound}-bound {:.0}%: {limit}", 100.0 * stall),
            (_, None) => write!(f, "{limit}; dense compute stalls {:.0}%", 100.0 * stall),
        }?;
        if self.certainty == Certainty::Likely {
            f.write_str(" (likely)")?;
        }
        if let Some(rate) = self.store_rate.filter(|_| self.certainty != Certainty::Unclear) {
            write!(f, "; the store gives {} a second, and more data.read_ahead would hardly help", size(rate as u64))?;
        }
        if let Some(change) = &self.change {
            f.write_str("; ")?;
            change.say(limit, f)?;
        }
        if let Some(cores) = &self.cores {
            write!(f, "; {cores}")?;
        }
        Ok(())
    }
}
