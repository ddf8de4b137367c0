//! One shard of a table as a service: an actor that owns its rows without locks.
//!
//! Comes in: a [`Call`] with buffers of the caller's. Goes out: a [`Reply`] with the same buffers. Calls are worked off
//! one at a time on the shard's own thread, so nothing here blocks but the arithmetic itself. The push of a round that is
//! not whole is answered with a promise ([`Reply::Held`]): the shard goes on with other calls.

use forebay_actors::{Fault, Service, StageCx};

use crate::config::TableConfig;
use crate::error::TableError;
use crate::exactly_once::{ExactlyOnce, Next, Promise, tell};
use crate::merge::{Rows, merge_rows};
use crate::push::{PushOutcome, Stamp};
use crate::stats::ShardStats;
use crate::table::{ExportBlock, Table};

/// What a shard is asked. Lengths and numbers were checked by the client.
pub(crate) enum Call {
    /// Fill `rows` with the weights of `keys`; `insert` makes rows that are missing, otherwise they read as zeros.
    Pull { keys: Vec<u64>, rows: Vec<f32>, insert: bool },
    /// Apply gradients; with a stamp at most once.
    Push { keys: Vec<u64>, grads: Vec<f32>, step: u64, stamp: Option<Stamp> },
    /// Give rows of the shard of this number, from this row number on.
    Export { shard: usize, from: usize, at_most: usize },
    /// Set rows.
    Import { keys: Vec<u64>, weights: Vec<f32>, state: Option<Vec<f32>> },
    /// Count all pushes of lower sources as applied.
    AcknowledgeBefore { before: u64 },
    /// Count.
    Stats,
}

/// What a shard answers.
pub(crate) enum Reply {
    /// The buffers of a pull or a push, to be used again; of a push also what became of it.
    Buffers { keys: Vec<u64>, values: Vec<f32>, pushed: PushOutcome },
    /// The push is kept until its round is whole.
    Held(Promise<TableError>),
    /// Rows of a snapshot.
    Export(ExportBlock),
    /// The rows were set, or the pushes settled.
    Done,
    /// The counts, one per shard.
    Stats(Vec<ShardStats>),
}

/// Serves one [`Table`].
pub(crate) struct Shard {
    config: TableConfig,
    number: usize,
    table: Option<Table>,
    once: ExactlyOnce<Rows, TableError>,
}

impl Shard {
    pub(crate) fn new(config: TableConfig, number: usize) -> Self {
        Self { config, number, table: None, once: ExactlyOnce::default() }
    }

    fn table(&mut self) -> Result<&mut Table, Fault> {
        self.table.as_mut().ok_or_else(|| Fault::internal("a shard was asked before it was opened"))
    }

    fn push(&mut self, push: Rows, step: u64, stamp: Option<Stamp>) -> Result<Reply, Fault> {
        Ok(match self.once.offer(stamp, step, push)? {
            Next::Already((keys, values)) => Reply::Buffers { keys, values, pushed: PushOutcome::Already },
            Next::Apply((keys, values)) => {
                self.table()?.push_checked(&keys, &values, step)?;
                Reply::Buffers { keys, values, pushed: PushOutcome::Applied }
            }
            Next::Held(promise) => Reply::Held(promise),
            Next::Whole(whole, promise) => {
                let table = self.table()?;
                let (keys, grads) = merge_rows(whole.shares, table.row_dim());
                let pushed = table.push_checked(&keys, &grads, whole.step);
                tell(whole.waiting, &pushed.map(|()| PushOutcome::Applied));
                Reply::Held(promise)
            }
        })
    }
}

impl Service for Shard {
    type Call = Call;
    type Reply = Reply;

    fn describe(&self) -> String {
        // Said once, when the shard opens: rows and bytes are in its stats.
        format!("table `{}`, shard {}, {} weights a row", self.config.name, self.number, self.config.row_dim())
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.table = Some(Table::new(&self.config)?);
        Ok(())
    }

    async fn call(&mut self, call: Call) -> Result<Reply, Fault> {
        Ok(match call {
            Call::Pull { keys, rows: mut values, insert } => {
                let table = self.table()?;
                if insert {
                    table.pull(&keys, &mut values)?;
                } else {
                    table.peek(&keys, &mut values);
                }
                Reply::Buffers { keys, values, pushed: PushOutcome::Already }
            }
            Call::Push { keys, grads, step, stamp } => self.push((keys, grads), step, stamp)?,
            Call::Export { from, at_most, .. } => Reply::Export(self.table()?.export(from, at_most)),
            Call::Import { keys, weights, state } => {
                self.table()?.import_checked(&keys, &weights, state.as_deref())?;
                Reply::Done
            }
            Call::AcknowledgeBefore { before } => {
                self.once.acknowledge_before(before);
                Reply::Done
            }
            Call::Stats => {
                let names = self.once.names();
                Reply::Stats(vec![ShardStats { names, ..self.table()?.stats() }])
            }
        })
    }
}
