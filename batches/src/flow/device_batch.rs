//! A batch with a copy on the device. `upload` makes it, `train` passes it on, and `download` consumes it.

use forebay_actors::{Batch, BatchName, Lineage};

use super::ReadyBatch;

/// A [`ReadyBatch`] with its state on the device, `T`. `download` needs the labels, keys and ticket of the batch.
pub struct DeviceBatch<T> {
    /// The batch as `lookup` made it.
    pub batch: ReadyBatch,
    /// `None` for an empty batch, which only takes part in a round.
    pub device: Option<T>,
}

impl<T: Send + 'static> Batch for DeviceBatch<T> {
    fn rows(&self) -> usize {
        self.batch.rows()
    }

    fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    fn lineage(&self) -> &Lineage {
        self.batch.lineage()
    }

    fn name(&self) -> Option<BatchName> {
        self.batch.name()
    }
}
