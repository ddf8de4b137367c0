//! Where the dense parameters are when they are not in the trainer's own model.
//!
//! Comes in: gradients of batches. Goes out: the parameters to compute the next batch with. Both wait for whoever keeps them.
//! Today these are the ps processes; an exchange between the trainers themselves would stand behind the same two calls.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::Fault;

use crate::flow::{BatchId, TrainBatch};

/// Keeps the dense parameters of several trainers.
#[async_trait]
pub(crate) trait DenseStore: Send + Sync {
    /// The parameters as they are now, `[P]`, in the order of the model's. Cancel safe.
    async fn pull(&self) -> Result<Arc<Vec<f32>>, Fault>;

    /// Applies the gradient of the mean loss over the `rows` rows of a batch, `[P]` (empty: the batch had no rows, but the
    /// step waits for it). Applied once, however often it is sent.
    async fn push(&self, id: BatchId, step: u64, rows: u64, grads: Vec<f32>) -> Result<(), Fault>;
}

/// What the stages of a trainer share with other processes; the default: nothing.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    /// Told of every batch before it is looked up. Batches without rows end there, unless they are part of a step.
    pub(crate) begun: Option<Begun>,
    /// Told of every batch whose gradients are applied. With it, each is applied once, however often it comes.
    pub(crate) done: Option<Done>,
    /// Where the dense parameters are, if not in the trainer's model.
    pub(crate) dense: SharedDense,
    /// Trainers that take each step together.
    pub(crate) in_step: Option<u32>,
    /// Steps that were taken before this trainer began, and trainers that count steps beside it.
    pub(crate) steps: (u64, u64),
}

/// Told of a batch that is done.
pub(crate) type Done = Arc<dyn Fn(BatchId) + Send + Sync>;

/// Told of a batch that begins.
pub(crate) type Begun = Arc<dyn Fn(&TrainBatch) + Send + Sync>;

/// `None`: in the trainer's own model.
pub(crate) type SharedDense = Option<Arc<dyn DenseStore>>;
