//! The folder of Parquet files that a command writes.

use clap::{Args, ValueEnum};

use super::super::bar::Bar;
use crate::actors::{Source, StageCx, left_out_lines};
use crate::connectors::convert::{Encoding, ParquetOptions, Written, block_on, to_parquet};
use crate::connectors::staged::Folder;
use crate::connectors::{Categories, Rows};
use crate::logs::Logs;
use crate::stop::Stop;
use crate::{Fault, out};

/// How Parquet columns are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Encode {
    /// Dictionaries and zstd: the smallest files
    Dictionary,
    /// Plain and uncompressed: the fastest to decode
    Plain,
}

/// Type of the categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// As unsigned integers
    Int,
    /// As hex strings of eight digits
    Hex,
}

#[derive(Args)]
pub(super) struct Parquet {
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
    pub(super) replace: bool,
    /// Threads that encode Parquet; the bytes do not depend on it. Default: the number of cores.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads)]
    threads: usize,
}

/// More is taken for a typing error, as in `data.decode_threads` of a job.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number <= 1024 => Ok(number),
        _ => Err("expected at most 1024".to_owned()),
    }
}

impl Parquet {
    pub(super) fn options(&self) -> ParquetOptions {
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

/// The folder of Parquet files that a command writes.
pub(super) struct ParquetFolder<'a> {
    pub(super) name: &'a str,
    pub(super) options: ParquetOptions,
    pub(super) logs: &'a Logs,
    pub(super) stop: &'a Stop,
}

impl ParquetFolder<'_> {
    /// Writes all rows of a source, and prints the counts. `rows`: their number, if known.
    pub(super) fn write(&self, mut source: impl Source<Out = Rows>, rows: Option<u64>) -> Result<(), Fault> {
        self.stop.begin()?;
        let folder = Folder::from(self.name).stopped_by(self.stop.flag());
        let (cx, mut bar) = (StageCx::detached("convert"), Bar::new(rows, self.logs));
        let written = block_on(to_parquet(&mut source, &cx, folder, &self.options, |progress| bar.show(progress)))?;
        print_written(bar, self.name, &written, &cx, self.logs);
        Ok(())
    }
}

/// Prints the counts of written files and rows, and of rows that were left out.
pub(super) fn print_written(bar: Bar, folder: &str, written: &Written, cx: &StageCx, logs: &Logs) {
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
