//! Download: waits for the device, reads the results, and checks that they are finite. The buffers are free after that.

use std::sync::Arc;

use super::BatchInFlight;
use super::layout::{FINDING, found, take};
use crate::params::name_at;
use crate::torch::non_finite::{ModelInfo, gradient_symptom, loss_symptom, non_finite_error, row_symptom};
use crate::transfer::{DeviceOutput, QueuedStep};
use crate::{DenseBatch, ModelError, StepOutput, losses_sum};

/// A step in the device's queue.
pub(super) struct TorchStep {
    pub(super) batch: BatchInFlight,
    pub(super) info: Arc<ModelInfo>,
}

impl QueuedStep for TorchStep {
    fn wait(self: Box<Self>, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<DeviceOutput, ModelError> {
        let BatchInFlight { mut buffers, upload, download, return_to, .. } = self.batch;
        if batch.labels.len() != upload.labels.len() || batch.unique_rows.len() != upload.unique_rows.len() {
            return Err(ModelError::Batch(
                "`wait` was called with another batch than the one that was uploaded".into(),
            ));
        }
        let (words, device_time) = buffers.wait()?;
        take(words, &download.logits, &mut out.logits);
        take(words, &download.row_grads, &mut out.row_grads);
        let mut output = DeviceOutput { dense_grads: None, device_time };
        if let Some(at) = &download.dense_grads {
            take(words, at, output.dense_grads.insert(Vec::new()));
        }
        let name = |at| found(words, download.findings.start + at).and_then(|place| name_at(&self.info.params, place));
        let (parameter, gradient) = (name(0), name(FINDING));
        // If the uploader was dropped, the buffers are dropped, too.
        let _ = return_to.send(buffers);
        out.loss = losses_sum(&out.logits, batch.labels, &self.info.label_weights, batch.weights) / batch.rows as f64;
        match symptom(out, self.info.shape.row_dim, gradient) {
            Some(symptom) => Err(non_finite_error(batch, self.info.shape, parameter, &symptom)),
            None => Ok(output),
        }
    }
}

/// The first thing that is not finite, in the order in which a step meets them.
fn symptom(out: &StepOutput, row_dim: usize, gradient: Option<&str>) -> Option<String> {
    loss_symptom(out).or_else(|| row_symptom(out, row_dim)).or_else(|| gradient.map(gradient_symptom))
}
