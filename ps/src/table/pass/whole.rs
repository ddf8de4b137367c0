//! Whole rows, weights and state: pulled from a table of keys, and kept by number in a table without keys (a cache of rows that
//! another table owns).

use super::{CHUNK, PushKnown, Visit};
use crate::error::TableError;
use crate::simd::{Kernel, dispatch};
use crate::table::{NO_MEMORY, Table};

impl Table {
    /// As [`pull`](Self::pull), of whole rows: `[keys x (row_dim + state_dim)]`, the weights as f32 for every storage. The table has no
    /// lifetime.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn pull_whole(&mut self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), TableError> {
        debug_assert!(self.usages.is_none());
        rows.resize(keys.len() * self.layout.whole_dim(), 0.0);
        self.stats.pulls += keys.len() as u64;
        dispatch(PullWhole { table: self, keys, rows })
    }

    /// Adds a row of zeros that has no key, and returns its number.
    pub(crate) fn add_without_key(&mut self) -> Result<u32, TableError> {
        self.check_row_numbers()?;
        if self.arena.make_room() { Ok(self.arena.add()) } else { Err(self.full(NO_MEMORY)) }
    }

    /// Sets the row of this number to a whole row as [`pull_whole`](Self::pull_whole) gives it, of a table with the same parts and
    /// storage: the same bits.
    pub(crate) fn set_whole(&mut self, row: u32, whole: &[f32]) {
        let Self { layout, arena, scratch, .. } = self;
        let (weights, state) = whole.split_at(layout.row_dim);
        let row = arena.row_mut(row);
        scratch.copy_from_slice(weights);
        layout.write_weights(row, scratch);
        row[layout.weight_words..][..layout.state_dim].copy_from_slice(state);
    }

    /// Puts the weights of the rows of these numbers, `[rows x row_dim]`, into `out` (which is resized).
    pub(crate) fn read_by_number(&self, rows: &[u32], out: &mut Vec<f32>) {
        out.resize(rows.len() * self.layout.row_dim, 0.0);
        dispatch(ReadKnown { table: self, rows, out });
    }

    /// As [`push`](Self::push), to the rows of these numbers; `grads` were checked.
    pub(crate) fn push_by_number(&mut self, rows: &[u32], grads: &[f32], step: u64) {
        debug_assert_eq!(grads.len(), rows.len() * self.layout.row_dim);
        let updates = self.begin_step(step);
        dispatch(PushKnown { table: self, rows, grads, updates: &updates });
        self.updates = updates;
    }
}

struct PullWhole<'a> {
    table: &'a mut Table,
    keys: &'a [u64],
    rows: &'a mut [f32],
}

impl Kernel for PullWhole<'_> {
    type Output = Result<(), TableError>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let layout = &self.table.layout;
        let (whole, words) = (layout.whole_dim(), layout.weight_words + layout.state_dim);
        self.table.each_row(self.keys, words, ReadWhole { out: self.rows.chunks_exact_mut(whole) })
    }
}

struct ReadWhole<'a> {
    out: std::slice::ChunksExactMut<'a, f32>,
}

impl Visit for ReadWhole<'_> {
    #[inline(always)]
    fn row(&mut self, table: &mut Table, row: u32) {
        if let Some(out) = self.out.next() {
            let (layout, row) = (&table.layout, table.arena.row(row));
            let (weights, state) = out.split_at_mut(layout.row_dim);
            layout.read_weights(row, weights);
            state.copy_from_slice(&row[layout.weight_words..][..layout.state_dim]);
        }
    }
}

struct ReadKnown<'a> {
    table: &'a Table,
    rows: &'a [u32],
    out: &'a mut [f32],
}

impl Kernel for ReadKnown<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table: Table { arena, layout, .. }, rows, out } = self;
        for (rows, out) in rows.chunks(CHUNK).zip(out.chunks_mut(CHUNK * layout.row_dim)) {
            rows.iter().for_each(|row| arena.prefetch(*row, layout.weight_words));
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(layout.row_dim)) {
                layout.read_weights(arena.row(*row), out);
            }
        }
    }
}
