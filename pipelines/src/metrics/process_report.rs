//! The meters of one process, with its name.

use forebay_actors::{Report, StageReport};
use serde::{Deserialize, Serialize};

/// Stands for the process that a trainer waited for, if the batch is from a lease that another reader held before.
pub(crate) const LOST_READERS: &str = "lost readers";

/// The meters of one process of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its role and rank, for instance `reader 1`.
    pub process: String,
    /// Its meters. A ps process has services only.
    #[serde(flatten)]
    pub report: Report,
}

impl ProcessReport {
    /// The stage of this name, if the process has it.
    pub(crate) fn stage(&self, name: &str) -> Option<&StageReport> {
        self.report.stage(name)
    }
}
