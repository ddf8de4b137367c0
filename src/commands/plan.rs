//! `forebay plan`: the graph of a job; with a profile, the machines that a larger run needs.

use std::io;
use std::path::{Path, PathBuf};

use crate::actors::FaultKind;
use crate::pipelines::check_predecessor;
use crate::pipelines::{Context, PlanOptions, RunProfile, check_checkpoints, plan};
use crate::{Fault, Job, Training};
use clap::Args;

use super::job_args::JobArgs;
use crate::out;

/// Print the graph of a job (capacities of links, replicas and places) and the memory of its dense parameters; or, with the report of a
/// smaller run, how many machines a run needs. Reads no rows, but data.train must name files that are there
#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    job: JobArgs,
    /// Print the job as TOML, with every field and a sentence about it. A field without a value is a comment with its default and an
    /// example.
    #[arg(long, conflicts_with_all = ["profile", "json"])]
    job_file: bool,
    /// The report.json of a run of this job on fewer rows, as --report leaves it. Prints machines, limits, bytes on every link, memory,
    /// hours, and all assumptions.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Rows to train on, all epochs together, for instance 1e11; default: the rows of the profile.
    #[arg(long, requires = "profile")]
    rows: Option<String>,
    /// How long the run may take, for instance 5h or 1h30m: computes the number of machines. Default: the processes of the job's
    /// [placement].
    #[arg(long, value_name = "TIME", requires = "profile")]
    deadline: Option<String>,
    /// Rows of the table at the end; default: extrapolated from the growth of the measured table.
    #[arg(long, requires = "profile")]
    keys: Option<String>,
    /// The machines: cores, network, memory, and price per hour, for instance cores=16,network=10Gbit,price=0.8 for all roles, or
    /// ps:memory=256GiB for one (reader, ps, trainer); may be repeated.
    #[arg(long = "machine", value_name = "[ROLE:]PART=VALUE,...", requires = "profile")]
    machines: Vec<String>,
    /// Replace an assumption, for instance round_trip=1ms; may be repeated. A plan prints the names of all assumptions.
    #[arg(long = "assume", value_name = "NAME=VALUE", requires = "profile")]
    assumptions: Vec<String>,
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
        if let Some(profile) = &self.profile {
            let planned = plan(&job, &context.registry, &read(profile)?, &self.options()?)?;
            return match self.json {
                true => out::print(serde_json::json!(planned)),
                false => out::print(planned),
            };
        }
        self.graph(job, context)
    }

    fn graph(&self, mut job: Job, context: &Context) -> Result<(), Fault> {
        // The graph does not depend on the rows of the model or the checkpoint that the run continues from: they are not loaded.
        job.check()?;
        check_checkpoints(&job, false, context)?;
        check_predecessor(&job, context)?;
        (job.train.from, job.checkpoint.from) = (None, None);
        let (placement, evaluation) = (job.placement.clone(), job.evaluation_plan());
        let defaults: Vec<_> = job.default_optimizers().into_iter().chain(job.auto_values()).collect();
        let (plan, dense) = Training::builder(job).context(context).describe()?;
        if self.json {
            let mut plan = serde_json::json!(plan);
            plan["dense"] = serde_json::json!(dense);
            return out::print(plan);
        }
        out::print(plan)?;
        if let Some(dense) = dense {
            out::print(dense)?;
        }
        for line in defaults {
            out::print(line)?;
        }
        if let Some(evaluation) = evaluation {
            out::print(evaluation)?;
        }
        if placement.is_one_process() { Ok(()) } else { out::print(format_args!("placement: {placement}")) }
    }

    /// What the arguments say about the run and its machines.
    fn options(&self) -> Result<PlanOptions, Fault> {
        let mut options = PlanOptions::default();
        for (name, value) in [("rows", &self.rows), ("deadline", &self.deadline), ("keys", &self.keys)] {
            value.as_ref().map_or(Ok(()), |value| options.set(name, value))?;
        }
        self.machines.iter().try_for_each(|machine| options.set_machine(machine))?;
        self.assumptions.iter().try_for_each(|assumption| options.assume(assumption))?;
        Ok(options)
    }
}

fn read(path: &Path) -> Result<RunProfile, Fault> {
    let file = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let name = file.display();
    let text = std::fs::read_to_string(&file).map_err(|e| {
        let kind = if e.kind() == io::ErrorKind::NotFound { FaultKind::NotFound } else { FaultKind::Other };
        let message = format!("cannot read the profile `{name}`: {e}; `forebay train --report FOLDER` writes one");
        Fault::user(message).kind(kind).with_source(e)
    })?;
    RunProfile::from_json(&text).map_err(|fault| fault.context(format!("the profile `{name}` cannot be used")))
}
