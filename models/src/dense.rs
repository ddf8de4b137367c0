//! The trait of every dense model: a batch with its unique rows goes in; loss, logits and the gradients of the unique rows
//! come out. Calls compute on the caller's thread and on the model's own threads. No call does IO.
//!
//! A single trainer calls [`DenseModel::train`]. Trainers that share the dense parameters call [`DenseModel::gradients`]; the
//! [`ParamBlock`](crate::ParamBlock)s of the ps processes take the step, and [`DenseModel::set_flat`] brings the new values
//! back. On a device, [`transfer`](crate::transfer) does both in three parts.

use crate::transfer::{BatchUpload, QueuedStep, UploadedBatch};
use crate::{DenseBatch, LrReduction, ModelError, NamedTensor, RowPart, StepOutput, TowerSide, state};

/// Why a model has no vectors.
pub(crate) const NO_VECTORS: &str = "only two towers make vectors of users and items: this model has none";

/// A model over dense features and pulled rows, with its dense parameters and their optimizer inside.
///
/// The rows themselves are updated elsewhere, with the gradient in [`StepOutput::row_grads`].
pub trait DenseModel {
    /// Forward, backward and one step of the dense optimizer.
    ///
    /// # Errors
    /// [`ModelError::Batch`] if the batch does not fit, [`ModelError::NonFinite`] if the loss or a gradient is not
    /// finite. The parameters are then as they were before the call, and the content of `out` is unspecified.
    fn train(&mut self, batch: &DenseBatch<'_>, out: &mut StepOutput) -> Result<(), ModelError>;

    /// Forward and backward without the step: `grads` becomes `[flat_len]`, the gradient of the mean loss, in the order of
    /// [`DenseModel::parameters`]. Neither the parameters nor the optimizer change.
    ///
    /// # Errors
    /// As [`DenseModel::train`]; the content of `grads` is unspecified, too.
    fn gradients(
        &mut self,
        batch: &DenseBatch<'_>,
        out: &mut StepOutput,
        grads: &mut Vec<f32>,
    ) -> Result<(), ModelError>;

    /// From this call on, scales the gradients of a batch to at most the norm `most`: the gradients of the dense parameters and of the
    /// unique rows together, multiplied by `min(1, most / (norm + 1e-6))` (Pascanu et al. 2013).
    ///
    /// # Errors
    /// [`ModelError::Setting`] if `most` is not a finite number above 0, or, as by default, the model does not clip.
    fn set_clip_norm(&mut self, _most: f64) -> Result<(), ModelError> {
        Err(ModelError::Setting("this model does not clip gradients: leave clip_norm out".into()))
    }

    /// Reduces the dense optimizer's learning rate from this call on. Replaces an earlier reduction.
    ///
    /// # Errors
    /// [`ModelError::Setting`], as by default, if the model cannot reduce it.
    fn reduce_lr(&mut self, _reduction: LrReduction) -> Result<(), ModelError> {
        Err(ModelError::Setting("this model cannot reduce its learning rate: leave reduce_lr_on_plateau out".into()))
    }

    /// The threads that the model computes on, the caller's included. `None`, the default, if their number cannot change.
    fn threads(&self) -> Option<usize> {
        None
    }

    /// Computes on this many threads from the next call on. The results have the same bits.
    ///
    /// # Errors
    /// [`ModelError::Setting`] for a number out of range, and, as by default, if the number cannot change; [`ModelError::Threads`] if the
    /// threads cannot be started. The threads are then as before.
    fn set_threads(&mut self, _threads: usize) -> Result<(), ModelError> {
        Err(ModelError::Setting("this model cannot change its threads".into()))
    }

    /// The number of trained values: the lengths of all parameters together. Buffers of a user's module (running means,
    /// for instance) are not counted; they come last in [`DenseModel::parameters`].
    fn flat_len(&self) -> usize;

    /// Copies the trained parameters: `values` becomes `[flat_len]`, in the order of [`DenseModel::parameters`].
    ///
    /// # Errors
    /// [`ModelError::Device`] if the device was lost.
    fn read_flat(&self, values: &mut Vec<f32>) -> Result<(), ModelError>;

    /// Replaces the trained parameters, in the layout of [`DenseModel::read_flat`]. The optimizer's state stays; only
    /// [`DenseModel::train`] uses it.
    ///
    /// # Errors
    /// [`ModelError::Load`] for another length; nothing is changed then. [`ModelError::Device`] if the device was lost.
    fn set_flat(&mut self, values: &[f32]) -> Result<(), ModelError>;

    /// Forward only; `logits` becomes `[n]`. The labels are checked but not used: zeros will do.
    ///
    /// # Errors
    /// As [`DenseModel::train`].
    fn predict(&mut self, batch: &DenseBatch<'_>, logits: &mut Vec<f32>) -> Result<(), ModelError>;

    /// The vectors of one of two towers: `vectors` becomes `[n x vector_dim]`. The inputs of the other tower do not matter. With the cosine
    /// as similarity they have length 1, so that the inner product with a vector of the other tower is the similarity.
    ///
    /// # Errors
    /// As [`DenseModel::predict`]; [`ModelError::Setting`], as by default, if the model has no two towers.
    fn embed(&mut self, _batch: &DenseBatch<'_>, _side: TowerSide, _vectors: &mut Vec<f32>) -> Result<(), ModelError> {
        Err(ModelError::Setting(NO_VECTORS.into()))
    }

    /// The vectors of both towers, as [`embed`](DenseModel::embed) gives them: of users, and of items. The default calls it twice.
    ///
    /// # Errors
    /// As [`DenseModel::embed`].
    fn embed_both(&mut self, batch: &DenseBatch<'_>, vectors: &mut [Vec<f32>; 2]) -> Result<(), ModelError> {
        let [users, items] = vectors;
        self.embed(batch, TowerSide::User, users)?;
        self.embed(batch, TowerSide::Item, items)
    }

    /// The dense parameters, in a fixed order.
    fn parameters(&self) -> Vec<NamedTensor>;

    /// Replaces all dense parameters and resets the optimizer's state.
    ///
    /// # Errors
    /// [`ModelError::Load`] if a tensor is missing, unknown or of another shape; nothing is changed then.
    fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError>;

    /// Whether [`predict`](DenseModel::predict) gives a row the same bits in a batch of any other rows, so that several models with the
    /// same parameters may share a batch. The default is `false`.
    fn has_independent_rows(&self) -> bool {
        false
    }

    /// Prepares for many predictions with the same parameters: copies weights into the order in which products read them, which changes
    /// no bit. The copy takes as much memory as the weights, and is dropped when the parameters change. The default does nothing.
    fn pack_weights(&mut self) {}

    /// The state of the dense optimizer, its number of steps included; names begin with `optimizer.`.
    fn optimizer(&self) -> Vec<NamedTensor>;

    /// Replaces the state of the dense optimizer.
    ///
    /// # Errors
    /// As [`DenseModel::load`].
    fn load_optimizer(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError>;

    /// All that later steps depend on: the parameters, and the optimizer with its step count, whose names begin with `optimizer.`. A model
    /// that [`restore`](DenseModel::restore)s this state computes the same bits. Waits for launched steps.
    ///
    /// The default is [`DenseModel::parameters`] and [`DenseModel::optimizer`]. A model whose steps depend on more state, such as random
    /// numbers or a schedule, adds this state, or returns [`ModelError::State`].
    ///
    /// # Errors
    /// [`ModelError::State`] if the model cannot be saved, [`ModelError::Device`] if the device was lost.
    fn state(&self) -> Result<Vec<NamedTensor>, ModelError> {
        state::join(self.parameters(), self.optimizer())
    }

    /// Replaces all that [`DenseModel::state`] gives, and frees `state`, which is large, as soon as it can. After an error the model must
    /// not be trained.
    ///
    /// # Errors
    /// As [`DenseModel::load`].
    fn restore(&mut self, state: Vec<NamedTensor>) -> Result<(), ModelError> {
        let (parameters, optimizer) = state::split(state);
        self.load(&parameters)?;
        drop(parameters);
        self.load_optimizer(&optimizer)
    }

    /// Copies batches to this model's device, from a thread of its own. `None`, the default, if the model computes in the
    /// memory that its batches are in.
    ///
    /// # Errors
    /// [`ModelError::Device`] if the device fails.
    fn uploader(&mut self) -> Result<Option<Box<dyn BatchUpload>>, ModelError> {
        Ok(None)
    }

    /// Puts the step of an uploaded batch in the device's queue, and does not wait for the step. [`QueuedStep::wait`] checks that the
    /// numbers are finite, after the step.
    ///
    /// # Errors
    /// [`ModelError::Batch`] if the batch is not from this model's [`DenseModel::uploader`], [`ModelError::Device`] if the
    /// device fails.
    fn launch(&mut self, _batch: UploadedBatch) -> Result<Box<dyn QueuedStep>, ModelError> {
        Err(ModelError::Batch("this model has no device to upload to: call `train`".into()))
    }

    /// The parts of a key's row, in order.
    fn parts(&self) -> Vec<RowPart>;

    /// Weights per key: the widths of all parts together.
    fn row_dim(&self) -> usize {
        self.parts().iter().map(|part| part.dim).sum()
    }
}
