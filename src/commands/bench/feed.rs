//! `forebay bench feed`: read, parse and batch alone; what they cost per row.

use std::time::Instant;

use crate::Job;
use crate::actors::{Fault, Place, Sink, Source, StageCx, Topology, commas};
use crate::connectors::{CriteoSource, ParquetSource, ReadOptions, Rows};
use crate::pipelines::flow::TrainBatch;
use crate::pipelines::job::Format;
use crate::pipelines::stages::{BatchPlan, Batcher, Parse};
use clap::Args;

use crate::usage::Usage;

/// Rows per second and core, from files to batches that are ready to look up
///
/// Reads rows with Criteo's columns (or a job's), parses, cuts and de-duplicates them, and drops the batches.
#[derive(Args)]
pub(crate) struct Feed {
    /// A file, a folder or a glob.
    #[arg(long, value_name = "PATH")]
    data: String,
    /// Take the columns and the reading options of this job.
    #[arg(long, value_name = "JOB.toml")]
    job: Option<std::path::PathBuf>,
    /// Override a field of the job, for instance data.shuffle_rows=0; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Passes over the data; the first, which warms the page cache, is not counted.
    #[arg(long, default_value_t = 3)]
    passes: usize,
}

/// Counts what would be looked up.
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
    pub(crate) fn run(self) -> Result<(), Fault> {
        let job = crate::commands::train::load(self.job.as_deref(), &self.settings)?;
        job.check()?;
        let read = ReadOptions {
            batch_rows: job.data.read_rows,
            decode_threads: job.data.decode_threads,
            read_ahead_bytes: job.data.read_ahead.0,
            decode_ahead_bytes: job.data.decode_ahead.0,
            ..ReadOptions::default()
        };
        let format = job.data.format.unwrap_or_else(|| Format::of(&self.data));
        for pass in 0..=self.passes {
            let (path, read) = (self.data.clone(), read.clone());
            let (before, start) = (Usage::now(), Instant::now());
            let report = match format {
                Format::Parquet => {
                    let columns = job.columns.names();
                    feed(&job, move || ParquetSource::new(path, read).columns(columns))?
                }
                Format::Criteo => feed(&job, move || CriteoSource::new(path, read))?,
            };
            if pass == 0 {
                continue;
            }
            let (rows, wall) = (report.ledger.delivered, start.elapsed().as_secs_f64());
            let cpu = before.zip(Usage::now()).map_or(f64::NAN, |(b, a)| a.cpu_seconds - b.cpu_seconds);
            println!(
                "{} rows: {} rows/s per core ({:.3} CPU seconds per million rows), {} rows/s on this machine",
                commas(rows),
                commas((rows as f64 / cpu) as u64),
                cpu / rows as f64 * 1e6,
                commas((rows as f64 / wall) as u64),
            );
            if pass == self.passes {
                println!("{report}");
            }
        }
        Ok(())
    }
}

fn feed<S: Source<Out = Rows>>(
    job: &Job,
    make: impl FnOnce() -> S + Send + 'static,
) -> Result<crate::actors::Report, Fault> {
    let (columns, seed, links) = (job.columns.clone(), job.seed, &job.pipeline.links);
    let on_bad_row = job.data.on_bad_row.clone();
    let plan = BatchPlan {
        rows: job.train.batch_rows,
        window: job.data.shuffle_rows,
        seed,
        drop_last: false,
        accounts: false,
        key_spaces: job.columns.key_spaces(),
    };
    Topology::new("feed")
        .source("read", Place::Shared, make)
        .link(links.parse)
        .stage("parse", Place::Own, move || Parse::new(columns, seed, on_bad_row))
        .link(links.batch)
        .stage("batch", Place::Own, move || Batcher::new(plan))
        .link(links.lookup)
        .sink("drop", Place::Own, Count::default)
        .run()
}
