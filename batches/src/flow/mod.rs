//! The batches that travel between the stages, one type per file.
//!
//! [`forebay_connectors::Rows`] → [`ExampleBatch`] → [`TrainBatch`] → [`ReadyBatch`] (→ [`DeviceBatch`]) → [`GradBatch`].

mod device_batch;
mod example_batch;
mod grad_batch;
mod id;
mod kept_rows;
mod ready_batch;
mod row_counts;
mod slot_counts;
mod slot_integers;
mod train_batch;

pub use device_batch::DeviceBatch;
pub use example_batch::{ExampleBatch, ExampleRow, SlotKeys};
pub use grad_batch::GradBatch;
pub use id::BatchId;
pub use kept_rows::KeptRows;
pub use ready_batch::ReadyBatch;
pub use row_counts::RowCounts;
pub use slot_counts::SlotCounts;
pub use slot_integers::SlotIntegers;
pub(crate) use slot_integers::{IntegerValues, hashed};
pub use train_batch::{TrainBatch, WindowEnd};

/// Bytes a vector holds on the heap.
pub(crate) fn heap<T>(v: &[T]) -> usize {
    std::mem::size_of_val(v)
}
