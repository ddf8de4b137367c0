//! `refresh`: pulls the dense parameters for batches that a reader has looked up.

use std::sync::Arc;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_batches::ReadyBatch;

use super::participation::Participation;
use crate::dense_model::dense_store::DenseStore;

/// The `refresh` stage.
pub(crate) struct Refresh {
    dense: Arc<dyn DenseStore>,
    participation: Participation,
}

impl Refresh {
    /// Pulls from `dense`.
    pub(crate) fn new(dense: Arc<dyn DenseStore>, participation: Participation) -> Self {
        Self { dense, participation }
    }
}

impl Stage for Refresh {
    type In = ReadyBatch;
    type Out = ReadyBatch;

    fn describe(&self) -> String {
        "dense parameters".into()
    }

    async fn on_batch(
        &mut self,
        mut batch: ReadyBatch,
        cx: &StageCx,
        out: &mut Outbox<ReadyBatch>,
    ) -> Result<(), Fault> {
        cx.meter().blocked_on("checkpoint", self.participation.enter_gate(cx.arrival())).await;
        batch.dense = Some(cx.meter().waiting_on("shards", self.dense.pull(None)).await?);
        out.send(batch).await
    }
}
