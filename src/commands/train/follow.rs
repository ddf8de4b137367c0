//! From the start of a training to its end.

use std::cell::OnceCell;
use std::time::Duration;

use serde_json::json;

use super::super::summary::{Summary, few_steps};
use super::at_end::AtEnd;
use super::finish::finish;
use crate::actors::{FaultKind, counted};
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::pipelines::cluster::{ClusterSession, ProcessTimeline};
use crate::pipelines::{FailedTraining, RunEnd, RunningTraining, Trained};
use crate::progress::Progress;
use crate::report::History;
use crate::stop::Stop;
use crate::usage::Usage;
use crate::{Fault, Training, out};

/// Trains, with a progress line, then saves, reports and evaluates.
pub(crate) fn run(training: Training, stop: &Stop, end: AtEnd<'_>, logs: &Logs) -> Result<Ended, Fault> {
    show_begin(&training, &end, logs);
    let before = Usage::now();
    stop.ends_with_checkpoint(training.job().checkpoint.to.is_some());
    let running = training.start()?.report_if_drained(end.report.is_some());
    stop.has_begun();
    let mut history = (end.report.is_some() || end.dashboard.is_some()).then(History::new);
    let ended = follow(running, stop, &end, before, history.as_mut(), logs);
    let mut trained = match ended {
        Ok(trained) => {
            // From here on the model is saved, even if the user asks to stop.
            stop.ends_with_checkpoint(false);
            trained
        }
        Err(failed) => {
            show_failed(&failed, &end, before, history.as_ref(), logs);
            return Err(failed.fault);
        }
    };
    if let Some(hint) = few_steps(&trained.training, trained.report.trained_before, &trained.model.job)
        && end.saves
    {
        tracing::info!("{hint}");
    }
    let unwritten = trained.unwritten_checkpoint.take();
    let session = trained.session.take();
    let status = session.as_ref().map(ClusterSession::status);
    let timelines =
        if end.report.has_trace() { timelines(&mut trained, session.as_ref(), end.saves) } else { Vec::new() };
    let usage = Usage::of_run(before, trained.report.other_machines());
    let saved = OnceCell::new();
    let summary = Summary { trained: &trained, usage, status, timelines, saved, json: logs.is_json() };
    if end.saves {
        end_first(&summary, history.as_ref(), stop, &end, session, unwritten, logs)
    } else {
        end_other(&summary, history.as_ref(), stop, &end, session, logs)
    }
}

/// Shows the plan of a training, and warns of what will not be saved or is not sound.
fn show_begin(training: &Training, end: &AtEnd<'_>, logs: &Logs) {
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
}

/// Waits until the training ends, and shows its progress. If the user asks to stop, the training drains.
fn follow(
    running: RunningTraining,
    stop: &Stop,
    end: &AtEnd<'_>,
    before: Option<Usage>,
    mut history: Option<&mut History>,
    logs: &Logs,
) -> Result<Trained, Box<FailedTraining>> {
    let (mut progress, mut drained) = (Progress::new(logs), false);
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
    if let Some(history) = history {
        match &ended {
            Ok(trained) => history.ends(&trained.progress, &trained.report),
            Err(failed) => history.ends(&failed.progress, &failed.report),
        }
    }
    ended
}

/// Shows and reports how a training failed, or was drained to a checkpoint.
fn show_failed(
    failed: &FailedTraining,
    end: &AtEnd<'_>,
    before: Option<Usage>,
    history: Option<&History>,
    logs: &Logs,
) {
    // If another attempt follows, the report of this one says nothing about the run.
    if failed.fault.kind == FaultKind::RolledBack {
        end.dashboard.inspect(|dashboard| dashboard.rolled_back(failed));
        return;
    }
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
        Some(drained) => end.write_drained(drained, before, history),
        None => end.write_failed(failed, before, history),
    }
}

/// The end of a trainer that does not save.
fn end_other(
    summary: &Summary<'_>,
    history: Option<&History>,
    stop: &Stop,
    end: &AtEnd<'_>,
    session: Option<ClusterSession>,
    logs: &Logs,
) -> Result<Ended, Fault> {
    let trained = summary.trained;
    match logs.is_json() {
        true => {
            out::print_or_drop(json!({ "trainer": { "report": trained.report.report, "progress": trained.progress } }))
        }
        false if end.launched => {
            out::print_or_drop(format_args!("trained on {}", counted(trained.training.rows, "row")))
        }
        false => out::print_or_drop(&trained.report.report),
    }
    end.show(summary, history, None, true);
    let written = end.write(summary, history);
    // The first trainer saves and evaluates. If a process with state is lost before that, the run needs this trainer again.
    session.map_or(Ok(()), |session| session.stay_until_over(|| stop.asked()))?;
    written.map(|()| how_ended(trained))
}

/// The end of a process alone, or of the first trainer: saves, reports and evaluates, and tells the others that the run is over.
/// `unwritten`: why the last checkpoint of a drained run could not be written.
fn end_first(
    summary: &Summary<'_>,
    history: Option<&History>,
    stop: &Stop,
    end: &AtEnd<'_>,
    session: Option<ClusterSession>,
    unwritten: Option<Fault>,
    logs: &Logs,
) -> Result<Ended, Fault> {
    let trained = summary.trained;
    // All processes end with this trainer.
    let failed = |fault: Fault| match &session {
        Some(session) => session.fail(fault),
        None => fault,
    };
    let after = finish(summary, history, stop, end, session.as_ref(), logs).map_err(failed)?;
    if let Some(fault) = unwritten {
        if let Err(fault) = after {
            exit::report(&fault, logs.log_format);
        }
        return Err(failed(without_checkpoint(trained, fault)));
    }
    if session.is_some()
        && let Err(fault) = trained.note_finished()
    {
        tracing::warn!("the run has ended, but that could not be noted beside its checkpoints: {fault}");
    }
    if let Some(Err(fault)) = session.map(ClusterSession::over) {
        tracing::warn!("the run is over, but the other processes could not be told: {fault}");
    }
    let ended = how_ended(trained);
    // A drained run has rows left. For the caller, this is more important than a failed evaluation.
    match after {
        Ok(()) => Ok(ended),
        Err(fault) => {
            exit::report(&fault, logs.log_format);
            Ok(if ended == Ended::Done { Ended::OnlySaved } else { ended })
        }
    }
}

fn how_ended(trained: &Trained) -> Ended {
    match trained.training.ended {
        RunEnd::Complete | RunEnd::StoppedEarly => Ended::Done,
        RunEnd::Drained => Ended::Drained,
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
        "stopped after {rows} without a checkpoint of them; their model is saved at {folder}, and --resume continues from an earlier \
         checkpoint or starts again from row 0"
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
