//! A client's copy of the rows that its pushes under way change: rows that are pulled meanwhile are as exact as if every push had been
//! applied before the next pull.
//!
//! ```text
//!   batch n:   ask ── whole rows of the keys that no batch under way has ──→ shards     (in the order of the batches)
//!              fill ←── rows                    all others are here, or will be
//!              read     when the gradients of batch n - 1 have been stepped here
//!              step     the gradients, here, by the code of the shards
//!              push ── the same gradients ──→ shards                                    (in the order of the batches)
//!              release ←── applied              a row goes when no batch under way has it
//! ```
//!
//! A row that no batch under way has is exact at its shard: all pushes that change it are applied. The cache holds the other rows, whole,
//! each from the first batch under way that has it on. So a shard need not know which pull belongs before which push. It must apply the
//! pushes of one client in their order; [`PendingPush`] says how that is kept.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_actors::Fault;
use forebay_base::LrReductions;

use crate::buffers::Asked;
use crate::cached_rows::{BegunBatch, CachedBatch, CachedRows, RowCacheStats};
use crate::client::TableClient;
use crate::push::{PushId, PushOutcome};

/// The rows of the batches under way. The caller keeps the order of the batches, as the methods say.
pub struct RowCache {
    client: TableClient,
    rows: Mutex<CachedRows>,
}

/// A batch whose rows were asked for.
pub struct PendingBatch {
    begun: BegunBatch,
    asked: Asked,
}

/// A push that was handed over. The pushes of one client to one process travel on one stream. After a lost connection the client repeats
/// the pushes without an answer in their order, and each is applied once. So a shard applies pushes in the order in which they were handed
/// over.
pub struct PendingPush(Option<Asked>);

impl RowCache {
    /// A cache of the rows of `client`'s table.
    ///
    /// # Errors
    /// User: the table has rules of admission or eviction, so a key may have no row.
    pub fn new(client: &TableClient) -> Result<Self, Fault> {
        if client.config().has_lifetime() {
            return Err(Fault::user(format!(
                "table `{}` admits keys or removes rows by rules, which its shards alone can follow: its rows cannot be cached",
                client.table()
            )));
        }
        if !client.config().groups.is_empty() {
            return Err(Fault::user(format!(
                "table `{}` has groups whose rows differ: its rows cannot be cached",
                client.table()
            )));
        }
        Ok(Self { client: client.clone(), rows: Mutex::new(CachedRows::new(client.config())?) })
    }

    /// Begins a batch with these unique keys: asks for the rows that no batch under way has. To be called for one batch at a time,
    /// in their order.
    ///
    /// # Errors
    /// As [`TableClient::pull`].
    pub async fn ask(&self, keys: &[u64]) -> Result<PendingBatch, Fault> {
        let begun = self.lock().begin(keys)?;
        let asked = self.client.ask_whole(begun.missing()).await?;
        Ok(PendingBatch { begun, asked })
    }

    /// Waits for the rows of a batch.
    ///
    /// # Errors
    /// As [`TableClient::pull`].
    pub async fn fill(&self, pending: PendingBatch) -> Result<CachedBatch, Fault> {
        let PendingBatch { begun, asked } = pending;
        let mut values = Vec::new();
        self.client.take_whole(asked, &mut values).await?;
        Ok(self.lock().fill(begun, &values))
    }

    /// Puts the weights of a batch's keys into `rows`, to the bit as [`TableClient::pull`] would after the pushes of all earlier batches.
    /// To be called after the [step](Self::step) of the batch before.
    ///
    /// # Errors
    /// Internal: the keys belong to another batch.
    pub fn read(&self, keys: &[u64], batch: &CachedBatch, rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.check(keys, batch)?;
        self.lock().read(batch, rows);
        self.client.as_sent(keys, rows)
    }

    /// Applies the gradients of a batch, `[keys x row_dim]`, to the rows here, as the shards will. To be called for one batch at a
    /// time, in their order.
    ///
    /// # Errors
    /// As [`TableClient::push`] before it asks a shard.
    pub fn step(&self, keys: &[u64], batch: &CachedBatch, grads: &[f32], step: u64) -> Result<(), Fault> {
        self.check(keys, batch)?;
        self.client.check_push(keys, grads, step)?;
        match self.client.rounds_values() {
            false => self.lock().step(batch, grads, step),
            true => {
                let mut grads = grads.to_vec();
                self.client.as_sent(keys, &mut grads)?;
                self.lock().step(batch, &grads, step);
            }
        }
        Ok(())
    }

    /// Hands the push of a batch over. To be called for one batch at a time, in their order.
    ///
    /// # Errors
    /// As [`TableClient::push_once`].
    pub async fn push(&self, id: PushId, keys: &[u64], grads: &[f32], step: u64) -> Result<PendingPush, Fault> {
        self.client.ask_push(keys, grads, step, Some(self.client.stamp(id))).await.map(PendingPush)
    }

    /// Waits until a push is applied.
    ///
    /// # Errors
    /// As [`TableClient::push_once`].
    pub async fn applied(&self, pending: PendingPush) -> Result<PushOutcome, Fault> {
        self.client.pushed(pending.0).await
    }

    /// Reduces the learning rates of later steps here, as [`TableClient::reduce_lr`] does at the shards.
    pub fn reduce_lr(&self, reductions: &LrReductions) {
        self.lock().reduce_lr(reductions);
    }

    /// Ends a batch whose push is applied. The rows that no other batch under way has are dropped.
    pub fn release(&self, batch: CachedBatch) {
        self.lock().release(batch);
    }

    /// The counts of the cache so far.
    pub fn stats(&self) -> RowCacheStats {
        self.lock().stats()
    }

    fn check(&self, keys: &[u64], batch: &CachedBatch) -> Result<(), Fault> {
        let (found, expected) = (keys.len(), batch.len());
        if found == expected {
            return Ok(());
        }
        Err(Fault::internal(format!("{found} keys came for a batch of {expected} cached rows")))
    }

    fn lock(&self) -> MutexGuard<'_, CachedRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
