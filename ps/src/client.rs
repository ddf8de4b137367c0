//! The way to a table: splits keys by shard, asks all shards at once, puts the answers together in order.
//!
//! Comes in: slices of keys and gradients. Goes out: rows, or a [`Fault`]. Every method waits for room in the shards'
//! mailboxes and for their replies; none blocks the thread.
//!
//! Keys and gradients are copied once on their way (12 to 80 bytes per key at the speed of memory, against two cache
//! misses per key in the shard). Buffers travel to the shard and come back, so a steady state allocates nothing of size.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_actors::{Client, Fault, Host, Place};
use futures::future::try_join_all;

use crate::config::TableConfig;
use crate::route::{Route, gather, scatter};
use crate::shard::{Call, Reply, Shard};
use crate::stats::TableStats;
use crate::table::{ExportBlock, Layout};

/// Calls that may wait in the mailbox of one shard.
const CAPACITY: usize = 8;

/// The most shards that one table may have.
pub const MAX_SHARDS: usize = 1024;

/// Starts the shards of a table on `host`, each on a thread of its own, and returns the way to them.
///
/// # Errors
/// A user fault, when the configuration is wrong or `shards` is not 1 to [`MAX_SHARDS`].
pub fn start_table(host: &Host, config: TableConfig, shards: usize) -> Result<TableClient, Fault> {
    config.check()?;
    if shards == 0 || shards > MAX_SHARDS {
        let name = &config.name;
        return Err(Fault::user(format!("table `{name}` was asked for {shards} shards; expected 1 to {MAX_SHARDS}")));
    }
    let layout = Arc::new(Layout::new(&config));
    let clients = (0..shards).map(|number| {
        let (name, config) = (format!("ps{number}-{}", config.name), config.clone());
        host.serve(&name, Place::Own, CAPACITY, move || Shard::new(config, number))
    });
    Ok(TableClient { shards: clients.collect(), route: Route::new(shards), layout, spare: Arc::default() })
}

/// A way to the rows of one table. Clones are cheap and share buffers.
#[derive(Clone)]
pub struct TableClient {
    shards: Vec<Client<Call, Reply>>,
    route: Route,
    layout: Arc<Layout>,
    spare: Arc<Mutex<Vec<Buffers>>>,
}

/// Buffers of one call, kept for the next.
#[derive(Default)]
struct Buffers {
    shard_of: Vec<u32>,
    /// Per shard.
    keys: Vec<Vec<u64>>,
    /// Per shard.
    values: Vec<Vec<f32>>,
}

impl std::fmt::Debug for TableClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableClient(`{}`, {} shards)", self.layout.table, self.shards.len())
    }
}

impl TableClient {
    /// Name of the table.
    pub fn table(&self) -> &str {
        &self.layout.table
    }

    /// Weights per row, over all parts.
    pub fn row_dim(&self) -> usize {
        self.layout.row_dim
    }

    /// Floats of optimizer state per row, over all parts.
    pub fn state_dim(&self) -> usize {
        self.layout.state_dim
    }

    /// Shards of the table.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Puts the weights of `keys`, `[keys x row_dim]`, into `rows` (which is resized; empty after a fault or when
    /// cancelled). A key without a row gets one, its weights drawn from (seed, table, part, key). Keys may repeat.
    ///
    /// Cancel safe: rows may have been inserted already, with the weights that any later pull would give them.
    ///
    /// # Errors
    /// An external fault when memory ran out; an internal one when a shard died.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len()))]
    pub async fn pull(&self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.fetch(keys, rows, true).await
    }

    /// As [`pull`](Self::pull), but never inserts: a key without a row reads as zeros.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len()))]
    pub async fn peek(&self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.fetch(keys, rows, false).await
    }

    /// Applies the gradients `grads`, `[keys x row_dim]`, to the rows of `keys`; `step` is the global step, from 1.
    ///
    /// A key without a row gets one first. Keys should be unique; should one repeat, its gradients are applied one after
    /// the other in the order given (not as their sum).
    ///
    /// Not cancel safe: dropped before it is ready, any number of shards may have applied their share.
    ///
    /// # Errors
    /// A user fault, before any shard is asked and so with nothing changed anywhere: a length that does not match, a
    /// step of 0, a gradient that is NaN or infinite (says how many of which part, and the first key). When memory runs
    /// out or a shard dies, the other shards may have applied their share.
    #[tracing::instrument(level = "debug", skip_all, fields(table = %self.layout.table, keys = keys.len(), step))]
    pub async fn push(&self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), Fault> {
        self.layout.check_push(keys, grads, step)?;
        if keys.is_empty() {
            return Ok(());
        }
        let mut buffers = self.split(keys);
        self.deal(&buffers.shard_of, grads, self.layout.row_dim, &mut buffers.values);
        self.exchange(&mut buffers, |keys, grads| Call::Push { keys, grads, step }).await?;
        self.keep(buffers);
        Ok(())
    }

    /// What each shard holds and has done.
    ///
    /// # Errors
    /// An internal fault when a shard died.
    pub async fn stats(&self) -> Result<TableStats, Fault> {
        let asked = self.shards.iter().map(async |shard| match shard.call(Call::Stats).await? {
            Reply::Stats(stats) => Ok(stats),
            _ => Err(confused()),
        });
        Ok(TableStats { table: self.layout.table.clone(), shards: try_join_all(asked).await? })
    }

    /// Up to `at_most` rows of one shard from row number `from` on; an empty block means that there are no more.
    ///
    /// Paging with `from += block.keys.len()` gives each row exactly once, in the order in which rows came; rows that are
    /// changed meanwhile are given as they are when their page is. Cancel safe.
    ///
    /// # Errors
    /// A user fault when there is no such shard; an internal one when it died.
    pub async fn export(&self, shard: usize, from: usize, at_most: usize) -> Result<ExportBlock, Fault> {
        let Some(client) = self.shards.get(shard) else {
            let (table, shards) = (&self.layout.table, self.shards.len());
            return Err(Fault::user(format!("table `{table}` has {shards} shards, from 0; there is no shard {shard}")));
        };
        match client.call(Call::Export { from, at_most }).await? {
            Reply::Export(block) => Ok(block),
            _ => Err(confused()),
        }
    }

    /// Sets the rows of `keys` to `weights`, `[keys x row_dim]`, and `state`, `[keys x state_dim]` (without: the state of
    /// a new row). Rows that exist are overwritten; of a key that repeats the last row counts. The rows may come from a
    /// table with another number of shards.
    ///
    /// Not cancel safe: dropped before it is ready, any number of shards may have set their share.
    ///
    /// # Errors
    /// A user fault, with nothing changed: a length that does not match, a value that training cannot reach (NaN,
    /// infinite, a negative sum of squares).
    pub async fn import(&self, keys: &[u64], weights: &[f32], state: Option<&[f32]>) -> Result<(), Fault> {
        self.layout.check_import(keys, weights, state)?;
        let mut buffers = self.split(keys);
        self.deal(&buffers.shard_of, weights, self.layout.row_dim, &mut buffers.values);
        let mut states = vec![Vec::new(); self.shards.len()];
        if let Some(state) = state {
            self.deal(&buffers.shard_of, state, self.layout.state_dim, &mut states);
        }
        let parts = buffers.keys.into_iter().zip(buffers.values).zip(states);
        let asked = self.shards.iter().zip(parts).map(async |(shard, ((keys, weights), states))| {
            let state = state.map(|_| states);
            match shard.call(Call::Import { keys, weights, state }).await? {
                Reply::Imported => Ok(()),
                _ => Err(confused()),
            }
        });
        try_join_all(asked).await.map(|_| ())
    }

    async fn fetch(&self, keys: &[u64], rows: &mut Vec<f32>, insert: bool) -> Result<(), Fault> {
        let mut buffers = self.split(keys);
        if self.shards.len() == 1 {
            // The shard fills the caller's own buffer.
            buffers.values[0] = std::mem::take(rows);
        }
        self.exchange(&mut buffers, |keys, rows| Call::Pull { keys, rows, insert }).await?;
        match &mut buffers.values[..] {
            [only] => *rows = std::mem::take(only),
            parts => gather(&buffers.shard_of, parts, self.layout.row_dim, rows),
        }
        self.keep(buffers);
        Ok(())
    }

    /// Buffers with the keys dealt out. With one shard there is nothing to split.
    fn split(&self, keys: &[u64]) -> Buffers {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffers = spare.unwrap_or_default();
        buffers.keys.resize_with(self.shards.len(), Vec::new);
        buffers.values.resize_with(self.shards.len(), Vec::new);
        match &mut buffers.keys[..] {
            [only] => copy(keys, only),
            parts => self.route.split(keys, parts, &mut buffers.shard_of),
        }
        buffers
    }

    /// Deals rows of `dim` values out as [`split`](Self::split) did the keys.
    fn deal(&self, shard_of: &[u32], rows: &[f32], dim: usize, parts: &mut [Vec<f32>]) {
        match parts {
            [only] => copy(rows, only),
            parts => scatter(shard_of, rows, dim, parts),
        }
    }

    /// Sends each shard its share, all at once, and puts what comes back in its place. Shards without keys are not asked.
    async fn exchange(
        &self,
        buffers: &mut Buffers,
        call: impl Fn(Vec<u64>, Vec<f32>) -> Call + Copy,
    ) -> Result<(), Fault> {
        let shares = buffers.keys.iter_mut().zip(&mut buffers.values);
        let asked = self.shards.iter().zip(shares).map(async |(shard, (keys, values))| {
            if keys.is_empty() {
                values.clear();
                return Ok(());
            }
            match shard.call(call(std::mem::take(keys), std::mem::take(values))).await? {
                Reply::Buffers { keys: k, values: v } => (*keys, *values) = (k, v),
                _ => return Err(confused()),
            }
            Ok(())
        });
        try_join_all(asked).await.map(|_| ())
    }

    fn keep(&self, buffers: Buffers) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }
}

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) {
    to.clear();
    to.extend_from_slice(from);
}

fn confused() -> Fault {
    Fault::internal("a shard answered another question than it was asked")
}
