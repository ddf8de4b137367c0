//! Changes and encodes one column of one row group. A core is busy for milliseconds.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, LargeStringArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow::compute::concat;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, FieldRef, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use forebay_actors::Fault;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};
use parquet::errors::Result as ParquetResult;

use super::options::ParquetOptions;
use super::parquet_types::{as_written, written_as};
use crate::column_types::is_text;
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

    /// # Errors
    /// A user fault if categories shall be written as hex strings, and no column can hold categories.
    pub(super) fn check(self, schema: &Schema) -> Result<(), Fault> {
        if self.hex && !schema.fields().iter().any(|field| *field.data_type() == DataType::UInt32) {
            return Err(Fault::user(
                "--categories hex writes columns of unsigned 32-bit integers, as Criteo text has, as text; these rows have no such \
                 column: leave it out",
            ));
        }
        Ok(())
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

/// The types that have a value for what is missing.
fn fillable(kind: &DataType) -> bool {
    is_text(kind) || kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean
}

/// The column with 0, false or an empty string for what is missing.
fn filled(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Int8 => zeros::<Int8Type>(column),
        DataType::Int16 => zeros::<Int16Type>(column),
        DataType::Int32 => zeros::<Int32Type>(column),
        DataType::Int64 => zeros::<Int64Type>(column),
        DataType::UInt8 => zeros::<UInt8Type>(column),
        DataType::UInt16 => zeros::<UInt16Type>(column),
        DataType::UInt32 => zeros::<UInt32Type>(column),
        DataType::UInt64 => zeros::<UInt64Type>(column),
        DataType::Float16 => zeros::<Float16Type>(column),
        DataType::Float32 => zeros::<Float32Type>(column),
        DataType::Float64 => zeros::<Float64Type>(column),
        DataType::Boolean => {
            let values = column.as_boolean();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<BooleanArray>())
        }
        DataType::Utf8 => {
            let values = column.as_string::<i32>();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<StringArray>())
        }
        DataType::LargeUtf8 => {
            let values = column.as_string::<i64>();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<LargeStringArray>())
        }
        DataType::Utf8View => {
            let values = column.as_string_view();
            Arc::new(values.iter().map(|v| Some(v.unwrap_or_default())).collect::<StringViewArray>())
        }
        _ => Arc::clone(column),
    }
}

/// Numbers with 0 for what is missing.
fn zeros<T: ArrowPrimitiveType>(column: &ArrayRef) -> ArrayRef {
    let values = column.as_primitive::<T>();
    Arc::new(PrimitiveArray::<T>::from_iter_values(values.iter().map(Option::unwrap_or_default)))
}
