//! The source of files in any format.

use std::error::Error as _;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_actors::{Domain, Fault, FaultKind, Source, StageCx};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::arrow_ipc::ArrowSource;
use crate::criteo::{CriteoSource, column_name};
use crate::csv::{CsvOptions, CsvSource};
use crate::format::{FileColumn, Format};
use crate::format_of::{Begins, begins_as};
use crate::input::Input;
use crate::json_lines::JsonLinesSource;
use crate::lease::{Leases, PlanCheck};
use crate::names::NoColumn;
use crate::options::ReadOptions;
use crate::parquet::ParquetSource;
use crate::partition_columns::folders_of_text;
use crate::rows::Rows;
use crate::text::OnBadRow;

/// Reads files in the format that it is made for.
pub struct FileSource {
    source: AnySource,
    input: Input,
    format: Format,
    /// The names of the columns that are read.
    columns: Vec<String>,
    hint: Option<ColumnHint>,
    /// Whether a batch was read.
    begun: bool,
}

/// What to do about a column that a file lacks.
type ColumnHint = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A source of each format.
enum AnySource {
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

/// Evaluates an expression with the source of any format.
macro_rules! of_any {
    ($any_source:expr, $source:ident => $value:expr) => {
        match $any_source {
            AnySource::Parquet($source) => $value,
            AnySource::Criteo($source) => $value,
            AnySource::Csv($source) => $value,
            AnySource::JsonLines($source) => $value,
            AnySource::Arrow($source) => $value,
        }
    };
}

impl AnySource {
    fn new(input: Input, options: ReadOptions, format: FileFormat, columns: Vec<FileColumn>) -> Self {
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
}

impl FileSource {
    /// Reads these columns of a file, a folder, a glob, or several of them. Criteo text has its own columns, and all are read; its lines
    /// need no label if the label is not among these columns.
    pub fn new(input: Input, options: ReadOptions, format: FileFormat, columns: Vec<FileColumn>) -> Self {
        let names = columns.iter().map(|column| column.name.clone()).collect();
        Self {
            input: input.clone(),
            format: format.format,
            columns: names,
            hint: None,
            begun: false,
            source: AnySource::new(input, options, format, columns),
        }
    }

    /// Adds what `hint` says about a column to the fault of a file that lacks this column.
    #[must_use]
    pub fn hinting(self, hint: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { hint: Some(Box::new(hint)), ..self }
    }

    /// Cuts files of text into splits of this many bytes, unless they are compressed. Other formats ignore it.
    #[must_use]
    pub fn text_split_bytes(self, bytes: u64) -> Self {
        let source = match self.source {
            AnySource::Parquet(_) | AnySource::Arrow(_) => self.source,
            AnySource::Criteo(source) => AnySource::Criteo(source.range_bytes(bytes)),
            AnySource::Csv(source) => AnySource::Csv(source.range_bytes(bytes)),
            AnySource::JsonLines(source) => AnySource::JsonLines(source.range_bytes(bytes)),
        };
        Self { source, ..self }
    }

    /// The columns that are folders `column=value` above a file; none before `open`.
    pub fn folder_columns(&self, columns: &[FileColumn]) -> Vec<String> {
        let is_folder = |column: &&FileColumn| match &self.source {
            AnySource::Parquet(source) => source.footers().iter().any(|footer| footer.file.is_below(&column.name)),
            AnySource::Arrow(source) => source.files().iter().any(|file| file.file.is_below(&column.name)),
            AnySource::Criteo(_) => false,
            AnySource::Csv(source) => source.files().iter().any(|file| file.is_below(&column.name)),
            AnySource::JsonLines(source) => source.files().iter().any(|file| file.is_below(&column.name)),
        };
        columns.iter().filter(is_folder).map(|column| column.name.clone()).collect()
    }

    /// Reads only the windows that it is leased; see [`Leases`].
    #[must_use]
    pub fn leasing(self, leases: Arc<dyn Leases>) -> Self {
        let source = match self.source {
            AnySource::Parquet(source) => AnySource::Parquet(source.leasing(leases)),
            AnySource::Criteo(source) => AnySource::Criteo(source.leasing(leases)),
            AnySource::Csv(source) => AnySource::Csv(source.leasing(leases)),
            AnySource::JsonLines(source) => AnySource::JsonLines(source.leasing(leases)),
            AnySource::Arrow(source) => AnySource::Arrow(source.leasing(leases)),
        };
        Self { source, ..self }
    }

    /// For text without leases, calls `check` with the plan of the data: see [`TextSource::checking`](crate::text::TextSource::checking).
    /// Other formats ignore it.
    #[must_use]
    pub fn checking(self, check: PlanCheck) -> Self {
        let source = match self.source {
            AnySource::Parquet(_) | AnySource::Arrow(_) => self.source,
            AnySource::Criteo(source) => AnySource::Criteo(source.checking(check)),
            AnySource::Csv(source) => AnySource::Csv(source.checking(check)),
            AnySource::JsonLines(source) => AnySource::JsonLines(source.checking(check)),
        };
        Self { source, ..self }
    }

    /// The columns, if the files tell them when they are opened; `None` for text and before `open`.
    pub fn schema(&self) -> Option<SchemaRef> {
        match &self.source {
            AnySource::Parquet(source) => source.schema(),
            AnySource::Arrow(source) => source.schema(),
            AnySource::Criteo(_) | AnySource::Csv(_) | AnySource::JsonLines(_) => None,
        }
    }

    /// The fault of a source that has read nothing. It also says if the first file looks like one of another format, and what the hint says
    /// about the column that a file lacks.
    async fn explained(&self, fault: Fault) -> Fault {
        if fault.domain != Domain::User {
            return fault;
        }
        if let Some(other) = self.other_format().await {
            return fault.context(other);
        }
        if fault.kind != FaultKind::MissingColumn {
            return fault;
        }
        let lacked = fault.source().and_then(|e| e.downcast_ref::<NoColumn>());
        let hint =
            || self.hint.as_ref()?(self.columns.iter().find(|column| lacked.is_some_and(|no| no.0 == **column))?);
        match hint() {
            Some(hint) => Fault::user(format!("{}; {hint}", fault.message())).kind(fault.kind).with_source(fault),
            None => fault,
        }
    }

    /// Says that the first file has another format, by its first bytes or its name, if it has.
    async fn other_format(&self) -> Option<String> {
        let first = self.input.list().await.ok()?.into_iter().next()?;
        let (format, by) = match (begins_as(&first).await.ok()?, Format::from_extension(&first.name)) {
            (Begins::As(format), _) => (format, "its first bytes"),
            (_, Some(format)) => (format, "its name"),
            (_, None) => return None,
        };
        (format != self.format).then(|| {
            format!(
                "`{}` is {format} by {by}, but is read as {}: set data.format to \"{}\", or leave it out (for data.eval and for a trained \
                 model: data.eval_format)",
                first.name,
                self.format,
                format.setting()
            )
        })
    }
}

/// The futures are in boxes so that the code of all sources is compiled in this crate, and not in each one that reads files
/// (docs/adr/0006).
impl FileSource {
    fn opened<'a>(&'a mut self, cx: &'a StageCx) -> LocalBoxFuture<'a, Result<(), Fault>> {
        async move {
            match of_any!(&mut self.source, source => source.open(cx).await) {
                Err(fault) => Err(self.explained(fault).await),
                Ok(()) => Ok(()),
            }
        }
        .boxed_local()
    }

    fn read<'a>(&'a mut self, cx: &'a StageCx) -> LocalBoxFuture<'a, Result<Option<Rows>, Fault>> {
        async move {
            match of_any!(&mut self.source, source => source.next(cx).await) {
                Err(fault) if !self.begun => Err(self.explained(fault).await),
                read => {
                    self.begun = true;
                    read
                }
            }
        }
        .boxed_local()
    }
}

impl Source for FileSource {
    type Out = Rows;

    fn describe(&self) -> String {
        of_any!(&self.source, source => source.describe())
    }

    fn total_rows(&self) -> Option<u64> {
        of_any!(&self.source, source => source.total_rows())
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.opened(cx).await
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<Rows>, Fault> {
        self.read(cx).await
    }
}
