//! `forebay bench headspace`: how fast a job would train if its feed cost nothing.

use clap::Args;

use crate::actors::{Fault, commas};
use crate::commands::job_args::JobArgs;
use crate::out;
use crate::pipelines::{Context, Speed, headspace};

/// The possible speed of a job: its training with batches from memory, and its feed alone
///
/// Reads the first rows of data.train into batches in memory, which measures the feed. Then trains on these batches, which measures the
/// training with a perfect feed. Writes no model.
#[derive(Args)]
pub(crate) struct Headspace {
    #[command(flatten)]
    job: JobArgs,
    /// Rows to hold in memory, rounded up to whole batches: about 250 bytes each with Criteo's columns.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Passes over these rows, after one that creates the rows of the table.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    passes: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Headspace {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = self.job.load()?;
        let found = headspace(job, context, self.rows, usize::from(self.passes))?;
        if self.json {
            return out::print(serde_json::json!({ "feed": fields(found.feed), "training": fields(found.training) }));
        }
        out::print(format_args!("{}\n", found.report))?;
        out::print(format_args!("feed alone                {}", line(found.feed)))?;
        out::print(format_args!("training, fed from memory {}", line(found.training)))?;
        let share = found.feed.rows_per_second() / found.training.rows_per_second();
        if share < 1.0 {
            return out::print(format_args!(
                "the feed is the limit: alone it reaches {share:.2} of what training could take"
            ));
        }
        out::print(format_args!("training is the limit: the feed alone is {share:.2} times as fast"))
    }
}

fn fields(speed: Speed) -> serde_json::Value {
    serde_json::json!({
        "rows": speed.rows,
        "seconds": speed.wall.as_secs_f64(),
        "rows_per_second": speed.rows_per_second(),
        "cpu_seconds": speed.cpu_seconds,
    })
}

fn line(speed: Speed) -> String {
    let per_million = speed.cpu_seconds / speed.rows as f64 * 1e6;
    let (rate, rows) = (commas(speed.rows_per_second() as u64), commas(speed.rows));
    format!("{rate:>11} rows/s   {per_million:.2} CPU seconds per million rows   ({rows} rows)")
}
