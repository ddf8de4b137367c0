//! Parsed rows, column by column: what `parse` makes of a record batch and `batch` cuts and de-duplicates.

use forebay_actors::{Batch, Lineage, StageCx};
use forebay_connectors::WindowMark;

use super::heap;

/// The keys of one slot (a categorical column), row by row.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotKeys {
    /// One key a row: `[n]`.
    One(Vec<u64>),
    /// Any number of keys a row: those of row `i` are `keys[offsets[i]..offsets[i + 1]]`; `offsets` is `[n + 1]` and
    /// starts at 0.
    Many {
        /// `[n + 1]`, rising, from 0.
        offsets: Vec<u32>,
        /// `[offsets[n]]`.
        keys: Vec<u64>,
    },
}

impl SlotKeys {
    /// Rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::One(keys) => keys.len(),
            Self::Many { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// Keys of the rows `from..to`.
    pub fn keys(&self, from: usize, to: usize) -> &[u64] {
        match self {
            Self::One(keys) => &keys[from..to],
            Self::Many { offsets, keys } => &keys[offsets[from] as usize..offsets[to] as usize],
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::One(keys) => heap(keys),
            Self::Many { offsets, keys } => heap(offsets) + heap(keys),
        }
    }
}

/// `n` parsed rows of `d` dense features and some slots.
#[derive(Clone, Debug, PartialEq)]
pub struct ExampleBatch {
    /// Where it came from.
    pub lineage: Lineage,
    /// The window it belongs to.
    pub window: WindowMark,
    /// Rows of the window that were rejected here or just before, so that the window's rows add up. A batch may have such a
    /// count and no rows.
    pub rejected: u32,
    /// `[n]`, each 0 or 1.
    pub labels: Vec<f32>,
    /// `[d × n]`: column after column, so that each stage walks memory in order. The values are transformed already (by
    /// default the logarithm of an integer column); raw values are in [`Rows`](forebay_connectors::Rows).
    pub dense: Vec<f32>,
    /// One per slot.
    pub slots: Vec<SlotKeys>,
}

impl ExampleBatch {
    /// Number of dense features, `d`.
    pub fn dense_columns(&self) -> usize {
        self.dense.len().checked_div(self.labels.len()).unwrap_or(0)
    }

    /// The values of dense feature `column`, `[n]`.
    pub fn dense_column(&self, column: usize) -> &[f32] {
        let n = self.labels.len();
        &self.dense[column * n..(column + 1) * n]
    }

    /// Keeps the rows for which `keep` is true, in their order. Counts the others under `reason` in the run's ledger and among
    /// the rejected rows of the window. What is left may have no rows; it is to be sent on all the same, since it carries the
    /// counts and the end of its window.
    #[must_use]
    pub fn retain_rows(self, cx: &StageCx, reason: &str, mut keep: impl FnMut(ExampleRow<'_>) -> bool) -> Self {
        let rows = self.rows() as u32;
        let kept: Vec<u32> = (0..rows).filter(|&row| keep(ExampleRow { batch: &self, row: row as usize })).collect();
        let rejected = rows - kept.len() as u32;
        if rejected == 0 {
            return self;
        }
        cx.ledger().reject(reason, u64::from(rejected));
        let mut batch = Self::gather(&[self], &kept);
        batch.rejected = batch.rejected.saturating_add(rejected);
        batch
    }

    /// Puts the rows of several batches together in the order that `order` says, where row `i` of the whole is counted
    /// through all of `chunks` one after the other.
    ///
    /// Walks column by column, so that what is read at random stays in a core's own cache (a column of 65,536 keys is
    /// 512 KiB). Lineage and window are those of the first chunk.
    pub fn gather(chunks: &[Self], order: &[u32]) -> Self {
        let first = chunks.first().expect("at least one chunk is gathered");
        let places = places(chunks, order);
        let mut dense = Vec::with_capacity(order.len() * first.dense_columns());
        for c in 0..first.dense_columns() {
            let columns: Vec<&[f32]> = chunks.iter().map(|chunk| chunk.dense_column(c)).collect();
            dense.extend(places.iter().map(|&(chunk, row)| columns[chunk as usize][row as usize]));
        }
        let slots = (0..first.slots.len())
            .map(|s| gather_slot(&chunks.iter().map(|chunk| &chunk.slots[s]).collect::<Vec<_>>(), &places))
            .collect();
        Self {
            lineage: first.lineage.clone(),
            window: first.window,
            rejected: chunks.iter().map(|chunk| chunk.rejected).sum(),
            labels: places.iter().map(|&(chunk, row)| chunks[chunk as usize].labels[row as usize]).collect(),
            dense,
            slots,
        }
    }
}

/// One row of an [`ExampleBatch`].
#[derive(Clone, Copy)]
pub struct ExampleRow<'a> {
    batch: &'a ExampleBatch,
    row: usize,
}

impl<'a> ExampleRow<'a> {
    /// 0 or 1.
    pub fn label(&self) -> f32 {
        self.batch.labels[self.row]
    }

    /// Dense feature `column` after its transform: with the default transform of an integer column, sign(x) · ln(1 + |x|).
    pub fn dense(&self, column: usize) -> f32 {
        self.batch.dense_column(column)[self.row]
    }

    /// The keys of slot `slot`.
    pub fn keys(&self, slot: usize) -> &'a [u64] {
        self.batch.slots[slot].keys(self.row, self.row + 1)
    }
}

/// (chunk, row within it) of each row in `order`.
fn places(chunks: &[ExampleBatch], order: &[u32]) -> Vec<(u32, u32)> {
    let mut place_of = Vec::with_capacity(chunks.iter().map(Batch::rows).sum());
    for (c, chunk) in chunks.iter().enumerate() {
        place_of.extend((0..chunk.rows() as u32).map(|row| (c as u32, row)));
    }
    order.iter().map(|&row| place_of[row as usize]).collect()
}

fn gather_slot(chunks: &[&SlotKeys], places: &[(u32, u32)]) -> SlotKeys {
    let ones: Option<Vec<&[u64]>> = chunks
        .iter()
        .map(|slot| match slot {
            SlotKeys::One(keys) => Some(keys.as_slice()),
            SlotKeys::Many { .. } => None,
        })
        .collect();
    if let Some(ones) = ones {
        return SlotKeys::One(places.iter().map(|&(chunk, row)| ones[chunk as usize][row as usize]).collect());
    }
    let mut offsets = Vec::with_capacity(places.len() + 1);
    let mut keys = Vec::new();
    offsets.push(0);
    for &(chunk, row) in places {
        keys.extend_from_slice(chunks[chunk as usize].keys(row as usize, row as usize + 1));
        offsets.push(keys.len() as u32);
    }
    SlotKeys::Many { offsets, keys }
}

impl Batch for ExampleBatch {
    fn rows(&self) -> usize {
        self.labels.len()
    }

    fn bytes(&self) -> usize {
        heap(&self.labels) + heap(&self.dense) + self.slots.iter().map(SlotKeys::bytes).sum::<usize>()
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: std::ops::Range<u64>) -> ExampleBatch {
        let n = rows.clone().count();
        let mut dense: Vec<f32> = rows.clone().map(|r| r as f32).collect();
        dense.extend(rows.clone().map(|r| -(r as f32)));
        let mut offsets = vec![0];
        let mut keys = Vec::new();
        for r in rows.clone() {
            keys.extend(std::iter::repeat_n(r, (r % 3) as usize));
            offsets.push(keys.len() as u32);
        }
        ExampleBatch {
            lineage: Lineage { row: rows.start, ..Lineage::default() },
            window: WindowMark::default(),
            rejected: 0,
            labels: vec![1.0; n],
            dense,
            slots: vec![SlotKeys::One(rows.map(|r| r * 10).collect()), SlotKeys::Many { offsets, keys }],
        }
    }

    #[test]
    fn gather_takes_every_column_in_the_order_asked_for() {
        let chunks = [batch(0..3), batch(3..7)];
        let all = ExampleBatch::gather(&chunks, &[6, 0, 5, 2]);
        assert_eq!(all.slots[0], SlotKeys::One(vec![60, 0, 50, 20]));
        assert_eq!(all.slots[1], SlotKeys::Many { offsets: vec![0, 0, 0, 2, 4], keys: vec![5, 5, 2, 2] });
        assert_eq!(all.dense_column(0), [6.0, 0.0, 5.0, 2.0]);
        assert_eq!(all.dense_column(1), [-6.0, -0.0, -5.0, -2.0]);
        assert_eq!((all.rows(), all.lineage.row), (4, 0));
    }
}
