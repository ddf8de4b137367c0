//! A batch of the exact size, its keys de-duplicated: what `batch` makes and `lookup` completes.

use forebay_actors::{Batch, Lineage};
use forebay_connectors::WindowMark;
use serde::{Deserialize, Serialize};

use super::heap;

/// How a window ended: what all its batches together hold. The rows of the window are `rows + rejected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowEnd {
    /// Batches of the window, the one that says so included.
    pub batches: u32,
    /// Rows in them.
    pub rows: u64,
    /// Rows that were left out: bad ones, and those of a short last batch that was dropped.
    pub rejected: u64,
}

/// `n` rows, `d` dense features, `u` unique keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainBatch {
    /// Where it came from: the split and row of its first row; `seq` counts the batches of the run.
    pub lineage: Lineage,
    /// The window it belongs to; `window.closes` says whether `closes` is there.
    pub window: WindowMark,
    /// Number within its window, from 0: (epoch, window, index) is the batch's name in every process.
    pub index: u32,
    /// On the last batch of a window whose end the source has marked. Such a batch may be empty: see
    /// [`BatchPlan::mark_window_ends`](crate::stages::BatchPlan::mark_window_ends).
    pub closes: Option<WindowEnd>,
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
