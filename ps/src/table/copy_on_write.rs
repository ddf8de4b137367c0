//! Copy on write by row: which rows changed since the last snapshot, and the rows of the open one as they were.

use serde::{Deserialize, Serialize};

use super::arena::Arena;
use super::bits::Bits;
use super::export_block::ExportBlock;
use super::index::Index;
use super::layout::Layout;
use super::row_keys::RowKeys;
use super::saved_rows::SavedRows;

/// The rows that a snapshot gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// All rows.
    Full,
    /// The rows that were inserted, pushed or imported since the last snapshot that was kept; all rows if there was none.
    Changes,
}

/// What a table keeps from its first snapshot on.
pub(super) struct Snapshots {
    keys: RowKeys,
    /// The rows that changed since the last snapshot that was kept, or since the open one began.
    changed: Bits,
    open: Option<Open>,
}

/// A snapshot that is being read.
struct Open {
    /// The rows of the snapshot.
    rows: Bits,
    /// Those of them that stand in the table as they were: not read yet, and not changed.
    unchanged: Bits,
    /// What `changed` was, unless that is `rows`.
    changed_before: Option<Bits>,
    saved: SavedRows,
    /// The number of the next row to read, or of one before it.
    next: usize,
    /// Rows to read.
    left: u64,
    /// Row numbers of a page, kept for the next.
    page: Vec<u32>,
}

impl Snapshots {
    /// For a table that has `rows` rows and no snapshot so far.
    pub(super) fn new(rows: usize) -> Self {
        Self { keys: RowKeys::new(rows), changed: Bits::ones(rows), open: None }
    }

    /// To be called before rows of the table change. Rows may repeat.
    #[inline(never)]
    pub(super) fn before_changes(&mut self, rows: &[u32], table: &Arena) {
        for row in rows {
            // A row that has changed since the open snapshot began was saved then, if the snapshot needs it.
            if !self.changed.set(*row)
                && let Some(open) = &mut self.open
                && open.unchanged.take(*row)
            {
                open.saved.save(*row, table.row(*row));
            }
        }
    }

    /// To be called when a row was inserted.
    #[inline]
    pub(super) fn inserted(&mut self, row: u32, key: u64) {
        self.keys.set(row, key);
        self.changed.grow(row as usize + 1);
        self.changed.set(row);
    }

    /// Begins a snapshot of a table of `rows` rows of `words` floats, and returns the number of its rows; none if another
    /// one is open.
    pub(super) fn begin(&mut self, kind: SnapshotKind, rows: usize, words: usize) -> Option<u64> {
        if self.open.is_some() {
            return None;
        }
        let changed = std::mem::replace(&mut self.changed, Bits::zeros(rows));
        let (wanted, changed_before) = match kind {
            SnapshotKind::Full => (Bits::ones(rows), Some(changed)),
            SnapshotKind::Changes => (changed, None),
        };
        let (unchanged, left) = (wanted.clone(), wanted.count());
        let (saved, page) = (SavedRows::new(rows, words), Vec::new());
        self.open = Some(Open { rows: wanted, unchanged, changed_before, saved, next: 0, left, page });
        Some(left)
    }

    /// Lists the keys of some rows, if there are rows whose keys are not listed; true when all are.
    pub(super) fn list_keys_slice(&mut self, index: &Index) -> bool {
        self.keys.list_slice(index)
    }

    /// Rows of the open snapshot that no page has given yet.
    pub(super) fn rows_left(&self) -> Option<u64> {
        Some(self.open.as_ref()?.left)
    }

    /// The next rows of the open snapshot, at most `at_most`. All keys must be listed.
    pub(super) fn page(&mut self, at_most: usize, layout: &Layout, table: &Arena) -> ExportBlock {
        let Some(open) = &mut self.open else { return ExportBlock::default() };
        open.page(at_most, layout, &self.keys, table)
    }

    /// Ends the open snapshot.
    pub(super) fn end(&mut self, kept: bool) {
        if let Some(open) = self.open.take()
            && !kept
        {
            self.changed.set_all(open.changed_before.as_ref().unwrap_or(&open.rows));
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.changed.bytes() + self.open.as_ref().map_or(0, Open::bytes)
    }
}

impl Open {
    fn bytes(&self) -> usize {
        let bits = [&self.rows, &self.unchanged].into_iter().chain(&self.changed_before);
        bits.map(Bits::bytes).sum::<usize>() + self.saved.bytes()
    }

    /// The next rows, at most `at_most`.
    fn page(&mut self, at_most: usize, layout: &Layout, keys: &RowKeys, table: &Arena) -> ExportBlock {
        self.next = self.rows.list(self.next, at_most, &mut self.page);
        let (dim, words, state_dim) = (layout.row_dim, layout.weight_words, layout.state_dim);
        let mut block = ExportBlock {
            keys: self.page.iter().map(|row| keys.get(*row)).collect(),
            weights: vec![0.0; self.page.len() * dim],
            state: Vec::with_capacity(self.page.len() * state_dim),
        };
        let mut saved = self.saved.reader();
        for (row, weights) in self.page.iter().zip(block.weights.chunks_exact_mut(dim)) {
            let data = match self.unchanged.take(*row) {
                true => table.row(*row),
                false => saved.row(*row).expect("a row that changed while the snapshot is open was saved before"),
            };
            layout.read_weights(data, weights);
            block.state.extend_from_slice(&data[words..][..state_dim]);
        }
        self.saved.free_before(self.next);
        self.left -= self.page.len() as u64;
        block
    }
}
