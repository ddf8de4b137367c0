//! The progress of a run: rows, steps, recent logloss and AUC; with several labels, of the first label.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_actors::{BarrierNumber, commas};
use forebay_batches::{LabelsSeen, TrainBatch};
use forebay_models::{LabelRows, StepOutput, label_column, loss_sum};
use serde::Serialize;

use super::running_metrics::RunningMetrics;
use super::slots_seen::SlotsSeen;

/// The counters of a run. The train stage updates them; any thread may read them.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<State>>);

struct State {
    start: Instant,
    metrics: RunningMetrics,
    /// The rows of `metrics` at `start`.
    rows_before: u64,
    /// The steps of the model at `train.from`.
    steps_of_predecessor: u64,
    /// The metrics at the barriers that the cut of a checkpoint may still ask for. `None`: there are no checkpoints.
    at_barriers: Option<BTreeMap<BarrierNumber, RunningMetrics>>,
    device: Duration,
    labels: LabelsSeen,
    /// The rows with weights, and whether one of these weights is above 0.
    weights: (u64, bool),
    /// `None`: slots are not counted.
    slots: Option<SlotsSeen>,
}

/// The state of a run at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Steps (batches) trained, including steps before the run was resumed, and those of the model at `train.from` if it has the state of
    /// its optimizers.
    pub steps: u64,
    /// The part of `steps` that the model at `train.from` had.
    pub steps_of_predecessor: u64,
    /// Rows trained on, including rows before the run was resumed.
    pub rows: u64,
    /// The part of `rows` from before the run was resumed or rolled back, and so not of these `seconds`.
    pub rows_before: u64,
    /// Mean logloss over about the last 100,000 rows, each scored before it was trained on.
    pub logloss: f64,
    /// AUC over recent rows, each scored before it was trained on.
    pub auc: Option<f64>,
    /// Time that the device spent on steps, by its own clock. 0 unless `train.transfers = "apart"`.
    pub device_seconds: f64,
}

impl Snapshot {
    /// Time that the device spent on steps, if its clock is read.
    pub(crate) fn device_time(&self) -> Option<Duration> {
        (self.device_seconds > 0.0).then(|| Duration::from_secs_f64(self.device_seconds))
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            start: Instant::now(),
            metrics: RunningMetrics::default(),
            rows_before: 0,
            steps_of_predecessor: 0,
            at_barriers: None,
            device: Duration::ZERO,
            labels: LabelsSeen::default(),
            weights: (0, false),
            slots: None,
        })))
    }
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// The run continues from a model at `train.from` with this many steps, which count on.
    pub(crate) fn has_predecessor_of(&self, steps: u64) {
        self.state().steps_of_predecessor = steps;
    }

    /// The run goes on after this many rows and steps of earlier processes.
    pub(crate) fn goes_on_after(&self, rows: u64, steps: u64) {
        let mut state = self.state();
        (state.metrics.rows, state.metrics.steps, state.rows_before) = (rows, steps, rows);
    }

    /// The run continues from the metrics of an earlier process.
    pub(crate) fn continues_from(&self, metrics: RunningMetrics) {
        let mut state = self.state();
        state.rows_before = metrics.rows;
        state.metrics = metrics;
    }

    /// Starts to keep the metrics at each barrier, until [`take_at`](Self::take_at) is called for it.
    pub(crate) fn keep_at_barriers(&self) {
        self.state().at_barriers.get_or_insert_default();
    }

    /// A barrier is at the stage that counts the steps.
    pub(crate) fn barrier(&self, barrier: BarrierNumber) {
        let State { metrics, at_barriers, .. } = &mut *self.state();
        if let Some(at_barriers) = at_barriers {
            at_barriers.insert(barrier, metrics.clone());
        }
    }

    /// Takes the metrics of all batches before this barrier. Drops the metrics at earlier barriers.
    pub(crate) fn take_at(&self, barrier: BarrierNumber) -> Option<RunningMetrics> {
        let mut state = self.state();
        let at_barriers = state.at_barriers.as_mut()?;
        let metrics = at_barriers.remove(&barrier);
        at_barriers.retain(|later, _| *later > barrier);
        metrics
    }

    /// The labels trained on in this process.
    pub(crate) fn labels(&self) -> LabelsSeen {
        self.state().labels.clone()
    }

    /// The number of rows trained on in this process, if they have weights and all of these are 0.
    fn rows_without_weight(&self) -> Option<u64> {
        let (rows, positive) = self.state().weights;
        (rows > 0 && !positive).then_some(rows)
    }

    /// Logs that no row trained on in this process had a weight above 0, if the column `weight` has the weights of rows.
    pub(crate) fn warn_of_weights(&self, weight: Option<&str>) {
        if let (Some(column), Some(rows)) = (weight, self.rows_without_weight()) {
            let rows =
                if rows == 1 { "the only row has".to_owned() } else { format!("all {} rows have", commas(rows)) };
            tracing::warn!("columns.weight: {rows} weight 0 (column `{column}`), so the model learned nothing");
        }
    }

    /// Starts to count the slots of each batch.
    pub(crate) fn count_slots(&self, slots: SlotsSeen) {
        self.state().slots = Some(slots);
    }

    /// The slots trained on in this process, if they are counted.
    pub(crate) fn slots(&self) -> Option<SlotsSeen> {
        self.state().slots.clone()
    }

    /// The current metrics.
    pub(crate) fn metrics(&self) -> RunningMetrics {
        self.state().metrics.clone()
    }

    /// Records a step over a batch. With several labels it counts the first.
    pub(crate) fn step(&self, output: &StepOutput, batch: &TrainBatch) {
        let (weights, count) = (batch.weights(), batch.labels.len().checked_div(batch.rows).unwrap_or(1));
        if let Some(slots) = self.slots() {
            slots.add(batch);
        }
        if let Some(weights) = weights {
            let mut state = self.state();
            let (rows, positive) = state.weights;
            state.weights = (rows + weights.len() as u64, positive || weights.iter().any(|weight| *weight > 0.0));
        }
        let seen = self.labels();
        if count == 1 {
            seen.add(0, &batch.labels);
            return self.first_label(batch.rows, output.loss, &output.logits, &batch.labels, weights);
        }
        (0..count).for_each(|label| seen.add(label, &label_column(&batch.labels, label, count)));
        let LabelRows { logits, labels, weights, .. } = LabelRows::of(&output.logits, &batch.labels, weights, 0, count);
        let loss = loss_sum(&logits, &labels, weights.as_deref()) / labels.len().max(1) as f64;
        self.first_label(batch.rows, loss, &logits, &labels, weights.as_deref());
    }

    /// Records a step over `all` rows: the mean loss of the `n` that have the first label, its logits `[n]`, its values `[n]`, and if the
    /// rows have weights, these `[n]`.
    fn first_label(&self, all: usize, loss: f64, logits: &[f32], labels: &[f32], weights: Option<&[f32]>) {
        self.state().metrics.step(all, loss, logits, labels, weights);
    }

    /// Adds the device time of a step.
    pub(crate) fn device(&self, time: Duration) {
        self.state().device += time;
    }

    /// The current state.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let metrics = &state.metrics;
        Snapshot {
            seconds: state.start.elapsed().as_secs_f64(),
            steps: metrics.steps,
            steps_of_predecessor: state.steps_of_predecessor,
            rows: metrics.rows,
            rows_before: state.rows_before,
            logloss: metrics.logloss(),
            auc: metrics.auc.value(),
            device_seconds: state.device.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_job::Columns;

    use super::*;

    #[test]
    fn rows_of_earlier_processes_are_told_apart() {
        let progress = Progress::default();
        progress.goes_on_after(700, 7);
        progress.step(
            &StepOutput { logits: vec![0.0; 2], ..StepOutput::default() },
            &TrainBatch { rows: 2, labels: vec![0.0, 1.0], ..TrainBatch::default() },
        );
        let Snapshot { rows, rows_before, .. } = progress.snapshot();
        assert_eq!((rows, rows_before), (702, 700));
        let next = Progress::default();
        next.continues_from(progress.metrics());
        assert_eq!((next.snapshot().rows, next.snapshot().rows_before), (702, 702));
    }

    #[test]
    fn weights_are_all_zero_until_one_is_not() {
        let progress = Progress::default();
        let step = |weights: Vec<f32>| {
            let rows = weights.len();
            let output = StepOutput { logits: vec![0.0; rows], ..StepOutput::default() };
            progress.step(&output, &TrainBatch { rows, labels: vec![1.0; rows], weights, ..TrainBatch::default() });
        };
        assert_eq!(progress.rows_without_weight(), None, "no row, no warning");
        step(vec![0.0; 3]);
        step(vec![0.0; 2]);
        assert_eq!(progress.rows_without_weight(), Some(5));
        step(vec![0.0, 0.5]);
        step(vec![0.0]);
        assert_eq!(progress.rows_without_weight(), None);
    }

    /// A bug: labels were taken as one after the other, and they are row by row.
    #[test]
    fn each_of_several_labels_is_counted_by_its_own_values() {
        let progress = Progress::default();
        let step = |labels: Vec<f32>| {
            let output = StepOutput { logits: vec![0.0; labels.len()], ..StepOutput::default() };
            progress.step(&output, &TrainBatch { rows: labels.len() / 3, labels, ..TrainBatch::default() });
        };
        let none = f32::NAN;
        step(vec![0.0, 1.0, none, 1.0, 1.0, none]);
        step(vec![]);
        step(vec![1.0, 1.0, none]);
        let columns: Columns = toml::from_str("label = ['click', 'seen', 'buy']\ndense = []\nslots = []").unwrap();
        let wrong = progress.labels().wrong(&columns.label);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("all 3 rows have label 1 (column `seen`)"), "{wrong:?}");
        assert!(wrong[1].contains("no row has a value in column `buy`"), "{wrong:?}");
        assert!(Progress::default().labels().wrong(&columns.label).is_empty(), "no rows, no warning");
    }
}
