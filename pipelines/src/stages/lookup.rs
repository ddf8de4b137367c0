//! `lookup`: takes a ticket, asks every shard for its rows at once, puts them in the order of the batch's keys.
//!
//! Comes in: [`TrainBatch`]es. Goes out: [`ReadyBatch`]es, in the same order. Waits for the ticket (that is how far
//! the run may be ahead of its pushes) and for the shards. Where these are behind a network, replicas of it keep as many
//! batches on their way as there are tickets.

use std::sync::Arc;
use std::time::Instant;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_ps::TableClient;

use crate::dense::{Shared, SharedDense};
use crate::flow::{ReadyBatch, TrainBatch};
use crate::staleness::{Staleness, Ticket};

/// The stage.
#[derive(Clone)]
pub struct Lookup {
    table: TableClient,
    /// `None`: read only, rows that are not there are zeros.
    staleness: Option<Staleness>,
    shared: Shared,
    cx: Option<StageCx>,
}

impl Lookup {
    /// For training: rows that are not there are initialised, and each batch takes a ticket.
    pub fn for_training(table: TableClient, staleness: Staleness) -> Self {
        Self { table, staleness: Some(staleness), shared: Shared::default(), cx: None }
    }

    /// As one of the processes of a run.
    pub(crate) fn shared(mut self, shared: Shared) -> Self {
        self.shared = shared;
        self
    }

    /// For evaluation: changes nothing.
    pub fn read_only(table: TableClient) -> Self {
        Self { table, staleness: None, shared: Shared::default(), cx: None }
    }
}

async fn pull_dense(dense: &SharedDense) -> Result<Option<Arc<Vec<f32>>>, Fault> {
    match dense {
        Some(dense) => dense.pull().await.map(Some),
        None => Ok(None),
    }
}

impl Stage for Lookup {
    type In = TrainBatch;
    type Out = ReadyBatch;

    fn describe(&self) -> String {
        match &self.staleness {
            Some(staleness) => format!("{} shards, staleness {}", self.table.shards(), staleness.bound()),
            None => format!("{} shards, read only", self.table.shards()),
        }
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.cx = Some(cx.clone());
        Ok(())
    }

    async fn on_batch(&mut self, train: TrainBatch, out: &mut Outbox<ReadyBatch>) -> Result<(), Fault> {
        let number = self.cx.as_ref().map_or(0, StageCx::arrival);
        if let Some(begun) = &self.shared.begun {
            begun(&train);
            if train.labels.is_empty() && self.shared.in_step.is_none() {
                if let Some(staleness) = &self.staleness {
                    staleness.skip(number);
                }
                return Ok(());
            }
        }
        let mut rows = Vec::with_capacity(train.unique.len() * self.table.row_dim());
        let ticket = match (&self.staleness, &self.cx) {
            // Tickets come back from `push`: to wait for one is to be blocked by the stages below.
            (Some(staleness), Some(cx)) => cx.meter().blocked_on("ticket", staleness.ticket(number)).await,
            (Some(staleness), None) => staleness.ticket(number).await,
            (None, _) => Ticket::free(),
        };
        let asked = Instant::now();
        let pull = async {
            match &self.staleness {
                Some(_) => self.table.pull(&train.unique, &mut rows).await,
                None => self.table.peek(&train.unique, &mut rows).await,
            }
        };
        let ((), dense) = futures::future::try_join(pull, pull_dense(&self.shared.dense)).await?;
        if let Some(cx) = &self.cx {
            cx.meter().waiting("shards", asked.elapsed());
        }
        out.send(ReadyBatch { train, rows, dense, ticket }).await
    }
}
