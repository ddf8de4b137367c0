//! The rows of runs that look ahead: which keys a batch has, its gradients, and the rows that each batch must see. The tables and their
//! optimizer are the real ones.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{SplitMix64, mix64};
use forebay_batches::BatchId;
use forebay_ps::{ExportBlock, Init, Optimizer, PartConfig, Table, TableConfig};

use super::network::Contents;
use super::world::World;

/// Keys of the whole run: so few that neighbouring batches share some.
const KEYS: u64 = 12;

const DIM: usize = 2;

/// Adagrad, whose steps depend on their order and not on their numbers.
pub(super) fn new_table() -> Table {
    Table::new(&table_config()).expect("a small table fits in memory")
}

pub(super) fn table_config() -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 };
    let part = PartConfig::new("embedding", DIM, optimizer, Init::Uniform { scale: 0.5 });
    TableConfig::new("embedding", 3, vec![part])
}

/// The unique keys of a batch.
pub(super) fn keys(id: BatchId) -> Vec<u64> {
    let mut random = SplitMix64::new(mix64(id.push_id().series) ^ u64::from(id.index));
    let keys: BTreeSet<u64> = (0..=random.below(4)).map(|_| random.below(KEYS)).collect();
    keys.into_iter().collect()
}

/// The rank of the ps that has the row of a key.
pub(super) fn holder(key: u64, ps: usize) -> usize {
    key as usize % ps
}

/// The gradients of a batch that has seen these rows: they depend on every one of them.
pub(super) fn grads(id: BatchId, rows: &[f32]) -> Vec<f32> {
    let sum: f32 = rows.iter().sum();
    rows.iter().map(|weight| weight - 0.3 * sum + (id.index % 3) as f32 - 1.0).collect()
}

/// The `keys` that the ps of this rank has, and their values, `[keys x n]`.
pub(super) fn of_ps(keys: &[u64], values: &[f32], rank: usize, ps: usize) -> (Vec<u64>, Vec<f32>) {
    let width = values.len() / keys.len().max(1);
    let of_keys = keys.iter().zip(values.chunks(width.max(1)));
    let (keys, values): (Vec<u64>, Vec<&[f32]>) = of_keys.filter(|(key, _)| holder(**key, ps) == rank).unzip();
    (keys, values.concat())
}

/// The table after these batches, each trained on after all batches before it, and the rows that each of them sees.
fn one_after_the_other(batches: impl IntoIterator<Item = BatchId>) -> (Table, BTreeMap<BatchId, Vec<f32>>) {
    let (mut table, mut seen) = (new_table(), BTreeMap::new());
    for id in batches {
        let (keys, mut rows) = (keys(id), Vec::new());
        table.pull(&keys, &mut rows).expect("a small table fits in memory");
        table.push(&keys, &grads(id, &rows), 1).expect("gradients are finite");
        seen.insert(id, rows);
    }
    (table, seen)
}

/// The rows that each batch must see.
pub(super) fn rows_seen(world: &World) -> BTreeMap<BatchId, Vec<f32>> {
    one_after_the_other(world.all_pushed()).1
}

/// Checks the rows of all ps at the end of a run: they must equal a training on the applied batches, one after the other.
///
/// # Errors
/// Which row differs.
pub(super) fn check_rows(contents: &[Contents]) -> Result<(), String> {
    let Some(first) = contents.first().filter(|first| first.rows.is_some()) else { return Ok(()) };
    let (mut table, _) = one_after_the_other(first.applied.keys().copied());
    let found: BTreeMap<u64, Row> = contents.iter().flat_map(|one| one.rows.iter().flat_map(rows_of)).collect();
    match rows_of(&table.export(0, usize::MAX)).into_iter().find(|(key, row)| found.get(key) != Some(row)) {
        Some((key, row)) => Err(format!("the row of key {key} is {:?} in the end, expected {row:?}", found.get(&key))),
        None => Ok(()),
    }
}

/// Weights and state.
type Row = (Vec<f32>, Vec<f32>);

fn rows_of(block: &ExportBlock) -> Vec<(u64, Row)> {
    let values = block.weights.chunks(DIM).zip(block.state.chunks(DIM));
    block.keys.iter().zip(values).map(|(key, (weights, state))| (*key, (weights.to_vec(), state.to_vec()))).collect()
}
