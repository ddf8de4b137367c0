//! Which Arrow type each column of a file is decoded as, and which type batches have.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, TimeUnit};
use arrow::error::ArrowError;
use parquet::basic::Type;
use parquet::schema::types::SchemaDescriptor;

/// The schema as it stands (`plain`), but for two kinds of columns.
///
/// INT96, the timestamp of Hive, Impala and older Spark, counts days and nanoseconds; in 64 bits nanoseconds last from
/// 1677 to 2262 only and would wrap silently. All who write it mean microseconds at most, so it becomes what newer
/// Spark writes itself: microseconds in UTC.
///
/// Strings become dictionaries, if asked: a page's distinct values are decoded, and later hashed, once.
pub(super) fn read_as(plain: &Schema, parquet: &SchemaDescriptor, dictionaries: bool) -> Schema {
    // For each column its leaves, and those that are INT96. A struct or a map is never a feature: let its members be.
    let mut leaves = vec![(0, 0); plain.fields().len()];
    for leaf in 0..parquet.num_columns() {
        let (all, int96) = &mut leaves[parquet.get_column_root_idx(leaf)];
        *all += 1;
        *int96 += u32::from(parquet.column(leaf).physical_type() == Type::INT96);
    }
    let fields = plain.fields().iter().zip(leaves).map(|(field, leaves)| match field.data_type() {
        kind if leaves == (1, 1) => field.as_ref().clone().with_data_type(in_micros(kind)),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if dictionaries => {
            field.as_ref().clone().with_data_type(dictionary())
        }
        _ => field.as_ref().clone(),
    });
    Schema::new_with_metadata(fields.collect::<Vec<Field>>(), plain.metadata().clone())
}

/// What strings are read as.
pub(super) fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// A timestamp, or a list of them, in microseconds.
fn in_micros(kind: &DataType) -> DataType {
    match kind {
        DataType::Timestamp(..) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::List(item) => {
            DataType::List(Arc::new(item.as_ref().clone().with_data_type(in_micros(item.data_type()))))
        }
        other => other.clone(),
    }
}

/// The field that batches have. Writers call the items of a list `element`, `array`, `item` and so on, and may or may not
/// say that they can be null: that is no reason not to read their files together.
pub(super) fn in_batches(field: &FieldRef) -> FieldRef {
    match field.data_type() {
        DataType::List(item) => {
            let item = in_batches(&Arc::new(Field::new_list_field(item.data_type().clone(), true)));
            Arc::new(field.as_ref().clone().with_data_type(DataType::List(item)))
        }
        _ => Arc::clone(field),
    }
}

/// A decoded column in the type of [`in_batches`]: the same values under other names, nothing is copied.
pub(super) fn named_as(array: &ArrayRef, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    match kind {
        DataType::List(item) if array.data_type() != kind && matches!(array.data_type(), DataType::List(_)) => {
            let list = array.as_list::<i32>();
            let items = named_as(list.values(), item.data_type())?;
            let nulls = list.nulls().cloned();
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), list.offsets().clone(), items, nulls)?))
        }
        _ => Ok(Arc::clone(array)),
    }
}
