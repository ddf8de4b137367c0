//! The learning rates of a run, wherever its optimizers are: they fall when an evaluation reduces them.

use std::sync::Arc;

use forebay_actors::Fault;
use forebay_base::LrReductions;
use forebay_ps::TableClient;
use futures::executor::block_on;

use crate::dense_model::dense_store::DenseStore;
use crate::order::look_ahead::LookAhead;

/// The learning rates outside the dense model of the trainer, which [`StateOutput`](crate::stages::StateOutput) reduces.
pub(crate) struct LearningRates {
    /// The shards reduce theirs.
    pub(crate) table: TableClient,
    /// The dense parameters in the ps, if they are there.
    pub(crate) dense: Option<Arc<dyn DenseStore>>,
    /// The rows that the trainer steps itself, if it looks ahead.
    pub(crate) look_ahead: Option<Arc<LookAhead>>,
}

impl LearningRates {
    /// Reduces the rates of later steps, by their numbers. Replaces earlier reductions. Blocks; no push may be on its way.
    ///
    /// # Errors
    /// A shard died, or a ps is gone.
    pub(super) fn reduce(&self, reductions: &LrReductions) -> Result<(), Fault> {
        block_on(self.table.reduce_lr(reductions))?;
        if let Some(dense) = &self.dense {
            block_on(dense.reduce_lr(reductions))?;
        }
        if let Some(look_ahead) = &self.look_ahead {
            look_ahead.reduce_lr(reductions);
        }
        Ok(())
    }
}
