//! Hours and days of the week of moments, and ages.

use arrow::array::{Float64Array, Int64Array};
use forebay_actors::Fault;

use super::bad_rows::WrongValues;
use super::moments::{DAY, MomentColumn};

/// Microseconds.
const HOUR: i64 = DAY / 24;

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

    /// The part of each value of a column; null for a missing value, and for a value that is no moment, which is added to `wrong`.
    ///
    /// # Errors
    /// A user fault if the type has no such part.
    pub(super) fn parse(self, column: MomentColumn<'_>, wrong: &mut WrongValues) -> Result<Int64Array, Fault> {
        let expected = match self {
            Self::Hour => ("timestamps, or text of them, for the hour", false),
            Self::Weekday => ("dates or timestamps, or text of them, for the day of the week", true),
        };
        Ok(column.microseconds(expected, wrong)?.unary(|micros| self.of(micros)))
    }
}

/// The days from the moments of one column to the moments of another, or to one moment; null where one of both is missing. Wrong values as
/// in [`CalendarPart::parse`].
pub(super) fn age_in_days(since: MomentColumn<'_>, at: At<'_>, wrong: &mut WrongValues) -> Result<Float64Array, Fault> {
    let expected = ("dates or timestamps, or text of them, for an age", true);
    let since = since.microseconds(expected, wrong)?;
    let days = |since: i64, until: i64| (i128::from(until) - i128::from(since)) as f64 / DAY as f64;
    Ok(match at {
        At::Moment(until) => since.unary(|since| days(since, until)),
        At::Column(until) => {
            let until = until.microseconds(expected, wrong)?;
            since.iter().zip(&until).map(|(since, until)| Some(days(since?, until?))).collect()
        }
    })
}

/// When ages are measured.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// Microseconds since 1970.
    Moment(i64),
    Column(MomentColumn<'a>),
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
