//! A bad line, and the action of the source: fail, skip, or write the line to a local file.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forebay_actors::{Fault, FaultKind};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::bad_rows_file::BadRowsFile;
use super::number::{parse_wrapping, trimmed};
use crate::staged;

/// Longest line that is taken for one, in bytes, its end excluded.
pub const MAX_LINE: usize = 1 << 20;

/// What a source does with a row it cannot use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    /// Stop, with a fault that names the place.
    #[default]
    Fail,
    /// Leave it out and count it in the ledger, by reason.
    Skip,
    /// As `skip`, and append it with its place and reason to a file in this local folder: a line that is not a row to `rejected.tsv`, a
    /// row with a bad value to `parse-0.jsonl` (one file for each replica of `parse`).
    WriteTo(PathBuf),
}

impl OnBadRow {
    /// The name of the file in the folder of [`WriteTo`](Self::WriteTo) that has the bad rows of a replica of a stage, such as `parse`.
    pub fn file_of_stage(stage: &str, replica: usize) -> String {
        format!("{stage}-{replica}.jsonl")
    }

    /// Writes and removes a small file where bad rows will be. Leaves no folder that was not there.
    ///
    /// # Errors
    /// A user fault if bad rows cannot be written; an external fault of the disk.
    pub fn probe(&self) -> Result<(), Fault> {
        let Self::WriteTo(folder) = self else { return Ok(()) };
        let cannot = |e| staged::fault(folder.display(), "cannot write bad rows to", e);
        let file = folder.join(format!(".probe-{:016x}", forebay_base::random_seed()));
        let probe = || File::create_new(&file).and_then(|_| std::fs::remove_file(&file)).map_err(cannot);
        staged::probe_folder(folder, cannot, probe)
    }
}

/// Not derived, because the derived code would call a wrong value a `unit variant`.
impl<'de> Deserialize<'de> for OnBadRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Policy;
        impl<'de> Visitor<'de> for Policy {
            type Value = OnBadRow;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"fail\", \"skip\" or { write_to = \"folder\" }")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<OnBadRow, E> {
                match name {
                    "fail" => Ok(OnBadRow::Fail),
                    "skip" => Ok(OnBadRow::Skip),
                    name => Err(E::invalid_value(de::Unexpected::Str(name), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OnBadRow, A::Error> {
                let policy = match map.next_key::<String>()? {
                    Some(key) if key == "write_to" => OnBadRow::WriteTo(map.next_value()?),
                    _ => return Err(de::Error::invalid_value(de::Unexpected::Map, &self)),
                };
                match map.next_key::<String>()? {
                    None => Ok(policy),
                    Some(_) => Err(de::Error::invalid_value(de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Policy)
    }
}

/// The file of lines that are not rows, in the folder of [`OnBadRow::WriteTo`].
pub(crate) const REJECTED: &str = "rejected.tsv";

/// Kinds of bad rows, as the ledger counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    TooFewFields,
    TooManyFields,
    OpenQuote,
    TextAfterQuote,
    NoLabel,
    BadLabel,
    NotANumber,
    NotAnInteger,
    LosesDigits,
    Rounded,
    NotHex,
    Sparse,
    NotJson,
    NotOneValue,
    Twice,
    NewKey,
    InvalidUtf8,
    TooLong,
}

impl Reason {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::TooFewFields => "too few fields",
            Self::TooManyFields => "too many fields",
            Self::OpenQuote => "quoted field has no end",
            Self::TextAfterQuote => "text after a quoted field",
            Self::NoLabel => "label is missing",
            Self::BadLabel => "label is neither 0 nor 1",
            Self::NotANumber => "not a number",
            Self::NotAnInteger => "not an integer",
            Self::LosesDigits | Self::Rounded => "loses digits as a number",
            Self::NotHex => "not a hex category",
            Self::Sparse => "text of libsvm, libFM or libffm",
            Self::NotJson => "not a JSON object",
            Self::NotOneValue => "not one value",
            Self::Twice => "a key twice",
            Self::NewKey => "a key that the first lines lack",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::TooLong => "line too long",
        }
    }
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    pub(crate) reason: Reason,
    /// The column at fault, where it is one: its place from 0, and its name.
    pub(crate) column: Option<(usize, String)>,
    pub(crate) found: String,
    pub(crate) expected: String,
    /// Whether the line looks like one of another format.
    pub(crate) other_format: bool,
}

impl BadRow {
    /// A row of the right format whose fault lies in no single column.
    pub(crate) fn new(reason: Reason, found: String, expected: &str) -> Self {
        Self { reason, column: None, found, expected: expected.to_owned(), other_format: false }
    }

    /// The column, what was found and what is expected, beside a reason that is already said.
    pub(crate) fn without_reason(&self) -> String {
        let column = self.column.as_ref().map(|(column, name)| format!("column {} ({name}): ", column + 1));
        format!("{}found {}, expected {}", column.unwrap_or_default(), self.found, self.expected)
    }

    /// The kind of a fault because of this row.
    pub(crate) fn kind(&self) -> FaultKind {
        match self.reason {
            _ if self.other_format => FaultKind::OtherFormat,
            Reason::NotANumber | Reason::NotAnInteger | Reason::LosesDigits | Reason::NotHex => FaultKind::OtherType,
            _ => FaultKind::BadData,
        }
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((column, name)) = &self.column {
            write!(f, "column {} ({name}): ", column + 1)?;
        }
        write!(f, "{}: found {}, expected {}", self.reason.text(), self.found, self.expected)
    }
}

/// What is wrong with a line of more than [`MAX_LINE`] bytes.
pub(crate) fn too_long(expected: &str) -> BadRow {
    let found = format!("more than {MAX_LINE} bytes without a line end");
    BadRow::new(Reason::TooLong, found, expected)
}

/// At most 40 bytes of a field, in backquotes: the text as it is, but control characters and bytes that are no text are escaped.
pub(crate) fn shown(field: &[u8]) -> String {
    let mut end = field.len().min(40);
    // A character has at most 4 bytes; none is cut.
    while end > 36 && field.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    let mut text = String::new();
    for chunk in field[..end].utf8_chunks() {
        for character in chunk.valid().chars() {
            match character.is_control() {
                true => text.extend(character.escape_default()),
                false => text.push(character),
            }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    let dots = if field.len() > end { ".." } else { "" };
    format!("`{text}{dots}`")
}

/// The expectation of a column of numbers (by its first rows) with a value that would lose digits.
pub(crate) fn kept_as_text(column: &str) -> String {
    format!(
        "a number without zeros in front, of at most 64 bits, or 2^53 in a column with fractions: `--text {column}` keeps its values as they \
         are written"
    )
}

/// What is expected of a column of numbers where a text is found.
pub(crate) const NUMBER: &str = "a number (text may be a slot, or a label with `positive`)";

/// What is expected of a number that is written again.
pub(crate) const EXACT: &str = "an integer that a 64-bit number of the column's type holds, because the column is kept: leave it out of \
    --keep, or write the rows as Parquet";

/// The expectation of an integer. For an integer above `i64::MAX`, which a key may be, but a value that is written again may not: the
/// advice.
pub(crate) fn integer_expected(found: &[u8]) -> &'static str {
    match parse_wrapping(trimmed(found)) {
        Some(_) => {
            "an integer of 64 bits with a sign, at most 9223372036854775807 (if the column is kept, leave it out of --keep, or write the rows \
             as Parquet, which has unsigned integers)"
        }
        None if is_whole(found) => {
            "an integer of 64 bits (pandas writes a column so if a value of it is missing: write it as Int64)"
        }
        None => "an integer of 64 bits",
    }
}

/// Whether a text is an integer with a point and zeros, such as `79.0`.
fn is_whole(text: &[u8]) -> bool {
    let text = trimmed(text);
    let end = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    text[end..].len() > 1 && text[end + 1..].iter().all(|&byte| byte == b'0') && parse_wrapping(&text[..end]).is_some()
}

/// One rejected line and where it stood.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    pub(crate) reason: Reason,
    /// What is wrong with it; only of the first rows of a split, if they are all rejected.
    pub(crate) bad: Option<Box<BadRow>>,
    /// Kept only where it will be written; of an over-long line the first 4 KiB.
    pub(crate) line: Bytes,
    /// Byte of the (decompressed) file where the line begins.
    pub(crate) offset: u64,
}

/// The file rejected lines are appended to: `file`, `byte offset`, `reason`, and the line as it was, tab-separated.
pub(crate) struct RejectFile(BadRowsFile);

impl RejectFile {
    /// Creates the folder and opens the file in it, to append.
    pub(crate) fn open(folder: &Path) -> Result<Self, Fault> {
        if folder.to_string_lossy().contains("://") {
            return Err(Fault::user(format!(
                "rejected rows are appended to a local folder, not to `{}`: set write_to to a local folder",
                folder.display()
            )));
        }
        BadRowsFile::open(folder, REJECTED).map(Self)
    }

    /// Appends the lines of the file `name`. Returns how many of them could not be written.
    pub(crate) fn write(&mut self, name: &str, lines: &[Rejected]) -> u64 {
        let row = |Rejected { reason, line, offset, .. }: &Rejected| {
            [format!("{name}\t{offset}\t{}\t", reason.text()).as_bytes(), &line[..], b"\n"].concat()
        };
        self.0.append(&lines.iter().map(row).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_shown_as_it_is_but_for_control_characters_and_bytes_that_are_no_text() {
        for (field, text) in [
            (&b"1,\"a\\b"[..], "`1,\"a\\b`"),
            ("Zürich\t".as_bytes(), "`Zürich\\t`"),
            (b"a\xffb\x1b", "`a\\xffb\\u{1b}`"),
        ] {
            assert_eq!(shown(field), text);
        }
        let long = format!("{}éé", "x".repeat(39));
        assert_eq!(shown(long.as_bytes()), format!("`{}..`", "x".repeat(39)));
    }

    #[test]
    fn an_integer_that_pandas_made_a_float_is_told_from_a_fraction() {
        for (text, whole) in
            [("79.0", true), (" -79.00 ", true), ("79.5", false), ("79.", false), (".0", false), ("x.0", false)]
        {
            assert_eq!(integer_expected(text.as_bytes()).contains("pandas"), whole, "{text}");
        }
    }

    /// A bug: the folders above one that was made for the probe stayed.
    #[test]
    fn a_probe_leaves_no_folder_that_was_not_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let probe = |folder: &str| OnBadRow::WriteTo(dir.path().join(folder)).probe();
        probe("there/a/b").unwrap();
        probe("there").unwrap();
        assert!(std::fs::read_dir(dir.path().join("there")).unwrap().next().is_none());
        assert_eq!(probe("file/a/b").unwrap_err().domain, forebay_actors::Domain::User);
    }

    #[test]
    fn the_policy_reads_as_the_job_file_writes_it() {
        let read = |text| serde_json::from_str::<OnBadRow>(text).unwrap();
        assert_eq!(read("\"fail\""), OnBadRow::Fail);
        assert_eq!(read("\"skip\""), OnBadRow::Skip);
        assert_eq!(read("{\"write_to\": \"d\"}"), OnBadRow::WriteTo("d".into()));
        for wrong in ["7", "[]", "\"drop\"", "{}", "{\"write\": \"d\"}", "{\"write_to\": \"d\", \"more\": 1}"] {
            let said = serde_json::from_str::<OnBadRow>(wrong).unwrap_err().to_string();
            assert!(said.contains("expected \"fail\", \"skip\" or { write_to = \"folder\" }"), "{wrong}: {said}");
        }
    }
}
