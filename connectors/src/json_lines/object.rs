//! One line: the values of a JSON object at its first level, as they are written.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `each` with the name and the text of each value for which `wants` gives a place; the others are skipped.
///
/// # Errors
/// Why the line is no JSON object, or what `each` returned.
pub(super) fn each_value<'a, E>(
    line: &'a [u8],
    wants: impl FnMut(&str) -> Option<usize>,
    each: impl FnMut(usize, &'a str) -> Result<(), E>,
) -> Result<Result<(), E>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let found = json.deserialize_map(Object { wants, each })?;
    json.end()?;
    Ok(found)
}

/// The text of a string: without its quotes and escapes.
pub(super) fn string(raw: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let inner = &raw[1..raw.len() - 1];
    if inner.contains('\\') { serde_json::from_str::<String>(raw).map(Cow::Owned) } else { Ok(Cow::Borrowed(inner)) }
}

/// The elements of an array, as they are written.
pub(super) fn elements(raw: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    serde_json::from_str(raw)
}

struct Object<W, F> {
    wants: W,
    each: F,
}

impl<'de, W, F, E> Visitor<'de> for Object<W, F>
where
    W: FnMut(&str) -> Option<usize>,
    F: FnMut(usize, &'de str) -> Result<(), E>,
{
    type Value = Result<(), E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(place) = map.next_key_seed(ColumnOfKey(&mut self.wants))? {
            let Some(place) = place else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if let Err(error) = (self.each)(place, map.next_value::<&RawValue>()?.get()) {
                // The rest must be an object, too.
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Reads a key as the place of its column.
struct ColumnOfKey<'a, W>(&'a mut W);

impl<'de, W: FnMut(&str) -> Option<usize>> DeserializeSeed<'de> for ColumnOfKey<'_, W> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<W: FnMut(&str) -> Option<usize>> Visitor<'_> for ColumnOfKey<'_, W> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok((self.0)(key))
    }
}
