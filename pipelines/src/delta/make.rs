//! Makes the delta between two models.

use std::io::Write as _;

use forebay_actors::Fault;
use forebay_connectors::staged::Folder;
use forebay_job::FeatureScales;
use forebay_ps::{ExportBlock, Storage};

use super::{DeltaManifest, FORMAT, VERSION, check_values, keys_only};
use crate::model::Model;
use crate::model::model_version::{ModelVersion, RowsHash};
use crate::model::sorted_rows::{PAGE, SortedRows};
use crate::model_folder::checked::{CheckedWriter, cannot_write};
use crate::model_folder::{MANIFEST, TableColumns, begin_replacing, dense_file, table_file};
use crate::signed_json;

const CHANGED: &str = "changed.parquet";
const REMOVED: &str = "removed.parquet";
const DENSE: &str = "dense.safetensors";

/// Whether scores depend on a field of a job.
fn is_bound(name: &str) -> bool {
    let of_model = name == "seed" || name == "data.negatives" || name == "table.storage" || name.starts_with("model.");
    let of_tables = name.starts_with("tables.") && (name.ends_with(".storage") || name.ends_with(".embedding_dim"));
    let of_columns = ["columns.dense", "columns.slots", "columns.crosses", "columns.statistics", "columns.quantiles"];
    of_model || of_tables || of_columns.iter().any(|section| name.starts_with(section))
}

impl Model {
    /// Writes the delta from `old` to this model into a folder in any store, whole or not at all. The parts of several values, such as
    /// embeddings, are stored as `values`; with [`Storage::F32`] the delta is exact. A folder that holds files is refused unless `replace`
    /// is set and it is an earlier delta. Takes 8 bytes of memory for each row of both models. Blocks on the store.
    ///
    /// # Errors
    /// A user fault if the models are of other columns or another structure, with the fields that differ; if a value does not fit
    /// `values`, or the table keeps rows in another rounded format.
    pub fn write_delta(
        &self,
        old: &Model,
        to: impl Into<Folder>,
        values: Storage,
        replace: bool,
    ) -> Result<DeltaManifest, Fault> {
        let new_scales = self.job.columns.scales();
        let mut rescaled = old.job.clone();
        rescaled.columns.set_scales(&new_scales);
        let of_scales =
            |name: &str| new_scales.keys().any(|column| name.starts_with(&format!("columns.statistics.{column}.")));
        let differences = rescaled.differences(&self.job, |name| is_bound(name) && !of_scales(name));
        let scales = if old.job.columns.scales() == new_scales { FeatureScales::new() } else { new_scales.clone() };
        if !differences.is_empty() {
            return Err(Fault::user(format!(
                "there is no delta between models of two structures: {}; serve the whole model folder",
                differences.join(", ")
            )));
        }
        check_values(self.table.config(), values)?;
        let staged = begin_replacing(&to.into().with_stores(&self.context.stores), replace, FORMAT)?;
        let (before, after) = (SortedRows::of(&old.table)?, SortedRows::of(&self.table)?);
        let (changed, removed) = differences_of(&before, &after)?;
        let config = self.table.config();
        let widest = config.widest();
        let columns = TableColumns::of_values(&widest, values);
        let gives = match values {
            Storage::F32 => None,
            _ => Some(ModelVersion::of(&self.job, &self.dense, hash_of_rounded(&after, &changed, columns)?)),
        };
        let changed_rows = |from| after.page(&changed, from, self.table.row_dim());
        let keys_alone = |from: usize| {
            let keys = removed.iter().skip(from).take(PAGE).copied().collect();
            Ok(ExportBlock { keys, ..ExportBlock::default() })
        };
        let no_parts = keys_only(config);
        let dense = dense_file::write(&self.dense, CheckedWriter::create(&staged, DENSE)?, DENSE)?;
        let manifest = DeltaManifest {
            format: FORMAT.into(),
            // A delta that older programs can read gets the older version.
            version: match (scales.is_empty(), &gives) {
                (false, _) => VERSION,
                (true, Some(_)) => 2,
                (true, None) => 1,
            },
            forebay: env!("CARGO_PKG_VERSION").into(),
            from: ModelVersion::of(&old.job, &old.dense, before.hash),
            to: ModelVersion::of(&self.job, &self.dense, after.hash),
            values,
            gives,
            scales,
            rows: after.keys.len() as u64,
            table: config.clone(),
            changed: table_file::write_pages(columns, &staged, CHANGED, changed_rows)?,
            removed: table_file::write_pages(TableColumns::of(&no_parts, false), &staged, REMOVED, keys_alone)?,
            dense,
        };
        let text = signed_json::to_json(&manifest)?;
        let mut file = CheckedWriter::create(&staged, MANIFEST)?;
        file.write_all(&text).map_err(|e| cannot_write(file.name(), e))?;
        file.finish(MANIFEST, None)?;
        staged.publish()?;
        Ok(manifest)
    }
}

/// The hash of the rows `after`, where the rows of the keys `changed` have rounded values.
fn hash_of_rounded(after: &SortedRows<'_>, changed: &[u64], columns: TableColumns<'_>) -> Result<RowsHash, Fault> {
    let in_f32 = |fault: Fault| fault.followed_by("; write the delta in f32");
    let (mut hash, row_dim) = (after.hash, columns.row_dim());
    for from in (0..changed.len()).step_by(PAGE) {
        let page = after.page(changed, from, row_dim)?;
        hash.remove_page(&page, row_dim);
        let keys = page.keys.clone();
        let weights = columns.rounded(page).map_err(in_f32)?;
        hash.add_page(&ExportBlock { keys, weights, ..ExportBlock::default() }, row_dim);
    }
    Ok(hash)
}

/// The keys of the rows of `after` that are not in `before` bit for bit, and the keys that only `before` has, both ascending.
fn differences_of(before: &SortedRows<'_>, after: &SortedRows<'_>) -> Result<(Vec<u64>, Vec<u64>), Fault> {
    let same = |a: &[f32], b: &[f32]| a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()));
    let (mut changed, mut removed, mut at) = (Vec::new(), Vec::new(), 0);
    for from in (0..after.keys.len()).step_by(PAGE) {
        // A key that `before` does not have reads as zeros there.
        let [old, new] = [before, after].map(|rows| rows.page(&after.keys, from, rows.row_dim()));
        let (old, new) = (old?, new?);
        let rows = old.weights.chunks_exact(before.row_dim()).zip(new.weights.chunks_exact(after.row_dim()));
        for (key, (old, new)) in new.keys.iter().zip(rows) {
            while let Some(gone) = before.keys.get(at).filter(|old| *old < key) {
                removed.push(*gone);
                at += 1;
            }
            let was = before.keys.get(at) == Some(key);
            at += usize::from(was);
            if !was || !same(old, new) {
                changed.push(*key);
            }
        }
    }
    removed.extend(&before.keys[at..]);
    Ok((changed, removed))
}
