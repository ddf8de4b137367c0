//! Launch: queues the kernels of a step over a batch on the device. Does not wait for the device.

use std::sync::Arc;

use tch::{TchError, Tensor};

use super::BatchInFlight;
use super::download::TorchStep;
use super::layout::{FINDING, find_non_finite, floats, indices};
use crate::ModelError;
use crate::torch::TorchBatch;
use crate::torch::batch::labels_view;
use crate::torch::dense_optimizer::Optimizer;
use crate::torch::graph::StepGraph;
use crate::torch::non_finite::ModelInfo;
use crate::transfer::{QueuedStep, UploadedBatch};

/// The step of [`DenseModel::launch`](crate::DenseModel::launch).
pub(in crate::torch) fn launch(
    graph: &mut StepGraph,
    optimizer: &mut Optimizer,
    batch: UploadedBatch,
    info: &Arc<ModelInfo>,
) -> Result<Box<dyn QueuedStep>, ModelError> {
    let mut batch: BatchInFlight = batch.take()?;
    let (words, results) = batch.buffers.tensors()?;
    if let Some(at) = &batch.upload.params {
        graph.params.flat.f_copy_(&floats(&words, at)?)?;
    }
    let inputs = TorchBatch::over(&words, &batch, graph.shape)?;
    let logits = graph.forward(&inputs)?;
    let (row_grads, grad) = graph.differentiate(&graph.loss(&logits, &inputs)?, None, &inputs)?;
    drop(inputs);
    let download = &batch.download;
    tch::no_grad(|| -> Result<(), TchError> {
        floats(&results, &download.logits)?.f_copy_(&logits.f_reshape([-1])?)?;
        let mut place = floats(&results, &download.row_grads)?;
        match row_grads {
            Some(grads) => place.f_copy_(&grads.f_reshape([-1])?)?,
            None => drop(place.f_zero_()?),
        }
        find_non_finite(&graph.params.flat, &results, download.findings.start)?;
        find_non_finite(&grad, &results, download.findings.start + FINDING)?;
        match &download.dense_grads {
            Some(at) => floats(&results, at)?.f_copy_(&grad),
            None => optimizer.step(&mut graph.params.flat, grad),
        }
    })?;
    batch.buffers.start_download()?;
    Ok(Box::new(TorchStep { batch, info: Arc::clone(info) }))
}

impl TorchBatch {
    /// The batch that lies in `words`, over that memory: nothing is copied.
    fn over(words: &Tensor, batch: &BatchInFlight, shape: crate::BatchShape) -> Result<TorchBatch, TchError> {
        let upload = &batch.upload;
        let rows = (upload.labels.len() / shape.labels) as i64;
        let unique_rows = floats(words, &upload.unique_rows)?.f_view([-1, shape.row_dim as i64])?;
        Ok(TorchBatch {
            id: batch.id,
            rows,
            slots: shape.slots as i64,
            dense: floats(words, &upload.dense)?.f_view([rows, shape.dense as i64])?,
            labels: labels_view(floats(words, &upload.labels)?, rows, shape)?,
            weights: upload.weights.as_ref().map(|at| floats(words, at)).transpose()?,
            // A leaf of its own over the same memory: autograd sums its gradient per key.
            unique_rows: unique_rows.f_detach()?.f_set_requires_grad(true)?,
            values: indices(words, &upload.values)?,
            offsets: upload.offsets.as_ref().map(|at| indices(words, at)).transpose()?,
            value_weights: upload.value_weights.as_ref().map(|at| floats(words, at)).transpose()?,
            training: true,
        })
    }
}
