//! All rows of a table in memory, by ascending key: the same for any number of shards, and easy to search and to compare.

use forebay_actors::Fault;
use forebay_ps::{ExportBlock, TableClient, group_of};
use futures::executor::block_on;

use crate::model_version::RowsHash;

/// Rows per request to a shard.
const PAGE: usize = 65_536;

/// The rows of a table, by ascending key.
#[derive(Debug, Default)]
pub(crate) struct SortedRows {
    pub(crate) keys: Vec<u64>,
    /// `[keys × row_dim]`.
    weights: Vec<f32>,
    row_dim: usize,
}

impl SortedRows {
    /// No rows.
    pub(crate) fn of_width(row_dim: usize) -> Self {
        Self { row_dim, ..Self::default() }
    }

    /// Adds a row, whose key is above all others.
    pub(crate) fn push(&mut self, key: u64, row: &[f32]) {
        self.keys.push(key);
        self.weights.extend_from_slice(row);
    }

    pub(crate) fn row_dim(&self) -> usize {
        self.row_dim
    }

    /// Copies the rows of `table`. Blocks on its shards.
    pub(crate) fn of(table: &TableClient) -> Result<Self, Fault> {
        let row_dim = table.row_dim();
        let (mut keys, mut weights) = (Vec::new(), Vec::new());
        each_page(table, |page| {
            keys.extend_from_slice(&page.keys);
            weights.extend_from_slice(&page.weights);
            Ok(())
        })?;
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_unstable_by_key(|&row| keys[row as usize]);
        Ok(Self {
            weights: order.iter().flat_map(|&row| &weights[row as usize * row_dim..][..row_dim]).copied().collect(),
            keys: order.iter().map(|&row| keys[row as usize]).collect(),
            row_dim,
        })
    }

    /// The rows of one group of a table with groups, cut to the width of the group: the weights of a row come first, then padding.
    pub(crate) fn of_group(&self, group: usize, row_dim: usize) -> Self {
        let from = self.keys.partition_point(|key| group_of(*key) < group);
        let to = self.keys.partition_point(|key| group_of(*key) <= group);
        let mut rows = Self::of_width(row_dim);
        (from..to).for_each(|at| rows.push(self.keys[at], &self.row(at)[..row_dim]));
        rows
    }

    pub(crate) fn row(&self, at: usize) -> &[f32] {
        &self.weights[at * self.row_dim..][..self.row_dim]
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, &[f32])> {
        self.keys.iter().copied().zip(self.weights.chunks_exact(self.row_dim.max(1)))
    }

    pub(crate) fn hash(&self) -> RowsHash {
        let mut hash = RowsHash::default();
        self.each().for_each(|(key, row)| hash.add(key, row));
        hash
    }

    /// The rows from `from` on, at most [`PAGE`]; an empty block after the last.
    pub(crate) fn page(&self, from: usize) -> ExportBlock {
        let to = (from + PAGE).min(self.keys.len());
        let from = from.min(to);
        let weights = self.weights[from * self.row_dim..to * self.row_dim].to_vec();
        ExportBlock { keys: self.keys[from..to].to_vec(), weights, state: Vec::new(), usages: Vec::new() }
    }
}

/// Calls `take` with the rows of all shards, page by page.
pub(crate) fn each_page(
    table: &TableClient,
    mut take: impl FnMut(ExportBlock) -> Result<(), Fault>,
) -> Result<(), Fault> {
    for shard in table.held() {
        let mut from = 0;
        loop {
            let page = block_on(table.export(shard, from, PAGE))?;
            if page.keys.is_empty() {
                break;
            }
            from += page.keys.len();
            take(page)?;
        }
    }
    Ok(())
}
