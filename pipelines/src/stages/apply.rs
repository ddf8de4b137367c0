//! Applies the gradients of a batch: row gradients at the shards, dense gradients at the ps processes that hold the dense
//! parameters. The `push` stage does so, and with exact staleness the `lookup` stage, too.

use forebay_actors::{Fault, Phase, StageCx};
use forebay_batches::GradBatch;
use forebay_ps::{PushId, Round, TableClient};

use crate::exact_order::{Due, ExactOrder};
use crate::participation::Participation;

/// Pushes gradients as this process takes part in the run.
#[derive(Clone)]
pub(super) struct Apply {
    pub(super) table: TableClient,
    pub(super) participation: Participation,
}

impl Apply {
    /// Applies the gradients of `batch`, and `dense` if the dense parameters are in the ps. A member's push is applied once for
    /// each `id`. The push of a round that can never be complete is given up: none of its batches counts.
    pub(super) async fn push(&self, batch: &GradBatch, id: PushId, dense: Option<Vec<f32>>) -> Result<(), Fault> {
        let GradBatch { step, unique, row_grads, .. } = batch;
        if self.participation.is_alone() {
            return self.table.push(unique, row_grads, *step).await;
        }
        let rows = batch.samples as u64;
        let sparse = async {
            match self.participation.round() {
                Some(trainers) => {
                    let round = Round { trainers, rows };
                    self.table.push_round(id, round, unique, row_grads, *step).await
                }
                None => self.table.push_once(id, unique, row_grads, *step).await,
            }
            .map(drop)
        };
        let dense = async {
            match (self.participation.dense(), dense) {
                (Some(store), Some(grads)) => store.push(id, *step, rows, grads).await,
                _ => Ok(()),
            }
        };
        let Some(rounds) = self.participation.rounds_end() else {
            return futures::future::try_join(sparse, dense).await.map(drop);
        };
        if rounds.is_over() {
            return Ok(());
        }
        tokio::select! {
            biased;
            pushed = futures::future::try_join(sparse, dense) => pushed.map(drop),
            () = rounds.give_up() => Ok(()),
        }
    }

    /// Applies the gradients that are due in an exact order.
    ///
    /// # Errors
    /// As [`push`](Self::push); the fault names the batch whose gradients they are.
    pub(super) async fn push_due(&self, due: Due) -> Result<(), Fault> {
        let Due { batch, id, acknowledge } = due;
        let pushed = async {
            if let (Some(before), false) = (acknowledge, self.participation.is_alone()) {
                self.table.acknowledge_before(before).await?;
                if let Some(dense) = self.participation.dense() {
                    dense.acknowledge_before(before).await?;
                }
            }
            self.push(&batch, id, batch.dense_grads.clone()).await
        };
        pushed.await.map_err(|fault| fault.at("push", Phase::Batch, Some(&batch.lineage)))
    }

    /// Applies all gradients that must be applied before the next look-up. Waits until they are computed.
    pub(super) async fn push_before_look_up(&self, order: &ExactOrder, cx: &StageCx) -> Result<(), Fault> {
        // Gradients come from downstream, so waiting for them counts as blocked.
        while let Some(due) = cx.meter().blocked_on("ticket", order.next_due()).await {
            cx.meter().waiting_on("shards", self.push_due(due)).await?;
        }
        Ok(())
    }
}
