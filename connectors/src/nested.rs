//! The fields within an Arrow type.

use arrow::datatypes::{DataType, FieldRef};

/// The fields one level down: the item of a list, the entries of a map, the fields of a struct or a union, the ends and the values of runs.
/// None for a dictionary, whose values have no field.
pub(crate) fn fields_within(kind: &DataType) -> Vec<&FieldRef> {
    match kind {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => vec![item],
        DataType::Struct(fields) => fields.iter().collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field).collect(),
        DataType::RunEndEncoded(ends, values) => vec![ends, values],
        _ => Vec::new(),
    }
}
