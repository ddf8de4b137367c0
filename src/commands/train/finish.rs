//! Saves and evaluates the model of a training.

use std::fmt::Display;
use std::time::Instant;

use serde_json::json;

use super::super::save::Saving;
use super::super::summary::{SavedFolder, Summary, of_slots};
use super::at_end::AtEnd;
use crate::actors::{FaultKind, commas, counted, size};
use crate::connectors::convert::block_on;
use crate::logs::Logs;
use crate::pipelines::cluster::ClusterSession;
use crate::pipelines::{Evaluation, RunEnd, Trained};
use crate::ps::GroupStats;
use crate::report::History;
use crate::scoring_progress::ScoringProgress;
use crate::stop::Stop;
use crate::{Fault, out};

/// Saves, then reports, then evaluates: a later failure cannot lose the model. The inner result is for report and evaluation, and a fault
/// if the model of the best evaluation was not saved: it must not cause another training.
///
/// # Errors
/// The model could not be saved, the run begins a new attempt, or the job saves no model and what follows failed.
pub(super) fn finish(
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
                evaluation.detail_lines().iter().for_each(out::print_or_drop);
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
