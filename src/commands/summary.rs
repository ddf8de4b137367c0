//! The summary that a training prints at its end, and its report as JSON.

use std::cell::OnceCell;

use crate::actors::{commas, counted};
use crate::connectors::convert::block_on;
use crate::pipelines::cluster::{ProcessTimeline, RunStatus};
use crate::pipelines::job::EvaluationOptions;
use crate::pipelines::{
    AllTrainers, Evaluation, EvaluationHistory, EvaluationPoint, Job, Model, RunEnd, SlotReport, Snapshot, Trained,
    TrainingSummary,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::out;
use crate::report::{History, add_fields, contents, of_table};

/// The summary that a training prints at its end.
pub(crate) struct Summary<'a> {
    pub(crate) trained: &'a Trained,
    /// CPU seconds and memory of the training, read at its end: saving and evaluating do not count.
    pub(crate) usage: Value,
    /// The status of the run, in a cluster.
    pub(crate) status: Option<RunStatus>,
    /// The timelines of the stages of each process, for the trace.
    pub(crate) timelines: Vec<ProcessTimeline>,
    /// The model folder, once it is saved.
    pub(crate) saved: OnceCell<SavedFolder>,
    /// Print one JSON object.
    pub(crate) json: bool,
}

/// A model folder that was written.
#[derive(Debug, Serialize)]
pub(crate) struct SavedFolder {
    /// Seconds that it took.
    pub(crate) seconds: f64,
    /// Bytes of all its files.
    pub(crate) bytes: u64,
}

impl Summary<'_> {
    pub(crate) fn print(&self) {
        let last = &self.trained.progress;
        if self.json {
            return out::print_or_drop(self.to_json());
        }
        out::print_or_drop(&self.trained.report);
        match last.rows {
            // In a short run, the other trainers may have had all rows.
            0 => out::print_or_drop("this process trained on no rows"),
            _ => out::print_or_drop(format_args!(
                "trained on {}, {}, running logloss {:.5}, running AUC {}",
                rows_in_time(last),
                counted(own_steps(last), "step"),
                last.logloss,
                last.auc.map_or("undefined".into(), |auc| format!("{auc:.5}"))
            )),
        }
        let usage = &self.usage;
        if let (Some(cpu), Some(peak)) = (usage["cpu_seconds"].as_f64(), usage["peak_bytes"].as_u64()) {
            let report = &self.trained.report;
            // For a resumed run, these are the rows since it was resumed.
            let (who, rows) = match report.processes.is_empty() {
                true => ("", report.own_rows()),
                false => ("all processes ", report.ledger.delivered),
            };
            out::print_or_drop(format_args!(
                "{who}used {cpu:.1} CPU seconds{}, at most {} MiB of memory",
                per_million(cpu, rows),
                peak >> 20
            ));
        }
        if let Some(ahead) = self.trained.look_ahead {
            out::print_or_drop(format_args!(
                "looked up to {} ahead: pulled {} of {}, and held at most {} of them, {} MiB",
                counted(ahead.batches, "batch"),
                commas(ahead.rows_pulled),
                counted(ahead.keys, "row"),
                commas(ahead.most_rows),
                ahead.bytes >> 20
            ));
        }
        if let Some(RunStatus { counts, windows_done: done, windows_total: of, lost_leases, .. }) = &self.status {
            out::print_or_drop(format_args!(
                "all processes: {} trained on, {} rejected, {}, {done} of {}, {} given out again",
                counted(counts.trained, "row"),
                commas(counts.rejected),
                counted(counts.batches, "batch"),
                counted(*of, "window"),
                counted(*lost_leases, "lease")
            ));
        }
    }

    /// Says which evaluation was the best, and why the training stopped, if it was evaluated while it trained.
    pub(crate) fn print_evaluations(&self) {
        let trained = self.trained;
        let Some(history) = trained.evaluations() else { return };
        if self.json {
            return out::print_or_drop(json!({ "evaluations": history }));
        }
        let EvaluationHistory { metric, points, best, kept, stopped_early } = history;
        let Some(best) = best else { return };
        let saved = match self.saved.get() {
            Some(_) => which_was_saved(best, kept, points.len(), trained.keeps_best()),
            None => String::new(),
        };
        out::print_or_drop(format_args!(
            "the best {metric}{} of {} was that of evaluation {}, {}{saved}",
            of_label(&trained.model.job),
            counted(points.len(), "evaluation"),
            best + 1,
            points[best]
        ));
        let options = &trained.model.job.evaluation;
        if let Some(reductions) = reductions(options, &points, trained.progress.steps) {
            out::print_or_drop(reductions);
        }
        if let (true, Some(patience)) = (stopped_early, options.patience) {
            let by = if options.min_delta > 0.0 { format!(" by {}", options.min_delta) } else { String::new() };
            out::print_or_drop(format_args!(
                "stopped early, after {}: the {metric} did not improve{by} in the last evaluations (evaluation.patience = \
                 {patience})",
                counted(trained.training.rows, "row")
            ));
        }
    }

    fn to_json(&self) -> Value {
        let Trained { report, .. } = self.trained;
        let mut trained = self.counts();
        add_fields(&mut trained, self.usage.clone());
        trained["report"] = json!(report);
        json!({ "trained": trained })
    }

    /// The results in the text besides the report of the run and the CPU seconds.
    fn counts(&self) -> Value {
        let Trained { progress, training, .. } = self.trained;
        json!({ "progress": progress, "training": training, "run": self.status })
    }

    /// The report as it is written to a file: the report of the run, and all that the text says.
    pub(crate) fn file(&self, history: Option<&History>, evaluated: Option<(&str, &Evaluation)>) -> Value {
        let Trained { report, model, staleness_observed, look_ahead, .. } = self.trained;
        let more = json!({
            "staleness_observed": staleness_observed,
            "look_ahead": look_ahead,
            "tables": tables(model),
            "slots": slots(self.trained),
            "saved": self.saved.get(),
            "history": history,
            "evaluations": self.trained.evaluations(),
            "evaluation": evaluated.map(|(path, evaluation)| {
                let text = format!("{path}: {evaluation}{}", evaluation.left_out());
                json!({ "path": path, "evaluation": evaluation, "text": text })
            }),
        });
        contents(report, &model.job, [self.counts(), self.usage.clone(), more])
    }
}

/// A training of fewer steps says how to get more: Adam moves a weight by about its rate in a step, mostly 0.001, so by less than 0.1 in
/// all. In docs/quality.md a pass of 15 steps does not suffice; one of 61 does, with a higher rate.
const FEW_STEPS: u64 = 100;

/// Says how to get more steps, if a training from row 0 had few. `before`: its progress before it was resumed.
pub(crate) fn few_steps(training: &TrainingSummary, before: AllTrainers, job: &Job) -> Option<String> {
    let had_no_predecessor = job.train.from.is_none() && before.rows == 0;
    let (batch_rows, epochs) = (job.train.batch_rows as u64, job.data.epochs as u64);
    (had_no_predecessor && training.ended == RunEnd::Complete && training.steps < FEW_STEPS).then(|| {
        format!(
            "the training had {}, which may be too few: a smaller train.batch_rows ({}) or more data.epochs ({}) gives more",
            counted(training.steps, "step"),
            commas(batch_rows),
            commas(epochs)
        )
    })
}

/// `1,000 rows in 2.0 s`; for a run that continued from a checkpoint, also how many of the rows came in this time.
fn rows_in_time(Snapshot { rows, rows_before, seconds, .. }: &Snapshot) -> String {
    match rows - rows_before {
        own if own == *rows => format!("{} in {seconds:.1} s", counted(own, "row")),
        own => format!("{}, {} of them in the {seconds:.1} s since it was resumed", counted(*rows, "row"), commas(own)),
    }
}

/// The steps over the rows of the snapshot: those of the model at `train.from` were over rows of other runs.
fn own_steps(Snapshot { steps, steps_of_predecessor, .. }: &Snapshot) -> u64 {
    steps.saturating_sub(*steps_of_predecessor)
}

/// The end of the line about the best evaluation: it says which model was saved. `best` and `kept` as in [`EvaluationHistory`];
/// `evaluations` is the number of its points.
fn which_was_saved(best: usize, kept: Option<usize>, evaluations: usize, keeps_best: bool) -> String {
    match kept {
        Some(kept) if kept == best => "; its model was saved".into(),
        Some(kept) => format!("; its model is gone, that of evaluation {} was saved", kept + 1),
        None if keeps_best => "; its model is gone, the model after the last row was saved".into(),
        None if best + 1 == evaluations => String::new(),
        None => "; the last model was saved".into(),
    }
}

/// Says after which evaluations the learning rates were reduced, in a run of this many steps; `None` if they were not.
fn reductions(options: &EvaluationOptions, points: &[EvaluationPoint], steps: u64) -> Option<String> {
    let factor = options.reduce_lr_on_plateau?.factor;
    let reduced = |(at, point): (usize, &EvaluationPoint)| {
        (point.reduced_lr && point.steps < steps).then(|| (at + 1).to_string())
    };
    let after: Vec<String> = points.iter().enumerate().filter_map(reduced).collect();
    let evaluations = if after.len() == 1 { "evaluation" } else { "evaluations" };
    (!after.is_empty()).then(|| {
        format!(
            "the learning rates were multiplied by {factor} after {evaluations} {} (evaluation.reduce_lr_on_plateau)",
            after.join(", ")
        )
    })
}

/// The label of the evaluations' metric, if the model has several.
fn of_label(job: &Job) -> String {
    let names = job.columns.label.names();
    let label = job.evaluation.label.as_ref().or(names.first()).filter(|_| !names.is_empty());
    label.map_or_else(String::new, |label| format!(" of the label `{label}`"))
}

/// CPU seconds per million rows, in words; empty if the run had no rows left to train on, and only saved.
fn per_million(cpu: f64, rows: u64) -> String {
    if rows == 0 { String::new() } else { format!(" ({:.1} per million rows)", cpu / rows as f64 * 1e6) }
}

/// The counts of the keys of each table, over all shards; empty if a shard does not answer.
fn tables(model: &Model) -> Vec<Value> {
    let Ok(stats) = block_on(model.table.stats()) else { return Vec::new() };
    stats.all_groups(model.table.config().row_dim()).iter().map(of_table).collect()
}

/// The counts of each slot; `None` if the counts of a trainer are unknown, or a shard does not answer.
fn slots(trained: &Trained) -> Option<Vec<SlotReport>> {
    trained.slots().ok().flatten()
}

/// The slots with the most keys, and the one that is empty most often, in a line; empty if there is only one slot.
pub(crate) fn of_slots(trained: &Trained) -> String {
    slots(trained).map_or_else(String::new, |slots| line_of(&slots))
}

fn line_of(slots: &[SlotReport]) -> String {
    if slots.len() < 2 {
        return String::new();
    }
    let mut by_keys: Vec<&SlotReport> = slots.iter().collect();
    by_keys.sort_by_key(|slot| std::cmp::Reverse(slot.keys));
    let most = by_keys.iter().take(3).map(|SlotReport { name, keys, estimated, rows, .. }| {
        let about = if *estimated { "about " } else { "" };
        let without = if rows < keys { format!(" ({about}{} have a row)", commas(*rows)) } else { String::new() };
        format!("`{name}` {about}{}{without}", commas(*keys))
    });
    let line = format!("\n  slots with the most keys: {}", most.collect::<Vec<_>>().join(", "));
    let emptiest =
        slots.iter().max_by(|a, b| a.empty_share.total_cmp(&b.empty_share)).filter(|slot| slot.empty_share > 0.0);
    let emptiest = emptiest
        .map(|slot| format!("; most often empty: `{}`, in {:.0}% of the rows", slot.name, 100.0 * slot.empty_share));
    line + &emptiest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{few_steps, line_of, own_steps, per_million, rows_in_time, which_was_saved};
    use crate::pipelines::{AllTrainers, Job, RunEnd, SlotReport, Snapshot, TrainingSummary};

    #[test]
    fn few_steps_are_those_of_a_whole_training_from_row_0() {
        let said = |steps, ended, rows_before, settings: &[&str]| {
            let (types, lists) = Default::default();
            let training = TrainingSummary { rows: 9, steps, epochs: 3, ended, run: None, format: None, types, lists };
            let before = AllTrainers { rows: rows_before, steps: 0 };
            few_steps(&training, before, &Job::with_settings("data.epochs = 3", settings).unwrap())
        };
        let hint = "the training had 99 steps, which may be too few: a smaller train.batch_rows (2,048) or more data.epochs (3) \
                    gives more";
        assert_eq!(said(99, RunEnd::Complete, 0, &[]).as_deref(), Some(hint));
        assert_eq!(said(100, RunEnd::Complete, 0, &[]), None);
        assert_eq!(said(99, RunEnd::Drained, 0, &[]), None);
        assert_eq!(said(99, RunEnd::StoppedEarly, 0, &[]), None);
        assert_eq!(said(99, RunEnd::Complete, 7, &[]), None, "resumed");
        assert_eq!(said(99, RunEnd::Complete, 0, &["train.from=model"]), None);
    }

    /// A bug: the model after the last row was called the model of the best evaluation, which was gone.
    #[test]
    fn a_best_model_that_is_gone_is_not_said_to_be_saved() {
        assert_eq!(which_was_saved(5, Some(5), 10, true), "; its model was saved");
        let gone = "; its model is gone, the model after the last row was saved";
        assert_eq!([5, 9].map(|best| which_was_saved(best, None, 10, true)), [gone; 2]);
        assert_eq!(which_was_saved(5, Some(7), 10, true), "; its model is gone, that of evaluation 8 was saved");
        assert_eq!([5, 9].map(|best| which_was_saved(best, None, 10, false)), ["; the last model was saved", ""]);
    }

    #[test]
    fn the_line_of_slots_names_the_largest_ones_and_the_emptiest() {
        let slot = |name: &str, keys, rows, empty_share| SlotReport {
            name: name.into(),
            table: "embedding".into(),
            values: 10,
            mean_values: 1.0,
            empty_share,
            keys,
            estimated: keys > 1000,
            rows,
        };
        let slots =
            [slot("a", 7, 7, 0.0), slot("b", 4096, 2048, 0.25), slot("c", 900, 900, 0.0), slot("d", 30, 3, 0.0)];
        let said = "\n  slots with the most keys: `b` about 4,096 (about 2,048 have a row), `c` 900, `d` 30 (3 have a row); \
                    most often empty: `b`, in 25% of the rows";
        assert_eq!(line_of(&slots), said);
        assert_eq!(line_of(&slots[..1]), "");
    }

    /// A bug: all rows of a resumed run were said to have been trained on in the time of its last part.
    #[test]
    fn the_time_of_a_resumed_run_is_that_of_its_own_rows() {
        let of = |rows_before| Snapshot {
            seconds: 2.04,
            steps: 9,
            steps_of_predecessor: 0,
            rows: 1_200,
            rows_before,
            logloss: 0.5,
            auc: None,
            device_seconds: 0.0,
        };
        assert_eq!(rows_in_time(&of(0)), "1,200 rows in 2.0 s");
        assert_eq!(rows_in_time(&of(1_000)), "1,200 rows, 200 of them in the 2.0 s since it was resumed");
    }

    /// A bug: the steps of all days were said to be those of the last day's rows.
    #[test]
    fn the_steps_of_a_run_are_those_over_its_rows() {
        let of = |steps_of_predecessor| Snapshot {
            seconds: 2.04,
            steps: 29,
            steps_of_predecessor,
            rows: 1_200,
            rows_before: 0,
            logloss: 0.5,
            auc: None,
            device_seconds: 0.0,
        };
        assert_eq!((own_steps(&of(0)), own_steps(&of(20))), (29, 9));
    }

    #[test]
    fn a_run_that_only_saved_has_no_cpu_seconds_per_million_rows() {
        assert_eq!(per_million(0.19, 0), "");
        assert_eq!(per_million(2.0, 400_000), " (5.0 per million rows)");
    }
}
