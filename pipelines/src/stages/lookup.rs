//! `lookup`: takes a ticket, asks every shard for its rows at once, puts them in the order of the batch's keys.
//!
//! Comes in: [`TrainBatch`]es. Goes out: [`ReadyBatch`]es, in the same order. Waits for the ticket (that is how far
//! the run may be ahead of its pushes) and for the shards.

use std::time::Instant;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_ps::TableClient;

use crate::flow::{ReadyBatch, TrainBatch};
use crate::staleness::{Staleness, Ticket};

/// The stage.
pub struct Lookup {
    table: TableClient,
    /// `None`: read only, rows that are not there are zeros.
    staleness: Option<Staleness>,
    cx: Option<StageCx>,
}

impl Lookup {
    /// For training: rows that are not there are initialised, and each batch takes a ticket.
    pub fn for_training(table: TableClient, staleness: Staleness) -> Self {
        Self { table, staleness: Some(staleness), cx: None }
    }

    /// For evaluation: changes nothing.
    pub fn read_only(table: TableClient) -> Self {
        Self { table, staleness: None, cx: None }
    }

    fn waited(&self, name: &'static str, since: Instant) {
        if let Some(cx) = &self.cx {
            cx.meter().waiting(name, since.elapsed());
        }
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
        let mut rows = Vec::with_capacity(train.unique.len() * self.table.row_dim());
        let start = Instant::now();
        let ticket = match &self.staleness {
            Some(staleness) => {
                let ticket = staleness.ticket().await;
                self.waited("ticket", start);
                let asked = Instant::now();
                self.table.pull(&train.unique, &mut rows).await?;
                self.waited("shards", asked);
                ticket
            }
            None => {
                self.table.peek(&train.unique, &mut rows).await?;
                self.waited("shards", start);
                Ticket::free()
            }
        };
        out.send(ReadyBatch { train, rows, ticket }).await
    }
}
