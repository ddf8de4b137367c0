//! `forebay train`: the whole pipeline, a progress line, evaluation, a model folder.

use std::cell::OnceCell;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::actors::{FaultKind, commas, counted, size};
use crate::connectors::convert::block_on;
use crate::pipelines::cluster::{ClusterSession, ProcessTimeline};
use crate::pipelines::{Context, DrainedTraining, Evaluation, FailedTraining, RunEnd, Trained};
use crate::ps::GroupStats;
use crate::{Fault, Training};
use clap::Args;
use serde_json::{Value, json};

use super::job_args::RunArgs;
use super::save::Saving;
use super::summary::{SavedFolder, Summary, few_steps, of_slots};
use crate::dashboard::Dashboard;
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::metrics::RunMetrics;
use crate::net::Security;
use crate::out;
use crate::progress::Progress;
use crate::report::{History, ReportFiles, drained_contents, failed_contents};
use crate::scoring_progress::ScoringProgress;
#[cfg(feature = "otel")]
use crate::spans::SpanService;
use crate::stop::Stop;
use crate::tensorboard::TensorBoard;
use crate::usage::Usage;

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
  forebay train tomorrow.toml --from model --set output.model=model-2   (goes on from yesterday's model)
  forebay train job.toml --set checkpoint.to=again --resume-from checkpoints#12   (goes on from an earlier checkpoint)
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

/// The steps at the end of a training.
pub(crate) struct AtEnd<'a> {
    /// Where the report goes.
    pub(crate) report: &'a ReportFiles,
    /// The dashboard of the run.
    pub(crate) dashboard: Option<&'a Dashboard>,
    /// The writer of the run's event files.
    pub(crate) tensorboard: Option<&'a TensorBoard>,
    /// Whether this process saves and evaluates.
    pub(crate) saves: bool,
    /// Whether `launch` started this process. It shows the report of the first trainer, which has the meters of all processes.
    pub(crate) launched: bool,
}

impl AtEnd<'_> {
    /// Shows the end of the training. `is_last`: neither a saved model nor an evaluation follows.
    fn show(&self, of: &Summary<'_>, history: Option<&History>, evaluated: Option<(&str, &Evaluation)>, is_last: bool) {
        if let Some(dashboard) = self.dashboard {
            let metrics = RunMetrics::of_ended(of.trained, of.status.as_ref());
            dashboard.show(of.file(history, evaluated), &metrics, is_last);
        }
        if let Some(tensorboard) = self.tensorboard.filter(|_| is_last) {
            tensorboard.end(of.trained, evaluated.map(|(_, evaluation)| evaluation));
        }
    }

    /// Writes the report of a run that was drained to a checkpoint. The checkpoint has the whole run, so a report that cannot be written is
    /// only a warning.
    fn write_drained(&self, drained: &DrainedTraining, before: Option<Usage>, history: Option<&History>) {
        if let Err(fault) = self.write_own(&drained_contents(drained, before, history), &drained.timeline) {
            tracing::warn!("the run has its checkpoint, but no whole report: {fault}");
        }
    }

    /// Writes the report of a run that failed, in place of the report of an older run. If the report cannot be written, the fault of the
    /// run counts.
    fn write_failed(&self, failed: &FailedTraining, before: Option<Usage>, history: Option<&History>) {
        if !self.report.is_some() {
            return;
        }
        if let Err(fault) = self.write_own(&failed_contents(failed, before, history), &failed.timeline) {
            tracing::warn!("the run failed, and has no whole report: {fault}");
        }
    }

    /// Writes a report, with the timeline of this process alone.
    fn write_own(&self, report: &Value, timeline: &ProcessTimeline) -> Result<(), Fault> {
        self.report.write(report)?;
        self.report.write_trace(std::slice::from_ref(timeline))
    }

    /// Writes the report, so far without an evaluation.
    fn write(&self, of: &Summary<'_>, history: Option<&History>) -> Result<(), Fault> {
        self.report.write(&of.file(history, None))?;
        self.report.write_trace(&of.timelines)
    }
}

/// Trains, with a progress line, then saves, reports and evaluates.
pub(crate) fn run(training: Training, stop: &Stop, end: AtEnd<'_>, logs: &Logs) -> Result<Ended, Fault> {
    if !logs.quiet && !logs.is_json() {
        out::eprint_or_drop(training.plan());
    }
    if end.saves && training.job().output.model.is_none() {
        tracing::warn!("the model will not be saved: the job has no output.model");
    }
    if end.saves
        && let Some(label) = training.job().columns.label_as_feature()
    {
        tracing::warn!("the model sees what it has to predict: `{label}` is a label and a feature, too");
    }
    end.dashboard.inspect(|dashboard| dashboard.begins());
    let before = Usage::now();
    stop.ends_with_checkpoint(training.job().checkpoint.to.is_some());
    let running = training.start()?.report_if_drained(end.report.is_some());
    stop.has_begun();
    let mut progress = Progress::new(logs);
    let mut history = (end.report.is_some() || end.dashboard.is_some()).then(History::new);
    let mut drained = false;
    let ended = running.wait_with(Duration::from_millis(100), |running| {
        if stop.asked() && !drained {
            running.drain();
            drained = true;
        }
        progress.show(running);
        end.tensorboard.inspect(|tensorboard| tensorboard.follow(running));
        if let Some(history) = &mut history {
            history.follow(running);
            if let Some(dashboard) = end.dashboard {
                dashboard.follow(running, before, history);
            }
        }
    });
    progress.done();
    if let Some(history) = &mut history {
        match &ended {
            Ok(trained) => history.ends(&trained.progress, &trained.report),
            Err(failed) => history.ends(&failed.progress, &failed.report),
        }
    }
    let mut trained = match ended {
        Ok(trained) => {
            // From here on the model is saved, even if the user asks to stop.
            stop.ends_with_checkpoint(false);
            trained
        }
        Err(failed) => {
            // If another attempt follows, the report of this one says nothing about the run.
            if failed.fault.kind == FaultKind::RolledBack {
                end.dashboard.inspect(|dashboard| dashboard.rolled_back(&failed));
            } else {
                // The verdict of the report says how the run ended.
                let report = &failed.report.report;
                let ended = if failed.fault.kind == FaultKind::Drained { "drained" } else { "failed" };
                end.dashboard.inspect(|dashboard| dashboard.failed(report));
                if logs.is_json() {
                    out::print_or_drop(json!({ ended: { "report": report } }));
                } else if !logs.quiet && report.ledger.read > 0 {
                    // Without rows the report would be twenty lines of zeros before the error.
                    out::eprint_or_drop(report);
                }
                match &failed.drained {
                    Some(drained) => end.write_drained(drained, before, history.as_ref()),
                    None => end.write_failed(&failed, before, history.as_ref()),
                }
            }
            return Err(failed.fault);
        }
    };
    if let Some(hint) = few_steps(&trained.training, trained.report.trained_before, &trained.model.job)
        && end.saves
    {
        tracing::info!("{hint}");
    }
    let ended = match trained.training.ended {
        RunEnd::Complete | RunEnd::StoppedEarly => Ended::Done,
        RunEnd::Drained => Ended::Drained,
    };
    let unwritten = trained.unwritten_checkpoint.take();
    let session = trained.session.take();
    let status = session.as_ref().map(ClusterSession::status);
    let timelines =
        if end.report.has_trace() { timelines(&mut trained, session.as_ref(), end.saves) } else { Vec::new() };
    let usage = Usage::of_run(before, trained.report.other_machines());
    let saved = OnceCell::new();
    let summary = Summary { trained: &trained, usage, status, timelines, saved, json: logs.is_json() };
    if !end.saves {
        match logs.is_json() {
            true => out::print_or_drop(
                json!({ "trainer": { "report": trained.report.report, "progress": trained.progress } }),
            ),
            false if end.launched => {
                out::print_or_drop(format_args!("trained on {}", counted(trained.training.rows, "row")))
            }
            false => out::print_or_drop(&trained.report.report),
        }
        end.show(&summary, history.as_ref(), None, true);
        let written = end.write(&summary, history.as_ref());
        // The first trainer saves and evaluates. If a process with state is lost before that, the run needs this trainer again.
        session.map_or(Ok(()), |session| session.stay_until_over(|| stop.asked()))?;
        return written.map(|()| ended);
    }
    match finish(&summary, history.as_ref(), stop, &end, session.as_ref(), logs) {
        Ok(after) => {
            if let Some(fault) = unwritten {
                if let Err(fault) = after {
                    exit::report(&fault, logs.log_format);
                }
                let fault = without_checkpoint(&trained, fault);
                // All processes end with this trainer.
                return Err(match &session {
                    Some(session) => session.fail(fault),
                    None => fault,
                });
            }
            if session.is_some()
                && let Err(fault) = trained.note_finished()
            {
                tracing::warn!("the run has ended, but that could not be noted beside its checkpoints: {fault}");
            }
            if let Some(Err(fault)) = session.map(ClusterSession::over) {
                tracing::warn!("the run is over, but the other processes could not be told: {fault}");
            }
            // A drained run has rows left. For the caller, this is more important than a failed evaluation.
            match after {
                Ok(()) => Ok(ended),
                Err(fault) => {
                    exit::report(&fault, logs.log_format);
                    Ok(if ended == Ended::Done { Ended::OnlySaved } else { ended })
                }
            }
        }
        Err(fault) => Err(match &session {
            Some(session) => session.fail(fault),
            None => fault,
        }),
    }
}

/// The fault of a drained run whose model is saved, because its last checkpoint could not be written: `fault`.
fn without_checkpoint(trained: &Trained, fault: Fault) -> Fault {
    if trained.training.rows == 0 {
        let fault = fault.context("stopped before the first row and without a checkpoint: nothing is saved");
        return fault.kind(FaultKind::Unsaved);
    }
    let rows = counted(trained.training.rows, "row");
    let folder = trained.model.job.output.folder(trained.training.ended).unwrap_or_default();
    let fault = fault.context(format!(
        "stopped after {rows} without a checkpoint of them; their model is saved at {folder}, and --resume goes on from an earlier \
         checkpoint or begins anew"
    ));
    fault.kind(FaultKind::Unsaved)
}

/// The timelines of the stages of this process and, if `all`, of the others.
fn timelines(trained: &mut Trained, session: Option<&ClusterSession>, all: bool) -> Vec<ProcessTimeline> {
    let process = session.map_or_else(|| trained.report.name.clone(), ClusterSession::name);
    let own = ProcessTimeline { process, tracks: std::mem::take(&mut trained.timeline) };
    let others = session.filter(|_| all).map(ClusterSession::timelines).unwrap_or_default();
    [vec![own], others].concat()
}

/// Saves, then reports, then evaluates: a later failure cannot lose the model. The inner result is for report and evaluation, and a fault
/// if the model of the best evaluation was not saved: it must not cause another training.
///
/// # Errors
/// The model could not be saved, the run begins a new attempt, or the job saves no model and what follows failed.
fn finish(
    summary: &Summary<'_>,
    history: Option<&History>,
    stop: &Stop,
    end: &AtEnd<'_>,
    session: Option<&ClusterSession>,
    logs: &Logs,
) -> Result<Result<(), Fault>, Fault> {
    let trained = summary.trained;
    end.show(summary, history, None, false);
    // The last model may be the best.
    let last = if trained.keeps_best() { evaluate_last(trained, logs) } else { Ok(None) };
    let saved = save(summary, stop, session);
    summary.print();
    let written = end.write(summary, history);
    let (saved, evaluation) = saved?;
    match summary.json {
        true => out::print_or_drop(json!({ "saved": saved })),
        false => out::print_or_drop(saved),
    }
    let evaluated = last
        .map_err(|fault| {
            Fault::external("the last model could not be evaluated, the best one before was saved").because(fault)
        })
        .and_then(|_| evaluate(trained, evaluation, logs));
    summary.print_evaluations();
    let known = evaluated.as_ref().ok().and_then(Option::as_ref);
    let known = known.map(|(path, evaluation)| (path.as_str(), evaluation));
    end.show(summary, history, known, true);
    let written = match known {
        Some(_) => written.and_then(|()| end.report.write(&summary.file(history, known))),
        None => written,
    };
    let best = match summary.saved.get().is_some() && trained.lost_best() {
        true => Err(Fault::external(
            "the model of the best evaluation is gone, or could not be kept: another one was saved, as a line above says",
        )),
        false => Ok(()),
    };
    let after = evaluated.and(written).and(best);
    match after {
        // A process with state was lost during the evaluation: this one joins the next attempt, which evaluates again.
        Err(fault) if fault.kind == FaultKind::RolledBack => Err(fault),
        after if summary.saved.get().is_some() => Ok(after),
        after => after.map(Ok),
    }
}

/// Saves the model. Returns a line about it, and its evaluation if known.
fn save(
    summary: &Summary<'_>,
    stop: &Stop,
    session: Option<&ClusterSession>,
) -> Result<(String, Option<Evaluation>), Fault> {
    let trained = summary.trained;
    let output = &trained.model.job.output;
    let Some(model) = &output.model else {
        return Ok(("the model was not saved: the job has no output.model".into(), None));
    };
    if trained.training.ended == RunEnd::Drained && trained.training.rows == 0 {
        trained.forget_best();
        return Ok(("the model was not saved: the run was drained before it had trained on a row".into(), None));
    }
    let Some(folder) = output.folder(trained.training.ended) else {
        trained.forget_best();
        return Ok((format!("the model was not saved: the run was drained, and nothing was written to {model}"), None));
    };
    let begun = Instant::now();
    let saving = Saving { trained, folder: &folder, stop, session };
    let saved = stop.while_saving(|| saving.save());
    let (manifest, evaluation) = saved?;
    let rows: u64 = manifest.tables.iter().map(|t| t.rows).sum();
    let bytes: u64 = manifest.files().map(|file| file.bytes).sum();
    let _ = summary.saved.set(SavedFolder { seconds: begun.elapsed().as_secs_f64(), bytes });
    let line = format!("saved {folder}: {}, {}", counted(rows, "table row"), size(bytes));
    let line = format!("{line}{}{}", of_tables(trained), of_slots(trained));
    let beside = folder != *model;
    let line = if beside { format!("{line}\nthe run was drained, and nothing was written to {model}") } else { line };
    Ok((line, evaluation))
}

/// A line for each table about its memory and the counts of its keys; empty for a single table without rules for its keys.
fn of_tables(trained: &Trained) -> String {
    let Ok(stats) = block_on(trained.model.table.stats()) else { return String::new() };
    let config = trained.model.table.config();
    if config.groups.is_empty() && !config.has_lifetime() {
        return String::new();
    }
    stats.all_groups(config.row_dim()).iter().map(|group| format!("\n  {}", of_table(group))).collect()
}

fn of_table(group: &GroupStats) -> String {
    let (name, rows, weights) = (&group.name, counted(group.rows, "row"), counted(group.row_dim, "weight"));
    let mut line = format!("table `{name}`: {rows} of {weights}, {} of memory", size(group.bytes));
    if let Some(hits) = group.hit_share() {
        line += &format!(", {:.0}% of look-ups found one", 100.0 * hits);
    }
    for (n, one, several) in [
        (group.evicted, "row removed", "rows removed"),
        (group.refused, "push of a key without a row", "pushes of keys without a row"),
        (group.waiting, "key waits for a row", "keys wait for a row"),
    ] {
        if n > 0 {
            line += &format!(", {} {}", commas(n), if n == 1 { one } else { several });
        }
    }
    line
}

/// Evaluates the saved model on the rows at `data.eval`, if there are any. Returns their path and the quality. `known`: the quality of a
/// saved best model, if this process has evaluated it.
fn evaluate(trained: &Trained, known: Option<Evaluation>, logs: &Logs) -> Result<Option<(String, Evaluation)>, Fault> {
    let Some(path) = &trained.model.job.data.eval else { return Ok(None) };
    let evaluation = if trained.keeps_best() { known } else { evaluate_last(trained, logs)? };
    let Some(evaluation) = evaluation else { return Ok(None) };
    match logs.is_json() {
        true => out::print_or_drop(json!({ "evaluated": { "path": path, "evaluation": evaluation } })),
        false => {
            let said = |line: &dyn Display| out::print_or_drop(format_args!("evaluated on {path}: {line}"));
            for evaluation in evaluation.of_labels() {
                said(evaluation);
                evaluation.group_lines().iter().for_each(out::print_or_drop);
            }
            evaluation.left_out_lines().for_each(|line| said(&line));
        }
    }
    Ok(Some((path.to_string(), evaluation)))
}

/// Evaluates the model after the last row, and shows the progress.
fn evaluate_last(trained: &Trained, logs: &Logs) -> Result<Option<Evaluation>, Fault> {
    let mut progress = ScoringProgress::new("evaluating", logs);
    trained.evaluate_last(|scored| progress.show(|| scored))
}
