//! Which Arrow type each column of a Parquet file is decoded as.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, TimeUnit};
use parquet::basic::Type;
use parquet::schema::types::SchemaDescriptor;

use crate::column_types::{dictionary, dictionary_of, is_binary, is_text};

/// The schema `plain`, with other types for some kinds of columns.
///
/// INT96, the timestamp of Hive, Impala and older Spark, counts days and nanoseconds; in 64 bits nanoseconds last from 1677 to 2262 only
/// and would wrap silently. Its writers use microseconds at most, so it becomes microseconds in UTC, as newer Spark writes.
///
/// Strings and binary values become dictionaries, if asked: a page's distinct values are decoded, and later hashed, once. Other
/// dictionaries and list views, which only the writer's Arrow schema has, become values and lists.
pub(super) fn read_as(plain: &Schema, parquet: &SchemaDescriptor, dictionaries: bool) -> Schema {
    // For each column the number of its leaves, and of its INT96 leaves. A struct or a map is never a feature, so its members stay as they
    // are.
    let mut leaves = vec![(0, 0); plain.fields().len()];
    for leaf in 0..parquet.num_columns() {
        let (all, int96) = &mut leaves[parquet.get_column_root_idx(leaf)];
        *all += 1;
        *int96 += u32::from(parquet.column(leaf).physical_type() == Type::INT96);
    }
    let fields = plain.fields().iter().zip(leaves).map(|(field, leaves)| {
        let kind = match of_values(field.data_type()) {
            kind if leaves == (1, 1) => in_micros(&kind),
            kind if dictionaries && is_text(&kind) => dictionary(),
            kind if dictionaries && is_binary(&kind) => dictionary_of(DataType::Binary),
            kind => kind,
        };
        field.as_ref().clone().with_data_type(kind)
    });
    Schema::new_with_metadata(fields.collect::<Vec<Field>>(), plain.metadata().clone())
}

/// The type with values for dictionaries and lists for list views, also within lists.
fn of_values(kind: &DataType) -> DataType {
    let of_items = |item: &FieldRef| Arc::new(item.as_ref().clone().with_data_type(of_values(item.data_type())));
    match kind {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        DataType::List(item) | DataType::ListView(item) => DataType::List(of_items(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(of_items(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(of_items(item), *n),
        other => other.clone(),
    }
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
