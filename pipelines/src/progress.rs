//! The progress of a run: rows, steps, recent logloss and AUC; of several labels those of the first.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_models::{LabelRows, RunningAuc, StepOutput, loss_sum};
use serde::Serialize;

use crate::flow::TrainBatch;

/// Rows over which the running logloss decays.
const WINDOW_ROWS: f64 = 100_000.0;

/// The counters of a run. The train stage updates them; any thread may read them.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<State>>);

struct State {
    start: Instant,
    steps: u64,
    rows: u64,
    loss: f64,
    weight: f64,
    auc: RunningAuc,
    device: Duration,
}

/// The state of a run at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Steps (batches) trained, those before the run was resumed included.
    pub steps: u64,
    /// Rows trained on, those before the run was resumed included.
    pub rows: u64,
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
            steps: 0,
            rows: 0,
            loss: 0.0,
            weight: 0.0,
            auc: RunningAuc::default(),
            device: Duration::ZERO,
        })))
    }
}

impl Progress {
    /// The run goes on after this many rows and steps of earlier processes.
    pub(crate) fn goes_on_after(&self, rows: u64, steps: u64) {
        let mut state = self.0.lock().expect("no holder of this lock panics");
        (state.rows, state.steps) = (rows, steps);
    }

    /// Records a step over a batch. Of several labels it counts the first.
    pub(crate) fn step(&self, output: &StepOutput, batch: &TrainBatch) {
        let (weights, count) = (batch.weights(), batch.labels.len().checked_div(batch.rows).unwrap_or(1));
        if count == 1 {
            return self.first_label(batch.rows, output.loss, &output.logits, &batch.labels, weights);
        }
        let LabelRows { logits, labels, weights, .. } = LabelRows::of(&output.logits, &batch.labels, weights, 0, count);
        let loss = loss_sum(&logits, &labels, weights.as_deref()) / labels.len().max(1) as f64;
        self.first_label(batch.rows, loss, &logits, &labels, weights.as_deref());
    }

    /// Records a step over `all` rows: the mean loss of the `n` that have the first label, its logits `[n]`, its values `[n]`, and if the
    /// rows have weights, these `[n]`.
    fn first_label(&self, all: usize, loss: f64, logits: &[f32], labels: &[f32], weights: Option<&[f32]>) {
        let mut state = self.0.lock().expect("no holder of this lock panics");
        let rows = labels.len() as f64;
        let keep = (-rows / WINDOW_ROWS).exp();
        state.steps += 1;
        state.rows += all as u64;
        // The mean is over rows, the running one over their weights.
        state.loss = state.loss * keep + loss * rows;
        state.weight =
            state.weight * keep + weights.map_or(rows, |weights| weights.iter().map(|&weight| f64::from(weight)).sum());
        state.auc.add(logits, labels, weights);
    }

    /// Adds the device time of a step.
    pub(crate) fn device(&self, time: Duration) {
        self.0.lock().expect("no holder of this lock panics").device += time;
    }

    /// The current state.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.0.lock().expect("no holder of this lock panics");
        Snapshot {
            seconds: state.start.elapsed().as_secs_f64(),
            steps: state.steps,
            rows: state.rows,
            logloss: if state.weight > 0.0 { state.loss / state.weight } else { 0.0 },
            auc: state.auc.value(),
            device_seconds: state.device.as_secs_f64(),
        }
    }
}
