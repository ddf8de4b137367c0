//! `forebay bench feed`: the cost of reading, parsing and batching per row.

use std::time::Instant;

use clap::Args;

use crate::actors::{Fault, Place, Sink, StageCx, Topology, commas};
use crate::out;
use crate::pipelines::flow::TrainBatch;
use crate::pipelines::{Context, feed};
use crate::usage::Usage;

/// Rows per second and core, from files to batches that are ready to look up
///
/// Reads rows with Criteo's columns (or those of a job), parses and batches them, and drops the batches.
#[derive(Args)]
pub(crate) struct Feed {
    /// A file, a folder or a glob.
    #[arg(long, value_name = "PATH")]
    data: String,
    /// Take columns and reading options from this job.
    #[arg(long, value_name = "JOB.toml")]
    job: Option<std::path::PathBuf>,
    /// Override a field of the job, for instance data.shuffle_rows=0; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Passes over the data, after one that warms the page cache.
    #[arg(long, default_value_t = 3)]
    passes: usize,
}

/// Counts the keys that a training would look up.
#[derive(Default)]
struct Count {
    batches: u64,
    values: u64,
    unique: u64,
}

impl Sink for Count {
    type In = TrainBatch;
    fn describe(&self) -> String {
        "drops what it gets".into()
    }
    async fn write(&mut self, batch: TrainBatch, _cx: &StageCx) -> Result<(), Fault> {
        self.batches += 1;
        self.values += batch.inverse.len() as u64;
        self.unique += batch.unique.len() as u64;
        Ok(())
    }
    async fn finish(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        tracing::debug!(batches = self.batches, values = self.values, unique = self.unique, "fed");
        Ok(())
    }
}

impl Feed {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let mut job = crate::commands::job_args::load(self.job.as_deref(), &self.settings)?;
        job.data.train = Some(self.data.into());
        job.check()?;
        for pass in 0..=self.passes {
            let (before, start) = (Usage::now(), Instant::now());
            let flow = feed(Topology::new("feed"), &job, context)?;
            let report = flow.sink("drop", Place::Own, Count::default).run()?;
            if pass == 0 {
                continue;
            }
            let (rows, wall) = (report.ledger.delivered, start.elapsed().as_secs_f64());
            let cpu = before.zip(Usage::now()).map_or(f64::NAN, |(b, a)| a.cpu_seconds - b.cpu_seconds);
            out::print(format_args!(
                "{} rows: {} rows/s per core ({:.3} CPU seconds per million rows), {} rows/s on this machine",
                commas(rows),
                commas((rows as f64 / cpu) as u64),
                cpu / rows as f64 * 1e6,
                commas((rows as f64 / wall) as u64),
            ))?;
            if pass == self.passes {
                out::print(format_args!("{report}"))?;
            }
        }
        Ok(())
    }
}
