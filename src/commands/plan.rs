//! `forebay plan`: the graph of a job.

use std::path::PathBuf;

use crate::pipelines::Context;
use crate::{Fault, Training};
use clap::Args;

use super::train::load;

/// Print the graph of a job, with the capacity of every link, replicas and places; reads no rows
#[derive(Args)]
pub(crate) struct Plan {
    /// The job file; none, the default job.
    job: Option<PathBuf>,
    /// Override a field of the job; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print the whole job as TOML, every default included.
    #[arg(long)]
    job_file: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = load(self.job.as_deref(), &self.settings)?;
        if self.job_file {
            println!("{}", job.to_commented_toml());
            return Ok(());
        }
        let placement = job.placement.clone();
        let training = Training::builder(job).context(context).build()?;
        let plan = training.plan();
        if self.json {
            println!("{}", serde_json::json!(plan));
        } else {
            println!("{plan}");
            if !placement.is_one_process() {
                println!("dealt out to {placement}");
            }
        }
        Ok(())
    }
}
