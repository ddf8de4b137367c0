//! `download`: waits for the results of a step, checks that they are finite, and makes the [`GradBatch`] from them.
//!
//! It needs its own thread, because it blocks until the device has finished the step and copied its results.

use forebay_actors::{BarrierNumber, Fault, Outbox, Stage, StageCx};
use forebay_batches::{DeviceBatch, GradBatch};
use forebay_models::StepOutput;
use forebay_models::transfer::{DeviceOutput, QueuedStep};

use crate::fault::model_fault;
use crate::metrics::progress::Progress;
use crate::trainer_count::TrainerCount;

use super::train::Steps;

/// The `download` stage.
pub struct Download {
    output: StepOutput,
    steps: Steps,
    progress: Progress,
}

impl Download {
    /// Reports every step to `progress`.
    pub fn new(progress: Progress) -> Self {
        Self { output: StepOutput::default(), steps: Steps::default(), progress }
    }

    /// Counts steps from `before`, and raises the count by `trainers` with each step.
    pub(crate) fn after(mut self, (before, trainers): (u64, TrainerCount)) -> Self {
        self.steps = Steps::after(before, trainers);
        self
    }
}

impl Stage for Download {
    type In = DeviceBatch<Box<dyn QueuedStep>>;
    type Out = GradBatch;

    fn describe(&self) -> String {
        "from the device".into()
    }

    async fn on_batch(&mut self, batch: Self::In, cx: &StageCx, out: &mut Outbox<GradBatch>) -> Result<(), Fault> {
        let DeviceBatch { batch, device } = batch;
        let results = match device {
            Some(launched) => {
                let wait = || launched.wait(&batch.dense_batch(), &mut self.output);
                cx.meter().waiting_in_place("device", wait).map_err(model_fault)?
            }
            None => {
                self.output = StepOutput::default();
                DeviceOutput { dense_grads: batch.dense.is_some().then(Vec::new), ..DeviceOutput::default() }
            }
        };
        self.progress.device(results.device_time);
        self.progress.step(&self.output, &batch.train);
        out.send(self.steps.grads(batch, &mut self.output, results.dense_grads)).await
    }

    async fn on_barrier(
        &mut self,
        barrier: BarrierNumber,
        _cx: &StageCx,
        _out: &mut Outbox<GradBatch>,
    ) -> Result<(), Fault> {
        self.progress.barrier(barrier);
        Ok(())
    }
}
