//! What a trainer records of its batches. The coordinator hears of it.

use forebay_batches::{BatchId, TrainBatch};
use forebay_connectors::WindowMark;

/// Records which batches of a trainer are done.
pub(crate) trait BatchRecord: Send + Sync {
    /// Called before the first rows of a window become batches. Returns false if the rows must not become batches, because this process
    /// does not hold the window, or begins no more windows.
    fn window_begins(&self, _epoch: u32, _mark: &WindowMark) -> bool {
        true
    }

    /// Called before a batch is looked up.
    fn batch_started(&self, batch: &TrainBatch);

    /// Called when the gradients of a batch are applied or, in an exact order, kept. A second call for the same batch has no effect.
    fn batch_done(&self, id: BatchId);
}
