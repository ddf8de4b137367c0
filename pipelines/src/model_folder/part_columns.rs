//! The columns of a part of table rows in Parquet.
//!
//! ```text
//!   f32     PART: f32, or of several values a fixed-size list of f32
//!   f16     PART: a fixed-size list of f16
//!   int8    PART: a fixed-size binary with a byte for each value, in two's complement
//!           PART.scale: f32, a power of two; a value is its byte times the scale
//! ```
//! A part of one value, such as the linear weight, is always f32.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, FixedSizeListArray, Float16Array, Float32Array, RecordBatch,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type};
use forebay_ps::{PartConfig, RoundingError, Storage, from_f16, from_int8, to_f16, to_int8};

/// How the values of a part are stored in a file whose values are `values`.
fn stored(part: &PartConfig, values: Storage) -> Storage {
    if part.dim == 1 { Storage::F32 } else { values }
}

/// The type of a column of lists of `dim` floats.
pub(super) fn floats(dim: usize, element: DataType) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("element", element, false)), dim as i32)
}

/// A column of lists of `dim` numbers.
pub(super) fn list(dim: usize, element: ArrayRef) -> ArrayRef {
    let field = Arc::new(Field::new("element", element.data_type().clone(), false));
    Arc::new(FixedSizeListArray::new(field, dim as i32, element, None))
}

fn scale_of(part: &PartConfig) -> String {
    format!("{}.scale", part.name)
}

/// The columns of a part.
pub(super) fn fields(part: &PartConfig, values: Storage) -> Vec<Field> {
    let column = |kind| Field::new(&part.name, kind, false);
    match stored(part, values) {
        Storage::F32 if part.dim == 1 => vec![column(DataType::Float32)],
        Storage::F32 => vec![column(floats(part.dim, DataType::Float32))],
        Storage::F16 => vec![column(floats(part.dim, DataType::Float16))],
        Storage::Int8 => vec![
            column(DataType::FixedSizeBinary(part.dim as i32)),
            Field::new(scale_of(part), DataType::Float32, false),
        ],
    }
}

/// The weights of a part, `[rows x dim]`, as its columns.
///
/// # Errors
/// The first row with a value that cannot be rounded.
pub(super) fn to_columns(
    part: &PartConfig,
    values: Storage,
    weights: Vec<f32>,
) -> Result<Vec<ArrayRef>, RoundingError> {
    Ok(match stored(part, values) {
        Storage::F32 if part.dim == 1 => vec![Arc::new(Float32Array::from(weights))],
        Storage::F32 => vec![list(part.dim, Arc::new(Float32Array::from(weights)))],
        Storage::F16 => vec![list(part.dim, Arc::new(Float16Array::from(to_f16(&weights, part.dim)?)))],
        Storage::Int8 => {
            let rounded = to_int8(&weights, part.dim)?;
            let bytes = FixedSizeBinaryArray::new(part.dim as i32, Buffer::from(rounded.bytes), None);
            vec![Arc::new(bytes), Arc::new(Float32Array::from(rounded.scales))]
        }
    })
}

/// Undoes [`to_columns`]. The batch has the columns of [`fields`].
///
/// # Errors
/// The first row with a value that no rounding gives.
pub(super) fn from_columns<'a>(
    batch: &'a RecordBatch,
    part: &PartConfig,
    values: Storage,
) -> Result<Cow<'a, [f32]>, RoundingError> {
    let column = |name: &str| batch.column_by_name(name).expect("asked for by name");
    let own = column(&part.name);
    match stored(part, values) {
        Storage::F32 => {
            let values = own.as_fixed_size_list_opt().map_or(own, FixedSizeListArray::values);
            Ok(Cow::Borrowed(values.as_primitive::<Float32Type>().values()))
        }
        Storage::F16 => {
            let halves = own.as_fixed_size_list().values().as_primitive::<Float16Type>();
            from_f16(halves.values(), part.dim).map(Cow::Owned)
        }
        Storage::Int8 => {
            let scales = column(&scale_of(part)).as_primitive::<Float32Type>();
            from_int8(scales.values(), own.as_fixed_size_binary().value_data(), part.dim).map(Cow::Owned)
        }
    }
}
