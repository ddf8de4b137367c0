//! A column of moments as microseconds since 1970: dates, timestamps, text of them, and numbers that count a unit of time.

use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, PrimitiveArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::temporal_conversions::MILLISECONDS_IN_DAY;
use forebay_actors::Fault;
use forebay_base::{floor_to_integer, parse_floor};
use forebay_job::UnixUnit;

use super::bad_rows::{WrongValue, WrongValues};
use super::column::{Wanted, number, shown, wrong_type};

/// Microseconds.
pub(super) const DAY: i64 = 86_400_000_000;

/// The reason of a row whose text is neither a date nor a timestamp.
const NOT_A_TIME: &str = "text is no date or timestamp";
/// The reason of a row whose number is a time that most programs cannot write: mostly a wrong unit.
const BEYOND_YEARS: &str = "time is not in the years 1 to 9999";
/// The reason of a row with an infinite number, or with NaN where it is not a missing value.
const NOT_FINITE: &str = "time is not a finite number";

/// The first microseconds of the years 1 and 10000.
const YEARS: (i64, i64) = (-62_135_596_800_000_000, 253_402_300_800_000_000);

/// The length of the text of a date without a time of day: `2026-11-20`.
const DATE_LENGTH: usize = 10;
/// The length of the text of a timestamp without seconds: `2026-11-20 03:04`.
const MINUTE_LENGTH: usize = 16;

/// A column of moments, and how it is read.
#[derive(Clone, Copy)]
pub(super) struct MomentColumn<'a> {
    pub(super) name: &'a str,
    pub(super) array: &'a ArrayRef,
    /// The unit of its numbers; `None`: its numbers are no moments.
    pub(super) unit: Option<UnixUnit>,
    /// The field of the job that says the unit.
    pub(super) field: &'static str,
    /// Whether NaN is a missing value, or wrong.
    pub(super) takes_nan: bool,
    /// Microseconds that are added to each moment: an offset from UTC. A date without a time of day is the same at every offset.
    pub(super) shift: i64,
}

impl MomentColumn<'_> {
    /// The moments in microseconds since 1970; null for a missing value, and for a value that is no moment, which is added to `wrong`.
    /// `expected` says what the column should be, and whether dates are moments.
    ///
    /// # Errors
    /// A user fault if the type of the column has no moments.
    pub(super) fn microseconds(
        &self,
        (expected, dates): (&str, bool),
        wrong: &mut WrongValues,
    ) -> Result<Int64Array, Fault> {
        let (name, array) = (self.name, self.array);
        let cannot = |e: ArrowError| Fault::user(format!("column `{name}` cannot be read as timestamps")).because(e);
        Ok(match (array.data_type(), self.unit) {
            (DataType::Null, _) => Int64Array::new_null(array.len()),
            (DataType::Date32 | DataType::Date64, _) if dates => {
                let days = moments(array).map_err(cannot)?;
                let micros = |day: i64| day.checked_mul(DAY).filter(is_in_years);
                of_numbers(days.as_primitive::<Int64Type>(), |day| self.typed(micros(day), day, "days", 0), wrong)
            }
            (DataType::Timestamp(unit, _), _) => {
                let unit = match unit {
                    TimeUnit::Second => UnixUnit::S,
                    TimeUnit::Millisecond => UnixUnit::Ms,
                    TimeUnit::Microsecond => UnixUnit::Us,
                    TimeUnit::Nanosecond => UnixUnit::Ns,
                };
                let integers = number::<Int64Type>(name, array)?;
                let moment = |value| self.typed(microseconds(unit, value), value, unit.in_words(), self.shift);
                of_numbers(integers.as_primitive::<Int64Type>(), moment, wrong)
            }
            (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, _) => self.of_text(wrong).map_err(cannot)?,
            (DataType::Dictionary(_, value), _) => {
                let plain = cast(array, value).map_err(cannot)?;
                MomentColumn { array: &plain, ..*self }.microseconds((expected, dates), wrong)?
            }
            (DataType::UInt64, Some(unit)) => {
                let moment = |value: u64| self.integer(unit, i64::try_from(value).ok(), value).map(Some);
                of_numbers(array.as_primitive::<UInt64Type>(), moment, wrong)
            }
            (kind, Some(unit)) if kind.is_integer() => {
                let integers = number::<Int64Type>(name, array)?;
                let moment = |value: i64| self.integer(unit, Some(value), value).map(Some);
                of_numbers(integers.as_primitive::<Int64Type>(), moment, wrong)
            }
            (DataType::Float64, Some(unit)) => {
                of_numbers(array.as_primitive::<Float64Type>(), |value| self.float(unit, value), wrong)
            }
            _ => return Err(self.wrong_type(expected)),
        })
    }

    /// Dates, timestamps, and with a unit numbers.
    fn of_text(&self, wrong: &mut WrongValues) -> Result<Int64Array, ArrowError> {
        let texts = in_full(cast(self.array, &DataType::Utf8)?);
        let times = in_years(&texts)?;
        let moment = |(row, text): (usize, Option<&str>)| {
            let text = text?;
            if times.is_valid(row) {
                let shift = if text.len() == DATE_LENGTH { 0 } else { self.shift };
                return Some(times.value(row).wrapping_add(shift));
            }
            let found = match (self.unit, parse_floor(text)) {
                (Some(unit), Some(integer)) => self.integer(unit, Some(integer), format_args!("{text:.40}")),
                _ => Err(self.not_a_time(text)),
            };
            found.map_err(|why| wrong.push((row, why))).ok()
        };
        Ok(texts.as_string::<i32>().iter().enumerate().map(moment).collect())
    }

    /// The moment of a date or a timestamp; `None` is one beyond the years. `value`: its number of these units since 1970.
    fn typed(&self, micros: Option<i64>, value: i64, units: &str, shift: i64) -> Result<Option<i64>, WrongValue> {
        let detail =
            || format!("column `{}` is {value} {units} since 1970, expected a time in the years 1 to 9999", self.name);
        let moment = micros.map(|micros| Some(micros + shift));
        moment.ok_or_else(|| WrongValue { reason: BEYOND_YEARS, detail: detail() })
    }

    /// The moment of an integer; `None` is one of more than 64 bits.
    fn integer(&self, unit: UnixUnit, value: Option<i64>, written: impl Display) -> Result<i64, WrongValue> {
        match value.and_then(|value| microseconds(unit, value)) {
            Some(micros) => Ok(micros + self.shift),
            None => {
                let (name, field, unit, words) = (self.name, self.field, unit.name(), unit.in_words());
                let detail = format!(
                    "column `{name}` is {written}, expected {words} since 1970 in the years 1 to 9999 ({field} is {unit:?})"
                );
                Err(WrongValue { reason: BEYOND_YEARS, detail })
            }
        }
    }

    /// The moment of a floating-point number, rounded down to the unit, as in text; `None`: it is missing.
    fn float(&self, unit: UnixUnit, value: f64) -> Result<Option<i64>, WrongValue> {
        if value.is_nan() && self.takes_nan {
            return Ok(None);
        }
        if value.is_finite() {
            return self.integer(unit, floor_to_integer(value), shown(value)).map(Some);
        }
        let (name, field, unit, words) = (self.name, self.field, unit.name(), unit.in_words());
        let detail = format!(
            "column `{name}` is {}, expected a finite number of {words} since 1970 ({field} is {unit:?})",
            shown(value)
        );
        Err(WrongValue { reason: NOT_FINITE, detail })
    }

    /// What is wrong with a text that is no moment.
    fn not_a_time(&self, text: &str) -> WrongValue {
        let (name, short): (_, String) = (self.name, text.chars().take(40).collect());
        let advice = match self.unit.is_none() && parse_floor(text).is_some() {
            true => self.advice_of_unit(),
            false => String::new(),
        };
        let expected = "a date or a timestamp such as 2026-11-20, 2026-11-20 03:04, 2026-11-20T03:04:05.25 or 2026-11-20 03:04:05+05:30";
        WrongValue { reason: NOT_A_TIME, detail: format!("column `{name}` is {short:?}, expected {expected}{advice}") }
    }

    fn advice_of_unit(&self) -> String {
        let field = self.field;
        format!(
            ": set {field} to \"s\", \"ms\", \"us\" or \"ns\" if its numbers count this time since 1970; write others, such as 26112003 for \
             2026-11-20 03:00, as timestamps"
        )
    }

    /// The fault for a column of a type without moments.
    fn wrong_type(&self, expected: &str) -> Fault {
        let kind = self.array.data_type();
        let advice = match (kind.is_numeric(), self.unit) {
            (true, None) if kind.is_integer() || *kind == DataType::Float64 => self.advice_of_unit(),
            (true, None) => format!(": write it as bigint and set {}, or as a timestamp", self.field),
            // 32 bits hold seconds only to minutes.
            (true, Some(_)) => ", or 64-bit numbers: write it as bigint or double".to_owned(),
            (false, _) => String::new(),
        };
        wrong_type(self.name, self.array, Wanted::Other(&format!("{expected}{advice}")))
    }
}

/// BigQuery writes this behind its times. Times without a zone are in UTC, too.
const UTC: &str = " UTC";

/// The moments of texts in microseconds since 1970, rounded down: dates, and timestamps with or without a zone; without one they are in
/// UTC, and a date is its first moment. Null for null, and for a text that is no date or timestamp in the years 1 to 9999.
///
/// # Errors
/// Arrow cannot read text.
pub fn moments_of_text(texts: &StringArray) -> Result<Int64Array, ArrowError> {
    Ok(in_years(&in_full(Arc::new(texts.clone())))?.reinterpret_cast())
}

/// The moments of texts as Arrow reads them.
fn in_years(texts: &ArrayRef) -> Result<PrimitiveArray<TimestampMicrosecondType>, ArrowError> {
    let times = cast(texts, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
    let times = times.as_primitive::<TimestampMicrosecondType>();
    Ok(times.unary_opt(|micros| Some(micros).filter(is_in_years)))
}

/// Texts as Arrow reads them: with seconds, and without ` UTC` at their end.
fn in_full(texts: ArrayRef) -> ArrayRef {
    let strings = texts.as_string::<i32>();
    if !strings.iter().flatten().any(|text| text.ends_with(UTC) || has_no_seconds(text)) {
        return texts;
    }
    let in_full = |text: &str| {
        let text = text.strip_suffix(UTC).unwrap_or(text);
        match has_no_seconds(text) {
            true => format!("{}:00{}", &text[..MINUTE_LENGTH], &text[MINUTE_LENGTH..]),
            false => text.to_owned(),
        }
    };
    Arc::new(strings.iter().map(|text| text.map(in_full)).collect::<StringArray>())
}

/// Whether a text is a time that ends with its minute, before its zone if it has one.
fn has_no_seconds(text: &str) -> bool {
    let (minute, zone) = (text.as_bytes().get(DATE_LENGTH..MINUTE_LENGTH), text.as_bytes().get(MINUTE_LENGTH));
    let is_minute = |time: &[u8]| matches!(time, [b'T' | b' ', _, _, b':', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit());
    minute.is_some_and(is_minute) && zone.is_none_or(|first| b"Z+- ".contains(first))
}

/// The moments of numbers, each by `moment`.
fn of_numbers<T: ArrowPrimitiveType>(
    numbers: &PrimitiveArray<T>,
    moment: impl Fn(T::Native) -> Result<Option<i64>, WrongValue>,
    wrong: &mut WrongValues,
) -> Int64Array {
    let found = numbers.iter().enumerate().map(|(row, number)| {
        moment(number?).unwrap_or_else(|why| {
            wrong.push((row, why));
            None
        })
    });
    found.collect()
}

/// The microseconds since 1970 of a moment in the years 1 to 9999. Nanoseconds are rounded down.
fn microseconds(unit: UnixUnit, value: i64) -> Option<i64> {
    let micros = match unit {
        UnixUnit::S => value.checked_mul(1_000_000)?,
        UnixUnit::Ms => value.checked_mul(1000)?,
        UnixUnit::Us => value,
        UnixUnit::Ns => value.div_euclid(1000),
    };
    Some(micros).filter(is_in_years)
}

fn is_in_years(micros: &i64) -> bool {
    (YEARS.0..YEARS.1).contains(micros)
}

/// Dates as days and timestamps as microseconds since 1970, so that a moment has the same number for every unit of the file. Nanoseconds
/// are rounded down.
pub(super) fn moments(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(match array.data_type() {
        DataType::Date32 => cast(&cast(array, &DataType::Int32)?, &DataType::Int64)?,
        kind => {
            let numbers = cast(array, &DataType::Int64)?;
            let numbers = numbers.as_primitive::<Int64Type>();
            // A moment beyond 64 bits of microseconds wraps to another number, without an error.
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

#[cfg(test)]
mod tests {
    use arrow::array::new_null_array;

    use super::*;

    #[test]
    fn the_years_of_integers_are_those_that_a_date_of_four_digits_has() {
        let first: ArrayRef = Arc::new(StringArray::from(vec!["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"]));
        let times = cast(&first, &DataType::Timestamp(TimeUnit::Microsecond, None)).unwrap();
        let times = times.as_primitive::<TimestampMicrosecondType>();
        assert_eq!((times.value(0), times.value(1)), (YEARS.0, YEARS.1 - 1));
        for unit in [UnixUnit::S, UnixUnit::Ms, UnixUnit::Us, UnixUnit::Ns] {
            let of = |micros: i64| match unit {
                UnixUnit::S => micros.div_euclid(1_000_000),
                UnixUnit::Ms => micros.div_euclid(1000),
                UnixUnit::Us => micros,
                UnixUnit::Ns => micros.saturating_mul(1000),
            };
            for (value, fits) in [(YEARS.0, true), (YEARS.1 - 1, true), (YEARS.0 - 1, false), (YEARS.1, false)] {
                // 64 bits of nanoseconds are the years 1677 to 2262.
                assert_eq!(microseconds(unit, of(value)).is_some(), fits || unit == UnixUnit::Ns, "{value} {unit:?}");
            }
            assert_eq!(microseconds(unit, i64::MAX).is_some(), unit == UnixUnit::Ns);
        }
        assert_eq!(microseconds(UnixUnit::Ns, -1), Some(-1));
    }

    /// BigQuery writes ` UTC` behind its timestamps.
    #[test]
    fn a_text_in_utc_is_the_same_moment_as_without_a_zone() {
        let of = |texts: Vec<Option<&str>>| {
            let array: ArrayRef = Arc::new(StringArray::from(texts));
            let column = MomentColumn {
                name: "t",
                array: &array,
                unit: None,
                field: "unit",
                takes_nan: false,
                shift: 3_600_000_000,
            };
            let mut wrong = Vec::new();
            (column.microseconds(("timestamps", true), &mut wrong).unwrap(), wrong.len())
        };
        let plain = vec![Some("2026-11-20 03:04:05"), Some("2026-11-20 03:04:05.25"), None, Some("2026-11-20")];
        let zone = vec![Some("2026-11-20 03:04:05 UTC"), Some("2026-11-20 03:04:05.25 UTC"), None, Some("2026-11-20")];
        assert_eq!(of(zone), of(plain));
        // A bug: times without seconds were refused.
        let minutes = [
            "2026-11-20 03:04",
            "2026-11-20T03:04",
            "2026-11-20 03:04 UTC",
            "2026-11-20T03:04Z",
            "2026-11-20 04:04+01:00",
            "2026-11-20T08:34 +05:30",
        ];
        let (found, wrong) = of(minutes.into_iter().map(Some).collect());
        assert_eq!((found, wrong), of(vec![Some("2026-11-20 03:04:00"); 6]));
        assert_eq!(of(["2026-11-20 03:04.5", "2026-11-20 03:0", "2026-11-20 03:61"].map(Some).to_vec()).1, 3);
        // A leap second is the first second of the next minute.
        assert_eq!(of(vec![Some("2016-12-31 23:59:60")]), of(vec![Some("2017-01-01 00:00:00")]));
        assert_eq!(of(vec![Some("2016-12-31 23:59:61")]).1, 1);
        assert_eq!(of(vec![Some("x UTC"), Some("2026-11-20 03:04:05 CET"), Some(" UTC")]).1, 3);
    }

    /// A bug: a decimal in place of a moment was advised to become a slot in buckets.
    #[test]
    fn advice_names_the_field_that_makes_numbers_times() {
        let said = |kind: &DataType, unit| {
            let array = new_null_array(kind, 1);
            let column = MomentColumn { name: "t", array: &array, unit, field: "at_unit", takes_nan: false, shift: 0 };
            column.microseconds(("timestamps", false), &mut Vec::new()).map_err(|fault| fault.to_string())
        };
        for kind in [DataType::Int8, DataType::Int64, DataType::UInt64, DataType::Float64] {
            let refused = said(&kind, None).unwrap_err();
            assert!(refused.contains("`t` is") && refused.contains("set at_unit to \"s\""), "{refused}");
            assert!(said(&kind, Some(UnixUnit::S)).is_ok(), "{kind}");
        }
        for kind in [DataType::Float32, DataType::Decimal128(10, 2)] {
            for unit in [None, Some(UnixUnit::Ms)] {
                let refused = said(&kind, unit).unwrap_err();
                assert!(refused.contains("write it as bigint") && !refused.contains("log_bucket"), "{refused}");
            }
        }
        assert!(said(&DataType::Date32, Some(UnixUnit::S)).unwrap_err().contains("`t` is Date32, expected timestamps"));
    }
}
