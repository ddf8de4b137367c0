//! Download: waits for the device, reads the results, and checks that they are finite. The slot is free after that.

use std::sync::Arc;

use super::OnDevice;
use super::layout::{FINDING, found, take};
use crate::dense::BatchShape;
use crate::params::Param;
use crate::torch::model::blame;
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
        let [parameter, gradient] = [0, FINDING].map(|at| self.facts.name(found(words, down.findings.start + at)));
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
    fn name(&self, place: Option<usize>) -> Option<&str> {
        let place = place?;
        self.params.iter().find(|param| param.range.contains(&place)).map(|param| param.name.as_str())
    }

    /// The first thing that is not finite, in the order in which a step meets them.
    fn symptom(&self, out: &StepOutput, gradient: Option<&str>) -> Option<String> {
        if !out.loss.is_finite() {
            return Some(format!("the loss is {}", out.loss));
        }
        if let Some(at) = out.row_grads.iter().position(|x| !x.is_finite()) {
            let row = at / self.shape.row_dim;
            return Some(format!("the gradient of unique row {row} is {}", out.row_grads[at]));
        }
        gradient.map(|name| format!("the gradient of {name} is not finite"))
    }
}
