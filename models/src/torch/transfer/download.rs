//! Download: waits for the device, reads the results, and checks that they are finite. The slot is free after that.

use std::sync::Arc;

use super::OnDevice;
use super::layout::{FINDING, found, take};
use crate::dense::BatchShape;
use crate::params::{Param, name_at};
use crate::torch::model::{blame, gradient_symptom, loss_symptom, row_symptom};
use crate::transfer::{Landed, Launched};
use crate::{DenseBatch, ModelError, StepOutput, logloss};

/// What the checks need to know of the model.
pub(in crate::torch) struct Facts {
    pub(in crate::torch) shape: BatchShape,
    pub(in crate::torch) params: Vec<Param>,
}

/// A step in the device's queue.
pub(super) struct InQueue {
    pub(super) batch: OnDevice,
    pub(super) facts: Arc<Facts>,
}

impl Launched for InQueue {
    fn wait(self: Box<Self>, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<Landed, ModelError> {
        let OnDevice { mut slot, up, down, home } = self.batch;
        if batch.labels.len() != up.labels.len() || batch.unique_rows.len() != up.unique_rows.len() {
            return Err(ModelError::Batch("the results are waited for with another batch than was uploaded".into()));
        }
        let (words, device) = slot.wait()?;
        take(words, &down.logits, &mut out.logits);
        take(words, &down.row_grads, &mut out.row_grads);
        let mut landed = Landed { dense_grads: None, device };
        if let Some(at) = &down.dense_grads {
            take(words, at, landed.dense_grads.insert(Vec::new()));
        }
        let name = |at| found(words, down.findings.start + at).and_then(|place| name_at(&self.facts.params, place));
        let (parameter, gradient) = (name(0), name(FINDING));
        // Whoever uploaded may be gone: the stream of batches has ended.
        let _ = home.send(slot);
        out.loss = logloss(&out.logits, batch.labels);
        match self.facts.symptom(out, gradient) {
            Some(symptom) => Err(blame(batch, self.facts.shape, parameter, &symptom)),
            None => Ok(landed),
        }
    }
}

impl Facts {
    /// The first thing that is not finite, in the order in which a step meets them.
    fn symptom(&self, out: &StepOutput, gradient: Option<&str>) -> Option<String> {
        loss_symptom(out).or_else(|| row_symptom(out, self.shape.row_dim)).or_else(|| gradient.map(gradient_symptom))
    }
}
