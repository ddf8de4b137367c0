//! Parses labels, from 0 to 1 or NaN where a row lacks one, and weights of rows.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type, UInt64Type};
use forebay_actors::Fault;
use forebay_job::{LabelColumn, Positive, PositiveRule, is_rounded};

use super::bad_rows::{BadRows, NO_LABEL, NOT_BINARY, NOT_SOFT};
use super::column::{Wanted, number_in, shown, wrong_type};

const NO_LABELS: &str = "no label of several";
const BAD_WEIGHT: &str = "weight is not a number of at least 0";
/// Beyond `f32`.
const LARGE_WEIGHT: &str = "weight is above 3.4e38";

/// The label of each row; meaningless for a bad row. With `mask_missing` a label that the row lacks is NaN, and the row is not bad. Sets in
/// `positives` the bits of the values that occur, among the first 64 that `positive` lists.
pub(super) fn parse(
    label: &LabelColumn,
    array: &ArrayRef,
    positives: &mut u64,
    bad: &mut BadRows,
) -> Result<Vec<f32>, Fault> {
    let masked = if label.mask_missing { missing(array)? } else { Masked(None) };
    let mut labels = values(label, array, &masked, positives, bad)?;
    for (row, label) in labels.iter_mut().enumerate() {
        if masked.has(row) {
            *label = f32::NAN;
        }
    }
    Ok(labels)
}

/// Replaces the second label of each row, a conversion, by the label of a click that led to a conversion: the product of both labels. It is
/// 0 without a click, even if the conversion is unknown (NaN), and otherwise NaN if the click or the conversion is unknown.
pub(super) fn conversions_after_clicks(clicks: &[f32], conversions: &mut [f32]) {
    for (conversion, &click) in conversions.iter_mut().zip(clicks) {
        *conversion = if click == 0.0 || *conversion == 0.0 { 0.0 } else { *conversion * click };
    }
}

/// Adds the rows to `bad` that lack every label; `labels` is `[t x n]`.
pub(super) fn refuse_rows_without_any(columns: &[LabelColumn], labels: &[f32], rows: usize, bad: &mut BadRows) {
    if !columns.iter().all(|label| label.mask_missing) {
        return;
    }
    for row in (0..rows).filter(|row| labels[*row..].iter().step_by(rows).all(|label| label.is_nan())) {
        bad.add(row, NO_LABELS, || {
            let names: Vec<String> = columns.iter().map(|label| format!("`{}`", label.column)).collect();
            format!("none of the columns {} has a value that trains a label, expected one", names.join(", "))
        });
    }
}

/// The rows that lack a label and are kept; `None`: no row is.
struct Masked(Option<Vec<bool>>);

impl Masked {
    fn has(&self, row: usize) -> bool {
        self.0.as_ref().is_some_and(|rows| rows[row])
    }
}

/// The rows whose value is null or NaN.
fn missing(array: &ArrayRef) -> Result<Masked, Fault> {
    let mut rows: Vec<bool> = (0..array.len()).map(|row| array.is_null(row)).collect();
    if array.data_type().is_floating() {
        let numbers = numbers("", array, "a number")?;
        rows.iter_mut().zip(numbers).for_each(|(missing, number)| *missing |= number.is_nan());
    }
    Ok(Masked(rows.contains(&true).then_some(rows)))
}

fn values(
    label: &LabelColumn,
    array: &ArrayRef,
    masked: &Masked,
    positives: &mut u64,
    bad: &mut BadRows,
) -> Result<Vec<f32>, Fault> {
    let name = &label.column;
    match &label.positive {
        None if label.soft => {
            let labels = numbers(name, array, "a number from 0 to 1")?;
            let wrong = |value: f64| match value {
                missing if missing.is_nan() => Some(NO_LABEL),
                0.0..=1.0 => None,
                _ => Some(NOT_SOFT),
            };
            refuse(name, array, (&labels, masked), wrong, "a number from 0 to 1", bad);
            Ok(labels.into_iter().map(|value| value as f32).collect())
        }
        None => binary(name, array, masked, bad),
        Some(Positive(PositiveRule::Compared(comparison, limit))) => {
            let values = numbers(name, array, "a number, to compare it")?;
            refuse(name, array, (&values, masked), no_label, "a number", bad);
            let (label, limit) = (|holds: bool| f32::from(u8::from(holds)), number_in(array.data_type(), *limit));
            let holds = |integer: i128| comparison.holds(difference(integer, limit), 0.0);
            Ok(match long_integers(array) {
                Some(integers) => integers.into_iter().map(|integer| label(holds(integer))).collect(),
                None => values.into_iter().map(|value| label(comparison.holds(value, limit))).collect(),
            })
        }
        Some(Positive(PositiveRule::OneOf(values))) => one_of(name, array, values, masked, positives, bad),
    }
}

/// The weight of each row; meaningless for a bad row.
pub(super) fn weights(name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    const EXPECTED: &str = "a number from 0 to 3.4e38";
    let weights = numbers(name, array, "a number of at least 0, for a weight")?;
    let wrong = |weight: f64| match (weight >= 0.0 && weight.is_finite(), (weight as f32).is_finite()) {
        (true, true) => None,
        (true, false) => Some(LARGE_WEIGHT),
        (false, _) => Some(BAD_WEIGHT),
    };
    refuse(name, array, (&weights, &Masked(None)), wrong, EXPECTED, bad);
    Ok(weights.into_iter().map(|weight| weight as f32).collect())
}

/// The reason why a label that is compared with others is bad: it is missing.
fn no_label(value: f64) -> Option<&'static str> {
    value.is_nan().then_some(NO_LABEL)
}

fn binary(name: &str, array: &ArrayRef, masked: &Masked, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
    let labels: Vec<f32> = if *array.data_type() == DataType::Int32 {
        array.as_primitive::<Int32Type>().values().iter().map(|&v| v as f32).collect()
    } else {
        numbers(name, array, &binary_of(name, array.data_type()))?.into_iter().map(|v| v as f32).collect()
    };
    let binary = labels.iter().all(|&l| l == 0.0 || l == 1.0);
    if !binary || array.null_count() > 0 {
        for (row, &label) in labels.iter().enumerate().filter(|(row, _)| !masked.has(*row)) {
            if array.is_null(row) {
                bad.add(row, NO_LABEL, || format!("column `{name}` has no value, expected 0 or 1"));
            } else if label != 0.0 && label != 1.0 {
                let reason = if label.is_nan() { NO_LABEL } else { NOT_BINARY };
                bad.add(row, reason, || format!("column `{name}` is {}, expected 0 or 1", shown(label)));
            }
        }
    }
    Ok(labels)
}

/// The expectation of a label without options, and for text the option that it needs.
fn binary_of(name: &str, kind: &DataType) -> String {
    let expected = "a number or a boolean, 0 or 1";
    match is_text(kind) {
        true => format!(
            "{expected}: for text, say which values are 1, label = {{ column = {name:?}, positive = [\"...\"] }}"
        ),
        false => expected.to_owned(),
    }
}

/// Labels that are 1 for some values. Numbers are compared as numbers, all else as text.
fn one_of(
    name: &str,
    array: &ArrayRef,
    values: &[String],
    masked: &Masked,
    positives: &mut u64,
    bad: &mut BadRows,
) -> Result<Vec<f32>, Fault> {
    let mut label = |place: Option<usize>| match place {
        Some(place) => {
            *positives |= 1_u64.checked_shl(place as u32).unwrap_or(0);
            1.0
        }
        None => 0.0,
    };
    if is_number(array.data_type()) {
        let is_boolean = *array.data_type() == DataType::Boolean;
        let number = |value: &String| match value.parse::<bool>() {
            Ok(value) if is_boolean => Some(f64::from(u8::from(value))),
            _ => value.parse().ok(),
        };
        let wanted: Vec<f64> = values.iter().filter_map(number).collect();
        if wanted.len() < values.len() {
            let booleans = if is_boolean { ": leave it out for booleans" } else { "" };
            let expected = format!("text, because columns.label.positive is {values:?}{booleans}");
            return Err(wrong_type(name, array, Wanted::Other(&expected)));
        }
        let numbers = numbers(name, array, "numbers")?;
        refuse(name, array, (&numbers, masked), no_label, "a value", bad);
        if let Some(integers) = long_integers(array) {
            let wanted: Vec<Option<i128>> = values.iter().map(|value| whole(value)).collect();
            let place = |integer: i128| wanted.iter().position(|&wanted| wanted == Some(integer));
            return Ok(integers.into_iter().map(|integer| label(place(integer))).collect());
        }
        if let Some((text, _)) = values.iter().zip(&wanted).find(|(text, number)| is_rounded(text, **number)) {
            return Err(Fault::user(format!(
                "columns.label.positive has {text}, and the values of column `{name}` are compared as {}, which {text} cannot \
                 be: write the column as 64-bit integers or as text, or name another number",
                DataType::Float64
            )));
        }
        let wanted: Vec<f64> = wanted.into_iter().map(|wanted| number_in(array.data_type(), wanted)).collect();
        let place = |value: f64| wanted.iter().position(|&wanted| wanted == value);
        return Ok(numbers.into_iter().map(|value| label(place(value))).collect());
    }
    if !is_text(array.data_type()) {
        return Err(wrong_type(name, array, Wanted::Other("text or numbers")));
    }
    let text = cast(array, &DataType::Utf8).map_err(|_| wrong_type(name, array, Wanted::Other("text")))?;
    let mut labels = Vec::with_capacity(array.len());
    for (row, value) in text.as_string::<i32>().iter().enumerate() {
        if value.is_none() && !masked.has(row) {
            bad.add(row, NO_LABEL, || format!("column `{name}` has no value, expected a text"));
        }
        labels.push(label(value.and_then(|value| values.iter().position(|v| v == value))));
    }
    Ok(labels)
}

/// The values of a column of integers that `f64` may round; a missing one is any number.
fn long_integers(array: &ArrayRef) -> Option<Vec<i128>> {
    match array.data_type() {
        DataType::Int64 => Some(array.as_primitive::<Int64Type>().values().iter().map(|&value| value.into()).collect()),
        DataType::UInt64 => {
            Some(array.as_primitive::<UInt64Type>().values().iter().map(|&value| value.into()).collect())
        }
        _ => None,
    }
}

/// A number that is below, at or above 0 as the integer is below, at or above the limit.
fn difference(integer: i128, limit: f64) -> f64 {
    let whole = limit.floor();
    integer.saturating_sub(whole as i128) as f64 - (limit - whole)
}

/// The integer that a text of digits is, or of a number such as `2.0`.
fn whole(text: &str) -> Option<i128> {
    let number = || text.parse::<f64>().ok().filter(|number| number.fract() == 0.0);
    text.parse().ok().or_else(|| number().map(|number| number as i128))
}

fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, values) => is_text(values),
        kind => matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

fn is_number(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_floating() || kind.is_decimal() || *kind == DataType::Boolean
}

/// The values as numbers; a missing one is 0.
pub(super) fn numbers(name: &str, array: &ArrayRef, expected: &str) -> Result<Vec<f64>, Fault> {
    if !is_number(array.data_type()) {
        return Err(wrong_type(name, array, Wanted::Other(expected)));
    }
    let numbers = cast(array, &DataType::Float64)
        .map_err(|e| Fault::user(format!("column `{name}` cannot be read as numbers")).because(e))?;
    Ok(numbers.as_primitive::<Float64Type>().values().to_vec())
}

/// Adds the rows to `bad` for whose value `wrong` gives a reason, unless they are masked. A missing value is NaN to `wrong`.
fn refuse(
    name: &str,
    array: &ArrayRef,
    (values, masked): (&[f64], &Masked),
    wrong: impl Fn(f64) -> Option<&'static str>,
    expected: &str,
    bad: &mut BadRows,
) {
    if array.null_count() == 0 && values.iter().all(|&value| wrong(value).is_none()) {
        return;
    }
    for (row, &value) in values.iter().enumerate().filter(|(row, _)| !masked.has(*row)) {
        let is_missing = array.is_null(row);
        let Some(reason) = wrong(if is_missing { f64::NAN } else { value }) else { continue };
        bad.add(row, reason, || match is_missing {
            true => format!("column `{name}` has no value, expected {expected}"),
            false => format!("column `{name}` is {}, expected {expected}", shown(value)),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Float32Array, Float64Array, Int64Array, UInt64Array};
    use forebay_job::Columns;

    use super::*;

    fn parsed(positive: &str, array: ArrayRef) -> Result<Vec<f32>, String> {
        let text = format!("label = {{ column = 'y', positive = {positive} }}\ndense = []\nslots = []");
        let columns: Columns = toml::from_str(&text).unwrap();
        let mut bad = BadRows::default();
        let labels = parse(columns.label.main(), &array, &mut 0, &mut bad).map_err(|fault| fault.to_string());
        assert!(bad.into_details().is_empty());
        labels
    }

    /// A bug: 0.7 of a column of `float` was below 0.7, and in no list.
    #[test]
    fn floats_and_booleans_are_compared_as_their_type_has_them() {
        let floats = || -> ArrayRef { Arc::new(Float32Array::from(vec![0.1, 0.7, 4.1])) };
        let doubles = || -> ArrayRef { Arc::new(Float64Array::from(vec![0.1, 0.7, 4.1])) };
        let halves = || cast(&floats(), &DataType::Float16).unwrap();
        let booleans = || -> ArrayRef { Arc::new(BooleanArray::from(vec![true, false])) };
        for (positive, expected) in [("['true']", [1.0, 0.0]), ("['false']", [0.0, 1.0]), ("[1]", [1.0, 0.0])] {
            assert_eq!(parsed(positive, booleans()).unwrap(), expected, "{positive}");
        }
        assert!(parsed("['yes']", booleans()).unwrap_err().contains("leave it out for booleans"));
        for (positive, expected) in [
            ("'>= 0.7'", [0.0, 1.0, 1.0]),
            ("'> 0.7'", [0.0, 0.0, 1.0]),
            ("'<= 0.1'", [1.0, 0.0, 0.0]),
            ("'< 0.1'", [0.0; 3]),
            ("[4.1, '0.1']", [1.0, 0.0, 1.0]),
        ] {
            for array in [floats(), doubles(), halves()] {
                let kind = array.data_type().clone();
                assert_eq!(parsed(positive, array).unwrap(), expected, "{positive} {kind}");
            }
        }
    }

    /// A bug: they were compared as floating-point numbers, which round them.
    #[test]
    fn integers_of_64_bits_are_compared_exactly() {
        const WHOLE: i64 = 1 << 53;
        let values = || -> ArrayRef { Arc::new(Int64Array::from(vec![-7, 3, 4, WHOLE - 1, WHOLE, WHOLE + 1])) };
        for (positive, expected) in [
            ("['9007199254740993']", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
            ("[9007199254740992, 3.0]", [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
            ("[0.5, -7]", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            ("'> 9007199254740992'", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
            ("'>= 9007199254740992'", [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]),
            ("'<= 9007199254740992'", [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
            ("'< 3.5'", [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
            ("'>= -7.5'", [1.0; 6]),
            ("'> 1e300'", [0.0; 6]),
        ] {
            assert_eq!(parsed(positive, values()).unwrap(), expected, "{positive}");
        }
        let large = UInt64Array::from(vec![u64::MAX, u64::MAX - 1]);
        assert_eq!(parsed("['18446744073709551615']", Arc::new(large)).unwrap(), [1.0, 0.0]);
        let floats = || -> ArrayRef { Arc::new(Float64Array::from(vec![WHOLE as f64, 3.0])) };
        let said = parsed("['9007199254740993']", floats()).unwrap_err();
        assert!(said.contains("columns.label.positive has 9007199254740993") && said.contains("`y`"), "{said}");
        assert_eq!(parsed("[9007199254740992]", floats()).unwrap(), [1.0, 0.0]);
    }
}
