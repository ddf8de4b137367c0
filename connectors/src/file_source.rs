//! The source of files in any format.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_actors::{Fault, Source, StageCx};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::arrow_ipc::ArrowSource;
use crate::criteo::{CriteoSource, column_name};
use crate::csv::{CsvOptions, CsvSource};
use crate::format::{FileColumn, Format};
use crate::input::Input;
use crate::json_lines::JsonLinesSource;
use crate::lease::{Leases, PlanCheck};
use crate::options::ReadOptions;
use crate::parquet::ParquetSource;
use crate::partition_columns::folders_of_text;
use crate::rows::Rows;
use crate::text::OnBadRow;

/// Reads files in the format that it is made for.
pub enum FileSource {
    /// Parquet.
    Parquet(ParquetSource),
    /// Criteo text.
    Criteo(CriteoSource),
    /// CSV.
    Csv(CsvSource),
    /// JSON lines.
    JsonLines(JsonLinesSource),
    /// Arrow IPC.
    Arrow(ArrowSource),
}

/// How files in a format are read.
#[derive(Clone, Debug)]
pub struct FileFormat {
    /// The format.
    pub format: Format,
    /// How CSV is written.
    pub csv: CsvOptions,
    /// What happens to a line of text that is not a row.
    pub on_bad_row: OnBadRow,
}

/// Evaluates an expression with the source within, whatever its format.
macro_rules! of_any {
    ($file_source:expr, $source:ident => $value:expr) => {
        match $file_source {
            FileSource::Parquet($source) => $value,
            FileSource::Criteo($source) => $value,
            FileSource::Csv($source) => $value,
            FileSource::JsonLines($source) => $value,
            FileSource::Arrow($source) => $value,
        }
    };
}

impl FileSource {
    /// Reads these columns of a file, a folder, a glob, or several of them. Criteo text has its own columns,
    /// and all are read; its lines need no label if that is not among these columns.
    pub fn new(input: Input, options: ReadOptions, format: FileFormat, columns: Vec<FileColumn>) -> Self {
        let optional = columns.iter().filter(|column| column.optional).map(|column| column.name.clone());
        let texts = folders_of_text(&columns);
        let names = columns.iter().map(|column| column.name.clone());
        match format.format {
            Format::Parquet => {
                let source = ParquetSource::new(input, options).optional(optional).folders_of_text(texts);
                Self::Parquet(source.columns(names))
            }
            Format::Arrow => {
                let source = ArrowSource::new(input, options).optional(optional).folders_of_text(texts);
                Self::Arrow(source.columns(names))
            }
            Format::Criteo => {
                let source = CriteoSource::new(input, options).on_bad_row(format.on_bad_row);
                Self::Criteo(source.label_optional(!columns.iter().any(|column| column.name == column_name(0))))
            }
            Format::Csv => {
                let source = CsvSource::csv(input, options).on_bad_row(format.on_bad_row);
                Self::Csv(source.written(format.csv).columns(columns))
            }
            Format::JsonLines => {
                let source = JsonLinesSource::json_lines(input, options).on_bad_row(format.on_bad_row);
                Self::JsonLines(source.columns(columns))
            }
        }
    }

    /// The columns that are folders `column=value` above a file; none before `open`.
    pub fn folder_columns(&self, columns: &[FileColumn]) -> Vec<String> {
        let is_folder = |column: &&FileColumn| match self {
            Self::Parquet(source) => source.footers().iter().any(|footer| footer.file.is_below(&column.name)),
            Self::Arrow(source) => source.files().iter().any(|file| file.file.is_below(&column.name)),
            Self::Criteo(_) => false,
            Self::Csv(source) => source.files().iter().any(|file| file.is_below(&column.name)),
            Self::JsonLines(source) => source.files().iter().any(|file| file.is_below(&column.name)),
        };
        columns.iter().filter(is_folder).map(|column| column.name.clone()).collect()
    }

    /// Reads only the windows that it is leased; see [`Leases`].
    #[must_use]
    pub fn leasing(self, leases: Arc<dyn Leases>) -> Self {
        match self {
            Self::Parquet(source) => Self::Parquet(source.leasing(leases)),
            Self::Criteo(source) => Self::Criteo(source.leasing(leases)),
            Self::Csv(source) => Self::Csv(source.leasing(leases)),
            Self::JsonLines(source) => Self::JsonLines(source.leasing(leases)),
            Self::Arrow(source) => Self::Arrow(source.leasing(leases)),
        }
    }

    /// For text without leases, tells `check` what there is to read: see [`TextSource::checking`](crate::text::TextSource::checking). Other
    /// formats ignore it.
    #[must_use]
    pub fn checking(self, check: PlanCheck) -> Self {
        match self {
            Self::Parquet(_) | Self::Arrow(_) => self,
            Self::Criteo(source) => Self::Criteo(source.checking(check)),
            Self::Csv(source) => Self::Csv(source.checking(check)),
            Self::JsonLines(source) => Self::JsonLines(source.checking(check)),
        }
    }

    /// The columns, if the files tell them when they are opened; `None` for text and before `open`.
    pub fn schema(&self) -> Option<SchemaRef> {
        match self {
            Self::Parquet(source) => source.schema(),
            Self::Arrow(source) => source.schema(),
            Self::Criteo(_) | Self::Csv(_) | Self::JsonLines(_) => None,
        }
    }
}

/// The futures are in boxes so that the code of all sources is compiled in this crate, and not in each one that reads files (docs/adr/0006).
impl FileSource {
    fn opened<'a>(&'a mut self, cx: &'a StageCx) -> LocalBoxFuture<'a, Result<(), Fault>> {
        of_any!(self, source => source.open(cx).boxed_local())
    }

    fn read<'a>(&'a mut self, cx: &'a StageCx) -> LocalBoxFuture<'a, Result<Option<Rows>, Fault>> {
        of_any!(self, source => source.next(cx).boxed_local())
    }
}

impl Source for FileSource {
    type Out = Rows;

    fn describe(&self) -> String {
        of_any!(self, source => source.describe())
    }

    fn total_rows(&self) -> Option<u64> {
        of_any!(self, source => source.total_rows())
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.opened(cx).await
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        self.read(cx).await
    }
}
