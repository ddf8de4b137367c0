//! Changes and encodes one column of one row group. A core is busy for milliseconds.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int8Array, Scalar, StringArray};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, concat, is_not_null};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use forebay_actors::Fault;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};
use parquet::errors::Result as ParquetResult;

use super::options::ParquetOptions;
use super::parquet_types::{as_written, written_as};
use crate::column_types::is_text;
use crate::criteo::Categories;
use crate::criteo::schema::hex;

/// The change of each column before it is encoded.
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
        Ok(if self.fill && fillable(column.data_type()) { filled(&column)? } else { column })
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
    // One piece, so that the ends of pages do not depend on the ends of batches.
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

/// The types that have a value for missing values.
fn fillable(kind: &DataType) -> bool {
    is_text(kind) || kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean
}

/// The column with 0, false or an empty string for missing values.
fn filled(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let nothing: ArrayRef = match is_text(column.data_type()) {
        true => Arc::new(StringArray::from(vec![""])),
        false => Arc::new(Int8Array::from(vec![0])),
    };
    let nothing = Scalar::new(cast(&nothing, column.data_type())?);
    zip(&is_not_null(column)?, column, &nothing)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int32Array};

    use super::*;

    #[test]
    fn every_type_that_can_be_filled_has_a_value_for_what_is_missing() {
        use DataType::{
            Boolean, Float16, Float32, Float64, Int8, Int16, Int32, Int64, LargeUtf8, UInt8, UInt16, UInt32, UInt64,
            Utf8, Utf8View,
        };
        let column = Int32Array::from(vec![Some(1), None]);
        for kind in [
            Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64, Boolean, Utf8,
            LargeUtf8, Utf8View,
        ] {
            assert!(fillable(&kind), "{kind}");
            let column = cast(&column, &kind).unwrap();
            let filled = filled(&column).unwrap();
            assert_eq!((filled.data_type(), filled.len(), filled.null_count()), (&kind, 2, 0));
            assert_eq!(&filled.slice(0, 1), &column.slice(0, 1), "{kind}");
            let text = cast(&filled.slice(1, 1), &Utf8).unwrap();
            let text = text.as_string::<i32>().value(0);
            assert!(["0", "0.0", "false", ""].contains(&text), "{kind}: {text}");
        }
    }
}
