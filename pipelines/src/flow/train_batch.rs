//! A batch of the exact size, its keys de-duplicated: what `batch` makes and `lookup` completes.
//!
//! Comes in: nothing. Goes out: [`TrainBatch`]. Nothing blocks.

use forebay_actors::{Batch, Lineage};

use super::heap;

/// `n` rows, `d` dense features, `u` unique keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainBatch {
    /// Where it came from: the split and row of its first row; `seq` counts the batches of the run.
    pub lineage: Lineage,
    /// `[n]`, each 0 or 1.
    pub labels: Vec<f32>,
    /// `[n × d]`, row after row.
    pub dense: Vec<f32>,
    /// `[u]`: every key of the batch once, in the order of first sight.
    pub unique: Vec<u64>,
    /// For every value, bag after bag (row 0 slot 0, row 0 slot 1, ...): its place in `unique`.
    pub inverse: Vec<u32>,
    /// `None`: every bag holds one value. `Some`: `[n × slots + 1]` offsets of the bags in `inverse`.
    pub offsets: Option<Vec<u32>>,
}

impl Batch for TrainBatch {
    fn rows(&self) -> usize {
        self.labels.len()
    }

    fn bytes(&self) -> usize {
        heap(&self.labels)
            + heap(&self.dense)
            + heap(&self.unique)
            + heap(&self.inverse)
            + self.offsets.as_deref().map_or(0, heap)
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}
