//! Folders named `column=value`, as Hive and Spark write them: each is a column that all files below it share.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

/// What Hive and Spark write for a missing value (and for an empty string).
pub(super) const MISSING: &str = "__HIVE_DEFAULT_PARTITION__";

/// The partition columns of a file and their values, from the outermost folder inwards. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitions {
    below: Arc<[(String, Option<String>)]>,
    /// The partition columns of the named path, above everything that was listed.
    above: Arc<[(String, Option<String>)]>,
}

impl Partitions {
    /// From the folders of a path, `/` between them: `day=2026-11-20/hour=03`. Folders of other names do not count;
    /// escapes (`%3A` for `:`) are resolved.
    pub fn of(folders: &str) -> Self {
        Self { below: folders.split('/').filter_map(partition).collect(), above: Arc::default() }
    }

    /// The same below a named path. Its own folders (`/` between them) are columns only if the files have no such column: see
    /// [`get_above`](Self::get_above).
    #[must_use]
    pub(crate) fn below_path(self, path: &str) -> Self {
        Self { above: path.split('/').filter_map(partition).collect(), ..self }
    }

    /// The value of a column by the folders of the path that was named, as [`get`](Self::get).
    pub(crate) fn get_above(&self, column: &str) -> Option<Option<&str>> {
        find(&self.above, column)
    }

    /// The value of a column: `None` if there is no such folder, `Some(None)` if the value is missing. If a name comes
    /// twice, the inner folder counts.
    pub fn get(&self, column: &str) -> Option<Option<&str>> {
        find(&self.below, column)
    }

    /// Column and value, from the outermost folder inwards.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, Option<&str>)> {
        self.below.iter().map(|(name, value)| (name.as_str(), value.as_deref()))
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            let slash = if i > 0 { "/" } else { "" };
            write!(f, "{slash}{name}={}", value.unwrap_or(MISSING))?;
        }
        Ok(())
    }
}

fn find<'a>(folders: &'a [(String, Option<String>)], column: &str) -> Option<Option<&'a str>> {
    folders.iter().rev().find(|(name, _)| name == column).map(|(_, value)| value.as_deref())
}

/// Column and value of one folder.
fn partition(folder: &str) -> Option<(String, Option<String>)> {
    let (name, value) = folder.split_once('=')?;
    if name.is_empty() {
        return None;
    }
    let value = (value != MISSING).then(|| unescaped(value));
    Some((unescaped(name), value))
}

/// Escapes are the bytes of UTF-8, as pyarrow, polars and DuckDB write them; a `%` that begins no escape stays.
fn unescaped(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| by_characters(text), Cow::into_owned)
}

/// `%XX` is the character of that code, as Hive's own `unescapePathName` has it.
fn by_characters(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).filter(|code| code.bytes().all(|c| c.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                plain.push(char::from(code));
                rest = &rest[at + 3..];
            }
            None => {
                plain.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_become_columns() {
        let at = Partitions::of("logs/day=2026-11-20/x/hour=03");
        assert_eq!(at.iter().collect::<Vec<_>>(), [("day", Some("2026-11-20")), ("hour", Some("03"))]);
        assert_eq!((at.get("hour"), at.get("x"), at.get("logs")), (Some(Some("03")), None, None));
        assert_eq!(at.to_string(), "day=2026-11-20/hour=03");
        let odd = Partitions::of("=1/a==b/c=/d=__HIVE_DEFAULT_PARTITION__/a=2");
        assert_eq!(odd.get("a"), Some(Some("2")));
        assert_eq!((odd.get("c"), odd.get("d"), odd.get("")), (Some(Some("")), Some(None), None));
        assert_eq!(odd.iter().next(), Some(("a", Some("=b"))));
        assert_eq!(Partitions::of("stra%C3%9Fe=%C3%A9").get("straße"), Some(Some("é")));
        assert_eq!(Partitions::of(""), Partitions::default());
        let within = Partitions::of("hour=03").below_path("logs/day=2026-11-20");
        assert_eq!((within.get("day"), within.get_above("day")), (None, Some(Some("2026-11-20"))));
        assert_eq!((within.get_above("hour"), within.iter().count()), (None, 1));
    }

    #[test]
    fn escapes_are_resolved_and_stray_percents_stay() {
        for (escaped, plain) in [
            ("a b", "a b"),
            ("x%2Fy%3dz", "x/y=z"),
            ("100%25", "100%"),
            ("%", "%"),
            ("50%", "50%"),
            ("%4", "%4"),
            ("%zz%41", "%zzA"),
            ("%+1%-2", "%+1%-2"),
            ("%é", "%é"),
            ("ü%3A", "ü:"),
            ("Z%C3%BCrich", "Zürich"),
            ("Z%c3%bcrich%20ü%3A", "Zürich ü:"),
            ("%E2%82%AC", "€"),
            ("Z%FCrich", "Zürich"),
            ("%E2%82", "\u{e2}\u{82}"),
        ] {
            assert_eq!(unescaped(escaped), plain);
        }
    }
}
