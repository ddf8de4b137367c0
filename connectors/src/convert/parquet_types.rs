//! Types that Parquet has no words for, and those that columns are written as instead, so that other readers see moments and days and
//! not bare integers.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;

/// The type that a column is written as: Parquet counts moments and times of day in milliseconds at the coarsest, and days in 32 bits.
pub(super) fn written_as(kind: &DataType) -> DataType {
    let item = |item: &FieldRef| -> FieldRef { Arc::new(field_as_written(item)) };
    match kind {
        DataType::Timestamp(TimeUnit::Second, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        DataType::Dictionary(_, values) if written_as(values) != **values => written_as(values),
        DataType::List(of) => DataType::List(item(of)),
        DataType::LargeList(of) => DataType::LargeList(item(of)),
        DataType::FixedSizeList(of, n) => DataType::FixedSizeList(item(of), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(item).collect()),
        other => other.clone(),
    }
}

fn field_as_written(field: &FieldRef) -> Field {
    field.as_ref().clone().with_data_type(written_as(field.data_type()))
}

/// The column in the type that it is written as.
///
/// # Errors
/// A moment that is too far away to be counted in milliseconds.
pub(super) fn as_written(column: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let kind = written_as(column.data_type());
    if kind == *column.data_type() {
        return Ok(column);
    }
    cast_with_options(&column, &kind, &CastOptions { safe: false, format_options: FormatOptions::default() })
}
