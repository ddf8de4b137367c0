//! A client's copy of the rows that its pushes under way change: what is pulled meanwhile is as exact as if every push had been
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
//! A row that no batch under way has is exact at its shard: all pushes that change it are applied. A row that one has is here,
//! whole, from its first batch on. So a shard need not know which pull belongs before which push. It must apply the pushes of one
//! client in their order; [`PendingPush`] says how that is kept.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_actors::Fault;
use forebay_base::mix64;

use crate::buffers::Asked;
use crate::client::TableClient;
use crate::error::TableError;
use crate::push::{PushId, PushOutcome};
use crate::table::Table;

/// The rows of the batches under way. The caller keeps the order of the batches, as the methods say.
pub struct RowCache {
    client: TableClient,
    rows: Mutex<Rows>,
}

/// A batch whose rows were asked for.
pub struct PendingBatch {
    rows: Vec<u32>,
    /// The numbers of the rows that come, in their order.
    coming: Vec<u32>,
    asked: Asked,
}

/// A batch under way: the numbers of its rows in the cache, in the order of its keys. Give it to [`RowCache::release`].
#[derive(Debug)]
pub struct CachedBatch {
    rows: Vec<u32>,
}

/// A push that was handed over. Those of one client to one process travel on one stream, and after a lost connection all that have
/// no answer are sent again in their order, each applied once: so a shard applies them in the order in which they were handed over.
pub struct PendingPush(Option<Asked>);

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCacheStats {
    /// Keys of all batches.
    pub keys: u64,
    /// Those of them whose rows were pulled; the others were here.
    pub pulled: u64,
    /// Rows here now.
    pub rows: u64,
    /// The most rows that were here at once.
    pub most_rows: u64,
    /// Bytes of memory for rows and keys.
    pub bytes: u64,
}

struct Rows {
    /// Rows by number, without keys.
    table: Table,
    /// The number of the row of each key.
    numbers: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// By number: the key, and how many batches under way have it.
    used: Vec<(u64, u32)>,
    free: Vec<u32>,
    stats: RowCacheStats,
}

/// A batch that has begun.
struct Begun {
    /// The numbers of its rows.
    rows: Vec<u32>,
    /// The keys that had no row here, and the numbers of their rows.
    missing: Vec<u64>,
    coming: Vec<u32>,
}

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
        let table = Table::new(client.config())?;
        let (numbers, stats) = (HashMap::default(), RowCacheStats::default());
        Ok(Self {
            client: client.clone(),
            rows: Mutex::new(Rows { table, numbers, used: Vec::new(), free: Vec::new(), stats }),
        })
    }

    /// Begins a batch with these unique keys: asks for the rows that no batch under way has. To be called for one batch at a time,
    /// in their order.
    ///
    /// # Errors
    /// As [`TableClient::pull`].
    pub async fn ask(&self, keys: &[u64]) -> Result<PendingBatch, Fault> {
        let Begun { rows, missing, coming } = self.lock().begin(keys)?;
        Ok(PendingBatch { rows, coming, asked: self.client.ask_whole(&missing).await? })
    }

    /// Waits for the rows of a batch.
    ///
    /// # Errors
    /// As [`TableClient::pull`].
    pub async fn fill(&self, pending: PendingBatch) -> Result<CachedBatch, Fault> {
        let PendingBatch { rows, coming, asked } = pending;
        let (mut values, dim) = (Vec::new(), self.client.whole_dim());
        self.client.take_whole(asked, &mut values).await?;
        let mut held = self.lock();
        for (row, whole) in coming.into_iter().zip(values.chunks_exact(dim)) {
            held.table.set_whole(row, whole);
        }
        Ok(CachedBatch { rows })
    }

    /// Puts the weights of a batch's keys into `rows`, to the bit as [`TableClient::pull`] would after the pushes of all earlier
    /// batches. To be called when the batch before it was [stepped](Self::step).
    ///
    /// # Errors
    /// Internal: the keys are those of another batch.
    pub fn read(&self, keys: &[u64], batch: &CachedBatch, rows: &mut Vec<f32>) -> Result<(), Fault> {
        self.check(keys, batch)?;
        self.lock().table.read_by_number(&batch.rows, rows);
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
            false => self.lock().table.push_by_number(&batch.rows, grads, step),
            true => {
                let mut grads = grads.to_vec();
                self.client.as_sent(keys, &mut grads)?;
                self.lock().table.push_by_number(&batch.rows, &grads, step);
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

    /// Ends a batch whose push is applied. The rows that no other batch under way has are dropped.
    pub fn release(&self, batch: CachedBatch) {
        self.lock().release(&batch.rows);
    }

    /// What the cache has done and holds.
    pub fn stats(&self) -> RowCacheStats {
        let rows = self.lock();
        let keys = rows.numbers.capacity() * 16 + rows.used.capacity() * 16 + rows.free.capacity() * 4;
        let bytes = rows.table.stats().bytes + keys as u64;
        RowCacheStats { rows: rows.numbers.len() as u64, bytes, ..rows.stats }
    }

    fn check(&self, keys: &[u64], batch: &CachedBatch) -> Result<(), Fault> {
        if keys.len() == batch.rows.len() {
            return Ok(());
        }
        let (found, expected) = (keys.len(), batch.rows.len());
        Err(Fault::internal(format!("{found} keys came for a batch of {expected} cached rows")))
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    /// Counts a batch of `keys` as under way.
    fn begin(&mut self, keys: &[u64]) -> Result<Begun, TableError> {
        let (mut rows, mut missing, mut coming) = (Vec::with_capacity(keys.len()), Vec::new(), Vec::new());
        for key in keys {
            let row = match self.numbers.entry(*key) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    let row = match self.free.pop() {
                        Some(row) => row,
                        None => {
                            self.used.push((0, 0));
                            self.table.add_without_key()?
                        }
                    };
                    self.used[row as usize] = (*key, 0);
                    missing.push(*key);
                    coming.push(row);
                    *entry.insert(row)
                }
            };
            self.used[row as usize].1 += 1;
            rows.push(row);
        }
        self.stats.keys += keys.len() as u64;
        self.stats.pulled += missing.len() as u64;
        self.stats.most_rows = self.stats.most_rows.max(self.numbers.len() as u64);
        Ok(Begun { rows, missing, coming })
    }

    fn release(&mut self, rows: &[u32]) {
        for row in rows {
            let (key, uses) = &mut self.used[*row as usize];
            *uses -= 1;
            if *uses == 0 {
                self.numbers.remove(key);
                self.free.push(*row);
            }
        }
    }
}

/// Keys are hashes already; one multiplication spreads those that a job gives as they are.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix64(self.0 ^ key);
    }
}
