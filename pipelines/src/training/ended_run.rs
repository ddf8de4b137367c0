//! The end of a training run: what it left, or why it failed.

use std::sync::Mutex;

use forebay_actors::{Fault, FaultKind, LedgerReport, Outcome, Report, Results, Track, left_out_lines};
use forebay_job::RunEnd;
use forebay_models::NamedTensor;

use super::early_leave::EarlyLeave;
use super::failed_training::{FailedTraining, stopped};
use super::resources::Resources;
use super::{RunningTraining, Trained};
use crate::checkpointer::checkpoint_thread::{Checkpointer, EndedCheckpoints, NewestCheckpoint};
use crate::cluster::ClusterSession;
use crate::cluster::meters::{LastMeters, MeterSender};
use crate::metrics::slots_seen::SlotsSeen;
use crate::metrics::training_summary::TrainingSummary;
use crate::model::Model;
use crate::stages::OptimizerState;

/// The dense parameters, and the state of their optimizer if the job saves it.
type DenseResult = (Vec<NamedTensor>, Option<Vec<NamedTensor>>);

/// A run whose pipeline has ended.
struct EndedRun {
    resources: Resources,
    report: Report,
    results: Results,
    timeline: Vec<Track>,
    meters: LastMeters,
    slots: Option<SlotsSeen>,
    training: TrainingSummary,
    checkpoints: EndedCheckpoints,
}

impl RunningTraining {
    /// Blocks until the run is over; inside a runtime, call it in `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    /// The run failed: the first fault, with the report up to it. A run with checkpoints that was [drained](Self::drain) ends with a fault
    /// of the kind [`FaultKind::Drained`](forebay_actors::FaultKind::Drained). A run in which no row was trained on is a user fault.
    pub fn wait(self) -> Result<Trained, Box<FailedTraining>> {
        let Self { running, mut resources, checkpointer, evaluator, cuts, meters, tuning, reports_drained } = self;
        let control = running.control();
        let outcome = running.wait();
        drop(tuning);
        if let Some(evaluator) = evaluator {
            evaluator.end();
        }
        let checkpoints = checkpointer.map(Checkpointer::end).unwrap_or_default();
        let has_failed = matches!(&outcome.result, Err(fault) if fault.kind != FaultKind::Drained);
        if let Some(NewestCheckpoint { number, .. }) = checkpoints.newest
            && (has_failed || checkpoints.unwritten.is_some())
        {
            tracing::info!("checkpoint {number} has what was trained on up to it");
        }
        if outcome.result.is_ok()
            && let Some(early) = EarlyLeave::of(&mut resources)
        {
            // Until this trainer has left, it stops for cuts like the others.
            return Err(early.leave(resources, outcome, &control, meters));
        }
        let Outcome { result, report, results, .. } = outcome;
        let dense = results.take("train");
        let optimizer = results.take("train").map(|OptimizerState(state)| state);
        // The model also needs the batches that other trainers and readers still hold.
        let others = || resources.session.as_ref().map_or(Ok(()), ClusterSession::wait_until_finished);
        let ended = result.and_then(|()| others());
        drop(cuts);
        let result = ended.and_then(|()| match dense {
            Some(dense) => resources.participation.latest(dense, optimizer, resources.job.output.state),
            None => Err(Fault::internal("the train stage left no parameters")),
        });
        // Taken after the last meters of the others have come.
        let timeline = control.timeline();
        let own_slots = resources.progress.slots();
        let meters = last_meters(meters, result.as_ref().err(), &report, &timeline, own_slots.as_ref());
        let slots = own_slots.filter(|own| adds_others(own, &meters, resources.job.placement.trainers));
        let training = resources.summary();
        let ended = EndedRun { resources, report, results, timeline, meters, slots, training, checkpoints };
        match result.and_then(|dense| ended.check().map(|()| dense)) {
            Ok(dense) => Ok(ended.trained(dense)),
            Err(fault) => Err(ended.failed(fault, reports_drained)),
        }
    }
}

/// The last meters of the other processes, after a run that ended with this fault, or without one.
fn last_meters(
    meters: Option<MeterSender>,
    fault: Option<&Fault>,
    report: &Report,
    timeline: &[Track],
    slots: Option<&SlotsSeen>,
) -> LastMeters {
    match (meters, fault) {
        (Some(meters), None) => meters.finish(report.clone(), timeline, slots.map(SlotsSeen::sent)),
        (Some(meters), Some(fault)) if fault.kind == FaultKind::Drained => meters.known(report.clone()),
        // The other processes may be lost, so none is asked.
        (Some(meters), Some(_)) => LastMeters { others: meters.others(), ..LastMeters::default() },
        (None, _) => LastMeters::default(),
    }
}

/// Adds the counts of the other trainers to the counts of this one. Returns false if they did not come.
fn adds_others(own: &SlotsSeen, meters: &LastMeters, trainers: usize) -> bool {
    if trainers <= 1 {
        return true;
    }
    let others = meters.slots.as_ref();
    others.into_iter().flatten().for_each(|other| own.merge(other));
    others.is_some()
}

impl EndedRun {
    /// Checks a run without a fault, and warns of what is suspicious in its rows.
    ///
    /// # Errors
    /// No row was trained on, or the run was drained to a checkpoint.
    fn check(&self) -> Result<(), Fault> {
        let Self { resources, training, .. } = self;
        let columns = &resources.job.columns;
        resources.progress.labels().warn(&columns.label);
        resources.progress.warn_of_weights(columns.weight.as_deref());
        if let Some(slots) = &self.slots {
            slots.warn_of_empty(columns);
        }
        resources.warn_of_passes(training);
        match &self.checkpoints.drained {
            _ if training.rows == 0 && training.ended == RunEnd::Complete => {
                Err(nothing_trained_on(&self.report.ledger, resources.session.is_some()))
            }
            // The last checkpoint was written after all.
            Some(last) if training.ended == RunEnd::Drained => Err(last.fault()),
            _ => Ok(()),
        }
    }

    /// The model, and what the run has to say about it.
    fn trained(self, (dense, optimizer): DenseResult) -> Trained {
        let Self { resources, report, results, timeline, meters, slots, training, checkpoints } = self;
        Trained {
            training: training.clone(),
            report: resources.run_report(report, meters.others),
            timeline: meters.offset.corrected_tracks(timeline),
            results,
            slots,
            progress: resources.progress.snapshot(),
            staleness_observed: resources.staleness.observed(),
            look_ahead: resources.look_ahead.as_ref().map(|look_ahead| look_ahead.report()),
            unwritten_checkpoint: checkpoints.unwritten.filter(|_| training.ended == RunEnd::Drained),
            evaluations: resources.evaluations,
            job_digest: resources.digest,
            last_checkpoint: Mutex::new(checkpoints.last),
            session: resources.session,
            model: Model {
                job: resources.job,
                dense,
                optimizer,
                table: resources.table,
                training: Some(training),
                approximates: None,
                model: resources.model,
                host: resources.host,
                context: resources.context,
            },
        }
    }

    /// The end with a fault, which the other processes then learn, too.
    fn failed(self, mut fault: Fault, reports_drained: bool) -> Box<FailedTraining> {
        let Self { resources, report, timeline, meters: LastMeters { others, offset, .. }, checkpoints, .. } = self;
        // Done before the others learn that the run has ended, because the ps are asked about their tables.
        let drained = fault.kind == FaultKind::Drained && resources.job.checkpoint.to.is_some();
        let drained = (drained && reports_drained).then(|| {
            let meters = LastMeters { others: others.clone(), offset, slots: None };
            resources.drained(report.clone(), timeline.clone(), meters, checkpoints.drained.as_ref())
        });
        if let Some(session) = &resources.session {
            fault = session.fail(fault);
        }
        let verdict = stopped(&fault, &report);
        let report = resources.run_report(Report { verdict, ..report }, others);
        let timeline = resources.timeline(offset.corrected_tracks(timeline));
        let (progress, job) = (resources.progress.snapshot(), resources.job);
        Box::new(FailedTraining { timeline, progress, job, fault, report, drained })
    }
}

/// The fault of a complete run that trained on no row. `apart`: other processes read and left out rows, and `ledger` lacks their counts.
fn nothing_trained_on(ledger: &LedgerReport, apart: bool) -> Fault {
    let left_out = left_out_lines(&ledger.rejected).collect::<Vec<_>>().join("; ");
    let (why, kind) = match (left_out.is_empty(), apart) {
        (true, false) => (
            "because the source read none: look at data.train, or at the program's own source".into(),
            FaultKind::NotFound,
        ),
        (true, true) => {
            ("because all rows were left out: the ledger of each reader says why".into(), FaultKind::BadData)
        }
        (false, _) => (format!("because all rows were left out ({left_out})"), FaultKind::BadData),
    };
    Fault::user(format!("no row was trained on, {why}; no model is saved, and an older one stays")).kind(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: all rows were said to be left out of a source that had none.
    #[test]
    fn a_run_without_rows_says_whether_there_were_none_or_why_they_were_left_out() {
        let fault = nothing_trained_on(&LedgerReport::default(), false);
        assert_eq!(fault.kind, FaultKind::NotFound);
        assert!(fault.to_string().contains("the source read none"), "{fault}");
        let rejected = [("bad label".to_owned(), 7)].into();
        let fault = nothing_trained_on(&LedgerReport { read: 7, rejected, ..LedgerReport::default() }, false);
        assert_eq!(fault.kind, FaultKind::BadData);
        assert!(fault.to_string().contains("all rows were left out (left out 7 rows: bad label);"), "{fault}");
    }
}
