//! Copy on write by row: which rows changed since the last snapshot, and the rows of the open snapshot as they were.

use serde::{Deserialize, Serialize};

use super::arena::Arena;
use super::bits::Bits;
use super::export_block::ExportBlock;
use super::index::Index;
use super::layout::Layout;
use super::row_keys::RowKeys;
use super::row_usages::RowUsages;
use super::saved_rows::SavedRows;
use crate::lifetime::RowUsage;

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
    /// `None` in a table with a lifetime, whose usages have the keys.
    keys: Option<RowKeys>,
    /// The rows that changed since the last snapshot that was kept, or since the open one began.
    changed: Bits,
    /// Rows among these that are new: if they are removed, no snapshot has to say so.
    new: Bits,
    /// Keys whose rows were removed in that time; some may have rows again.
    removed: Vec<u64>,
    open: Option<Open>,
}

/// A snapshot that is being read.
struct Open {
    /// The rows of the snapshot.
    rows: Bits,
    /// Rows of the snapshot that are not read yet, and still unchanged in the table.
    unchanged: Bits,
    /// `changed` before the snapshot, unless that is `rows`.
    changed_before: Option<Bits>,
    /// `new` and `removed` before the snapshot.
    new_before: Bits,
    removed: Vec<u64>,
    /// Keys of `removed` that are not to be given, or were given.
    removed_given: usize,
    saved: SavedRows,
    /// The number of the next row to read, or of one before it.
    next: usize,
    /// Rows to read.
    left: u64,
    /// Row numbers of a page, kept for the next.
    page: Vec<u32>,
}

/// Floats that are saved of a row beside its weights and state: its key and its usage.
const USAGE_WORDS: usize = 4;

fn usage_words(usages: &RowUsages, row: u32) -> [f32; USAGE_WORDS] {
    let (key, RowUsage { last_seen: seen, score }) = (usages.key(row), usages.usage(row));
    [f32::from_bits(key as u32), f32::from_bits((key >> 32) as u32), f32::from_bits(seen), score]
}

fn of_usage_words(words: &[f32]) -> (u64, RowUsage) {
    let key = u64::from(words[0].to_bits()) | u64::from(words[1].to_bits()) << 32;
    (key, RowUsage { last_seen: words[2].to_bits(), score: words[3] })
}

impl Snapshots {
    /// For a table that has `rows` rows and no snapshot so far.
    pub(super) fn new(rows: usize, usages: Option<&RowUsages>) -> Self {
        let keys = usages.is_none().then(|| RowKeys::new(rows));
        Self { keys, changed: Bits::ones(rows), new: Bits::ones(rows), removed: Vec::new(), open: None }
    }

    /// To be called before rows of the table change. Rows may repeat.
    #[inline(never)]
    pub(super) fn before_changes(&mut self, rows: &[u32], table: &Arena, usages: Option<&RowUsages>) {
        for row in rows {
            // A row that has changed since the open snapshot began was saved then, if the snapshot needs it.
            if !self.changed.set(*row)
                && let Some(open) = &mut self.open
                && open.unchanged.take(*row)
            {
                match usages {
                    Some(usages) => open.saved.save(*row, table.row(*row), &usage_words(usages, *row)),
                    None => open.saved.save(*row, table.row(*row), &[]),
                }
            }
        }
    }

    /// To be called when a row was inserted.
    #[inline]
    pub(super) fn inserted(&mut self, row: u32, key: u64) {
        if let Some(keys) = &mut self.keys {
            keys.set(row, key);
        }
        for bits in [&mut self.changed, &mut self.new] {
            bits.grow(row as usize + 1);
            bits.set(row);
        }
    }

    /// To be called when a row was removed, after [`before_changes`](Self::before_changes).
    pub(super) fn removed(&mut self, row: u32, key: u64) {
        self.changed.take(row);
        if !self.new.take(row) {
            self.removed.push(key);
        }
    }

    /// Begins a snapshot of a table of `rows` rows (or places for rows) of `words` floats, and returns the number of its rows;
    /// none if another one is open.
    pub(super) fn begin(
        &mut self,
        kind: SnapshotKind,
        rows: usize,
        words: usize,
        usages: Option<&RowUsages>,
    ) -> Option<u64> {
        if self.open.is_some() {
            return None;
        }
        let changed = std::mem::replace(&mut self.changed, Bits::zeros(rows));
        let new_before = std::mem::replace(&mut self.new, Bits::zeros(rows));
        let removed = std::mem::take(&mut self.removed);
        let (mut wanted, changed_before, removed_given) = match kind {
            SnapshotKind::Full => (Bits::ones(rows), Some(changed), removed.len()),
            SnapshotKind::Changes => (changed, None, 0),
        };
        if let Some(usages) = usages {
            wanted.keep_only(usages.alive());
        }
        let (unchanged, left) = (wanted.clone(), wanted.count());
        let words = words + if usages.is_some() { USAGE_WORDS } else { 0 };
        let (saved, page) = (SavedRows::new(rows, words), Vec::new());
        let rows = wanted;
        self.open = Some(Open {
            rows,
            unchanged,
            changed_before,
            new_before,
            removed,
            removed_given,
            saved,
            next: 0,
            left,
            page,
        });
        Some(left)
    }

    /// Keys of rows that were removed before the open snapshot, at most `at_most`; of changes only. They may repeat, and some
    /// of them may have rows again.
    pub(super) fn removed_page(&mut self, at_most: usize) -> Vec<u64> {
        let Some(open) = &mut self.open else { return Vec::new() };
        let from = open.removed_given;
        open.removed_given = from.saturating_add(at_most).min(open.removed.len());
        open.removed[from..open.removed_given].to_vec()
    }

    /// Lists the keys of some rows, if there are rows whose keys are not listed; true when all are.
    pub(super) fn list_keys_slice(&mut self, index: &Index) -> bool {
        self.keys.as_mut().is_none_or(|keys| keys.list_slice(index))
    }

    /// Rows of the open snapshot that no page has given yet.
    pub(super) fn rows_left(&self) -> Option<u64> {
        Some(self.open.as_ref()?.left)
    }

    /// The next rows of the open snapshot, at most `at_most`. All keys must be listed.
    pub(super) fn page(
        &mut self,
        at_most: usize,
        layout: &Layout,
        table: &Arena,
        usages: Option<&RowUsages>,
    ) -> ExportBlock {
        let Some(open) = &mut self.open else { return ExportBlock::default() };
        open.page(at_most, layout, self.keys.as_ref(), table, usages)
    }

    /// Ends the open snapshot.
    pub(super) fn end(&mut self, kept: bool) {
        if let Some(open) = self.open.take()
            && !kept
        {
            self.changed.set_all(open.changed_before.as_ref().unwrap_or(&open.rows));
            self.new.set_all(&open.new_before);
            self.removed.extend(open.removed);
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let bits = self.changed.bytes() + self.new.bytes();
        let keys = self.keys.as_ref().map_or(0, RowKeys::bytes) + self.removed.capacity() * 8;
        keys + bits + self.open.as_ref().map_or(0, Open::bytes)
    }
}

impl Open {
    fn bytes(&self) -> usize {
        let bits = [&self.rows, &self.unchanged, &self.new_before].into_iter().chain(&self.changed_before);
        bits.map(Bits::bytes).sum::<usize>() + self.saved.bytes() + self.removed.capacity() * 8
    }

    /// The next rows, at most `at_most`.
    fn page(
        &mut self,
        at_most: usize,
        layout: &Layout,
        keys: Option<&RowKeys>,
        table: &Arena,
        usages: Option<&RowUsages>,
    ) -> ExportBlock {
        self.next = self.rows.list(self.next, at_most, &mut self.page);
        let (dim, words, state_dim) = (layout.row_dim, layout.weight_words, layout.state_dim);
        let mut block = ExportBlock {
            keys: Vec::with_capacity(self.page.len()),
            weights: vec![0.0; self.page.len() * dim],
            state: Vec::with_capacity(self.page.len() * state_dim),
            usages: Vec::new(),
        };
        let mut saved = self.saved.reader();
        for (row, weights) in self.page.iter().zip(block.weights.chunks_exact_mut(dim)) {
            let stands = self.unchanged.take(*row);
            let data = match stands {
                true => table.row(*row),
                false => saved.row(*row).expect("a row that changed while the snapshot is open was saved before"),
            };
            layout.read_weights(data, weights);
            block.state.extend_from_slice(&data[words..][..state_dim]);
            block.keys.push(match (keys, usages) {
                (Some(keys), _) => keys.get(*row),
                (None, Some(usages)) => {
                    // A place that changed may have another key since.
                    let (key, usage) = match stands {
                        true => (usages.key(*row), usages.usage(*row)),
                        false => of_usage_words(&data[words + state_dim..]),
                    };
                    block.usages.push(usage);
                    key
                }
                (None, None) => unreachable!("a table knows its keys by a list or by their usages"),
            });
        }
        self.saved.free_before(self.next);
        self.left -= self.page.len() as u64;
        block
    }
}
