//! Snapshots: the rows of a table as they were at one moment, read in pages while the table goes on to change.
//!
//! ```text
//!   begin ── one bit per row: it is in the snapshot, and it still stands in the table as it was
//!     push of such a row ── saves the row, clears the bit, then changes the row
//!     page ── reads each row where it stands: in the table, or among the saved rows
//!   end ── kept: the next snapshot of changes begins here; or not: it begins where this one would have
//! ```
//!
//! Rows are copied when they change (copy on write by row), so the begin of a snapshot only sets bits: 1.2 MB for each list of 10 M rows.
//! From the first snapshot on the table notes which rows change, and keeps the keys by row.

use super::Table;
use super::copy_on_write::{SnapshotKind, Snapshots};
use super::export_block::ExportBlock;
use super::with_lifetime::counts;
use crate::error::TableError;
use crate::lifetime::Absent;

/// Floats of weights and state in a page at most: 2 MiB, one to four milliseconds of the shard's thread.
const PAGE_WORDS: usize = 1 << 19;

impl Table {
    /// Begins a snapshot of the table, and returns the number of its rows. Read them with [`snapshot_page`](Self::snapshot_page), then call
    /// [`end_snapshot`](Self::end_snapshot). Pulls, pushes and imports may come in between, and do not change the snapshot.
    ///
    /// Takes a fraction of a millisecond per 10 M rows. While the snapshot is open, the table holds a copy of each row that
    /// changes before it was read.
    ///
    /// # Errors
    /// [`TableError::SnapshotOpen`]: another snapshot is open. Nothing was changed.
    pub fn begin_snapshot(&mut self, kind: SnapshotKind) -> Result<u64, TableError> {
        if self.is_grouped() {
            return self.begin_snapshot_grouped(kind);
        }
        let (rows, usages) = (self.arena.rows(), self.usages.as_deref());
        let snapshots = self.snapshots.get_or_insert_with(|| Box::new(Snapshots::new(rows, usages)));
        let words = self.layout.weight_words + self.layout.state_dim;
        let open = || TableError::SnapshotOpen { table: self.layout.table.clone() };
        let begun = snapshots.begin(kind, rows, words, usages).ok_or_else(open)?;
        if let Some(waiting) = &mut self.waiting {
            waiting.begin_snapshot(kind)?;
        }
        Ok(begun)
    }

    /// The next rows of the open snapshot as they were when it began, in the order in which rows came to the table. At most
    /// `at_most` (at least 1), and at most about 2 MiB. An empty block: all were given, or no snapshot is open.
    ///
    /// The first page of a table's first snapshot lists the keys by row: a scan of the index, about 20 ns per row, and 8
    /// bytes per row from then on. A shard does that in slices, between other calls.
    pub fn snapshot_page(&mut self, at_most: usize) -> ExportBlock {
        if self.is_grouped() {
            return self.snapshot_page_grouped(at_most);
        }
        while !self.list_keys_slice() {}
        let Self { layout, arena, snapshots, usages, .. } = self;
        let Some(snapshots) = snapshots else { return ExportBlock::default() };
        let most = (PAGE_WORDS / (layout.row_dim + layout.state_dim)).max(1);
        snapshots.page(at_most.clamp(1, most), layout, arena, usages.as_deref())
    }

    /// The next keys without a row of the open snapshot, at most `at_most` (at least 1); an empty list after the last. In a snapshot of
    /// changes first those whose row was removed, with a count of 0, then those whose pushes are counted. Only in a table with a
    /// lifetime is there any.
    ///
    /// A restore sets these keys first, then the rows of the same snapshot: a removed key may have got a row again.
    pub fn snapshot_absent(&mut self, at_most: usize) -> Vec<Absent> {
        if self.is_grouped() {
            return self.snapshot_absent_grouped(at_most);
        }
        let at_most = at_most.max(1);
        let gone = |keys: Vec<u64>| keys.into_iter().map(|key| Absent { key, count: 0, seen: 0 }).collect();
        let tables = [self.snapshots.as_mut(), self.waiting.as_mut().and_then(|waiting| waiting.snapshots.as_mut())];
        for snapshots in tables.into_iter().flatten() {
            let removed = snapshots.removed_page(at_most);
            if !removed.is_empty() {
                return gone(removed);
            }
        }
        if self.bloom.is_some() {
            return self.snapshot_filter(at_most);
        }
        self.waiting.as_mut().map_or_else(Vec::new, |waiting| counts(waiting.snapshot_page(at_most)))
    }

    /// Lists the keys of some rows by row, if there are rows whose keys are not listed; true when all are.
    pub(crate) fn list_keys_slice(&mut self) -> bool {
        if self.is_grouped() {
            return self.groups.iter_mut().all(Table::list_keys_slice);
        }
        self.snapshots.as_mut().is_none_or(|snapshots| snapshots.list_keys_slice(&self.index))
    }

    /// Rows of the open snapshot that no page has given yet; none without an open snapshot.
    pub fn snapshot_rows_left(&self) -> Option<u64> {
        if self.is_grouped() {
            return self.snapshot_rows_left_grouped();
        }
        self.snapshots.as_ref()?.rows_left()
    }

    /// Ends the open snapshot, if there is one. `kept` says that its rows are safe: the next snapshot of
    /// [`Changes`](SnapshotKind::Changes) then has the rows that changed since this one began. Otherwise it has the rows that
    /// changed since the last snapshot that was kept.
    pub fn end_snapshot(&mut self, kept: bool) {
        self.groups.iter_mut().for_each(|table| table.end_snapshot(kept));
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.end(kept);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.end_snapshot(kept);
        }
        if let Some(bloom) = &mut self.bloom {
            bloom.pending = Vec::new();
        }
    }
}
