//! One shard of a table as a service: an actor that owns its rows without locks.
//!
//! Comes in: a [`Call`] with buffers of the caller's. Goes out: a [`Reply`] with the same buffers. Calls are worked off
//! one at a time on the shard's own thread, so nothing here blocks but the arithmetic itself.

use forebay_actors::{Fault, Service, StageCx};

use crate::config::TableConfig;
use crate::stats::ShardStats;
use crate::table::{ExportBlock, Table};

/// What a shard is asked. Lengths and numbers were checked by the client.
pub(crate) enum Call {
    /// Fill `rows` with the weights of `keys`; `insert` makes rows that are missing, otherwise they read as zeros.
    Pull { keys: Vec<u64>, rows: Vec<f32>, insert: bool },
    /// Apply gradients.
    Push { keys: Vec<u64>, grads: Vec<f32>, step: u64 },
    /// Give rows from this row number on.
    Export { from: usize, at_most: usize },
    /// Set rows.
    Import { keys: Vec<u64>, weights: Vec<f32>, state: Option<Vec<f32>> },
    /// Count.
    Stats,
}

/// What a shard answers.
pub(crate) enum Reply {
    /// The buffers of a pull or a push, to be used again.
    Buffers { keys: Vec<u64>, values: Vec<f32> },
    /// Rows of a snapshot.
    Export(ExportBlock),
    /// The rows were set.
    Imported,
    /// The counts.
    Stats(ShardStats),
}

/// Serves one [`Table`].
pub(crate) struct Shard {
    config: TableConfig,
    number: usize,
    table: Option<Table>,
}

impl Shard {
    pub(crate) fn new(config: TableConfig, number: usize) -> Self {
        Self { config, number, table: None }
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
        let table = self.table.as_mut().ok_or_else(|| Fault::internal("a shard was asked before it was opened"))?;
        Ok(match call {
            Call::Pull { keys, rows: mut values, insert } => {
                if insert {
                    table.pull(&keys, &mut values)?;
                } else {
                    table.peek(&keys, &mut values);
                }
                Reply::Buffers { keys, values }
            }
            Call::Push { keys, grads: values, step } => {
                table.push_checked(&keys, &values, step)?;
                Reply::Buffers { keys, values }
            }
            Call::Export { from, at_most } => Reply::Export(table.export(from, at_most)),
            Call::Import { keys, weights, state } => {
                table.import_checked(&keys, &weights, state.as_deref())?;
                Reply::Imported
            }
            Call::Stats => Reply::Stats(table.stats()),
        })
    }
}
