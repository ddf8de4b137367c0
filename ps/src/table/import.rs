//! Sets rows from outside: a model folder, a checkpoint.

use super::Table;
use super::index::Entry;
use crate::error::TableError;
use crate::lifetime::RowUsage;

/// The usage of a row that comes without one.
const UNSEEN: RowUsage = RowUsage { last_seen: 0, score: 1.0 };

/// Keys whose slots of the index are fetched at once.
const CHUNK: usize = 32;

impl Table {
    /// Sets the rows of `keys` to `weights`, `[keys x row_dim]`, and `state`, `[keys x state_dim]`, or the state of new rows. Rows that
    /// exist are overwritten; if a key repeats, its last row counts. Nothing is changed when a length does not match or a value is one that
    /// training cannot reach (NaN, infinite, a negative sum of squares).
    ///
    /// Rows from [`export`](Self::export) or [`snapshot_page`](Self::snapshot_page) get the same bits, if the table has the same parts and
    /// storage. In a table with a lifetime the rows count as seen before the first step, and none is removed before the next push, however
    /// many they are.
    pub fn import(&mut self, keys: &[u64], weights: &[f32], state: Option<&[f32]>) -> Result<(), TableError> {
        self.import_with_usages(keys, weights, state, &[])
    }

    /// As [`import`](Self::import), with the usages of the rows: none, or one for each key.
    pub fn import_with_usages(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), TableError> {
        self.layout.check_import(keys, weights, state, usages)?;
        self.import_checked(keys, weights, state, usages)
    }

    /// [`import_with_usages`](Self::import_with_usages) after [`Layout::check_import`](super::Layout::check_import).
    pub(crate) fn import_checked(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), TableError> {
        if self.is_grouped() {
            return self.import_grouped(keys, weights, state, usages);
        }
        self.import_at(keys, weights, state, usages, 0..keys.len())
    }

    /// As [`import_checked`](Self::import_checked), of the rows at the places `own` alone; `None`: of all. Not for a table with groups.
    pub(crate) fn import_own(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
        own: Option<&[u32]>,
    ) -> Result<(), TableError> {
        match own {
            None => self.import_checked(keys, weights, state, usages),
            Some(own) => self.import_at(keys, weights, state, usages, own.iter().map(|at| *at as usize)),
        }
    }

    fn import_at(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
        mut places: impl Iterator<Item = usize>,
    ) -> Result<(), TableError> {
        let (dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let mut chunk = [0; CHUNK];
        loop {
            let mut filled = 0;
            for (place, at) in chunk.iter_mut().zip(&mut places) {
                *place = at;
                filled += 1;
                self.index.prefetch(self.index.hash(keys[at]));
            }
            if filled == 0 {
                return Ok(());
            }
            for &at in &chunk[..filled] {
                let state = state.map(|state| &state[at * state_dim..][..state_dim]);
                self.import_row(keys[at], &weights[at * dim..][..dim], state, usages.get(at))?;
            }
        }
    }

    /// Makes room in the index for about this many rows, if the index is empty and the system has the memory.
    pub(crate) fn expect_rows(&mut self, rows: usize) {
        if !self.is_grouped() {
            self.index.reserve(rows);
        }
    }

    pub(super) fn import_row(
        &mut self,
        key: u64,
        weights: &[f32],
        state: Option<&[f32]>,
        usage: Option<&RowUsage>,
    ) -> Result<(), TableError> {
        let hash = self.index.hash(key);
        let row = match self.index.entry(hash, key) {
            Entry::Found(row) => row,
            // The weights that a new row would have are not computed.
            Entry::Vacant(_) if self.usages.is_some() => self.add_row_with_usage(hash, key, UNSEEN)?,
            Entry::Vacant(_) => self.add_row(hash, key)?,
        };
        self.before_changes(&[row]);
        let Self { layout, arena, scratch, stats, usages, .. } = self;
        if let Some(usages) = usages {
            usages.set(row, *usage.unwrap_or(&UNSEEN));
        }
        let row_data = arena.row_mut(row);
        stats.saturated += layout.set_weights(row_data, weights, scratch);
        let into = &mut row_data[layout.weight_words..][..layout.state_dim];
        match state {
            Some(state) => into.copy_from_slice(state),
            None => layout.init_state(weights, into),
        }
        Ok(())
    }
}
