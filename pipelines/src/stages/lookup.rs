//! `lookup`: takes a ticket, asks every shard for its rows at once, puts them in the order of the batch's keys.
//!
//! Comes in: [`TrainBatch`]es. Goes out: [`ReadyBatch`]es, in the same order. Waits for the ticket (that is how far
//! the run may be ahead of its pushes) and for the shards. Where these are behind a network, replicas of it keep as many
//! batches on their way as there are tickets.

use std::time::Instant;

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_ps::TableClient;

use crate::flow::{ReadyBatch, TrainBatch};
use crate::participation::Participation;
use crate::staleness::{Staleness, Ticket};

/// The stage.
#[derive(Clone)]
pub struct Lookup {
    table: TableClient,
    /// `None`: read only, rows that are not there are zeros.
    staleness: Option<Staleness>,
    participation: Participation,
}

impl Lookup {
    /// For training: rows that are not there are initialised, and each batch takes a ticket.
    pub fn for_training(table: &TableClient, staleness: &Staleness) -> Self {
        Self { table: table.clone(), staleness: Some(staleness.clone()), participation: Participation::Alone }
    }

    /// Trains alone or as a member of a run.
    pub(crate) fn participation(mut self, participation: Participation) -> Self {
        self.participation = participation;
        self
    }

    /// For evaluation: changes nothing.
    pub fn read_only(table: &TableClient) -> Self {
        Self { table: table.clone(), staleness: None, participation: Participation::Alone }
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

    async fn on_batch(&mut self, train: TrainBatch, cx: &StageCx, out: &mut Outbox<ReadyBatch>) -> Result<(), Fault> {
        if self.participation.ends_at_start(&train) {
            if let Some(staleness) = &self.staleness {
                staleness.skip(cx.arrival());
            }
            return Ok(());
        }
        let mut rows = Vec::with_capacity(train.unique.len() * self.table.row_dim());
        let ticket = match &self.staleness {
            // Tickets come back from `push`: to wait for one is to be blocked by the stages below.
            Some(staleness) => cx.meter().blocked_on("ticket", staleness.ticket(cx.arrival())).await,
            None => Ticket::free(),
        };
        let asked = Instant::now();
        let pull = async {
            match &self.staleness {
                Some(_) => self.table.pull(&train.unique, &mut rows).await,
                None => self.table.peek(&train.unique, &mut rows).await,
            }
        };
        let ((), dense) = futures::future::try_join(pull, self.participation.pull_dense()).await?;
        cx.meter().waiting("shards", asked.elapsed());
        out.send(ReadyBatch { train, rows, dense, ticket }).await
    }
}
