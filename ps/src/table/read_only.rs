//! A table for serving: it belongs to no shard, threads read its rows at the same time, and no row changes.

use super::Table;
use crate::groups::group_of;

impl Table {
    /// Overwrites in `rows`, `[keys x row_dim]`, the weights of the keys that have a row here, and leaves the other weights as they are. So
    /// a small table can hold the rows that changed since a large table was read.
    ///
    /// # Panics
    /// If `rows` has another length.
    pub fn overwrite(&self, keys: &[u64], rows: &mut [f32]) {
        let dim = self.layout.row_dim;
        assert_eq!(rows.len(), keys.len() * dim, "a row for each key");
        if self.rows() == 0 {
            return;
        }
        if self.is_grouped() {
            return self.overwrite_grouped(keys, rows);
        }
        for (key, out) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
            if let Some(row) = self.index.find(self.index.hash(*key), *key) {
                self.layout.read_weights(self.arena.row(row), out);
            }
        }
    }

    /// Whether the key has a row.
    pub fn contains(&self, key: u64) -> bool {
        if self.is_grouped() {
            return self.groups.get(group_of(key)).is_some_and(|table| table.contains(key));
        }
        self.index.find(self.index.hash(key), key).is_some()
    }

    /// Calls `take` with every key and its weights, `[row_dim]`, in no order.
    pub fn for_each(&self, take: impl FnMut(u64, &[f32])) {
        if self.is_grouped() { self.for_each_grouped(take) } else { self.for_each_own(take) }
    }

    /// As `for_each`, of a table without groups.
    pub(super) fn for_each_own(&self, mut take: impl FnMut(u64, &[f32])) {
        let mut weights = vec![0.0; self.layout.row_dim];
        for (key, row) in self.index.iter() {
            self.layout.read_weights(self.arena.row(row), &mut weights);
            take(key, &weights);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{Init, Optimizer, PartConfig, Table, TableConfig};

    fn table(rows: impl Iterator<Item = (u64, [f32; 2])>) -> Table {
        let optimizer = Optimizer::Sgd { lr: 0.1.into(), l2: 0.0 };
        let part = PartConfig::new("embedding", 2, optimizer, Init::Zeros);
        let mut table = Table::new(&TableConfig::new("t", 0, vec![part])).unwrap();
        for (key, row) in rows {
            table.import(&[key], &row, None).unwrap();
        }
        table
    }

    #[test]
    fn a_small_table_lies_above_a_large_one() {
        let below = table((0..100).map(|key| (key, [key as f32, 1.0])));
        let above = table((50..150).step_by(7).map(|key| (key, [-1.0, key as f32])));
        let keys: Vec<u64> = (0..200).rev().collect();
        let mut rows = Vec::new();
        below.peek(&keys, &mut rows);
        above.overwrite(&keys, &mut rows);
        table(std::iter::empty()).overwrite(&keys, &mut rows);
        for (&key, row) in keys.iter().zip(rows.chunks(2)) {
            let expected = match key {
                50..150 if (key - 50) % 7 == 0 => [-1.0, key as f32],
                0..100 => [key as f32, 1.0],
                _ => [0.0, 0.0],
            };
            assert_eq!(row, expected, "key {key}");
            assert_eq!(above.contains(key), (50..150).contains(&key) && (key - 50) % 7 == 0);
        }
        let mut all = BTreeMap::new();
        below.for_each(|key, row| assert!(all.insert(key, row.to_vec()).is_none()));
        assert!(all.len() == 100 && all.iter().all(|(&key, row)| *row == [key as f32, 1.0]));
    }
}
