//! How far the learning rates of a run are reduced while it trains, because a metric has stopped improving.

use serde::{Deserialize, Serialize};

/// How far learning rates are reduced at one step. The default leaves them as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrReduction {
    /// The share of the scheduled rate that is left, above 0 and at most 1.
    pub share: f64,
    /// The least rate. A rate that the schedule makes smaller stays as it is.
    pub min_lr: f64,
}

impl Default for LrReduction {
    fn default() -> Self {
        Self { share: 1.0, min_lr: 0.0 }
    }
}

/// All reductions that a run has made so far. With the schedule they give the rate of each step. The default has no reductions.
///
/// ```
/// use forebay_base::{LearningRate, LrReductions};
///
/// let reductions = LrReductions { factor: 0.5, min_lr: 0.125, after: vec![10, 20, 30] };
/// let rate = |step| LearningRate { reduction: reductions.at(step), ..0.5.into() }.at(step);
/// assert_eq!([10, 11, 20, 21, 31].map(rate), [0.5, 0.25, 0.25, 0.125, 0.125]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LrReductions {
    /// What each reduction leaves of the rates.
    pub factor: f64,
    /// As in [`LrReduction`].
    pub min_lr: f64,
    /// The last step before each reduction.
    pub after: Vec<u64>,
}

impl Default for LrReductions {
    fn default() -> Self {
        Self { factor: 1.0, min_lr: 0.0, after: Vec::new() }
    }
}

impl LrReductions {
    /// Checks values that came from another process.
    ///
    /// # Errors
    /// What is wrong: a factor that is not above 0 and at most 1, or a least rate that is negative or not finite.
    pub fn check(&self) -> Result<(), String> {
        let Self { factor, min_lr, .. } = *self;
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(format!(
                "the factor of the learning rates is {factor}, expected a number above 0 and at most 1"
            ));
        }
        if !(min_lr.is_finite() && min_lr >= 0.0) {
            return Err(format!("the least learning rate is {min_lr}, expected a finite number of at least 0"));
        }
        Ok(())
    }

    /// How far the rates of this step (from 1) are reduced.
    pub fn at(&self, step: u64) -> LrReduction {
        self.of(self.after.iter().filter(|&&after| step > after).count())
    }

    /// How far the rates of steps after the newest reduction are reduced.
    pub fn newest(&self) -> LrReduction {
        self.of(self.after.len())
    }

    /// A power, as in a schedule in steps: the same bits.
    fn of(&self, reductions: usize) -> LrReduction {
        LrReduction { share: self.factor.powf(reductions as f64), min_lr: self.min_lr }
    }
}
