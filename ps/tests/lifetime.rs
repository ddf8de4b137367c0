//! Admission and eviction against a plain simulation: over any pulls, pushes and snapshots, in one table and in three, and after
//! the rows of snapshots were put into other tables.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use forebay_base::{GOLDEN_GAMMA, mix64, unit_f64};
use forebay_ps::{
    Absent, Admission, Eviction, ExportBlock, Init, LEAST_CAP, Lifetime, Optimizer, PartConfig, Route, RowUsage,
    SnapshotKind, Table, TableConfig,
};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const DIM: usize = 2;
const SEED: u64 = 5;

fn config(lifetime: Lifetime) -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.5, eps: 1e-10, l2: 0.0 };
    let part = PartConfig::new("p", DIM, optimizer, Init::Uniform { scale: 0.5 });
    TableConfig { lifetime, ..TableConfig::new("t", SEED, vec![part]) }
}

fn cell(key: u64) -> u64 {
    mix64(key ^ GOLDEN_GAMMA) >> 52
}

/// 120 keys: 60 in each of two cells. The cap keeps 16 rows per cell. With three shards, the two cells are in two shards.
fn keys() -> &'static [u64] {
    static KEYS: OnceLock<Vec<u64>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let of = |wanted: u64| (0..).map(mix64).filter(move |key| cell(*key) == wanted).take(60);
        of(7).zip(of(3001)).flat_map(|(a, b)| [a, b]).collect()
    })
}

/// The first cell that the push of a step looks at, of four.
fn swept(step: u64) -> u64 {
    (step.wrapping_mul(GOLDEN_GAMMA) >> 54) * 4
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    weights: [f32; DIM],
    state: [f32; DIM],
    seen: u64,
    score: f32,
}

/// All rows and counts in plain maps. Initial rows come from a table without a lifetime.
struct Simulation {
    lifetime: Lifetime,
    fresh: Table,
    rows: BTreeMap<u64, Row>,
    counts: BTreeMap<u64, (u32, u64)>,
}

impl Simulation {
    fn initial(&mut self, key: u64) -> [f32; DIM] {
        let mut row = Vec::new();
        self.fresh.pull(&[key], &mut row).unwrap();
        [row[0], row[1]]
    }

    fn pull(&mut self, key: u64) -> [f32; DIM] {
        match self.rows.get(&key) {
            Some(row) => row.weights,
            None if self.lifetime.admission.is_some() => [0.0; DIM],
            None => self.initial(key),
        }
    }

    fn decayed(&self, score: f32, seen: u64, step: u64) -> f32 {
        let half_life = self.lifetime.eviction.and_then(|rules| rules.half_life);
        match (half_life, step.saturating_sub(seen)) {
            (None, _) | (_, 0) => score,
            (Some(half_life), age) => score * (-(age as f64 / half_life as f64) as f32).exp2(),
        }
    }

    fn standing(&self, score: f32, seen: u64, step: u64) -> f64 {
        match self.lifetime.eviction.and_then(|rules| rules.half_life) {
            Some(half_life) => f64::from(score).log2() - step.saturating_sub(seen) as f64 / half_life as f64,
            None => seen as f64,
        }
    }

    /// If the cell of `key` is full, removes its lowest rows, so that a sixteenth of it is free.
    fn make_way(&mut self, key: u64, step: u64) {
        let Some(most) = self.lifetime.eviction.and_then(|rules| rules.max_rows) else { return };
        let share = most as usize / 4096;
        let mut same: Vec<_> = self.rows.iter().filter(|(k, _)| cell(**k) == cell(key)).collect();
        if same.len() < share {
            return;
        }
        let standing = |row: &Row| self.standing(row.score, row.seen, step);
        same.sort_by(|(a, x), (b, y)| standing(x).total_cmp(&standing(y)).then(mix64(**a).cmp(&mix64(**b))));
        same.truncate(same.len() - (share - share / 16));
        let lowest: Vec<u64> = same.iter().map(|(key, _)| **key).collect();
        lowest.iter().for_each(|key| _ = self.rows.remove(key));
    }

    fn admits(&mut self, key: u64, step: u64) -> bool {
        match self.lifetime.admission {
            None => true,
            Some(Admission::Bloom(_)) => unreachable!("its tests are those of bloom.rs"),
            Some(Admission::Probability(p)) => {
                let seed = xxh3_64_with_seed(b"t", mix64(SEED));
                unit_f64(mix64(key ^ mix64(seed ^ mix64(step)))) < p
            }
            Some(Admission::Count(needed)) => {
                let capped = self.lifetime.eviction.is_some_and(|rules| rules.max_rows.is_some());
                let same: Vec<_> = self.counts.iter().filter(|(k, _)| cell(**k) == cell(key)).collect();
                if capped && !self.counts.contains_key(&key) && same.len() >= 16 {
                    let oldest = same.iter().min_by_key(|(k, (_, seen))| (*seen, mix64(**k))).map(|(k, _)| **k);
                    self.counts.remove(&oldest.unwrap());
                }
                let count = self.counts.entry(key).or_insert((0, step));
                (count.0, count.1) = (count.0 + 1, step);
                let admitted = count.0 >= needed;
                if admitted {
                    self.counts.remove(&key);
                }
                admitted
            }
        }
    }

    fn push(&mut self, keys: &[u64], grads: &[f32], step: u64) {
        for (key, grad) in keys.iter().zip(grads.chunks(DIM)) {
            if !self.rows.contains_key(key) {
                if !self.admits(*key, step) {
                    continue;
                }
                self.make_way(*key, step);
                let weights = self.initial(*key);
                self.rows.insert(*key, Row { weights, state: [0.5; DIM], seen: 0, score: 0.0 });
            }
            let old = self.rows[key].clone();
            let scored = self.lifetime.eviction.is_some_and(|rules| rules.half_life.is_some());
            let score = if scored { self.decayed(old.score, old.seen, step) + 1.0 } else { 0.0 };
            let row = self.rows.get_mut(key).unwrap();
            (row.score, row.seen) = (score, row.seen.max(step));
            for ((w, s), g) in row.weights.iter_mut().zip(&mut row.state).zip(grad) {
                *s += g * g;
                *w -= 0.1 * g / (s.sqrt() + 1e-10);
            }
        }
        let Some(rules) = self.lifetime.eviction else { return };
        let here = |key: u64| (swept(step)..swept(step) + 4).contains(&cell(key));
        let gone: Vec<u64> = self
            .rows
            .iter()
            .filter(|(key, row)| {
                let old = rules.unseen_steps.is_some_and(|most| step - row.seen > most);
                let low = rules.min_score.is_some_and(|least| self.decayed(row.score, row.seen, step) < least);
                here(**key) && (old || low)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in gone {
            self.rows.remove(&key);
        }
        if let Some(most) = rules.unseen_steps {
            self.counts.retain(|key, (_, seen)| !here(*key) || step - *seen <= most);
        }
    }
}

/// What tables hold: rows, and counts of keys without one.
type Held = (BTreeMap<u64, Row>, BTreeMap<u64, (u32, u64)>);

fn add(held: &mut Held, block: &ExportBlock, absent: &[Absent]) {
    for absent in absent {
        held.0.remove(&absent.key);
        match absent.count {
            0 => held.1.remove(&absent.key),
            count => held.1.insert(absent.key, (count, u64::from(absent.seen))),
        };
    }
    for (i, key) in block.keys.iter().enumerate() {
        let floats = |all: &[f32]| [all[i * DIM], all[i * DIM + 1]];
        let RowUsage { last_seen: seen, score } = block.usages[i];
        held.1.remove(key);
        let row = Row { weights: floats(&block.weights), state: floats(&block.state), seen: u64::from(seen), score };
        held.0.insert(*key, row);
    }
}

fn held(tables: &mut [Table], at_most: usize) -> Held {
    let mut all = Held::default();
    for table in tables {
        let mut from = 0;
        loop {
            let block = table.export(from, at_most);
            from += block.keys.len();
            add(&mut all, &block, &[]);
            if block.keys.is_empty() {
                break;
            }
        }
        assert_eq!(from, table.rows());
        let mut from = 0;
        loop {
            let absent = table.export_absent(from, at_most);
            from += absent.len();
            add(&mut all, &ExportBlock::default(), &absent);
            if absent.is_empty() {
                break;
            }
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Op {
    Pull(Vec<usize>),
    /// Key numbers, and whether to wait for a step that looks at one of the two cells.
    Push(Vec<usize>, u8),
    Begin(bool),
    Page(usize),
    End(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let some = || prop::collection::btree_set(0usize..120, 0..40).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let op = prop_oneof![
        2 => some().prop_map(Op::Pull),
        6 => (some().prop_shuffle(), 0u8..4).prop_map(|(keys, wait)| Op::Push(keys, wait)),
        1 => any::<bool>().prop_map(Op::Begin),
        2 => (1usize..30).prop_map(Op::Page),
        1 => any::<bool>().prop_map(Op::End),
    ];
    prop::collection::vec(op, 1..60)
}

fn lifetimes() -> impl Strategy<Value = Lifetime> {
    let admission = prop_oneof![
        Just(None),
        (2u32..4).prop_map(|n| Some(Admission::Count(n))),
        Just(Some(Admission::Probability(0.4)))
    ];
    let eviction = prop_oneof![
        Just(Eviction { max_rows: Some(LEAST_CAP), ..Eviction::default() }),
        Just(Eviction { unseen_steps: Some(30), ..Eviction::default() }),
        Just(Eviction { unseen_steps: Some(1000), max_rows: Some(LEAST_CAP), half_life: Some(3), min_score: None }),
        Just(Eviction { unseen_steps: None, max_rows: Some(LEAST_CAP), half_life: Some(700), min_score: Some(0.3) }),
    ];
    (admission, prop::option::of(eviction))
        .prop_map(|(admission, eviction)| Lifetime { admission, eviction })
        .prop_filter("a lifetime", |lifetime| !lifetime.is_unlimited())
}

/// What was read of a snapshot.
type Read = (Vec<Absent>, Vec<ExportBlock>);

fn take_pages(tables: &mut [Table], at_most: usize, once: bool, into: &mut Read) {
    for table in tables {
        loop {
            let absent = table.snapshot_absent(at_most);
            let block = table.snapshot_page(at_most);
            let done = absent.is_empty() && block.keys.is_empty();
            into.0.extend(absent);
            into.1.push(block);
            if done || once {
                break;
            }
        }
    }
}

fn run(lifetime: Lifetime, shards: usize, ops: &[Op]) {
    let config = config(lifetime);
    let route = Route::new(shards);
    let mut tables: Vec<Table> = (0..shards).map(|_| Table::new(&config).unwrap()).collect();
    let fresh = Table::new(&TableConfig { lifetime: Lifetime::default(), ..config.clone() }).unwrap();
    let mut simulation = Simulation { lifetime, fresh, rows: BTreeMap::new(), counts: BTreeMap::new() };
    let (mut step, mut random) = (0u64, 1u64);
    // The open snapshot: its kind, its blocks, and what it must hold. What the kept ones hold.
    let mut open: Option<(SnapshotKind, Read, Held)> = None;
    let (mut kept, mut kept_once) = (Held::default(), false);
    for op in ops {
        match op {
            Op::Pull(numbers) => {
                let wanted: Vec<u64> = numbers.iter().map(|i| keys()[*i]).collect();
                for (shard, table) in tables.iter_mut().enumerate() {
                    let own: Vec<u64> = wanted.iter().copied().filter(|key| route.shard(*key) == shard).collect();
                    let mut rows = Vec::new();
                    table.pull(&own, &mut rows).unwrap();
                    let expected: Vec<f32> = own.iter().flat_map(|key| simulation.pull(*key)).collect();
                    assert_eq!(rows, expected);
                }
            }
            Op::Push(numbers, wait) => {
                step += 1;
                while *wait < 2 && swept(step) != [4, 3000][usize::from(*wait)] {
                    step += 1;
                }
                let wanted: Vec<u64> = numbers.iter().map(|i| keys()[*i]).collect();
                let grads: HashMap<u64, [f32; DIM]> = wanted
                    .iter()
                    .map(|key| {
                        random += 1;
                        (*key, [unit_f64(mix64(random)) as f32 - 0.5, 0.25])
                    })
                    .collect();
                for (shard, table) in tables.iter_mut().enumerate() {
                    let own: Vec<u64> = wanted.iter().copied().filter(|key| route.shard(*key) == shard).collect();
                    let flat: Vec<f32> = own.iter().flat_map(|key| grads[key]).collect();
                    table.push(&own, &flat, step).unwrap();
                }
                let flat: Vec<f32> = wanted.iter().flat_map(|key| grads[key]).collect();
                simulation.push(&wanted, &flat, step);
            }
            Op::Begin(full) => {
                if open.is_none() {
                    let kind = if *full || !kept_once { SnapshotKind::Full } else { SnapshotKind::Changes };
                    tables.iter_mut().for_each(|table| _ = table.begin_snapshot(kind).unwrap());
                    open = Some((kind, Default::default(), (simulation.rows.clone(), simulation.counts.clone())));
                }
            }
            Op::Page(at_most) => {
                if let Some((_, read, _)) = &mut open {
                    take_pages(&mut tables, *at_most, true, read);
                }
            }
            Op::End(keep) => {
                let Some((kind, mut read, expected)) = open.take() else { continue };
                take_pages(&mut tables, 1000, false, &mut read);
                tables.iter_mut().for_each(|table| table.end_snapshot(*keep));
                if !*keep {
                    continue;
                }
                if kind == SnapshotKind::Full {
                    kept = Held::default();
                }
                add(&mut kept, &ExportBlock::default(), &read.0);
                read.1.iter().for_each(|block| add(&mut kept, block, &[]));
                kept_once = true;
                assert_eq!(kept, expected, "what was kept is the tables when the snapshot began");
            }
        }
        let expected = (simulation.rows.clone(), simulation.counts.clone());
        assert_eq!(held(&mut tables, 7), expected, "after {op:?}, step {step}");
    }
    goes_on_in_other_tables(&config, &mut tables, &mut simulation, step);
}

/// The rows and counts in two other tables end as in the simulation.
fn goes_on_in_other_tables(config: &TableConfig, tables: &mut [Table], simulation: &mut Simulation, step: u64) {
    let route = Route::new(2);
    let mut others: Vec<Table> = (0..2).map(|_| Table::new(config).unwrap()).collect();
    for table in tables {
        for absent in table.export_absent(0, 1000) {
            others[route.shard(absent.key)].import_absent(&[absent]).unwrap();
        }
        let ExportBlock { keys, weights, state, usages } = table.export(0, 1000);
        for (i, key) in keys.iter().enumerate() {
            let (weights, state) = (&weights[i * DIM..][..DIM], &state[i * DIM..][..DIM]);
            others[route.shard(*key)].import_with_usages(&[*key], weights, Some(state), &[usages[i]]).unwrap();
        }
    }
    for i in 1..20u64 {
        let some: Vec<u64> = keys().iter().copied().filter(|key| mix64(key ^ i).is_multiple_of(3)).collect();
        let step = step + i;
        for (shard, table) in others.iter_mut().enumerate() {
            let own: Vec<u64> = some.iter().copied().filter(|key| route.shard(*key) == shard).collect();
            table.push(&own, &vec![0.5; own.len() * DIM], step).unwrap();
        }
        simulation.push(&some, &vec![0.5; some.len() * DIM], step);
    }
    assert_eq!(held(&mut others, 1000), (simulation.rows.clone(), simulation.counts.clone()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn rows_come_and_go_as_in_a_plain_simulation(lifetime in lifetimes(), ops in ops()) {
        run(lifetime, 1, &ops);
        run(lifetime, 3, &ops);
    }
}

/// What happens to a table whose cells have many blocks of places.
#[derive(Clone, Debug)]
enum InOneCell {
    /// Key numbers, and by how many steps the push comes too late.
    Push(Vec<usize>, u64),
    /// A key number, how many steps ago it was last seen, and its score.
    Import(usize, u64, f32),
}

fn in_one_cell() -> impl Strategy<Value = Vec<InOneCell>> {
    let some = prop::collection::btree_set(0usize..400, 0..60).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let late = prop_oneof![4 => Just(0u64), 1 => 1..4u64];
    let op = prop_oneof![
        9 => (some.prop_shuffle(), late).prop_map(|(keys, late)| InOneCell::Push(keys, late)),
        1 => (0usize..400, 0..9u64, prop::sample::select(vec![0.0, 0.25, 1.0, 9.0]))
            .prop_map(|(key, ago, score)| InOneCell::Import(key, ago, score)),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn rows_leave_a_cell_of_many_blocks_as_in_a_plain_simulation(
        half_life in prop::sample::select(vec![None, Some(3), Some(700)]),
        ops in in_one_cell(),
    ) {
        let keys: Vec<u64> = (0..).map(mix64).filter(|key| cell(*key) == 7).take(400).collect();
        let eviction = Eviction { max_rows: Some(LEAST_CAP * 8), half_life, ..Eviction::default() };
        let lifetime = Lifetime { admission: None, eviction: Some(eviction) };
        let config = config(lifetime);
        let mut tables = [Table::new(&config).unwrap()];
        let fresh = Table::new(&TableConfig { lifetime: Lifetime::default(), ..config }).unwrap();
        let mut simulation = Simulation { lifetime, fresh, rows: BTreeMap::new(), counts: BTreeMap::new() };
        for (step, op) in (10u64..).zip(&ops) {
            match op {
                InOneCell::Push(numbers, late) => {
                    let some: Vec<u64> = numbers.iter().map(|i| keys[*i]).collect();
                    let grads = vec![0.5; some.len() * DIM];
                    tables[0].push(&some, &grads, step - late).unwrap();
                    simulation.push(&some, &grads, step - late);
                }
                InOneCell::Import(number, ago, score) => {
                    let (key, seen) = (keys[*number], step - ago);
                    let score = half_life.map_or(0.0, |_| *score);
                    let usage = RowUsage { last_seen: seen as u32, score };
                    tables[0].import_with_usages(&[key], &[0.5; DIM], Some(&[1.0; DIM]), &[usage]).unwrap();
                    simulation.rows.insert(key, Row { weights: [0.5; DIM], state: [1.0; DIM], seen, score });
                }
            }
            prop_assert_eq!(&held(&mut tables, 1000).0, &simulation.rows, "after {:?}, step {}", op, step);
        }
    }
}

#[test]
fn a_table_never_exceeds_its_cap_of_rows_and_of_keys_that_wait() {
    let eviction = Some(Eviction { max_rows: Some(LEAST_CAP), ..Eviction::default() });
    // What a shard takes beside its rows (docs/troubleshooting.md).
    for (admission, beside) in [(None, 5_000_000), (Some(Admission::Count(2)), 10_000_000)] {
        let config = config(Lifetime { admission, eviction });
        let most_bytes = LEAST_CAP * config.most_bytes_per_row() + beside;
        let mut table = Table::new(&config).unwrap();
        let mut bytes = 0;
        for step in 1..=400u64 {
            let keys: Vec<u64> = (0..2500).map(|i| mix64((step - 1) / 2 * 2500 + i)).collect();
            table.push(&keys, &vec![0.1; keys.len() * DIM], step).unwrap();
            let stats = table.stats();
            assert!(stats.rows <= LEAST_CAP && stats.waiting <= LEAST_CAP, "{stats:?}");
            if step == 200 {
                bytes = stats.bytes;
            }
        }
        let stats = table.stats();
        assert_eq!(stats.bytes, bytes, "memory does not grow once the table is full");
        assert!(bytes <= most_bytes, "{bytes} of {most_bytes}");
        assert!(stats.rows > LEAST_CAP * 8 / 10, "{stats:?}");
        assert_eq!((stats.inserted, stats.evicted), (500_000, 500_000 - stats.rows));
        assert_eq!(stats.refused, if admission.is_some() { 500_000 } else { 0 });
    }
}
