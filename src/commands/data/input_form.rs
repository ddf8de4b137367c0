//! The files that a command reads: their format and form, and errors about them.

use clap::{Args, ValueEnum};

use crate::Fault;
use crate::actors::FaultKind;
use crate::connectors::convert::block_on;
use crate::connectors::{
    CsvOptions, Format as FileFormat, Input, Predicate, format_of, header_to_add, number_among, other_delimiter,
};

/// Format of the files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum InputFormat {
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
pub(super) struct InputForm {
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
    pub(super) fn format_of(&self, input: &Input, of_job: Option<FileFormat>) -> Result<FileFormat, Fault> {
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
    pub(super) fn one_column(&self, input: &Input, names: &[&str]) -> Option<String> {
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

    pub(super) fn csv(&self) -> CsvOptions {
        let default = CsvOptions::default();
        CsvOptions { delimiter: self.delimiter.unwrap_or(default.delimiter), nulls: self.nulls.clone(), ..default }
    }
}

/// Says what to do about a file without any column of the first file.
pub(super) fn no_common_column(fault: Fault) -> Fault {
    fault.followed_by("; read files that have no column in common apart, for instance with a glob for each kind")
}

/// Adds the options of this command to an error about text that looks like CSV, which names the fields of a job.
pub(super) fn with_options(fault: Fault) -> Fault {
    match fault.kind {
        FaultKind::OtherFormat => {
            fault.followed_by(" (for this command: --format csv with the same --delimiter, '\\t' for tabs)")
        }
        _ => fault,
    }
}

/// The number among the names of columns that shows that the first line of CSV is a row. Takes names, and whether the values of each column
/// are numbers. `None` also if a column of numbers has a name that is no value: then the first line is a header with numbers among its
/// names.
pub(super) fn row_number<'a>(columns: &[(&'a str, bool)]) -> Option<&'a str> {
    let is_value = |text: &str| text.parse::<f64>().is_ok() || ["", "true", "false"].contains(&text);
    let is_header = columns.iter().any(|(name, numbers)| *numbers && !is_value(&name.to_ascii_lowercase()));
    number_among(columns.iter().map(|(name, _)| *name)).filter(|_| !is_header)
}

/// Says that the first line of CSV is no header, because it has this number, and how to add a header.
pub(super) fn without_header(input: &Input, number: &str, delimiter: char) -> String {
    let how = header_to_add(delimiter);
    format!(
        "the first line of `{input}` has the number {number}, so it is a row, expected a header with the names of columns: {how}"
    )
}

pub(super) fn input(path: String, filter: Option<&Predicate>) -> Input {
    match filter {
        Some(filter) => Input::from(path).filtered(filter),
        None => path.into(),
    }
}
