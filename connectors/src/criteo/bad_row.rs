//! What is wrong with a line, and what the source does with it: fail, skip, or write it to a local file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use bytes::Bytes;
use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

use super::schema::{COLUMNS, INTEGERS, column_name};

/// Longest line that is taken for one, in bytes, its end excluded.
pub const MAX_LINE: usize = 1 << 20;

/// What a source does with a row it cannot use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRow {
    /// Stop, with a fault that names the place.
    #[default]
    Fail,
    /// Leave it out and count it in the ledger, by reason.
    Skip,
    /// As `skip`, and append it with its place and reason to `rejected.tsv` in this local folder.
    WriteTo(PathBuf),
}

/// Kinds of bad rows, as the ledger counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    TooFewFields,
    TooManyFields,
    BadLabel,
    NotAnInteger,
    NotHex,
    InvalidUtf8,
    TooLong,
}

impl Reason {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::TooFewFields => "too few fields",
            Self::TooManyFields => "too many fields",
            Self::BadLabel => "label is neither 0 nor 1",
            Self::NotAnInteger => "not an integer",
            Self::NotHex => "not a hex category",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::TooLong => "line too long",
        }
    }
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRow {
    pub(crate) reason: Reason,
    /// The column at fault, where it is one.
    column: Option<usize>,
    found: String,
    expected: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(column) = self.column {
            write!(f, "column {} ({}): ", column + 1, column_name(column))?;
        }
        write!(f, "{}: found {}, expected {}", self.reason.text(), self.found, self.expected)
    }
}

/// What is wrong with a line that the parser refused; the line comes without its `\n`.
pub(crate) fn diagnose(line: &[u8]) -> BadRow {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let bad =
        |reason, column, found: String, expected: &str| BadRow { reason, column, found, expected: expected.to_owned() };
    if line.len() > MAX_LINE {
        return bad(
            Reason::TooLong,
            None,
            format!("more than {MAX_LINE} bytes without a line end"),
            "a row of 40 fields",
        );
    }
    let fields: Vec<&[u8]> = line.split(|&b| b == b'\t').take(COLUMNS + 1).collect();
    let count = memchr::memchr_iter(b'\t', line).count() + 1;
    if count != COLUMNS {
        let reason = if count < COLUMNS { Reason::TooFewFields } else { Reason::TooManyFields };
        let expected = if count + 1 == COLUMNS && !matches!(fields[0], b"0" | b"1") {
            "40 fields, tab-separated (Criteo's own test set has no labels: it can be predicted, not trained or evaluated on)"
        } else {
            "40 fields, tab-separated: a label, 13 integers, 26 hex categories"
        };
        return bad(reason, None, format!("{count} fields"), expected);
    }
    for (at, field) in fields.into_iter().enumerate() {
        let (fine, reason, expected) = match at {
            0 => (matches!(field, b"0" | b"1"), Reason::BadLabel, "0 or 1"),
            1..=INTEGERS => (is_integer(field), Reason::NotAnInteger, "nothing or an integer of 32 bits"),
            _ => (
                field.len() <= 8 && field.iter().all(u8::is_ascii_hexdigit),
                Reason::NotHex,
                "nothing or up to eight hex digits",
            ),
        };
        if !fine {
            let reason = if std::str::from_utf8(field).is_err() { Reason::InvalidUtf8 } else { reason };
            return bad(reason, Some(at), shown(field), expected);
        }
    }
    // Not reachable as long as parser and diagnosis agree, which a property test watches.
    bad(Reason::TooFewFields, None, shown(line), "a row that can be read")
}

/// The same where lines without a label are rows, too. The number of a column counts the label.
pub(crate) fn diagnose_unlabelled(line: &[u8]) -> BadRow {
    match memchr::memchr_iter(b'\t', line).count() + 2 == COLUMNS {
        true => diagnose(&[b"0\t", line].concat()),
        false => diagnose(line),
    }
}

fn is_integer(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    field.is_empty()
        || ((1..=10).contains(&digits.len())
            && digits.iter().all(u8::is_ascii_digit)
            && std::str::from_utf8(field).is_ok_and(|s| s.parse::<i32>().is_ok()))
}

/// At most 40 bytes of a field, quoted.
fn shown(field: &[u8]) -> String {
    let head = &field[..field.len().min(40)];
    let dots = if field.len() > head.len() { ".." } else { "" };
    format!("`{}{dots}`", head.escape_ascii())
}

/// One rejected line and where it stood.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    pub(crate) reason: Reason,
    /// Kept only where it will be written; of an over-long line the first 4 KiB.
    pub(crate) line: Bytes,
    /// Byte of the (decompressed) file where the line begins.
    pub(crate) offset: u64,
}

/// The file rejected lines are appended to: `file`, `byte offset`, `reason`, and the line as it was, tab-separated.
pub(crate) struct RejectFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl RejectFile {
    /// Creates the folder and opens the file in it, to append.
    pub(crate) fn open(folder: &std::path::Path) -> Result<Self, Fault> {
        let path = folder.join("rejected.tsv");
        let fault = |e| Fault::user(format!("cannot write rejected rows to `{}`", path.display())).because(e);
        if folder.to_string_lossy().contains("://") {
            return Err(Fault::user(format!(
                "rejected rows are appended to a local folder, not to `{}`: name one as write_to",
                folder.display()
            )));
        }
        std::fs::create_dir_all(folder).map_err(fault)?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(fault)?;
        Ok(Self { file: BufWriter::new(file), path })
    }

    /// Appends the lines of one file and flushes.
    pub(crate) fn write(&mut self, name: &str, lines: &[Rejected]) -> Result<(), Fault> {
        let mut all = || {
            for Rejected { reason, line, offset } in lines {
                write!(self.file, "{name}\t{offset}\t{}\t", reason.text())?;
                self.file.write_all(line)?;
                self.file.write_all(b"\n")?;
            }
            self.file.flush()
        };
        all()
            .map_err(|e| Fault::external(format!("cannot write rejected rows to `{}`", self.path.display())).because(e))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::batch_builder::BatchBuilder;
    use super::*;

    fn row() -> Vec<String> {
        (0..COLUMNS).map(|at| if at == 0 { "1".into() } else { at.to_string() }).collect()
    }

    fn said(change: impl FnOnce(&mut Vec<String>)) -> String {
        let mut fields = row();
        change(&mut fields);
        diagnose(fields.join("\t").as_bytes()).to_string()
    }

    #[test]
    fn each_defect_is_named_with_column_found_and_expected() {
        assert!(said(|f| f.truncate(12)).contains("too few fields: found 12 fields, expected 40"));
        assert!(said(|f| f.push("0".into())).contains("too many fields: found 41 fields"));
        assert!(
            said(|f| f[0] = "2".into())
                .contains("column 1 (label): label is neither 0 nor 1: found `2`, expected 0 or 1")
        );
        assert!(said(|f| f[3] = "x7".into()).contains("column 4 (I3): not an integer: found `x7`"));
        assert!(said(|f| f[3] = "2147483648".into()).contains("not an integer"));
        assert!(said(|f| f[14] = "68fd1e6g".into()).contains("column 15 (C1): not a hex category: found `68fd1e6g`"));
        assert!(said(|f| f[39] = "123456789".into()).contains("column 40 (C26): not a hex category"));
        assert!(
            said(|f| {
                f.remove(0);
                f[0] = "77".into();
            })
            .contains("test set")
        );
        let mut line = row().join("\t").into_bytes();
        *line.last_mut().unwrap() = 0xff;
        assert!(diagnose(&line).to_string().contains("invalid UTF-8"));
        assert_eq!(diagnose(&vec![b'1'; MAX_LINE + 1]).reason, Reason::TooLong);
    }

    proptest! {
        #[test]
        fn parser_and_diagnosis_agree_on_what_is_bad(
            at in 0..COLUMNS, field in prop::collection::vec(prop::sample::select(b"0123456789abcF-+ \tg\r\xc3\xa4".to_vec()), 0..12)
        ) {
            let mut fields: Vec<Vec<u8>> = row().into_iter().map(String::into_bytes).collect();
            fields[at] = field;
            let line = fields.join(&b'\t');
            let mut text = line.clone();
            text.push(b'\n');
            let good = BatchBuilder::new(1).push(&text, 0).is_some();
            let bad = diagnose(&line);
            prop_assert_eq!(good, bad.expected == "a row that can be read", "{}", bad);
        }
    }

    #[test]
    fn the_policy_reads_as_the_job_file_writes_it() {
        let read = |text| serde_json::from_str::<OnBadRow>(text).unwrap();
        assert_eq!(read("\"fail\""), OnBadRow::Fail);
        assert_eq!(read("\"skip\""), OnBadRow::Skip);
        assert_eq!(read("{\"write_to\": \"d\"}"), OnBadRow::WriteTo("d".into()));
    }
}
