//! `push`: sends each shard its gradients; the acknowledgement frees the ticket.
//!
//! Comes in: [`GradBatch`]es, in order. Goes out: nothing. Waits for the shards.

use std::time::Instant;

use forebay_actors::{Fault, Sink, StageCx};
use forebay_ps::TableClient;

use crate::flow::GradBatch;

/// The sink.
pub struct Push {
    table: TableClient,
    cx: Option<StageCx>,
}

impl Push {
    /// Pushes to `table`.
    pub fn new(table: TableClient) -> Self {
        Self { table, cx: None }
    }
}

impl Sink for Push {
    type In = GradBatch;

    fn describe(&self) -> String {
        format!("{} shards", self.table.shards())
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.cx = Some(cx.clone());
        Ok(())
    }

    async fn write(&mut self, batch: GradBatch) -> Result<(), Fault> {
        let asked = Instant::now();
        self.table.push(&batch.unique, &batch.row_grads, batch.step).await?;
        if let Some(cx) = &self.cx {
            cx.meter().waiting("shards", asked.elapsed());
        }
        drop(batch.ticket);
        Ok(())
    }
}
