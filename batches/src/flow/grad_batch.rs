//! The gradients of one batch. `train` makes them, `push` applies them.

use forebay_actors::{Batch, BatchName, Lineage};

use super::{BatchId, heap};
use crate::staleness::Ticket;

/// Gradients of `u` unique rows.
#[derive(Debug)]
pub struct GradBatch {
    /// The lineage of the batch that was trained on.
    pub lineage: Lineage,
    /// The batch id. The gradients of an id are applied once.
    pub id: BatchId,
    /// Number of the step, from 1.
    pub step: u64,
    /// Rows (samples) of the batch.
    pub samples: usize,
    /// `[u]`: the unique keys of the batch.
    pub unique: Vec<u64>,
    /// `[u × row dim]`: the gradients of the mean loss, summed per key.
    pub row_grads: Vec<f32>,
    /// `[P]`: the dense gradients of the mean loss. `None` if the trainer's own model keeps the dense parameters.
    pub dense_grads: Option<Vec<f32>>,
    /// Freed when the gradients are applied.
    pub ticket: Ticket,
}

impl Batch for GradBatch {
    fn rows(&self) -> usize {
        self.samples
    }

    fn bytes(&self) -> usize {
        heap(&self.unique) + heap(&self.row_grads) + self.dense_grads.as_deref().map_or(0, heap)
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    fn name(&self) -> Option<BatchName> {
        let BatchId { epoch, window, index } = self.id;
        Some(BatchName { epoch, window, index: Some(index) })
    }
}
