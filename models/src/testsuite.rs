//! A device for the tests of stages that move batches to a device and back (feature `testsuite`), on machines that have none.

use std::time::Duration;

use crate::transfer::{BatchUpload, DeviceOutput, QueuedStep, UploadedBatch};
use crate::{DenseBatch, DenseModel, LrReduction, ModelError, NamedTensor, NativeModel, RowPart, StepOutput};

/// A native model behind a device of software: it owns the uploaded batch, and returns errors when its results are awaited.
pub struct SoftwareDevice(pub NativeModel);

struct Copies;

/// A batch on the device.
struct Copy {
    id: u64,
    rows: usize,
    labels: Vec<f32>,
    weights: Option<Vec<f32>>,
    dense: Vec<f32>,
    unique_rows: Vec<f32>,
    inverse: Vec<u32>,
    offsets: Option<Vec<u32>>,
    value_weights: Option<Vec<f32>>,
}

/// A step whose results are on the device.
struct Done(StepOutput, Result<(), ModelError>);

impl BatchUpload for Copies {
    fn upload(&mut self, batch: &DenseBatch<'_>, params: Option<&[f32]>) -> Result<UploadedBatch, ModelError> {
        assert_eq!(params, None);
        Ok(UploadedBatch::new(Copy {
            id: batch.id,
            rows: batch.rows,
            labels: batch.labels.to_vec(),
            weights: batch.weights.map(<[f32]>::to_vec),
            dense: batch.dense.to_vec(),
            unique_rows: batch.unique_rows.to_vec(),
            inverse: batch.inverse.to_vec(),
            offsets: batch.offsets.map(<[u32]>::to_vec),
            value_weights: batch.value_weights.map(<[f32]>::to_vec),
        }))
    }
}

impl QueuedStep for Done {
    fn wait(self: Box<Self>, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<DeviceOutput, ModelError> {
        assert!(self.1.is_err() || batch.rows == self.0.logits.len());
        *out = self.0;
        self.1.map(|()| DeviceOutput { dense_grads: None, device_time: Duration::from_millis(1) })
    }
}

impl DenseModel for SoftwareDevice {
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError> {
        self.0.train(batch, out)
    }
    fn gradients(&mut self, _: &DenseBatch<'_>, _: &mut StepOutput, _: &mut Vec<f32>) -> Result<(), ModelError> {
        unreachable!("the model keeps its parameters")
    }
    fn reduce_lr(&mut self, reduction: LrReduction) -> Result<(), ModelError> {
        self.0.reduce_lr(reduction)
    }
    fn flat_len(&self) -> usize {
        self.0.flat_len()
    }
    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError> {
        self.0.read_flat(values)
    }
    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError> {
        self.0.set_flat(values)
    }
    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        self.0.predict(batch, logits)
    }
    fn parameters(&self) -> Vec<NamedTensor> {
        self.0.parameters()
    }
    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        self.0.load(tensors)
    }
    fn optimizer(&self) -> Vec<NamedTensor> {
        self.0.optimizer()
    }
    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        self.0.load_optimizer(tensors)
    }
    fn parts(&self) -> Vec<RowPart> {
        self.0.parts()
    }
    fn uploader(&mut self) -> Result<Option<Box<dyn BatchUpload>>, ModelError> {
        Ok(Some(Box::new(Copies)))
    }
    fn launch(&mut self, batch: UploadedBatch) -> Result<Box<dyn QueuedStep>, ModelError> {
        let Copy { id, rows, labels, weights, dense, unique_rows, inverse, offsets, value_weights } = batch.take()?;
        let mut out = StepOutput::default();
        let batch = DenseBatch {
            id,
            rows,
            labels: &labels,
            weights: weights.as_deref(),
            dense: &dense,
            unique_rows: &unique_rows,
            inverse: &inverse,
            offsets: offsets.as_deref(),
            value_weights: value_weights.as_deref(),
        };
        let result = self.0.train(&batch, &mut out);
        Ok(Box::new(Done(out, result)))
    }
}
