//! Sets rows from outside: a model folder, a checkpoint.

use super::Table;
use super::index::Entry;
use crate::error::TableError;

/// Keys whose slots of the index are fetched at once.
const CHUNK: usize = 32;

impl Table {
    /// Sets the rows of `keys` to `weights`, `[keys x row_dim]`, and `state`, `[keys x state_dim]`, or the state of new
    /// rows. Rows that exist are overwritten; of a key that repeats the last row counts. Nothing is changed when a length
    /// does not match or a value is one that training cannot reach (NaN, infinite, a negative sum of squares).
    ///
    /// What [`export`](Self::export) or [`snapshot_page`](Self::snapshot_page) gave is set to the same bits, if the table
    /// has the same parts and storage.
    pub fn import(&mut self, keys: &[u64], weights: &[f32], state: Option<&[f32]>) -> Result<(), TableError> {
        self.layout.check_import(keys, weights, state)?;
        self.import_checked(keys, weights, state)
    }

    /// [`import`](Self::import) of what [`Layout::check_import`](super::Layout::check_import) has seen already.
    pub(crate) fn import_checked(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
    ) -> Result<(), TableError> {
        let (dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let mut at = 0;
        for chunk in keys.chunks(CHUNK) {
            chunk.iter().for_each(|key| self.index.prefetch(self.index.hash(*key)));
            for key in chunk {
                let state = state.map(|state| &state[at * state_dim..][..state_dim]);
                self.import_row(*key, &weights[at * dim..][..dim], state)?;
                at += 1;
            }
        }
        Ok(())
    }

    fn import_row(&mut self, key: u64, weights: &[f32], state: Option<&[f32]>) -> Result<(), TableError> {
        let hash = self.index.hash(key);
        let row = match self.index.entry(hash, key) {
            Entry::Found(row) => row,
            // The weights that the key would have had from its seed are not worked out.
            Entry::Vacant(_) => self.add_row(hash, key)?,
        };
        self.before_changes(&[row]);
        let Self { layout, arena, scratch, stats, .. } = self;
        let row_data = arena.row_mut(row);
        scratch.copy_from_slice(weights);
        stats.saturated += layout.write_weights(row_data, scratch);
        let into = &mut row_data[layout.weight_words..][..layout.state_dim];
        match state {
            Some(state) => into.copy_from_slice(state),
            None => layout.init_state(weights, into),
        }
        Ok(())
    }
}
