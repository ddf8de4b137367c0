//! `forebay train`: the whole pipeline, a progress line, evaluation, a model folder.

use std::path::PathBuf;
use std::time::Duration;

use crate::actors::commas;
use crate::pipelines::cluster::{ClusterSession, RunStatus};
use crate::pipelines::{Context, Trained};
use crate::{Fault, Job, Training};
use clap::Args;

use crate::logs::Logs;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::usage::Usage;

/// Train a model: forebay train JOB.toml [--set key=value ...]
///
/// Trains the model that a job describes, writes output.model, and evaluates it on data.eval.
///
/// The first Ctrl-C (or SIGTERM) drains: trains on all rows that were read, then saves and evaluates the model. The second
/// stops at once.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay train job.toml
  forebay train job.toml --set train.staleness=2 --set model.kind=lr
  forebay train --set data.train=rows/ --set output.model=model     (the default job: Wide & Deep on Criteo columns)")]
pub(crate) struct Train {
    /// The job file; without it, the default job.
    job: Option<PathBuf>,
    /// Override a field of the job, for instance train.batch_rows=4096; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Go on from the newest checkpoint in checkpoint.to; begin at the start if there is none yet.
    #[arg(long)]
    resume: bool,
}

impl Train {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<(), Fault> {
        let job = load(self.job.as_deref(), &self.settings)?;
        if !job.placement.is_one_process() {
            return Err(Fault::user(
                "the job's [placement] names several processes: start them on this machine with `forebay launch`, or each with \
                 `forebay role`",
            ));
        }
        let report = Report { file: self.report, whole: true };
        run(Training::builder(job).context(context).resume(self.resume).build()?, &Stop::listen()?, report, logs)
    }
}

/// What to do at the end of a training.
pub(crate) struct Report {
    /// Write the report as JSON to this file.
    pub(crate) file: Option<PathBuf>,
    /// Whether this process saves and evaluates.
    pub(crate) whole: bool,
}

/// Trains, with a progress line, then saves and evaluates.
pub(crate) fn run(training: Training, stop: &Stop, report: Report, logs: &Logs) -> Result<(), Fault> {
    if !logs.quiet {
        eprintln!("{}", training.plan());
    }
    let before = Usage::now();
    let running = training.start()?;
    let mut progress = Progress::new(logs);
    let mut drained = false;
    let ended = running.wait_with(Duration::from_millis(100), |running| {
        if stop.asked() && !drained {
            running.drain();
            drained = true;
        }
        progress.show(&running.progress(), &running.report());
    });
    progress.done();
    let mut trained = match ended {
        Ok(trained) => trained,
        Err(failed) => {
            eprintln!("{}", failed.report);
            return Err(failed.fault);
        }
    };
    print_summary(&trained, before);
    if let Some(path) = &report.file {
        write_json(path, &trained.report)?;
    }
    let session = trained.session.take();
    if !report.whole {
        // The first trainer saves and evaluates, and needs the rows of this process until then.
        return session.map_or(Ok(()), ClusterSession::wait_until_over);
    }
    match save_and_evaluate(&trained, stop) {
        Ok(()) => session.map_or(Ok(()), ClusterSession::over),
        Err(fault) => Err(match &session {
            Some(session) => session.fail(fault),
            None => fault,
        }),
    }
}

fn print_summary(trained: &Trained, before: Option<Usage>) {
    println!("{}", trained.report);
    let last = &trained.progress;
    println!(
        "trained on {} rows in {:.1} s, {} steps, running logloss {:.5}, running AUC {}",
        commas(last.rows),
        last.seconds,
        last.steps,
        last.logloss,
        last.auc.map_or("undefined".into(), |auc| format!("{auc:.5}"))
    );
    if let (Some(before), Some(after)) = (before, Usage::now()) {
        let cpu = after.cpu_seconds - before.cpu_seconds;
        println!(
            "used {cpu:.1} CPU seconds ({:.1} per million rows), at most {} MiB of memory",
            cpu / last.rows.max(1) as f64 * 1e6,
            after.peak_bytes >> 20
        );
    }
    if let Some(session) = &trained.session {
        let RunStatus { counts, windows_done: done, windows_total: of, reassigned_leases, .. } = session.status();
        println!(
            "all processes: {} rows trained on, {} rejected, {} batches, {done} of {of} windows, {reassigned_leases} leases given \
             out again",
            commas(counts.trained),
            commas(counts.rejected),
            commas(counts.batches)
        );
    }
}

/// Saves before it evaluates: if the evaluation fails, the model is not lost.
fn save_and_evaluate(trained: &Trained, stop: &Stop) -> Result<(), Fault> {
    let job = &trained.model.job;
    if let Some(folder) = &job.output.model {
        let manifest = stop.while_saving(|| trained.model.save(folder))?;
        let rows: u64 = manifest.tables.iter().map(|t| t.rows).sum();
        let bytes: u64 = manifest.files().map(|file| file.bytes).sum();
        println!("saved {folder}: {} table rows, {:.1} MB", commas(rows), bytes as f64 / 1e6);
    }
    if let Some(path) = &job.data.eval {
        println!("evaluated on {path}: {}", trained.model.evaluate(path)?.0);
    }
    Ok(())
}

/// The job of a file, or the default job, with settings applied.
pub(crate) fn load(file: Option<&std::path::Path>, settings: &[String]) -> Result<Job, Fault> {
    match file {
        Some(file) => Job::load(file, settings),
        None => Job::from_toml("", settings),
    }
}

fn write_json(path: &std::path::Path, report: &impl serde::Serialize) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Fault::internal("the report cannot be written as JSON").because(e))?;
    std::fs::write(path, text).map_err(|e| Fault::external(format!("cannot write {}", path.display())).because(e))
}
