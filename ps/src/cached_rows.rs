//! The rows of the batches under way of one client: a state machine without clock or IO, which [`RowCache`](crate::RowCache) keeps
//! behind a lock. It is public for simulations of a whole cluster.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use forebay_base::{LrReductions, mix64};

use crate::config::TableConfig;
use crate::error::TableError;
use crate::table::Table;

/// Whole rows. The cache holds a row from the first batch under way that has its key to the last.
pub struct CachedRows {
    /// Rows by number, without keys.
    table: Table,
    /// The number of the row of each key.
    numbers: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// By number: the key, and how many batches under way have it.
    used: Vec<(u64, u32)>,
    free: Vec<u32>,
    stats: RowCacheStats,
}

/// A batch that has begun. Give it to [`CachedRows::fill`].
#[derive(Debug)]
pub struct BegunBatch {
    /// The numbers of its rows.
    rows: Vec<u32>,
    missing: Vec<u64>,
    /// The numbers of the rows of the missing keys.
    coming: Vec<u32>,
}

impl BegunBatch {
    /// The keys that had no row in the cache.
    pub fn missing(&self) -> &[u64] {
        &self.missing
    }
}

/// A batch under way: the numbers of its rows in the cache, in the order of its keys. Give it to
/// [`RowCache::release`](crate::RowCache::release).
#[derive(Debug)]
pub struct CachedBatch {
    rows: Vec<u32>,
}

impl CachedBatch {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

/// The counts of a cache so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCacheStats {
    /// Keys of all batches.
    pub keys: u64,
    /// How many of these keys had their rows pulled; the others had them in the cache.
    pub pulled: u64,
    /// Rows in the cache.
    pub rows: u64,
    /// The most rows that the cache held at once.
    pub most_rows: u64,
    /// Bytes of memory for rows and keys.
    pub bytes: u64,
}

impl CachedRows {
    /// No rows yet, of a table without lifetime and groups.
    ///
    /// # Errors
    /// As [`Table::new`].
    pub fn new(config: &TableConfig) -> Result<Self, TableError> {
        Ok(Self {
            table: Table::new(config)?,
            numbers: HashMap::default(),
            used: Vec::new(),
            free: Vec::new(),
            stats: RowCacheStats::default(),
        })
    }

    /// Counts a batch of these unique keys as under way.
    ///
    /// # Errors
    /// There is no memory.
    pub fn begin(&mut self, keys: &[u64]) -> Result<BegunBatch, TableError> {
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
        Ok(BegunBatch { rows, missing, coming })
    }

    /// Sets the rows of the missing keys to `whole`, as [`Table::pull_whole`] gives them.
    pub fn fill(&mut self, begun: BegunBatch, whole: &[f32]) -> CachedBatch {
        let BegunBatch { rows, coming, .. } = begun;
        let dim = self.table.row_dim() + self.table.state_dim();
        coming.into_iter().zip(whole.chunks_exact(dim)).for_each(|(row, whole)| self.table.set_whole(row, whole));
        CachedBatch { rows }
    }

    /// Puts the weights of a batch, `[keys x row_dim]`, into `rows`.
    pub fn read(&self, batch: &CachedBatch, rows: &mut Vec<f32>) {
        self.table.read_by_number(&batch.rows, rows);
    }

    /// Applies the gradients of a batch, `[keys x row_dim]`, as a shard does.
    pub fn step(&mut self, batch: &CachedBatch, grads: &[f32], step: u64) {
        self.table.push_by_number(&batch.rows, grads, step);
    }

    /// Reduces the learning rates of later steps, as a shard does.
    pub fn reduce_lr(&mut self, reductions: &LrReductions) {
        self.table.reduce_lr(reductions);
    }

    /// Ends a batch. The rows that no other batch under way has are dropped.
    pub fn release(&mut self, batch: CachedBatch) {
        for row in batch.rows {
            let (key, uses) = &mut self.used[row as usize];
            *uses -= 1;
            if *uses == 0 {
                self.numbers.remove(key);
                self.free.push(row);
            }
        }
    }

    /// The counts so far.
    pub fn stats(&self) -> RowCacheStats {
        let keys = self.numbers.capacity() * 16 + self.used.capacity() * 16 + self.free.capacity() * 4;
        let bytes = self.table.stats().bytes + keys as u64;
        RowCacheStats { rows: self.numbers.len() as u64, bytes, ..self.stats }
    }
}

/// Most keys are hashes; one multiplication spreads the keys that a job gives without a hash.
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
