//! The shape of a Criteo row: label, 13 integers, 26 categories; and categories as numbers or as hex strings.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// Integer columns, `I1` to `I13`.
pub const INTEGERS: usize = 13;

/// Categorical columns, `C1` to `C26`.
pub const CATEGORIES: usize = 26;

/// All columns of a row, the label included.
pub const COLUMNS: usize = 1 + INTEGERS + CATEGORIES;

/// How the categories come: Criteo writes 32-bit numbers as eight hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Categories {
    /// As the number itself, `UInt32`.
    #[default]
    Int,
    /// As eight lower-case hex digits, `Utf8`.
    Hex,
}

/// The name of a column by its place in the row: `label`, `I1`.., `C1`..
pub fn column_name(at: usize) -> String {
    match at {
        0 => "label".to_owned(),
        1..=INTEGERS => format!("I{at}"),
        _ => format!("C{}", at - INTEGERS),
    }
}

/// `label` Int32, `I1`..`I13` Int32 or null, `C1`..`C26` UInt32 (or Utf8) or null.
pub fn criteo_schema(categories: Categories) -> SchemaRef {
    let category = match categories {
        Categories::Int => DataType::UInt32,
        Categories::Hex => DataType::Utf8,
    };
    let field = |at| {
        let kind = if at <= INTEGERS { DataType::Int32 } else { category.clone() };
        Field::new(column_name(at), kind, at > 0)
    };
    Arc::new(Schema::new((0..COLUMNS).map(field).collect::<Vec<_>>()))
}

/// The same rows with every `UInt32` column as eight hex digits.
pub fn with_hex_categories(batch: &RecordBatch) -> Result<RecordBatch, Fault> {
    let schema = batch.schema();
    let (fields, columns): (Vec<_>, Vec<_>) = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| match column.data_type() {
            DataType::UInt32 => (Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)), hex(column)),
            _ => (Arc::clone(field), Arc::clone(column)),
        })
        .unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Fault::internal("hex columns do not fit their schema").because(e))
}

/// A `UInt32` column as eight hex digits a value.
pub(crate) fn hex(column: &ArrayRef) -> ArrayRef {
    let numbers = column.as_primitive::<UInt32Type>();
    let mut text = Vec::with_capacity(numbers.len() * 8);
    let mut offsets = Vec::with_capacity(numbers.len() + 1);
    offsets.push(0i32);
    for row in 0..numbers.len() {
        if numbers.is_valid(row) {
            text.extend_from_slice(&hex_digits(numbers.value(row)));
        }
        offsets.push(text.len() as i32);
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Arc::new(StringArray::new(offsets, Buffer::from_vec(text), numbers.nulls().cloned()))
}

/// The eight lower-case hex digits of a number.
pub(crate) fn hex_digits(number: u32) -> [u8; 8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|i| DIGITS[(number >> (28 - 4 * i)) as usize & 15])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_what_format_writes() {
        for n in [0u32, 1, 0x68fd_1e64, u32::MAX, 0xdead_beef] {
            assert_eq!(std::str::from_utf8(&hex_digits(n)).unwrap(), format!("{n:08x}"));
        }
    }
}
