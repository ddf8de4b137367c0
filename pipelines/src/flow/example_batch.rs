//! Parsed rows in columns. `parse` makes them from a record batch; `batch` cuts and de-duplicates them.

use forebay_actors::{Batch, Lineage, StageCx};
use forebay_connectors::WindowMark;

use super::{KeptRows, heap};

/// The keys of one slot (a categorical column), row by row.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotKeys {
    /// One key per row: `[n]`.
    One(Vec<u64>),
    /// Any number of keys per row. The keys of row `i` are `keys[offsets[i]..offsets[i + 1]]`.
    Many {
        /// `[n + 1]`, ascending from 0.
        offsets: Vec<u32>,
        /// `[offsets[n]]`.
        keys: Vec<u64>,
    },
}

impl SlotKeys {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::One(keys) => keys.len(),
            Self::Many { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// The keys of the rows `from..to`.
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
    /// Rows of the window that were rejected in or just before this batch. The batch may have no other rows.
    pub rejected: u32,
    /// `[n]`, each from 0 to 1.
    pub labels: Vec<f32>,
    /// `[n]`, each at least 0; empty if every row weighs 1.
    pub weights: Vec<f32>,
    /// `[d × n]`, column by column, after the transform (by default the logarithm for integer columns). The raw values are in
    /// [`Rows`](forebay_connectors::Rows).
    pub dense: Vec<f32>,
    /// One per slot.
    pub slots: Vec<SlotKeys>,
    /// `[n]`: what a prediction writes beside the scores. `None` in training.
    pub kept: Option<KeptRows>,
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
    /// the rejected rows of the window. Send the batch on even if it has no rows left: it carries the counts and the end of
    /// its window.
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

    /// Sets the dense features of some rows to 0.
    pub(crate) fn clear_dense(&mut self, rows: impl Iterator<Item = usize>) {
        let n = self.labels.len();
        for row in rows {
            self.dense.iter_mut().skip(row).step_by(n).for_each(|value| *value = 0.0);
        }
    }

    /// Gathers rows of several batches into one. `order` has row numbers in the concatenation of `chunks`. Lineage and window
    /// are those of the first chunk.
    ///
    /// Works column by column, so that random reads stay in the L2 cache (a column of 65,536 keys is 512 KiB).
    pub fn gather(chunks: &[Self], order: &[u32]) -> Self {
        let first = chunks.first().expect("at least one chunk is gathered");
        let places = places(chunks, order);
        let mut dense = Vec::with_capacity(order.len() * first.dense_columns());
        for c in 0..first.dense_columns() {
            let columns: Vec<&[f32]> = chunks.iter().map(|chunk| chunk.dense_column(c)).collect();
            dense.extend(places.iter().map(|&(chunk, row)| columns[chunk as usize][row as usize]));
        }
        let kept: Option<Vec<&KeptRows>> = chunks.iter().map(|chunk| chunk.kept.as_ref()).collect();
        let slots = (0..first.slots.len())
            .map(|s| gather_slot(&chunks.iter().map(|chunk| &chunk.slots[s]).collect::<Vec<_>>(), &places))
            .collect();
        Self {
            lineage: first.lineage.clone(),
            window: first.window,
            rejected: chunks.iter().map(|chunk| chunk.rejected).sum(),
            labels: places.iter().map(|&(chunk, row)| chunks[chunk as usize].labels[row as usize]).collect(),
            weights: match first.weights.is_empty() {
                true => Vec::new(),
                false => places.iter().map(|&(chunk, row)| chunks[chunk as usize].weights[row as usize]).collect(),
            },
            dense,
            slots,
            kept: kept.map(|kept| KeptRows::gather(&kept, &places)),
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
    /// The label, from 0 to 1.
    pub fn label(&self) -> f32 {
        self.batch.labels[self.row]
    }

    /// Dense feature `column` after its transform. The default for an integer column is sign(x) · ln(1 + |x|).
    pub fn dense(&self, column: usize) -> f32 {
        self.batch.dense_column(column)[self.row]
    }

    /// The keys of slot `slot`.
    pub fn keys(&self, slot: usize) -> &'a [u64] {
        self.batch.slots[slot].keys(self.row, self.row + 1)
    }
}

/// The (chunk, row within the chunk) of each row in `order`.
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
        heap(&self.labels)
            + heap(&self.weights)
            + heap(&self.dense)
            + self.slots.iter().map(SlotKeys::bytes).sum::<usize>()
            + self.kept.as_ref().map_or(0, KeptRows::bytes)
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
            weights: rows.clone().map(|r| r as f32 + 0.5).collect(),
            dense,
            slots: vec![SlotKeys::One(rows.map(|r| r * 10).collect()), SlotKeys::Many { offsets, keys }],
            kept: None,
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
        assert_eq!(all.weights, [6.5, 0.5, 5.5, 2.5]);
        assert_eq!((all.rows(), all.lineage.row), (4, 0));
    }
}
