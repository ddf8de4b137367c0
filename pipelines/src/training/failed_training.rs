//! A training run that failed, or was drained to a checkpoint.

use std::error::Error;
use std::fmt;

use forebay_actors::{Fault, FaultKind, Report, Verdict};
use forebay_job::Job;

use super::drained::DrainedTraining;
use super::run_report::RunReport;
use crate::cluster::ProcessTimeline;
use crate::metrics::progress::Snapshot;

/// A run that failed. As an error, it is its [`fault`](Self::fault): `running.wait()?` in a function that returns a [`Fault`] takes that.
#[derive(Debug)]
pub struct FailedTraining {
    /// The root cause.
    pub fault: Fault,
    /// The report at the time of the fault. In a cluster, the meters of other processes are the last that were known.
    pub report: RunReport,
    /// The timeline of this process.
    pub timeline: ProcessTimeline,
    /// The job.
    pub job: Job,
    /// Rows, steps, running logloss and AUC at the time of the fault.
    pub progress: Snapshot,
    /// What the report says, if the run was drained to a checkpoint, and `RunningTraining::report_if_drained` asked for it.
    pub drained: Option<DrainedTraining>,
}

impl fmt::Display for FailedTraining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fault, f)
    }
}

impl Error for FailedTraining {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.fault.source()
    }
}

impl From<Box<FailedTraining>> for Fault {
    fn from(failed: Box<FailedTraining>) -> Self {
        failed.fault
    }
}

/// The verdict of a run that ended with this fault: the verdict of its pipeline, unless the fault came after the end of the pipeline. A run
/// that was drained to a checkpoint has not failed.
pub(crate) fn stopped(fault: &Fault, report: &Report) -> Verdict {
    match &report.verdict {
        _ if fault.kind == FaultKind::Drained => Verdict::Drained,
        Verdict::Finished | Verdict::Drained => Verdict::failed(fault),
        verdict => verdict.clone(),
    }
}
