//! `forebay data synth`: rows with Criteo's columns.

use clap::{Args, ValueEnum};

use super::super::bar::Bar;
use super::super::out_folder;
use super::parquet_folder::{Parquet, ParquetFolder, print_written};
use crate::actors::StageCx;
use crate::connectors::convert::{TextOptions, block_on, to_criteo_text};
use crate::connectors::staged::Folder;
use crate::connectors::{ReadOptions, Synthetic, SyntheticSource};
use crate::logs::Logs;
use crate::stop::{NOTHING_IS_WRITTEN, Stop};
use crate::{Fault, exit};

/// Format of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SynthFormat {
    /// Apache Parquet
    Parquet,
    /// Criteo's tab-separated text
    Criteo,
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

/// A batch of rows with histories of this length fits into 32-bit offsets.
const MOST_HISTORY: u32 = 10_000;

impl Synth {
    pub(super) fn run(self, logs: &Logs) -> Result<(), Fault> {
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
