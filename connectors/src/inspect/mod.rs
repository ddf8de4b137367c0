//! What data there is: schema, rows, row groups, missing rates, distinct values, positive rate.
//!
//! `inspect` reads all rows and computes in place: call it on a thread of your own or in
//! [`block_on`](crate::convert::block_on).

mod column_stats;
mod distinct;

use std::fmt;

use arrow::datatypes::Schema;
use forebay_actors::{Fault, Source, StageCx};
use serde::{Deserialize, Serialize};

use self::column_stats::ColumnStats;
use crate::criteo::{Categories, CriteoSource, OnBadRow, criteo_schema};
use crate::file::DataFile;
use crate::input::Input;
use crate::options::ReadOptions;
use crate::parquet::ParquetSource;
use crate::rows::Rows;

/// What a set of files holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The path that was inspected.
    pub path: String,
    /// `parquet` or `criteo text`.
    pub format: String,
    /// Files.
    pub files: u64,
    /// Row groups of all files; 0 for text.
    pub row_groups: u64,
    /// Rows that can be used.
    pub rows: u64,
    /// Rows that cannot, by reason.
    pub rejected: std::collections::BTreeMap<String, u64>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Columns in the file's order.
    pub columns: Vec<ColumnReport>,
    /// Mean of the column `label`, if there is one of numbers.
    pub positive_rate: Option<f64>,
}

/// What a column holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnReport {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub kind: String,
    /// Share of rows without a value (null or an empty string), 0 to 1.
    pub missing: f64,
    /// Distinct values, within about 1%.
    pub distinct: u64,
    /// Smallest value, of numbers.
    pub min: Option<f64>,
    /// Largest value, of numbers.
    pub max: Option<f64>,
}

/// Whether an input is Parquet, by its first file. Awaits a listing, and the file's first bytes if its name does not tell.
pub async fn holds_parquet(input: &Input) -> Result<bool, Fault> {
    match input.list().await?.first() {
        Some(first) => is_parquet(first).await,
        None => Ok(false),
    }
}

/// Finds the format of a file by its name, or else by its first bytes.
async fn is_parquet(file: &DataFile) -> Result<bool, Fault> {
    let lower = file.name.to_ascii_lowercase();
    if lower.ends_with(".parquet") || lower.ends_with(".pq") {
        return Ok(true);
    }
    let head = file.read(0..file.size.min(4)).await?;
    Ok(&head[..] == b"PAR1")
}

/// Reads all of a file, folder or glob. Rows that cannot be used are counted.
pub async fn inspect(input: impl Into<Input>) -> Result<Inspection, Fault> {
    let input = input.into();
    let files = input.list().await?;
    let (path, bytes) = (input.to_string(), files.iter().map(|f| f.size).sum());
    let mut report = Inspection { path, bytes, files: files.len() as u64, ..Inspection::default() };
    let cx = StageCx::detached("inspect");
    let options = ReadOptions { decode_threads: 2, ..ReadOptions::default() };
    if is_parquet(&files[0]).await? {
        report.format = "parquet".to_owned();
        let mut source = ParquetSource::new(input, options).dictionaries(false);
        source.open(&cx, None).await?;
        report.row_groups = source.footers().iter().map(|f| f.selected.ranges.len() as u64).sum();
        let schema = source.schema().ok_or_else(|| Fault::internal("an open source has a schema"))?;
        stats(&mut source, &schema, &mut report).await?;
    } else {
        report.format = "criteo text".to_owned();
        let mut source = CriteoSource::new(input, options).on_bad_row(OnBadRow::Skip);
        source.open(&cx, None).await?;
        stats(&mut source, &criteo_schema(Categories::Int), &mut report).await?;
    }
    report.rejected = cx.ledger().snapshot().rejected;
    Ok(report)
}

async fn stats<S: Source<Out = Rows>>(source: &mut S, schema: &Schema, report: &mut Inspection) -> Result<(), Fault> {
    let mut columns: Vec<ColumnStats> = schema.fields().iter().map(|_| ColumnStats::new()).collect();
    let mut label_sum = 0.0;
    let label = schema.index_of("label").ok().filter(|&at| schema.field(at).data_type().is_numeric());
    while let Some(rows) = source.next().await? {
        report.rows += rows.batch.num_rows() as u64;
        for (stats, column) in columns.iter_mut().zip(rows.batch.columns()) {
            stats.add(column)?;
        }
        if let Some(at) = label {
            let labels = arrow::compute::cast(rows.batch.column(at), &arrow::datatypes::DataType::Float64)
                .map_err(|e| Fault::user("the column `label` holds no numbers").because(e))?;
            let labels = arrow::array::AsArray::as_primitive::<arrow::datatypes::Float64Type>(&labels);
            label_sum += labels.iter().flatten().sum::<f64>();
        }
    }
    report.positive_rate = label.filter(|_| report.rows > 0).map(|_| label_sum / report.rows as f64);
    report.columns = schema
        .fields()
        .iter()
        .zip(columns)
        .map(|(field, stats)| ColumnReport {
            name: field.name().clone(),
            kind: field.data_type().to_string(),
            missing: if stats.rows == 0 { 0.0 } else { stats.missing as f64 / stats.rows as f64 },
            distinct: stats.distinct.estimate().min(stats.values),
            min: stats.range.map(|r| r.0),
            max: stats.range.map(|r| r.1),
        })
        .collect();
    Ok(())
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {} files", self.path, self.format, self.files)?;
        if self.row_groups > 0 {
            write!(f, ", {} row groups", self.row_groups)?;
        }
        writeln!(f, ", {} rows, {} bytes", self.rows, self.bytes)?;
        for (reason, rows) in &self.rejected {
            writeln!(f, "rows that cannot be used: {rows}, {reason}")?;
        }
        if let Some(rate) = self.positive_rate {
            writeln!(f, "positive rate {:.4}", rate)?;
        }
        let wide = |pick: fn(&ColumnReport) -> &String, least: usize| {
            self.columns.iter().map(|c| pick(c).len()).max().unwrap_or(0).max(least)
        };
        let (name, kind) = (wide(|c| &c.name, 6), wide(|c| &c.kind, 4));
        writeln!(
            f,
            "\n{:name$}  {:kind$}  {:>8}  {:>10}  {:>14}  {:>14}",
            "column", "type", "missing", "distinct", "min", "max"
        )?;
        let number = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), |n| format!("{n}"));
        for c in &self.columns {
            writeln!(
                f,
                "{:name$}  {:kind$}  {:>7.2}%  {:>10}  {:>14}  {:>14}",
                c.name,
                c.kind,
                c.missing * 100.0,
                c.distinct,
                number(c.min),
                number(c.max)
            )?;
        }
        Ok(())
    }
}
