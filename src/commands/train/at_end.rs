//! What the end of a training writes and shows.

use serde_json::Value;

use super::super::summary::Summary;
use crate::Fault;
use crate::dashboard::Dashboard;
use crate::metrics::RunMetrics;
use crate::pipelines::cluster::ProcessTimeline;
use crate::pipelines::{DrainedTraining, Evaluation, FailedTraining};
use crate::report::{History, ReportFiles, drained_contents, failed_contents};
use crate::tensorboard::TensorBoard;
use crate::usage::Usage;

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
    pub(super) fn show(
        &self,
        of: &Summary<'_>,
        history: Option<&History>,
        evaluated: Option<(&str, &Evaluation)>,
        is_last: bool,
    ) {
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
    pub(super) fn write_drained(&self, drained: &DrainedTraining, before: Option<Usage>, history: Option<&History>) {
        if let Err(fault) = self.write_own(&drained_contents(drained, before, history), &drained.timeline) {
            tracing::warn!("the run has its checkpoint, but no whole report: {fault}");
        }
    }

    /// Writes the report of a run that failed, in place of the report of an older run. If the report cannot be written, the fault of the
    /// run counts.
    pub(super) fn write_failed(&self, failed: &FailedTraining, before: Option<Usage>, history: Option<&History>) {
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
    pub(super) fn write(&self, of: &Summary<'_>, history: Option<&History>) -> Result<(), Fault> {
        self.report.write(&of.file(history, None))?;
        self.report.write_trace(&of.timelines)
    }
}
