//! `push`: sends the row gradients to the shards, and the dense gradients to the ps processes that hold the dense parameters.
//!
//! When all are applied, the batch is done and its ticket is freed. If the shards are behind a network, replicas of the stage
//! keep several batches in flight.
//!
//! A trainer in step with others lets the next look-up follow its push before the answer: see `order/step_order.rs`.
//!
//! With exact staleness the stage only keeps the gradients, and the look-up pushes them when they are due. A batch is done when its
//! gradients are kept: every checkpoint has the kept gradients, and the run does not end before they are applied.

use std::sync::Arc;

use forebay_actors::{BarrierNumber, Fault, Sink, StageCx, counted};
use forebay_batches::GradBatch;
use forebay_ps::TableClient;

use super::apply::Apply;
use super::participation::Participation;
use crate::order::exact_order::ExactOrder;
use crate::order::look_ahead::LookAhead;
use crate::order::step_order::StepOrder;

/// The `push` sink.
#[derive(Clone)]
pub struct Push {
    apply: Apply,
    exact: Option<Arc<ExactOrder>>,
    step_order: Option<Arc<StepOrder>>,
    look_ahead: Option<Arc<LookAhead>>,
}

impl Push {
    /// Pushes to `table`.
    pub fn new(table: &TableClient) -> Self {
        let apply = Apply { table: table.clone(), participation: Participation::default() };
        Self { apply, exact: None, step_order: None, look_ahead: None }
    }

    /// Sets whether this process trains alone or as a member of a run.
    pub(crate) fn participation(mut self, participation: Participation) -> Self {
        self.apply.participation = participation;
        self
    }

    /// Sets the order of look-ups and pushes.
    pub(crate) fn in_order(self, exact: Option<Arc<ExactOrder>>) -> Self {
        Self { exact, ..self }
    }

    /// Lets the next look-up follow right behind the push, if the trainer is in step with others.
    pub(crate) fn in_step(self, step_order: Option<Arc<StepOrder>>) -> Self {
        Self { step_order, ..self }
    }

    /// Applies the gradients to the row cache and pushes them, if `look_ahead` is given.
    pub(crate) fn ahead(self, look_ahead: Option<Arc<LookAhead>>) -> Self {
        Self { look_ahead, ..self }
    }
}

impl Sink for Push {
    type In = GradBatch;

    fn describe(&self) -> String {
        counted(self.apply.table.shards(), "shard")
    }

    async fn write(&mut self, mut batch: GradBatch, cx: &StageCx) -> Result<(), Fault> {
        let (id, rows, step) = (batch.id, batch.samples as u64, batch.step);
        let participation = &self.apply.participation;
        if let Some(exact) = &self.exact {
            exact.computed(batch);
            participation.batch_done(id, rows, step);
            participation.leave_gate();
            return Ok(());
        }
        if let Some(look_ahead) = &self.look_ahead {
            cx.meter().waiting_on("shards", look_ahead.push(&batch)).await?;
            participation.batch_done(id, rows, step);
            participation.leave_gate();
            return Ok(());
        }
        let dense = batch.dense_grads.take();
        let push = async {
            let applied = self.apply.begin_push(&batch, id.push_id(), dense).await?;
            if let Some(step_order) = &self.step_order {
                step_order.pushed(step);
            }
            applied.await
        };
        cx.meter().waiting_on("shards", push).await?;
        if let Some(step_order) = &self.step_order {
            step_order.applied();
        }
        participation.batch_done(id, rows, step);
        participation.leave_gate();
        drop(batch.ticket);
        Ok(())
    }

    async fn on_barrier(&mut self, barrier: BarrierNumber, _cx: &StageCx) -> Result<(), Fault> {
        if let Some(cut_point) = self.apply.participation.cut_point() {
            let kept = self.exact.as_ref().map(|exact| exact.kept());
            cut_point.cut(barrier, kept.unwrap_or_default()).await;
        }
        if let Some(exact) = &self.exact {
            exact.barrier_ends();
        }
        Ok(())
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        while let Some(due) = self.exact.as_ref().and_then(|exact| exact.next_of_the_rest()) {
            cx.meter().waiting_on("shards", self.apply.push_due(due)).await?;
        }
        Ok(())
    }
}
