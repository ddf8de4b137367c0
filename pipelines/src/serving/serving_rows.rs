//! The rows of a serving model: a table that never changes, and above it a small one with the rows that deltas changed.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_actors::Fault;
use forebay_ps::{Table, TableConfig};

/// If deltas have changed more than one in this many rows, the tables are merged.
const ROWS_PER_CHANGED_ROW: usize = 4;

/// Cheap to clone: clones share the tables.
#[derive(Clone)]
pub(super) struct ServingRows {
    config: Arc<TableConfig>,
    base: Arc<Table>,
    changed: Arc<Changed>,
}

/// The rows that deltas changed.
struct Changed {
    /// A removed key has a row of zeros here, which reads like a key without a row.
    table: Table,
    /// Keys whose rows deltas removed.
    removed: HashSet<u64>,
}

impl ServingRows {
    /// `config` is without state.
    pub(super) fn new(config: TableConfig, base: Table) -> Result<Self, Fault> {
        let changed = Changed { table: Table::new(&config)?, removed: HashSet::new() };
        Ok(Self { config: Arc::new(config), base: Arc::new(base), changed: Arc::new(changed) })
    }

    pub(super) fn config(&self) -> &TableConfig {
        &self.config
    }

    /// The weights of `keys`, `[keys × row_dim]`; zeros for keys without a row.
    pub(super) fn read(&self, keys: &[u64], rows: &mut Vec<f32>) {
        self.base.peek(keys, rows);
        self.changed.table.overwrite(keys, rows);
    }

    /// Whether the key has a row.
    pub(super) fn contains(&self, key: u64) -> bool {
        let Changed { table, removed } = &*self.changed;
        if table.contains(key) { !removed.contains(&key) } else { self.base.contains(key) }
    }

    /// Returns these rows with new weights for `keys`, and without the rows of `gone`. Copies all rows that deltas changed so far. When it
    /// merges the tables, it copies all rows: that takes the memory of all rows again while the old ones are in use.
    pub(super) fn with_changes(&self, keys: &[u64], weights: &[f32], gone: &[u64]) -> Result<Self, Fault> {
        let mut table = Table::new(&self.config)?;
        let mut removed = self.changed.removed.clone();
        let dim = table.row_dim();
        copy(&self.changed.table, &mut table, |_| true)?;
        table.import(keys, weights, None)?;
        keys.iter().for_each(|key| {
            removed.remove(key);
        });
        table.import(gone, &vec![0.0; gone.len() * dim], None)?;
        removed.extend(gone);
        let changed = Changed { table, removed };
        if changed.table.rows() * ROWS_PER_CHANGED_ROW <= self.base.rows() {
            return Ok(Self { changed: Arc::new(changed), ..self.clone() });
        }
        let mut base = Table::new(&self.config)?;
        copy(&self.base, &mut base, |key| !changed.table.contains(key))?;
        copy(&changed.table, &mut base, |key| !changed.removed.contains(&key))?;
        Self::new(TableConfig::clone(&self.config), base)
    }
}

/// Rows that are copied at a time.
const PAGE: usize = 1024;

fn copy(from: &Table, to: &mut Table, wanted: impl Fn(u64) -> bool) -> Result<(), Fault> {
    let (mut keys, mut weights, mut failed) = (Vec::with_capacity(PAGE), Vec::new(), None);
    let mut flush = |keys: &mut Vec<u64>, weights: &mut Vec<f32>| {
        if let (Err(error), None) = (to.import(keys, weights, None), &failed) {
            failed = Some(error);
        }
        keys.clear();
        weights.clear();
    };
    from.for_each(|key, row| {
        if wanted(key) {
            keys.push(key);
            weights.extend_from_slice(row);
        }
        if keys.len() == PAGE {
            flush(&mut keys, &mut weights);
        }
    });
    flush(&mut keys, &mut weights);
    failed.map_or(Ok(()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forebay_ps::{Init, Optimizer, PartConfig};
    use proptest::prelude::*;

    use super::*;

    fn config() -> TableConfig {
        let sgd = Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 };
        TableConfig::new("t", 0, vec![PartConfig::new("p", 2, sgd, Init::Zeros)])
    }

    proptest! {
        #[test]
        fn changes_upon_changes_are_those_of_a_map(
            base in prop::collection::btree_map(0_u64..60, -5.0_f32..5.0, 0..60),
            deltas in prop::collection::vec((prop::collection::btree_map(0_u64..80, -5.0_f32..5.0, 0..20),
                                             prop::collection::btree_set(0_u64..80, 0..10)), 0..6),
        ) {
            let row = |value: f32| [value, -value];
            let mut expected: BTreeMap<u64, f32> = base;
            let mut table = Table::new(&config()).unwrap();
            for (&key, &value) in &expected {
                table.import(&[key], &row(value), None).unwrap();
            }
            let mut rows = ServingRows::new(config(), table).unwrap();
            let all: Vec<u64> = (0..80).collect();
            for (changed, gone) in deltas {
                let before = rows.clone();
                let (mut old, mut still) = (Vec::new(), Vec::new());
                before.read(&all, &mut old);
                let gone: Vec<u64> = gone.into_iter().filter(|key| !changed.contains_key(key)).collect();
                let keys: Vec<u64> = changed.keys().copied().collect();
                let weights: Vec<f32> = changed.values().flat_map(|&value| row(value)).collect();
                rows = rows.with_changes(&keys, &weights, &gone).unwrap();
                expected.extend(&changed);
                gone.iter().for_each(|key| { expected.remove(key); });
                before.read(&all, &mut still);
                prop_assert_eq!(&old, &still, "the rows before stay as they were");
                let mut found = Vec::new();
                rows.read(&all, &mut found);
                for (&key, found) in all.iter().zip(found.chunks(2)) {
                    let wanted = expected.get(&key).map_or([0.0, 0.0], |&value| row(value));
                    prop_assert_eq!(found, &wanted);
                    prop_assert_eq!(rows.contains(key), expected.contains_key(&key));
                }
            }
        }
    }
}
