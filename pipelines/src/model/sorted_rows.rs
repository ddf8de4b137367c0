//! The rows of a table by ascending key: the same for any number of shards, and easy to compare.
//!
//! Only the keys are copied and sorted. The rows stay in the table, and are read page by page.

use std::ops::Range;

use forebay_actors::Fault;
use forebay_ps::{ExportBlock, TableClient, group_of};
use futures::executor::block_on;

use super::model_version::RowsHash;

/// Rows per request to a shard, and rows of a page.
pub(crate) const PAGE: usize = 65_536;

/// Floats per request for the rows of keys.
const READ: usize = 1 << 20;

/// The keys of a table in ascending order, and access to its rows. The table must not change meanwhile.
pub(crate) struct SortedRows<'a> {
    table: &'a TableClient,
    pub(crate) keys: Vec<u64>,
    /// The hash of all rows.
    pub(crate) hash: RowsHash,
}

impl<'a> SortedRows<'a> {
    /// Copies the keys of `table`, and hashes its rows. Blocks on its shards.
    ///
    /// # Errors
    /// A user fault if the rows are in other processes, and come from there rounded.
    pub(crate) fn of(table: &'a TableClient) -> Result<Self, Fault> {
        if table.rounds_values() {
            return Err(Fault::user(format!(
                "the rows of table `{}` come from ps processes rounded to f16: save the model, and load it from its folder",
                table.table()
            )));
        }
        let rows = block_on(table.stats())?.rows();
        let (mut keys, mut hash) = (Vec::with_capacity(rows as usize), RowsHash::default());
        each_page(table, |page| {
            hash.add_page(&page, table.row_dim());
            keys.extend_from_slice(&page.keys);
            Ok(())
        })?;
        keys.sort_unstable();
        Ok(Self { table, keys, hash })
    }

    /// Weights per row; with groups, in the widest group.
    pub(crate) fn row_dim(&self) -> usize {
        self.table.row_dim()
    }

    /// The numbers of the rows of one group of a table with groups: the highest byte of a key is its group.
    pub(crate) fn of_group(&self, group: usize) -> Range<usize> {
        let from = self.keys.partition_point(|key| group_of(*key) < group);
        let to = self.keys.partition_point(|key| group_of(*key) <= group);
        from..to
    }

    /// The rows of `keys`, at most [`PAGE`] of them from number `from` on, cut to their first `row_dim` weights; an empty block after the
    /// last. Blocks on the shards.
    pub(crate) fn page(&self, keys: &[u64], from: usize, row_dim: usize) -> Result<ExportBlock, Fault> {
        let keys = &keys[from.min(keys.len())..keys.len().min(from + PAGE)];
        let (mut rows, mut weights) = (Vec::new(), Vec::with_capacity(keys.len() * row_dim));
        let width = self.table.row_dim();
        // Rows of a narrow group come padded to the width of the table, so only some of them are read at once.
        for some in keys.chunks((READ / width).max(1)) {
            block_on(self.table.peek(some, &mut rows))?;
            match row_dim == width {
                true => weights.extend_from_slice(&rows),
                false => rows.chunks_exact(width).for_each(|row| weights.extend_from_slice(&row[..row_dim])),
            }
        }
        Ok(ExportBlock { keys: keys.to_vec(), weights, state: Vec::new(), usages: Vec::new() })
    }
}

/// The hash of the rows of `table`. Blocks on its shards.
pub(crate) fn hash_of(table: &TableClient) -> Result<RowsHash, Fault> {
    let mut hash = RowsHash::default();
    each_page(table, |page| {
        hash.add_page(&page, table.row_dim());
        Ok(())
    })?;
    Ok(hash)
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

#[cfg(test)]
mod tests {
    use forebay_actors::Host;
    use forebay_ps::{
        GroupConfig, Init, Lifetime, Optimizer, PartConfig, Storage, TableConfig, in_group, start_read_only,
    };

    use super::*;

    /// A table of rows of 1 weight and, in another group, of 300.
    fn table(host: &Host, shards: usize) -> TableClient {
        let sgd = Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 };
        let parts = |dim| vec![PartConfig::new("p", dim, sgd, Init::Zeros)];
        let (storage, lifetime) = (Storage::F32, Lifetime::default());
        let group = GroupConfig { name: "wide".into(), parts: parts(300), storage, lifetime };
        let config = TableConfig { groups: vec![group], ..TableConfig::new("t", 1, parts(1)) };
        start_read_only(host, config, shards).unwrap()
    }

    #[test]
    fn the_rows_of_each_group_come_in_pages_by_ascending_key_as_wide_as_the_group() {
        let host = Host::start("ps").unwrap();
        let [one, three] = [1, 3].map(|shards| table(&host, shards));
        // The order of the keys is not the order in which they come.
        let narrow: Vec<u64> =
            (0..PAGE as u64 + 100).map(|at| in_group(at.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0)).collect();
        let wide: Vec<u64> = (0..5).rev().map(|at| in_group(at, 1)).collect();
        for table in [&one, &three] {
            for keys in narrow.chunks(1000).chain([&wide[..]]) {
                let value = |key, at| if at == 0 || group_of(key) == 1 { (key % 1000) as f32 + at as f32 } else { 0.0 };
                let row = |&key: &u64| (0..300).map(move |at| value(key, at));
                let weights: Vec<f32> = keys.iter().flat_map(row).collect();
                block_on(table.import(keys, &weights, None)).unwrap();
            }
        }
        let [rows, others] = [&one, &three].map(|table| SortedRows::of(table).unwrap());
        assert_eq!((&rows.keys, rows.hash), (&others.keys, others.hash), "whatever the number of shards is");
        assert_eq!(rows.hash, hash_of(&three).unwrap());
        assert!(rows.keys.is_sorted());
        for (group, row_dim, pages) in [(0, 1, vec![PAGE, 100, 0]), (1, 300, vec![5, 0])] {
            let (keys, mut from) = (&rows.keys[rows.of_group(group)], 0);
            for expected in pages {
                let page = others.page(keys, from, row_dim).unwrap();
                assert_eq!((page.keys.len(), page.weights.len()), (expected, expected * row_dim));
                assert_eq!(page.keys, keys[from..from + expected]);
                for (key, row) in page.keys.iter().zip(page.weights.chunks_exact(row_dim)) {
                    let first = (key % 1000) as f32;
                    assert!(row.iter().zip(0..).all(|(value, at)| *value == first + at as f32), "key {key}: {row:?}");
                }
                from += expected;
            }
            assert_eq!(from, keys.len());
        }
    }
}
