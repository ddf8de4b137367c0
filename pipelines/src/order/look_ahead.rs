//! Look-ahead, `train.look_ahead = k`: rows are asked for up to `k` batches ahead, and every batch still sees the gradients of all
//! batches before it. For one trainer with `train.staleness = 0` whose tables are in other processes.
//!
//! ```text
//!  lookup  ask 0   ask 1   ask 2 ...           │ the rows that no batch under way has
//!          rows 0 ─→ train ─→ push: step here ─┴─→ rows 1 ─→ train ─→ ...
//!                                   └─ the gradients travel to the shards; applied: ticket 0 is free
//! ```
//! The rows that batches under way change are in a [`RowCache`]: rows of batch `n` are complete when the gradients of batch `n - 1` have
//! been stepped there, without a round trip. This file keeps the order of the batches. Rows are asked for, stepped and pushed in the order
//! in which batches arrive at `lookup`, in any replica. The ticket of a batch has the number of its arrival.
//!
//! At a barrier no batch is under way, so a checkpoint stores nothing of look-ahead.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_actors::{Fault, StageCx, counted};
use forebay_base::LrReductions;
use forebay_batches::{GradBatch, InOrder, Staleness, Ticket};
use forebay_job::Job;
use forebay_ps::{CachedBatch, RowCache, RowCacheStats, TableClient};
use serde::Serialize;

use crate::shared_state::SharedState;

/// The batches under way of one trainer.
pub(crate) struct LookAhead {
    tickets: Staleness,
    cache: RowCache,
    state: SharedState<State>,
}

#[derive(Default)]
struct State {
    order: AheadOrder,
    /// Batches between `lookup` and `push`.
    cached: HashMap<u64, CachedBatch>,
}

/// The order in which batches are asked for, read, stepped and pushed: by their numbers, in any replica. A state machine without clock and
/// IO.
#[derive(Debug, Default)]
pub(crate) struct AheadOrder {
    asked: InOrder,
    stepped: InOrder,
    pushed: InOrder,
}

impl AheadOrder {
    /// Whether the rows of this batch may be asked for.
    pub(crate) fn may_ask(&self, number: u64) -> bool {
        self.asked.before() == number
    }

    /// The rows of this batch were asked for.
    pub(crate) fn asked(&mut self, number: u64) {
        self.asked.add(number);
    }

    /// Whether the rows of this batch may be read, and its gradients stepped: the gradients of all batches before it were stepped.
    pub(crate) fn may_read(&self, number: u64) -> bool {
        self.stepped.before() == number
    }

    /// The gradients of this batch were stepped.
    pub(crate) fn stepped(&mut self, number: u64) {
        self.stepped.add(number);
    }

    /// Whether the push of this batch may be handed over.
    pub(crate) fn may_push(&self, number: u64) -> bool {
        self.pushed.before() == number
    }

    /// The push of this batch was handed over.
    pub(crate) fn pushed(&mut self, number: u64) {
        self.pushed.add(number);
    }

    /// The batch with this number is not looked up.
    pub(crate) fn skip(&mut self, number: u64) {
        let Self { asked, stepped, pushed } = self;
        [asked, stepped, pushed].into_iter().for_each(|order| order.add(number));
    }
}

/// What look-ahead has done and what it costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LookAheadReport {
    /// Batches that may be asked for ahead.
    pub batches: usize,
    /// Keys of all batches.
    pub keys: u64,
    /// Rows that were pulled with the state of their optimizers; the others were at the trainer.
    pub rows_pulled: u64,
    /// The most rows that were at the trainer at once.
    pub most_rows: u64,
    /// Bytes of memory that these rows take.
    pub bytes: u64,
}

impl LookAhead {
    /// The look-ahead that a job asks for, over its table. Measures the round trip.
    ///
    /// # Errors
    /// External: a ps does not answer.
    pub(crate) async fn of(job: &Job, table: &TableClient) -> Result<Option<Arc<Self>>, Fault> {
        // The report also shows the round trip, which is the part of a look-up that is distance.
        let round_trip = table.round_trip().await?;
        let k = job.look_ahead(round_trip);
        if job.may_look_ahead() && job.train.look_ahead.is_auto() {
            let ahead =
                if k > 0 { format!("look-ahead of {}", counted(k, "batch")) } else { "no look-ahead".to_owned() };
            tracing::info!("the ps are {round_trip:.1?} away: {ahead}");
        }
        if k == 0 {
            return Ok(None);
        }
        let cache = RowCache::new(table)?;
        Ok(Some(Arc::new(Self { tickets: Staleness::new(k), cache, state: SharedState::default() })))
    }

    /// Gives out the tickets.
    pub(crate) fn tickets(&self) -> &Staleness {
        &self.tickets
    }

    /// Pulls the missing rows of the batch of this ticket, then waits for the gradients of the batch before it, and puts the rows of `keys`
    /// into `rows`.
    ///
    /// # Errors
    /// As [`TableClient::pull`].
    pub(crate) async fn look_up(
        &self,
        ticket: &Ticket,
        keys: &[u64],
        rows: &mut Vec<f32>,
        cx: &StageCx,
    ) -> Result<(), Fault> {
        let number = number(ticket)?;
        let pull = async {
            self.state.until(|state| state.order.may_ask(number)).await;
            let pending = self.cache.ask(keys).await?;
            self.state.change(|state| state.order.asked(number));
            self.cache.fill(pending).await
        };
        let batch = cx.meter().waiting_on("shards", pull).await?;
        // Gradients come from downstream, so waiting for them counts as blocked.
        cx.meter().blocked_on("gradients", self.state.until(|state| state.order.may_read(number))).await;
        self.cache.read(keys, &batch, rows)?;
        self.state.change(|state| drop(state.cached.insert(number, batch)));
        Ok(())
    }

    /// A batch with this number is not looked up.
    pub(crate) fn skip(&self, number: u64) {
        self.state.change(|state| state.order.skip(number));
    }

    /// Steps the gradients of a batch here, which lets the next one be read, pushes them, and waits until they are applied.
    ///
    /// # Errors
    /// As [`TableClient::push_once`].
    pub(crate) async fn push(&self, batch: &GradBatch) -> Result<(), Fault> {
        let GradBatch { step, unique, row_grads, .. } = batch;
        let number = number(&batch.ticket)?;
        self.state.until(|state| state.order.may_read(number)).await;
        let cached = self.state.lock().cached.remove(&number);
        let cached = cached.ok_or_else(|| {
            Fault::internal("the gradients of a batch arrived, but no look-up of this batch is known")
        })?;
        self.cache.step(unique, &cached, row_grads, *step)?;
        self.state.change(|state| state.order.stepped(number));
        self.state.until(|state| state.order.may_push(number)).await;
        let pending = self.cache.push(batch.id.push_id(), unique, row_grads, *step).await?;
        self.state.change(|state| state.order.pushed(number));
        self.cache.applied(pending).await?;
        self.cache.release(cached);
        Ok(())
    }

    /// Reduces the learning rates of later steps of the rows here, as the shards do.
    pub(crate) fn reduce_lr(&self, reductions: &LrReductions) {
        self.cache.reduce_lr(reductions);
    }

    pub(crate) fn report(&self) -> LookAheadReport {
        let RowCacheStats { keys, pulled, most_rows, bytes, .. } = self.cache.stats();
        LookAheadReport { batches: self.tickets.bound(), keys, rows_pulled: pulled, most_rows, bytes }
    }
}

fn number(ticket: &Ticket) -> Result<u64, Fault> {
    ticket.number().ok_or_else(|| Fault::internal("a batch that was looked up ahead has no ticket"))
}
