//! Lists in a job whose entries are either a name or a table with options.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};

/// An entry that may be written as its name alone.
pub(crate) trait Named: From<String> {
    /// What an entry may be, for error messages.
    const EXPECTED: &'static str;
}

struct Entry<T>(T);

impl<'de, T: Named + Deserialize<'de>> Deserialize<'de> for Entry<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrTable<T>(PhantomData<T>);
        impl<'de, T: Named + Deserialize<'de>> Visitor<'de> for StringOrTable<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
                Ok(T::from(name.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(StringOrTable(PhantomData)).map(Entry)
    }
}

/// For `#[serde(deserialize_with)]` on a list.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Named + Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Entry<T>>::deserialize(deserializer)?.into_iter().map(|entry| entry.0).collect())
}

/// For a field that holds one entry, or a list of them.
pub(crate) fn one_or_list<'de, D: Deserializer<'de>, T: Named + Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct OneOrList<T>(PhantomData<T>);
    impl<'de, T: Named + Deserialize<'de>> Visitor<'de> for OneOrList<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}, or a list of these", T::EXPECTED)
        }
        fn visit_str<E: de::Error>(self, name: &str) -> Result<Vec<T>, E> {
            Ok(vec![T::from(name.to_owned())])
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(|entry| vec![entry])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut entries = Vec::new();
            while let Some(Entry(entry)) = list.next_element()? {
                entries.push(entry);
            }
            if entries.is_empty() { Err(de::Error::invalid_length(0, &self)) } else { Ok(entries) }
        }
    }
    deserializer.deserialize_any(OneOrList(PhantomData))
}
