//! The gradients of one batch's rows: what `train` makes and `push` applies.

use forebay_actors::{Batch, Lineage};

use super::{BatchId, heap};
use crate::staleness::Ticket;

/// Gradients of `u` unique rows.
#[derive(Debug)]
pub struct GradBatch {
    /// Of the batch they come from.
    pub lineage: Lineage,
    /// Which batch it is: its gradients are applied once.
    pub id: BatchId,
    /// Number of the step, from 1.
    pub step: u64,
    /// Rows (samples) of the batch.
    pub samples: usize,
    /// `[u]`.
    pub unique: Vec<u64>,
    /// `[u × row dim]`: of the mean loss, summed per key.
    pub row_grads: Vec<f32>,
    /// `[P]`: of the dense parameters, of the mean loss, if the trainer's own model does not keep them.
    pub dense_grads: Option<Vec<f32>>,
    /// Freed when this is applied.
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
}
