//! `forebay data convert`: text, Arrow or Parquet to Parquet.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use forebay_base::nearest;

use super::super::{column_names, out_folder};
use super::input_form::{InputForm, input, no_common_column, row_number, with_options, without_header};
use super::parquet_folder::{Parquet, ParquetFolder};
use crate::actors::{FaultKind, commas};
use crate::connectors::convert::{InferredColumn, block_on, infer_columns};
use crate::connectors::{
    ArrowSource, CriteoSource, CsvSource, FileColumn, Format as FileFormat, Input, JsonLinesSource, OnBadRow,
    ParquetSource, Predicate, ReadOptions, ValueKind,
};
use crate::logs::Logs;
use crate::pipelines::Job;
use crate::stop::{NOTHING_IS_WRITTEN, Stop};
use crate::{Fault, exit};

/// Rows by which the types of columns are inferred.
const SAMPLE: u64 = 10_000;

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

impl Convert {
    pub(super) fn run(self, logs: &Logs) -> Result<(), Fault> {
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
