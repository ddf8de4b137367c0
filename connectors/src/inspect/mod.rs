//! The report on a data set: schema, rows, row groups, missing rates, distinct values, positive rate.
//!
//! `inspect` reads all rows and computes in place: call it on a thread of your own or in
//! [`block_on`](crate::convert::block_on).

mod column_stats;
mod distinct;
mod histogram;
mod odd_text;
mod spelling;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, SchemaRef};
use forebay_actors::{Fault, Source, StageCx, commas, counted};
use serde::{Deserialize, Serialize};

use self::column_stats::{ColumnStats, Texts};
pub use self::histogram::Histogram;
pub use self::odd_text::OddText;
pub(crate) use self::odd_text::OddTexts;
pub use self::spelling::OtherSpelling;
use crate::arrow_ipc::ArrowSource;
use crate::criteo::CriteoSource;
use crate::csv::{CsvOptions, CsvSource};
use crate::file::DataFile;
use crate::format::Format;
use crate::format_of::format_of;
use crate::input::Input;
use crate::json_lines::{JsonLinesSource, LateKeys};
use crate::options::ReadOptions;
use crate::parquet::ParquetSource;
use crate::partition_columns::folder_columns;
use crate::rows::Rows;
use crate::text::OnBadRow;

/// The report on a set of files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The path that was inspected.
    pub path: String,
    /// `parquet`, `arrow`, `criteo text`, `csv` or `json lines`.
    pub format: String,
    /// Files.
    pub files: u64,
    /// Row groups, or record batches of Arrow, of all files; 0 for text.
    pub row_groups: u64,
    /// Rows that can be used.
    pub rows: u64,
    /// Rows that cannot, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Of JSON lines: rows with values of keys that no file has in its first lines, and that are not among the columns for this reason.
    #[serde(default, skip_serializing_if = "is_none")]
    pub rows_with_late_keys: u64,
    /// These keys (at most 1,000), and the rows that have each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub late_keys: BTreeMap<String, u64>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Columns of all files in the files' order, and behind them the folders `column=value`, except for Criteo text.
    pub columns: Vec<ColumnReport>,
    /// Mean of the column `label`, if there is one of numbers.
    pub positive_rate: Option<f64>,
}

/// The report on a column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnReport {
    /// Its name.
    pub name: String,
    /// Its Arrow type; for CSV and JSON lines `number` or `text`. `true` and `false` there are the numbers 1 and 0.
    pub kind: String,
    /// Share of rows without a value, 0 to 1: null, NaN, and in a column of numbers of JSON lines an empty string. In other columns an
    /// empty string is a value.
    pub missing: f64,
    /// Distinct values, within about 1%. `None` for types whose values are not counted, such as structs and maps.
    pub distinct: Option<u64>,
    /// Smallest value, of numbers; of dates in days, of timestamps in microseconds since 1970.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Both as text, of dates and timestamps, of integers that a floating-point number rounds, and if one of them is infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[String; 2]>,
    /// Values that are infinite as the 32-bit numbers of dense features: infinite ones, and those beyond 3.4e38, such as `1e400` in text.
    #[serde(default, skip_serializing_if = "is_none")]
    pub infinite: u64,
    /// Values of a column of whole numbers or truth values in text or strings that a slot without a kind does not take as `79` or `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_spelling: Option<OtherSpelling>,
    /// The only text in a column of text files whose other values are numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub odd_text: Option<OddText>,
    /// The histogram of the values, for columns that have a `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
}

/// For `skip_serializing_if`.
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The format of the files to inspect, if their names do not tell it.
#[derive(Clone, Debug, Default)]
pub struct InspectOptions {
    /// The format of the files. Default: told by their names, or else by the first bytes of the first.
    pub format: Option<Format>,
    /// How CSV is written.
    pub csv: CsvOptions,
}

/// Reads all of a file, folder or glob. Rows that cannot be used are counted. A column that a file lacks is missing in all of its rows.
pub async fn inspect(input: impl Into<Input>, options: InspectOptions) -> Result<Inspection, Fault> {
    let input = input.into();
    let files = input.list().await?;
    let format = match options.format {
        Some(format) => format,
        None => format_of(&input, None).await?,
    };
    let (path, bytes) = (input.to_string(), files.iter().map(|f| f.size).sum());
    let format_name = match format {
        Format::Parquet => "parquet",
        Format::Criteo => "criteo text",
        Format::Csv => "csv",
        Format::JsonLines => "json lines",
        Format::Arrow => "arrow",
    };
    let mut report =
        Inspection { path, bytes, files: files.len() as u64, format: format_name.to_owned(), ..Inspection::default() };
    let cx = StageCx::detached("inspect");
    let read = ReadOptions::reading_only();
    match format {
        Format::Parquet => {
            let mut source = ParquetSource::new(input.clone(), read.clone()).dictionaries(false).of_all_files(true);
            source.open(&cx).await?;
            if let Some(columns) = with_folders(&files, source.schema()) {
                source = ParquetSource::new(input, read).dictionaries(false).optional(columns.clone()).columns(columns);
                source.open(&cx).await?;
            }
            report.row_groups = source.footers().iter().map(|f| f.row_groups() as u64).sum();
            stats(&mut source, Texts::Typed, &mut report, &cx).await?;
        }
        Format::Arrow => {
            let mut source = ArrowSource::new(input.clone(), read.clone()).dictionaries(false).of_all_files(true);
            source.open(&cx).await?;
            if let Some(columns) = with_folders(&files, source.schema()) {
                source = ArrowSource::new(input, read).dictionaries(false).optional(columns.clone()).columns(columns);
                source.open(&cx).await?;
            }
            report.row_groups = source.record_batches();
            stats(&mut source, Texts::Typed, &mut report, &cx).await?;
        }
        Format::Criteo => {
            let mut source = CriteoSource::new(input, read).on_bad_row(OnBadRow::Skip);
            source.open(&cx).await?;
            stats(&mut source, Texts::Typed, &mut report, &cx).await?;
        }
        Format::Csv => {
            let source = CsvSource::csv(input, read).written(options.csv).with_folders().of_all_files(true);
            let mut source = source.on_bad_row(OnBadRow::Skip);
            source.open(&cx).await?;
            stats(&mut source, Texts::Numbers, &mut report, &cx).await?;
        }
        Format::JsonLines => {
            let late_keys = LateKeys::default();
            let source = JsonLinesSource::json_lines(input, read).with_folders().counting_late_keys(&late_keys);
            let mut source = source.on_bad_row(OnBadRow::Skip);
            source.open(&cx).await?;
            stats(&mut source, Texts::Numbers, &mut report, &cx).await?;
            (report.rows_with_late_keys, report.late_keys) = late_keys.counts();
        }
    }
    report.rejected = cx.ledger().snapshot().rejected;
    Ok(report)
}

/// The columns of the files, and behind them the folders `column=value` above it; `None` without such folders.
fn with_folders(files: &[DataFile], schema: Option<SchemaRef>) -> Option<Vec<String>> {
    let mut names: Vec<String> = schema?.fields().iter().map(|field| field.name().clone()).collect();
    let folders = folder_columns(files, |folder| names.iter().any(|name| name == folder));
    (!folders.is_empty()).then(|| {
        names.extend(folders.into_iter().map(|folder| folder.name));
        names
    })
}

/// `texts`: what the columns of text may be; those that hold only numbers are reported as numbers.
async fn stats<S: Source<Out = Rows>>(
    source: &mut S,
    texts: Texts,
    report: &mut Inspection,
    cx: &StageCx,
) -> Result<(), Fault> {
    let mut columns: Vec<(FieldRef, ColumnStats)> = Vec::new();
    while let Some(rows) = source.next(cx).await? {
        report.rows += rows.batch.num_rows() as u64;
        if columns.is_empty() {
            let fields = rows.batch.schema_ref().fields().iter();
            columns = fields.map(|field| (Arc::clone(field), ColumnStats::new(texts))).collect();
        }
        for ((_, stats), column) in columns.iter_mut().zip(rows.batch.columns()) {
            stats.add(column)?;
        }
    }
    columns.iter_mut().for_each(|(_, stats)| stats.finish());
    let label = columns.iter().find(|(field, stats)| field.name() == "label" && stats.range.is_some());
    report.positive_rate = label.map(|(_, stats)| stats.sum / report.rows as f64);
    let report_of = |(field, mut stats): (FieldRef, ColumnStats)| ColumnReport {
        name: field.name().clone(),
        kind: match (texts, stats.range) {
            (Texts::Typed, _) => field.data_type().to_string(),
            (_, Some(_)) => "number".to_owned(),
            (_, None) => "text".to_owned(),
        },
        missing: if stats.rows == 0 { 0.0 } else { stats.missing as f64 / stats.rows as f64 },
        distinct: (!stats.uncounted).then(|| stats.distinct.estimate().min(stats.values)),
        min: stats.range.map(|r| r.0),
        max: stats.range.map(|r| r.1),
        range: stats.moments(field.data_type()).or_else(|| stats.exact()),
        infinite: stats.infinite,
        other_spelling: stats.other_spelling(),
        odd_text: stats.odd_text(),
        histogram: stats.bins.finish(),
    };
    report.columns = columns.into_iter().map(report_of).collect();
    Ok(())
}

impl ColumnReport {
    /// The smallest and the largest value as text.
    fn ends(&self) -> [String; 2] {
        match &self.range {
            Some(range) => range.clone(),
            None => [self.min, self.max].map(|end| end.map_or_else(|| "-".to_owned(), short)),
        }
    }
}

/// A number in at most 12 characters or so.
fn short(number: f64) -> String {
    let plain = format!("{number}");
    if plain.len() <= 12 { plain } else { format!("{number:.5e}") }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.path, self.format, counted(self.files, "file"))?;
        if self.row_groups > 0 {
            let part = if self.format == "arrow" { "record batch" } else { "row group" };
            write!(f, ", {}", counted(self.row_groups, part))?;
        }
        writeln!(f, ", {}, {} bytes", counted(self.rows, "row"), commas(self.bytes))?;
        for (reason, rows) in &self.rejected {
            writeln!(f, "rows that cannot be used: {rows}, {reason}")?;
        }
        self.write_late_keys(f)?;
        if let Some(rate) = self.positive_rate {
            writeln!(f, "positive rate {:.4}", rate)?;
        }
        let wide = |pick: fn(&ColumnReport) -> &String, least: usize| {
            self.columns.iter().map(|c| pick(c).len()).max().unwrap_or(0).max(least)
        };
        let (name, kind) = (wide(|c| &c.name, 6), wide(|c| &c.kind, 4));
        let ends: Vec<[String; 2]> = self.columns.iter().map(ColumnReport::ends).collect();
        let width = |at: usize| ends.iter().map(|ends: &[String; 2]| ends[at].len()).max().unwrap_or(0).max(3);
        let (min, max) = (width(0), width(1));
        writeln!(
            f,
            "\n{:name$}  {:kind$}  {:>8}  {:>10}  {:>min$}  {:>max$}  values",
            "column", "type", "missing", "distinct", "min", "max"
        )?;
        for (c, [low, high]) in self.columns.iter().zip(&ends) {
            let (missing, bars) = (c.missing * 100.0, c.histogram.as_ref().map(Histogram::bars).unwrap_or_default());
            let distinct = c.distinct.map_or_else(|| "-".to_owned(), |distinct| distinct.to_string());
            let line = format!(
                "{:name$}  {:kind$}  {missing:>7.2}%  {distinct:>10}  {low:>min$}  {high:>max$}  {bars}",
                c.name, c.kind
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        for ColumnReport { name, infinite, .. } in self.columns.iter().filter(|column| column.infinite > 0) {
            writeln!(
                f,
                "{name}: {} or beyond 3.4e38; in a dense feature such a value makes a bad row, unless `clip` or a logarithm makes it finite",
                counted(*infinite, "infinite value")
            )?;
        }
        for ColumnReport { name, other_spelling, .. } in &self.columns {
            other_spelling.iter().try_for_each(|other| writeln!(f, "{name}: {other}"))?;
        }
        for ColumnReport { name, odd_text, .. } in &self.columns {
            let Some(odd) = odd_text else { continue };
            let nulls = format!("set data.csv.nulls to [{:?}]", odd.text);
            let nulls = (self.format == "csv").then_some(nulls.as_str());
            writeln!(f, "{}", odd.hint(name, nulls))?;
        }
        Ok(())
    }
}

/// Late keys that the text names.
const LATE_KEYS_SHOWN: usize = 5;

impl Inspection {
    /// Says which keys are not shown, and how they are read.
    fn write_late_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<(&String, &u64)> = self.late_keys.iter().collect();
        keys.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        let Some((most, _)) = keys.first() else { return Ok(()) };
        let shown: Vec<String> =
            keys.iter().take(LATE_KEYS_SHOWN).map(|(key, rows)| format!("`{key}` ({rows})")).collect();
        let more = keys.len() - shown.len();
        writeln!(
            f,
            "rows with keys that are not shown, because no file has them in its first 64 KiB: {}: {}{}; a job reads such a key if \
             columns.optional names it, too, and `forebay data convert --text {most}` writes it",
            commas(self.rows_with_late_keys),
            shown.join(", "),
            if more > 0 { format!(" and {} more", commas(more as u64)) } else { String::new() }
        )
    }
}
