//! Pulls and pushes of a table with a lifetime. Pulls change nothing; rows come and go in pushes.

use forebay_base::{mix64, unit_f64};

use super::Table;
use super::bloom::is_entry;
use super::index::Entry;
use super::layout::Layout;
use super::row_usages::NONE;
use crate::error::TableError;
use crate::lifetime::{Absent, Admission, BloomCount, RowUsage};
use crate::optim::Update;
use crate::simd::{Kernel, dispatch};

/// Keys in flight at once.
const CHUNK: usize = 32;

impl Table {
    /// As [`pull`](Self::pull). A key without a row reads as the row that the push will make, or as zeros if it has to be
    /// admitted.
    pub(super) fn pull_with_lifetime(&mut self, keys: &[u64], rows: &mut [f32]) {
        debug_assert!(self.removed.is_empty(), "a push takes the keys that it removes from the index");
        let mut known = self.recent.oldest(keys);
        dispatch(PullWithLifetime { table: self, keys, rows, known: &mut known });
        self.stats.missed += known.iter().filter(|row| **row == NONE).count() as u64;
        self.recent.keep(keys, known);
    }

    /// As [`push`](Self::push). Keys are counted, rows are made and removed.
    pub(super) fn push_with_lifetime(
        &mut self,
        keys: &[u64],
        grads: &[f32],
        step: u64,
        updates: &[Update],
    ) -> Result<(), TableError> {
        let mut rows = self.recent.take(keys).unwrap_or_default();
        rows.resize(keys.len(), NONE);
        let result = dispatch(PushWithLifetime { table: self, keys, rows: &mut rows, grads, step, updates });
        self.recent.give_back(rows);
        self.remove_expired(step);
        self.unindex();
        result
    }

    /// The row of a key that a push has; makes the row if the key is admitted.
    #[inline(never)]
    fn row_for_push(&mut self, key: u64, step: u64) -> Result<Option<u32>, TableError> {
        let hash = self.index.hash(key);
        if let Some(row) = self.find(hash, key) {
            return Ok(Some(row));
        }
        if !self.admits(key, step)? {
            self.stats.refused += 1;
            return Ok(None);
        }
        self.make_way(key, step);
        let row = self.add_row_with_usage(hash, key, RowUsage { last_seen: 0, score: 0.0 })?;
        self.stats.saturated += self.layout.init_row(key, self.arena.row_mut(row), &mut self.scratch);
        Ok(Some(row))
    }

    /// Whether a key without a row gets one with this push.
    fn admits(&mut self, key: u64, step: u64) -> Result<bool, TableError> {
        match self.admission {
            None => Ok(true),
            Some(Admission::Probability(p)) => Ok(unit_f64(mix64(key ^ mix64(self.layout.seed ^ mix64(step)))) < p),
            Some(Admission::Bloom(BloomCount { count: needed, .. })) => {
                let count = self.count_in_filter(key, 1)?;
                if count >= needed {
                    self.forget_in_filter(key, count)?;
                }
                Ok(count >= needed)
            }
            Some(Admission::Count(needed)) => {
                let Some(waiting) = &mut self.waiting else { return Ok(true) };
                let count = waiting.count(key, step)?;
                if count >= needed {
                    waiting.forget(key);
                }
                Ok(count >= needed)
            }
        }
    }

    /// Counts a push that has the key, in a table of counts.
    fn count(&mut self, key: u64, step: u64) -> Result<u32, TableError> {
        let hash = self.index.hash(key);
        let row = match self.find(hash, key) {
            Some(row) => row,
            None => {
                self.make_way(key, step);
                let row = self.add_row_with_usage(hash, key, RowUsage { last_seen: 0, score: 0.0 })?;
                self.arena.row_mut(row)[0] = 0.0;
                row
            }
        };
        self.before_changes(&[row]);
        if let Some(usages) = &mut self.usages {
            usages.touch(row, step);
        }
        let count = &mut self.arena.row_mut(row)[0];
        *count += 1.0;
        Ok(*count as u32)
    }

    /// Removes the row of a key, if it has one.
    pub(super) fn forget(&mut self, key: u64) {
        if let Some(row) = self.find(self.index.hash(key), key) {
            self.remove_row(row);
        }
    }

    /// If the cell of `key` is full, removes rows of it, so that `key` can get one.
    fn make_way(&mut self, key: u64, step: u64) {
        let mut rows = std::mem::take(&mut self.leaving);
        if let Some(usages) = &mut self.usages {
            usages.displaced(key, step, &mut rows);
        }
        self.remove_rows(&rows);
        self.leaving = rows;
    }

    fn remove_expired(&mut self, step: u64) {
        let mut rows = std::mem::take(&mut self.leaving);
        if let Some(usages) = &self.usages {
            usages.expired(step, &mut rows);
        }
        self.remove_rows(&rows);
        self.leaving = rows;
        if let Some(waiting) = &mut self.waiting {
            waiting.remove_expired(step);
        }
    }

    fn remove_rows(&mut self, rows: &[u32]) {
        self.stats.evicted += rows.len() as u64;
        rows.iter().for_each(|row| self.remove_row(*row));
    }

    /// Removes a row. Its key stays in the index until [`unindex`](Self::unindex), so that the slot has time to come from memory.
    fn remove_row(&mut self, row: u32) {
        self.before_changes(&[row]);
        let Some(usages) = &mut self.usages else { return };
        let key = usages.key(row);
        usages.remove(row);
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.removed(row, key);
        }
        self.index.prefetch(self.index.hash(key));
        self.removed.push(key);
        if self.removed.len() == CHUNK {
            self.unindex();
        }
    }

    /// Takes the keys of removed rows from the index: to be called before anything but [`find`](Self::find) reads the index.
    fn unindex(&mut self) {
        for key in self.removed.drain(..) {
            self.index.remove(self.index.hash(key), key);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.unindex();
        }
    }

    /// The row of a key, also while keys of removed rows are in the index.
    fn find(&mut self, hash: u64, key: u64) -> Option<u32> {
        let row = self.index.find(hash, key)?;
        if self.usages.as_ref().is_none_or(|usages| usages.is(row, key)) {
            return Some(row);
        }
        // The key may get a row now.
        self.unindex();
        None
    }

    /// Adds a place for the row of `key`, which has none. The caller must set the weights: the place has its earlier contents.
    pub(super) fn add_row_with_usage(&mut self, hash: u64, key: u64, usage: RowUsage) -> Result<u32, TableError> {
        self.check_row_numbers()?;
        if !self.index.grow() {
            return Err(self.full(super::NO_MEMORY));
        }
        let Self { usages: Some(usages), arena, index, .. } = self else { return Ok(NONE) };
        let Some(row) = usages.place(key, arena) else { return Err(self.full(super::NO_MEMORY)) };
        if let Entry::Vacant(vacant) = index.entry(hash, key) {
            index.fill(vacant, row);
        }
        usages.add(row, key, usage);
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.inserted(row, key);
        }
        self.count_inserted();
        Ok(row)
    }

    /// Keys without a row whose pushes are counted, from number `from` on, at most `at_most`.
    pub fn export_absent(&mut self, from: usize, at_most: usize) -> Vec<Absent> {
        if self.is_grouped() {
            return self.export_absent_grouped(from, at_most);
        }
        if self.bloom.is_some() {
            return self.export_filter(from, at_most);
        }
        self.waiting.as_mut().map_or_else(Vec::new, |waiting| counts(waiting.export(from, at_most)))
    }

    /// Removes the rows of these keys, and sets the counts of their pushes. Without admission by count, the counts are left out.
    pub fn import_absent(&mut self, absent: &[Absent]) -> Result<(), TableError> {
        if self.is_grouped() {
            return self.import_absent_grouped(absent);
        }
        for entry @ Absent { key, count, seen } in absent {
            if is_entry(entry) {
                // A filter counts the keys, so single keys are unknown.
                self.import_into_filter(entry)?;
                continue;
            }
            self.forget(*key);
            self.unindex();
            if self.bloom.is_some() {
                if *count > 0 {
                    self.count_in_filter(*key, *count)?;
                }
                continue;
            }
            let Some(waiting) = &mut self.waiting else { continue };
            match count {
                0 => {
                    waiting.forget(*key);
                    waiting.unindex();
                }
                count => waiting.import_row(
                    *key,
                    &[*count as f32],
                    None,
                    Some(&RowUsage { last_seen: *seen, score: 1.0 }),
                )?,
            }
        }
        Ok(())
    }
}

/// The rows of a table of counts.
pub(super) fn counts(block: super::ExportBlock) -> Vec<Absent> {
    let counted = block.keys.into_iter().zip(block.weights).zip(block.usages);
    counted.map(|((key, count), usage)| Absent { key, count: count as u32, seen: usage.last_seen }).collect()
}

struct PullWithLifetime<'a> {
    table: &'a mut Table,
    keys: &'a [u64],
    rows: &'a mut [f32],
    known: &'a mut Vec<u32>,
}

impl Kernel for PullWithLifetime<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, rows, known } = self;
        let Table { index, arena, layout, scratch, blank, admission, .. } = table;
        let layout = &*layout;
        let prefetch = |keys: &[u64]| keys.iter().take(CHUNK).for_each(|key| index.prefetch(index.hash(*key)));
        prefetch(keys);
        for (c, (chunk, out)) in keys.chunks(CHUNK).zip(rows.chunks_mut(CHUNK * layout.row_dim)).enumerate() {
            prefetch(&keys[c * CHUNK + chunk.len()..]);
            let first = known.len();
            for key in chunk {
                let row = index.find(index.hash(*key), *key).unwrap_or(NONE);
                known.push(row);
                if row != NONE {
                    arena.prefetch(row, layout.weight_words);
                }
            }
            for ((key, row), out) in chunk.iter().zip(&known[first..]).zip(out.chunks_exact_mut(layout.row_dim)) {
                if *row != NONE {
                    layout.read_weights(arena.row(*row), out);
                } else if admission.is_some() {
                    out.fill(0.0);
                } else {
                    layout.initial_weights(*key, out, blank, scratch);
                }
            }
        }
    }
}

struct PushWithLifetime<'a> {
    table: &'a mut Table,
    keys: &'a [u64],
    /// Where each row was when it was pulled, or [`NONE`].
    rows: &'a mut [u32],
    grads: &'a [f32],
    step: u64,
    updates: &'a [Update],
}

impl Kernel for PushWithLifetime<'_> {
    type Output = Result<(), TableError>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let Self { table, keys, rows, grads, step, updates } = self;
        let Layout { row_dim, weight_words, state_dim, .. } = table.layout;
        let (mut grads, words) = (grads.chunks_exact(row_dim), weight_words + state_dim);
        table.prefetch_for_push(keys, rows, words);
        for first in (0..keys.len()).step_by(CHUNK) {
            let end = (first + CHUNK).min(keys.len());
            table.prefetch_for_push(&keys[end..], &rows[end..], words);
            let (keys, rows) = (&keys[first..end], &mut rows[first..end]);
            // Keys that were not pulled, or had no row then.
            for (key, row) in keys.iter().zip(&mut *rows) {
                if *row == NONE {
                    *row = table.index.find(table.index.hash(*key), *key).unwrap_or(NONE);
                    match (*row, &table.usages) {
                        (NONE, Some(usages)) => usages.prefetch_place(*key, &table.arena, words),
                        (NONE, None) => {}
                        (row, _) => table.prefetch_with_usage(row, words),
                    }
                }
            }
            for (key, row) in keys.iter().zip(&*rows) {
                let Some(grad) = grads.next() else { break };
                let still = *row != NONE && table.usages.as_ref().is_some_and(|usages| usages.is(*row, *key));
                let row = if still { Some(*row) } else { table.row_for_push(*key, step)? };
                let Some(row) = row else { continue };
                table.before_changes(&[row]);
                let Table { layout, arena, scratch, stats, usages, .. } = &mut *table;
                if let Some(usages) = usages {
                    usages.touch(row, step);
                }
                stats.saturated += layout.apply(arena.row_mut(row), grad, updates, scratch);
            }
        }
        Ok(())
    }
}

impl Table {
    /// Prefetches what the first [`CHUNK`] keys of a push need: their rows, where known, else where the index has them.
    #[inline(always)]
    fn prefetch_for_push(&self, keys: &[u64], rows: &[u32], words: usize) {
        for (key, row) in keys.iter().zip(rows).take(CHUNK) {
            match *row {
                NONE => self.prefetch_key(*key),
                row => self.prefetch_with_usage(row, words),
            }
        }
    }

    #[inline(always)]
    fn prefetch_key(&self, key: u64) {
        let prefetch = |table: &Self| table.index.prefetch(table.index.hash(key));
        prefetch(self);
        if let Some(usages) = &self.usages {
            usages.prefetch_cell(key);
        }
        match (&self.waiting, &self.bloom) {
            (Some(blocks), Some(bloom)) => blocks.index.prefetch(blocks.index.hash(bloom.places(key).0)),
            (Some(waiting), None) => prefetch(waiting),
            (None, _) => {}
        }
    }

    #[inline(always)]
    fn prefetch_with_usage(&self, row: u32, words: usize) {
        self.arena.prefetch(row, words);
        if let Some(usages) = &self.usages {
            usages.prefetch(row);
        }
    }
}
