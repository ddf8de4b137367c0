//! The last checkpoint of a run that is drained: what the report says of it.

use forebay_actors::{Fault, FaultKind, counted};
use serde::Serialize;

use crate::checkpoint::CheckpointManifest;

/// The checkpoint that a run was drained to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainedTo {
    /// Its number.
    pub checkpoint: u64,
    /// Its folder.
    pub folder: String,
    /// The rows of the run that the checkpoint has: a row counts once in each epoch.
    pub rows: u64,
    /// The part of `rows` that was trained on since the run was started or resumed.
    pub rows_of_this_part: u64,
}

/// The last checkpoint of a run that is drained.
pub(crate) struct LastOfDrained {
    pub(crate) manifest: CheckpointManifest,
    pub(crate) folder: String,
    /// Rows trained on before the run was started or resumed.
    pub(crate) rows_before: u64,
}

impl LastOfDrained {
    /// The fault that the run ends with.
    pub(crate) fn fault(&self) -> Fault {
        let (number, rows, folder) = (self.manifest.number, counted(self.manifest.rows_trained(), "row"), &self.folder);
        let said = format!("stopped after {rows}; checkpoint {number} in {folder} has them: --resume goes on");
        Fault::external(said).kind(FaultKind::Drained)
    }

    pub(crate) fn drained_to(&self) -> DrainedTo {
        let rows = self.manifest.rows_trained();
        DrainedTo {
            checkpoint: self.manifest.number,
            folder: self.folder.clone(),
            rows,
            rows_of_this_part: rows.saturating_sub(self.rows_before),
        }
    }
}
