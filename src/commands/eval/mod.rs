//! `forebay eval`: measures the quality of the scores of a model folder, or of the checkpoints of a run as they appear.

mod follow;

use crate::out;
use crate::pipelines::{Context, Evaluation, Job};
use crate::{Fault, Model};
use clap::Args;

use super::out_folder;
use crate::logs::Logs;
use crate::scoring_progress::{Doing, ScoringProgress};

/// Evaluate a model on rows: forebay eval --model FOLDER --data PATH
///
/// Checks the files of the model folder. For each data set it prints the exact AUC, logloss, normalized entropy (the logloss divided by
/// that of the mean), COPC (clicks over predicted clicks), and the calibration: the mean score and the share of label 1 in ten bins of rows
/// by score. It also counts the rows that it leaves out by reason, with data.on_bad_row=skip. For two towers it prints the recall, and with
/// in-batch softmax nothing that needs probabilities.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay eval --model rows/model --data rows/test
  forebay eval --model rows/model --data rows/test --group user_id --slice country
  forebay eval --model rows/model --data rows/monday --data rows/tuesday --json > quality.jsonl
  forebay eval --model rows/checkpoints --data rows/test --follow --patience 3 --best rows/best")]
pub(crate) struct Eval {
    /// The model folder, or with --follow the folder of checkpoints: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A file, a folder or a glob of rows (a path or a URL), with the columns that the model was trained on; may be repeated.
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<String>,
    /// Override a field of the model's job, for instance data.on_bad_row=skip; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Also print the GAUC: the mean of the AUC within the rows of each value of this column, such as the user. The whole argument is the
    /// name, with its commas and spaces.
    #[arg(long, value_name = "COLUMN")]
    group: Option<String>,
    /// Also print the metrics for each value of this column (the 50 values with the most rows), with --group their GAUC, too; may be
    /// repeated. The whole argument is the name, as for --group.
    #[arg(long = "slice", value_name = "COLUMN")]
    slices: Vec<String>,
    /// Print the report of each run before its result; to standard error if the results are JSON.
    #[arg(long)]
    report: bool,
    /// Print JSON: one object per line and data set.
    #[arg(long)]
    json: bool,
    /// Evaluate the checkpoints of a run as they appear. SIGTERM, Ctrl-C or --patience ends the command; the exit code is 0.
    ///
    /// Use this for a run of several processes, which does not evaluate during training. After each evaluation the command takes the newest
    /// checkpoint, so a slow evaluation skips checkpoints. When the run has ended, the command waits for the checkpoints of a resume, also
    /// with --patience.
    #[arg(long, conflicts_with = "report")]
    follow: bool,
    /// With --follow, end after this many evaluations in a row without an improvement of the job's evaluation.metric.
    #[arg(long, value_name = "N", requires = "follow", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    /// For --patience: the least difference to the metric of the last improvement that counts as an improvement.
    #[arg(long, value_name = "NUMBER", requires = "patience", default_value_t = 0.0, value_parser = min_delta)]
    min_delta: f64,
    /// With --follow, save the best model so far to this folder, and replace an earlier model there.
    #[arg(long, value_name = "FOLDER", requires = "follow")]
    best: Option<String>,
}

/// How far a run was at a checkpoint.
#[derive(serde::Serialize)]
struct Point {
    checkpoint: u64,
    trained_rows: u64,
    trained_epochs: u32,
    is_best: bool,
}

/// A line of JSON.
#[derive(serde::Serialize)]
struct Evaluated<'a> {
    path: &'a str,
    #[serde(flatten)]
    checkpoint: Option<Point>,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

fn min_delta(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if f64::is_finite(number) && number >= 0.0 => Ok(number),
        _ => Err("expected a number from 0 on".into()),
    }
}

impl Eval {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        if self.follow {
            return self.follow(context, logs);
        }
        let loading = Doing::show("loading the model", logs);
        let mut model = Model::load_weights(self.model.as_str(), 1, context)?;
        drop(loading);
        self.adapt(&mut model.job)?;
        for path in &self.data {
            let mut progress = ScoringProgress::new("evaluating", logs);
            let (evaluation, report) = model.evaluate_showing(path, |scored| progress.show(|| scored))?;
            drop(progress);
            let json = self.json || logs.is_json();
            if self.report {
                match json {
                    true => logs.log_format.report(&report),
                    false => out::print(report)?,
                }
            }
            if json {
                out::print(serde_json::json!(Evaluated { path, checkpoint: None, evaluation: &evaluation }))?;
            } else {
                let set = if self.data.len() > 1 { format!("{path}: ") } else { String::new() };
                for evaluation in evaluation.of_labels() {
                    out::print(format_args!("{set}{evaluation}"))?;
                    if evaluation.is_measured() {
                        evaluation.reliability_lines().iter().try_for_each(out::print)?;
                        evaluation.detail_lines().iter().try_for_each(out::print)?;
                    }
                }
                evaluation.left_out_lines().try_for_each(|line| out::print(format_args!("{set}{line}")))?;
            }
        }
        Ok(())
    }

    /// Applies the arguments to the job of a model.
    fn adapt(&self, job: &mut Job) -> Result<(), Fault> {
        // It selects folders below data.eval, which --data replaces.
        job.data.eval_filter = None;
        *job = job.adapted(&self.settings)?;
        if let Some(best) = &self.best {
            out_folder::check_without_bad_rows(best, &job.data.on_bad_row, out_folder::WRITE_TO)?;
        }
        let asked = &mut job.evaluation;
        if self.group.is_some() {
            asked.group.clone_from(&self.group);
        }
        if !self.slices.is_empty() {
            asked.slices.clone_from(&self.slices);
        }
        job.check_saved()
    }
}
