//! A batch with the table rows of its keys. `lookup` makes it, `train` consumes it.

use std::sync::Arc;

use forebay_actors::{Batch, BatchName, Lineage};
use forebay_models::DenseBatch;

use super::{TrainBatch, heap};
use crate::staleness::Ticket;

/// A [`TrainBatch`], the table rows of its keys, and its ticket.
#[derive(Debug)]
pub struct ReadyBatch {
    /// Labels, dense features, keys.
    pub train: TrainBatch,
    /// `[u × row dim]`: the table rows of `train.unique`, in that order.
    pub rows: Vec<f32>,
    /// `[P]`: the dense parameters. `None` if the trainer's own model keeps them.
    pub dense: Option<Arc<Vec<f32>>>,
    /// Freed when the gradients are applied.
    pub ticket: Ticket,
}

impl ReadyBatch {
    /// The view of this batch that a dense model takes.
    pub fn dense_batch(&self) -> DenseBatch<'_> {
        self.train.dense_batch(&self.rows)
    }
}

impl Batch for ReadyBatch {
    fn rows(&self) -> usize {
        self.train.rows()
    }

    fn bytes(&self) -> usize {
        self.train.bytes() + heap(&self.rows)
    }

    fn lineage(&self) -> &Lineage {
        &self.train.lineage
    }

    fn name(&self) -> Option<BatchName> {
        self.train.name()
    }
}
