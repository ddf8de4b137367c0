//! Pulls, pushes and peeks of a block of keys.
//!
//! A look-up waits for memory twice: for the slot of the index, then for the row. So the table takes keys in chunks of [`CHUNK`]: it
//! prefetches the slots of the next chunk during the work on this one, and all rows of a chunk before it uses the first.

mod whole;

use forebay_base::{LrReductions, mix64};

use super::Table;
use super::layout::Layout;
use crate::error::TableError;
use crate::optim::Update;
use crate::simd::{Kernel, dispatch};

/// Keys in flight at once.
const CHUNK: usize = 32;

impl Table {
    /// Puts the weights of `keys`, `[keys x row_dim]`, into `rows` (which is resized). A key without a row gets one, its
    /// weights drawn from (seed, table, part, key). Keys may repeat.
    pub fn pull(&mut self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), TableError> {
        if self.is_grouped() {
            return self.pull_grouped(keys, rows);
        }
        rows.resize(keys.len() * self.layout.row_dim, 0.0);
        self.stats.pulls += keys.len() as u64;
        if self.usages.is_some() {
            self.pull_with_lifetime(keys, rows);
            return Ok(());
        }
        let mut known = self.recent.oldest(keys);
        let before = self.stats.inserted;
        dispatch(Pull { table: self, keys, rows, known: &mut known })?;
        // Each key without a row got one.
        self.stats.missed += self.stats.inserted - before;
        self.recent.keep(keys, known);
        Ok(())
    }

    /// As [`pull`](Self::pull), but never inserts: a key without a row reads as zeros.
    pub fn peek(&self, keys: &[u64], rows: &mut Vec<f32>) {
        if self.is_grouped() {
            return self.peek_grouped(keys, rows);
        }
        rows.resize(keys.len() * self.layout.row_dim, 0.0);
        dispatch(Peek { table: self, keys, rows });
    }

    /// Applies the gradients `grads`, `[keys x row_dim]`, to the rows of `keys`; `step` is the global step, from 1.
    ///
    /// A key without a row gets one first. Keys should be unique. The gradients of a key that repeats are applied one after the other, in
    /// the order given, not as their sum. Nothing is changed when a length does not match, a gradient is NaN or infinite, or the step is 0.
    pub fn push(&mut self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), TableError> {
        self.layout.check_push(keys, grads, step)?;
        self.push_checked(keys, grads, step)
    }

    /// Reduces the learning rates of later pushes, by their steps. Replaces earlier reductions.
    pub fn reduce_lr(&mut self, reductions: &LrReductions) {
        self.groups.iter_mut().for_each(|group| group.reduce_lr(reductions));
        self.reductions = reductions.clone();
    }

    /// [`push`](Self::push), after [`Layout::check_push`].
    pub(crate) fn push_checked(&mut self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), TableError> {
        debug_assert_eq!(grads.len(), keys.len() * self.layout.row_dim);
        if self.is_grouped() {
            return self.push_grouped(keys, grads, step);
        }
        self.stats.pushes += keys.len() as u64;
        let updates = self.begin_step(step);
        let result = if self.usages.is_some() {
            self.push_with_lifetime(keys, grads, step, &updates)
        } else if let Some(rows) = self.recent.take(keys) {
            dispatch(PushKnown { table: self, rows: &rows, grads, updates: &updates });
            self.recent.give_back(rows);
            Ok(())
        } else {
            dispatch(Push { table: self, keys, grads, updates: &updates })
        };
        self.updates = updates;
        result
    }

    /// What the optimizers of the parts do in this step. The caller puts the buffer back into `updates`.
    fn begin_step(&mut self, step: u64) -> Vec<Update> {
        let mut updates = std::mem::take(&mut self.updates);
        updates.clear();
        let reduction = self.reductions.at(step);
        updates.extend(self.layout.parts.iter().map(|part| part.optimizer.reduced(reduction).at_step(step)));
        self.layout.salt = mix64(step);
        updates
    }
}

/// The work on each row. A trait, because a closure would not be inlined into every compiled width.
trait Visit {
    /// Called with the rows of some keys before [`row`](Self::row) is called with each of them.
    #[inline(always)]
    fn rows(&mut self, _table: &mut Table, _rows: &[u32]) {}

    /// Called once per key, in order. Mark it `#[inline(always)]`.
    fn row(&mut self, table: &mut Table, row: u32);
}

impl Table {
    /// Calls `visit` with the row of each key, in order. The rows of a chunk are prefetched before the first of them is visited.
    #[inline(always)]
    fn each_row(&mut self, keys: &[u64], words: usize, mut visit: impl Visit) -> Result<(), TableError> {
        let (mut hashes, mut ahead, mut rows) = ([0; CHUNK], [0; CHUNK], [0; CHUNK]);
        self.hash_ahead(keys, &mut ahead);
        for (c, chunk) in keys.chunks(CHUNK).enumerate() {
            std::mem::swap(&mut hashes, &mut ahead);
            self.hash_ahead(&keys[c * CHUNK + chunk.len()..], &mut ahead);
            for ((key, hash), row) in chunk.iter().zip(&hashes).zip(&mut rows) {
                *row = self.row_of(*hash, *key)?;
                self.arena.prefetch(*row, words);
            }
            visit.rows(self, &rows[..chunk.len()]);
            for row in &rows[..chunk.len()] {
                visit.row(self, *row);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn hash_ahead(&self, keys: &[u64], hashes: &mut [u64; CHUNK]) {
        for (key, hash) in keys.iter().take(CHUNK).zip(hashes) {
            *hash = self.index.hash(*key);
            self.index.prefetch(*hash);
        }
    }
}

struct Pull<'a> {
    table: &'a mut Table,
    keys: &'a [u64],
    rows: &'a mut [f32],
    known: &'a mut Vec<u32>,
}

impl Kernel for Pull<'_> {
    type Output = Result<(), TableError>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let (dim, words) = (self.table.layout.row_dim, self.table.layout.weight_words);
        self.table.each_row(self.keys, words, Read { out: self.rows.chunks_exact_mut(dim), known: self.known })
    }
}

struct Read<'a> {
    out: std::slice::ChunksExactMut<'a, f32>,
    known: &'a mut Vec<u32>,
}

impl Visit for Read<'_> {
    #[inline(always)]
    fn row(&mut self, table: &mut Table, row: u32) {
        self.known.push(row);
        if let Some(out) = self.out.next() {
            table.layout.read_weights(table.arena.row(row), out);
        }
    }
}

struct Push<'a> {
    table: &'a mut Table,
    keys: &'a [u64],
    grads: &'a [f32],
    updates: &'a [Update],
}

impl Kernel for Push<'_> {
    type Output = Result<(), TableError>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let Layout { row_dim, weight_words, state_dim, .. } = self.table.layout;
        let apply = Apply { grads: self.grads.chunks_exact(row_dim), updates: self.updates };
        self.table.each_row(self.keys, weight_words + state_dim, apply)
    }
}

struct Apply<'a> {
    grads: std::slice::ChunksExact<'a, f32>,
    updates: &'a [Update],
}

impl Visit for Apply<'_> {
    #[inline(always)]
    fn rows(&mut self, table: &mut Table, rows: &[u32]) {
        table.before_changes(rows);
    }

    #[inline(always)]
    fn row(&mut self, table: &mut Table, row: u32) {
        if let Some(grad) = self.grads.next() {
            let Table { layout, arena, scratch, stats, .. } = table;
            stats.saturated += layout.apply(arena.row_mut(row), grad, self.updates, scratch);
        }
    }
}

struct PushKnown<'a> {
    table: &'a mut Table,
    rows: &'a [u32],
    grads: &'a [f32],
    updates: &'a [Update],
}

impl Kernel for PushKnown<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Layout { row_dim, weight_words, state_dim, .. } = self.table.layout;
        let mut apply = Apply { grads: self.grads.chunks_exact(row_dim), updates: self.updates };
        let words = weight_words + state_dim;
        self.rows.iter().take(CHUNK).for_each(|row| self.table.arena.prefetch(*row, words));
        for (c, chunk) in self.rows.chunks(CHUNK).enumerate() {
            apply.rows(self.table, chunk);
            let later = &self.rows[(c * CHUNK + chunk.len())..];
            for (i, row) in chunk.iter().enumerate() {
                if let Some(later) = later.get(i) {
                    self.table.arena.prefetch(*later, words);
                }
                apply.row(self.table, *row);
            }
        }
    }
}

struct Peek<'a> {
    table: &'a Table,
    keys: &'a [u64],
    rows: &'a mut [f32],
}

impl Kernel for Peek<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table: Table { index, arena, layout, .. }, keys, rows } = self;
        let mut found = [None; CHUNK];
        for (keys, out) in keys.chunks(CHUNK).zip(rows.chunks_mut(CHUNK * layout.row_dim)) {
            keys.iter().for_each(|key| index.prefetch(index.hash(*key)));
            for (key, row) in keys.iter().zip(&mut found) {
                *row = index.find(index.hash(*key), *key);
                if let Some(row) = row {
                    arena.prefetch(*row, layout.weight_words);
                }
            }
            for (row, out) in found.iter().zip(out.chunks_exact_mut(layout.row_dim)) {
                match row {
                    Some(row) => layout.read_weights(arena.row(*row), out),
                    None => out.fill(0.0),
                }
            }
        }
    }
}
