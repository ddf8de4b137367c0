//! Parses lines of CSV into columns: one pass over the bytes, no allocation per field or line. A bad line leaves no trace.

use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, counted};

use super::header::{CsvHeader, CsvOrigin, other_delimiter};
use super::options::CsvOptions;
use super::split::{field_end, split_line, unquote};
use crate::text::bad_row::{BadRow, EXACT, MAX_LINE, NUMBER, Reason, integer_expected, kept_as_text, shown, too_long};
use crate::text::column::{Column, batch};
use crate::text::format::{LineParser, TEXT_BYTES};
use crate::text::number::{WITHOUT_COMMA, has_comma, trimmed};

/// Columns being filled with the fields of lines.
pub struct CsvParser {
    header: CsvHeader,
    delimiter: u8,
    /// A byte that begins a quoted field; `\n`, which begins none, if there are no quotes.
    quote: u8,
    nulls: Vec<Vec<u8>>,
    /// One for each column of a batch; `None` for a column that is the same in all rows.
    columns: Vec<Option<Column>>,
    rows: usize,
    text_bytes: usize,
    capacity: usize,
    /// A quoted field without its quotes.
    unquoted: Vec<u8>,
}

/// Where a line is wrong: the reason, and the number of the field.
type Defect = (Reason, usize);

impl CsvParser {
    pub(super) fn new(header: &CsvHeader, options: &CsvOptions, capacity: usize) -> Self {
        let mut parser = Self {
            header: header.clone(),
            delimiter: options.delimiter(),
            quote: if options.quotes { b'"' } else { b'\n' },
            nulls: options.nulls.iter().map(|text| text.clone().into_bytes()).collect(),
            columns: Vec::new(),
            rows: 0,
            text_bytes: 0,
            capacity: capacity.max(1),
            unquoted: Vec::new(),
        };
        parser.columns = parser.empty_columns();
        parser
    }

    fn empty_columns(&self) -> Vec<Option<Column>> {
        let column = |origin: &CsvOrigin| match origin {
            CsvOrigin::Field(kind, integers) => Some(Column::new(*kind, *integers, self.capacity)),
            CsvOrigin::Constant(_) => None,
        };
        self.header.0.origins.iter().map(column).collect()
    }

    /// Takes a line and returns the place behind it. After a defect, columns may have a value too much.
    #[inline]
    fn line(&mut self, text: &[u8], at: usize) -> Result<usize, Defect> {
        let targets = &self.header.0.targets;
        let last = targets.len() - 1;
        let mut at = at;
        for (number, target) in targets.iter().enumerate() {
            let (end, field) = if text.get(at) == Some(&self.quote) && self.quote != b'\n' {
                let end = unquote(text, at, self.delimiter, &mut self.unquoted).map_err(|reason| (reason, number))?;
                (end, &self.unquoted[..])
            } else {
                let end = field_end(text, at, self.delimiter).ok_or((Reason::TooFewFields, number))?;
                let field = &text[at..end];
                (end, if number == last { field.strip_suffix(b"\r").unwrap_or(field) } else { field })
            };
            match (text[end] == b'\n', number == last) {
                (true, false) => return Err((Reason::TooFewFields, number)),
                (false, true) => return Err((Reason::TooManyFields, number)),
                _ => {}
            }
            if let Some(column) = target.and_then(|place| self.columns[place].as_mut()) {
                let is_null = |null: &Vec<u8>| null == field || null == trimmed(field);
                if field.is_empty() || self.nulls.iter().any(is_null) {
                    column.push_missing();
                } else {
                    let before = column.text_bytes();
                    column.push(field).map_err(|reason| (reason, number))?;
                    self.text_bytes += column.text_bytes() - before;
                }
            }
            at = end + 1;
        }
        Ok(at)
    }
}

impl LineParser for CsvParser {
    #[inline]
    fn push(&mut self, text: &[u8], at: usize) -> Option<usize> {
        if text[at..].starts_with(b"\n") || text[at..].starts_with(b"\r\n") {
            return None;
        }
        match self.line(text, at) {
            Ok(end) if end - 1 - at <= MAX_LINE => {
                self.rows += 1;
                Some(end)
            }
            _ => {
                self.columns.iter_mut().flatten().for_each(|column| column.truncate(self.rows));
                None
            }
        }
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn is_full(&self) -> bool {
        self.rows == self.capacity || self.text_bytes >= TEXT_BYTES
    }

    fn take(&mut self) -> Result<RecordBatch, Fault> {
        let empty = self.empty_columns();
        let rows = std::mem::take(&mut self.rows);
        self.text_bytes = 0;
        let constants = self.header.0.origins.iter().map(|origin| match origin {
            CsvOrigin::Constant(constant) => Some(constant),
            CsvOrigin::Field(..) => None,
        });
        let columns = std::mem::replace(&mut self.columns, empty).into_iter().zip(constants);
        batch(&self.header.0.schema, rows, columns, Column::finish)
    }

    fn diagnose(&self, line: &[u8]) -> BadRow {
        let names = &self.header.0.names;
        if line.len() > MAX_LINE {
            return too_long(&format!("a row of {}", counted(names.len(), "field")));
        }
        let options =
            CsvOptions { delimiter: char::from(self.delimiter), quotes: self.quote == b'"', ..Default::default() };
        let mut parser = Self { nulls: self.nulls.clone(), ..Self::new(&self.header, &options, 1) };
        let (reason, field) = match parser.line(&[line, b"\n"].concat(), 0) {
            Err(defect) => defect,
            // Not reachable: the same code refused the line.
            Ok(_) => (Reason::TooFewFields, 0),
        };
        let bad = |found: String, expected: &str| {
            let column = Some((field, names[field].clone()));
            BadRow { column, ..BadRow::new(reason, found, expected) }
        };
        let raw =
            || split_line(line, &options).ok().and_then(|f| f.get(field).cloned()).unwrap_or_else(|| line.to_owned());
        let value = || shown(&raw());
        match reason {
            Reason::TooFewFields | Reason::TooManyFields => {
                let found = split_line(line, &options).map_or(0, |fields| fields.len());
                let of_header = match &names[..] {
                    [name] => one_name(name, options.delimiter),
                    _ => String::new(),
                };
                let expected = format!("{}, as the header has{of_header}", names.len());
                BadRow::new(reason, counted(found, "field"), &expected)
            }
            Reason::OpenQuote => bad(
                shown(line),
                "a quote that ends the field on its line: fields with line ends are not read, so write the rows as Parquet or replace the line ends",
            ),
            Reason::TextAfterQuote => bad(
                shown(line),
                "a delimiter behind the quote that ends the field; a quote in a field is written twice",
            ),
            Reason::NotANumber => bad(value(), &number_expected(&raw())),
            Reason::NotAnInteger => bad(value(), &format!("nothing or {}", integer_expected(&raw()))),
            Reason::LosesDigits => bad(value(), &kept_as_text(&names[field])),
            Reason::Rounded => bad(value(), EXACT),
            Reason::NotHex => bad(value(), "nothing or up to 16 hex digits"),
            _ => bad(value(), "text in UTF-8 (`iconv -f LATIN1 -t UTF-8` converts Latin-1)"),
        }
    }
}

/// What is wrong with a header of one name above lines of several fields.
fn one_name(name: &str, delimiter: char) -> String {
    let short = shown(name.as_bytes());
    match other_delimiter(&[name], delimiter) {
        Some(other) => format!(
            ": the header is {short}, with {other:?} and no {delimiter:?}: set data.csv.delimiter, or --delimiter, to the one that all lines \
             have"
        ),
        None => format!(": the first line is {short}, expected the names of columns: remove lines in front of them"),
    }
}

/// The expectation of a number; for a text that other programs write for a missing value, the advice.
fn number_expected(found: &[u8]) -> String {
    const MISSING: [&str; 8] = ["na", "n/a", "null", "none", "nil", "\\n", "-", "?"];
    let found = String::from_utf8_lossy(trimmed(found)).into_owned();
    if MISSING.contains(&found.to_ascii_lowercase().as_str()) {
        return format!("nothing or a number (if it means a missing value, set data.csv.nulls to [{found:?}])");
    }
    if has_comma(&found) {
        return format!("nothing or a number {WITHOUT_COMMA}");
    }
    format!("nothing or {NUMBER}")
}
