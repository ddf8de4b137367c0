//! `download`: waits for the device, checks that what came back is finite, and makes the gradients of the batch of it.
//!
//! Blocks its thread until the device has finished a step and copied its results, so it needs a thread of its own.

use std::time::Instant;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_models::StepOutput;
use forebay_models::transfer::{DeviceOutput, QueuedStep};

use crate::fault::model_fault;
use crate::flow::{DeviceBatch, GradBatch};
use crate::progress::Progress;

use super::train::Steps;

/// The stage.
pub struct Download {
    output: StepOutput,
    steps: Steps,
    progress: Progress,
}

impl Download {
    /// Tells `progress` of every step.
    pub fn new(progress: Progress) -> Self {
        Self { output: StepOutput::default(), steps: Steps::default(), progress }
    }

    /// Goes on after `before` steps; each counts for so many `trainers`.
    pub(crate) fn after(mut self, (before, trainers): (u64, u64)) -> Self {
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
        let asked = Instant::now();
        let results = match device {
            Some(launched) => launched.wait(&batch.dense_batch(), &mut self.output).map_err(model_fault)?,
            None => {
                self.output = StepOutput::default();
                DeviceOutput { dense_grads: batch.dense.is_some().then(Vec::new), ..DeviceOutput::default() }
            }
        };
        cx.meter().waiting("device", asked.elapsed());
        self.progress.device(results.device_time);
        self.progress.step(self.output.loss, &self.output.logits, &batch.train.labels);
        out.send(self.steps.grads(batch, &mut self.output, results.dense_grads)).await
    }
}
