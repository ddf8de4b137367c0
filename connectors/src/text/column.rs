//! A column being filled with values that are written as text.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, NullBufferBuilder, PrimitiveArray, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float64Type, Int64Type, SchemaRef, UInt64Type};
use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;
use forebay_base::parse_hex;

use super::bad_row::Reason;
use super::number::{
    is_rounded, loses_digits, parse_integer, parse_number, parse_rounded_down, parse_truth, parse_wrapping, trimmed,
};
use crate::format::{Integers, ValueKind};
use crate::partition_columns::Constant;

/// The values so far; a missing one is 0 or empty.
pub(crate) struct Column {
    values: Values,
    integers: Integers,
    present: NullBufferBuilder,
}

enum Values {
    Number(Vec<f64>),
    Integer(Vec<i64>),
    Hex(Vec<u64>),
    Text { bytes: Vec<u8>, ends: Vec<i32>, of: TextOf },
}

/// What texts are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextOf {
    Anything,
    /// Hexadecimal digits.
    Hex,
    /// Integers of 64 bits with a sign or without one.
    Integers,
}

/// The type of the arrays of a kind.
pub(crate) fn data_type(kind: ValueKind) -> DataType {
    match kind {
        ValueKind::Number => DataType::Float64,
        ValueKind::Integer => DataType::Int64,
        ValueKind::Hex => DataType::UInt64,
        ValueKind::HexText | ValueKind::IntegerText | ValueKind::Text => DataType::Utf8,
    }
}

/// The metadata of fields of [`Integers::AlsoNumbers`].
const NUMBER: &str = "forebay.number";

/// The metadata of fields of [`ValueKind::Hex`].
const HEX: &str = "forebay.hex";

/// The metadata of fields of [`ValueKind::IntegerText`].
const INTEGER: &str = "forebay.integer";

/// The field of a column that is read from text, whose arrays have the type `arrays`.
pub(crate) fn field(name: &str, kind: ValueKind, arrays: DataType, integers: Integers) -> Field {
    let field = Field::new(name, arrays, true);
    let mark = match (kind, integers) {
        (ValueKind::Hex, _) => HEX,
        (ValueKind::IntegerText, _) => INTEGER,
        (_, Integers::AlsoNumbers) => NUMBER,
        _ => return field,
    };
    field.with_metadata(HashMap::from([(mark.to_owned(), "text".to_owned())]))
}

/// Whether a column of integers was read from text in which it is also a column of numbers ([`Integers::AlsoNumbers`]).
pub fn is_number_of_text(field: &Field) -> bool {
    field.metadata().contains_key(NUMBER)
}

/// Whether a column of integers was read from text that has their hexadecimal digits ([`ValueKind::Hex`]).
pub fn is_hex_of_text(field: &Field) -> bool {
    field.metadata().contains_key(HEX)
}

/// Whether a column of text has the integers of a column of integers ([`ValueKind::IntegerText`]).
pub fn is_integer_of_text(field: &Field) -> bool {
    field.metadata().contains_key(INTEGER)
}

impl Column {
    pub(crate) fn new(kind: ValueKind, integers: Integers, capacity: usize) -> Self {
        let values = match kind {
            ValueKind::Number => Values::Number(Vec::with_capacity(capacity)),
            ValueKind::Integer => Values::Integer(Vec::with_capacity(capacity)),
            ValueKind::Hex => Values::Hex(Vec::with_capacity(capacity)),
            ValueKind::HexText | ValueKind::IntegerText | ValueKind::Text => {
                let of = match kind {
                    ValueKind::HexText => TextOf::Hex,
                    ValueKind::IntegerText => TextOf::Integers,
                    _ => TextOf::Anything,
                };
                let mut ends = Vec::with_capacity(capacity + 1);
                ends.push(0);
                Values::Text { bytes: Vec::new(), ends, of }
            }
        };
        Self { values, integers, present: NullBufferBuilder::new(capacity) }
    }

    /// Adds the value of a field that is not missing. Spaces around a number are no part of it, and a field of spaces is a missing number.
    /// In a column of numbers `true` and `false`, in any case, are 1 and 0. Adds nothing if the field cannot be a value of this column.
    #[inline]
    pub(crate) fn push(&mut self, field: &[u8]) -> Result<(), Reason> {
        match self.push_as_written(field) {
            Err(reason) if !matches!(reason, Reason::InvalidUtf8 | Reason::LosesDigits | Reason::Rounded) => {
                self.push_otherwise(field, reason)
            }
            pushed => pushed,
        }
    }

    /// A field that is no number as it is written.
    #[cold]
    fn push_otherwise(&mut self, field: &[u8], reason: Reason) -> Result<(), Reason> {
        let is_number =
            matches!(self.values, Values::Number(_) | Values::Integer(_) | Values::Text { of: TextOf::Integers, .. });
        if let Some(truth) = parse_truth(field).filter(|_| is_number) {
            return self.push_as_written(if truth { b"1" } else { b"0" });
        }
        match trimmed(field) {
            [] => {
                self.push_missing();
                Ok(())
            }
            number if number.len() < field.len() => self.push_as_written(number),
            _ => Err(reason),
        }
    }

    #[inline]
    fn push_as_written(&mut self, field: &[u8]) -> Result<(), Reason> {
        match &mut self.values {
            Values::Number(_) | Values::Integer(_) if self.integers == Integers::AsWritten && loses_digits(field) => {
                return Err(Reason::LosesDigits);
            }
            Values::Number(_)
                if matches!(self.integers, Integers::Exact | Integers::AsWritten) && is_rounded(field) =>
            {
                return Err(if self.integers == Integers::Exact { Reason::Rounded } else { Reason::LosesDigits });
            }
            Values::Number(values) => values.push(parse_number(field).ok_or(Reason::NotANumber)?),
            Values::Integer(values) => {
                let integer = match self.integers {
                    Integers::Wrapping => parse_wrapping(field),
                    Integers::RoundedDown => parse_rounded_down(field),
                    Integers::Signed | Integers::AlsoNumbers | Integers::Exact | Integers::AsWritten => {
                        parse_integer(field)
                    }
                };
                let would_be_rounded = || self.integers == Integers::Exact && parse_rounded_down(field).is_some();
                let reason = || if would_be_rounded() { Reason::Rounded } else { Reason::NotAnInteger };
                values.push(integer.ok_or_else(reason)?);
            }
            Values::Hex(values) => values.push(parse_hex(field).ok_or(Reason::NotHex)?),
            Values::Text { of: TextOf::Hex, .. } if parse_hex(field).is_none() => return Err(Reason::NotHex),
            Values::Text { bytes, ends, of: TextOf::Integers } => {
                let wrapped = parse_wrapping(field).ok_or(Reason::NotAnInteger)?;
                let text = match parse_integer(field) {
                    Some(integer) => integer.to_string(),
                    None => (wrapped as u64).to_string(),
                };
                bytes.extend_from_slice(text.as_bytes());
                ends.push(bytes.len() as i32);
            }
            Values::Text { bytes, ends, .. } => {
                if std::str::from_utf8(field).is_err() {
                    return Err(Reason::InvalidUtf8);
                }
                bytes.extend_from_slice(field);
                ends.push(bytes.len() as i32);
            }
        }
        self.present.append_non_null();
        Ok(())
    }

    /// Adds an integer to a column of hexadecimal digits, or of their text.
    pub(crate) fn push_hex(&mut self, integer: &[u8]) -> Result<(), Reason> {
        let value = parse_wrapping(integer).ok_or(Reason::NotHex)?;
        self.push_as_written(format!("{value:x}").as_bytes())
    }

    /// Adds a missing value.
    #[inline]
    pub(crate) fn push_missing(&mut self) {
        match &mut self.values {
            Values::Number(values) => values.push(0.0),
            Values::Integer(values) => values.push(0),
            Values::Hex(values) => values.push(0),
            Values::Text { bytes, ends, .. } => ends.push(bytes.len() as i32),
        }
        self.present.append_null();
    }

    /// Values so far.
    pub(crate) fn len(&self) -> usize {
        self.present.len()
    }

    /// What its values are.
    pub(crate) fn kind(&self) -> ValueKind {
        match self.values {
            Values::Number(_) => ValueKind::Number,
            Values::Integer(_) => ValueKind::Integer,
            Values::Hex(_) => ValueKind::Hex,
            Values::Text { of: TextOf::Hex, .. } => ValueKind::HexText,
            Values::Text { of: TextOf::Integers, .. } => ValueKind::IntegerText,
            Values::Text { of: TextOf::Anything, .. } => ValueKind::Text,
        }
    }

    /// Bytes of text held.
    #[inline]
    pub(crate) fn text_bytes(&self) -> usize {
        if let Values::Text { bytes, .. } = &self.values { bytes.len() } else { 0 }
    }

    /// Forgets what was added after the first `rows` values.
    pub(crate) fn truncate(&mut self, rows: usize) {
        match &mut self.values {
            Values::Number(values) => values.truncate(rows),
            Values::Integer(values) => values.truncate(rows),
            Values::Hex(values) => values.truncate(rows),
            Values::Text { bytes, ends, .. } => {
                ends.truncate(rows + 1);
                bytes.truncate(ends.last().map_or(0, |&end| end as usize));
            }
        }
        self.present.truncate(rows);
    }

    /// The values as an array.
    pub(crate) fn finish(mut self) -> Result<ArrayRef, Fault> {
        let nulls = self.present.finish();
        Ok(match self.values {
            Values::Number(values) => numbers::<Float64Type>(values, nulls),
            Values::Integer(values) => numbers::<Int64Type>(values, nulls),
            Values::Hex(values) => numbers::<UInt64Type>(values, nulls),
            Values::Text { bytes, ends, .. } => {
                let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
                let strings = StringArray::try_new(ends, Buffer::from_vec(bytes), nulls);
                Arc::new(strings.map_err(|e| Fault::internal("fields of text make no column").because(e))?)
            }
        })
    }
}

/// A batch of `rows` rows. Each column of `schema` is the constant that the name of a folder gives, or the values that were read, which
/// `finish` turns into an array.
pub(crate) fn batch<'a, C>(
    schema: &SchemaRef,
    rows: usize,
    columns: impl Iterator<Item = (Option<C>, Option<&'a Constant>)>,
    finish: impl Fn(C) -> Result<ArrayRef, Fault>,
) -> Result<RecordBatch, Fault> {
    let columns = columns.map(|(column, constant)| match (column, constant) {
        (_, Some(constant)) => Ok(constant.rows(rows)),
        (Some(column), None) => finish(column),
        (None, None) => Err(Fault::internal("a column of text has no values")),
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)
        .map_err(|e| Fault::internal("the columns of text do not fit their schema").because(e))
}

fn numbers<T: ArrowPrimitiveType>(values: Vec<T::Native>, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), nulls))
}
