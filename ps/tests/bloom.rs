//! Admission by a counting Bloom filter beside exact counts: the share of keys that come in too early, memory, snapshots, other shards.

use std::collections::{BTreeSet, HashMap};

use forebay_base::{SplitMix64, mix64};
use forebay_ps::{
    Absent, Admission, BloomCount, GroupConfig, Init, Lifetime, Optimizer, PartConfig, Route, SnapshotKind, Storage,
    Table, TableConfig, in_group,
};
use proptest::prelude::*;

fn config(rules: BloomCount) -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 0.5.into(), l2: 0.0 };
    let parts = vec![PartConfig::new("p", 1, optimizer, Init::Zeros)];
    let lifetime = Lifetime { admission: Some(Admission::Bloom(rules)), eviction: None };
    TableConfig { lifetime, ..TableConfig::new("t", 3, parts) }
}

fn push(tables: &mut [Table], keys: &[u64], step: u64) {
    let route = Route::new(tables.len());
    for (shard, table) in tables.iter_mut().enumerate() {
        let own: Vec<u64> = keys.iter().copied().filter(|key| route.shard(*key) == shard).collect();
        table.push(&own, &vec![1.0; own.len()], step + 1).unwrap();
    }
}

fn admitted(tables: &mut [Table]) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for table in tables {
        let mut from = 0;
        while let keys @ [_, ..] = table.export(from, 1000).keys.as_slice() {
            all.extend(keys);
            from += keys.len();
        }
    }
    all
}

/// Pushes a stream of keys in batches. Returns the number of keys, of those admitted too early, and of those admitted too late.
fn compared(rules: BloomCount, keys: u64, pushes: u64) -> (u64, u64, u64) {
    let mut table = Table::new(&config(rules)).unwrap();
    let (mut random, mut exact) = (SplitMix64::new(keys ^ pushes), HashMap::<u64, (u32, bool, bool)>::new());
    let mut row = Vec::new();
    for step in 0..pushes / 500 {
        // Half of the draws fall on a tenth of the keys.
        let draw = |random: &mut SplitMix64| match random.next_u64() % 2 {
            0 => random.next_u64() % (keys / 10),
            _ => random.next_u64() % keys,
        };
        let batch: BTreeSet<u64> = (0..500).map(|_| mix64(draw(&mut random) + 1)).collect();
        let batch: Vec<u64> = batch.into_iter().collect();
        table.push(&batch, &vec![1.0; batch.len()], step + 1).unwrap();
        table.peek(&batch, &mut row);
        for (key, weight) in batch.iter().zip(&row) {
            let (count, early, late) = exact.entry(*key).or_default();
            *count += 1;
            *early |= *weight != 0.0 && *count < rules.count;
            *late |= *weight == 0.0 && *count >= rules.count;
        }
    }
    let of = |which: fn(&(u32, bool, bool)) -> bool| exact.values().filter(|known| which(known)).count() as u64;
    (exact.len() as u64, of(|known| known.1), of(|known| known.2))
}

#[test]
fn few_keys_come_in_too_early_and_hardly_one_too_late() {
    // 4,096 cells of one block: room for some 700,000 keys at 1%, and fewer at a lower error.
    for (count, error, keys) in [(2, 0.01, 400_000), (3, 0.01, 600_000), (5, 0.001, 300_000), (2, 0.2, 600_000)] {
        let (all, early, late) = compared(BloomCount { count, keys, error }, keys, 2 * keys);
        assert!(all > keys / 2, "{all} of {keys}");
        assert!((early as f64) < error * all as f64, "{early} of {all} too early, {error} promised");
        assert!((late as f64) < error * all as f64, "{late} of {all} too late, {error} promised");
        assert!(early > 0 || error < 0.01, "the filter is not exact");
    }
}

#[test]
fn more_keys_than_it_is_made_for_come_in_too_late_and_not_too_early_and_take_no_more_memory() {
    let rules = BloomCount { count: 2, keys: 100_000, error: 0.01 };
    let (all, early, late) = compared(rules, 4_000_000, 6_000_000);
    assert!((early as f64) < 0.01 * all as f64, "{early} of {all} too early");
    assert!(late > all / 100, "{late} of {all}: blocks are cleared");
    // With a count of 14 no key is admitted, so the filter has all memory.
    let rules = BloomCount { count: 14, ..rules };
    let mut table = Table::new(&config(rules)).unwrap();
    let mut half = 0;
    for step in 0..200 {
        if step == 100 {
            half = table.stats().bytes;
        }
        let keys: Vec<u64> = (0..10_000).map(|i| mix64(step * 10_000 + i)).collect();
        table.push(&keys, &vec![1.0; keys.len()], step + 1).unwrap();
    }
    let stats = table.stats();
    assert!(stats.refused == 2_000_000 && stats.waiting > 100_000, "{stats:?}");
    let most = config(rules).most_bloom_bytes();
    assert_eq!(stats.bytes, half, "a million keys more take nothing");
    // Memory is taken in pieces of 16 MiB, which are not touched before they are used.
    assert!(stats.bytes < most + (17 << 20), "{} bytes, {most} promised", stats.bytes);
    assert!(most < 5 << 20, "{most}");
}

/// All that a snapshot says of keys without rows, page by page.
fn snapshot(tables: &mut [Table], kind: SnapshotKind, page: usize, between: impl Fn(&mut [Table])) -> Vec<Absent> {
    for table in &mut *tables {
        table.begin_snapshot(kind).unwrap();
    }
    between(tables);
    let mut all = Vec::new();
    for table in &mut *tables {
        loop {
            let absent = table.snapshot_absent(page);
            assert!(absent.len() <= page);
            if absent.is_empty() {
                break;
            }
            all.extend(absent);
        }
        while !table.snapshot_page(page).keys.is_empty() {}
        table.end_snapshot(true);
    }
    all
}

fn exported(table: &mut Table, page: usize) -> Vec<Absent> {
    let mut all = Vec::new();
    while let more @ [_, ..] = table.export_absent(all.len(), page).as_slice() {
        assert!(more.len() <= page);
        all.extend_from_slice(more);
    }
    all
}

fn into_others(config: &TableConfig, shards: usize, absent: &[Absent]) -> Vec<Table> {
    let route = Route::new(shards);
    let mut others: Vec<Table> = (0..shards).map(|_| Table::new(config).unwrap()).collect();
    for absent in absent {
        others[route.shard(absent.key)].import_absent(&[*absent]).unwrap();
    }
    others
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn snapshots_hold_the_filter_and_any_number_of_shards_goes_on_alike(
        seed: u64, count in 2_u32..5, shards in 1_usize..5, others in 1_usize..5, page in 1_usize..400, keys in 1_u64..3000,
    ) {
        let config = config(BloomCount { count, keys: 1000, error: 0.05 });
        let mut random = SplitMix64::new(seed);
        let mut batch = || -> Vec<u64> {
            let keys: BTreeSet<u64> = (0..60).map(|_| mix64(random.next_u64() % keys)).collect();
            keys.into_iter().collect()
        };
        let mut tables: Vec<Table> = (0..shards).map(|_| Table::new(&config).unwrap()).collect();
        let mut one = [Table::new(&config).unwrap()];
        for step in 0..5 {
            let keys = batch();
            push(&mut tables, &keys, step);
            push(&mut one, &keys, step);
        }
        prop_assert_eq!(admitted(&mut tables), admitted(&mut one));
        // A full snapshot, then one of changes, each while the table goes on.
        let (during, later, last) = (batch(), batch(), batch());
        let mut absent = snapshot(&mut tables, SnapshotKind::Full, page, |tables| push(tables, &during, 5));
        push(&mut tables, &later, 6);
        absent.extend(snapshot(&mut tables, SnapshotKind::Changes, page, |tables| push(tables, &last, 7)));
        for (keys, step) in [(&during, 5), (&later, 6)] {
            push(&mut one, keys, step);
        }
        let exported = exported(&mut one[0], page);
        for absent in [&absent, &exported] {
            let mut others = into_others(&config, others, absent);
            let mut same = [Table::new(&config).unwrap()];
            exported.iter().for_each(|entry| same[0].import_absent(&[*entry]).unwrap());
            // Each shard rounds its estimate.
            let waiting = others.iter().map(|table| table.stats().waiting).sum::<u64>();
            prop_assert!(waiting.abs_diff(same[0].stats().waiting) <= others.len() as u64 + 1);
            for step in 8..12 {
                let keys = batch();
                push(&mut others, &keys, step);
                push(&mut same, &keys, step);
            }
            prop_assert_eq!(admitted(&mut others), admitted(&mut same));
        }
        push(&mut one, &last, 7);
        prop_assert_eq!(admitted(&mut tables), admitted(&mut one));
    }
}

#[test]
fn a_filter_of_another_size_is_refused_and_exact_counts_are_counted_on() {
    let rules = BloomCount { count: 3, keys: 1_000_000, error: 0.01 };
    let mut table = Table::new(&config(rules)).unwrap();
    table.push(&[5, 6], &[1.0, 1.0], 1).unwrap();
    let saved = table.export_absent(0, 1_000_000);
    for other in [BloomCount { keys: 9_000_000, ..rules }, BloomCount { error: 0.001, ..rules }] {
        let said = Table::new(&config(other)).unwrap().import_absent(&saved).unwrap_err().to_string();
        assert!(said.contains("Bloom filter of another size"), "{said}");
    }
    // The count to be reached may be another one.
    let mut sooner = Table::new(&config(BloomCount { count: 2, ..rules })).unwrap();
    sooner.import_absent(&saved).unwrap();
    sooner.import_absent(&[Absent { key: 9, count: 1, seen: 1 }]).unwrap();
    sooner.push(&[5, 7, 9], &[1.0; 3], 2).unwrap();
    assert_eq!(admitted(&mut [sooner]), BTreeSet::from([5, 9]));
    let exact = Lifetime { admission: Some(Admission::Count(2)), eviction: None };
    let mut exact = Table::new(&TableConfig { lifetime: exact, ..config(rules) }).unwrap();
    exact.import_absent(&saved).unwrap();
    assert_eq!(exact.stats().waiting, 0, "it is not known which keys were counted");
}

#[test]
fn groups_have_filters_of_their_own() {
    let of = |count| config(BloomCount { count, keys: 1000, error: 0.01 });
    let group = GroupConfig { name: "g".into(), parts: of(2).parts, storage: Storage::F32, lifetime: of(3).lifetime };
    let config = TableConfig { groups: vec![group], ..of(2) };
    let mut table = Table::new(&config).unwrap();
    let keys = [in_group(5 << 7, 0), in_group(5 << 7, 1)];
    table.push(&keys, &[1.0, 1.0], 1).unwrap();
    table.push(&keys, &[1.0, 1.0], 2).unwrap();
    let saved = exported(&mut table, 1000);
    let mut other = Table::new(&config).unwrap();
    other.import_absent(&saved).unwrap();
    for table in [&mut table, &mut other] {
        table.push(&keys[1..], &[1.0], 3).unwrap();
    }
    assert_eq!(admitted(&mut [table]), BTreeSet::from(keys));
    assert_eq!(admitted(&mut [other]), BTreeSet::from([keys[1]]));
}

#[test]
fn a_key_that_was_admitted_and_removed_starts_again() {
    let rules = BloomCount { count: 2, keys: 1000, error: 0.01 };
    let mut table = Table::new(&config(rules)).unwrap();
    table.push(&[5], &[1.0], 1).unwrap();
    table.push(&[5], &[1.0], 2).unwrap();
    assert_eq!((table.rows(), table.stats().waiting), (1, 0));
    table.import_absent(&[Absent { key: 5, count: 0, seen: 0 }]).unwrap();
    table.push(&[5], &[1.0], 3).unwrap();
    assert_eq!((table.rows(), table.stats().waiting), (0, 1));
}
