//! From the values of one column in JSON to an Arrow array of the type that the column had in training.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, BooleanArray, Date32Array, Float64Array, Int64Array, ListArray, NullArray, StringArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::Field;
use forebay_base::floor_to_integer;
use forebay_batches::{ColumnType, moments_of_text};

use super::json_cell::JsonCell;
use super::serving_columns::ServingColumn;

/// The array of a column's values: `cells` has one for each row. If the column had lists in training, a single value is a list of one, and
/// null is a missing list.
///
/// # Errors
/// What is wrong, and in which row.
pub(super) fn array(cells: &[&JsonCell<'_>], column: &ServingColumn) -> Result<ArrayRef, (usize, String)> {
    if !column.lists && !cells.iter().any(|cell| matches!(cell, JsonCell::List(_))) {
        return scalars(cells, column);
    }
    let (mut values, mut row_of, mut ends) = (Vec::new(), Vec::new(), vec![0]);
    for (row, cell) in cells.iter().enumerate() {
        match cell {
            JsonCell::List(list) => {
                values.extend(list);
                row_of.extend(std::iter::repeat_n(row, list.len()));
            }
            cell if is_null(cell) => {}
            cell if column.lists => {
                values.push(*cell);
                row_of.push(row);
            }
            cell => return Err((row, format!("{} among lists", cell.kind()))),
        }
        ends.push(i32::try_from(values.len()).map_err(|_| (row, "too many values in its lists".to_owned()))?);
    }
    let values = scalars(&values, column).map_err(|(value, what)| (row_of[value], what))?;
    let field = Arc::new(Field::new("element", values.data_type().clone(), true));
    let nulls: NullBuffer = cells.iter().map(|cell| !is_null(cell)).collect();
    Ok(Arc::new(ListArray::new(field, OffsetBuffer::new(ends.into()), values, Some(nulls))))
}

fn is_null(cell: &JsonCell<'_>) -> bool {
    matches!(cell, JsonCell::Null | JsonCell::Absent)
}

fn scalars(cells: &[&JsonCell<'_>], column: &ServingColumn) -> Result<ArrayRef, (usize, String)> {
    if cells.iter().all(|cell| is_null(cell)) {
        return Ok(Arc::new(NullArray::new(cells.len())));
    }
    if column.hex && cells.iter().any(|cell| matches!(cell, JsonCell::Text(_))) {
        return hex_digits(cells);
    }
    Ok(match column.kind.map_or_else(|| found(cells), Ok)? {
        ColumnType::Boolean => {
            Arc::new(convert::<bool, BooleanArray>(cells, "true or false, or 1 or 0", |cell| match cell {
                JsonCell::Boolean(value) => Some(*value),
                cell => cell.integer().and_then(|value| [0, 1].contains(&value).then_some(value == 1)),
            })?)
        }
        ColumnType::Number => Arc::new(convert::<f64, Float64Array>(cells, "a number", |cell| match cell {
            JsonCell::Integer(value) => Some(*value as f64),
            JsonCell::Unsigned(value) => Some(*value as f64),
            JsonCell::Number(value) => Some(*value),
            JsonCell::Boolean(value) => Some(f64::from(u8::from(*value))),
            _ => None,
        })?),
        ColumnType::Text => {
            let wanted = "a string, or an integer or a boolean";
            Arc::new(convert::<Cow<'_, str>, StringArray>(cells, wanted, |cell| match cell {
                JsonCell::Text(value) => Some(Cow::Borrowed(value.as_ref())),
                JsonCell::Integer(value) => Some(Cow::Owned(value.to_string())),
                JsonCell::Unsigned(value) => Some(Cow::Owned(value.to_string())),
                // As JSON lines are read.
                JsonCell::Boolean(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
                _ => None,
            })?)
        }
        ColumnType::Date => {
            let wanted = "an integer: days since 1970, or a date in the years 1 to 9999 such as \"2026-11-20\"";
            // Other programs write a date as its first moment.
            let day = |micros: i64| (micros % DAY == 0).then_some(micros / DAY);
            let days = times(cells, wanted, day)?;
            let fits = |(at, day): (usize, Option<i64>)| match day.map(i32::try_from) {
                None => Ok(None),
                Some(Ok(day)) => Ok(Some(day)),
                Some(Err(_)) => Err((at, format!("an integer of more than 32 bits, expected {wanted}"))),
            };
            Arc::new(days.into_iter().enumerate().map(fits).collect::<Result<Date32Array, _>>()?)
        }
        ColumnType::Timestamp => {
            let wanted = "an integer: microseconds since 1970, or a time in the years 1 to 9999 such as \"2026-11-20T03:04:05Z\"";
            Arc::new(times(cells, wanted, Some)?.into_iter().collect::<TimestampMicrosecondArray>())
        }
        ColumnType::Integer | ColumnType::TextInteger => {
            if cells.iter().any(|cell| matches!(cell, JsonCell::Unsigned(_))) {
                let wanted = "an integer from 0, because another value of the column is above 2^63 - 1";
                return Ok(Arc::new(convert::<u64, UInt64Array>(cells, wanted, |cell| match cell {
                    JsonCell::Unsigned(value) => Some(*value),
                    cell => cell.integer_or_boolean().and_then(|value| u64::try_from(value).ok()),
                })?));
            }
            Arc::new(convert::<i64, Int64Array>(cells, "an integer", |cell| match cell {
                JsonCell::Number(number) if column.only_time => floor_to_integer(*number),
                cell => cell.integer_or_boolean(),
            })?)
        }
    })
}

/// Microseconds.
const DAY: i64 = 86_400_000_000;

/// Integers as they are, and text of dates and timestamps, read as in the columns of files: `of_text` gets its microseconds since 1970.
fn times(
    cells: &[&JsonCell<'_>],
    wanted: &str,
    of_text: impl Fn(i64) -> Option<i64>,
) -> Result<Vec<Option<i64>>, (usize, String)> {
    let text = |cell: &&JsonCell<'_>| matches!(cell, JsonCell::Text(_));
    let Some(first) = cells.iter().position(text) else { return integers(cells, wanted) };
    let texts: StringArray = cells
        .iter()
        .map(|cell| match cell {
            JsonCell::Text(text) => Some(text.as_ref()),
            _ => None,
        })
        .collect();
    let moments = moments_of_text(&texts).map_err(|e| (first, format!("text that cannot be read: {e}")))?;
    let time = |(at, cell): (usize, &&JsonCell<'_>)| {
        let JsonCell::Text(text) = cell else { return integer(at, cell, wanted) };
        let found = moments.is_valid(at).then(|| moments.value(at)).and_then(&of_text);
        let short = || text.chars().take(40).collect::<String>();
        found.map(Some).ok_or_else(|| (at, format!("{:?}, expected {wanted}", short())))
    };
    cells.iter().enumerate().map(time).collect()
}

fn integers(cells: &[&JsonCell<'_>], wanted: &str) -> Result<Vec<Option<i64>>, (usize, String)> {
    cells.iter().enumerate().map(|(at, cell)| integer(at, cell, wanted)).collect()
}

fn integer(at: usize, cell: &JsonCell<'_>, wanted: &str) -> Result<Option<i64>, (usize, String)> {
    match cell {
        JsonCell::Null | JsonCell::Absent => Ok(None),
        cell => cell.integer().map(Some).ok_or_else(|| (at, format!("{}, expected {wanted}", cell.kind()))),
    }
}

/// Hexadecimal digits, and integers as the digits that stand for them: negative ones as in two's complement of 64 bits.
fn hex_digits(cells: &[&JsonCell<'_>]) -> Result<ArrayRef, (usize, String)> {
    let wanted = "hexadecimal digits or an integer";
    Ok(Arc::new(convert::<Cow<'_, str>, StringArray>(cells, wanted, |cell| match cell {
        JsonCell::Text(digits) => Some(Cow::Borrowed(digits.as_ref())),
        JsonCell::Unsigned(value) => Some(Cow::Owned(format!("{value:x}"))),
        cell => cell.integer().map(|value| Cow::Owned(format!("{value:x}"))),
    })?))
}

/// The type of values whose type in training is not known: the type of the first value. Integers and numbers must not mix: whether 3 is one
/// or the other decides its transform, which must not depend on the other rows.
fn found(cells: &[&JsonCell<'_>]) -> Result<ColumnType, (usize, String)> {
    let kind = |cell: &&JsonCell<'_>| match cell {
        JsonCell::Boolean(_) => Some(ColumnType::Boolean),
        JsonCell::Integer(_) | JsonCell::Unsigned(_) => Some(ColumnType::Integer),
        JsonCell::Number(_) => Some(ColumnType::Number),
        JsonCell::Text(_) => Some(ColumnType::Text),
        JsonCell::Absent | JsonCell::Null | JsonCell::List(_) => None,
    };
    let first = cells.iter().find_map(kind).unwrap_or(ColumnType::Integer);
    for (at, cell) in cells.iter().enumerate() {
        if kind(cell).is_some_and(|kind| kind != first) {
            return Err((at, format!("{} in a column of {first}: write all of its values alike", cell.kind())));
        }
    }
    Ok(first)
}

fn convert<'c, T, A: FromIterator<Option<T>>>(
    cells: &'c [&JsonCell<'_>],
    wanted: &str,
    value: impl Fn(&'c JsonCell<'_>) -> Option<T>,
) -> Result<A, (usize, String)> {
    let convert = |(at, cell): (usize, &&'c JsonCell<'_>)| match cell {
        JsonCell::Null | JsonCell::Absent => Ok(None),
        cell => value(cell).map(Some).ok_or_else(|| (at, format!("{}, expected {wanted}", cell.kind()))),
    };
    cells.iter().enumerate().map(convert).collect()
}
