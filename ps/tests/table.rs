//! A table against the slowest table there is: a `HashMap` of rows, one weight at a time.

use crate::mixed_table::{DIM, STATE, config};

use std::collections::HashMap;

use forebay_ps::{
    Decay, GroupConfig, Init, LearningRate, Lifetime, LrReductions, Optimizer, PartConfig, Storage, Table, TableConfig,
    TableError,
};
use half::f16;
use proptest::prelude::*;

/// The reference. New weights come from a fresh table each time: a row depends on its key alone.
struct Slow {
    config: TableConfig,
    rows: HashMap<u64, (Vec<f32>, Vec<f32>)>,
}

impl Slow {
    fn row(&mut self, key: u64) -> &mut (Vec<f32>, Vec<f32>) {
        let config = &self.config;
        self.rows.entry(key).or_insert_with(|| {
            let mut table = Table::new(config).unwrap();
            let mut weights = Vec::new();
            table.pull(&[key], &mut weights).unwrap();
            // FTRL, Adagrad, Adam, momentum.
            let state = [&[0.0; 2][..], &[0.1; 5], &[0.0; 6], &[0.0; 2]].concat();
            (weights, state)
        })
    }

    fn push(&mut self, key: u64, g: &[f32], step: u64) {
        let storage = self.config.storage;
        let (w, s) = self.row(key);
        // FTRL.
        let sigma = ((s[1] + g[0] * g[0]).sqrt() - s[1].sqrt()) / 0.1;
        s[0] += g[0] - sigma * w[0];
        s[1] += g[0] * g[0];
        w[0] =
            if s[0].abs() <= 0.01 { 0.0 } else { -(s[0] - 0.01 * s[0].signum()) / ((1.0 + s[1].sqrt()) / 0.1 + 0.1) };
        for i in 0..5 {
            s[2 + i] += g[1 + i] * g[1 + i];
            w[1 + i] -= 0.1 * g[1 + i] / (s[2 + i].sqrt() + 1e-10);
        }
        let rate = 0.1 * (1.0 - 0.75f64.powi(step as i32)).sqrt() / (1.0 - 0.5f64.powi(step as i32));
        for i in 0..3 {
            let g = g[6 + i];
            s[7 + i] += 0.5 * (g - s[7 + i]);
            s[10 + i] += 0.25 * (g * g - s[10 + i]);
            w[6 + i] -= rate as f32 * s[7 + i] / (s[10 + i].sqrt() + 1e-8);
        }
        for i in 0..2 {
            w[9 + i] -= 0.1 * g[9 + i];
            s[13 + i] = 0.5 * s[13 + i] + g[11 + i];
            w[11 + i] -= 0.1 * s[13 + i];
        }
        if storage == Storage::F16 {
            w.iter_mut().for_each(|w| *w = f16::from_f32(w.clamp(-65504.0, 65504.0)).to_f32());
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Pull(Vec<u64>),
    Peek(Vec<u64>),
    Push(Vec<u64>, u64),
    /// A pull and a push of the same keys: the way that remembers rows.
    Train(Vec<u64>, u64),
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    let key = prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX), 2 => any::<u64>()];
    prop::collection::vec(key, 0..150)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        keys().prop_map(Op::Pull),
        keys().prop_map(Op::Peek),
        (keys(), 1u64..50).prop_map(|(keys, step)| Op::Push(keys, step)),
        (keys(), 1u64..50).prop_map(|(keys, step)| Op::Train(keys, step)),
    ]
}

/// Gradients that depend on key and step, some of them zero.
fn grads(keys: &[u64], step: u64) -> Vec<f32> {
    let grad = |key: u64, i: usize| match key.wrapping_add(step * 7 + i as u64 * 3) % 11 {
        0 => 0.0,
        r => (r as f32 - 5.5) * 0.3,
    };
    keys.iter().flat_map(|key| (0..DIM).map(move |i| grad(*key, i))).collect()
}

/// Zeros of both signs are one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if *v == 0.0 { 0 } else { v.to_bits() }).collect()
}

fn agrees(storage: Storage, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut table = Table::new(&config(storage)).unwrap();
    let mut slow = Slow { config: config(storage), rows: HashMap::new() };
    let mut rows = vec![9.0; 7];
    let mut inserted = 0;
    for op in ops {
        if let Op::Pull(keys) | Op::Train(keys, _) = &op {
            table.pull(keys, &mut rows).unwrap();
            let wanted: Vec<f32> = keys.iter().flat_map(|key| slow.row(*key).0.clone()).collect();
            prop_assert_eq!(bits(&rows), bits(&wanted));
        }
        if let Op::Push(keys, step) | Op::Train(keys, step) = &op {
            let grads = grads(keys, *step);
            table.push(keys, &grads, *step).unwrap();
            keys.iter().zip(grads.chunks(DIM)).for_each(|(key, grad)| slow.push(*key, grad, *step));
        }
        if let Op::Peek(keys) = &op {
            table.peek(keys, &mut rows);
            let row = |key: &u64| slow.rows.get(key).map_or(vec![0.0; DIM], |row| row.0.clone());
            prop_assert_eq!(bits(&rows), bits(&keys.iter().flat_map(row).collect::<Vec<f32>>()));
        }
        prop_assert_eq!(table.rows(), slow.rows.len());
        inserted = inserted.max(table.rows());
    }
    prop_assert_eq!(table.stats().inserted, inserted as u64);
    prop_assert!(table.stats().missed <= inserted as u64 && table.stats().missed <= table.stats().pulls);
    // And out again, page by page, into another table.
    let mut copy = Table::new(&config(storage)).unwrap();
    let (mut from, mut seen) = (0, 0);
    loop {
        let block = table.export(from, 37);
        if block.keys.is_empty() {
            break;
        }
        from += block.keys.len();
        for ((key, w), s) in block.keys.iter().zip(block.weights.chunks(DIM)).zip(block.state.chunks(table.state_dim()))
        {
            let (weights, state) = &slow.rows[key];
            prop_assert_eq!(bits(w), bits(weights));
            prop_assert_eq!(bits(s), bits(state));
            seen += 1;
        }
        copy.import(&block.keys, &block.weights, Some(&block.state)).unwrap();
    }
    prop_assert_eq!((seen, copy.rows()), (slow.rows.len(), slow.rows.len()));
    let (again, first) = (copy.export(0, usize::MAX), table.export(0, usize::MAX));
    prop_assert_eq!(again, first);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn f32_agrees_with_the_reference(ops in prop::collection::vec(op(), 0..12)) {
        agrees(Storage::F32, ops)?;
    }

    #[test]
    fn f16_agrees_with_the_reference(ops in prop::collection::vec(op(), 0..12)) {
        agrees(Storage::F16, ops)?;
    }

    /// For all contents of a file: an error or rows that train on, never a panic, and all or nothing.
    #[test]
    fn hostile_imports_are_refused(
        keys in prop::collection::vec(any::<u64>(), 0..9),
        weights in prop::collection::vec(any::<f32>(), 0..9 * DIM),
        state in prop::option::of(prop::collection::vec(any::<f32>(), 0..9 * STATE)),
        fit: bool,
    ) {
        let mut table = Table::new(&config(Storage::F32)).unwrap();
        let (mut weights, mut state) = (weights, state);
        if fit {
            weights.resize(keys.len() * DIM, 1.0);
            if let Some(state) = &mut state { state.resize(keys.len() * STATE, 1.0) }
        }
        let lengths = weights.len() == keys.len() * DIM && state.as_ref().is_none_or(|s| s.len() == keys.len() * STATE);
        let finite = |values: &[f32]| values.iter().all(|v| v.is_finite());
        let good = lengths && finite(&weights) && state.as_ref().is_none_or(|s| {
            finite(s) && s.chunks(STATE).all(|s| [1, 2, 3, 4, 5, 6, 10, 11, 12].iter().all(|i| s[*i] >= 0.0))
        });
        let result = table.import(&keys, &weights, state.as_deref());
        prop_assert_eq!(result.is_ok(), good, "{:?}", result);
        if good {
            let mut rows = Vec::new();
            table.peek(&keys[keys.len().saturating_sub(1)..], &mut rows);
            prop_assert_eq!(&rows[..], &weights[weights.len().saturating_sub(DIM)..]);
        } else {
            prop_assert_eq!(table.rows(), 0);
        }
    }
}

/// A table of two groups of keys, with a part for each optimizer that has a learning rate.
fn of_rate(lr: LearningRate) -> TableConfig {
    let parts: Vec<PartConfig> = [
        Optimizer::Sgd { lr, l2: 0.0 },
        Optimizer::Momentum { lr, momentum: 0.5, l2: 0.0 },
        Optimizer::Adagrad { lr, initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 },
        Optimizer::Adam { lr, beta1: 0.5, beta2: 0.75, eps: 1e-8, l2: 0.0 },
        Optimizer::Adamw { lr, beta1: 0.5, beta2: 0.75, eps: 1e-8, weight_decay: 0.3 },
    ]
    .into_iter()
    .enumerate()
    .map(|(i, optimizer)| PartConfig::new(&format!("part{i}"), 2, optimizer, Init::Uniform { scale: 1.0 }))
    .collect();
    let (storage, lifetime) = (Storage::F32, Lifetime::default());
    let group = GroupConfig { name: "others".into(), parts: parts.clone(), storage, lifetime };
    TableConfig { groups: vec![group], ..TableConfig::new("rated", 1, parts) }
}

/// The reduction is set before the first push, as an exact order pushes gradients of earlier steps after a reduction.
#[test]
fn pushes_after_a_reduction_have_the_rates_of_a_schedule_that_falls_there() {
    let falls = LearningRate { decay: Decay::Steps { every: 4, factor: 0.1 }, ..0.1.into() };
    let mut tables = [0.1.into(), falls, 0.1.into()].map(|lr| Table::new(&of_rate(lr)).unwrap());
    tables[0].reduce_lr(&LrReductions { factor: 0.1, min_lr: 0.0, after: vec![3] });
    let keys = [5, (1 << 56) | 5];
    for step in 1..7 {
        let grads: Vec<f32> = (0..20).map(|i| (i as f32 - 9.5) * step as f32 / 8.0).collect();
        let [reduced, by_hand, constant] = tables.each_mut().map(|table| {
            table.push(&keys, &grads, step).unwrap();
            let mut rows = Vec::new();
            table.peek(&keys, &mut rows);
            bits(&rows)
        });
        assert_eq!(reduced, by_hand, "step {step}");
        assert_eq!(reduced == constant, step < 4, "step {step}");
    }
}

#[test]
fn grows_in_the_midst_of_a_block_and_keeps_every_row() {
    let mut table = Table::new(&config(Storage::F32)).unwrap();
    let keys: Vec<u64> = (0..200_000).map(|i| i * 0x1_0000_0001).collect();
    let (mut rows, mut again) = (Vec::new(), Vec::new());
    table.pull(&keys, &mut rows).unwrap();
    assert_eq!(table.rows(), keys.len());
    table.pull(&keys, &mut again).unwrap();
    assert_eq!(rows, again);
    assert_eq!(table.rows(), keys.len());
    // In any order and cut in any way, a row is the same.
    let mut other = Table::new(&config(Storage::F32)).unwrap();
    for chunk in keys.chunks(777).rev() {
        other.pull(chunk, &mut again).unwrap();
    }
    other.peek(&keys, &mut again);
    assert_eq!(rows, again);
}

#[test]
fn a_bad_gradient_changes_nothing_and_is_named() {
    let mut table = Table::new(&config(Storage::F32)).unwrap();
    let mut rows = Vec::new();
    table.pull(&[1, 2, 3], &mut rows).unwrap();
    let before = table.export(0, 9);
    let mut bad = grads(&[1, 2, 3], 1);
    bad[DIM + 7] = f32::NAN;
    bad[2 * DIM + 8] = f32::NEG_INFINITY;
    let error = table.push(&[1, 2, 3], &bad, 1).unwrap_err();
    assert!(
        matches!(&error, TableError::NotFinite { part, bad: 2, total: 9, key: 2, .. } if part == "adam"),
        "{error}"
    );
    assert!(error.to_string().contains("2 of 9 gradients of part `adam`"), "{error}");
    assert!(matches!(table.push(&[1], &[0.0; 3], 1), Err(TableError::Length { expected: DIM, found: 3, .. })));
    assert!(matches!(table.push(&[1], &[0.0; DIM], 0), Err(TableError::Step { .. })));
    assert!(table.push(&[], &[], 1).is_ok());
    assert_eq!(table.export(0, 9), before);
}

#[test]
fn f16_saturates_and_counts() {
    let sgd = PartConfig::new("p", 2, Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 }, Init::Zeros);
    let mut table = Table::new(&TableConfig { parts: vec![sgd], ..config(Storage::F16) }).unwrap();
    table.push(&[4], &[1e6, -1.0], 1).unwrap();
    let mut rows = Vec::new();
    table.pull(&[4], &mut rows).unwrap();
    assert_eq!(rows, [-65504.0, 1.0]);
    assert_eq!(table.stats().saturated, 1);
}

#[test]
fn exporting_while_rows_come_gives_each_once() {
    let mut table = Table::new(&config(Storage::F32)).unwrap();
    let mut rows = Vec::new();
    let mut seen = Vec::new();
    for round in 0..40u64 {
        let keys: Vec<u64> = (0..100).map(|i| round * 100 + i).collect();
        table.pull(&keys, &mut rows).unwrap();
        let block = table.export(seen.len(), 70);
        seen.extend(block.keys);
    }
    while seen.len() < 4000 {
        let block = table.export(seen.len(), 70);
        assert!(!block.keys.is_empty());
        seen.extend(block.keys);
    }
    assert!(table.export(4000, 70).keys.is_empty());
    // Rows came in the order of their keys, and are numbered so.
    assert_eq!(seen, (0..4000).collect::<Vec<u64>>());
}

#[test]
fn memory_stays_within_the_goal() {
    // Per row 128 bytes and, just after doubling, 16 / 0.375 of index with the old half of it beside; a chunk to fill.
    let parts = vec![PartConfig::new(
        "p",
        16,
        Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.0, eps: 1e-10, l2: 0.0 },
        Init::Zeros,
    )];
    let mut table = Table::new(&TableConfig { parts, ..config(Storage::F32) }).unwrap();
    let mut rows = Vec::new();
    for first in (0..600_000u64).step_by(1000) {
        table.pull(&(first..first + 1000).collect::<Vec<_>>(), &mut rows).unwrap();
        let stats = table.stats();
        assert!(stats.bytes <= (17 << 20) + stats.rows * (128 + 64), "{stats:?}");
    }
    let stats = table.stats();
    assert!((0.5..0.6).contains(&stats.load_factor), "{stats:?}");
    assert!(stats.bytes < 170 * stats.rows + (16 << 20), "{stats:?}");
}
