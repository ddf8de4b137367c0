//! A step in three parts, for a model whose device lies behind a slow way: what crosses does so beside compute.
//!
//! [`BatchUpload::upload`] brings a batch to the device, [`DenseModel::launch`](crate::DenseModel::launch) puts the step in the
//! device's queue, [`Launched::wait`] brings back what came of it. Each may stand on a thread of its own, and a batch goes
//! through them by value: nobody can touch it while another part has it. Only the last one waits for the device.

use std::any::Any;
use std::time::Duration;

use crate::{DenseBatch, ModelError, StepOutput};

/// Brings batches to the device of one model. Comes from [`DenseModel::uploader`](crate::DenseModel::uploader).
pub trait BatchUpload: Send {
    /// Checks a batch and starts its copy; the numbers are the caller's own again when this returns. With `params`,
    /// `[flat_len]`, the step computes with these parameters, takes no step, and gives their gradient back.
    ///
    /// # Errors
    /// [`ModelError::Batch`] if the batch does not fit, [`ModelError::Backend`] if the device has no room for it.
    fn upload(&mut self, batch: &DenseBatch<'_>, params: Option<&[f32]>) -> Result<Uploaded, ModelError>;
}

/// A batch on its way to the device: for the model that gave the [`BatchUpload`], and for no other.
pub struct Uploaded(Box<dyn Any + Send>);

impl Uploaded {
    /// Wraps what a backend keeps of a batch under way.
    pub fn new(batch: impl Any + Send) -> Uploaded {
        Uploaded(Box::new(batch))
    }

    /// What was wrapped.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if it is of another type: another backend uploaded it.
    pub fn take<T: Any>(self) -> Result<T, ModelError> {
        let other = |_| ModelError::Backend("a batch was uploaded by another backend than the model's".into());
        self.0.downcast().map(|batch| *batch).map_err(other)
    }
}

/// A step in the queue of the device.
pub trait Launched: Send {
    /// Waits until the step is done and its results are on the host, and fills `out` as
    /// [`DenseModel::train`](crate::DenseModel::train) does. `batch` is the one that was uploaded.
    ///
    /// # Errors
    /// [`ModelError::NonFinite`], worded as in one piece. The step is applied by then, and so are those launched after it:
    /// the model's parameters are of no use any more.
    fn wait(self: Box<Self>, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<Landed, ModelError>;
}

/// What a step gives beside its [`StepOutput`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Landed {
    /// `[flat_len]`, of the mean loss, if the batch was uploaded with parameters.
    pub dense_grads: Option<Vec<f32>>,
    /// From the step's first kernel to the end of its last, by the device's own clock.
    pub device: Duration,
}
