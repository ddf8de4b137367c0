//! `forebay eval`: how good the scores of a model folder are.

use crate::Fault;
use crate::out;
use crate::pipelines::{Context, Evaluation};
use clap::Args;

use super::job_args;
use crate::logs::Logs;

/// Score a model folder on rows: forebay eval --model FOLDER --data PATH
///
/// Checks the files of the model folder and prints, for each data set, exact AUC, logloss, normalised entropy (the logloss over
/// that of the mean), COPC (clicks over predicted clicks), and in ten bins of equally many rows, by score, the mean score and
/// the share of rows with label 1.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay eval --model rows/model --data rows/test
  forebay eval --model rows/model --data rows/test --group user_id --slice country
  forebay eval --model rows/model --data rows/monday --data rows/tuesday --json > quality.jsonl")]
pub(crate) struct Eval {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A file, a folder or a glob of rows (a path or a URL), with the columns that the model was trained on; may be repeated.
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<String>,
    /// Override a field of the model's job, for instance data.on_bad_row=skip; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Also print the GAUC: the mean AUC within the rows of each value of this column, such as the user.
    #[arg(long, value_name = "COLUMN")]
    group: Option<String>,
    /// Also print the quality on the rows of each value of this column (the 50 with the most rows); may be repeated.
    #[arg(long = "slice", value_name = "COLUMN")]
    slices: Vec<String>,
    /// Print the report of each run before its result.
    #[arg(long)]
    report: bool,
    /// Print JSON: one object a data set, each on a line.
    #[arg(long)]
    json: bool,
}

/// A line of JSON.
#[derive(serde::Serialize)]
struct Evaluated<'a> {
    path: &'a str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

impl Eval {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        let mut model = job_args::load_model(&self.model, &self.settings, context)?;
        let asked = &mut model.job.evaluation;
        asked.group = self.group.or_else(|| asked.group.take());
        if !self.slices.is_empty() {
            asked.slices = self.slices;
        }
        model.job.check_saved()?;
        for path in &self.data {
            let (evaluation, report) = model.evaluate(path)?;
            if self.report {
                out::print(report)?;
            }
            if self.json || logs.is_json() {
                out::print(serde_json::json!(Evaluated { path, evaluation: &evaluation }))?;
            } else {
                let set = if self.data.len() > 1 { format!("{path}: ") } else { String::new() };
                for evaluation in evaluation.of_labels() {
                    out::print(format_args!("{set}{evaluation}\n{}", evaluation.reliability_lines()))?;
                    evaluation.group_lines().iter().try_for_each(out::print)?;
                }
            }
        }
        Ok(())
    }
}
