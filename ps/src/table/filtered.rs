//! A table whose keys that wait are counted in a Bloom filter: finds the block of a key, and saves and restores blocks.

use super::Table;
use super::bloom::{Bloom, ENTRIES, WORDS};
use crate::error::TableError;
use crate::lifetime::Absent;

impl Table {
    /// Adds `pushes` to the count of a key without a row, and returns the new count.
    pub(super) fn count_in_filter(&mut self, key: u64, pushes: u32) -> Result<u32, TableError> {
        let Some((bloom, blocks)) = self.filter() else { return Ok(0) };
        let (block, places) = bloom.places(key);
        let row = blocks.block(block)?;
        Ok(bloom.count(blocks.arena.row_mut(row), &places, pushes))
    }

    /// Takes the counts of an admitted key out of the filter.
    pub(super) fn forget_in_filter(&mut self, key: u64, pushes: u32) -> Result<(), TableError> {
        let Some((bloom, blocks)) = self.filter() else { return Ok(()) };
        let (block, places) = bloom.places(key);
        let row = blocks.block(block)?;
        bloom.forget(blocks.arena.row_mut(row), &places, pushes);
        Ok(())
    }

    /// Sets the counters of a saved entry. If the entry is the exact count of a key, adds this count.
    ///
    /// # Errors
    /// [`TableError::Config`] if the entry comes from a filter of another size.
    pub(super) fn import_into_filter(&mut self, entry: &Absent) -> Result<(), TableError> {
        let Some((bloom, blocks)) = self.filter() else { return Ok(()) };
        let Some((block, number)) = bloom.place_of(entry) else {
            return Err(TableError::Config {
                table: self.layout.table.clone(),
                what: "the keys that wait were counted by a Bloom filter of another size; expected that of the job before, \
                       or a model without state"
                    .into(),
            });
        };
        let row = blocks.block(block)?;
        bloom.set(blocks.arena.row_mut(row), number, entry);
        Ok(())
    }

    /// Saved entries of the filter from number `from` on, at most `at_most`.
    pub(super) fn export_filter(&mut self, from: usize, at_most: usize) -> Vec<Absent> {
        let Some((bloom, blocks)) = self.filter() else { return Vec::new() };
        let (mut found, mut row, skip) = (Vec::new(), from / ENTRIES, from % ENTRIES);
        while found.len() < at_most.saturating_add(skip) {
            let block = blocks.export(row, 1);
            let Some(key) = block.keys.first() else { break };
            bloom.entries(*key, &block.weights, &mut found);
            row += 1;
        }
        found.drain(..skip.min(found.len()));
        found.truncate(at_most);
        found
    }

    /// The next entries of the filter in the open snapshot, at most `at_most`; none after the last.
    pub(super) fn snapshot_filter(&mut self, at_most: usize) -> Vec<Absent> {
        let Some((bloom, blocks)) = self.filter() else { return Vec::new() };
        while bloom.pending.len() < at_most {
            let page = blocks.snapshot_page(16);
            if page.keys.is_empty() {
                break;
            }
            let mut pending = std::mem::take(&mut bloom.pending);
            for (key, words) in page.keys.iter().zip(page.weights.chunks_exact(WORDS)) {
                bloom.entries(*key, words, &mut pending);
            }
            bloom.pending = pending;
        }
        bloom.pending.drain(..at_most.min(bloom.pending.len())).collect()
    }

    /// The filter and the table of its blocks.
    fn filter(&mut self) -> Option<(&mut Bloom, &mut Table)> {
        Some((self.bloom.as_deref_mut()?, self.waiting.as_deref_mut()?))
    }

    /// The row of a block, which is about to change; makes the row if the block has none.
    fn block(&mut self, block: u64) -> Result<u32, TableError> {
        let hash = self.index.hash(block);
        let row = match self.index.find(hash, block) {
            Some(row) => row,
            None => {
                let row = self.add_row(hash, block)?;
                self.arena.row_mut(row).fill(0.0);
                row
            }
        };
        self.before_changes(&[row]);
        Ok(row)
    }
}
