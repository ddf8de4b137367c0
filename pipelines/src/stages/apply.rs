//! Applies the gradients of a batch: row gradients at the shards, dense gradients at the ps processes that hold the dense parameters. The
//! `push` stage uses it, and with exact staleness the `lookup` stage, too.

use std::sync::Arc;

use forebay_actors::{Fault, Phase, StageCx};
use forebay_batches::GradBatch;
use forebay_ps::{PushId, Round, TableClient};
use futures::future::{BoxFuture, ready, try_join};
use futures::{FutureExt, TryFutureExt};

use super::participation::Participation;
use super::rounds_end::RoundsEnd;
use crate::order::exact_order::{Due, ExactOrder};

/// Pushes gradients as this process takes part in the run.
#[derive(Clone)]
pub(super) struct Apply {
    pub(super) table: TableClient,
    pub(super) participation: Participation,
}

/// The push of a round that was handed over.
pub(super) struct RoundPush<'a> {
    pub(super) step: u64,
    /// Waits until the round is applied.
    pub(super) applied: BoxFuture<'a, Result<(), Fault>>,
}

impl Apply {
    /// Applies the gradients of `batch`, and `dense` if the dense parameters are in the ps. A member's push is applied once for each `id`.
    /// A push of a round is only handed over: the future that is returned waits until the round is applied. The push of a round that can
    /// never be complete is given up: none of its batches counts.
    pub(super) async fn begin_push<'a>(
        &'a self,
        batch: &GradBatch,
        id: PushId,
        dense: Option<Vec<f32>>,
    ) -> Result<BoxFuture<'a, Result<(), Fault>>, Fault> {
        let GradBatch { step, unique, row_grads, .. } = batch;
        if self.participation.is_alone() {
            self.table.push(unique, row_grads, *step).await?;
            return Ok(ready(Ok(())).boxed());
        }
        let rows = batch.samples as u64;
        let begin_dense = async {
            match (self.participation.dense(), dense) {
                (Some(store), Some(grads)) => store.begin_push(id, *step, rows, grads).await,
                _ => Ok(ready(Ok(())).boxed()),
            }
        };
        let Some(trainers) = self.participation.round() else {
            let sparse = self.table.push_once(id, unique, row_grads, *step);
            try_join(sparse, async { begin_dense.await?.await }).await?;
            return Ok(ready(Ok(())).boxed());
        };
        let rounds_end = self.participation.rounds_end();
        if rounds_end.is_some_and(RoundsEnd::is_over) {
            return Ok(ready(Ok(())).boxed());
        }
        let begin_sparse = self.table.begin_push_round(id, Round { trainers, rows }, unique, row_grads, *step);
        let (sparse, dense) = try_join(begin_sparse, begin_dense).await?;
        let applied = try_join(sparse, dense).map_ok(drop);
        let Some(rounds_end) = rounds_end else { return Ok(applied.boxed()) };
        Ok(Box::pin(async move {
            tokio::select! {
                biased;
                applied = applied => applied,
                () = rounds_end.give_up() => Ok(()),
            }
        }))
    }

    /// Applies the gradients that are due in an exact order.
    ///
    /// # Errors
    /// The faults of the push; they name the batch of the gradients.
    pub(super) async fn push_due(&self, due: Due) -> Result<(), Fault> {
        self.begin_due(due).await?.await
    }

    /// As [`push_due`](Self::push_due), but a push of a round is only handed over.
    async fn begin_due(&self, due: Due) -> Result<BoxFuture<'_, Result<(), Fault>>, Fault> {
        let Due { batch, id, acknowledge } = due;
        let begun = async {
            if let (Some(before), false) = (acknowledge, self.participation.is_alone()) {
                self.table.acknowledge_before(before).await?;
                if let Some(dense) = self.participation.dense() {
                    dense.acknowledge_before(before).await?;
                }
            }
            self.begin_push(&batch, id, batch.dense_grads.clone()).await
        };
        let at = |fault: Fault, batch: &Arc<GradBatch>| fault.at("push", Phase::Batch, Some(&batch.lineage));
        let applied = begun.await.map_err(|fault| at(fault, &batch))?;
        Ok(applied.map_err(move |fault| at(fault, &batch)).boxed())
    }

    /// Applies all gradients that must be applied before the next look-up. Waits until they are computed. If the last push is one of a
    /// round, it is only handed over, and returned: the look-up follows right behind it.
    pub(super) async fn push_before_look_up(
        &self,
        order: &ExactOrder,
        cx: &StageCx,
    ) -> Result<Option<RoundPush<'_>>, Fault> {
        let mut last: Option<RoundPush<'_>> = None;
        // Gradients come from downstream, so waiting for them counts as blocked.
        while let Some(due) = cx.meter().blocked_on("ticket", order.next_due()).await {
            let step = due.batch.step;
            let push = async {
                if let Some(before) = last.take() {
                    before.applied.await?;
                }
                if self.participation.round().is_none() {
                    return self.push_due(due).await;
                }
                last = Some(RoundPush { step, applied: self.begin_due(due).await? });
                Ok(())
            };
            cx.meter().waiting_on("shards", push).await?;
        }
        Ok(last)
    }
}
