//! One value of a row in JSON, as it stands there. Strings are borrowed from the body where they have no escapes.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::serving_columns::MOST_ELEMENTS;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonCell<'a> {
    /// The row does not have it.
    Absent,
    Null,
    Boolean(bool),
    Integer(i64),
    /// Above the range of [`JsonCell::Integer`].
    Unsigned(u64),
    Number(f64),
    Text(Cow<'a, str>),
    List(Vec<JsonCell<'a>>),
}

/// The parser returns integers outside of -2^63 to 2^64 as floating-point numbers, which may be rounded to one of these bounds.
const BEYOND: (f64, f64) = (i64::MIN as f64, u64::MAX as f64);

/// Floating-point numbers below this (2^53) have all digits of the integer that they were written as.
const EXACT: f64 = (1_u64 << 53) as f64;

impl JsonCell<'_> {
    /// The value as an integer, if it is one, also as `31.0`. The parser reads `-0` as it reads `-0.0`, as a floating-point number; here
    /// it is 0.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            Self::Number(number) if number.fract() == 0.0 && number.abs() < EXACT => Some(*number as i64),
            _ => None,
        }
    }

    /// The same, and true is 1, as in the other formats.
    pub(super) fn integer_or_boolean(&self) -> Option<i64> {
        match self {
            Self::Boolean(value) => Some(i64::from(*value)),
            cell => cell.integer(),
        }
    }

    /// The kind of the value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Absent | Self::Null => "null",
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) | Self::Unsigned(_) => "an integer",
            Self::Number(number) if is_minus_zero(*number) => "a minus zero (-0 or -0.0)",
            Self::Number(number) if *number <= BEYOND.0 || *number >= BEYOND.1 => "a number not between -2^63 and 2^64",
            Self::Number(number) if number.fract() == 0.0 && number.abs() >= EXACT => {
                "a number with a point or an exponent and a size of 2^53 or more"
            }
            Self::Number(_) => "a number with a fraction or an exponent",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
        }
    }
}

fn is_minus_zero(number: f64) -> bool {
    number == 0.0 && number.is_sign_negative()
}

impl<'de> Deserialize<'de> for JsonCell<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = JsonCell<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a string, a boolean, null, or a list of them")
    }

    fn visit_unit<E: Error>(self) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<JsonCell<'de>, E> {
        Ok(i64::try_from(value).map_or(JsonCell::Unsigned(value), JsonCell::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Number(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<JsonCell<'de>, E> {
        Ok(JsonCell::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<JsonCell<'de>, A::Error> {
        Err(A::Error::custom("an object, expected a number, a string, a boolean, null, or a list of them"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonCell<'de>, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = list.next_element::<JsonCell<'de>>()? {
            if let JsonCell::List(_) = cell {
                return Err(A::Error::custom("a list within a list: a feature is a value or a list of values"));
            }
            if cells.len() == MOST_ELEMENTS {
                return Err(A::Error::custom(format!("a list of more than {MOST_ELEMENTS} elements")));
            }
            cells.push(cell);
        }
        Ok(JsonCell::List(cells))
    }
}
