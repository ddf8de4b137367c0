//! `lookup`: takes a ticket for a batch, asks every shard for its rows at once, and puts them in the order of the batch's keys.
//!
//! Tickets bound how far look-ups run ahead of pushes. If the shards are behind a network, replicas of the stage keep one batch
//! in flight for each ticket. With exact staleness the stage also pushes, so that look-ups and pushes are in one order: see
//! `exact_order.rs`.

use std::sync::Arc;

use forebay_actors::{BarrierNumber, Fault, Outbox, Stage, StageCx, counted};
use forebay_batches::{ReadyBatch, Staleness, Ticket, TrainBatch};
use forebay_ps::TableClient;

use super::apply::Apply;
use crate::evaluations::Evaluations;
use crate::exact_order::ExactOrder;
use crate::look_ahead::LookAhead;
use crate::participation::{Participation, Start};

/// The reason in the ledger of rows that a resumed run reads again.
pub(crate) const TRAINED_BEFORE: &str = "trained on before the run was resumed";

/// The reason in the ledger of rows that were read and not trained on, because the metric of evaluations did not improve.
const STOPPED_EARLY: &str = "read after the training had stopped early";

/// The `lookup` stage.
#[derive(Clone)]
pub struct Lookup {
    apply: Apply,
    /// `None`: the stage only reads, and rows that do not exist read as zeros.
    staleness: Option<Staleness>,
    exact: Option<Arc<ExactOrder>>,
    /// Set if rows are asked for ahead: then `staleness` is that of its tickets.
    look_ahead: Option<Arc<LookAhead>>,
    /// Set if the model is evaluated while it is trained.
    evaluations: Option<Arc<Evaluations>>,
}

impl Lookup {
    /// For training: the stage creates rows that do not exist, and takes a ticket for each batch.
    pub fn for_training(table: &TableClient, staleness: &Staleness) -> Self {
        Self { staleness: Some(staleness.clone()), ..Self::read_only(table) }
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

    /// Pulls rows ahead of the gradients of earlier batches, if `look_ahead` is given.
    pub(crate) fn ahead(self, look_ahead: Option<Arc<LookAhead>>) -> Self {
        let staleness = look_ahead.as_ref().map(|ahead| ahead.tickets().clone()).or(self.staleness);
        Self { look_ahead, staleness, ..self }
    }

    /// Evaluates the model between two batches, if `evaluations` is given.
    pub(crate) fn evaluated(self, evaluations: Option<Arc<Evaluations>>) -> Self {
        Self { evaluations, ..self }
    }

    /// For evaluation: the stage does not change the table.
    pub fn read_only(table: &TableClient) -> Self {
        let apply = Apply { table: table.clone(), participation: Participation::default() };
        Self { apply, staleness: None, exact: None, look_ahead: None, evaluations: None }
    }

    /// Waits until the batch of this arrival may be looked up, and has its ticket.
    async fn ticket(&self, cx: &StageCx) -> Result<Ticket, Fault> {
        let participation = &self.apply.participation;
        let gate = cx.meter().blocked_on("checkpoint", participation.enter_gate(cx.arrival()));
        match (&self.staleness, &self.exact) {
            (Some(_), Some(exact)) => {
                cx.meter().blocked_on("checkpoint", exact.without_barriers()).await;
                // While the gate is closed, nothing is pushed, either.
                gate.await;
                self.apply.push_before_look_up(exact, cx).await?;
                Ok(Ticket::free())
            }
            (Some(staleness), None) => {
                // `push` frees tickets, so waiting for one counts as blocked on downstream.
                let ticket = cx.meter().blocked_on("ticket", staleness.ticket(cx.arrival())).await;
                gate.await;
                Ok(ticket)
            }
            (None, _) => {
                gate.await;
                Ok(Ticket::free())
            }
        }
    }
}

impl Stage for Lookup {
    type In = TrainBatch;
    type Out = ReadyBatch;

    fn describe(&self) -> String {
        let shards = counted(self.apply.table.shards(), "shard");
        match &self.staleness {
            Some(tickets) if self.look_ahead.is_some() => {
                format!("{shards}, staleness 0, look-ahead {}", tickets.bound())
            }
            Some(staleness) => {
                let exactly = if self.exact.is_some() { "exactly " } else { "" };
                format!("{shards}, staleness {exactly}{}", staleness.bound())
            }
            None => format!("{shards}, read only"),
        }
    }

    async fn on_batch(&mut self, train: TrainBatch, cx: &StageCx, out: &mut Outbox<ReadyBatch>) -> Result<(), Fault> {
        let Apply { table, participation } = &self.apply;
        let start = participation.start(&train);
        if start != Start::Train {
            if start == Start::TrainedBefore {
                cx.ledger().reject(TRAINED_BEFORE, train.rows as u64);
            }
            if let Some(staleness) = &self.staleness {
                staleness.skip(cx.arrival());
            }
            if let Some(look_ahead) = &self.look_ahead {
                look_ahead.skip(cx.arrival());
            }
            participation.skip_gate(cx.arrival());
            return Ok(());
        }
        let mut rows = Vec::with_capacity(train.unique.len() * table.row_dim());
        let ticket = self.ticket(cx).await?;
        if let Some(evaluations) = &self.evaluations
            && !cx.meter().blocked_on("evaluation", evaluations.before_look_up(&train)).await?
        {
            // Its ticket is dropped, so that later batches do not wait for it.
            cx.ledger().reject(STOPPED_EARLY, train.rows as u64);
            if let Some(look_ahead) = &self.look_ahead {
                look_ahead.skip(cx.arrival());
            }
            participation.leave_gate();
            return Ok(());
        }
        if let (Some(staleness), Some(exact)) = (&self.staleness, &self.exact) {
            // Not before: later look-ups wait for the gradients of every batch that counts here.
            staleness.observe(exact.looks_up());
        }
        if let Some(look_ahead) = &self.look_ahead {
            look_ahead.look_up(&ticket, &train.unique, &mut rows, cx).await?;
            return out.send(ReadyBatch { train, rows, dense: None, ticket }).await;
        }
        let pull = async {
            match &self.staleness {
                Some(_) => table.pull(&train.unique, &mut rows).await,
                None => table.peek(&train.unique, &mut rows).await,
            }
        };
        let pulls = futures::future::try_join(pull, participation.pull_dense());
        let ((), dense) = cx.meter().waiting_on("shards", pulls).await?;
        out.send(ReadyBatch { train, rows, dense, ticket }).await
    }

    async fn on_barrier(&mut self, _: BarrierNumber, _: &StageCx, _: &mut Outbox<ReadyBatch>) -> Result<(), Fault> {
        if let Some(exact) = &self.exact {
            exact.barrier_begins();
        }
        Ok(())
    }
}
