//! How far the plan reproduces the run that it was measured from.

use super::Machines;
use super::assumption::count;
use super::bounds::{Bound, Costs};
use super::profile::RunProfile;

/// What the measured run reached of the rows per second that its lowest bound allows.
pub(super) struct Reached {
    pub(super) rate: f64,
    pub(super) bound: Bound,
}

impl Reached {
    pub(super) fn share(&self) -> f64 {
        self.rate / self.bound.rate
    }

    /// The share of the speed of cores, compute and shards that a run like this one reaches. It is below 1 because stages on few cores wait
    /// for each other, and other programs may use the cores. 1 for a run of several processes: their machines and networks are not known.
    pub(super) fn attained(&self, profile: &RunProfile) -> f64 {
        if profile.settings.placement.is_one_process() { self.share().min(1.0) } else { 1.0 }
    }

    /// How far the plan reproduces the measured run. `given`: the option says what a run reaches.
    pub(super) fn words(&self, profile: &RunProfile, given: bool) -> String {
        let (share, high) = (100.0 * self.share(), 1.0 / self.share());
        let of = format!("{} of {} rows/s ({})", count(self.rate), count(self.bound.rate), self.bound.name);
        match profile.settings.placement.is_one_process() {
            true if given => format!(", as given; in the measured run, it was {share:.0}%: {of}"),
            true => format!(", as in the measured run: {of}"),
            false if high >= 1.1 => {
                format!("; the measured run reached {share:.0}%: {of}, so the plan may be {high:.1} times too high")
            }
            false => format!("; the measured run reached {share:.0}%: {of}"),
        }
    }
}

/// Compares the measured run with the bounds of its own machines.
pub(super) fn reached(measured: &Costs, profile: &RunProfile) -> Option<Reached> {
    let placement = &profile.settings.placement;
    let machines = Machines { readers: placement.readers, ps: placement.ps, trainers: placement.trainers };
    let bound = measured.bounds(machines)?.into_iter().next()?;
    let rate = profile.rows() / (profile.report.wall.as_secs_f64() - profile.start_seconds()).max(1e-3);
    Some(Reached { rate, bound })
}
