//! Whether a process trains alone or as a member of a cluster, and what the stages do differently as a member.

use std::sync::Arc;

use forebay_actors::Fault;

use crate::dense::DenseStore;
use crate::flow::{BatchId, TrainBatch};

/// How the stages of one process take part in training.
#[derive(Clone, Default)]
pub(crate) enum Participation {
    /// All rows, tables and dense parameters are in this process.
    #[default]
    Alone,
    /// A trainer of a cluster. Each batch id is applied once.
    Member(Arc<Membership>),
}

/// What a trainer shares with the other processes of its run.
pub(crate) struct Membership {
    /// Records which batches are done.
    pub(crate) batches: Arc<dyn BatchRecord>,
    /// The dense parameters on the ps processes. `None`: they are in the trainer's own model.
    pub(crate) dense: Option<Arc<dyn DenseStore>>,
    /// The number of trainers that take each step together. `None`: each trainer takes its steps by itself.
    pub(crate) round: Option<u32>,
    /// Steps taken before this trainer started, and the trainers whose steps count as much as its own.
    pub(crate) steps: (u64, u64),
}

/// Records which batches of a trainer are done.
pub(crate) trait BatchRecord: Send + Sync {
    /// Called before a batch is looked up.
    fn batch_started(&self, batch: &TrainBatch);

    /// Called when the gradients of a batch are applied. A second call for the same batch has no effect.
    fn batch_done(&self, id: BatchId);
}

impl Participation {
    fn membership(&self) -> Option<&Membership> {
        match self {
            Self::Alone => None,
            Self::Member(membership) => Some(membership),
        }
    }

    /// Records a batch before its look-up. Returns whether the batch ends here: it has no rows, and no round of several
    /// trainers waits for it.
    pub(crate) fn ends_at_start(&self, batch: &TrainBatch) -> bool {
        let Some(membership) = self.membership() else { return false };
        membership.batches.batch_started(batch);
        batch.labels.is_empty() && membership.round.is_none()
    }

    /// Records that the gradients of a batch are applied.
    pub(crate) fn batch_done(&self, id: BatchId) {
        if let Some(membership) = self.membership() {
            membership.batches.batch_done(id);
        }
    }

    /// The current dense parameters, `[P]`. `None`: they are in the trainer's own model. Cancel safe.
    pub(crate) async fn pull_dense(&self) -> Result<Option<Arc<Vec<f32>>>, Fault> {
        match self.dense() {
            Some(dense) => dense.pull().await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn dense(&self) -> Option<&Arc<dyn DenseStore>> {
        self.membership()?.dense.as_ref()
    }

    pub(crate) fn round(&self) -> Option<u32> {
        self.membership()?.round
    }

    /// Steps taken before this trainer started, and by how much each of its own steps raises that number.
    pub(crate) fn steps(&self) -> (u64, u64) {
        self.membership().map_or((0, 1), |membership| membership.steps)
    }
}
