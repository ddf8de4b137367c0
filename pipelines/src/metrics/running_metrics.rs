//! The running logloss and AUC of one trainer, with the rows and steps that it has counted. A checkpoint stores them.

use forebay_models::RunningAuc;

/// Rows over which the running logloss decays.
const WINDOW_ROWS: f64 = 100_000.0;

/// The running metrics of a trainer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningMetrics {
    /// Rows trained on.
    pub(crate) rows: u64,
    /// Steps taken.
    pub(crate) steps: u64,
    /// The sum of the losses of recent rows, and the sum of their weights.
    pub(crate) loss: f64,
    pub(crate) weight: f64,
    pub(crate) auc: RunningAuc,
}

impl RunningMetrics {
    /// Counts a step over `all` rows: the mean loss of the `n` that have a label, their logits `[n]` and labels `[n]`, and if rows have
    /// weights, these `[n]`.
    pub(crate) fn step(&mut self, all: usize, loss: f64, logits: &[f32], labels: &[f32], weights: Option<&[f32]>) {
        let rows = labels.len() as f64;
        let keep = (-rows / WINDOW_ROWS).exp();
        self.steps += 1;
        self.rows += all as u64;
        // The mean is over rows, the running one over their weights.
        self.loss = self.loss * keep + loss * rows;
        self.weight =
            self.weight * keep + weights.map_or(rows, |weights| weights.iter().map(|&weight| f64::from(weight)).sum());
        self.auc.add(logits, labels, weights);
    }

    /// Mean logloss over about the last 100,000 rows; 0 before the first.
    pub(crate) fn logloss(&self) -> f64 {
        if self.weight > 0.0 { self.loss / self.weight } else { 0.0 }
    }
}
