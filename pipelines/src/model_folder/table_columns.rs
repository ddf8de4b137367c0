//! The columns of a file of table rows: `key`, the columns of each row part, and, with the state of the optimizers, `optimizer.state` and,
//! in a table with a lifetime, the usage of each row.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt32Type, UInt64Type};
use forebay_actors::Fault;
use forebay_ps::{ExportBlock, RowUsage, Storage, TableConfig};

use super::part_columns::{self, floats};

/// The column of the optimizers' state.
const STATE: &str = "optimizer.state";

/// The columns of the usage of each row, in a table with a lifetime.
const SEEN: &str = "lifetime.seen";
const SCORE: &str = "lifetime.score";

/// The columns of a file.
#[derive(Clone, Copy)]
pub(crate) struct TableColumns<'a> {
    /// The table whose rows the file has; with groups, all rows are as wide as in the widest group.
    pub(super) config: &'a TableConfig,
    /// How the file stores the parts of several values. The table may store them in another way.
    values: Storage,
    /// Whether the file has the state of the optimizers, and usages.
    state: bool,
}

impl<'a> TableColumns<'a> {
    /// Rows in f32.
    pub(crate) fn of(config: &'a TableConfig, state: bool) -> Self {
        Self { config, values: Storage::F32, state }
    }

    /// Rows without state whose parts of several values are stored as `values`.
    pub(crate) fn of_values(config: &'a TableConfig, values: Storage) -> Self {
        Self { config, values, state: false }
    }

    /// The same columns of a group of the table.
    pub(super) fn of_group<'b>(self, group: &'b TableConfig) -> TableColumns<'b> {
        TableColumns { config: group, ..self }
    }

    /// Weights per row; with groups, in the widest group.
    pub(crate) fn row_dim(&self) -> usize {
        self.config.row_dim()
    }

    /// The names and types of the columns.
    pub(super) fn schema(&self) -> SchemaRef {
        let state_dim = self.config.state_dim();
        let mut fields = vec![Field::new("key", DataType::UInt64, false)];
        fields.extend(self.config.widest_parts().iter().flat_map(|part| part_columns::fields(part, self.values)));
        if self.state && state_dim > 0 {
            fields.push(Field::new(STATE, floats(state_dim, DataType::Float32), false));
        }
        if self.state && self.config.has_lifetime() {
            fields.push(Field::new(SEEN, DataType::UInt32, false));
            fields.push(Field::new(SCORE, DataType::Float32, false));
        }
        Arc::new(Schema::new(fields))
    }

    /// Rows as columns of this schema.
    ///
    /// # Errors
    /// A user fault that names the part and the key of a value that cannot be rounded.
    pub(super) fn to_batch(self, schema: &SchemaRef, page: ExportBlock) -> Result<RecordBatch, Fault> {
        let (row_dim, state_dim) = (self.config.row_dim(), self.config.state_dim());
        let ExportBlock { keys, weights, state, usages } = page;
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from_iter_values(keys.iter().copied()))];
        let mut at = 0;
        for part in self.config.widest_parts() {
            let mut own = Vec::with_capacity(keys.len() * part.dim);
            weights.chunks_exact(row_dim).for_each(|row| own.extend_from_slice(&row[at..at + part.dim]));
            at += part.dim;
            let own = part_columns::to_columns(part, self.values, own).map_err(|bad| {
                Fault::user(format!("part `{}` of key {} cannot be rounded: {bad}", part.name, keys[bad.row]))
            })?;
            columns.extend(own);
        }
        if self.state && state_dim > 0 {
            columns.push(part_columns::list(state_dim, Arc::new(Float32Array::from(state))));
        }
        if self.state && self.config.has_lifetime() {
            columns.push(Arc::new(UInt32Array::from_iter_values(usages.iter().map(|usage| usage.last_seen))));
            columns.push(Arc::new(Float32Array::from_iter_values(usages.iter().map(|usage| usage.score))));
        }
        RecordBatch::try_new(schema.clone(), columns)
            .map_err(|e| Fault::internal("table rows do not fit their schema").because(e))
    }

    /// Puts the rows of columns into `weights`, `[rows × row dim]`.
    ///
    /// # Errors
    /// A user fault that names the part and the key of a value that no rounding gives.
    pub(super) fn read_batch(self, batch: &RecordBatch, weights: &mut Vec<f32>) -> Result<(), Fault> {
        let row_dim = self.config.row_dim();
        weights.clear();
        weights.resize(batch.num_rows() * row_dim, 0.0);
        let mut at = 0;
        for part in self.config.widest_parts() {
            let own = part_columns::from_columns(batch, part, self.values).map_err(|bad| {
                Fault::user(format!("part `{}` of key {} is damaged: {bad}", part.name, keys(batch)[bad.row]))
            })?;
            for (row, value) in weights.chunks_exact_mut(row_dim).zip(own.chunks_exact(part.dim)) {
                row[at..at + part.dim].copy_from_slice(value);
            }
            at += part.dim;
        }
        Ok(())
    }

    /// The weights of rows as they would be read back from a file, `[rows × row dim]`.
    ///
    /// # Errors
    /// A user fault that names the part and the key of a value that cannot be rounded.
    pub(crate) fn rounded(self, page: ExportBlock) -> Result<Vec<f32>, Fault> {
        let mut weights = Vec::new();
        self.read_batch(&self.to_batch(&self.schema(), page)?, &mut weights)?;
        Ok(weights)
    }
}

/// The column of keys.
pub(super) fn keys(batch: &RecordBatch) -> &[u64] {
    batch.column_by_name("key").expect("asked for by name").as_primitive::<UInt64Type>().values()
}

/// The column of the optimizers' state, if there is one: `[rows × state dim]`.
pub(super) fn state(batch: &RecordBatch) -> Option<&[f32]> {
    let list = batch.column_by_name(STATE)?.as_fixed_size_list();
    Some(list.values().as_primitive::<Float32Type>().values())
}

/// Fills `usages` from the columns `seen` and `score`. Without these columns `usages` is empty.
pub(super) fn usages(batch: &RecordBatch, usages: &mut Vec<RowUsage>) {
    usages.clear();
    if let (Some(seen), Some(score)) = (batch.column_by_name(SEEN), batch.column_by_name(SCORE)) {
        let (seen, score) = (seen.as_primitive::<UInt32Type>(), score.as_primitive::<Float32Type>());
        let both = seen.values().iter().zip(score.values());
        usages.extend(both.map(|(seen, score)| RowUsage { last_seen: *seen, score: *score }));
    }
}

/// Compares types, but ignores the name and the nullability of a list's elements.
pub(super) fn same_type(found: &DataType, expected: &DataType) -> bool {
    match (found, expected) {
        (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => n == m && a.data_type() == b.data_type(),
        _ => found == expected,
    }
}
