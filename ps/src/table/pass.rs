//! How a block of keys is worked off: a pull, a push, a push of rows known already, a peek.
//!
//! Comes in: a table and a block. Goes out: rows read or changed. Nothing blocks.
//!
//! A look-up waits for memory twice: for the slot of the index, then for the row. So keys are worked off in chunks of
//! [`CHUNK`]: while one chunk is worked on, the slots of the next are on their way, and all rows of a chunk are asked for
//! before the first is used.

use super::Table;
use super::layout::Layout;
use crate::error::TableError;
use crate::optim::Update;
use crate::simd::Job;

/// Keys in flight at once.
const CHUNK: usize = 32;

/// What is done with each row. A trait, as a closure would not be inlined into every compiled width.
trait Visit {
    /// Called once per key, in order. Mark it `#[inline(always)]`.
    fn row(&mut self, table: &mut Table, row: u32);
}

impl Table {
    /// Calls `visit` with the row of each key, in order, on its way since [`AHEAD`] keys.
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

pub(super) struct Pull<'a> {
    pub(super) table: &'a mut Table,
    pub(super) keys: &'a [u64],
    pub(super) rows: &'a mut [f32],
    pub(super) known: &'a mut Vec<u32>,
}

impl Job for Pull<'_> {
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

pub(super) struct Push<'a> {
    pub(super) table: &'a mut Table,
    pub(super) keys: &'a [u64],
    pub(super) grads: &'a [f32],
    pub(super) updates: &'a [Update],
}

impl Job for Push<'_> {
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
    fn row(&mut self, table: &mut Table, row: u32) {
        if let Some(grad) = self.grads.next() {
            let Table { layout, arena, scratch, stats, .. } = table;
            stats.saturated += layout.apply(arena.row_mut(row), grad, self.updates, scratch);
        }
    }
}

pub(super) struct PushKnown<'a> {
    pub(super) table: &'a mut Table,
    pub(super) rows: &'a [u32],
    pub(super) grads: &'a [f32],
    pub(super) updates: &'a [Update],
}

impl Job for PushKnown<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Layout { row_dim, weight_words, state_dim, .. } = self.table.layout;
        let mut apply = Apply { grads: self.grads.chunks_exact(row_dim), updates: self.updates };
        let fetch =
            |table: &Table, rows: &[u32]| rows.iter().for_each(|r| table.arena.prefetch(*r, weight_words + state_dim));
        fetch(self.table, &self.rows[..CHUNK.min(self.rows.len())]);
        for (i, row) in self.rows.iter().enumerate() {
            if let Some(later) = self.rows.get(i + CHUNK) {
                self.table.arena.prefetch(*later, weight_words + state_dim);
            }
            apply.row(self.table, *row);
        }
    }
}

pub(super) struct Peek<'a> {
    pub(super) table: &'a Table,
    pub(super) keys: &'a [u64],
    pub(super) rows: &'a mut [f32],
}

impl Job for Peek<'_> {
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
