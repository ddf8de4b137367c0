//! `forebay train`: the whole pipeline, a progress line, evaluation, a model folder.
//!
//! Read in this order: this file (the command), `follow.rs` (from the start of a training to its end), `at_end.rs` (its reports),
//! `finish.rs` (saves and evaluates).

mod at_end;
mod finish;
mod follow;

use clap::Args;

pub(crate) use self::at_end::AtEnd;
pub(crate) use self::follow::run;
use super::job_args::RunArgs;
use crate::dashboard::Dashboard;
use crate::exit::Ended;
use crate::logs::Logs;
use crate::net::Security;
use crate::pipelines::Context;
use crate::report::ReportFiles;
#[cfg(feature = "otel")]
use crate::spans::SpanService;
use crate::stop::Stop;
use crate::tensorboard::TensorBoard;
use crate::{Fault, Training};

/// Train a model: forebay train JOB.toml [--set key=value ...]
///
/// Trains the model that a job describes, writes output.model, and evaluates it on data.eval.
///
/// The first Ctrl-C (or SIGTERM) drains: trains on all rows that were read, then saves and evaluates the model. It is saved
/// beside output.model, as output.model.partial, unless output.on_drain says otherwise; the exit code is 5. With checkpoint.to
/// the run leaves a checkpoint instead, for --resume. If it cannot be written, the model is saved after all; the exit code is 3,
/// or 2. The second Ctrl-C stops at once.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay train job.toml
  forebay train job.toml --set train.staleness=2 --set model.kind=lr
  forebay train tomorrow.toml --from model --set output.model=model-2   (continues from yesterday's model)
  forebay train job.toml --set checkpoint.to=again --resume-from checkpoints#12   (continues from an earlier checkpoint)
  forebay train --set data.train=rows/ --set output.model=model     (the default job: Wide & Deep on Criteo columns)")]
pub(crate) struct Train {
    #[command(flatten)]
    run: RunArgs,
}

impl Train {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        let Self { run: args } = self;
        let stop = Stop::listen(logs.log_format)?;
        let job = args.load()?;
        #[cfg(feature = "otel")]
        let (_spans, context) = &{
            let (name, tls_ca) = ("forebay-train".into(), job.network.security_files().tls_ca);
            let service = SpanService { name, instance: "train-0".into(), tls_ca };
            args.start_spans(context, job.network.run.as_deref(), &service)?
        };
        let report = ReportFiles::new(args.report, args.resume)?;
        let security = || Security::load(&job.network.security_files());
        let dashboard = |listen| Dashboard::start(listen, &security()?, logs.log_format);
        let dashboard = args.dashboard.map(dashboard).transpose()?;
        let tensorboard = args.tensorboard.map(|folder| TensorBoard::start(&folder, args.resume)).transpose()?;
        let (dashboard, tensorboard) = (dashboard.as_ref(), tensorboard.as_ref());
        let end = AtEnd { report: &report, dashboard, tensorboard, saves: true, launched: false };
        run(Training::builder(job).context(context).resume(args.resume).build()?, &stop, end, logs)
    }
}
