//! `forebay data`: make, convert and inspect rows.

use crate::Fault;
use crate::actors::{FaultKind, Source, StageCx, commas, left_out_lines};
use crate::connectors::convert::{
    Encoding, InferredColumn, ParquetOptions, TextOptions, Written, block_on, infer_columns, to_criteo_text, to_parquet,
};
use crate::connectors::inspect::{InspectOptions, inspect};
use crate::connectors::{
    ArrowSource, Categories, CriteoSource, CsvOptions, CsvSource, FileColumn, Format as FileFormat, Input,
    JsonLinesSource, OnBadRow, ParquetSource, Predicate, ReadOptions, Rows, Synthetic, SyntheticSource, ValueKind,
    format_of, header_to_add, number_among, other_delimiter,
};
use clap::{Args, Subcommand, ValueEnum};
use forebay_base::nearest;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::bar::Bar;
use super::stats::Stats;
use super::{column_names, out_folder};
use crate::connectors::staged::Folder;
use crate::logs::Logs;
use crate::pipelines::{Context, Job};
use crate::stop::{NOTHING_IS_WRITTEN, Stop};
use crate::{exit, out};

/// Generate, convert and inspect rows
#[derive(Subcommand)]
pub(crate) enum Data {
    Synth(Synth),
    Convert(Convert),
    Inspect(Inspect),
    Stats(Stats),
}

/// Format of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SynthFormat {
    /// Apache Parquet
    Parquet,
    /// Criteo's tab-separated text
    Criteo,
}

/// Format of the files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InputFormat {
    /// Apache Parquet
    Parquet,
    /// Criteo's tab-separated text
    Criteo,
    /// CSV with a header
    Csv,
    /// JSON lines: an object on each line
    #[value(name = "json_lines", alias = "json-lines")]
    JsonLines,
    /// Arrow IPC, also called Feather
    Arrow,
}

impl From<InputFormat> for FileFormat {
    fn from(format: InputFormat) -> Self {
        match format {
            InputFormat::Parquet => Self::Parquet,
            InputFormat::Criteo => Self::Criteo,
            InputFormat::Csv => Self::Csv,
            InputFormat::JsonLines => Self::JsonLines,
            InputFormat::Arrow => Self::Arrow,
        }
    }
}

/// What the names of files do not say.
#[derive(Args)]
struct InputForm {
    /// Format of the files. Default: by their names, or else by their first bytes; CSV with --delimiter.
    #[arg(long, value_enum)]
    format: Option<InputFormat>,
    /// The character between the fields of CSV; \t is a tab. Default: a comma.
    #[arg(long, value_name = "CHARACTER", value_parser = CsvOptions::parse_delimiter)]
    delimiter: Option<char>,
    /// A text that means a missing value in CSV, as an empty field does, for instance NA. May be given several times.
    #[arg(long = "null", value_name = "TEXT")]
    nulls: Vec<String>,
}

impl InputForm {
    /// The format of the files, from `--format` or the job, or else from [`format_of`]. A delimiter means CSV.
    ///
    /// # Errors
    /// A user fault if there is a delimiter, and the files are not CSV; the fault of a listing.
    fn format_of(&self, input: &Input, of_job: Option<FileFormat>) -> Result<FileFormat, Fault> {
        let format = match (self.format.map(FileFormat::from).or(of_job), self.delimiter) {
            (Some(format), _) => format,
            (None, Some(_)) => FileFormat::of_files(&block_on(input.list())?, Some(FileFormat::Csv))?,
            (None, None) => block_on(format_of(input, None))?,
        };
        let option = if self.delimiter.is_some() { "--delimiter" } else { "--null" };
        if (self.delimiter.is_some() || !self.nulls.is_empty()) && format != FileFormat::Csv {
            return Err(Fault::user(format!(
                "{option} is for CSV, but `{input}` is {format} by its name or by --format: leave out {option}, or add --format csv"
            )));
        }
        Ok(format)
    }

    /// What is wrong with a header of CSV that has one name, if this name has another delimiter. With `--delimiter` the other delimiter
    /// counts only if it is a tab or occurs several times.
    fn one_column(&self, input: &Input, names: &[&str]) -> Option<String> {
        let CsvOptions { delimiter, .. } = self.csv();
        let other = other_delimiter(names, delimiter)?;
        let several = other == '\t' || names.iter().any(|name| name.matches(other).count() > 1);
        let all_the_same = match self.delimiter {
            _ if several => "--job with a job that has it in its columns,".to_owned(),
            None => format!("--delimiter '{delimiter}'"),
            Some(_) => return None,
        };
        Some(format!(
            "the first line of `{input}` has {other:?} and no {delimiter:?}: give --delimiter '{}', or {all_the_same} if it is the name of \
             one column",
            other.escape_default()
        ))
    }

    fn csv(&self) -> CsvOptions {
        let default = CsvOptions::default();
        CsvOptions { delimiter: self.delimiter.unwrap_or(default.delimiter), nulls: self.nulls.clone(), ..default }
    }
}

/// How Parquet columns are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Encode {
    /// Dictionaries and zstd: the smallest files
    Dictionary,
    /// Plain and uncompressed: the fastest to decode
    Plain,
}

/// Type of the categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// As unsigned integers
    Int,
    /// As hex strings of eight digits
    Hex,
}

#[derive(Args)]
struct Parquet {
    /// Rows of a Parquet row group.
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = clap::value_parser!(u64).range(1..))]
    group_rows: u64,
    /// Encoding of Parquet columns.
    #[arg(long, value_enum, default_value_t = Encode::Dictionary)]
    encoding: Encode,
    /// Type of the categories in Parquet: of columns of unsigned 32-bit integers, as Criteo text has.
    #[arg(long, value_enum, default_value_t = Kind::Int)]
    categories: Kind,
    /// Write 0 for a missing integer or number, false for a boolean and an empty text for a text: it decodes faster, but cannot be
    /// distinguished from such a value. Missing dates, timestamps, decimals and lists stay missing.
    #[arg(long)]
    fill_nulls: bool,
    /// Replace the folder if it holds files.
    #[arg(long)]
    replace: bool,
    /// Threads that encode Parquet; the bytes do not depend on it. Default: the number of cores.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads)]
    threads: usize,
}

/// More is taken for a typing error, as in `data.decode_threads` of a job.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number <= 1024 => Ok(number),
        _ => Err("expected at most 1024".to_owned()),
    }
}

impl Parquet {
    fn options(&self) -> ParquetOptions {
        ParquetOptions {
            encoding: match self.encoding {
                Encode::Dictionary => Encoding::Dictionary,
                Encode::Plain => Encoding::Plain,
            },
            group_rows: usize::try_from(self.group_rows).unwrap_or(usize::MAX),
            fill_nulls: self.fill_nulls,
            categories: match self.categories {
                Kind::Int => Categories::Int,
                Kind::Hex => Categories::Hex,
            },
            replace: self.replace,
            threads: self.threads,
            ..ParquetOptions::default()
        }
    }
}

/// Generate rows with Criteo's columns; the seed determines the bytes
///
/// Writes rows with a label, 13 integers and 26 categories: Zipf-distributed values with Criteo's cardinalities and missing rates. A hidden
/// model determines the labels; the best possible AUC is about 0.83.
///
/// Ctrl-C or SIGTERM stops without writing the folder; the exit code is 5.
#[derive(Args)]
pub(crate) struct Synth {
    /// Number of rows.
    #[arg(long, value_name = "N")]
    rows: u64,
    /// The folder to write, a path or a URL (hdfs://, s3://, file://). It appears when it is complete.
    #[arg(long, value_name = "FOLDER", value_parser = out_folder::named)]
    out: String,
    /// Seed of the values, the hidden model and the labels.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of the first row: generates other rows of the same seed, for instance to evaluate on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first_row: u64,
    /// 2: also a second label, the column `buy`, which is 1 for some of the clicks. Parquet only.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    labels: u8,
    /// Add an `item` and a list `history` of up to N items to each row; the label depends on both.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    history: u32,
    /// Format of the files.
    #[arg(long, value_enum, default_value_t = SynthFormat::Parquet)]
    format: SynthFormat,
    #[command(flatten)]
    parquet: Parquet,
}

/// Convert CSV, JSON lines, Criteo text (plain, .gz or .zst) or Arrow files to Parquet, or Parquet to other row groups
///
/// Reads several files in the order of their names. For CSV and JSON lines, the columns of a job (--job) or the first 10,000 rows determine
/// the types: integers, numbers or text. A value of another type makes a bad row.
///
/// Ctrl-C or SIGTERM stops without writing the folder; the exit code is 5.
#[derive(Args)]
pub(crate) struct Convert {
    /// A file, a folder or a glob of CSV, JSON lines, Criteo text, Arrow or Parquet: a path or a URL (hdfs://, s3://, file://). Partition
    /// columns of Parquet are not written.
    input: String,
    /// The folder to write, a path or a URL. It appears when it is complete.
    #[arg(long, value_name = "FOLDER", value_parser = out_folder::named)]
    out: String,
    /// A job file: from CSV and JSON lines, write the columns and types of this job. Its data.format and data.csv count, too.
    #[arg(long, value_name = "JOB.toml", conflicts_with_all = ["delimiter", "nulls"])]
    job: Option<PathBuf>,
    /// Columns of CSV and JSON lines to write as text; for JSON lines also keys that occur only in later lines. A name with a comma, or
    /// with spaces around it, stands in double quotes.
    #[arg(long, value_name = "NAMES", conflicts_with = "job")]
    text: Vec<String>,
    /// Write the columns of all files, and null where a file lacks one. Default: the columns of the first file, which all files must have.
    #[arg(long, conflicts_with = "job")]
    all_columns: bool,
    #[command(flatten)]
    form: InputForm,
    /// Read only the partition folders that this selects, for instance "day >= '2026-11-20'".
    #[arg(long = "where", value_name = "PREDICATE")]
    filter: Option<Predicate>,
    /// What happens to a bad row: "fail", "skip", or a folder to write it to.
    #[arg(long, value_name = "fail|skip|FOLDER", default_value = "fail")]
    on_bad_row: String,
    #[command(flatten)]
    parquet: Parquet,
}

/// Print the schema, rows and row groups, and for each column the missing rate, distinct values, range and histogram
///
/// Reads all rows once.
#[derive(Args)]
pub(crate) struct Inspect {
    /// A file, a folder or a glob of Parquet, Arrow, CSV, JSON lines or Criteo text: a path or a URL (hdfs://, s3://, file://).
    path: String,
    #[command(flatten)]
    form: InputForm,
    /// Read only the partition folders that this selects, for instance "day >= '2026-11-20'".
    #[arg(long = "where", value_name = "PREDICATE")]
    filter: Option<Predicate>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Data {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        match self {
            Self::Stats(stats) => stats.run(context),
            Self::Synth(synth) => synth.run(logs),
            Self::Convert(convert) => convert.run(logs),
            Self::Inspect(inspect) => inspect.run(logs),
        }
    }
}

/// A batch of rows with histories of this length fits into 32-bit offsets.
const MOST_HISTORY: u32 = 10_000;

impl Synth {
    fn run(self, logs: &Logs) -> Result<(), Fault> {
        if self.labels == 2 && matches!(self.format, SynthFormat::Criteo) {
            return Err(Fault::user("Criteo text has one label: --labels 2 needs --format parquet"));
        }
        if self.history > MOST_HISTORY {
            return Err(Fault::user(format!("--history is {}, expected at most {MOST_HISTORY}", self.history)));
        }
        let what = Synthetic {
            rows: self.rows,
            first: self.first_row,
            seed: self.seed,
            labels: usize::from(self.labels),
            history: self.history,
            ..Synthetic::default()
        };
        let stop = Stop::listen_and_say(logs.log_format, NOTHING_IS_WRITTEN, exit::DRAINED)?;
        let source = SyntheticSource::new(what, ReadOptions::reading_only());
        match self.format {
            SynthFormat::Parquet => {
                let to = ParquetFolder { name: &self.out, options: self.parquet.options(), logs, stop: &stop };
                to.write(source, Some(self.rows))
            }
            SynthFormat::Criteo => {
                let options = TextOptions { replace: self.parquet.replace, ..TextOptions::default() };
                let (cx, mut source, mut bar) = (StageCx::detached("synth"), source, Bar::new(Some(self.rows), logs));
                stop.begin()?;
                let folder = Folder::from(&self.out).stopped_by(stop.flag());
                let written =
                    block_on(to_criteo_text(&mut source, &cx, folder, &options, |progress| bar.show(progress)))?;
                print_written(bar, &self.out, &written, &cx, logs);
                Ok(())
            }
        }
    }
}

impl Convert {
    fn run(self, logs: &Logs) -> Result<(), Fault> {
        let on_bad_row = match self.on_bad_row.as_str() {
            "fail" => OnBadRow::Fail,
            "skip" => OnBadRow::Skip,
            dir => OnBadRow::WriteTo(dir.into()),
        };
        let stop = Stop::listen_and_say(logs.log_format, NOTHING_IS_WRITTEN, exit::DRAINED)?;
        let input = block_on(input(self.input.clone(), self.filter.as_ref()).listed())?;
        let read = ReadOptions::reading_only();
        let options = self.parquet.options();
        if options.replace {
            out_folder::check_replaced(&self.out, &[], Some(&input))?;
        }
        out_folder::check_not_among_rows(&self.out, &input)?;
        out_folder::check_without_bad_rows(&self.out, &on_bad_row, "--on-bad-row")?;
        input.check_apart_from(&on_bad_row, "--on-bad-row")?;
        let job = self.job.as_ref().map(|job| Job::load(job, &[])).transpose()?;
        let format = self.form.format_of(&input, job.as_ref().and_then(|job| job.data.format))?;
        if job.is_none() || !format.is_untyped() {
            note_folders(&input)?;
        }
        let to = ParquetFolder { name: &self.out, options, logs, stop: &stop };
        let all = self.all_columns;
        let lacks_column = |fault: Fault| match fault.kind {
            FaultKind::MissingColumn if job.is_some() && format.is_untyped() => Fault::user(format!(
                "{fault}; if only some files or rows have it, add it to columns.optional of the job"
            )),
            FaultKind::MissingColumn if all => no_common_column(fault),
            FaultKind::MissingColumn => Fault::user(format!(
                "{fault}; if only some files have it: --all-columns writes the columns of all files, and null where a file lacks one"
            )),
            _ => fault,
        };
        let written = match format {
            FileFormat::Parquet => {
                to.write(ParquetSource::new(input, read).dictionaries(false).of_all_files(all), None)
            }
            FileFormat::Arrow => to.write(ArrowSource::new(input, read).dictionaries(false).of_all_files(all), None),
            FileFormat::Criteo => {
                to.write(CriteoSource::new(input, read).on_bad_row(on_bad_row), None).map_err(with_options)
            }
            FileFormat::Csv | FileFormat::JsonLines => self.write_text(input, format, job.as_ref(), on_bad_row, &to),
        };
        written.map_err(lacks_column)
    }

    /// Writes CSV or JSON lines.
    fn write_text(
        &self,
        input: Input,
        format: FileFormat,
        job: Option<&Job>,
        on_bad_row: OnBadRow,
        to: &ParquetFolder<'_>,
    ) -> Result<(), Fault> {
        let read = ReadOptions::reading_only();
        let (columns, csv) = match job {
            Some(job) => (job.columns.in_files(format)?, job.data.csv.clone()),
            None => (self.inferred(&input, format)?, self.form.csv()),
        };
        let written = if format == FileFormat::Csv {
            let source = CsvSource::csv(input, read).written(csv).columns(columns).on_bad_row(on_bad_row);
            to.write(source, None)
        } else {
            let source = JsonLinesSource::json_lines(input, read).columns(columns).on_bad_row(on_bad_row);
            // A job says which keys it reads. Without a job all keys are converted, so a row with an unknown key is bad.
            let source = if job.is_some() { source } else { source.new_keys_are_bad() };
            to.write(source, None)
        };
        written.map_err(|fault| match job {
            None if fault.kind == FaultKind::OtherType => Fault::user(format!(
                "{fault} (types are those of the first {SAMPLE} rows; --text NAMES makes columns text)"
            )),
            _ => fault,
        })
    }

    /// Infers the columns of text files and their types from the first rows, and prints them.
    fn inferred(&self, input: &Input, format: FileFormat) -> Result<Vec<FileColumn>, Fault> {
        let (form, read) = (&self.form, ReadOptions::default());
        let inferred = if format == FileFormat::Csv {
            let source = CsvSource::csv(input.clone(), read).written(form.csv()).of_all_files(self.all_columns);
            block_on(infer_columns(&mut source.on_bad_row(OnBadRow::Skip), SAMPLE))?
        } else {
            let mut source = JsonLinesSource::json_lines(input.clone(), read).on_bad_row(OnBadRow::Skip);
            block_on(infer_columns(&mut source, SAMPLE))?
        };
        self.warn_of_odd_texts(&inferred, format)?;
        let optional = self.all_columns && format == FileFormat::Csv;
        let mut columns: Vec<FileColumn> =
            inferred.into_iter().map(|inferred| inferred.column.optional(optional)).collect();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        if let Some(wrong) = form.one_column(input, &names).filter(|_| format == FileFormat::Csv) {
            return Err(Fault::user(wrong));
        }
        let named: Vec<(&str, bool)> =
            columns.iter().map(|column| (column.name.as_str(), column.kind != ValueKind::Text)).collect();
        if let Some(number) = row_number(&named).filter(|_| format == FileFormat::Csv) {
            return Err(Fault::user(format!(
                "{}; if these are names all the same, give --job with a job that has them in its columns",
                without_header(input, number, form.csv().delimiter)
            )));
        }
        for name in &column_names::split(&self.text)? {
            let Some(column) = columns.iter_mut().find(|column| column.name == *name) else {
                let near = nearest(name, columns.iter().map(|column| column.name.as_str()));
                let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                if format == FileFormat::JsonLines {
                    // A later line may have it.
                    tracing::warn!("--text names `{name}`, which is not in the first {} rows{near}", commas(SAMPLE));
                    columns.push(FileColumn::new(name, ValueKind::Text).optional(true));
                    continue;
                }
                return Err(Fault::user(format!("--text names `{name}`, which is not a column{near}")));
            };
            column.kind = ValueKind::Text;
        }
        for kind in [ValueKind::Integer, ValueKind::Number, ValueKind::Text] {
            let of_kind: Vec<&str> = columns.iter().filter(|c| c.kind == kind).map(|c| c.name.as_str()).collect();
            if !of_kind.is_empty() {
                tracing::info!("{kind}: {}", of_kind.join(", "));
            }
        }
        Ok(columns)
    }

    /// Warns of columns that become text because of one text, which may mean a missing value.
    fn warn_of_odd_texts(&self, inferred: &[InferredColumn], format: FileFormat) -> Result<(), Fault> {
        let texts = column_names::split(&self.text)?;
        for InferredColumn { column, odd_text } in inferred {
            let Some(odd) = odd_text.as_ref().filter(|_| !texts.contains(&column.name)) else { continue };
            let nulls = format!("give --null {:?}", odd.text);
            let nulls = (format == FileFormat::Csv).then_some(nulls.as_str());
            tracing::warn!(
                "{} (else the column is written as text; --text {} says so)",
                odd.hint(&column.name, nulls),
                column.name
            );
        }
        Ok(())
    }
}

/// Says what to do about a file without any column of the first file.
fn no_common_column(fault: Fault) -> Fault {
    Fault::user(format!(
        "{fault}; read files that have no column in common apart, for instance with a glob for each kind"
    ))
}

/// Adds the options of this command to an error about text that looks like CSV, which names the fields of a job.
fn with_options(fault: Fault) -> Fault {
    match fault.kind {
        FaultKind::OtherFormat => {
            Fault::user(format!("{fault} (for this command: --format csv with the same --delimiter, '\\t' for tabs)"))
        }
        _ => fault,
    }
}

/// Says which columns of folders `column=value` are not written.
fn note_folders(input: &Input) -> Result<(), Fault> {
    let files = block_on(input.list())?;
    let names: BTreeSet<&str> = files.iter().flat_map(|file| file.partitions.iter()).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "left out are the partition columns {names}, which are in the names of folders, not in the files"
        );
    }
    Ok(())
}

/// Rows by which the types of columns are inferred.
const SAMPLE: u64 = 10_000;

/// The number among the names of columns that shows that the first line of CSV is a row. Takes names, and whether the values of each column
/// are numbers. `None` also if a column of numbers has a name that is no value: then the first line is a header with numbers among its
/// names.
fn row_number<'a>(columns: &[(&'a str, bool)]) -> Option<&'a str> {
    let is_value = |text: &str| text.parse::<f64>().is_ok() || ["", "true", "false"].contains(&text);
    let is_header = columns.iter().any(|(name, numbers)| *numbers && !is_value(&name.to_ascii_lowercase()));
    number_among(columns.iter().map(|(name, _)| *name)).filter(|_| !is_header)
}

/// Says that the first line of CSV is no header, because it has this number, and how to add a header.
fn without_header(input: &Input, number: &str, delimiter: char) -> String {
    let how = header_to_add(delimiter);
    format!(
        "the first line of `{input}` has the number {number}, so it is a row, expected a header with the names of columns: {how}"
    )
}

fn input(path: String, filter: Option<&Predicate>) -> Input {
    match filter {
        Some(filter) => Input::from(path).filtered(filter),
        None => path.into(),
    }
}

/// The folder of Parquet files that a command writes.
struct ParquetFolder<'a> {
    name: &'a str,
    options: ParquetOptions,
    logs: &'a Logs,
    stop: &'a Stop,
}

impl ParquetFolder<'_> {
    /// Writes all rows of a source, and prints the counts. `rows`: their number, if known.
    fn write(&self, mut source: impl Source<Out = Rows>, rows: Option<u64>) -> Result<(), Fault> {
        self.stop.begin()?;
        let folder = Folder::from(self.name).stopped_by(self.stop.flag());
        let (cx, mut bar) = (StageCx::detached("convert"), Bar::new(rows, self.logs));
        let written = block_on(to_parquet(&mut source, &cx, folder, &self.options, |progress| bar.show(progress)))?;
        print_written(bar, self.name, &written, &cx, self.logs);
        Ok(())
    }
}

/// Prints the counts of written files and rows, and of rows that were left out.
fn print_written(bar: Bar, folder: &str, written: &Written, cx: &StageCx, logs: &Logs) {
    let (said, ledger) = (bar.done(folder, written), cx.ledger().snapshot());
    let rejected = &ledger.rejected;
    if logs.is_json() {
        let mut line = serde_json::json!({ "folder": folder, "written": written, "rejected": rejected });
        if ledger.unwritten > 0 {
            line["unwritten"] = ledger.unwritten.into();
        }
        out::print_or_drop(line);
        return;
    }
    out::print_or_drop(said);
    left_out_lines(rejected).chain(ledger.unwritten_line()).for_each(out::print_or_drop);
}

impl Inspect {
    fn run(self, logs: &Logs) -> Result<(), Fault> {
        let input = block_on(input(self.path, self.filter.as_ref()).listed())?;
        let format = self.form.format_of(&input, None)?;
        let options = InspectOptions { format: Some(format), csv: self.form.csv() };
        let with_options = |fault: Fault| match fault.kind {
            FaultKind::MissingColumn => no_common_column(fault),
            _ if format == FileFormat::Criteo => with_options(fault),
            _ => fault,
        };
        let found = block_on(inspect(input.clone(), options)).map_err(with_options)?;
        let files = block_on(input.list())?;
        let folders: BTreeSet<&str> =
            files.iter().flat_map(|file| file.partitions.iter()).map(|(name, _)| name).collect();
        let named = found.columns.iter().map(|column| (column.name.as_str(), column.kind == "number"));
        let named: Vec<(&str, bool)> = named.filter(|(name, _)| !folders.contains(name)).collect();
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        if let Some(wrong) = self.form.one_column(&input, &names).filter(|_| found.format == "csv") {
            tracing::warn!("{wrong}");
        }
        if let Some(number) = row_number(&named).filter(|_| found.format == "csv") {
            tracing::warn!(
                "{}; this command took that row for the names of the columns",
                without_header(&input, number, self.form.csv().delimiter)
            );
        }
        if self.json || logs.is_json() { out::print(serde_json::json!(found)) } else { out::print(found) }
    }
}
