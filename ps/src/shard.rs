//! One shard of a table as a service: an actor that owns its rows without locks.
//!
//! A [`Call`] brings buffers, and its [`Reply`] returns them. The shard works on one call at a time, on its own thread.
//! A push of a round that is not complete is answered with [`PushAnswer::Waiting`], a pull that must see such a round with
//! [`Reply::Held`], and the shard goes on with other calls.

use std::sync::{Arc, Weak};

use forebay_actors::{Fault, Service, StageCx, counted};
use forebay_base::LrReductions;
use tokio::sync::oneshot;

use crate::config::TableConfig;
use crate::exactly_once::{ExactlyOnce, PushAnswer};
use crate::imported_rows::ImportedRows;
use crate::lifetime::{Absent, RowUsage};
use crate::merge::{Rows, merge_rows};
use crate::push::{AfterRound, Stamp};
use crate::stats::ShardStats;
use crate::table::{ExportBlock, SnapshotKind, Table};

/// A call to a shard. The client has checked lengths and numbers.
pub(crate) enum Call {
    /// Fill `rows` with the weights of `keys`; `insert` makes rows that are missing, otherwise they read as zeros. `after`: as they
    /// are when this round is applied.
    Pull { keys: Vec<u64>, rows: Vec<f32>, insert: bool, after: Option<AfterRound> },
    /// As a pull that inserts, of whole rows: weights and state.
    PullWhole { keys: Vec<u64>, rows: Vec<f32> },
    /// Apply gradients; with a stamp at most once.
    Push { keys: Vec<u64>, grads: Vec<f32>, step: u64, stamp: Option<Stamp> },
    /// Give rows of the shard of this number, from this row number on.
    Export { shard: usize, from: usize, at_most: usize },
    /// Set rows.
    Import { keys: Vec<u64>, weights: Vec<f32>, state: Option<Vec<f32>>, usages: Vec<RowUsage> },
    /// Set the rows at the places `own`, or all.
    ImportShared { rows: Arc<ImportedRows>, own: Option<Vec<u32>> },
    /// Get ready for about this many rows.
    ExpectRows { rows: usize },
    /// As `Export`, of the keys without a row that are counted.
    ExportAbsent { shard: usize, from: usize, at_most: usize },
    /// Remove the rows of these keys, and set the counts of their pushes.
    ImportAbsent { absent: Vec<Absent> },
    /// Reduce the learning rates of later pushes, by their steps.
    ReduceLr { reductions: LrReductions },
    /// Count all pushes of lower series as applied.
    AcknowledgeBefore { before: u64 },
    /// The same, at most up to the highest series of a push that was applied.
    AcknowledgeApplied { before: u64 },
    /// Begin a snapshot. It ends, not kept, when its holder is gone.
    BeginSnapshot { kind: SnapshotKind, holder: Weak<()> },
    /// Give the next rows of the snapshot.
    SnapshotPage { at_most: usize },
    /// Give the next keys without a row of the snapshot.
    SnapshotAbsent { at_most: usize },
    /// End the snapshot: its rows are safe.
    KeepSnapshot,
    /// Count.
    Stats,
}

/// The reply of a shard.
pub(crate) enum Reply {
    /// The keys and the rows of a pull.
    Rows(Rows),
    /// The round that a pull must see is not applied yet. Send the call when the receiver says that the round is applied.
    Held(oneshot::Receiver<Result<(), Fault>>, Box<Call>),
    /// The buffers of a push, to be used again, and its outcome.
    Pushed(PushAnswer<Rows>),
    /// Rows of the shard.
    Export(ExportBlock),
    /// Keys without a row; an empty list after the last.
    Absent(Vec<Absent>),
    /// The rows or the learning rates were set, the pushes acknowledged, or the snapshot kept.
    Done,
    /// A snapshot of this many rows has begun.
    SnapshotRows(u64),
    /// Rows of the snapshot; `None` while the shard lists keys: ask again.
    Page(Option<ExportBlock>),
    /// The counts, one per shard.
    Stats(Vec<ShardStats>),
}

/// Serves one [`Table`].
pub(crate) struct Shard {
    config: TableConfig,
    number: usize,
    table: Option<Table>,
    once: ExactlyOnce<Rows>,
    /// The holder of the open snapshot.
    holder: Option<Weak<()>>,
}

impl Shard {
    pub(crate) fn new(config: TableConfig, number: usize) -> Self {
        Self { config, number, table: None, once: ExactlyOnce::default(), holder: None }
    }

    fn table(&mut self) -> Result<&mut Table, Fault> {
        self.table.as_mut().ok_or_else(not_open)
    }

    fn pull(&mut self, keys: Vec<u64>, mut rows: Vec<f32>, insert: bool) -> Result<Reply, Fault> {
        let table = self.table()?;
        if insert {
            table.pull(&keys, &mut rows)?;
        } else {
            table.peek(&keys, &mut rows);
        }
        Ok(Reply::Rows((keys, rows)))
    }

    fn push(&mut self, push: Rows, step: u64, stamp: Option<Stamp>) -> Result<Reply, Fault> {
        let table = self.table.as_mut().ok_or_else(not_open)?;
        let dim = table.row_dim();
        let apply = |(keys, grads): &Rows, step| Ok(table.push_checked(keys, grads, step)?);
        self.once.push(stamp, step, push, |shares| merge_rows(shares, dim), apply).map(Reply::Pushed)
    }

    fn begin_snapshot(&mut self, kind: SnapshotKind, holder: Weak<()>) -> Result<Reply, Fault> {
        let rows = self.table()?.begin_snapshot(kind)?;
        self.holder = Some(holder);
        Ok(Reply::SnapshotRows(rows))
    }

    fn snapshot_page(&mut self, at_most: usize) -> Result<Reply, Fault> {
        self.check_snapshot()?;
        let table = self.table()?;
        let listed = table.list_keys_slice();
        Ok(Reply::Page(listed.then(|| table.snapshot_page(at_most))))
    }

    fn keep_snapshot(&mut self) -> Result<Reply, Fault> {
        self.check_snapshot()?;
        self.holder = None;
        self.table()?.end_snapshot(true);
        Ok(Reply::Done)
    }

    fn check_snapshot(&self) -> Result<(), Fault> {
        let number = self.number;
        let none = || Fault::internal(format!("shard {number} has no open snapshot"));
        if self.holder.is_some() { Ok(()) } else { Err(none()) }
    }

    /// Ends the open snapshot if its holder is gone.
    fn end_dropped_snapshot(&mut self) {
        if self.holder.take_if(|holder| holder.strong_count() == 0).is_some()
            && let Some(table) = &mut self.table
        {
            table.end_snapshot(false);
        }
    }
}

fn not_open() -> Fault {
    Fault::internal("a shard was asked before it was opened")
}

impl Service for Shard {
    type Call = Call;
    type Reply = Reply;

    fn describe(&self) -> String {
        let weights = counted(self.config.row_dim(), "weight");
        format!("table `{}`, shard {}, {weights} a row", self.config.name, self.number)
    }

    fn name_of(call: &Call) -> (&'static str, usize) {
        match call {
            Call::Pull { keys, .. } | Call::PullWhole { keys, .. } => ("pull", keys.len()),
            Call::Push { keys, .. } => ("push", keys.len()),
            Call::Export { at_most, .. } | Call::ExportAbsent { at_most, .. } => ("export", *at_most),
            Call::Import { keys, .. } => ("import", keys.len()),
            Call::ImportShared { rows, own } => ("import", own.as_ref().map_or(rows.keys.len(), Vec::len)),
            Call::ImportAbsent { absent } => ("import", absent.len()),
            Call::ExpectRows { rows } => ("expect rows", *rows),
            Call::SnapshotPage { at_most } | Call::SnapshotAbsent { at_most } => ("snapshot", *at_most),
            Call::BeginSnapshot { .. } | Call::KeepSnapshot => ("snapshot", 0),
            Call::ReduceLr { .. } => ("reduce lr", 0),
            Call::AcknowledgeBefore { .. } | Call::AcknowledgeApplied { .. } => ("acknowledge", 0),
            Call::Stats => ("stats", 0),
        }
    }

    fn rows_held(&self) -> Option<u64> {
        self.table.as_ref().map(|table| table.rows() as u64)
    }

    async fn open(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        self.table = Some(Table::new(&self.config)?);
        Ok(())
    }

    async fn call(&mut self, call: Call) -> Result<Reply, Fault> {
        self.end_dropped_snapshot();
        Ok(match call {
            Call::Pull { keys, rows, insert, after: Some(after) } => match self.once.pull(after)? {
                Some(end) => Reply::Held(end, Box::new(Call::Pull { keys, rows, insert, after: None })),
                None => self.pull(keys, rows, insert)?,
            },
            Call::Pull { keys, rows, insert, after: None } => self.pull(keys, rows, insert)?,
            Call::PullWhole { keys, rows: mut values } => {
                self.table()?.pull_whole(&keys, &mut values)?;
                Reply::Rows((keys, values))
            }
            Call::Push { keys, grads, step, stamp } => self.push((keys, grads), step, stamp)?,
            Call::Export { from, at_most, .. } => Reply::Export(self.table()?.export(from, at_most)),
            Call::Import { keys, weights, state, usages } => {
                self.table()?.import_checked(&keys, &weights, state.as_deref(), &usages)?;
                Reply::Done
            }
            Call::ImportShared { rows, own } => {
                let ImportedRows { keys, weights, state, usages } = &*rows;
                self.table()?.import_own(keys, weights, state.as_deref(), usages, own.as_deref())?;
                Reply::Done
            }
            Call::ExpectRows { rows } => {
                self.table()?.expect_rows(rows);
                Reply::Done
            }
            Call::ExportAbsent { from, at_most, .. } => Reply::Absent(self.table()?.export_absent(from, at_most)),
            Call::ImportAbsent { absent } => {
                self.table()?.import_absent(&absent)?;
                Reply::Done
            }
            Call::ReduceLr { reductions } => {
                self.table()?.reduce_lr(&reductions);
                Reply::Done
            }
            Call::AcknowledgeBefore { before } => {
                self.once.acknowledge_before(before);
                Reply::Done
            }
            Call::AcknowledgeApplied { before } => {
                self.once.acknowledge_applied_before(before);
                Reply::Done
            }
            Call::BeginSnapshot { kind, holder } => self.begin_snapshot(kind, holder)?,
            Call::SnapshotPage { at_most } => self.snapshot_page(at_most)?,
            Call::SnapshotAbsent { at_most } => {
                self.check_snapshot()?;
                Reply::Absent(self.table()?.snapshot_absent(at_most))
            }
            Call::KeepSnapshot => self.keep_snapshot()?,
            Call::Stats => {
                let push_ids = self.once.push_ids();
                Reply::Stats(vec![ShardStats { push_ids, ..self.table()?.stats() }])
            }
        })
    }
}
