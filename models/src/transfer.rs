//! A step in three parts, for a device with memory of its own: copies overlap with compute.
//!
//! [`BatchUpload::upload`] copies a batch to the device, [`DenseModel::launch`](crate::DenseModel::launch) puts the step in the
//! device's queue, [`QueuedStep::wait`] copies the results back. Each part may run on a thread of its own. A batch moves through
//! them by value, so two parts never use it at once. Only the last part waits for the device.

use std::any::Any;
use std::time::Duration;

use crate::{DenseBatch, ModelError, StepOutput};

/// Copies batches to the device of one model. [`DenseModel::uploader`](crate::DenseModel::uploader) makes it.
pub trait BatchUpload: Send {
    /// Checks a batch and starts its copy. The caller may change the batch when this returns. With `params`, `[flat_len]`, the
    /// step computes with these parameters, leaves the optimizer alone, and returns their gradient.
    ///
    /// # Errors
    /// [`ModelError::Batch`] if the batch does not fit, [`ModelError::Device`] if the device has no memory for it.
    fn upload(&mut self, batch: &DenseBatch<'_>, params: Option<&[f32]>) -> Result<UploadedBatch, ModelError>;
}

/// A batch on its way to the device. Only the model that made the [`BatchUpload`] can use it.
pub struct UploadedBatch(Box<dyn Any + Send>);

impl UploadedBatch {
    /// Wraps the backend's own type.
    pub fn new(batch: impl Any + Send) -> UploadedBatch {
        UploadedBatch(Box::new(batch))
    }

    /// The backend's own type.
    ///
    /// # Errors
    /// [`ModelError::Batch`] if another backend uploaded the batch.
    pub fn take<T: Any>(self) -> Result<T, ModelError> {
        let other = |_| ModelError::Batch("it was uploaded by another backend than the model's".into());
        self.0.downcast().map(|batch| *batch).map_err(other)
    }
}

/// A step in the queue of the device.
pub trait QueuedStep: Send {
    /// Waits until the step is done and its results are on the host, and fills `out` as [`DenseModel::train`](crate::DenseModel::train)
    /// does. `batch` is the uploaded batch.
    ///
    /// # Errors
    /// [`ModelError::NonFinite`], with the text of [`DenseModel::train`](crate::DenseModel::train). By then this step and the steps
    /// launched after it are applied: the model's parameters are useless. [`ModelError::Device`] if the device failed.
    fn wait(self: Box<Self>, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<DeviceOutput, ModelError>;
}

/// The results of a step on a device, beside its [`StepOutput`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceOutput {
    /// `[flat_len]`, of the mean loss, if the batch was uploaded with parameters.
    pub dense_grads: Option<Vec<f32>>,
    /// Time from the step's first kernel to the end of its last, by the device's clock.
    pub device_time: Duration,
}
