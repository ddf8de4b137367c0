//! Trials of a setting that changes while a run goes on: whether a change has helped, and which changes did not. No clock and no threads.

use std::collections::VecDeque;

/// Two values are alike if they differ by less than this share of the larger one.
const ALIKE: f64 = 0.25;

/// Changes that did not help and are remembered, the newest ones.
const MOST_REMEMBERED: usize = 64;

/// Changes `C` of a setting, one at a time, and those that did not help.
///
/// The run goes on in intervals. The first one after a change says nothing, because the run is still changing. The ones after it say
/// whether the run is fast enough for the change to be kept.
#[derive(Debug)]
pub struct Trials<C> {
    verified_by: usize,
    settles: bool,
    under_way: Option<Trial<C>>,
    failed: VecDeque<Trial<C>>,
}

/// The trial of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial<C> {
    /// The change.
    pub change: C,
    /// The rate before is the first.
    conditions: Vec<f64>,
    needed: f64,
    /// The rates of the intervals since.
    rates: Vec<f64>,
}

impl<C> Trial<C> {
    /// The mean rate since the change.
    pub fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    /// How many times as fast as before the run is since the change.
    pub fn gain(&self) -> f64 {
        self.rate() / self.conditions[0]
    }
}

/// What an interval says.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialState<C> {
    /// Nothing yet: no other change may begin.
    Pending,
    /// No change is under trial.
    Idle,
    /// This change has helped.
    Kept(Trial<C>),
    /// This change has not helped. The caller undoes it.
    Undone(Trial<C>),
}

impl<C: Clone + PartialEq> Trials<C> {
    /// A change has not helped if so many intervals do not show that it has. The run starts in the first interval, if it `settles`.
    pub fn new(verified_by: usize, settles: bool) -> Self {
        Self { verified_by, settles, under_way: None, failed: VecDeque::new() }
    }

    /// Whether a change is to be verified, so that nothing else may change.
    pub fn is_trying(&self) -> bool {
        self.settles || self.under_way.is_some()
    }

    /// The next interval says nothing, because something has changed.
    pub fn settle(&mut self) {
        self.settles = true;
    }

    /// The caller makes this change. It is kept if the rate is then `needed` times the rate of now, which is the first of `conditions`.
    /// They are what must be [alike](Self::failed) for the change to fail again.
    pub fn begin(&mut self, change: C, conditions: Vec<f64>, needed: f64) {
        self.under_way = Some(Trial { change, conditions, needed, rates: Vec::new() });
        self.settle();
    }

    /// Takes note of an interval with this rate.
    pub fn observe(&mut self, rate: f64) -> TrialState<C> {
        if std::mem::take(&mut self.settles) {
            return TrialState::Pending;
        }
        let Some(mut trial) = self.under_way.take() else { return TrialState::Idle };
        trial.rates.push(rate);
        if trial.gain() >= trial.needed {
            return TrialState::Kept(trial);
        }
        if trial.rates.len() < self.verified_by {
            self.under_way = Some(trial);
            return TrialState::Pending;
        }
        self.failed.retain(|known| known.change != trial.change || !are_alike(&known.conditions, &trial.conditions));
        if self.failed.len() >= MOST_REMEMBERED {
            self.failed.pop_front();
        }
        self.failed.push_back(trial.clone());
        self.settle();
        TrialState::Undone(trial)
    }

    /// The changes that did not help in conditions like these, the oldest first: each condition was at most a quarter away.
    pub fn failed<'a>(&'a self, conditions: &'a [f64]) -> impl Iterator<Item = &'a Trial<C>> {
        self.failed.iter().filter(|failed| are_alike(&failed.conditions, conditions))
    }
}

fn are_alike(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(&a, &b)| (a - b).abs() <= ALIKE * a.max(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The end of the trial under way in intervals with these rates, and the number of those that it took.
    fn ended(trials: &mut Trials<u32>, rates: &[f64]) -> (TrialState<u32>, usize) {
        let mut states = rates.iter().map(|&rate| trials.observe(rate)).zip(1..);
        states.find(|(state, _)| *state != TrialState::Pending).unwrap()
    }

    proptest! {
        #[test]
        fn a_change_is_kept_as_soon_as_the_mean_rate_is_enough_and_else_undone_and_remembered(
            needed in 0.5..2.0_f64, rates in prop::collection::vec(0.1..3.0_f64, 6), verified_by in 1..5_usize,
        ) {
            let mut trials = Trials::new(verified_by, true);
            prop_assert_eq!([trials.observe(1.0), trials.observe(1.0)], [TrialState::Pending, TrialState::Idle]);
            trials.begin(7, vec![1.0, 5.0], needed);
            let (state, intervals) = ended(&mut trials, &rates);
            // The first interval settles.
            let means: Vec<f64> = (1..=verified_by).map(|n| rates[1..=n].iter().sum::<f64>() / n as f64).collect();
            let enough = means.iter().position(|&mean| mean >= needed);
            let after = enough.unwrap_or(verified_by - 1);
            prop_assert_eq!(intervals, after + 2);
            let known = |conditions: [f64; 2]| trials.failed(&conditions).map(|known| (known.change, known.gain())).collect();
            let (same, near, far): (Vec<_>, Vec<_>, [Vec<_>; 2]) =
                (known([1.0, 5.0]), known([1.2, 4.1]), [known([1.0, 10.0]), known([0.5, 5.0])]);
            prop_assert_eq!(&far, &[vec![], vec![]]);
            if enough.is_some() {
                prop_assert!(matches!(state, TrialState::Kept(trial) if (trial.change, trial.rate()) == (7, means[after])));
                prop_assert!(same.is_empty() && !trials.is_trying());
            } else {
                prop_assert!(matches!(state, TrialState::Undone(trial) if (trial.change, trial.rate()) == (7, means[after])));
                prop_assert_eq!((&same, &near), (&vec![(7, means[after])], &same));
                prop_assert!(trials.is_trying(), "the run settles after the change is undone");
                prop_assert_eq!(trials.observe(1.0), TrialState::Pending);
            }
            prop_assert_eq!(trials.observe(1.0), TrialState::Idle);
        }

        #[test]
        fn the_newest_failures_are_remembered_once_each(changes in prop::collection::vec(0..200_u32, 0..300)) {
            let (mut trials, mut expected) = (Trials::new(1, false), Vec::new());
            for &change in &changes {
                trials.begin(change, vec![1.0], 1.1);
                prop_assert!(matches!(ended(&mut trials, &[1.0, 1.0]).0, TrialState::Undone(trial) if trial.change == change));
                expected.retain(|&known| known != change);
                expected.push(change);
            }
            let newest = &expected[expected.len().saturating_sub(MOST_REMEMBERED)..];
            let found: Vec<u32> = trials.failed(&[1.0]).map(|failed| failed.change).collect();
            prop_assert_eq!(found, newest);
        }
    }
}
