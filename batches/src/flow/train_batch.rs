//! A batch of its final size with de-duplicated keys. `batch` makes it, `lookup` adds the table rows.

use forebay_actors::{Batch, BatchName, Lineage};
use forebay_connectors::WindowMark;
use forebay_models::DenseBatch;
use serde::{Deserialize, Serialize};

use super::{BatchId, KeptRows, SlotCounts, heap};

/// The totals of a finished window. It had `rows + rejected` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowEnd {
    /// Batches of the window, the last one included.
    pub batches: u32,
    /// Rows in these batches.
    pub rows: u64,
    /// Rows left out: bad rows, rows that custom stages dropped, and the rows of a dropped short batch.
    pub rejected: u64,
}

/// `n` rows, `t` labels (mostly 1), `d` dense features, `u` unique keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainBatch {
    /// The split and row of its first row; `seq` counts the batches of the run.
    pub lineage: Lineage,
    /// The window it belongs to. `window.closes` is true if `closes` is `Some`.
    pub window: WindowMark,
    /// Number within its window, from 0, as in [`BatchId`](super::BatchId).
    pub index: u32,
    /// `Some` on the last batch of a window that the source closed. Such a batch may be empty: see
    /// [`BatchPlan::mark_window_ends`](crate::BatchPlan::mark_window_ends).
    pub closes: Option<WindowEnd>,
    /// `n`.
    pub rows: usize,
    /// Rows of the other batches of its step, if several trainers take each step together; else 0.
    pub other_rows: u32,
    /// `[n × t]`, row by row, each from 0 to 1.
    pub labels: Vec<f32>,
    /// `[n]`, each at least 0; empty if every row weighs 1.
    pub weights: Vec<f32>,
    /// `[n × d]`, row by row.
    pub dense: Vec<f32>,
    /// `[u]`: every key of the batch once, in the order of first occurrence.
    pub unique: Vec<u64>,
    /// The index in `unique` of every value, bag by bag (row 0 slot 0, row 0 slot 1, ...).
    pub inverse: Vec<u32>,
    /// `[n × slots + 1]`: the offsets of the bags in `inverse`. `None` if every bag has one value.
    pub offsets: Option<Vec<u32>>,
    /// `[slots]`: the counts of each slot. Empty if `batch` does not count: in evaluation, prediction and serving.
    pub slots: Vec<SlotCounts>,
    /// `[values]`: the weight of each value, in the order of `inverse`, 1 in slots without weights; empty if no slot has weights.
    pub value_weights: Vec<f32>,
    /// The columns that a prediction writes beside the scores, in pieces of `n` rows together. Empty in training.
    pub kept: Vec<KeptRows>,
}

impl BatchId {
    /// The id of `batch`.
    pub fn of(batch: &TrainBatch) -> Self {
        Self { epoch: batch.lineage.epoch, window: batch.window.window, index: batch.index }
    }
}

impl TrainBatch {
    /// The weights of the rows, `[n]`; `None` if every row weighs 1.
    pub fn weights(&self) -> Option<&[f32]> {
        (!self.weights.is_empty()).then_some(&self.weights)
    }

    /// The view of this batch that a dense model takes. `rows` are the table rows of `unique`, `[u × row dim]`.
    pub fn dense_batch<'a>(&'a self, rows: &'a [f32]) -> DenseBatch<'a> {
        DenseBatch {
            id: BatchId::of(self).number(),
            rows: self.rows,
            labels: &self.labels,
            weights: self.weights(),
            dense: &self.dense,
            unique_rows: rows,
            inverse: &self.inverse,
            offsets: self.offsets.as_deref(),
            value_weights: self.value_weights(),
        }
    }

    /// The weights of the values, `[values]`; `None` if every value weighs 1.
    pub fn value_weights(&self) -> Option<&[f32]> {
        (!self.value_weights.is_empty()).then_some(&self.value_weights)
    }
}

impl Batch for TrainBatch {
    fn rows(&self) -> usize {
        self.rows
    }

    fn bytes(&self) -> usize {
        heap(&self.labels)
            + heap(&self.weights)
            + heap(&self.dense)
            + heap(&self.unique)
            + heap(&self.inverse)
            + self.offsets.as_deref().map_or(0, heap)
            + heap(&self.slots)
            + heap(&self.value_weights)
            + self.kept.iter().map(KeptRows::bytes).sum::<usize>()
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    fn name(&self) -> Option<BatchName> {
        Some(BatchName { epoch: self.lineage.epoch, window: self.window.window, index: Some(self.index) })
    }
}
