//! `forebay plan`: the graph of a job.

use crate::pipelines::Context;
use crate::{Fault, Training};
use clap::Args;

use super::job_args::JobArgs;
use crate::out;

/// Print the graph of a job, with the capacity of every link, replicas and places; reads no rows
#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    job: JobArgs,
    /// Print the job as TOML, with every field, its value and a sentence about it.
    #[arg(long)]
    job_file: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = self.job.load()?;
        if self.job_file {
            return out::print(job.to_commented_toml());
        }
        let (placement, auto, evaluation) = (job.placement.clone(), job.auto_values(), job.evaluation_plan());
        let training = Training::builder(job).context(context).build()?;
        let plan = training.plan();
        if self.json {
            return out::print(serde_json::json!(plan));
        }
        out::print(plan)?;
        if let Some(auto) = auto {
            out::print(auto)?;
        }
        if let Some(evaluation) = evaluation {
            out::print(evaluation)?;
        }
        if placement.is_one_process() { Ok(()) } else { out::print(format_args!("placement: {placement}")) }
    }
}
