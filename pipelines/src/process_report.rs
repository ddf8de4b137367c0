//! The meters of one process, with its name.

use forebay_actors::Report;
use serde::{Deserialize, Serialize};

/// The meters of one process of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its role and rank, for instance `reader 1`.
    pub process: String,
    /// Its meters. A ps process has services only.
    #[serde(flatten)]
    pub report: Report,
}
