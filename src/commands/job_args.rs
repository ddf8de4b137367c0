//! The arguments that name a job, and the arguments of a run of the job.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::connectors::staged::is_in;
use crate::logs::Logs;
use crate::pipelines::{Context, RunEnd, check_not_among_rows};
use crate::scoring_progress::Doing;
#[cfg(feature = "otel")]
use crate::spans::{SpanService, Spans, TRACEPARENT, TraceNames};
use crate::{Fault, Job, Model, listen_address};

/// A job.
#[derive(Clone, Args)]
pub(crate) struct JobArgs {
    /// The job file; without it, the default job.
    job: Option<PathBuf>,
    /// Override a field of the job, for instance train.batch_rows=4096; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl JobArgs {
    /// The job of the file, or the default job, with the settings applied.
    pub(crate) fn load(&self) -> Result<Job, Fault> {
        load(self.job.as_deref(), &self.settings)
    }
}

/// A run of a job. All processes of a run need the same job, and the same arguments that change the job.
#[derive(Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Write the report to this folder, as report.json, report.html and trace.json; or to one file, whose name ends with .json. Folders
    /// that are not there are made.
    #[arg(long, value_name = "PATH")]
    pub(crate) report: Option<PathBuf>,
    /// Serve a dashboard of all processes of the run, and /metrics for Prometheus, at this address, for instance 127.0.0.1:9600. The first
    /// trainer serves them.
    #[arg(long, value_name = "HOST:PORT", value_parser = listen_address::parse)]
    pub(crate) dashboard: Option<SocketAddr>,
    /// Write event files for TensorBoard to this folder during the run. The first trainer writes them.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tensorboard: Option<PathBuf>,
    /// Trace the batches of one in N windows, for instance 16, as OpenTelemetry spans. Readers and trainers send them by gRPC to
    /// OTEL_EXPORTER_OTLP_ENDPOINT, by default http://127.0.0.1:4317.
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "N")]
    pub(crate) spans: Option<std::num::NonZeroU64>,
    /// Resume from the newest checkpoint in checkpoint.to; begin at the start if there is none yet. In a run of several processes, the
    /// option of the process with the coordinator counts.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Resume from a checkpoint of another folder: short for --set checkpoint.from=PLACE. The run writes its own checkpoints to
    /// checkpoint.to. With --resume, this counts only if checkpoint.to has no checkpoint yet.
    #[arg(long, value_name = "FOLDER[#NUMBER]")]
    resume_from: Option<String>,
    /// Continue from a trained model: short for --set train.from=MODEL. With --resume, this counts only if there is no checkpoint yet.
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
}

impl RunArgs {
    /// The job, with the settings applied.
    ///
    /// # Errors
    /// Returns a user fault if the job is wrong or cannot be read. Also if a file of this run would be in the folder of its model, which is
    /// replaced as a whole, or in a folder of its rows, which is read as a whole.
    pub(crate) fn load(&self) -> Result<Job, Fault> {
        self.load_with_text().map(|(job, _)| job)
    }

    /// As [`load`](Self::load). Also returns the text of the job file, if there is one.
    pub(crate) fn load_with_text(&self) -> Result<(Job, Option<String>), Fault> {
        let (settings, text) = (self.settings(), self.file().map(Job::read_file).transpose()?);
        let job = match (self.file(), &text) {
            (Some(file), Some(text)) => Job::of_file(file, text, &settings)?,
            _ => load(None, &settings)?,
        };
        job.check_paths()?;
        for (argument, place) in [("--report", &self.report), ("--tensorboard", &self.tensorboard)] {
            let Some(place) = place.as_ref().map(|place| place.to_string_lossy()) else { continue };
            check_not_among_rows(&job, argument, &place)?;
            let mut models =
                [RunEnd::Complete, RunEnd::Drained].into_iter().filter_map(|ended| job.output.folder(ended));
            if let Some(model) = models.find(|model| is_in(&place, model)) {
                return Err(Fault::user(format!(
                    "{argument} is {place}, in the folder of the model, {model}, which the run replaces at the end: name a place outside of it"
                )));
            }
        }
        Ok((job, text))
    }

    /// Starts to send spans, if they are asked for. Returns the sender, and the context with its observer. `run`: the name of the run, if
    /// it has one.
    #[cfg(feature = "otel")]
    pub(crate) fn start_spans(
        &self,
        context: &Context,
        run: Option<&str>,
        service: &SpanService,
    ) -> Result<(Option<Spans>, Context), Fault> {
        let Some(windows) = self.spans else { return Ok((None, context.clone())) };
        let traceparent = std::env::var(TRACEPARENT).ok();
        let spans = Spans::start(windows, TraceNames::new(traceparent.as_deref(), run)?, service)?;
        let context = context.observed_by(spans.observer());
        Ok((Some(spans), context))
    }

    /// The job file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.job.job.as_deref()
    }

    /// The settings of the job, with those that other arguments stand for.
    pub(crate) fn settings(&self) -> Vec<String> {
        let from = self.from.iter().map(|model| format!("train.from={model}"));
        let checkpoint = self.resume_from.iter().map(|at| format!("checkpoint.from={at}"));
        self.job.settings.iter().cloned().chain(from).chain(checkpoint).collect()
    }
}

/// Loads a model folder, with settings applied to its job. The table has one shard.
pub(crate) fn load_model(folder: &str, settings: &[String], logs: &Logs, context: &Context) -> Result<Model, Fault> {
    let _shown = Doing::show("loading the model", logs);
    let mut model = Model::load_weights(folder, 1, context)?;
    model.job = model.job.adapted(settings)?;
    Ok(model)
}

/// The job of a file, or the default job, with settings applied.
pub(crate) fn load(file: Option<&Path>, settings: &[String]) -> Result<Job, Fault> {
    match file {
        Some(file) => Job::load(file, settings),
        None => Job::from_toml("", settings),
    }
}
