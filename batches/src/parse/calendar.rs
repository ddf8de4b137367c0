//! Hours and days of the week of timestamps, in UTC, and ages.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::temporal_conversions::MILLISECONDS_IN_DAY;
use arrow::util::display::array_value_to_string;
use forebay_actors::Fault;

use super::column::{Wanted, wrong_type};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// The reason of a row whose text is neither a date nor a timestamp.
pub(super) const NOT_A_TIME: &str = "text is no date or timestamp";

/// A part of a moment.
#[derive(Clone, Copy)]
pub(super) enum CalendarPart {
    /// 0 to 23.
    Hour,
    /// 0 for Monday to 6 for Sunday.
    Weekday,
}

impl CalendarPart {
    fn of(self, micros: i64) -> i64 {
        match self {
            Self::Hour => micros.div_euclid(HOUR).rem_euclid(24),
            // 1 January 1970 was a Thursday.
            Self::Weekday => (micros.div_euclid(DAY) + 3).rem_euclid(7),
        }
    }

    /// The part of each value of column `name`; null for a missing value, and for text that is no moment: its row and the text are
    /// added to `wrong`.
    ///
    /// # Errors
    /// A user fault if the type has no such part.
    pub(super) fn parse(
        self,
        name: &str,
        array: &ArrayRef,
        wrong: &mut Vec<(usize, String)>,
    ) -> Result<Int64Array, Fault> {
        let (expected, dates) = match self {
            Self::Hour => ("timestamps, or text of them, for the hour", false),
            Self::Weekday => ("dates or timestamps, or text of them, for the day of the week", true),
        };
        Ok(microseconds(name, array, (expected, dates), wrong)?.unary(|micros| self.of(micros)))
    }
}

/// The days from the moments of one column to those of another, or to one moment; null where one of both is missing. Wrong text as in
/// [`CalendarPart::parse`].
pub(super) fn age_in_days(
    (name, array): (&str, &ArrayRef),
    at: At<'_>,
    wrong: &mut Vec<(usize, String, String)>,
) -> Result<Float64Array, Fault> {
    let expected = ("dates or timestamps, or text of them, for an age", true);
    let mut read = |name: &str, array: &ArrayRef| {
        let mut texts = Vec::new();
        let found = microseconds(name, array, expected, &mut texts);
        wrong.extend(texts.into_iter().map(|(row, text)| (row, name.to_owned(), text)));
        found
    };
    let since = read(name, array)?;
    let days = |since: i64, until: i64| (i128::from(until) - i128::from(since)) as f64 / DAY as f64;
    Ok(match at {
        At::Moment(until) => since.unary(|since| days(since, until)),
        At::Column(name, until) => {
            let until = read(name, until)?;
            since.iter().zip(&until).map(|(since, until)| Some(days(since?, until?))).collect()
        }
    })
}

/// When ages are measured.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// Microseconds since 1970.
    Moment(i64),
    Column(&'a str, &'a ArrayRef),
}

/// Moments in microseconds since 1970. `expected` says what the column should be, and whether dates are moments.
fn microseconds(
    name: &str,
    array: &ArrayRef,
    (expected, dates): (&str, bool),
    wrong: &mut Vec<(usize, String)>,
) -> Result<Int64Array, Fault> {
    let cannot = |e: ArrowError| Fault::user(format!("column `{name}` cannot be read as timestamps")).because(e);
    Ok(match array.data_type() {
        DataType::Null => Int64Array::new_null(array.len()),
        DataType::Date32 | DataType::Date64 if dates => {
            let days = moments(array).map_err(cannot)?;
            days.as_primitive::<Int64Type>().unary(|day| day.wrapping_mul(DAY))
        }
        DataType::Timestamp(..) => moments(array).map_err(cannot)?.as_primitive::<Int64Type>().clone(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let to = DataType::Timestamp(TimeUnit::Microsecond, None);
            let times = cast(array, &to).map_err(cannot)?;
            let rows = (0..array.len()).filter(|&row| times.is_null(row) && array.is_valid(row));
            wrong.extend(rows.map(|row| (row, array_value_to_string(array, row).unwrap_or_default())));
            moments(&times).map_err(cannot)?.as_primitive::<Int64Type>().clone()
        }
        DataType::Dictionary(_, value) => {
            let plain = cast(array, value).map_err(cannot)?;
            microseconds(name, &plain, (expected, dates), wrong)?
        }
        _ => return Err(wrong_type(name, array, Wanted::Moments(expected))),
    })
}

/// Dates as days and timestamps as microseconds since 1970, so that a moment has the same number whatever the unit of the file
/// is. Nanoseconds are rounded down.
pub(super) fn moments(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(match array.data_type() {
        DataType::Date32 => cast(&cast(array, &DataType::Int32)?, &DataType::Int64)?,
        kind => {
            let numbers = cast(array, &DataType::Int64)?;
            let numbers = numbers.as_primitive::<Int64Type>();
            // A moment beyond 64 bits of microseconds wraps: it gets some number, not an error.
            let micros: Int64Array = match kind {
                DataType::Timestamp(TimeUnit::Second, _) => numbers.unary(|v| v.wrapping_mul(1_000_000)),
                DataType::Timestamp(TimeUnit::Millisecond, _) => numbers.unary(|v| v.wrapping_mul(1000)),
                DataType::Timestamp(TimeUnit::Nanosecond, _) => numbers.unary(|v| v.div_euclid(1000)),
                DataType::Date64 => numbers.unary(|v| v.div_euclid(MILLISECONDS_IN_DAY)),
                _ => numbers.clone(),
            };
            Arc::new(micros)
        }
    })
}

/// What is wrong with a text that is no moment.
pub(super) fn not_a_time(name: &str, text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("column `{name}` is {short:?}, expected a date or a timestamp such as 2026-11-20 03:04:05")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_and_days_are_right_before_1970_too() {
        let at =
            |seconds: i64| (CalendarPart::Hour.of(seconds * 1_000_000), CalendarPart::Weekday.of(seconds * 1_000_000));
        assert_eq!(at(0), (0, 3));
        assert_eq!(at(-1), (23, 2));
        // 20 November 2026, 03:04:05: a Friday.
        assert_eq!(at(1_795_143_845), (3, 4));
    }
}
