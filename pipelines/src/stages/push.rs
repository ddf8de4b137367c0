//! `push`: sends the row gradients to the shards, and the dense gradients to the ps processes that hold the dense parameters.
//!
//! When all are applied, the batch is done and its ticket is freed. If the shards are behind a network, replicas of the stage
//! keep several batches in flight.

use forebay_actors::{Epoch, Fault, Sink, StageCx};
use forebay_ps::{Round, TableClient};

use crate::flow::GradBatch;
use crate::participation::Participation;

/// The `push` sink.
#[derive(Clone)]
pub struct Push {
    table: TableClient,
    participation: Participation,
}

impl Push {
    /// Pushes to `table`.
    pub fn new(table: &TableClient) -> Self {
        Self { table: table.clone(), participation: Participation::default() }
    }

    /// Sets whether this process trains alone or as a member of a run.
    pub(crate) fn participation(mut self, participation: Participation) -> Self {
        self.participation = participation;
        self
    }

    async fn push(&self, batch: &mut GradBatch) -> Result<(), Fault> {
        let (id, step, grads) = (batch.id, batch.step, batch.dense_grads.take());
        if self.participation.is_alone() {
            return self.table.push(&batch.unique, &batch.row_grads, batch.step).await;
        }
        let rows = batch.samples as u64;
        let sparse = async {
            let GradBatch { id, step, unique, row_grads, .. } = &*batch;
            match self.participation.round() {
                Some(trainers) => {
                    let round = Round { trainers, rows };
                    self.table.push_round(id.push_id(), round, unique, row_grads, *step).await
                }
                None => self.table.push_once(id.push_id(), unique, row_grads, *step).await,
            }
            .map(drop)
        };
        let dense = async {
            match (self.participation.dense(), grads) {
                (Some(dense), Some(grads)) => dense.push(id, step, rows, grads).await,
                _ => Ok(()),
            }
        };
        futures::future::try_join(sparse, dense).await.map(drop)
    }
}

impl Sink for Push {
    type In = GradBatch;

    fn describe(&self) -> String {
        format!("{} shards", self.table.shards())
    }

    async fn write(&mut self, mut batch: GradBatch, cx: &StageCx) -> Result<(), Fault> {
        cx.meter().waiting_on("shards", self.push(&mut batch)).await?;
        self.participation.batch_done(batch.id, batch.samples as u64, batch.step);
        self.participation.leave_gate();
        drop(batch.ticket);
        Ok(())
    }

    async fn on_barrier(&mut self, epoch: Epoch, _cx: &StageCx) -> Result<(), Fault> {
        if let Some(cut_point) = self.participation.cut_point() {
            cut_point.cut(epoch).await;
        }
        Ok(())
    }
}
