//! Applies deltas to a model in memory.

use std::collections::HashSet;

use forebay_actors::{Fault, Host};
use forebay_ps::{ExportBlock, start_read_only};
use futures::executor::block_on;

use super::{Delta, ModelVersions};
use crate::model::Model;
use crate::model::model_version::{ModelVersion, RowsHash};
use crate::model::sorted_rows::{each_page, hash_of};

impl Model {
    /// This model with a delta applied: a model of the version that the delta names, or one that approximates it, without the state of
    /// optimizers, so that its table refuses pushes. Meanwhile the rows of both models are in memory. Blocks on the shards.
    ///
    /// # Errors
    /// A user fault if the delta does not apply to this version, or does not lead to the version that it names.
    pub fn merged(self, delta: &Delta) -> Result<Self, Fault> {
        delta.check_table(self.table.config())?;
        let host = Host::start("ps")?;
        let table = start_read_only(&host, self.table.config().clone(), self.table.shards())?;
        let removed: HashSet<u64> = delta.removed.iter().copied().collect();
        let (row_dim, mut old_rows) = (table.row_dim(), RowsHash::default());
        each_page(&self.table, |page| {
            old_rows.add_page(&page, row_dim);
            let kept = if removed.is_empty() { page } else { without(&removed, &page, row_dim) };
            block_on(table.import(&kept.keys, &kept.weights, None))
        })?;
        let version = ModelVersion::of(&self.job, &self.dense, old_rows);
        let before = ModelVersions { version, approximates: self.approximates };
        delta.check_from(before)?;
        block_on(table.import(&delta.keys, &delta.weights, None))?;
        let mut job = self.job.clone();
        job.columns.set_scales(&delta.manifest.scales);
        job.check_saved()?;
        let version = ModelVersion::of(&job, &delta.dense, hash_of(&table)?);
        let approximates = delta.check_result(before, version, block_on(table.stats())?.rows())?.approximates;
        Ok(Self { job, dense: delta.dense.clone(), optimizer: None, approximates, table, host, ..self })
    }
}

/// The rows of a page, of `row_dim` weights each, whose keys are not `removed`.
fn without(removed: &HashSet<u64>, page: &ExportBlock, row_dim: usize) -> ExportBlock {
    let mut kept = ExportBlock::default();
    for (key, row) in page.keys.iter().zip(page.weights.chunks_exact(row_dim)) {
        if !removed.contains(key) {
            kept.keys.push(*key);
            kept.weights.extend_from_slice(row);
        }
    }
    kept
}
