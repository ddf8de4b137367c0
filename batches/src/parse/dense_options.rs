//! Dense features with options: a number for a missing value, an indicator, limits, a scale, logarithms and parts of timestamps. Arithmetic
//! is in `f64`.

use std::sync::LazyLock;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use forebay_actors::Fault;
use forebay_job::{Clip, Columns, DenseColumn, DenseStatistics, Scale, Transform};

use super::bad_rows::BadRows;
use super::calendar::{At, CalendarPart, age_in_days};
use super::column::{NOT_FINITE, Wanted, number, shown, wrong_type};
use super::moments::MomentColumn;
use crate::nullable::extend_or;

/// ln(1 + x) of small integers. To compute a logarithm takes 15 ns, and most counts are small.
static SMALL_LOGS: LazyLock<Vec<f64>> = LazyLock::new(|| (0..4096_u16).map(|x| f64::from(x).ln_1p()).collect());

const NO_LOGARITHM: &str = "dense value has no logarithm";

/// Parses a dense feature with options.
pub(super) struct OptionsParser {
    column: DenseColumn,
    /// Subtracted from transformed values, which are then multiplied by `factor`.
    shift: f64,
    factor: f64,
    /// The expected kind of the column, for faults.
    pub(super) expected: Wanted<'static>,
    /// Whether two more inputs have the rest that each value loses as `f32`, and the rest that this loses: the three together are exact.
    /// Only statistics need them.
    pub(super) rests: bool,
}

impl OptionsParser {
    pub(super) fn new(column: &DenseColumn, columns: &Columns) -> Self {
        let statistics = columns.statistics_of(&column.column).copied().unwrap_or_default();
        let DenseStatistics { mean, std, min, max, .. } = statistics;
        let inverse = |width: f64| if width > 0.0 { 1.0 / width } else { 0.0 };
        let (shift, factor) = match column.scale {
            None => (0.0, 1.0),
            Some(Scale::ZScore) => (mean, inverse(std)),
            Some(Scale::MinMax) => (min, inverse(max - min)),
        };
        Self { column: column.clone(), shift, factor, expected: Wanted::Dense, rests: false }
    }

    pub(super) fn parse(
        &self,
        name: &str,
        array: &ArrayRef,
        at: Option<&ArrayRef>,
        out: &mut Vec<f32>,
        bad: &mut BadRows,
    ) -> Result<(), Fault> {
        let (numbers, logs) = match self.column.transform.is_age() {
            true => (self.age(name, array, at, bad)?, false),
            false => self.numbers(name, array, bad)?,
        };
        let from = out.len();
        let nan_is_missing = self.column.takes_nan();
        let is_missing = |row: usize| numbers.is_null(row) || nan_is_missing && numbers.value(row).is_nan();
        let logs = logs.then(|| SMALL_LOGS.as_slice());
        let of_missing = self.column.fill.map_or(0.0, |value| self.transformed(value, logs));
        let of_number =
            |value: f64| if nan_is_missing && value.is_nan() { of_missing } else { self.transformed(value, logs) };
        extend_or(out, numbers.values(), numbers.nulls(), of_missing as f32, |value| of_number(value) as f32);
        for (row, parsed) in out[from..].iter().enumerate().filter(|(_, value)| !value.is_finite()) {
            let value = if is_missing(row) { self.column.fill.unwrap_or_default() } else { numbers.value(row) };
            if value.is_finite() && self.column.transform == Transform::Log {
                bad.add(row, NO_LOGARITHM, || {
                    format!("column `{name}` is {}, expected a number above 0 for its logarithm", shown(value))
                });
            } else {
                let got = if value.is_finite() { format!(" (got {parsed})") } else { String::new() };
                bad.add(row, NOT_FINITE, || {
                    format!("column `{name}` is {}, expected a finite number{got}", shown(value))
                });
            }
        }
        if self.column.indicator {
            out.extend((0..numbers.len()).map(|row| f32::from(u8::from(is_missing(row)))));
        }
        if self.rests {
            let exact =
                |row: usize| if is_missing(row) { of_missing } else { self.transformed(numbers.value(row), logs) };
            let rests: Vec<f64> = (0..numbers.len()).map(|row| exact(row) - f64::from(out[from + row])).collect();
            out.extend(rests.iter().map(|&rest| rest as f32));
            out.extend(rests.iter().map(|&rest| (rest - f64::from(rest as f32)) as f32));
        }
        Ok(())
    }

    /// The ages of the moments of the column.
    fn age(
        &self,
        name: &str,
        array: &ArrayRef,
        at: Option<&ArrayRef>,
        bad: &mut BadRows,
    ) -> Result<Float64Array, Fault> {
        let since = self.moments(name, array);
        let at = match (self.column.at_column(), at, self.column.at_moment()) {
            (Some(name), Some(array), _) => {
                At::Column(MomentColumn { name, array, unit: self.column.unit_of_at(), field: "at_unit", ..since })
            }
            (None, _, Some(moment)) => At::Moment(moment),
            _ => return Err(Fault::internal(format!("the age of `{name}` has no moment at which it is measured"))),
        };
        let mut wrong = Vec::new();
        let days = age_in_days(since, at, &mut wrong)?;
        for (row, value) in wrong {
            bad.add_wrong(row, value);
        }
        let unit = if self.column.transform == Transform::AgeHours { 24.0 } else { 1.0 };
        Ok(days.unary(|days| days * unit))
    }

    fn moments<'a>(&self, name: &'a str, array: &'a ArrayRef) -> MomentColumn<'a> {
        let (unit, shift) = (self.column.unit, self.column.utc_offset_microseconds());
        MomentColumn { name, array, unit, field: "unit", takes_nan: self.column.takes_nan(), shift }
    }

    /// The values of the column as numbers, and whether `log1p` applies to them. A row whose value should be a moment and is none is bad.
    fn numbers(&self, name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<(Float64Array, bool), Fault> {
        let part = match self.column.transform {
            Transform::Hour => Some(CalendarPart::Hour),
            Transform::Weekday => Some(CalendarPart::Weekday),
            Transform::Auto | Transform::None | Transform::Log1p | Transform::Log => None,
            // `age` has the ages.
            Transform::AgeDays | Transform::AgeHours => None,
        };
        if let Some(part) = part {
            let mut wrong = Vec::new();
            let parts = part.parse(self.moments(name, array), &mut wrong)?;
            for (row, value) in wrong {
                bad.add_wrong(row, value);
            }
            return Ok((parts.unary(|part| part as f64), false));
        }
        let kind = array.data_type();
        if !(kind.is_numeric() || matches!(kind, DataType::Boolean | DataType::Null)) {
            return Err(wrong_type(name, array, self.expected));
        }
        let logs = self.column.transform.is_log1p(kind.is_integer());
        Ok((number::<Float64Type>(name, array)?.as_primitive::<Float64Type>().clone(), logs))
    }

    /// `logs`: the logarithms of small integers, if `log1p` applies.
    #[inline]
    fn transformed(&self, value: f64, logs: Option<&[f64]>) -> f64 {
        let Clip { min, max } = self.column.clip.unwrap_or_default();
        // Not `f64::max`, which takes the limit in place of NaN: NaN is a bad row.
        let value = min.filter(|&min| value < min).unwrap_or(value);
        let value = max.filter(|&max| value > max).unwrap_or(value);
        let value = match self.column.transform {
            Transform::Log => value.ln(),
            Transform::Auto | Transform::None | Transform::Log1p => logs.map_or(value, |small| log1p(value, small)),
            Transform::Hour | Transform::Weekday | Transform::AgeDays | Transform::AgeHours => value,
        };
        let scaled = (value - self.shift) * self.factor;
        match self.column.limit {
            Some(limit) if scaled.is_finite() => scaled.clamp(-limit, limit),
            _ => scaled,
        }
    }
}

/// The logarithm of 1 + |x|, with the sign of x.
#[inline]
fn log1p(x: f64, small: &[f64]) -> f64 {
    let size = x.abs();
    // The index of NaN is 0, which it does not equal.
    let index = size as usize;
    let log = small.get(index).copied().filter(|_| index as f64 == size);
    log.unwrap_or_else(|| size.ln_1p()).copysign(x)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_logarithm_from_the_table_is_the_computed_one_to_the_bit() {
        let computed = |x: f64| x.abs().ln_1p().copysign(x);
        let fractions = (0..20_000).map(|i| f64::from(i) / 4.0);
        let odd = [-0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, f64::MIN_POSITIVE, 4095.999];
        for x in fractions.chain(odd).flat_map(|x| [x, -x]) {
            assert_eq!(log1p(x, &SMALL_LOGS).to_bits(), computed(x).to_bits(), "{x}");
        }
    }

    /// Each value as it is parsed alone, by the definition.
    fn alone(parser: &OptionsParser, value: Option<f64>) -> f32 {
        let column = &parser.column;
        let Some(mut value) = value.filter(|value| !(column.takes_nan() && value.is_nan())).or(column.fill) else {
            return 0.0;
        };
        let Clip { min, max } = column.clip.unwrap_or_default();
        if min.is_some_and(|min| value < min) {
            value = min.unwrap();
        }
        if max.is_some_and(|max| value > max) {
            value = max.unwrap();
        }
        if column.transform == Transform::Log1p {
            value = value.abs().ln_1p().copysign(value);
        }
        let scaled = (value - parser.shift) * parser.factor;
        let limited = |limit: f64| if scaled.is_finite() { scaled.clamp(-limit, limit) } else { scaled };
        column.limit.map_or(scaled, limited) as f32
    }

    proptest! {
        #[test]
        fn a_column_is_parsed_as_each_value_alone(
            values in prop::collection::vec(
                prop::option::of(prop_oneof![(-9_i32..5000).prop_map(f64::from), -9.0..9.0, Just(f64::NAN)]), 0..200,
            ),
            logs: bool, fill: bool, clip: bool, scale: bool, indicator: bool,
        ) {
            let transform = if logs { "log1p" } else { "none" };
            let option = |on: bool, text: &'static str| if on { text } else { "" };
            let options = [
                option(fill, ", fill = 3.5"),
                option(clip, ", clip = [-2.0, 3000.0]"),
                option(scale, ", scale = 'z_score'"),
                option(indicator, ", indicator = true"),
            ].concat();
            let text = format!("dense = [{{ column = 'x', transform = '{transform}'{options} }}]\nslots = []");
            let columns: Columns = toml::from_str(&text).unwrap();
            let mut parser = OptionsParser::new(&columns.dense[0], &columns);
            if scale {
                (parser.shift, parser.factor) = (2.25, 0.7);
            }
            let (array, mut out, mut bad): (ArrayRef, _, _) =
                (std::sync::Arc::new(Float64Array::from(values.clone())), vec![7.0], BadRows::default());
            parser.parse("x", &array, None, &mut out, &mut bad).unwrap();
            let expected: Vec<u32> = values.iter().map(|&value| alone(&parser, value).to_bits()).collect();
            let found: Vec<u32> = out[1..=values.len()].iter().map(|value| value.to_bits()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
