//! `forebay eval`: scores a model folder.

use crate::out;
use crate::pipelines::Context;
use crate::{Fault, Model};
use clap::Args;

/// Score a model folder on rows: forebay eval --model FOLDER --data PATH
///
/// Checks the files of the model folder and prints exact AUC and logloss.
#[derive(Args)]
pub(crate) struct Eval {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A file, a folder or a glob of rows (a path or a URL), with the columns that the model was trained on.
    #[arg(long, value_name = "PATH")]
    data: String,
    /// Override a field of the model's job, for instance data.on_bad_row=skip; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print the run's report before the result.
    #[arg(long)]
    report: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Eval {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let mut model = Model::load_with(&self.model, 1, context)?;
        model.job = crate::Job::from_toml(&model.job.to_toml(), &self.settings)?;
        let (evaluation, report) = model.evaluate(&self.data)?;
        if self.report {
            out::print(report)?;
        }
        if self.json { out::print(serde_json::json!(evaluation)) } else { out::print(evaluation) }
    }
}
