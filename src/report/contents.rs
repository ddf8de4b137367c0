//! The report of a run as JSON: the report of its meters, and the other results that `forebay train` prints as text.

use serde_json::{Value, json};

use super::History;
use crate::Job;
use crate::pipelines::{DrainedTraining, FailedTraining, RunReport, RunningTraining};
use crate::ps::GroupStats;
use crate::usage::Usage;

/// The version of `report.json`. It grows with every change that makes programs misread it.
const VERSION: u32 = 1;

/// The JSON of `report` and `job`, with `more` fields, each an object.
pub(crate) fn contents<const N: usize>(report: &RunReport, job: &Job, more: [Value; N]) -> Value {
    let mut file = json!(report);
    file["version"] = json!(VERSION);
    file["settings"] = json!(job);
    let (kind, rows) = (job.model.kind, &job.data.train);
    file["job"] = json!(rows.as_ref().map_or_else(|| kind.to_string(), |rows| format!("{kind} on {rows}")));
    file["sentence"] = json!(report.analysis.to_string());
    more.into_iter().for_each(|fields| add_fields(&mut file, fields));
    file
}

/// Adds the fields of an object to another.
pub(crate) fn add_fields(to: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { unreachable!("made as an object") };
    fields.into_iter().for_each(|(name, value)| to[name] = value);
}

/// The JSON of a run that goes on.
pub(crate) fn running_contents(running: &RunningTraining, before: Option<Usage>, history: &History) -> Value {
    let position = running.position();
    let left = position.share.and_then(|share| history.left(share));
    let more = json!({
        "progress": running.progress(),
        "position": position,
        "seconds_left": left.map(|left| left.as_secs_f64()),
        "run": running.status(),
        "checkpoint": running.newest_checkpoint(),
        "staleness_observed": running.staleness_observed(),
        "staleness_now": running.staleness_now(),
        "look_ahead": running.look_ahead(),
        "history": history,
        "evaluations": running.evaluations(),
    });
    let report = running.run_report();
    contents(&report, running.job(), [more, Usage::of_run(before, report.other_machines())])
}

/// The JSON of a run that was drained to a checkpoint.
pub(crate) fn drained_contents(drained: &DrainedTraining, before: Option<Usage>, history: Option<&History>) -> Value {
    let more = json!({
        "progress": drained.progress,
        "training": drained.training,
        "drained_to": drained.drained_to,
        "run": drained.status,
        "staleness_observed": drained.staleness_observed,
        "look_ahead": drained.look_ahead,
        "tables": drained.tables.iter().map(of_table).collect::<Vec<_>>(),
        "slots": drained.slots,
        "saved": null,
        "history": history,
        "evaluations": drained.evaluations,
        "evaluation": null,
    });
    let report = &drained.report;
    contents(report, &drained.job, [more, Usage::of_run(before, report.other_machines())])
}

/// The JSON of a run that failed.
pub(crate) fn failed_contents(failed: &FailedTraining, before: Option<Usage>, history: Option<&History>) -> Value {
    let more = json!({ "progress": failed.progress, "saved": null, "history": history, "evaluation": null });
    let report = &failed.report;
    contents(report, &failed.job, [more, Usage::of_run(before, report.other_machines())])
}

/// The counts of the keys of a table.
pub(crate) fn of_table(group: &GroupStats) -> Value {
    let mut table = json!(group);
    table["hit_share"] = json!(group.hit_share());
    table
}
