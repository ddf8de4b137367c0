//! The checkpoint that a run continues from, and the damaged checkpoints that it passes over.

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// The checkpoint that the attempts of a run continue from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OriginCheckpoint {
    pub(crate) number: u64,
    /// Whether it is in the folder `checkpoint.from`, and not in `checkpoint.to`.
    pub(crate) elsewhere: bool,
}

impl OriginCheckpoint {
    /// A checkpoint in `checkpoint.to`.
    pub(crate) fn own(number: u64) -> Self {
        Self { number, elsewhere: false }
    }
}

/// Checkpoints that turned out to be damaged when they were read: an older one is used instead.
#[derive(Clone, Debug, Default)]
pub(crate) struct DamagedCheckpoints(Vec<(OriginCheckpoint, Fault)>);

impl DamagedCheckpoints {
    /// Adds one, and logs why it is not used.
    pub(crate) fn add(&mut self, checkpoint: OriginCheckpoint, fault: Fault) {
        not_used(checkpoint.number, &fault);
        self.0.push((checkpoint, fault));
    }

    pub(crate) fn has(&self, checkpoint: OriginCheckpoint) -> bool {
        self.0.iter().any(|(damaged, _)| *damaged == checkpoint)
    }

    /// Why the first one is not used.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.0.first().map(|(_, fault)| fault.clone())
    }

    /// The damaged checkpoints of `checkpoint.to` (of `checkpoint.from` if `elsewhere`), as checkpoints of one folder.
    pub(super) fn of_folder(&self, elsewhere: bool) -> Self {
        let of_it = self.0.iter().filter(|(damaged, _)| damaged.elsewhere == elsewhere);
        Self(of_it.map(|(damaged, fault)| (OriginCheckpoint::own(damaged.number), fault.clone())).collect())
    }
}

/// Logs that a damaged checkpoint is passed over.
pub(super) fn not_used(number: u64, fault: &Fault) {
    tracing::warn!("checkpoint {number} is not used: {fault}");
}
