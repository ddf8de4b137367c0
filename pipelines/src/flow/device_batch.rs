//! A batch of which the device has a copy: what `upload` makes, `train` trains on, and `download` ends.

use forebay_actors::{Batch, Lineage};

use super::ReadyBatch;

/// A [`ReadyBatch`], whose labels, keys and ticket are needed when the results are back, and `T`: the device's side of it.
pub struct DeviceBatch<T> {
    /// As it was looked up.
    pub batch: ReadyBatch,
    /// `None` if there are no rows: its part in a step that other trainers have rows for.
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
}
