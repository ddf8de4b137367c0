//! Parses labels, 0 or 1, from booleans or numbers.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use forebay_actors::Fault;

use super::bad_rows::BadRows;
use super::column::wrong_type;

const NOT_BINARY: &str = "label is neither 0 nor 1";

pub(super) fn parse(name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    let kind = array.data_type();
    if !(kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean) {
        return Err(wrong_type(name, array, "a number or a boolean, 0 or 1"));
    }
    let labels: Vec<f32> = if *kind == DataType::Int32 {
        array.as_primitive::<Int32Type>().values().iter().map(|&v| v as f32).collect()
    } else {
        let numbers = cast(array, &DataType::Float64)
            .map_err(|e| Fault::user(format!("column `{name}` cannot be read as numbers")).because(e))?;
        numbers.as_primitive::<Float64Type>().values().iter().map(|&v| v as f32).collect()
    };
    let binary = labels.iter().all(|&l| l == 0.0 || l == 1.0);
    if !binary || array.null_count() > 0 {
        for (row, &label) in labels.iter().enumerate() {
            if array.is_null(row) {
                bad.add(row, NOT_BINARY, || format!("column `{name}` has no value, expected 0 or 1"));
            } else if label != 0.0 && label != 1.0 {
                bad.add(row, NOT_BINARY, || format!("column `{name}` is {label}, expected 0 or 1"));
            }
        }
    }
    Ok(labels)
}
