//! Parses labels, from 0 to 1, and weights of rows.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use forebay_actors::Fault;

use super::bad_rows::BadRows;
use super::column::wrong_type;
use crate::label_column::{LabelColumn, Positive, PositiveRule};

const NOT_BINARY: &str = "label is neither 0 nor 1";
const NOT_SOFT: &str = "label is not from 0 to 1";
const NO_LABEL: &str = "label is missing";
const BAD_WEIGHT: &str = "weight is not a number of at least 0";

/// The label of each row; that of a bad row is meaningless.
pub(super) fn parse(label: &LabelColumn, array: &ArrayRef, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    let name = &label.column;
    match &label.positive {
        None if label.soft => {
            let labels = numbers(name, array, "a number from 0 to 1")?;
            let fine = |value: f64| (0.0..=1.0).contains(&value);
            refuse(name, array, &labels, fine, NOT_SOFT, "a number from 0 to 1", bad);
            Ok(labels.into_iter().map(|value| value as f32).collect())
        }
        None => binary(name, array, bad),
        Some(Positive(PositiveRule::Compared(comparison, limit))) => {
            let values = numbers(name, array, "a number, to compare it")?;
            refuse(name, array, &values, |value| !value.is_nan(), NO_LABEL, "a number", bad);
            Ok(values.into_iter().map(|value| f32::from(u8::from(comparison.holds(value, *limit)))).collect())
        }
        Some(Positive(PositiveRule::OneOf(values))) => one_of(name, array, values, bad),
    }
}

/// The weight of each row; that of a bad row is meaningless.
pub(super) fn weights(name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    const EXPECTED: &str = "a finite number of at least 0";
    let weights = numbers(name, array, "a number of at least 0, for a weight")?;
    let fine = |weight: f64| weight >= 0.0 && (weight as f32).is_finite();
    refuse(name, array, &weights, fine, BAD_WEIGHT, EXPECTED, bad);
    Ok(weights.into_iter().map(|weight| weight as f32).collect())
}

fn binary(name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    let labels: Vec<f32> = if *array.data_type() == DataType::Int32 {
        array.as_primitive::<Int32Type>().values().iter().map(|&v| v as f32).collect()
    } else {
        numbers(name, array, "a number or a boolean, 0 or 1")?.into_iter().map(|v| v as f32).collect()
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

/// Labels that are 1 for some values. Numbers are compared as numbers, all else as text.
fn one_of(name: &str, array: &ArrayRef, values: &[String], bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    if is_number(array.data_type()) {
        let wanted: Vec<f64> = values.iter().filter_map(|value| value.parse().ok()).collect();
        if wanted.len() < values.len() {
            return Err(wrong_type(name, array, &format!("text, because columns.label.positive is {values:?}")));
        }
        let numbers = numbers(name, array, "numbers")?;
        refuse(name, array, &numbers, |value| !value.is_nan(), NO_LABEL, "a value", bad);
        return Ok(numbers.into_iter().map(|value| f32::from(u8::from(wanted.contains(&value)))).collect());
    }
    let text = match array.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
            cast(array, &DataType::Utf8).map_err(|_| wrong_type(name, array, "text"))?
        }
        _ => return Err(wrong_type(name, array, "text or numbers")),
    };
    let mut labels = Vec::with_capacity(array.len());
    for (row, value) in text.as_string::<i32>().iter().enumerate() {
        if value.is_none() {
            bad.add(row, NO_LABEL, || format!("column `{name}` has no value, expected a text"));
        }
        labels.push(f32::from(u8::from(value.is_some_and(|value| values.iter().any(|v| v == value)))));
    }
    Ok(labels)
}

fn is_number(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean
}

/// The values as numbers; a missing one is 0.
fn numbers(name: &str, array: &ArrayRef, expected: &str) -> Result<Vec<f64>, Fault> {
    if !is_number(array.data_type()) {
        return Err(wrong_type(name, array, expected));
    }
    let numbers = cast(array, &DataType::Float64)
        .map_err(|e| Fault::user(format!("column `{name}` cannot be read as numbers")).because(e))?;
    Ok(numbers.as_primitive::<Float64Type>().values().to_vec())
}

/// Adds the rows to `bad` whose value is missing or not `fine`.
fn refuse(
    name: &str,
    array: &ArrayRef,
    values: &[f64],
    fine: impl Fn(f64) -> bool,
    reason: &'static str,
    expected: &str,
    bad: &mut BadRows,
) {
    if array.null_count() == 0 && values.iter().all(|&value| fine(value)) {
        return;
    }
    for (row, &value) in values.iter().enumerate() {
        if array.is_null(row) {
            bad.add(row, reason, || format!("column `{name}` has no value, expected {expected}"));
        } else if !fine(value) {
            bad.add(row, reason, || format!("column `{name}` is {value}, expected {expected}"));
        }
    }
}
