//! Parses dense features: converts numbers and booleans to `f32` and transforms them. A missing value becomes 0. [`OptionsParser`] parses
//! columns with more options than `none` and `log1p`, and [`VectorParser`] lists of numbers.

use std::fmt::{Display, LowerExp};
use std::sync::LazyLock;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float32Type, Float64Type, Int32Type, Int64Type, UInt64Type};
use forebay_actors::Fault;
use forebay_job::{Columns, DenseColumn, Transform};

use super::bad_rows::BadRows;
use super::column::{NOT_FINITE, Wanted, number, shown, wrong_type};
use super::dense_options::OptionsParser;
use super::dense_vector::VectorParser;
use crate::nullable::extend_or;

/// ln(1 + x) of small integers. Computing a logarithm takes 10 ns, and most counts are small.
static SMALL_LOGS: LazyLock<Vec<f32>> = LazyLock::new(|| (0..4096_u16).map(|x| log1p(f32::from(x))).collect());

pub(super) enum DenseParser {
    /// A number, perhaps its logarithm: the fast way.
    Plain(Transform),
    Options(OptionsParser),
    Vector(VectorParser),
}

impl DenseParser {
    pub(super) fn new(column: &DenseColumn, columns: &Columns) -> Self {
        match column.length {
            Some(length) => Self::Vector(VectorParser::new(length, column, columns)),
            None if column.is_plain() => Self::Plain(column.transform),
            None => Self::Options(OptionsParser::new(column, columns)),
        }
    }

    /// The column belongs to a slot, and is read as a number.
    pub(super) fn is_of_slot(&mut self) {
        if let Self::Options(options) = self {
            options.expected = Wanted::Quantiles;
        }
    }

    /// Adds two inputs with the rest that each value loses as `f32`, if the feature has options.
    pub(super) fn with_rests(&mut self) {
        if let Self::Options(options) = self {
            options.rests = true;
        }
    }

    /// Appends the inputs of the feature to `out`: `[n]` for each of its numbers, and `[n]` more for an indicator. `at` is the column of
    /// its `at`, if it names one.
    pub(super) fn parse(
        &self,
        name: &str,
        array: &ArrayRef,
        at: Option<&ArrayRef>,
        out: &mut Vec<f32>,
        bad: &mut BadRows,
    ) -> Result<(), Fault> {
        let transform = match self {
            Self::Plain(transform) => *transform,
            Self::Options(options) => return options.parse(name, array, at, out, bad),
            Self::Vector(vector) => return vector.parse(name, array, out, bad),
        };
        let logs = |of_integers| transform.is_log1p(of_integers);
        match array.data_type() {
            // A column that all files lack.
            DataType::Null => out.extend(std::iter::repeat_n(0.0, array.len())),
            DataType::Int32 => integers(array.as_primitive::<Int32Type>(), |v| (v as usize, v as f32), logs(true), out),
            DataType::Int64 => integers(array.as_primitive::<Int64Type>(), |v| (v as usize, v as f32), logs(true), out),
            DataType::UInt64 => {
                integers(array.as_primitive::<UInt64Type>(), |v| (v as usize, v as f32), logs(true), out)
            }
            kind if kind.is_integer() || matches!(kind, DataType::Boolean) => {
                let (numbers, is_count) = (number::<Int64Type>(name, array)?, kind.is_integer());
                integers(numbers.as_primitive::<Int64Type>(), |v| (v as usize, v as f32), logs(is_count), out);
            }
            DataType::Float32 => {
                let logs = logs(false);
                let value = |v| if logs { log1p(v) } else { v };
                floats(name, array.as_primitive::<Float32Type>(), value, out, bad);
            }
            kind if kind.is_floating() || kind.is_decimal() => {
                let logs = logs(false);
                let value = |v| if logs { wide_log1p(v) } else { v as f32 };
                floats(name, number::<Float64Type>(name, array)?.as_primitive::<Float64Type>(), value, out, bad);
            }
            _ => return Err(wrong_type(name, array, Wanted::Dense)),
        }
        Ok(())
    }
}

/// In `f64`, as with options: `f32::ln_1p` is as slow, and its last bit is often another.
fn log1p(x: f32) -> f32 {
    (f64::from(x).abs().ln_1p() as f32).copysign(x)
}

/// The logarithm of the nearest `f32`, or of `x` itself where that is infinite.
fn wide_log1p(x: f64) -> f32 {
    let narrow = x as f32;
    let wide = if narrow.is_finite() { f64::from(narrow) } else { x };
    (wide.abs().ln_1p() as f32).copysign(narrow)
}

/// `parts` gives an integer as an index, which is large for a negative one, and as `f32`.
fn integers<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    parts: impl Fn(T::Native) -> (usize, f32),
    logs: bool,
    out: &mut Vec<f32>,
) {
    let small = SMALL_LOGS.as_slice();
    let value = |v: T::Native| {
        let (index, v) = parts(v);
        match small.get(index) {
            _ if !logs => v,
            Some(&log) => log,
            None => log1p(v),
        }
    };
    extend_or(out, array.values(), array.nulls(), 0.0, value);
}

/// `parsed` gives the input of the model. A value whose input is not finite is bad.
fn floats<T: ArrowPrimitiveType<Native: Display + LowerExp + Into<f64>>>(
    name: &str,
    array: &PrimitiveArray<T>,
    parsed: impl Fn(T::Native) -> f32,
    out: &mut Vec<f32>,
    bad: &mut BadRows,
) {
    let from = out.len();
    extend_or(out, array.values(), array.nulls(), 0.0, parsed);
    for (row, input) in out[from..].iter().enumerate().filter(|(_, input)| !input.is_finite()) {
        let value = array.value(row);
        let got = if value.into().is_finite() { format!(" (got {input})") } else { String::new() };
        bad.add(row, NOT_FINITE, || format!("column `{name}` is {}, expected a finite number{got}", shown(value)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float32Array, Float64Array, Int32Array};
    use proptest::prelude::*;

    use super::*;

    /// The bits of a feature's inputs. With `indicator` it is read by [`OptionsParser`].
    fn logs(array: ArrayRef, options: &str) -> Vec<u32> {
        let text = format!("dense = [{{ column = 'x', transform = 'log1p'{options} }}]\nslots = []");
        let columns: Columns = toml::from_str(&text).unwrap();
        let (mut out, mut bad) = (Vec::new(), BadRows::default());
        DenseParser::new(&columns.dense[0], &columns).parse("x", &array, None, &mut out, &mut bad).unwrap();
        out[..array.len()].iter().map(|value| value.to_bits()).collect()
    }

    /// A bug: the same value as an integer and as a floating-point number gave logarithms with another last bit.
    #[test]
    fn the_logarithm_of_a_value_is_the_same_to_the_bit_for_each_type_and_option() {
        let integers: Vec<i32> = (-5000..5000).chain((0..24).map(|bit| 1 << bit)).collect();
        let floats: Vec<f32> = integers.iter().map(|&v| v as f32).collect();
        let expected = logs(Arc::new(Int32Array::from(integers.clone())), "");
        let wide = Float64Array::from_iter_values(integers.iter().map(|&v| f64::from(v)));
        let long = PrimitiveArray::<Int64Type>::from_iter_values(integers.iter().map(|&v| i64::from(v)));
        assert_eq!(logs(Arc::new(Float32Array::from(floats.clone())), ""), expected);
        assert_eq!(logs(Arc::new(wide), ""), expected);
        assert_eq!(logs(Arc::new(long), ""), expected);
        assert_eq!(logs(Arc::new(Int32Array::from(integers)), ", indicator = true"), expected);
        let fractions: ArrayRef = Arc::new(Float32Array::from_iter_values(floats.iter().map(|v| v / 7.0)));
        assert_eq!(logs(Arc::clone(&fractions), ""), logs(fractions, ", indicator = true"));
    }

    /// A bug: a value beyond the range of `f32` was bad, though its logarithm is not, and the fault called it infinite.
    #[test]
    fn a_value_beyond_32_bits_has_a_logarithm() {
        let wide: ArrayRef = Arc::new(Float64Array::from(vec![Some(1e39), Some(-1e300), None, Some(0.1)]));
        let found = logs(Arc::clone(&wide), "");
        assert_eq!(found[..3], logs(Arc::clone(&wide), ", fill = 0.0")[..3]);
        assert_eq!(found[3], logs(Arc::new(Float32Array::from(vec![0.1])), "")[0], "as a file of 32 bits has it");
        let columns: Columns = toml::from_str("dense = [{ column = 'x', transform = 'none' }]\nslots = []").unwrap();
        let mut bad = BadRows::default();
        DenseParser::new(&columns.dense[0], &columns).parse("x", &wide, None, &mut Vec::new(), &mut bad).unwrap();
        let said = bad.into_details();
        assert_eq!(said[0], (0, "column `x` is 1e39, expected a finite number (got inf)".to_owned()));
        assert_eq!(said.len(), 2);
    }

    proptest! {
        #[test]
        fn a_missing_number_is_zero_wherever_it_stands(
            values in prop::collection::vec(prop::option::of(-9_i32..6000), 0..300), from in 0_usize..70, logs: bool,
        ) {
            let from = from.min(values.len());
            let (array, mut out) = (Int32Array::from(values.clone()), vec![7.0]);
            integers(&array.slice(from, values.len() - from), |v| (v as usize, v as f32), logs, &mut out);
            let each = values[from..].iter().map(|value| match *value {
                None => 0.0,
                Some(v) if !logs => v as f32,
                Some(v) => SMALL_LOGS.get(v as usize).copied().unwrap_or_else(|| log1p(v as f32)),
            });
            let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            prop_assert_eq!(bits(out), bits(std::iter::once(7.0).chain(each).collect()));
        }
    }
}
