//! Refuses a list in place of a table. The code that serde derives takes the values of such a list for the fields, in their order.

use std::fmt;

use serde::de::{DeserializeSeed, EnumAccess, Error, Expected, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};

/// Reads from a self-describing format, such as TOML or JSON, and refuses a list for a struct or an internally tagged enum, at every level.
/// There are three exceptions: an enum reads its fields from a buffer, so a field with tables needs its own `StrictTables`; the content of
/// a variant that is not internally tagged and the keys of a map are not checked.
pub struct StrictTables<T>(pub T);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for StrictTables<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Checked { visitor, fields: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Checked { visitor, fields: Some(fields) })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Checked { visitor, fields: None })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Checked { visitor, fields: None })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map
        identifier ignored_any
    }
}

/// A visitor that gets [`StrictTables`], and no list in the place of a table.
struct Checked<V> {
    visitor: V,
    /// The fields of the struct that is expected.
    fields: Option<&'static [&'static str]>,
}

/// A table with these fields.
struct TableOf(&'static [&'static str]);

impl Expected for TableOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More fields would hide the rest of the message.
        const SHOWN: usize = 4;
        let fields: Vec<String> = self.0.iter().take(SHOWN).map(|name| format!("{name} = ...")).collect();
        let more = if self.0.len() > SHOWN { ", ..." } else { "" };
        write!(f, "a table of its fields, such as {{ {}{more} }}", fields.join(", "))
    }
}

/// The methods that pass a value on as it is.
macro_rules! pass_on {
    ($($method:ident: $value:ty),*) => {
        $(fn $method<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.visitor.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Checked<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    pass_on!(visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64, visit_char: char);
    pass_on!(visit_str: &str, visit_borrowed_str: &'de str, visit_string: String, visit_bytes: &[u8]);

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(StrictTables(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(StrictTables(deserializer))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(StrictTables(map))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        if let Some(fields) = self.fields {
            return Err(A::Error::invalid_type(Unexpected::Seq, &TableOf(fields)));
        }
        // Only its description tells such an enum from other values.
        if (&self as &dyn Expected).to_string().starts_with("internally tagged enum ") {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        self.visitor.visit_seq(StrictTables(list))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(data)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictTables<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(StrictTables(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for StrictTables<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(StrictTables(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for StrictTables<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(StrictTables(deserializer))
    }
}
