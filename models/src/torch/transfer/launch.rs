//! Launch: the step over a batch on the device, queued kernel by kernel. Does not wait for the device.

use std::sync::Arc;

use tch::{TchError, Tensor};

use super::OnDevice;
use super::download::{Facts, InQueue};
use super::layout::{FINDING, find_non_finite, floats, indices};
use crate::ModelError;
use crate::torch::{TorchBatch, TorchModel};
use crate::transfer::{Launched, Uploaded};

/// The step of [`DenseModel::launch`](crate::DenseModel::launch).
pub(in crate::torch) fn launch(
    model: &mut TorchModel,
    batch: Uploaded,
    facts: &Arc<Facts>,
) -> Result<Box<dyn Launched>, ModelError> {
    let mut batch: OnDevice = batch.take()?;
    let (words, results) = batch.slot.arrived()?;
    if let Some(at) = &batch.up.params {
        model.params.flat.f_copy_(&floats(&words, at)?)?;
    }
    let inputs = TorchBatch::over(&words, &batch.up, model.shape)?;
    let logits = model.forward(&inputs)?;
    let (row_grads, grad) = model.differentiate(&logits, &inputs)?;
    drop(inputs);
    let down = &batch.down;
    tch::no_grad(|| -> Result<(), TchError> {
        floats(&results, &down.logits)?.f_copy_(&logits)?;
        let mut place = floats(&results, &down.row_grads)?;
        match row_grads {
            Some(grads) => place.f_copy_(&grads.f_reshape([-1])?)?,
            None => drop(place.f_zero_()?),
        }
        find_non_finite(&model.params.flat, &results, down.findings.start)?;
        find_non_finite(&grad, &results, down.findings.start + FINDING)?;
        match &down.dense_grads {
            Some(at) => floats(&results, at)?.f_copy_(&grad),
            None => model.optimizer.step(&mut model.params.flat, grad),
        }
    })?;
    batch.slot.download()?;
    Ok(Box::new(InQueue { batch, facts: Arc::clone(facts) }))
}

impl TorchBatch {
    /// The batch that lies in `words`, over that memory: nothing is copied.
    fn over(words: &Tensor, up: &super::Up, shape: crate::BatchShape) -> Result<TorchBatch, TchError> {
        let rows = up.labels.len() as i64;
        let unique_rows = floats(words, &up.unique_rows)?.f_view([-1, shape.row_dim as i64])?;
        Ok(TorchBatch {
            rows,
            slots: shape.slots as i64,
            dense: floats(words, &up.dense)?.f_view([rows, shape.dense as i64])?,
            labels: floats(words, &up.labels)?,
            // A leaf of its own over the same memory: autograd sums its gradient per key.
            unique_rows: unique_rows.f_detach()?.f_set_requires_grad(true)?,
            values: indices(words, &up.values)?,
            offsets: up.offsets.as_ref().map(|at| indices(words, at)).transpose()?,
            training: true,
        })
    }
}
