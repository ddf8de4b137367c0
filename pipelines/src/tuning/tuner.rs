//! Decides when to change the replicas of a run, and when to go back. It has no clock and no threads: it receives the meters of one
//! interval after the other, and returns replicas.

use std::time::Duration;

use forebay_actors::{Adjustment, ScaledStage};

use super::choice::{Memory, Rates};
use super::observation::{Observation, Pauses};

/// From this share of its time on, a stage limits the run. It then never loses replicas.
pub(super) const SATURATED: f64 = 0.85;

/// A change must promise to be this many times as fast.
const WORTH: f64 = 1.05;

/// A change that adds replicas is kept if the run is then at least this many times as fast.
pub(super) const HELPED: f64 = 1.03;

/// A change that takes replicas away is kept if the run is then at least this many times as fast.
const HARMLESS: f64 = 0.95;

/// The conditions are as in a failed attempt if rates and costs differ by less than this.
pub(super) const ALIKE: f64 = 0.25;

/// Replicas are removed if for this many intervals the rest would have been occupied for at most [`RELAXED`] of the time.
const IDLE_INTERVALS: u32 = 10;
const RELAXED: f64 = 0.7;

/// If no stage is the limit, a stage that is occupied for less than this share of its time gets no replica to see if that helps.
const WORTH_A_PROBE: f64 = 0.2;

/// If the stage behind had no input for less than this share of its time, more input cannot make the run [`HELPED`] times as fast.
const STARVED: f64 = 1.0 - 1.0 / HELPED;

/// Failed attempts that are remembered.
const MOST_REMEMBERED: usize = 64;

/// Intervals that say whether a change helped, unless the first one is clear.
pub(super) const VERIFIED_BY: usize = 2;

/// Chooses replicas. One interval after a change says nothing yet; the ones after it say whether the change helped.
pub(super) struct Tuner {
    cores: usize,
    phase: Phase,
    /// The change that was made, and is to be verified.
    trial: Option<Trial>,
    failed: Vec<FailedAttempt>,
    /// For each stage, the least replicas: the stage needed them again after they had been removed.
    floors: Vec<usize>,
    /// For each stage, whether replicas were taken away once.
    shrunk: Vec<bool>,
    idle_intervals: u32,
    pauses: Pauses,
    adjustments: Vec<Adjustment>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// In the next interval the run is still changing.
    Settles,
    Runs,
}

/// A change under trial.
struct Trial {
    before: Vec<usize>,
    after: Vec<usize>,
    adds: bool,
    conditions: Conditions,
    /// Rows per second since.
    rates: Vec<f64>,
}

/// An attempt to add replicas that did not help.
struct FailedAttempt {
    before: Vec<usize>,
    after: Vec<usize>,
    conditions: Conditions,
    /// The attempt made the run slower. A smaller change may still help.
    slower: bool,
}

/// The throughput and the cost of a row in each stage.
#[derive(Clone, Debug)]
struct Conditions {
    rate: f64,
    costs: Vec<f64>,
}

impl Conditions {
    fn alike(&self, other: &Self) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= ALIKE * a.max(b);
        near(self.rate, other.rate) && self.costs.iter().zip(&other.costs).all(|(&a, &b)| near(a, b))
    }
}

impl Tuner {
    /// The tuner of a run that has this many cores. The first interval is the start of the run.
    pub(super) fn new(cores: usize) -> Self {
        Self {
            cores,
            phase: Phase::Settles,
            trial: None,
            failed: Vec::new(),
            floors: Vec::new(),
            shrunk: Vec::new(),
            idle_intervals: 0,
            pauses: Pauses::default(),
            adjustments: Vec::new(),
        }
    }

    /// What was changed so far: the newest [`Adjustment::MOST_KEPT`].
    pub(super) fn adjustments(&self) -> &[Adjustment] {
        &self.adjustments
    }

    /// Whether a change is to be verified, so that nothing else may change.
    pub(super) fn is_trying(&self) -> bool {
        self.phase == Phase::Settles || self.trial.is_some()
    }

    /// Takes note of an interval that ended `at` this time of the run. Returns the new replicas of the scalable stages, if they change.
    pub(super) fn observe(&mut self, at: Duration, seen: &Observation) -> Option<Vec<usize>> {
        self.floors.resize(seen.scalable.len(), 1);
        self.shrunk.resize(seen.scalable.len(), false);
        if self.pauses.says_nothing(seen) {
            return None;
        }
        if std::mem::replace(&mut self.phase, Phase::Runs) == Phase::Settles {
            return None;
        }
        let change = match self.trial.take() {
            Some(trial) => self.verify(trial, seen.rate()),
            None => self.decide(at, seen),
        };
        if change.is_some() {
            (self.phase, self.idle_intervals) = (Phase::Settles, 0);
        }
        change
    }

    /// Whether the change under trial helped. Returns the replicas from before if it did not.
    fn verify(&mut self, mut trial: Trial, rate: f64) -> Option<Vec<usize>> {
        trial.rates.push(rate);
        let before = trial.conditions.rate;
        let after = trial.rates.iter().sum::<f64>() / trial.rates.len() as f64;
        let good = if trial.adds { after >= HELPED * before } else { after >= HARMLESS * before };
        if !good && trial.rates.len() < VERIFIED_BY {
            self.trial = Some(trial);
            return None;
        }
        if let Some(adjustment) = self.adjustments.last_mut() {
            (adjustment.rows_per_second_after, adjustment.rolled_back) = (Some(after), !good);
        }
        if good {
            return None;
        }
        let Trial { before: replicas, after: tried, adds, conditions, .. } = trial;
        if adds {
            let slower = after < HARMLESS * before;
            let newer = |known: &FailedAttempt| known.before == replicas && known.after == tried;
            self.failed.retain(|known| !newer(known) || !known.conditions.alike(&conditions));
            if self.failed.len() >= MOST_REMEMBERED {
                self.failed.remove(0);
            }
            self.failed.push(FailedAttempt { before: replicas.clone(), after: tried, conditions, slower });
        } else {
            self.floors = replicas.clone();
        }
        Some(replicas)
    }

    fn decide(&mut self, at: Duration, seen: &Observation) -> Option<Vec<usize>> {
        let now: Vec<usize> = seen.scalable.iter().map(|stage| stage.replicas).collect();
        let costs = seen.scalable.iter().map(|stage| (stage.useful / seen.rows).max(1e-12)).collect();
        let conditions = Conditions { rate: seen.rate(), costs };
        let rates = Rates {
            costs: conditions.costs.clone(),
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
    fn probe(&self, now: &[usize], rates: &Rates, conditions: &Conditions, seen: &Observation) -> Option<Vec<usize>> {
        let mut stages: Vec<usize> = (0..now.len()).filter(|&stage| seen.occupied(stage) >= WORTH_A_PROBE).collect();
        stages.sort_by(|&a, &b| seen.occupied(b).total_cmp(&seen.occupied(a)));
        let probes = stages.into_iter().map(|stage| {
            let mut more = now.to_vec();
            more[stage] += 1;
            more
        });
        let known = |more: &Vec<usize>| {
            let same = |failed: &FailedAttempt| failed.before == now && failed.after == *more;
            self.failed.iter().any(|failed| same(failed) && failed.conditions.alike(conditions))
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
        conditions: &Conditions,
    ) -> Option<Vec<usize>> {
        let grown = |failed: &&FailedAttempt| failed.before == now && failed.after[limit] > now[limit];
        for failed in self.failed.iter().filter(grown).filter(|failed| failed.conditions.alike(conditions)) {
            if !failed.slower {
                return None;
            }
            for ((best, &now), &tried) in best.iter_mut().zip(now).zip(&failed.after) {
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
        conditions: Conditions,
        seen: &Observation,
        why: &str,
    ) -> Vec<usize> {
        let adds = after.iter().zip(&before).any(|(after, before)| after > before);
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
        if self.adjustments.len() >= Adjustment::MOST_KEPT {
            self.adjustments.remove(0);
        }
        self.adjustments.push(Adjustment {
            at,
            stages,
            why: format!("{}{why}", reasons.join(", ")),
            rows_per_second: conditions.rate,
            ..Adjustment::default()
        });
        self.trial = Some(Trial { before, after: after.clone(), adds, conditions, rates: Vec::new() });
        after
    }
}
