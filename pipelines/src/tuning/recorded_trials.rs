//! The trials of a tuner, with the adjustments that the report of the run shows.

use forebay_actors::Adjustment;
use forebay_base::{Trial, TrialState, Trials};

use super::observation::{Observation, Pauses};

/// Intervals that say whether a change helped, unless the first one is clear.
pub(super) const VERIFIED_BY: usize = 2;

/// The trials of changes `C`. The rate is the throughput of the run.
pub(super) struct RecordedTrials<C> {
    trials: Trials<C>,
    pauses: Pauses,
    adjustments: Vec<Adjustment>,
}

impl<C: Clone + PartialEq> RecordedTrials<C> {
    /// The first interval is the start of the run, if it `settles`.
    pub(super) fn new(settles: bool) -> Self {
        Self { trials: Trials::new(VERIFIED_BY, settles), pauses: Pauses::default(), adjustments: Vec::new() }
    }

    /// The changes so far, the newest [`Adjustment::MOST_KEPT`].
    pub(super) fn adjustments(&self) -> &[Adjustment] {
        &self.adjustments
    }

    /// Whether a change is to be verified, so that nothing else may change.
    pub(super) fn is_trying(&self) -> bool {
        self.trials.is_trying()
    }

    /// Changes that did not help in conditions like these.
    pub(super) fn failed<'a>(&'a self, conditions: &'a [f64]) -> impl Iterator<Item = &'a Trial<C>> {
        self.trials.failed(conditions)
    }

    /// Takes note of an interval. Notes in the last adjustment whether it has helped.
    pub(super) fn observe(&mut self, seen: &Observation) -> TrialState<C> {
        if self.pauses.says_nothing(seen) {
            return TrialState::Pending;
        }
        let state = self.trials.observe(seen.rate());
        if let TrialState::Kept(trial) | TrialState::Undone(trial) = &state
            && let Some(last) = self.adjustments.last_mut()
        {
            last.rows_per_second_after = Some(trial.rate());
            last.rolled_back = matches!(state, TrialState::Undone(_));
        }
        state
    }

    /// Begins the trial of a change, as [`Trials::begin`] does.
    pub(super) fn begin(&mut self, change: C, conditions: Vec<f64>, needed: f64, adjustment: Adjustment) {
        if self.adjustments.len() >= Adjustment::MOST_KEPT {
            self.adjustments.remove(0);
        }
        self.adjustments.push(adjustment);
        self.trials.begin(change, conditions, needed);
    }
}
