//! Snapshots of a table against a copy of it: for all calls between begin and end, the pages have the rows of the begin.

use crate::mixed_table::{DIM, STATE, config};

use std::collections::{BTreeMap, BTreeSet};

use forebay_ps::{ExportBlock, Route, SnapshotKind, Storage, Table, TableError};
use proptest::prelude::*;

/// The bits of weights and state by key.
type Rows = BTreeMap<u64, Vec<u32>>;

fn add(rows: &mut Rows, block: &ExportBlock) {
    let values = block.weights.chunks(DIM).zip(block.state.chunks(STATE));
    for (key, (weights, state)) in block.keys.iter().zip(values) {
        rows.insert(*key, weights.iter().chain(state).map(|v| v.to_bits()).collect());
    }
}

fn dump(table: &mut Table) -> Rows {
    let mut rows = Rows::new();
    add(&mut rows, &table.export(0, usize::MAX));
    assert_eq!(rows.len(), table.rows());
    rows
}

fn grads(keys: &[u64], step: u64) -> Vec<f32> {
    let grad = |key: u64, i: usize| (key.wrapping_add(step * 7 + i as u64 * 3) % 11) as f32 * 0.3 - 1.5;
    keys.iter().flat_map(|key| (0..DIM).map(move |i| grad(*key, i))).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Pull(Vec<u64>),
    Push(Vec<u64>, u64),
    /// A pull and a push of the same keys: the way that remembers rows.
    Train(Vec<u64>, u64),
    Import(Vec<u64>, bool),
    /// Pulls so many new keys.
    Grow(u64),
    Begin(SnapshotKind),
    Page(usize),
    End(bool),
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![4 => 0u64..200, 1 => any::<u64>(), 1 => 1000u64..20_000], 0..60)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => keys().prop_map(Op::Pull),
        3 => (keys(), 1u64..50).prop_map(|(keys, step)| Op::Push(keys, step)),
        3 => (keys(), 1u64..50).prop_map(|(keys, step)| Op::Train(keys, step)),
        2 => (keys(), any::<bool>()).prop_map(|(keys, state)| Op::Import(keys, state)),
        1 => (0u64..6000).prop_map(Op::Grow),
        4 => prop_oneof![Just(SnapshotKind::Full), Just(SnapshotKind::Changes)].prop_map(Op::Begin),
        4 => prop_oneof![0usize..50, 0usize..5000].prop_map(Op::Page),
        3 => any::<bool>().prop_map(Op::End),
    ]
}

/// An open snapshot as the test expects it.
struct Expected {
    kind: SnapshotKind,
    rows: Rows,
    /// The keys that had changed before.
    changed: BTreeSet<u64>,
    read: Vec<ExportBlock>,
}

/// A table, its twin without snapshots, and what a checkpoint would hold.
struct Test {
    table: Table,
    twin: Table,
    /// Keys that changed since the last kept snapshot or the begin of the open one.
    changed: BTreeSet<u64>,
    open: Option<Expected>,
    /// Full, then changes.
    kept: Vec<ExportBlock>,
    grown: u64,
}

impl Test {
    fn both(&mut self, mut change: impl FnMut(&mut Table)) {
        change(&mut self.table);
        change(&mut self.twin);
    }

    fn do_op(&mut self, op: Op) -> Result<(), TestCaseError> {
        let mut rows = Vec::new();
        match op {
            Op::Pull(keys) => {
                // A pull changes only what it inserts.
                let known = dump(&mut self.twin);
                self.changed.extend(keys.iter().filter(|key| !known.contains_key(key)));
                self.both(|table| table.pull(&keys, &mut rows).unwrap());
            }
            Op::Push(keys, step) => {
                self.changed.extend(&keys);
                self.both(|table| table.push(&keys, &grads(&keys, step), step).unwrap());
            }
            Op::Train(keys, step) => {
                self.changed.extend(&keys);
                self.both(|table| {
                    table.pull(&keys, &mut rows).unwrap();
                    table.push(&keys, &grads(&keys, step), step).unwrap();
                });
            }
            Op::Import(keys, state) => {
                self.changed.extend(&keys);
                let weights = grads(&keys, 3);
                let states: Vec<f32> = (0..keys.len() * STATE).map(|i| i as f32).collect();
                self.both(|table| table.import(&keys, &weights, state.then_some(&states)).unwrap());
            }
            Op::Grow(n) => {
                let keys: Vec<u64> = (self.grown..self.grown + n).map(|key| ((key + 1) << 20) + 7).collect();
                self.grown += n;
                self.changed.extend(&keys);
                self.both(|table| table.pull(&keys, &mut rows).unwrap());
            }
            Op::Begin(kind) => self.begin(kind)?,
            Op::Page(at_most) => self.page(at_most)?,
            Op::End(kept) => self.end(kept)?,
        }
        Ok(())
    }

    fn begin(&mut self, kind: SnapshotKind) -> Result<(), TestCaseError> {
        if self.open.is_some() {
            let refused = self.table.begin_snapshot(kind);
            prop_assert_eq!(refused, Err(TableError::SnapshotOpen { table: "t".into() }));
            return Ok(());
        }
        let changed = std::mem::take(&mut self.changed);
        let mut rows = dump(&mut self.twin);
        if kind == SnapshotKind::Changes {
            rows.retain(|key, _| changed.contains(key));
        }
        prop_assert_eq!(self.table.begin_snapshot(kind).unwrap(), rows.len() as u64);
        self.open = Some(Expected { kind, rows, changed, read: Vec::new() });
        Ok(())
    }

    fn page(&mut self, at_most: usize) -> Result<(), TestCaseError> {
        let page = self.table.snapshot_page(at_most);
        let Some(open) = &mut self.open else {
            prop_assert_eq!(page, ExportBlock::default());
            return Ok(());
        };
        let before: usize = open.read.iter().map(|block| block.keys.len()).sum();
        prop_assert_eq!(page.keys.len(), at_most.max(1).min(open.rows.len() - before));
        open.read.push(page);
        Ok(())
    }

    /// Keeps a snapshot that was read as a whole, as a program does.
    fn end(&mut self, kept: bool) -> Result<(), TestCaseError> {
        if let Some(mut open) = self.open.take() {
            if kept {
                while open.read.last().is_none_or(|block| !block.keys.is_empty()) {
                    open.read.push(self.table.snapshot_page(777));
                }
                prop_assert_eq!(self.table.snapshot_rows_left(), Some(0));
            }
            let mut read = Rows::new();
            open.read.iter().for_each(|block| add(&mut read, block));
            prop_assert_eq!(
                read.len(),
                open.read.iter().map(|block| block.keys.len()).sum::<usize>(),
                "a row came twice"
            );
            if kept {
                prop_assert!(read == open.rows, "the pages differ from the table as it was at the begin");
                if open.kind == SnapshotKind::Full {
                    self.kept.clear();
                }
                self.kept.extend(open.read);
            } else {
                prop_assert!(read.iter().all(|(key, row)| open.rows.get(key) == Some(row)), "a page has other rows");
                self.changed.extend(open.changed);
            }
        }
        self.table.end_snapshot(kept);
        prop_assert_eq!(self.table.snapshot_rows_left(), None);
        Ok(())
    }
}

fn agrees(storage: Storage, ops: Vec<Op>, shards: usize) -> Result<(), TestCaseError> {
    let table = || Table::new(&config(storage)).unwrap();
    let mut test =
        Test { table: table(), twin: table(), changed: BTreeSet::new(), open: None, kept: Vec::new(), grown: 0 };
    for op in ops {
        test.do_op(op)?;
    }
    test.end(false)?;
    test.begin(SnapshotKind::Changes)?;
    test.end(true)?;
    let Test { mut table, mut twin, kept, .. } = test;
    prop_assert!(dump(&mut table) == dump(&mut twin), "snapshots changed the table");
    // The kept snapshots, one over the other, are the table: in any number of shards, and after more steps too.
    let mut restored: Vec<Table> = (0..shards).map(|_| Table::new(&config(storage)).unwrap()).collect();
    let route = Route::new(shards);
    for block in kept {
        let rows = block.weights.chunks(DIM).zip(block.state.chunks(STATE));
        for (key, (weights, state)) in block.keys.iter().zip(rows) {
            restored[route.shard(*key)].import(&[*key], weights, Some(state)).unwrap();
        }
    }
    for step in [51, 52] {
        let mut all = Rows::new();
        restored.iter_mut().for_each(|table| all.append(&mut dump(table)));
        prop_assert!(all == dump(&mut twin), "the restored table differs");
        let keys: Vec<u64> = all.keys().copied().take(300).chain([999_999_999]).collect();
        twin.push(&keys, &grads(&keys, step), step).unwrap();
        for (shard, table) in restored.iter_mut().enumerate() {
            let keys: Vec<u64> = keys.iter().copied().filter(|key| route.shard(*key) == shard).collect();
            table.push(&keys, &grads(&keys, step), step).unwrap();
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn f32_snapshots_are_copies_of_one_moment(ops in prop::collection::vec(op(), 0..40), shards in 1usize..4) {
        agrees(Storage::F32, ops, shards)?;
    }

    #[test]
    fn f16_snapshots_are_copies_of_one_moment(ops in prop::collection::vec(op(), 0..40), shards in 1usize..4) {
        agrees(Storage::F16, ops, shards)?;
    }
}

#[test]
fn a_snapshot_takes_no_copy_of_the_table_and_gives_its_memory_back() {
    let mut table = Table::new(&config(Storage::F32)).unwrap();
    let keys: Vec<u64> = (0..200_000).collect();
    let mut rows = Vec::new();
    table.pull(&keys, &mut rows).unwrap();
    let before = table.stats().bytes;
    table.begin_snapshot(SnapshotKind::Full).unwrap();
    table.snapshot_page(1);
    // 8 bytes per row for its key (in whole MiB), and four bits.
    let begun = table.stats().bytes - before;
    assert!(begun < 8 * 200_000 + (1 << 20) + 200_000 / 2 + 10_000, "{begun} bytes");
    // Rows that change twice are saved once.
    for step in [1, 2] {
        table.push(&keys[..50_000], &grads(&keys[..50_000], step), step).unwrap();
    }
    let saved = table.stats().bytes - before - begun;
    assert!((50_000 * 28 * 4..50_000 * 29 * 4 * 2).contains(&(saved as usize)), "{saved} bytes");
    // Rows that a page has given are neither held nor saved.
    while table.snapshot_rows_left() > Some(100_000) {
        table.snapshot_page(10_000);
    }
    assert!(table.stats().bytes - before - begun < saved / 10);
    table.push(&keys[..100_000], &grads(&keys[..100_000], 3), 3).unwrap();
    assert!(table.stats().bytes - before - begun < saved / 10);
    table.end_snapshot(false);
    assert!(table.stats().bytes < before + begun);
}

#[test]
fn keys_are_listed_in_slices_while_rows_come() {
    let mut table = Table::new(&config(Storage::F32)).unwrap();
    let mut rows = Vec::new();
    let keys: Vec<u64> = (0..300_000).map(|key| key * 0x1_0000_0001).collect();
    table.pull(&keys[..100_000], &mut rows).unwrap();
    table.begin_snapshot(SnapshotKind::Full).unwrap();
    for keys in keys[100_000..].chunks(10_000) {
        table.pull(keys, &mut rows).unwrap();
    }
    let mut seen = Vec::new();
    while table.snapshot_rows_left() > Some(0) {
        seen.extend(table.snapshot_page(30_000).keys);
    }
    assert_eq!(seen, keys[..100_000]);
    table.end_snapshot(true);
    assert_eq!(table.begin_snapshot(SnapshotKind::Changes).unwrap(), 200_000);
    assert_eq!(table.snapshot_page(1).keys, [keys[100_000]]);
}
