//! Changes and encodes one column of one row group. A core is busy for milliseconds.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray, UInt32Array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Schema, SchemaRef, UInt32Type};
use arrow::error::ArrowError;
use forebay_actors::Fault;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};
use parquet::errors::Result as ParquetResult;

use super::options::ParquetOptions;
use super::parquet_types::{as_written, written_as};
use crate::criteo::Categories;
use crate::criteo::schema::hex;

/// What is done to each column before it is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    hex: bool,
    fill: bool,
}

impl Change {
    pub(super) fn new(options: &ParquetOptions) -> Self {
        Self { hex: options.categories == Categories::Hex, fill: options.fill_nulls }
    }

    /// The columns as they are written.
    pub(super) fn schema(self, schema: &SchemaRef) -> SchemaRef {
        let field = |field: &FieldRef| {
            let kind = match field.data_type() {
                DataType::UInt32 if self.hex => DataType::Utf8,
                kind => written_as(kind),
            };
            let nullable = field.is_nullable() && !(self.fill && fillable(&kind));
            Arc::new(field.as_ref().clone().with_data_type(kind).with_nullable(nullable))
        };
        let fields: Vec<_> = schema.fields().iter().map(field).collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }

    fn apply(self, column: ArrayRef) -> Result<ArrayRef, ArrowError> {
        let column = as_written(column)?;
        let column = if self.hex && *column.data_type() == DataType::UInt32 { hex(&column) } else { column };
        Ok(if self.fill && fillable(column.data_type()) { filled(&column) } else { column })
    }
}

/// Makes one column of the pieces, changes and encodes it.
pub(super) fn encode(
    pieces: &[ArrayRef],
    change: Change,
    field: &Field,
    writers: Vec<ArrowColumnWriter>,
) -> Result<Vec<ArrowColumnChunk>, Fault> {
    let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    // One piece, so that where pages end does not depend on where batches did.
    let column = concat(&pieces).map_err(|e| {
        let name = field.name();
        Fault::user(format!("a row group of column `{name}` is too large: ask for fewer rows in one")).because(e)
    })?;
    let cannot = || format!("column `{}` cannot be written as Parquet", field.name());
    let column = change.apply(column).map_err(|e| Fault::user(cannot()).because(e))?;
    let chunks = || -> ParquetResult<Vec<_>> {
        let mut writers = writers;
        for (writer, leaf) in writers.iter_mut().zip(compute_leaves(field, &column)?) {
            writer.write(&leaf)?;
        }
        writers.into_iter().map(ArrowColumnWriter::close).collect()
    };
    chunks().map_err(|e| Fault::user(cannot()).because(e))
}

/// The types that Criteo has.
fn fillable(kind: &DataType) -> bool {
    matches!(kind, DataType::Int32 | DataType::UInt32 | DataType::Utf8)
}

/// The column with 0 or an empty string for what is missing.
fn filled(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Int32 => {
            let values = column.as_primitive::<Int32Type>();
            Arc::new(values.iter().map(Option::unwrap_or_default).collect::<Int32Array>())
        }
        DataType::UInt32 => {
            let values = column.as_primitive::<UInt32Type>();
            Arc::new(values.iter().map(Option::unwrap_or_default).collect::<UInt32Array>())
        }
        DataType::Utf8 => {
            let values = column.as_string::<i32>();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<StringArray>())
        }
        _ => Arc::clone(column),
    }
}
