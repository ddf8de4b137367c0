//! Decides when to change the replicas of a run, and when to go back. It has no clock and no threads: it receives the meters of one
//! interval after the other, and returns replicas.

use std::time::Duration;

use forebay_actors::{Adjustment, ScaledStage};
use forebay_base::{Trial, TrialState};

use super::choice::{Memory, Rates};
use super::observation::Observation;
use super::recorded_trials::RecordedTrials;

/// From this share of its time on, a stage limits the run. It then never loses replicas.
pub(super) const SATURATED: f64 = 0.85;

/// A change must promise to be this many times as fast.
const WORTH: f64 = 1.05;

/// A change that adds replicas is kept if the run is then at least this many times as fast.
pub(super) const HELPED: f64 = 1.03;

/// A change that takes replicas away is kept if the run is then at least this many times as fast.
const HARMLESS: f64 = 0.95;

/// Replicas are removed if for this many intervals the rest would have been occupied for at most [`RELAXED`] of the time.
const IDLE_INTERVALS: u32 = 10;
const RELAXED: f64 = 0.7;

/// If no stage is the limit, a stage that is occupied for less than this share of its time gets no replica to see if that helps.
const WORTH_A_PROBE: f64 = 0.2;

/// If the stage behind had no input for less than this share of its time, more input cannot make the run [`HELPED`] times as fast.
const STARVED: f64 = 1.0 - 1.0 / HELPED;

/// The replicas of each stage before and after a change.
#[derive(Clone, PartialEq)]
pub(super) struct ScaleChange {
    before: Vec<usize>,
    after: Vec<usize>,
}

impl ScaleChange {
    fn adds(&self) -> bool {
        self.after.iter().zip(&self.before).any(|(after, before)| after > before)
    }
}

/// Chooses replicas. One interval after a change says nothing yet; the ones after it say whether the change helped.
pub(super) struct Tuner {
    cores: usize,
    /// The conditions of a trial are the throughput, and the cost of a row in each stage.
    pub(super) trials: RecordedTrials<ScaleChange>,
    /// For each stage, the least replicas: the stage needed them again after they had been removed.
    floors: Vec<usize>,
    /// For each stage, whether replicas were taken away once.
    shrunk: Vec<bool>,
    idle_intervals: u32,
}

impl Tuner {
    /// The tuner of a run that has this many cores. The first interval is the start of the run.
    pub(super) fn new(cores: usize) -> Self {
        let (trials, floors, shrunk) = (RecordedTrials::new(true), Vec::new(), Vec::new());
        Self { cores, trials, floors, shrunk, idle_intervals: 0 }
    }

    /// Takes note of an interval that ended `at` this time of the run. Returns the new replicas of the scalable stages, if they change.
    pub(super) fn observe(&mut self, at: Duration, seen: &Observation) -> Option<Vec<usize>> {
        self.floors.resize(seen.scalable.len(), 1);
        self.shrunk.resize(seen.scalable.len(), false);
        let change = match self.trials.observe(seen) {
            TrialState::Pending | TrialState::Kept(_) => None,
            TrialState::Undone(Trial { change, .. }) => {
                if !change.adds() {
                    self.floors = change.before.clone();
                }
                Some(change.before)
            }
            TrialState::Idle => self.decide(at, seen),
        };
        if change.is_some() {
            self.idle_intervals = 0;
        }
        change
    }

    fn decide(&mut self, at: Duration, seen: &Observation) -> Option<Vec<usize>> {
        let now: Vec<usize> = seen.scalable.iter().map(|stage| stage.replicas).collect();
        let costs: Vec<f64> = seen.scalable.iter().map(|stage| (stage.useful / seen.rows).max(1e-12)).collect();
        let conditions = [&[seen.rate()], &costs[..]].concat();
        let rates = Rates {
            costs,
            others_limit: seen.rate() / seen.others_occupied.max(1e-3),
            other_cpu_per_row: seen.other_cpu_per_row(),
            cores: self.cores,
            memory: Memory {
                now: now.clone(),
                each: seen.scalable.iter().map(|stage| stage.replica_bytes).collect(),
                free: seen.free_bytes,
            },
        };
        let saturated: Vec<usize> = (0..now.len()).filter(|&stage| seen.occupied(stage) >= SATURATED).collect();
        let least: Vec<usize> =
            now.iter().enumerate().map(|(at, &n)| if saturated.contains(&at) { n } else { 1 }).collect();
        let crowded = now.iter().sum::<usize>() as f64 + seen.other_cpu_per_row() * seen.rate() > self.cores as f64;
        if !saturated.is_empty() {
            self.idle_intervals = 0;
            let limit = (0..now.len()).max_by(|&a, &b| seen.occupied(a).total_cmp(&seen.occupied(b)))?;
            let best = self.not_as_failed(limit, &now, rates.best(&least), &conditions)?;
            let worth = rates.rate(&best) >= WORTH * seen.rate();
            let adds = best.iter().zip(&now).any(|(best, now)| best > now);
            return (worth && adds).then(|| self.begin(at, now, best, conditions, seen, ""));
        }
        if seen.others_occupied < SATURATED
            && seen.starved_behind >= STARVED
            && let Some(probe) = self.probe(&now, &rates, &conditions, seen)
        {
            return Some(self.begin(at, now, probe, conditions, seen, ", and no stage is the limit"));
        }
        let needed = now.iter().enumerate().map(|(stage, &n)| {
            let needed = (seen.occupied(stage) * n as f64 / RELAXED).ceil() as usize;
            needed.max(if crowded { 1 } else { self.floors[stage] }).min(n)
        });
        let needed: Vec<usize> = needed.collect();
        if needed == now {
            self.idle_intervals = 0;
            return None;
        }
        self.idle_intervals += 1;
        let why = if crowded { " with all cores in use" } else { "" };
        (self.idle_intervals >= IDLE_INTERVALS).then(|| self.begin(at, now, needed, conditions, seen, why))
    }

    /// No stage is the limit, but the run may wait for one: `batch` makes all batches of a window before it sends the first, so the stages
    /// behind it are starved meanwhile. Returns one more replica of the stage that is most occupied, unless that is known not to help.
    fn probe(&self, now: &[usize], rates: &Rates, conditions: &[f64], seen: &Observation) -> Option<Vec<usize>> {
        let mut stages: Vec<usize> = (0..now.len()).filter(|&stage| seen.occupied(stage) >= WORTH_A_PROBE).collect();
        stages.sort_by(|&a, &b| seen.occupied(b).total_cmp(&seen.occupied(a)));
        let probes = stages.into_iter().map(|stage| {
            let mut more = now.to_vec();
            more[stage] += 1;
            more
        });
        let known = |more: &Vec<usize>| {
            self.trials.failed(conditions).any(|failed| failed.change.before == now && failed.change.after == *more)
        };
        let mut fitting = probes.filter(|more| rates.fits(more));
        fitting.find(|more| !known(more))
    }

    /// The choice, made smaller if more replicas of the stage that limits are known to have made the run slower in these
    /// conditions. `None` if they are known not to help.
    fn not_as_failed(
        &self,
        limit: usize,
        now: &[usize],
        mut best: Vec<usize>,
        conditions: &[f64],
    ) -> Option<Vec<usize>> {
        for failed in self.trials.failed(conditions) {
            let change = &failed.change;
            if change.before != now || change.after[limit] <= now[limit] {
                continue;
            }
            // A change that made the run slower may help if it is smaller.
            if failed.gain() >= HARMLESS {
                return None;
            }
            for ((best, &now), &tried) in best.iter_mut().zip(now).zip(&change.after) {
                *best = (*best).min(now + tried.saturating_sub(now) / 2);
            }
        }
        (best != now).then_some(best)
    }

    fn begin(
        &mut self,
        at: Duration,
        before: Vec<usize>,
        after: Vec<usize>,
        conditions: Vec<f64>,
        seen: &Observation,
        why: &str,
    ) -> Vec<usize> {
        let (mut stages, mut reasons) = (Vec::new(), Vec::new());
        for (stage, load) in seen.scalable.iter().enumerate() {
            let (from, to) = (before[stage], after[stage]);
            self.shrunk[stage] |= to < from;
            if to > from && self.shrunk[stage] {
                self.floors[stage] = self.floors[stage].max(to);
            }
            if from != to {
                stages.push(ScaledStage { stage: load.name.clone(), from, to, ..ScaledStage::default() });
            }
            if from != to || seen.occupied(stage) >= SATURATED {
                reasons.push(format!("{} {:.0}% busy", load.name, 100.0 * seen.occupied(stage)));
            }
        }
        let why = format!("{}{why}", reasons.join(", "));
        let adjustment = Adjustment { at, stages, why, rows_per_second: seen.rate(), ..Adjustment::default() };
        let change = ScaleChange { before, after: after.clone() };
        let needed = if change.adds() { HELPED } else { HARMLESS };
        self.trials.begin(change, conditions, needed, adjustment);
        after
    }
}
