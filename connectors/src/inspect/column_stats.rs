//! What one column holds: missing values, distinct values, smallest and largest.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use forebay_actors::Fault;
use forebay_base::{GOLDEN_GAMMA, mix64};

use super::distinct::Distinct;

/// Running counts of one column.
pub(super) struct ColumnStats {
    pub(super) rows: u64,
    pub(super) missing: u64,
    /// Values; more or fewer than rows in a column of lists.
    pub(super) values: u64,
    pub(super) distinct: Distinct,
    /// Least and greatest value of a numeric column.
    pub(super) range: Option<(f64, f64)>,
    /// Sum of the values of a numeric column.
    pub(super) sum: f64,
    /// Whether texts are looked at as numbers: they were all numbers so far.
    pub(super) texts_are_numbers: bool,
}

impl ColumnStats {
    /// `untyped`: numbers come as texts.
    pub(super) fn new(untyped: bool) -> Self {
        let distinct = Distinct::new();
        Self { rows: 0, missing: 0, values: 0, distinct, range: None, sum: 0.0, texts_are_numbers: untyped }
    }

    /// Counts one array. Empty strings are missing, as Criteo's text has them.
    pub(super) fn add(&mut self, array: &ArrayRef) -> Result<(), Fault> {
        self.rows += array.len() as u64;
        let missing = self.values(array)?;
        self.missing += missing;
        Ok(())
    }

    fn values(&mut self, array: &ArrayRef) -> Result<u64, Fault> {
        let as_type = |to: &DataType| {
            cast(array, to)
                .map_err(|e| Fault::user(format!("cannot look into a column of {}", array.data_type())).because(e))
        };
        let mut missing = 0;
        match array.data_type() {
            DataType::UInt64 => {
                for value in array.as_primitive::<UInt64Type>() {
                    match value {
                        Some(value) => self.number(mix64(value.wrapping_add(GOLDEN_GAMMA)), value as f64),
                        None => missing += 1,
                    }
                }
            }
            t if t.is_integer() || *t == DataType::Boolean => {
                let array = as_type(&DataType::Int64)?;
                for value in array.as_primitive::<Int64Type>() {
                    match value {
                        Some(value) => self.number(mix64((value as u64).wrapping_add(GOLDEN_GAMMA)), value as f64),
                        None => missing += 1,
                    }
                }
            }
            t if t.is_floating() || t.is_decimal() => {
                let array = as_type(&DataType::Float64)?;
                for value in array.as_primitive::<Float64Type>() {
                    match value {
                        Some(value) => self.number(mix64(value.to_bits().wrapping_add(GOLDEN_GAMMA)), value),
                        None => missing += 1,
                    }
                }
            }
            DataType::List(_) | DataType::LargeList(_) => {
                missing += array.null_count() as u64;
                for row in 0..array.len() {
                    if array.is_valid(row) {
                        let items = match array.data_type() {
                            DataType::List(_) => array.as_list::<i32>().value(row),
                            _ => array.as_list::<i64>().value(row),
                        };
                        self.values(&items)?;
                    }
                }
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
                let array = as_type(&DataType::Utf8)?;
                for value in array.as_string::<i32>() {
                    match value.filter(|text| !text.is_empty()) {
                        Some(text) => {
                            self.values += 1;
                            self.distinct.add(xxhash_rust::xxh3::xxh3_64(text.as_bytes()));
                            self.text(text);
                        }
                        None => missing += 1,
                    }
                }
            }
            _ => missing += array.null_count() as u64,
        }
        Ok(missing)
    }

    fn text(&mut self, text: &str) {
        if self.texts_are_numbers {
            match text.parse::<f64>() {
                Ok(value) => self.range_of(value),
                Err(_) => (self.texts_are_numbers, self.range) = (false, None),
            }
        }
    }

    fn number(&mut self, hash: u64, value: f64) {
        self.values += 1;
        self.distinct.add(hash);
        self.range_of(value);
    }

    /// NaN is a value that is neither small nor large.
    fn range_of(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        self.sum += value;
        let (low, high) = self.range.unwrap_or((value, value));
        self.range = Some((low.min(value), high.max(value)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, UInt64Array};

    use super::*;

    #[test]
    fn unsigned_integers_beyond_those_with_a_sign_are_values() {
        let mut stats = ColumnStats::new(false);
        stats
            .add(&(Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(1 << 63), Some(5)])) as ArrayRef))
            .unwrap();
        assert_eq!((stats.rows, stats.missing, stats.values, stats.distinct.estimate()), (4, 1, 3, 3));
        assert_eq!(stats.range, Some((5.0, u64::MAX as f64)));
    }

    #[test]
    fn nan_is_a_value_outside_of_the_range_and_the_sum() {
        let mut stats = ColumnStats::new(false);
        stats.add(&(Arc::new(Float64Array::from(vec![f64::NAN, 2.0, -1.0])) as ArrayRef)).unwrap();
        assert_eq!((stats.missing, stats.values, stats.range, stats.sum), (0, 3, Some((-1.0, 2.0)), 1.0));
    }
}
