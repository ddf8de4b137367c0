//! CSV as a format of text.

use forebay_actors::Fault;

use super::header::{CsvHeader, Unnamed, read_headers};
use super::lines::CsvParser;
use super::options::CsvOptions;
use crate::file::DataFile;
use crate::format::FileColumn;
use crate::input::Input;
use crate::options::ReadOptions;
use crate::text::{LineFormat, TextSource};

/// CSV with a header.
#[derive(Clone, Debug, Default)]
pub struct Csv {
    options: CsvOptions,
    columns: Option<Vec<FileColumn>>,
    /// Without `columns`: whether the folders above the first file are columns, too.
    folders: bool,
    /// Without `columns`: whether the columns of all files are read, not only of the first.
    of_all_files: bool,
}

/// Reads CSV with a header. Columns are found by name, at any place of each file. Without [`columns`](CsvSource::columns), it reads all
/// columns of the first file, as text. A missing value (nothing between two delimiters, or a text that the options name) is null.
pub type CsvSource = TextSource<Csv>;

impl CsvSource {
    /// Reads a file, a folder, a glob, or several of them.
    pub fn csv(input: impl Into<Input>, options: ReadOptions) -> Self {
        Self::of(Csv::default(), input, options)
    }

    /// Reads these columns only, in this order. One that names a folder `column=value` above a file is the same for all rows of
    /// the file, as in [`ParquetSource::columns`](crate::ParquetSource::columns).
    #[must_use]
    pub fn columns(self, columns: impl IntoIterator<Item = FileColumn>) -> Self {
        let columns = Some(columns.into_iter().collect());
        let format = Csv { columns, ..self.format().clone() };
        self.with_format(format)
    }

    /// Without [`columns`](Self::columns), reads the folders `column=value` above the first file, too, behind the columns of the header.
    #[must_use]
    pub(crate) fn with_folders(self) -> Self {
        let format = Csv { folders: true, ..self.format().clone() };
        self.with_format(format)
    }

    /// Without [`columns`](Self::columns), reads the columns of all files; as
    /// [`ParquetSource::of_all_files`](crate::ParquetSource::of_all_files).
    #[must_use]
    pub fn of_all_files(self, yes: bool) -> Self {
        let format = Csv { of_all_files: yes, ..self.format().clone() };
        self.with_format(format)
    }

    /// How the files are written.
    #[must_use]
    pub fn written(self, options: CsvOptions) -> Self {
        let format = Csv { options, ..self.format().clone() };
        self.with_format(format)
    }
}

impl LineFormat for Csv {
    type Head = CsvHeader;
    type Parser = CsvParser;

    const NAME: &'static str = "csv";
    const HEADER: bool = true;

    async fn heads(&self, files: &[DataFile]) -> Result<Vec<CsvHeader>, Fault> {
        let unnamed = Unnamed { folders: self.folders, of_all_files: self.of_all_files };
        read_headers(files, self.columns.as_deref(), unnamed, &self.options).await
    }

    fn row_bytes(&self, heads: &[CsvHeader]) -> u64 {
        heads.first().map_or(1, |head| head.0.line_bytes)
    }

    fn parser(&self, head: &CsvHeader, capacity: usize) -> CsvParser {
        CsvParser::new(head, &self.options, capacity)
    }

    fn identity(&self) -> String {
        let Self { options, columns, folders: _, of_all_files: _ } = self;
        format!("Csv {{ options: {options:?}, columns: {columns:?} }}")
    }
}
