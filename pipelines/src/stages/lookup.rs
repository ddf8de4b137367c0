//! `lookup`: takes a ticket for a batch, asks every shard for its rows at once, and puts them in the order of the batch's keys.
//!
//! Tickets bound how far look-ups run ahead of pushes. If the shards are behind a network, replicas of the stage keep one batch
//! in flight for each ticket.

use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_ps::TableClient;

use crate::flow::{ReadyBatch, TrainBatch};
use crate::participation::{Participation, Start};
use crate::staleness::{Staleness, Ticket};

/// The reason in the ledger of rows that a resumed run reads again.
pub(super) const TRAINED_BEFORE: &str = "trained on before the run was resumed";

/// The `lookup` stage.
#[derive(Clone)]
pub struct Lookup {
    table: TableClient,
    /// `None`: the stage only reads, and rows that do not exist read as zeros.
    staleness: Option<Staleness>,
    participation: Participation,
}

impl Lookup {
    /// For training: the stage creates rows that do not exist, and takes a ticket for each batch.
    pub fn for_training(table: &TableClient, staleness: &Staleness) -> Self {
        Self { table: table.clone(), staleness: Some(staleness.clone()), participation: Participation::default() }
    }

    /// Sets whether this process trains alone or as a member of a run.
    pub(crate) fn participation(mut self, participation: Participation) -> Self {
        self.participation = participation;
        self
    }

    /// For evaluation: the stage does not change the table.
    pub fn read_only(table: &TableClient) -> Self {
        Self { table: table.clone(), staleness: None, participation: Participation::default() }
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
        let start = self.participation.start(&train);
        if start != Start::Train {
            if start == Start::TrainedBefore {
                cx.ledger().reject(TRAINED_BEFORE, train.labels.len() as u64);
            }
            if let Some(staleness) = &self.staleness {
                staleness.skip(cx.arrival());
            }
            self.participation.skip_gate(cx.arrival());
            return Ok(());
        }
        let mut rows = Vec::with_capacity(train.unique.len() * self.table.row_dim());
        let ticket = match &self.staleness {
            // `push` frees tickets, so waiting for one counts as blocked on downstream.
            Some(staleness) => cx.meter().blocked_on("ticket", staleness.ticket(cx.arrival())).await,
            None => Ticket::free(),
        };
        cx.meter().blocked_on("checkpoint", self.participation.enter_gate(cx.arrival())).await;
        let pull = async {
            match &self.staleness {
                Some(_) => self.table.pull(&train.unique, &mut rows).await,
                None => self.table.peek(&train.unique, &mut rows).await,
            }
        };
        let pulls = futures::future::try_join(pull, self.participation.pull_dense());
        let ((), dense) = cx.meter().waiting_on("shards", pulls).await?;
        out.send(ReadyBatch { train, rows, dense, ticket }).await
    }
}
