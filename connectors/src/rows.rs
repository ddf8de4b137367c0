//! The output of every source: a `RecordBatch` and its lineage.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Int32Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Batch, BatchName, Fault, Lineage, StageCx};

use crate::nested::fields_within;
use crate::row_places::RowPlaces;

/// Memory of a batch that waits, beside its columns: its place in the queue, its schema, its lineage.
pub(crate) const BYTES_OF_BATCH: usize = 1024;

/// Memory of an array, beside its values.
const BYTES_OF_ARRAY: usize = 200;

/// The window that a batch belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowMark {
    /// Number of the window within the epoch, from 0. A source without windows has one an epoch.
    pub window: u64,
    /// How often the window was leased before.
    pub term: u32,
    /// Whether the last rows of the window are in this batch.
    pub closes: bool,
}

/// Rows as they were read: columns by name, not yet mapped to label, dense features and slots.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The columns.
    pub batch: RecordBatch,
    /// Epoch, split, first row, place in the stream.
    pub lineage: Lineage,
    /// The window they belong to.
    pub window: WindowMark,
    /// Rows of the same window that the source itself left out, here or just before.
    pub rejected: u32,
    /// The place of each row in its file, if it comes from one. A program that leaves rows out by itself sets this to `None`.
    pub places: Option<RowPlaces>,
}

impl Rows {
    /// Leaves out the rows for which `mask` (`[n]`) is true; a null keeps its row. Counts them under `reason` in the run's ledger and among
    /// the rejected rows of the window. Send the result on even if it has no rows, because it carries the counts and the end of its window.
    ///
    /// # Errors
    /// An internal fault if the mask has another length than the rows.
    pub fn reject_where(mut self, mask: &BooleanArray, reason: &str, cx: &StageCx) -> Result<Self, Fault> {
        let rejected = mask.true_count();
        if rejected > 0 {
            let keep = BooleanArray::from_iter(mask.iter().map(|reject| Some(reject != Some(true))));
            self.batch = filter_record_batch(&self.batch, &keep)
                .map_err(|e| Fault::internal("the mask does not fit the rows").because(e))?;
            self.places = self.places.map(|places| places.filtered(&keep));
            cx.ledger().reject(reason, rejected as u64);
            self.rejected = self.rejected.saturating_add(rejected as u32);
        }
        Ok(self)
    }

    /// The memory of the rows while they wait, if their values take `values` bytes. Batches of few rows take much more than their values.
    pub(crate) fn memory(&self, values: usize) -> usize {
        let arrays: usize = self.batch.columns().iter().map(|column| arrays(column.data_type())).sum();
        values + self.places.as_ref().map_or(0, RowPlaces::bytes) + BYTES_OF_BATCH + arrays * BYTES_OF_ARRAY
    }
}

/// The arrays that an array of this type consists of.
fn arrays(kind: &DataType) -> usize {
    match kind {
        DataType::Dictionary(_, values) => 1 + arrays(values),
        kind => 1 + fields_within(kind).into_iter().map(|field| arrays(field.data_type())).sum::<usize>(),
    }
}

impl Batch for Rows {
    fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Bytes of the arrays and their overhead. Of a dictionary that many batches share, only the part counts that this batch can refer to.
    fn bytes(&self) -> usize {
        self.memory(batch_bytes(&self.batch))
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    fn name(&self) -> Option<BatchName> {
        Some(BatchName { epoch: self.lineage.epoch, window: self.window.window, index: None })
    }
}

/// Bytes of the arrays' buffers; see [`Rows::bytes`].
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(column_bytes).sum()
}

fn column_bytes(column: &ArrayRef) -> usize {
    if let DataType::Dictionary(key, _) = column.data_type()
        && **key == DataType::Int32
    {
        let dictionary = column.as_dictionary::<Int32Type>();
        let (values, rows) = (dictionary.values(), dictionary.len());
        let share = if values.len() > rows {
            values.get_buffer_memory_size() / values.len() * rows
        } else {
            values.get_buffer_memory_size()
        };
        return dictionary.keys().get_buffer_memory_size() + share;
    }
    column.get_buffer_memory_size()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int32Array, StringArray};

    use super::*;

    #[test]
    fn a_shared_dictionary_counts_by_the_rows_that_can_refer_to_it() {
        let values: StringArray = (0..100_000).map(|i| Some(format!("{i:08x}"))).collect();
        let keys = Int32Array::from_iter_values(0..10);
        let column: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(values)));
        let batch = RecordBatch::try_from_iter([("C1", column)]).unwrap();
        let rows =
            Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
        let bytes = batch_bytes(&rows.batch);
        assert!((10 * (4 + 8)..1_000).contains(&bytes), "{bytes}");
        // Two arrays: the indices and the values.
        assert_eq!(rows.bytes(), bytes + BYTES_OF_BATCH + 2 * BYTES_OF_ARRAY);
    }
}
