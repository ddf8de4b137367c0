//! Where the dense parameters are when they are not in the trainer's own model.
//!
//! Today the ps processes hold them; an all-reduce among the trainers would stand behind the same two calls.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::Fault;

use crate::flow::BatchId;

/// Holds the dense parameters of several trainers.
#[async_trait]
pub(crate) trait DenseStore: Send + Sync {
    /// The parameters as they are now, `[P]`, in the order of the model's parameters. Cancel safe.
    async fn pull(&self) -> Result<Arc<Vec<f32>>, Fault>;

    /// Applies the gradient of the mean loss over the `rows` rows of a batch, `[P]` ; it is empty
    /// if the batch has no rows but its round waits for it. Each batch is applied once, however often it is sent.
    async fn push(&self, id: BatchId, step: u64, rows: u64, grads: Vec<f32>) -> Result<(), Fault>;
}
