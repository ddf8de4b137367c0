//! Parses lines of JSON into columns. A bad line leaves no trace.

use std::cell::RefCell;
use std::collections::HashMap;

use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;

use super::column::JsonColumn;
use super::head::{JsonHead, JsonOrigin};
use super::late_keys::NewKeys;
use super::object::each_value;
use crate::format::ValueKind;
use crate::text::bad_row::{BadRow, EXACT, MAX_LINE, NUMBER, Reason, integer_expected, kept_as_text, shown, too_long};
use crate::text::column::batch;
use crate::text::format::{LineParser, TEXT_BYTES};
use crate::text::head::{BYTE_ORDER_MARK, marked_encoding};

/// Columns being filled with the values of lines.
pub struct JsonParser {
    head: JsonHead,
    /// The place of each column that is a key of objects.
    places: HashMap<String, usize>,
    /// The keys of the current line that no file has in its first lines, if they are counted.
    late: RefCell<Vec<String>>,
    /// One for each column of a batch; `None` for a column of folders.
    columns: Vec<Option<JsonColumn>>,
    rows: usize,
    text_bytes: usize,
    capacity: usize,
}

/// What is wrong with a line.
enum Defect {
    /// It is no JSON object.
    NotAnObject(serde_json::Error),
    /// A value of this column, as it is written.
    Value(Reason, usize, String),
    /// A value of a key that no file has in its first lines.
    NewKey(String),
}

/// The place of a key that no file has in its first lines.
const NEW_KEY: usize = usize::MAX;

impl JsonParser {
    pub(super) fn new(head: &JsonHead, capacity: usize) -> Self {
        let columns = head.0.origins.iter().zip(head.0.schema.fields()).enumerate();
        let places = columns.filter(|(_, (origin, _))| matches!(origin, JsonOrigin::Key { .. }));
        let places = places.map(|(place, (_, field))| (field.name().clone(), place)).collect();
        let capacity = capacity.max(1);
        let mut parser = Self {
            head: head.clone(),
            places,
            late: RefCell::default(),
            columns: Vec::new(),
            rows: 0,
            text_bytes: 0,
            capacity,
        };
        parser.columns = parser.empty_columns();
        parser
    }

    fn empty_columns(&self) -> Vec<Option<JsonColumn>> {
        let column = |origin: &JsonOrigin| match *origin {
            JsonOrigin::Key { kind, integers, list } => Some(JsonColumn::new(kind, integers, list, self.capacity)),
            JsonOrigin::Folder(_) => None,
        };
        self.head.0.origins.iter().map(column).collect()
    }

    /// Takes a line. After a defect, columns may have a value too much.
    fn line(&mut self, line: &[u8]) -> Result<(), Defect> {
        let (places, columns, rows) = (&self.places, &mut self.columns, self.rows);
        let new_keys = &self.head.0.new_keys;
        let new_key = RefCell::new(String::new());
        let place = |key: &str| {
            places.get(key).copied().or_else(|| {
                new_keys.is_new(key).then(|| {
                    key.clone_into(&mut new_key.borrow_mut());
                    NEW_KEY
                })
            })
        };
        let late = &self.late;
        late.borrow_mut().clear();
        let value = |place: usize, raw: &str| {
            if place == NEW_KEY {
                return match (raw, new_keys) {
                    ("null", _) => Ok(()),
                    (_, NewKeys::Counted(..)) => {
                        late.borrow_mut().push(new_key.take());
                        Ok(())
                    }
                    _ => Err(Defect::NewKey(new_key.take())),
                };
            }
            let Some(column) = columns[place].as_mut() else { return Ok(()) };
            let pushed = if column.rows() > rows { Err(Reason::Twice) } else { column.push(raw) };
            pushed.map_err(|reason| Defect::Value(reason, place, raw.to_owned()))
        };
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        each_value(line, place, value).map_err(Defect::NotAnObject)??;
        for (place, column) in self.columns.iter_mut().enumerate() {
            let Some(column) = column.as_mut().filter(|column| column.rows() == rows) else { continue };
            column.push_missing().map_err(|reason| Defect::Value(reason, place, String::new()))?;
        }
        Ok(())
    }
}

/// The text of Python's `json.dumps` for a number that JSON lacks, if the parser stopped there: at this column, counted from 1.
fn no_number(line: &[u8], column: usize) -> Option<&'static str> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    let stopped = line.get(column.checked_sub(1)?..)?;
    ["NaN", "Infinity"].into_iter().find(|number| stopped.starts_with(number.as_bytes()))
}

/// The type of a JSON value that is no object.
fn value_kind(line: &[u8]) -> &'static str {
    match line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line).trim_ascii_start().first() {
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

impl LineParser for JsonParser {
    fn push(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let end = at + memchr::memchr(b'\n', &text[at..])?;
        if end - at > MAX_LINE {
            return None;
        }
        match self.line(&text[at..end]) {
            Ok(()) => {
                if let NewKeys::Counted(_, late_keys) = &self.head.0.new_keys {
                    late_keys.add_row(self.late.get_mut());
                }
                self.rows += 1;
                self.text_bytes = self.columns.iter().flatten().map(JsonColumn::text_bytes).sum();
                Some(end + 1)
            }
            Err(_) => {
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
        let constants = self.head.0.origins.iter().map(|origin| match origin {
            JsonOrigin::Folder(constant) => Some(constant),
            JsonOrigin::Key { .. } => None,
        });
        let columns = std::mem::replace(&mut self.columns, empty).into_iter().zip(constants);
        batch(&self.head.0.schema, rows, columns, JsonColumn::finish)
    }

    fn diagnose(&self, line: &[u8]) -> BadRow {
        const OBJECT: &str = "a JSON object on each line";
        if line.len() > MAX_LINE {
            return too_long(OBJECT);
        }
        let (reason, place, raw) = match Self::new(&self.head, 1).line(line) {
            Err(Defect::Value(reason, place, raw)) => (reason, place, raw),
            Err(Defect::NewKey(key)) => {
                let expected = format!(
                    "only keys that the first 64 KiB of the files have: to read this key, add `--text {key}`, which makes it a column of \
                     text, or name a job, which says which keys are read"
                );
                return BadRow::new(Reason::NewKey, shown(key.as_bytes()), &expected);
            }
            Err(Defect::NotAnObject(e)) => {
                // The parser sees only this line, so its line number says nothing.
                let why = e.to_string();
                let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
                let why = match (marked_encoding(line), no_number(line, e.column())) {
                    (Some(from), _) => {
                        format!("the file is {from}: convert it, for instance with `iconv -f {from} -t UTF-8`")
                    }
                    (None, Some(number)) => format!("{number} is no JSON, write null"),
                    (None, None) if e.is_data() => format!("the line is {}", value_kind(line)),
                    (None, None) => why.to_owned(),
                };
                return BadRow::new(Reason::NotJson, format!("{} ({why})", shown(line)), OBJECT);
            }
            // Not reachable: the same code refused the line.
            Ok(()) => return BadRow::new(Reason::NotJson, shown(line), OBJECT),
        };
        let list = matches!(self.head.0.origins.get(place), Some(JsonOrigin::Key { list: true, .. }));
        let value = match self.head.0.origins.get(place) {
            Some(JsonOrigin::Key { kind: ValueKind::Number, .. }) => format!("null or {NUMBER}"),
            Some(JsonOrigin::Key { kind: ValueKind::Integer | ValueKind::IntegerText, .. }) => {
                format!("null or {}", integer_expected(raw.trim_matches('"').as_bytes()))
            }
            Some(JsonOrigin::Key { kind: ValueKind::Hex | ValueKind::HexText, .. }) => {
                "null or up to 16 hex digits".to_owned()
            }
            _ => "null or text".to_owned(),
        };
        let name = self.head.0.schema.field(place).name();
        let expected = match (reason, list) {
            (Reason::LosesDigits, _) => kept_as_text(name),
            (Reason::Rounded, _) => EXACT.to_owned(),
            (Reason::Twice, _) => "each key once".to_owned(),
            (Reason::NotOneValue, false) => {
                format!(
                    "{value}: objects within objects are not read, and lists only in features that have lists in the first lines of a \
                     file: write single values as lists of one value there"
                )
            }
            (_, true) => format!("{value}, or a list of these"),
            (_, false) => value,
        };
        BadRow::new(reason, format!("{} in `{name}`", shown(raw.as_bytes())), &expected)
    }
}
