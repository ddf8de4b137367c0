//! The value that fills lists up to a length.

use std::fmt;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

/// A value of lists that stands for no value, as text: an integer has its decimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Padding(String);

impl Padding {
    /// The value as text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The value as an integer, if it is one. Integers above 2^63 are those of the same bits, as in keys.
    pub fn integer(&self) -> Option<i64> {
        self.0.parse().ok().or_else(|| self.0.parse::<u64>().ok().map(|value| value as i64))
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct IntegerOrText;
        impl de::Visitor<'_> for IntegerOrText {
            type Value = Padding;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or a string")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Padding, E> {
                Ok(Padding(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Padding, E> {
                Ok(Padding(value.to_string()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Padding, E> {
                Ok(Padding(text.to_owned()))
            }
        }
        from.deserialize_any(IntegerOrText)
    }
}
