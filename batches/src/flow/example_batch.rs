//! Parsed rows in columns. `parse` makes them from a record batch; `batch` cuts and de-duplicates them.

use forebay_actors::{Batch, BatchName, Lineage, StageCx};
use forebay_connectors::WindowMark;

use super::slot_integers::SlotIntegers;
use super::{KeptRows, heap};

/// The keys of one slot (a categorical column), row by row.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotKeys {
    /// One key per row: `[n]`.
    One(Vec<u64>),
    /// One integer per row. The first use of the keys computes them.
    Integers(SlotIntegers),
    /// Any number of keys per row. The keys of row `i` are `keys[offsets[i]..offsets[i + 1]]`.
    Many {
        /// `[n + 1]`, ascending from 0.
        offsets: Vec<u32>,
        /// `[offsets[n]]`.
        keys: Vec<u64>,
    },
    /// As `Many`, with a weight for each key.
    Weighted {
        /// `[n + 1]`, ascending from 0.
        offsets: Vec<u32>,
        /// `[offsets[n]]`.
        keys: Vec<u64>,
        /// `[offsets[n]]`, each finite and at least 0.
        weights: Vec<f32>,
    },
}

impl SlotKeys {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::One(keys) => keys.len(),
            Self::Integers(integers) => integers.rows(),
            Self::Many { offsets, .. } | Self::Weighted { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// The keys of the rows `from..to`.
    pub fn keys(&self, from: usize, to: usize) -> &[u64] {
        match self {
            Self::One(keys) => &keys[from..to],
            Self::Integers(integers) => &integers.keys()[from..to],
            Self::Many { offsets, keys } | Self::Weighted { offsets, keys, .. } => {
                &keys[offsets[from] as usize..offsets[to] as usize]
            }
        }
    }

    /// The weights of the keys of the rows `from..to`; `None` if every key of the slot weighs 1.
    pub fn weights(&self, from: usize, to: usize) -> Option<&[f32]> {
        match self {
            Self::One(_) | Self::Integers(_) | Self::Many { .. } => None,
            Self::Weighted { offsets, weights, .. } => Some(&weights[offsets[from] as usize..offsets[to] as usize]),
        }
    }

    /// Where the keys of each row begin, `[n + 1]`; `None` if each row has one key.
    pub fn offsets(&self) -> Option<&[u32]> {
        match self {
            Self::One(_) | Self::Integers(_) => None,
            Self::Many { offsets, .. } | Self::Weighted { offsets, .. } => Some(offsets),
        }
    }

    /// Number of keys of the rows `from..to`.
    pub fn count(&self, from: usize, to: usize) -> usize {
        self.offsets().map_or(to - from, |offsets| (offsets[to] - offsets[from]) as usize)
    }

    /// The keys of all rows. Integers become keys.
    pub(crate) fn all_mut(&mut self) -> &mut [u64] {
        if let Self::Integers(integers) = self {
            *self = Self::One(integers.keys().to_vec());
        }
        match self {
            Self::One(keys) | Self::Many { keys, .. } | Self::Weighted { keys, .. } => keys,
            Self::Integers(_) => unreachable!("they became keys"),
        }
    }

    fn select(&self, rows: &[u32]) -> Self {
        match self {
            Self::One(keys) => return Self::One(rows.iter().map(|&row| keys[row as usize]).collect()),
            Self::Integers(integers) => return Self::Integers(integers.select(rows)),
            Self::Many { .. } | Self::Weighted { .. } => {}
        }
        let (mut offsets, mut selected) = (Vec::with_capacity(rows.len() + 1), Vec::new());
        let mut weights = Vec::new();
        offsets.push(0);
        for row in rows.iter().map(|&row| row as usize) {
            selected.extend_from_slice(self.keys(row, row + 1));
            weights.extend_from_slice(self.weights(row, row + 1).unwrap_or_default());
            offsets.push(selected.len() as u32);
        }
        match self {
            Self::Weighted { .. } => Self::Weighted { offsets, keys: selected, weights },
            _ => Self::Many { offsets, keys: selected },
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::One(keys) => heap(keys),
            Self::Integers(integers) => integers.bytes(),
            Self::Many { offsets, keys } => heap(offsets) + heap(keys),
            Self::Weighted { offsets, keys, weights } => heap(offsets) + heap(keys) + heap(weights),
        }
    }
}

/// `n` parsed rows of `t` labels (mostly 1), `d` dense features and some slots.
#[derive(Clone, Debug, PartialEq)]
pub struct ExampleBatch {
    /// The lineage of the first row.
    pub lineage: Lineage,
    /// The window it belongs to.
    pub window: WindowMark,
    /// Rows of the window that were rejected in or just before this batch. The batch may have no other rows.
    pub rejected: u32,
    /// `n`.
    pub rows: usize,
    /// `[t × n]`, label by label, each from 0 to 1.
    pub labels: Vec<f32>,
    /// `[n]`, each at least 0; empty if every row weighs 1.
    pub weights: Vec<f32>,
    /// `[d × n]`, column by column, after the transform (by default the logarithm for integer columns). The raw values are in
    /// [`Rows`](forebay_connectors::Rows).
    pub dense: Vec<f32>,
    /// One per slot.
    pub slots: Vec<SlotKeys>,
    /// `[n]`: the columns that a prediction writes beside the scores. `None` in training.
    pub kept: Option<KeptRows>,
}

impl ExampleBatch {
    /// Number of dense features, `d`.
    pub fn dense_columns(&self) -> usize {
        self.dense.len().checked_div(self.rows).unwrap_or(0)
    }

    /// The values of dense feature `column`, `[n]`.
    pub fn dense_column(&self, column: usize) -> &[f32] {
        &self.dense[column * self.rows..(column + 1) * self.rows]
    }

    /// Number of labels, `t`.
    pub fn label_columns(&self) -> usize {
        self.labels.len().checked_div(self.rows).unwrap_or(0)
    }

    /// Label `k` of each row, `[n]`.
    pub fn label_column(&self, k: usize) -> &[f32] {
        &self.labels[k * self.rows..(k + 1) * self.rows]
    }

    /// Keeps the rows for which `keep` is true, in their order. Counts the others under `reason` in the run's ledger and among
    /// the rejected rows of the window. Send the batch on even if it has no rows left: it carries the counts and the end of
    /// its window.
    #[must_use]
    pub fn retain_rows(self, cx: &StageCx, reason: &str, mut keep: impl FnMut(ExampleRow<'_>) -> bool) -> Self {
        let rows = self.rows as u32;
        let kept: Vec<u32> = (0..rows).filter(|&row| keep(ExampleRow { batch: &self, row: row as usize })).collect();
        let rejected = rows - kept.len() as u32;
        if rejected == 0 {
            return self;
        }
        cx.ledger().reject(reason, u64::from(rejected));
        let mut batch = self.select(&kept);
        batch.rejected = batch.rejected.saturating_add(rejected);
        batch
    }

    /// Sets the dense features of some rows to 0.
    pub(crate) fn clear_dense(&mut self, rows: impl Iterator<Item = usize>) {
        for row in rows {
            self.dense.iter_mut().skip(row).step_by(self.rows).for_each(|value| *value = 0.0);
        }
    }

    /// The rows with these numbers.
    fn select(&self, rows: &[u32]) -> Self {
        let take = |column: &[f32]| -> Vec<f32> { rows.iter().map(|&row| column[row as usize]).collect() };
        let labels = (0..self.label_columns()).flat_map(|label| take(self.label_column(label))).collect();
        let dense = (0..self.dense_columns()).flat_map(|column| take(self.dense_column(column))).collect();
        Self {
            lineage: self.lineage.clone(),
            window: self.window,
            rejected: self.rejected,
            rows: rows.len(),
            labels,
            weights: if self.weights.is_empty() { Vec::new() } else { take(&self.weights) },
            dense,
            slots: self.slots.iter().map(|slot| slot.select(rows)).collect(),
            kept: self.kept.as_ref().map(|kept| KeptRows::gather(std::slice::from_ref(kept), rows)),
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
    /// The label, from 0 to 1; of several labels the first.
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

    /// The weights of the keys of slot `slot`; `None` if each weighs 1.
    pub fn value_weights(&self, slot: usize) -> Option<&'a [f32]> {
        self.batch.slots[slot].weights(self.row, self.row + 1)
    }
}

impl Batch for ExampleBatch {
    fn rows(&self) -> usize {
        self.rows
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

    fn name(&self) -> Option<BatchName> {
        Some(BatchName { epoch: self.lineage.epoch, window: self.window.window, index: None })
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
        let (mut keys, mut value_weights) = (Vec::new(), Vec::new());
        for r in rows.clone() {
            keys.extend(std::iter::repeat_n(r, (r % 3) as usize));
            value_weights.extend((0..r % 3).map(|i| (r + i) as f32));
            offsets.push(keys.len() as u32);
        }
        ExampleBatch {
            lineage: Lineage { row: rows.start, ..Lineage::default() },
            window: WindowMark::default(),
            rejected: 0,
            rows: n,
            labels: (0..2 * n).map(|i| (i / n) as f32).collect(),
            weights: rows.clone().map(|r| r as f32 + 0.5).collect(),
            dense,
            slots: vec![
                SlotKeys::One(rows.map(|r| r * 10).collect()),
                SlotKeys::Many { offsets: offsets.clone(), keys: keys.clone() },
                SlotKeys::Weighted { offsets, keys, weights: value_weights },
            ],
            kept: None,
        }
    }

    #[test]
    fn selected_rows_keep_every_column() {
        let some = batch(0..7).select(&[6, 0, 5, 2]);
        assert_eq!(some.slots[0], SlotKeys::One(vec![60, 0, 50, 20]));
        assert_eq!(some.slots[1], SlotKeys::Many { offsets: vec![0, 0, 0, 2, 4], keys: vec![5, 5, 2, 2] });
        let weights = vec![5.0, 6.0, 2.0, 3.0];
        assert_eq!(some.slots[2].weights(3, 4), Some(&weights[2..]));
        assert_eq!(some.slots[2], SlotKeys::Weighted { offsets: vec![0, 0, 0, 2, 4], keys: vec![5, 5, 2, 2], weights });
        assert_eq!(some.dense_column(0), [6.0, 0.0, 5.0, 2.0]);
        assert_eq!(some.dense_column(1), [-6.0, -0.0, -5.0, -2.0]);
        assert_eq!(some.labels, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(some.weights, [6.5, 0.5, 5.5, 2.5]);
        assert_eq!((some.rows(), some.lineage.row), (4, 0));
    }
}
