//! The store of the dense parameters when they are not in the trainer's own model: the ps processes hold them.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::Fault;
use forebay_base::LrReductions;
use forebay_models::NamedTensor;
use forebay_ps::PushId;
use futures::future::BoxFuture;

/// Holds the dense parameters that several trainers share.
#[async_trait]
pub(crate) trait DenseStore: Send + Sync {
    /// The current parameters, `[P]`, in the order of the model's parameters. With `after`, the parameters as the round of this step
    /// leaves them: the trainer has handed over its share of that round, and the ps answer when the round is applied. Cancel safe.
    async fn pull(&self, after: Option<u64>) -> Result<Arc<Vec<f32>>, Fault>;

    /// The state of the optimizer, as [`DenseModel::optimizer`](forebay_models::DenseModel::optimizer) gives it, for the model with
    /// these `parameters`. All pushes must have been answered. Cancel safe.
    async fn optimizer(&self, parameters: &[NamedTensor]) -> Result<Vec<NamedTensor>, Fault>;

    /// Hands over the gradients of the mean loss over the `rows` rows of a batch, `[P]`. They are empty for an empty batch of a
    /// round. The future that it returns waits until they are applied. Each id is applied once.
    async fn begin_push(
        &self,
        id: PushId,
        step: u64,
        rows: u64,
        grads: Vec<f32>,
    ) -> Result<BoxFuture<'static, Result<(), Fault>>, Fault>;

    /// Reduces the learning rates of later steps, by their numbers. Replaces earlier reductions, and may be repeated.
    async fn reduce_lr(&self, reductions: &LrReductions) -> Result<(), Fault>;

    /// Declares all pushes of series below this one applied.
    async fn acknowledge_before(&self, series: u64) -> Result<(), Fault>;
}
