//! A table with groups does what a table for each group does, each with the keys of its group alone.

use std::collections::BTreeMap;

use forebay_actors::Host;
use forebay_ps::{
    Admission, Eviction, ExportBlock, GroupConfig, GroupStats, Init, Lifetime, Optimizer, PartConfig, SnapshotKind,
    Storage, Table, TableConfig, group_of, in_group, start_table,
};
use proptest::prelude::*;

/// Widths of the embeddings of the groups.
const DIMS: [usize; 3] = [3, 1, 5];
/// Linear weight and the widest embedding.
const ROW: usize = 6;

fn parts(group: usize) -> Vec<PartConfig> {
    let linear = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
    let embedding = match group {
        0 => Optimizer::Adam { lr: 0.01.into(), beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 },
        1 => Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 },
        _ => Optimizer::Sgd { lr: 0.5.into(), l2: 0.0 },
    };
    let init = if group == 2 { Init::Normal { std: 0.2 } } else { Init::Uniform { scale: 0.5 } };
    vec![PartConfig::new("linear", 1, linear, Init::Zeros), PartConfig::new("embedding", DIMS[group], embedding, init)]
}

fn lifetime(group: usize) -> Lifetime {
    match group {
        1 => Lifetime {
            admission: Some(Admission::Count(2)),
            eviction: Some(Eviction { unseen_steps: Some(3), ..Eviction::default() }),
        },
        _ => Lifetime::default(),
    }
}

fn group(number: usize, with_lifetime: bool) -> GroupConfig {
    GroupConfig {
        name: format!("group{number}"),
        parts: parts(number),
        storage: if number == 2 { Storage::F16 } else { Storage::F32 },
        lifetime: if with_lifetime { lifetime(number) } else { Lifetime::default() },
    }
}

fn config(with_lifetime: bool) -> TableConfig {
    let groups = vec![group(1, with_lifetime), group(2, with_lifetime)];
    TableConfig { groups, ..TableConfig::new("all", 7, parts(0)) }
}

/// A table for each group.
fn apart(with_lifetime: bool) -> Vec<Table> {
    config(with_lifetime).of_groups().iter().map(|config| Table::new(config).unwrap()).collect()
}

#[derive(Debug, Clone)]
struct Step {
    keys: Vec<u64>,
    grads: Vec<f32>,
    push: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = prop::collection::btree_set((0u64..12, 0u8..3), 0..20);
    let keys =
        keys.prop_map(|keys| keys.into_iter().map(|(key, group)| in_group(key * 0x9e37, group)).collect::<Vec<_>>());
    // In the order of groups, as batches have them, or in any.
    let keys = (keys.prop_shuffle(), any::<bool>()).prop_map(|(mut keys, sorted)| {
        if sorted {
            keys.sort_by_key(|key| group_of(*key));
        }
        keys
    });
    let step = (keys, any::<bool>(), any::<u32>()).prop_map(|(keys, push, seed)| {
        let value = |i: usize| (forebay_base::mix64(u64::from(seed) << 20 | i as u64) % 64) as f32 / 32.0 - 1.0;
        let grads = (0..keys.len() * ROW).map(value).collect();
        Step { keys, grads, push }
    });
    prop::collection::vec(step, 1..12)
}

/// The rows of `keys` from the tables apart, padded.
fn rows_apart(tables: &mut [Table], keys: &[u64], insert: bool) -> Vec<f32> {
    let mut all = Vec::new();
    for (number, table) in tables.iter_mut().enumerate() {
        // One call for each table, as a batch makes it.
        let own: Vec<u64> = keys.iter().copied().filter(|key| group_of(*key) == number).collect();
        let mut rows = Vec::new();
        if insert { table.pull(&own, &mut rows).unwrap() } else { table.peek(&own, &mut rows) }
    }
    for &key in keys {
        let (mut row, table) = (Vec::new(), &mut tables[group_of(key)]);
        if insert {
            table.pull(&[key], &mut row).unwrap()
        } else {
            table.peek(&[key], &mut row)
        }
        row.resize(ROW, 0.0);
        all.extend(row);
    }
    all
}

fn push_apart(tables: &mut [Table], step: &Step, number: u64) {
    for (group, table) in tables.iter_mut().enumerate() {
        let own: Vec<usize> = (0..step.keys.len()).filter(|&at| group_of(step.keys[at]) == group).collect();
        let keys: Vec<u64> = own.iter().map(|&at| step.keys[at]).collect();
        let dim = 1 + DIMS[group];
        let grads: Vec<f32> = own.iter().flat_map(|&at| &step.grads[at * ROW..][..dim]).copied().collect();
        table.push(&keys, &grads, number).unwrap();
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rows by key: weights and state, with what is remembered of them.
type Rows = BTreeMap<u64, (Vec<u32>, Vec<u32>)>;

fn rows_of(block: &ExportBlock, row: usize, state: usize, all: &mut Rows) {
    for (at, key) in block.keys.iter().enumerate() {
        let own = (bits(&block.weights[at * row..][..row]), bits(&block.state[at * state..][..state]));
        assert!(all.insert(*key, own).is_none(), "key {key} is there twice");
    }
}

fn exported(table: &mut Table) -> Rows {
    let (mut all, mut from) = (Rows::new(), 0);
    loop {
        let page = table.export(from, 3);
        if page.keys.is_empty() {
            return all;
        }
        let group = group_of(page.keys[0]);
        assert!(page.keys.iter().all(|key| group_of(*key) == group), "a page has rows of one group");
        from += page.keys.len();
        rows_of(&page, table.row_dim(), table.state_dim(), &mut all);
    }
}

fn padded(row: &[u32], len: usize) -> Vec<u32> {
    let mut row = row.to_vec();
    row.resize(len, 0);
    row
}

proptest! {
    #[test]
    fn a_table_of_groups_is_a_table_for_each(steps in steps(), with_lifetime: bool) {
        let (mut table, mut tables) = (Table::new(&config(with_lifetime)).unwrap(), apart(with_lifetime));
        let mut rows = Vec::new();
        for (number, step) in (1..).zip(&steps) {
            if step.push {
                table.push(&step.keys, &step.grads, number).unwrap();
                push_apart(&mut tables, step, number);
                continue;
            }
            table.pull(&step.keys, &mut rows).unwrap();
            prop_assert_eq!(bits(&rows), bits(&rows_apart(&mut tables, &step.keys, true)));
            table.peek(&step.keys, &mut rows);
            prop_assert_eq!(bits(&rows), bits(&rows_apart(&mut tables, &step.keys, false)));
        }
        let state = config(with_lifetime).state_dim();
        let mut expected = Rows::new();
        for own in &mut tables {
            let rows = exported(own).into_iter();
            expected.extend(rows.map(|(key, (row, own))| (key, (padded(&row, ROW), padded(&own, state)))));
        }
        prop_assert_eq!(table.rows(), expected.len());
        prop_assert_eq!(exported(&mut table), expected.clone());
        let stats = table.stats();
        let sum = |of: fn(&GroupStats) -> u64| stats.groups.iter().map(of).sum::<u64>();
        prop_assert_eq!((stats.missed, stats.pulls), (sum(|group| group.missed), sum(|group| group.pulls)));
        let pulled: usize = steps.iter().filter(|step| !step.push).map(|step| step.keys.len()).sum();
        prop_assert!(stats.pulls == pulled as u64 && stats.missed <= stats.pulls);
        let groups = stats.groups;
        prop_assert_eq!(groups.iter().map(|group| group.rows).sum::<u64>(), expected.len() as u64);
        for (key, (row, _)) in &expected {
            prop_assert!(table.contains(*key));
            let mut above = vec![9.0; ROW];
            table.overwrite(&[*key], &mut above);
            let dim = 1 + DIMS[group_of(*key)];
            prop_assert_eq!(&bits(&above)[..dim], &row[..dim]);
        }
        // A snapshot has the rows, and another table of other shards takes them.
        let mut copy = Table::new(&config(with_lifetime)).unwrap();
        prop_assert_eq!(table.begin_snapshot(SnapshotKind::Full).unwrap(), expected.len() as u64);
        let mut absent = Vec::new();
        let mut pages = Vec::new();
        loop {
            let page = table.snapshot_page(4);
            if page.keys.is_empty() { break; }
            pages.push(page);
        }
        loop {
            let page = table.snapshot_absent(2);
            if page.is_empty() { break; }
            absent.extend(page);
        }
        table.end_snapshot(true);
        copy.import_absent(&absent).unwrap();
        for page in &pages {
            copy.import_with_usages(&page.keys, &page.weights, Some(&page.state), &page.usages).unwrap();
        }
        prop_assert_eq!(exported(&mut copy), expected);
        // Both go on alike, admission and ages included.
        for (number, step) in (steps.len() as u64 + 1..).zip(&steps) {
            table.push(&step.keys, &step.grads, number).unwrap();
            copy.push(&step.keys, &step.grads, number).unwrap();
        }
        prop_assert_eq!(exported(&mut copy), exported(&mut table));
    }
}

#[test]
fn shards_hold_the_same_rows_whatever_their_number() {
    let keys: Vec<u64> = (0..300u64).map(|i| in_group(forebay_base::mix64(i), (i / 100) as u8)).collect();
    let grads: Vec<f32> = (0..keys.len() * ROW).map(|i| (i % 13) as f32 / 8.0 - 0.5).collect();
    let mut first: Option<Vec<u32>> = None;
    for shards in [1, 2, 5] {
        let host = Host::start("ps").unwrap();
        let table = start_table(&host, config(false), shards).unwrap();
        let mut rows = Vec::new();
        futures::executor::block_on(async {
            for step in 1..4 {
                table.pull(&keys, &mut rows).await.unwrap();
                table.push(&keys, &grads, step).await.unwrap();
            }
            table.pull(&keys, &mut rows).await.unwrap();
            let stats = table.stats().await.unwrap();
            let groups = stats.groups();
            assert_eq!(
                groups.iter().map(|group| (group.row_dim, group.rows)).collect::<Vec<_>>(),
                [(4, 100), (2, 100), (6, 100)]
            );
            let stray = table.pull(&[in_group(5, 3)], &mut Vec::new()).await.unwrap_err().to_string();
            assert!(stray.contains("is of group 3; expected one below 3"), "{stray}");
            let stray = table.push(&[in_group(5, 9)], &[0.0; ROW], 9).await.unwrap_err().to_string();
            assert!(stray.contains("group 9"), "{stray}");
        });
        let found = bits(&rows);
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{shards} shards");
    }
}

#[test]
fn a_narrow_group_takes_the_memory_of_narrow_rows() {
    let rows = 200_000;
    let bytes = |dim: usize| {
        let mut config = config(false);
        config.groups[0].parts[1].dim = dim;
        config.groups[1].parts[1].dim = 64;
        let mut table = Table::new(&config).unwrap();
        let keys: Vec<u64> = (0..rows).map(|i| in_group(forebay_base::mix64(i), 1)).collect();
        let mut pulled = Vec::new();
        keys.chunks(1000).for_each(|keys| table.pull(keys, &mut pulled).unwrap());
        table.stats().groups[1].bytes / rows
    };
    // Linear weight with two floats of state, the embedding with one each, in rows of a power of two or of fours.
    let (narrow, wide) = (bytes(4), bytes(16));
    assert!(narrow < wide && narrow <= 16 * 4 + 130 && wide >= 36 * 4, "{narrow} and {wide} bytes per row");
}

#[test]
fn groups_that_cannot_work_are_refused_by_name() {
    let said = |spoil: &dyn Fn(&mut TableConfig)| {
        let mut config = config(false);
        spoil(&mut config);
        config.check().unwrap_err().to_string()
    };
    config(true).check().unwrap();
    // The last part may be missing.
    let mut linear_only = config(false);
    linear_only.groups[0].parts.truncate(1);
    linear_only.check().unwrap();
    assert!(said(&|c| c.groups[1].name = "group1".into()).contains("two groups are named `group1`"));
    assert!(said(&|c| c.groups[1].name = "all".into()).contains("two groups are named `all`"));
    assert!(said(&|c| c.groups[0].parts[0].dim = 2).contains("part `linear` of group `group1` has dim 2; expected 1"));
    assert!(said(&|c| drop(c.groups[0].parts.remove(0))).contains("group `group1` has the parts [\"embedding\"]"));
    assert!(said(&|c| c.groups[0].parts[1].dim = 0).contains("table `group1`: part `embedding` has dim 0"));
    assert!(said(&|c| c.groups = vec![group(1, false); 256]).contains("at most 255"));
}
