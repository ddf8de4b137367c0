//! `forebay predict`: the scores of rows, as Parquet files or as CSV on standard output.

use std::io::IsTerminal as _;
use std::time::Duration;

use crate::Fault;
use crate::actors::{StageCx, counted, left_out_lines};
use crate::connectors::convert::{ParquetOptions, ParquetWriter, block_on, to_csv};
use crate::connectors::staged::{Folder, StagedFolder};
use crate::pipelines::job::Paths;
use crate::pipelines::{Context, Predictions};
use arrow::array::RecordBatch;
use clap::Args;
use tokio::time::timeout;

use super::bar::wrote;
use super::readers_apart::{Predicting, ReadersApart, ToPredict};
use super::{column_names, job_args, out_folder};
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::out;
use crate::scoring_progress::ScoringProgress;
use crate::stop::Stop;

/// The value of `--out` that means standard output.
const STDOUT: &str = "-";

/// Time between two looks at whether the user asked to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Predict rows with a model: forebay predict --model FOLDER --data PATH --out FOLDER
///
/// Writes one row for each row of the input, in the same order: the columns of --keep and `score`, the probability of label 1. The rows
/// need no label. Several --data are read one after the other.
///
/// By default a row that cannot be parsed ends the run, and nothing is written. With --set data.on_bad_row=skip the row stays in the output
/// with a null score; a line of text that is not a row is left out. The end of the run counts both.
///
/// With --readers N, N processes on this machine read, parse and batch the rows, and this one scores. With --listen it starts none, but
/// waits for readers on any machine: start each with the same arguments, and --join and --rank in place of --out and --listen.
///
/// Ctrl-C or SIGTERM stops without writing the folder; the exit code is 5.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay predict --model rows/model --data rows/test --out rows/scores
  forebay predict --model rows/model --data rows/test --keep label,C1 --out - | head
  forebay predict --model rows/model --data rows/test --out rows/scores --readers 2")]
pub(crate) struct Predict {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A file, a folder or a glob of rows (a path or a URL), with the columns that the model was trained on; may be repeated.
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<String>,
    /// The folder to write as Parquet, a path or a URL; it appears when it is complete. `-` writes CSV to standard output.
    #[arg(long, value_name = "FOLDER|-", required_unless_present = "join")]
    out: Option<String>,
    /// Columns of the input to write beside the score, for instance user_id,item_id; may be repeated. A name with a comma, or with spaces
    /// around it, stands in double quotes: --keep 'user_id,"buy, now"'.
    #[arg(long, value_name = "COLUMNS")]
    keep: Vec<String>,
    /// Override a field of the model's job, for instance data.on_bad_row=skip; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Replace the folder if it holds files.
    #[arg(long)]
    replace: bool,
    /// Print the run's report to standard error at the end.
    #[arg(long)]
    report: bool,
    #[command(flatten)]
    apart: ReadersApart,
}

impl Predict {
    pub(crate) fn run(&self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        let keep = column_names::split(&self.keep)?;
        let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
        let (model, data, settings) = (self.model.as_str(), Paths(self.data.clone()), self.settings.as_slice());
        let asked = ToPredict { model, data: &data, settings, keep: &keep };
        match &self.out {
            Some(out) if !self.apart.is_reader() => self.score(out, &asked, logs, context),
            _ => self.apart.read(&asked, self.report, logs, context),
        }
    }

    fn score(&self, out: &str, asked: &ToPredict<'_>, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        if out.ends_with(".csv") {
            return Err(Fault::user(format!(
                "--out {out} is the name of a CSV file, but a folder of Parquet files is written: name a folder, or write CSV with \
                 --out - > {out}"
            )));
        }
        let folder = (out != STDOUT).then(|| Folder::from(out).with_stores(&context.stores));
        let stopped = if folder.is_some() {
            "no scores are written, unless they are complete by now"
        } else {
            "no more scores follow"
        };
        let stop = Stop::listen_and_say(logs.log_format, stopped, exit::DRAINED)?;
        if let Some(folder) = &folder {
            let data = asked.input(context);
            StagedFolder::probe(folder, self.replace)?;
            if self.replace {
                out_folder::check_replaced(out, &[&self.model], Some(&data))?;
            }
            out_folder::check_not_among_rows(out, &data)?;
        }
        let model = job_args::load_model(&self.model, &self.settings, logs, context)?;
        if folder.is_some() {
            out_folder::check_without_bad_rows(out, &model.job.data.on_bad_row, out_folder::WRITE_TO)?;
        }
        let mut predicting = self.apart.start(asked, &model, logs, context)?;
        let ended = stop.begin().and_then(|()| {
            block_on(async {
                match folder {
                    Some(folder) => self.write(&mut predicting, folder, out, &stop, logs).await,
                    None => self.print(&mut predicting, &stop, logs).await,
                }
            })
        });
        if self.report {
            logs.log_format.report(&predicting.predictions.report());
        }
        let readers = predicting.end(&stop);
        ended.and_then(|ended| readers.map(|()| ended))
    }

    /// Writes all scores to a folder, and prints the counts.
    async fn write(
        &self,
        predicting: &mut Predicting<'_>,
        folder: Folder,
        name: &str,
        stop: &Stop,
        logs: &Logs,
    ) -> Result<Ended, Fault> {
        let options = ParquetOptions { replace: self.replace, ..ParquetOptions::default() };
        let mut writer = ParquetWriter::begin(&StageCx::detached("scores"), folder, &options)?;
        let mut progress = ScoringProgress::new("predicting", logs);
        while let Some(batch) = next(predicting, stop).await? {
            writer.write(&batch).await?;
            progress.show(|| predicting.predictions.scored());
        }
        drop(progress);
        let Some(counts) = counts(&predicting.predictions, &self.data.join(", "), "predict", "score")? else {
            return Ok(Ended::Drained);
        };
        let written = writer.finish().await?;
        out::print_or_drop(wrote(name, &written));
        counts.iter().for_each(out::print_or_drop);
        Ok(Ended::Done)
    }

    /// Prints all scores as CSV, and the counts to standard error. Ends early if standard output is closed.
    async fn print(&self, predicting: &mut Predicting<'_>, stop: &Stop, logs: &Logs) -> Result<Ended, Fault> {
        // On a terminal the scores are the progress.
        let mut progress = (!std::io::stdout().is_terminal()).then(|| ScoringProgress::new("predicting", logs));
        let (mut text, mut header) = (Vec::new(), true);
        while let Some(batch) = next(predicting, stop).await? {
            text.clear();
            to_csv(&batch, header, &mut text)?;
            header = false;
            if !out::write(&text)? {
                return Ok(Ended::Done);
            }
            if let Some(progress) = &mut progress {
                progress.show(|| predicting.predictions.scored());
            }
        }
        drop(progress);
        let Some(counts) = counts(&predicting.predictions, &self.data.join(", "), "predict", "score")? else {
            return Ok(Ended::Drained);
        };
        match logs.quiet {
            true => counts.iter().for_each(|line| tracing::warn!("{line}")),
            false => counts.iter().for_each(|line| logs.log_format.note(line)),
        }
        Ok(Ended::Done)
    }
}

/// Lines about rows without a `result`; `None` if the run was stopped before its last row.
///
/// # Errors
/// A user fault if there were no rows to `verb` at `data`.
pub(super) fn counts(
    predictions: &Predictions<'_>,
    data: &str,
    verb: &str,
    result: &str,
) -> Result<Option<Vec<String>>, Fault> {
    let Some(counts) = predictions.counts() else { return Ok(None) };
    if counts.rows == 0 {
        return Err(Fault::user(format!("`{data}` has no rows to {verb}")));
    }
    let null =
        counts.without_score.iter().map(|(why, &rows)| format!("{} without a {result}: {why}", counted(rows, "row")));
    let ledger = predictions.report().ledger;
    let by_readers = Some(predictions.left_out_by_readers()).filter(|&rows| rows > 0);
    let by_readers = by_readers.map(|rows| format!("left out {}: the readers say why", counted(rows, "row")));
    let left_out = left_out_lines(&ledger.rejected).chain(ledger.unwritten_line());
    Ok(Some(null.chain(left_out).chain(by_readers).collect()))
}

/// The next batch; `None` after the last one, or when the user asked to stop. Restarts readers meanwhile.
pub(super) async fn next(predicting: &mut Predicting<'_>, stop: &Stop) -> Result<Option<RecordBatch>, Fault> {
    loop {
        if stop.asked() {
            return Ok(None);
        }
        predicting.look();
        if let Ok(next) = timeout(LOOK_EVERY, predicting.predictions.next_batch()).await {
            return next;
        }
    }
}
