//! JSON lines as a format of text.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_actors::Fault;

use super::head::{JsonHead, read_heads};
use super::late_keys::{LateKeys, NewKeys};
use super::lines::JsonParser;
use crate::file::DataFile;
use crate::format::FileColumn;
use crate::input::Input;
use crate::options::ReadOptions;
use crate::text::{LineFormat, TextSource};

/// JSON lines.
#[derive(Clone, Debug, Default)]
pub struct JsonLines {
    columns: Option<Vec<FileColumn>>,
    new_keys_are_bad: bool,
    /// Counts the rows with keys that no file has in its first lines.
    late_keys: Option<LateKeys>,
    /// Without `columns`: whether the folders above the first file are columns, too.
    folders: bool,
}

/// Reads JSON lines. Columns are keys at the first level of the objects; a key that a line lacks is null, like `null`. A column whose
/// values are lists in the first lines of a file is a column of lists. Without [`columns`](JsonLinesSource::columns), it reads all keys of
/// the first lines, as text, except keys with objects, lists of lists or lists of objects; a warning names these.
pub type JsonLinesSource = TextSource<JsonLines>;

impl JsonLinesSource {
    /// Reads a file, a folder, a glob, or several of them.
    pub fn json_lines(input: impl Into<Input>, options: ReadOptions) -> Self {
        Self::of(JsonLines::default(), input, options)
    }

    /// Reads these columns only, in this order. One that names a folder `column=value` above a file is the same for all rows of
    /// the file, as in [`ParquetSource::columns`](crate::ParquetSource::columns).
    #[must_use]
    pub fn columns(self, columns: impl IntoIterator<Item = FileColumn>) -> Self {
        let format = JsonLines { columns: Some(columns.into_iter().collect()), ..self.format().clone() };
        self.with_format(format)
    }

    /// Without [`columns`](Self::columns), reads the folders `column=value` above the first file, too, behind the keys.
    #[must_use]
    pub(crate) fn with_folders(self) -> Self {
        let format = JsonLines { folders: true, ..self.format().clone() };
        self.with_format(format)
    }

    /// Makes a line bad if it has a value of a key that no file has in its first lines, so that no value is lost. By default such a key is
    /// skipped, like other keys that are not among the columns.
    #[must_use]
    pub fn new_keys_are_bad(self) -> Self {
        let format = JsonLines { new_keys_are_bad: true, ..self.format().clone() };
        self.with_format(format)
    }
}

impl JsonLinesSource {
    /// Counts the rows with a value of a key that no file has in its first lines.
    #[must_use]
    pub(crate) fn counting_late_keys(self, late_keys: &LateKeys) -> Self {
        let format = JsonLines { late_keys: Some(late_keys.clone()), ..self.format().clone() };
        self.with_format(format)
    }
}

impl LineFormat for JsonLines {
    type Head = JsonHead;
    type Parser = JsonParser;

    const NAME: &'static str = "json lines";
    const HEADER: bool = false;

    async fn heads(&self, files: &[DataFile]) -> Result<Vec<JsonHead>, Fault> {
        let new_keys = |known: HashSet<String>| match &self.late_keys {
            _ if self.new_keys_are_bad => NewKeys::Bad(Arc::new(known)),
            Some(late_keys) => NewKeys::Counted(Arc::new(known), late_keys.clone()),
            None => NewKeys::Skipped,
        };
        read_heads(files, self.columns.as_deref(), self.folders, new_keys).await
    }

    fn row_bytes(&self, heads: &[JsonHead]) -> u64 {
        heads.first().map_or(1, |head| head.0.line_bytes)
    }

    fn parser(&self, head: &JsonHead, capacity: usize) -> JsonParser {
        JsonParser::new(head, capacity)
    }

    fn identity(&self) -> String {
        let Self { columns, new_keys_are_bad, late_keys: _, folders: _ } = self;
        format!("JsonLines {{ columns: {columns:?}, new_keys_are_bad: {new_keys_are_bad:?} }}")
    }
}
