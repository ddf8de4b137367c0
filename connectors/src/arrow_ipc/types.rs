//! The types that columns of Arrow IPC files are decoded as, and the types in batches: the many ways in which Arrow writes texts and lists
//! become one.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

use crate::nested::fields_within;

/// The type that batches have. Texts are `Utf8`, lists `List`, and dictionaries of texts stay dictionaries with 32-bit indices if
/// `dictionaries` says so; other dictionaries and runs become their values.
pub(super) fn in_batches(kind: &DataType, dictionaries: bool) -> DataType {
    let normal = |kind: &DataType| in_batches(kind, dictionaries);
    match kind {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => {
            DataType::List(Arc::new(Field::new_list_field(normal(item.data_type()), true)))
        }
        DataType::RunEndEncoded(_, values) => normal(values.data_type()),
        DataType::Dictionary(_, values) => match normal(values) {
            values @ (DataType::Utf8 | DataType::Binary) if dictionaries => {
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(values))
            }
            values => values,
        },
        other => of_decoded(other),
    }
}

pub(super) fn field_in_batches(field: &FieldRef, dictionaries: bool) -> FieldRef {
    let kind = in_batches(field.data_type(), dictionaries);
    // A column of runs or of a dictionary has no nulls itself, but its values may be null.
    let nullable = field.is_nullable() || kind != *field.data_type();
    Arc::new(Field::new(field.name(), kind, nullable))
}

/// The field as it is decoded: as in the file, but the values of dictionaries have the type that they are [loaded](loaded) in.
pub(super) fn decoded(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(of_decoded(field.data_type())))
}

fn of_decoded(kind: &DataType) -> DataType {
    match kind {
        DataType::Dictionary(index, values) => DataType::Dictionary(index.clone(), Box::new(loaded(values))),
        DataType::List(item) => DataType::List(decoded(item)),
        DataType::LargeList(item) => DataType::LargeList(decoded(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(decoded(item), *n),
        DataType::ListView(item) => DataType::ListView(decoded(item)),
        DataType::LargeListView(item) => DataType::LargeListView(decoded(item)),
        DataType::Map(entries, sorted) => DataType::Map(decoded(entries), *sorted),
        DataType::RunEndEncoded(ends, values) => DataType::RunEndEncoded(Arc::clone(ends), decoded(values)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(decoded).collect()),
        DataType::Union(fields, mode) => {
            DataType::Union(fields.iter().map(|(number, field)| (number, decoded(field))).collect(), *mode)
        }
        other => other.clone(),
    }
}

/// The type in which a dictionary's values are kept: converted once, not for every batch.
pub(super) fn loaded(values: &DataType) -> DataType {
    in_batches(values, false)
}

/// The numbers of the dictionaries of a field, and the type of their values in the file; the values may have dictionaries themselves.
pub(super) fn dictionaries(field: &Field, found: &mut Vec<(i64, DataType)>) {
    // The number that the file's messages have: Arrow keeps it in the field and nowhere else.
    #[expect(deprecated)]
    let number = field.dict_id();
    if let DataType::Dictionary(_, values) = field.data_type() {
        found.extend(number.map(|number| (number, values.as_ref().clone())));
    }
    dictionaries_within(field.data_type(), found);
}

fn dictionaries_within(kind: &DataType, found: &mut Vec<(i64, DataType)>) {
    match kind {
        DataType::Dictionary(_, values) => dictionaries_within(values, found),
        kind => fields_within(kind).into_iter().for_each(|field| dictionaries(field, found)),
    }
}
