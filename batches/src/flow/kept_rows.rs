//! Columns of the input that travel with the rows of a batch to the sinks that write or measure each row, and why a row is bad.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use arrow::compute::{cast, interleave_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_actors::Fault;
use forebay_net::{columns_from_bytes, columns_to_bytes};

/// The name of the last column.
const REASON: &str = "reason";

/// For each of `n` rows the values of some columns of the input and, if the row is bad, the reason.
///
/// Bad rows travel with meaningless features, so that every row keeps its place. Training has no kept rows.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptRows {
    /// The kept columns and, last, the reasons: null for a good row.
    columns: RecordBatch,
}

impl KeptRows {
    /// Takes `columns` and the reasons, `[n]`. Dictionaries are replaced by their values, because files have different dictionaries.
    pub fn new(columns: Vec<(&str, &ArrayRef)>, reasons: StringArray) -> Result<Self, Fault> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (name, array) in columns {
            let array = match array.data_type() {
                DataType::Dictionary(_, value) => {
                    cast(array, value).map_err(|e| Fault::user(format!("column `{name}` cannot be kept")).because(e))?
                }
                _ => Arc::clone(array),
            };
            fields.push(Field::new(name, array.data_type().clone(), true));
            arrays.push(array);
        }
        fields.push(Field::new(REASON, DataType::Utf8, true));
        arrays.push(Arc::new(reasons));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map(|columns| Self { columns })
            .map_err(|e| Fault::internal("the kept columns do not fit the rows").because(e))
    }

    /// Number of rows, `n`.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// The kept columns, with their names.
    pub fn columns(&self) -> impl Iterator<Item = (&Field, &ArrayRef)> {
        let kept = self.columns.num_columns() - 1;
        self.columns.schema_ref().fields().iter().map(AsRef::as_ref).zip(self.columns.columns()).take(kept)
    }

    /// The reason why each row is bad; null for a good row.
    pub fn reasons(&self) -> &StringArray {
        self.columns.column(self.columns.num_columns() - 1).as_string()
    }

    pub(crate) fn slice(&self, from: usize, to: usize) -> Self {
        Self { columns: self.columns.slice(from, to - from) }
    }

    /// Gathers rows of several chunks. `order` has row numbers in their concatenation.
    pub(crate) fn gather(chunks: &[Self], order: &[u32]) -> Self {
        let chunks: Vec<&RecordBatch> = chunks.iter().map(|chunk| &chunk.columns).collect();
        let mut ends: Vec<usize> = chunks.iter().map(|chunk| chunk.num_rows()).collect();
        for i in 1..ends.len() {
            ends[i] += ends[i - 1];
        }
        let place = |row: usize| {
            let chunk = ends.partition_point(|&end| end <= row);
            (chunk, row - chunk.checked_sub(1).map_or(0, |before| ends[before]))
        };
        let places: Vec<_> = order.iter().map(|&row| place(row as usize)).collect();
        let columns = interleave_record_batch(&chunks, &places);
        Self { columns: columns.expect("batches of one source have the same columns") }
    }

    /// Pieces as bytes, for another process.
    pub(crate) fn to_bytes(pieces: &[Self]) -> Result<Vec<u8>, Fault> {
        columns_to_bytes(pieces.iter().map(|piece| &piece.columns))
    }

    /// The pieces of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// A user fault: the bytes are no such pieces.
    pub(crate) fn from_bytes(bytes: &Buffer) -> Result<Vec<Self>, Fault> {
        let piece = |columns: RecordBatch| {
            let last = columns.schema_ref().fields().last();
            match last.is_some_and(|last| last.name() == REASON && *last.data_type() == DataType::Utf8) {
                true => Ok(Self { columns }),
                false => {
                    Err(Fault::user(format!("kept columns end with `{REASON}`, a column of strings, and these do not")))
                }
            }
        };
        columns_from_bytes(bytes)?.into_iter().map(piece).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or(0);
        self.columns.columns().iter().map(bytes).sum()
    }
}
