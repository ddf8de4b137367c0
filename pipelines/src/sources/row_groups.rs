//! Numbers the values of a column, to tell which rows of an evaluation belong together. It keeps 4 bytes per row, and the text of
//! each distinct value.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use forebay_actors::{Fault, FaultKind};

/// The values of one column, row by row.
pub(crate) struct RowGroups {
    pub(crate) column: String,
    numbers: HashMap<String, u32>,
    /// `[n]`: the number of each row's value; [`MISSING`] without one.
    pub(crate) rows: Vec<u32>,
}

/// The number of a missing value.
pub(super) const MISSING: u32 = u32::MAX;

impl RowGroups {
    pub(crate) fn new(column: String) -> Self {
        Self { column, numbers: HashMap::new(), rows: Vec::new() }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// A user fault if values of this type cannot be told apart as text (lists, for instance).
    pub(crate) fn add(&mut self, values: &ArrayRef) -> Result<(), Fault> {
        // The rows of an evaluation have no dictionaries, but the rows of a file that is checked may have them.
        let kind = match values.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            kind => kind,
        };
        let text = match kind {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => None,
            kind if kind.is_nested() => None,
            // In UTC, because the text of a time in its zone would need a database of time zones.
            DataType::Timestamp(unit, Some(_)) => {
                cast(values, &DataType::Timestamp(*unit, None)).and_then(|utc| cast(&utc, &DataType::Utf8)).ok()
            }
            _ => cast(values, &DataType::Utf8).ok(),
        };
        let Some(text) = text else {
            return Err(Fault::user(format!(
                "rows cannot be grouped by column `{}`, which is {kind}: name a column with one number, string, date, time or boolean \
                 for each row",
                self.column
            ))
            .kind(FaultKind::OtherType));
        };
        let is_float = kind.is_floating();
        for value in text.as_string::<i32>() {
            let number = match value.and_then(|value| if is_float { of_float(value) } else { Some(value) }) {
                None => MISSING,
                Some(value) => match self.numbers.get(value) {
                    Some(number) => *number,
                    None => {
                        let next = self.numbers.len() as u32;
                        self.numbers.insert(value.to_owned(), next);
                        next
                    }
                },
            };
            self.rows.push(number);
        }
        Ok(())
    }

    /// The values with the most rows, at most `most` of them, and the numbers of their rows. Values with equally many rows are ordered by
    /// their text.
    pub(crate) fn largest(&self, most: usize) -> Vec<(Option<&str>, Vec<u32>)> {
        let mut groups: Vec<(Option<&str>, Vec<u32>)> = vec![(None, Vec::new()); self.numbers.len() + 1];
        for (value, &number) in &self.numbers {
            groups[number as usize].0 = Some(value);
        }
        let missing = groups.len() - 1;
        for (row, &number) in self.rows.iter().enumerate() {
            groups[if number == MISSING { missing } else { number as usize }].1.push(row as u32);
        }
        groups.retain(|(_, rows)| !rows.is_empty());
        groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
        groups.truncate(most);
        groups
    }
}

/// Checks before an evaluation that the types of these columns of `rows` tell groups apart. Columns that `rows` lacks are not checked.
///
/// # Errors
/// A user fault that names the first column that cannot.
pub(crate) fn check_groups(columns: &[String], rows: &RecordBatch) -> Result<(), Fault> {
    let there = columns.iter().filter_map(|name| Some((name, rows.column_by_name(name)?)));
    for (name, values) in there {
        RowGroups::new(name.clone()).add(&values.slice(0, 0))?;
    }
    Ok(())
}

/// The text of a floating-point number: NaN is a missing value, as elsewhere, and both zeros are one.
fn of_float(text: &str) -> Option<&str> {
    match text.parse::<f64>() {
        Ok(number) if number.is_nan() => None,
        Ok(0.0) => Some(text.trim_start_matches('-')),
        _ => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float32Array, Float64Array, StringArray, TimestampMicrosecondArray};
    use arrow::datatypes::{Field, Schema, TimeUnit};

    use super::*;

    /// A bug: the rows without a number were a group of their own, "NaN", and `-0.0` was another value than `0.0`.
    #[test]
    fn nan_is_a_missing_value_and_the_zeros_are_one() {
        let mut groups = RowGroups::new("x".to_owned());
        groups
            .add(&(Arc::new(Float64Array::from(vec![Some(0.0), Some(f64::NAN), None, Some(-0.0)])) as ArrayRef))
            .unwrap();
        groups.add(&(Arc::new(Float32Array::from(vec![-f32::NAN, 0.1, -0.1])) as ArrayRef)).unwrap();
        assert_eq!(groups.rows, [0, MISSING, MISSING, 0, MISSING, 1, 2]);
        assert_eq!(groups.largest(2), [(None, vec![1, 2, 4]), (Some("0.0"), vec![0, 3])]);
        let mut groups = RowGroups::new("x".to_owned());
        groups.add(&(Arc::new(StringArray::from(vec!["NaN", "-0.0", "0.0"])) as ArrayRef)).unwrap();
        assert_eq!(groups.rows, [0, 1, 2], "texts are what they are");
    }

    /// A bug: times with a zone could not be grouped.
    #[test]
    fn times_with_a_zone_are_grouped_by_their_time_in_utc() {
        for zone in ["UTC", "Europe/Oslo", "+01:00"] {
            let times = TimestampMicrosecondArray::from(vec![Some(0), None, Some(1_667_713_433_000_000), Some(0)]);
            let mut groups = RowGroups::new("t".to_owned());
            groups.add(&(Arc::new(times.with_timezone(zone)) as ArrayRef)).unwrap();
            assert_eq!(groups.rows, [0, MISSING, 1, 0], "{zone}");
            assert_eq!(groups.largest(1), [(Some("1970-01-01T00:00:00"), vec![0, 3])], "{zone}");
        }
    }

    #[test]
    fn types_that_tell_no_groups_apart_are_found_without_rows() {
        let binaries = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
        let zone = DataType::Timestamp(TimeUnit::Second, Some("Europe/Oslo".into()));
        let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let kinds = [
            ("list", DataType::new_list(DataType::Int64, true), false),
            ("binary", DataType::LargeBinary, false),
            ("binaries", binaries, false),
            ("zone", zone, true),
            ("number", DataType::Float32, true),
            ("text", texts, true),
            ("day", DataType::Date32, true),
            ("nothing", DataType::Null, true),
        ];
        let schema =
            Schema::new(kinds.each_ref().map(|(name, kind, _)| Field::new(*name, kind.clone(), true)).to_vec());
        let rows = RecordBatch::new_empty(Arc::new(schema));
        for (name, _, fine) in kinds {
            let checked = check_groups(&["absent".to_owned(), name.to_owned()], &rows);
            assert_eq!(checked.is_ok(), fine, "{name}");
            let named = |fault: Fault| fault.to_string().contains(&format!("cannot be grouped by column `{name}`"));
            assert!(checked.err().is_none_or(named), "{name}");
        }
    }
}
