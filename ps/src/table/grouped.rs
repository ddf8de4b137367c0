//! A table of several groups: a table for each group, whose rows are as wide as the group's, behind the calls of one table.
//!
//! Callers pass and get rows as wide as in the widest group, with zeros at their end; this file cuts and pads them. The batch stage orders
//! the keys of a batch by group, so a call becomes one call for each group. Keys in another order are put in order first: a push must reach
//! each group once, because rows age with pushes.

use super::{ExportBlock, Layout, SnapshotKind, Table};
use crate::config::TableConfig;
use crate::error::TableError;
use crate::groups::{group_of, runs};
use crate::lifetime::{Absent, RowUsage};
use crate::stats::ShardStats;

/// The usage that is reported for a row of a group without a lifetime, if another group has one.
const UNSEEN: RowUsage = RowUsage { last_seen: 0, score: 1.0 };

impl Table {
    /// The groups of a table that has any; otherwise none.
    pub(super) fn groups_of(config: &TableConfig) -> Result<Vec<Table>, TableError> {
        if config.groups.is_empty() {
            return Ok(Vec::new());
        }
        let table = |(group, config): (usize, &TableConfig)| {
            let mut table = Table::new(config)?;
            if let Some(bloom) = &mut table.bloom {
                bloom.of_group(group as u8);
            }
            Ok(table)
        };
        config.of_groups().iter().enumerate().map(table).collect()
    }

    /// Whether calls go to the tables of groups.
    #[inline(always)]
    pub(super) fn is_grouped(&self) -> bool {
        !self.groups.is_empty()
    }

    fn unknown_group(&self, key: u64) -> TableError {
        TableError::Group { table: self.layout.table.clone(), key, group: group_of(key), groups: self.groups.len() }
    }

    /// Calls `take` with the table of each run of keys of one group, and where the run is.
    fn each_run(
        &mut self,
        keys: &[u64],
        mut take: impl FnMut(&mut Table, &[u64], std::ops::Range<usize>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        for (group, run) in runs(keys) {
            match self.groups.get_mut(group) {
                Some(table) => take(table, &keys[run.clone()], run)?,
                None => return Err(self.unknown_group(keys[run.start])),
            }
        }
        Ok(())
    }

    pub(super) fn pull_grouped(&mut self, keys: &[u64], rows: &mut Vec<f32>) -> Result<(), TableError> {
        let dim = self.layout.row_dim;
        rows.resize(keys.len() * dim, 0.0);
        let mut narrow = std::mem::take(&mut self.blank);
        let pulled = self.each_run(keys, |table, keys, run| {
            table.pull(keys, &mut narrow)?;
            widen(&narrow, table.row_dim(), &mut rows[run.start * dim..run.end * dim], dim);
            Ok(())
        });
        self.blank = narrow;
        pulled
    }

    /// A key of a group that the table does not have reads as zeros.
    pub(super) fn peek_grouped(&self, keys: &[u64], rows: &mut Vec<f32>) {
        let dim = self.layout.row_dim;
        rows.resize(keys.len() * dim, 0.0);
        let mut narrow = Vec::new();
        for (group, run) in runs(keys) {
            let to = &mut rows[run.start * dim..run.end * dim];
            match self.groups.get(group) {
                Some(table) => {
                    table.peek(&keys[run], &mut narrow);
                    widen(&narrow, table.row_dim(), to, dim);
                }
                None => to.fill(0.0),
            }
        }
    }

    pub(super) fn overwrite_grouped(&self, keys: &[u64], rows: &mut [f32]) {
        let dim = self.layout.row_dim;
        let mut narrow = Vec::new();
        for (group, run) in runs(keys) {
            let Some(table) = self.groups.get(group).filter(|table| table.rows() > 0) else { continue };
            let to = &mut rows[run.start * dim..run.end * dim];
            cut(to, dim, &mut narrow, table.row_dim());
            table.overwrite(&keys[run], &mut narrow);
            widen(&narrow, table.row_dim(), to, dim);
        }
    }

    /// Calls every group, even without keys, if the rows of the table age.
    pub(super) fn push_grouped(&mut self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), TableError> {
        if !keys.is_sorted_by_key(|key| group_of(*key)) {
            let (keys, grads) = by_group(keys, grads, self.layout.row_dim);
            return self.push_grouped(&keys, &grads, step);
        }
        if let Some(key) = keys.last().filter(|key| group_of(**key) >= self.groups.len()) {
            return Err(self.unknown_group(*key));
        }
        let dim = self.layout.row_dim;
        let mut narrow = std::mem::take(&mut self.blank);
        let (mut from, mut result) = (0, Ok(()));
        for (group, table) in self.groups.iter_mut().enumerate() {
            let to = from + keys[from..].partition_point(|key| group_of(*key) == group);
            if to > from || table.usages.is_some() {
                cut(&grads[from * dim..to * dim], dim, &mut narrow, table.row_dim());
                result = table.push_checked(&keys[from..to], &narrow, step);
            }
            if result.is_err() {
                break;
            }
            from = to;
        }
        self.blank = narrow;
        result
    }

    /// Rows are numbered group after group. So no row may be added or removed between the first page and the last.
    pub(super) fn export_grouped(&mut self, from: usize, at_most: usize) -> ExportBlock {
        let (mut first, any_usages) = (0, self.has_usages());
        for table in &mut self.groups {
            let rows = table.rows();
            if from < first + rows {
                return padded(&self.layout, &table.layout.clone(), table.export(from - first, at_most), any_usages);
            }
            first += rows;
        }
        ExportBlock::default()
    }

    pub(super) fn import_grouped(
        &mut self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), TableError> {
        let (dim, state_dim) = (self.layout.row_dim, self.layout.state_dim);
        let (mut narrow, mut narrow_state) = (Vec::new(), Vec::new());
        self.each_run(keys, |table, keys, run| {
            cut(&weights[run.start * dim..run.end * dim], dim, &mut narrow, table.row_dim());
            if let Some(state) = state {
                cut(
                    &state[run.start * state_dim..run.end * state_dim],
                    state_dim,
                    &mut narrow_state,
                    table.state_dim(),
                );
            }
            let usages = if usages.is_empty() || table.usages.is_none() { &[] } else { &usages[run] };
            table.import_checked(keys, &narrow, state.map(|_| narrow_state.as_slice()), usages)
        })
    }

    pub(super) fn export_absent_grouped(&mut self, from: usize, at_most: usize) -> Vec<Absent> {
        let mut first = 0;
        for table in &mut self.groups {
            let waiting = table.absent();
            if from < first + waiting {
                return table.export_absent(from - first, at_most);
            }
            first += waiting;
        }
        Vec::new()
    }

    pub(super) fn import_absent_grouped(&mut self, absent: &[Absent]) -> Result<(), TableError> {
        for absent in absent {
            match self.groups.get_mut(group_of(absent.key)) {
                Some(table) => table.import_absent(&[*absent])?,
                None => return Err(self.unknown_group(absent.key)),
            }
        }
        Ok(())
    }

    pub(super) fn begin_snapshot_grouped(&mut self, kind: SnapshotKind) -> Result<u64, TableError> {
        self.groups.iter_mut().map(|table| table.begin_snapshot(kind)).sum()
    }

    pub(super) fn snapshot_page_grouped(&mut self, at_most: usize) -> ExportBlock {
        let any_usages = self.has_usages();
        match self.groups.iter_mut().find(|table| table.snapshot_rows_left().is_some_and(|left| left > 0)) {
            Some(table) => padded(&self.layout, &table.layout.clone(), table.snapshot_page(at_most), any_usages),
            None => ExportBlock::default(),
        }
    }

    pub(super) fn snapshot_absent_grouped(&mut self, at_most: usize) -> Vec<Absent> {
        let pages = self.groups.iter_mut().map(|table| table.snapshot_absent(at_most));
        pages.into_iter().find(|page| !page.is_empty()).unwrap_or_default()
    }

    pub(super) fn snapshot_rows_left_grouped(&self) -> Option<u64> {
        self.groups.iter().map(Table::snapshot_rows_left).sum()
    }

    pub(super) fn for_each_grouped(&self, mut take: impl FnMut(u64, &[f32])) {
        let mut wide = vec![0.0; self.layout.row_dim];
        for table in &self.groups {
            let (row, rest) = wide.split_at_mut(table.row_dim());
            rest.fill(0.0);
            let dim = row.len();
            table.for_each_own(|key, weights| {
                wide[..dim].copy_from_slice(weights);
                take(key, &wide);
            });
        }
    }

    pub(super) fn stats_grouped(&self) -> ShardStats {
        let mut all = ShardStats::default();
        for table in &self.groups {
            let own = table.stats();
            let keys = own.load_factor * own.index_slots as f64;
            let slots = all.index_slots + own.index_slots;
            all.load_factor = (all.load_factor * all.index_slots as f64 + keys) / slots.max(1) as f64;
            all.index_slots = slots;
            all.rows += own.rows;
            all.bytes += own.bytes;
            all.pulls += own.pulls;
            all.missed += own.missed;
            all.pushes += own.pushes;
            all.inserted += own.inserted;
            all.refused += own.refused;
            all.evicted += own.evicted;
            all.waiting += own.waiting;
            all.high_water += own.high_water;
            all.saturated += own.saturated;
            all.groups.push(own.as_group(table.layout.table.clone(), table.row_dim() as u64));
        }
        all
    }

    /// Whether any group has a lifetime.
    fn has_usages(&self) -> bool {
        self.groups.iter().any(|table| table.usages.is_some())
    }
}

/// Copies rows of `from_dim` floats into wider ones, which end in zeros.
fn widen(rows: &[f32], from_dim: usize, to: &mut [f32], dim: usize) {
    if from_dim == dim {
        return to.copy_from_slice(rows);
    }
    for (row, to) in rows.chunks_exact(from_dim).zip(to.chunks_exact_mut(dim)) {
        let (weights, rest) = to.split_at_mut(from_dim);
        weights.copy_from_slice(row);
        rest.fill(0.0);
    }
}

/// The first `to_dim` floats of rows of `dim`, in `to` (which is resized).
fn cut(rows: &[f32], dim: usize, to: &mut Vec<f32>, to_dim: usize) {
    to.clear();
    if to_dim == dim {
        return to.extend_from_slice(rows);
    }
    if to_dim > 0 {
        rows.chunks_exact(dim).for_each(|row| to.extend_from_slice(&row[..to_dim]));
    }
}

/// Keys and their gradients group by group, otherwise in their order.
fn by_group(keys: &[u64], grads: &[f32], dim: usize) -> (Vec<u64>, Vec<f32>) {
    let mut order: Vec<u32> = (0..keys.len() as u32).collect();
    order.sort_by_key(|&at| group_of(keys[at as usize]));
    let keys = order.iter().map(|&at| keys[at as usize]).collect();
    (keys, order.iter().flat_map(|&at| &grads[at as usize * dim..][..dim]).copied().collect())
}

/// A page of a group as one of the whole table.
fn padded(wide: &Layout, narrow: &Layout, page: ExportBlock, any_usages: bool) -> ExportBlock {
    let ExportBlock { keys, weights, state, mut usages } = page;
    let mut all = vec![0.0; keys.len() * wide.row_dim];
    widen(&weights, narrow.row_dim, &mut all, wide.row_dim);
    let mut all_state = vec![0.0; keys.len() * wide.state_dim];
    if narrow.state_dim > 0 {
        widen(&state, narrow.state_dim, &mut all_state, wide.state_dim);
    }
    if any_usages {
        usages.resize(keys.len(), UNSEEN);
    }
    ExportBlock { keys, weights: all, state: all_state, usages }
}
