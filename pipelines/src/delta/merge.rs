//! Applies deltas to a model in memory.

use std::collections::HashSet;

use forebay_actors::{Fault, Host};
use forebay_ps::start_table;
use futures::executor::block_on;

use super::Delta;
use crate::model::Model;
use crate::model_version::ModelVersion;
use crate::sorted_rows::{SortedRows, each_page};

impl Model {
    /// This model with a delta applied: a model of the version that the delta names, or one that approximates it, without the state of
    /// optimizers. Meanwhile both models are in memory. Blocks on the shards.
    ///
    /// # Errors
    /// A user fault if the delta does not apply to this version, or does not lead to the version that it names.
    pub fn merged(self, delta: &Delta) -> Result<Self, Fault> {
        let before = self.versions()?;
        delta.check_from(before)?;
        delta.check_table(self.table.config())?;
        let host = Host::start("ps")?;
        let table = start_table(&host, self.table.config().clone(), self.table.shards())?;
        let removed: HashSet<u64> = delta.removed.iter().copied().collect();
        let row_dim = table.row_dim();
        each_page(&self.table, |page| {
            let kept = |(key, row)| (!removed.contains(key)).then_some((*key, row));
            let rows: Vec<(u64, &[f32])> =
                page.keys.iter().zip(page.weights.chunks_exact(row_dim)).filter_map(kept).collect();
            let keys: Vec<u64> = rows.iter().map(|(key, _)| *key).collect();
            let weights: Vec<f32> = rows.iter().flat_map(|(_, row)| *row).copied().collect();
            block_on(table.import(&keys, &weights, None))
        })?;
        block_on(table.import(&delta.keys, &delta.weights, None))?;
        let rows = SortedRows::of(&table)?;
        let mut job = self.job.clone();
        job.columns.set_scales(&delta.manifest.scales);
        job.check_saved()?;
        let version = ModelVersion::of(&job, &delta.dense, rows.hash());
        let approximates = delta.check_result(before, version, rows.keys.len() as u64)?.approximates;
        Ok(Self { job, dense: delta.dense.clone(), optimizer: None, approximates, table, host, ..self })
    }
}
