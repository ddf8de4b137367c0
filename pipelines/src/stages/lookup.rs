//! `lookup`: takes a ticket for a batch, asks every shard for its rows at once, and puts them in the order of the batch's keys.
//!
//! Tickets bound how far look-ups run ahead of pushes. If the shards are behind a network, replicas of the stage keep one batch
//! in flight for each ticket. With exact staleness the stage also pushes, so that look-ups and pushes are in one order: see
//! `order/exact_order.rs`. In step with other trainers, a pull follows right behind the push whose round it must see: see
//! `order/step_order.rs`.

use std::pin::pin;
use std::sync::Arc;

use forebay_actors::{BarrierNumber, Fault, Outbox, Stage, StageCx, counted};
use forebay_batches::{ReadyBatch, Staleness, Ticket, TrainBatch};
use forebay_ps::TableClient;
use futures::future::{Either, select, try_join};

use super::apply::{Apply, RoundPush};
use super::participation::{Participation, Start};
use super::rounds_end::RoundsEnd;
use crate::evaluations::Evaluations;
use crate::order::exact_order::ExactOrder;
use crate::order::look_ahead::LookAhead;
use crate::order::step_order::StepOrder;

/// The reason in the ledger of rows that a resumed run reads again.
pub(crate) const TRAINED_BEFORE: &str = "trained on before the run was resumed";

/// The reason in the ledger of rows that were read and not trained on, because the metric of evaluations did not improve.
pub(crate) const STOPPED_EARLY: &str = "read after the training had stopped early";

/// The `lookup` stage.
#[derive(Clone)]
pub struct Lookup {
    apply: Apply,
    /// `None`: the stage only reads, and rows that do not exist read as zeros.
    staleness: Option<Staleness>,
    exact: Option<Arc<ExactOrder>>,
    step_order: Option<Arc<StepOrder>>,
    /// Set if rows are asked for ahead. Then `staleness` bounds the tickets of look-ahead.
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

    /// Sets the order of look-ups and pushes in step with other trainers.
    pub(crate) fn in_step(self, step_order: Option<Arc<StepOrder>>) -> Self {
        Self { step_order, ..self }
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
        Self { apply, staleness: None, exact: None, step_order: None, look_ahead: None, evaluations: None }
    }

    /// Waits until the batch of this arrival may be looked up.
    async fn turn(&self, cx: &StageCx) -> Result<Turn<'_>, Fault> {
        let participation = &self.apply.participation;
        let gate = cx.meter().blocked_on("checkpoint", participation.enter_gate(cx.arrival()));
        match (&self.staleness, &self.exact) {
            (Some(_), Some(exact)) => {
                cx.meter().blocked_on("checkpoint", exact.without_barriers()).await;
                // While the gate is closed, the stage makes no pushes, either.
                gate.await;
                let pushed = self.apply.push_before_look_up(exact, cx).await?;
                let after = pushed.as_ref().map(|pushed| pushed.step);
                Ok(Turn { ticket: Ticket::free(), after, pushed })
            }
            (Some(staleness), None) => {
                if let Some(step_order) = &self.step_order {
                    // Gradients come from downstream, so waiting for them counts as blocked.
                    let after = cx.meter().blocked_on("ticket", step_order.turn()).await;
                    gate.await;
                    return Ok(Turn { after, ..Turn::of(Ticket::free()) });
                }
                // `push` frees tickets, so waiting for one counts as blocked on downstream.
                let ticket = cx.meter().blocked_on("ticket", staleness.ticket(cx.arrival())).await;
                gate.await;
                Ok(Turn::of(ticket))
            }
            (None, _) => {
                gate.await;
                Ok(Turn::of(Ticket::free()))
            }
        }
    }

    /// Pulls the rows of a batch, and the dense parameters if they are in the ps. `after`: as the round of this step leaves them. If that
    /// round can never be complete, the batch does not count, and gets the current values.
    async fn pull(
        &self,
        train: &TrainBatch,
        after: Option<u64>,
        rows: &mut Vec<f32>,
    ) -> Result<Option<Arc<Vec<f32>>>, Fault> {
        let Apply { table, participation } = &self.apply;
        let rounds_end = participation.rounds_end();
        if let Some(step) = after.filter(|_| !rounds_end.is_some_and(RoundsEnd::is_over)) {
            let given_up = async {
                match rounds_end {
                    Some(rounds_end) => rounds_end.give_up().await,
                    None => std::future::pending().await,
                }
            };
            let pulls = try_join(table.pull_after(step, &train.unique, rows), participation.pull_dense(after));
            tokio::select! {
                biased;
                pulled = pulls => return Ok(pulled?.1),
                () = given_up => {}
            }
        }
        let pull = async {
            match &self.staleness {
                Some(_) => table.pull(&train.unique, rows).await,
                None => table.peek(&train.unique, rows).await,
            }
        };
        Ok(try_join(pull, participation.pull_dense(None)).await?.1)
    }

    /// Evaluates the model before this batch if it is time. Returns whether the batch is trained on.
    async fn evaluated_before(
        &self,
        evaluations: &Evaluations,
        train: &TrainBatch,
        pushed: &mut Option<RoundPush<'_>>,
        cx: &StageCx,
    ) -> Result<bool, Fault> {
        let last_push = async {
            match pushed.take() {
                Some(pushed) => pushed.applied.await,
                None => Ok(()),
            }
        };
        cx.meter().blocked_on("evaluation", evaluations.before_look_up(train, cx.arrival(), last_push)).await
    }

    /// Pulls for a batch, and waits for the push that was handed over before it.
    async fn look_up(
        &self,
        train: &TrainBatch,
        after: Option<u64>,
        pushed: Option<RoundPush<'_>>,
        rows: &mut Vec<f32>,
        cx: &StageCx,
    ) -> Result<Option<Arc<Vec<f32>>>, Fault> {
        let push = async {
            match pushed {
                Some(pushed) => pushed.applied.await,
                None => Ok(()),
            }
        };
        let mut pulls = pin!(try_join(self.pull(train, after, rows), push));
        if let Some(step_order) = &self.step_order {
            // Until the round is applied, the look-up waits for the other trainers, as the push does.
            let applied = pin!(step_order.until_applied());
            if let Either::Left((pulled, _)) = cx.meter().blocked_on("ticket", select(pulls.as_mut(), applied)).await {
                return Ok(pulled?.0);
            }
        }
        Ok(cx.meter().waiting_on("shards", pulls).await?.0)
    }
}

/// The permission to look up a batch.
struct Turn<'a> {
    ticket: Ticket,
    /// The step of the round that its look-up must see.
    after: Option<u64>,
    /// The push before it in an exact order, if it has no answer yet.
    pushed: Option<RoundPush<'a>>,
}

impl Turn<'_> {
    fn of(ticket: Ticket) -> Self {
        Self { ticket, after: None, pushed: None }
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
        let Turn { ticket, after, mut pushed } = self.turn(cx).await?;
        if let Some(evaluations) = &self.evaluations
            && !self.evaluated_before(evaluations, &train, &mut pushed, cx).await?
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
            // Counted only here, because later look-ups wait for the gradients of every counted batch.
            staleness.observe(exact.looks_up());
        }
        if let Some(step_order) = &self.step_order {
            step_order.looks_up();
        }
        if let Some(look_ahead) = &self.look_ahead {
            look_ahead.look_up(&ticket, &train.unique, &mut rows, cx).await?;
            return out.send(ReadyBatch { train, rows, dense: None, ticket }).await;
        }
        let dense = self.look_up(&train, after, pushed, &mut rows, cx).await?;
        out.send(ReadyBatch { train, rows, dense, ticket }).await
    }

    async fn on_barrier(&mut self, _: BarrierNumber, _: &StageCx, _: &mut Outbox<ReadyBatch>) -> Result<(), Fault> {
        if let Some(exact) = &self.exact {
            exact.barrier_begins();
        }
        Ok(())
    }
}
