//! The batch stage against the slow way: exact sizes, every row once, keys and their places.

use forebay_actors::{Lineage, Outbox, Stage, StageCx};
use forebay_base::SplitMix64;
use forebay_batches::{BatchPlan, Batcher};
use forebay_batches::{ExampleBatch, SlotCounts, SlotKeys, TrainBatch};
use forebay_connectors::WindowMark;
use futures::executor::block_on;
use proptest::prelude::*;

/// One row, as simple as can be.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
struct Row {
    label: f32,
    dense: Vec<f32>,
    slots: Vec<Vec<u64>>,
}

const KEY_SPACES: [usize; 4] = [0, 1, 0, 2];

/// The key of a missing value in each slot.
const MISSING: [Option<u64>; 4] = [Some(5), Some(10), Some(5), None];

/// What the slots of a batch have, counted row by row.
fn counts_of(rows: &[Row], unique: &[u64]) -> Vec<SlotCounts> {
    let of = |slot: usize| {
        let values = |row: &Row| row.slots[slot].clone();
        let is_empty = |row: &&Row| values(row).is_empty() || MISSING[slot].is_some_and(|key| values(row) == [key]);
        // The keys of the key spaces are below 6, from 10 to 12, and from 20 on.
        let up_to = |key: &&u64| **key < [6, 13, 24][KEY_SPACES[slot]];
        SlotCounts {
            values: rows.iter().map(|row| values(row).len() as u32).sum(),
            empty: rows.iter().filter(is_empty).count() as u32,
            keys_end: unique.iter().filter(up_to).count() as u32,
        }
    };
    (0..4).map(of).collect()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (
        0..2_u8,
        prop::collection::vec(-2_i8..3, 2),
        (0..6_u64, 10..13_u64, prop::collection::vec(0..6_u64, 0..4), prop::collection::vec(20..24_u64, 0..3)),
    )
        .prop_map(|(label, dense, (a, b, c, d))| Row {
            label: f32::from(label),
            dense: dense.into_iter().map(f32::from).collect(),
            slots: vec![vec![a], vec![b], c, d],
        });
    prop::collection::vec(row, 0..60)
}

/// The weight of value `i` of the last slot: it tells the row and the value.
fn weight(row: &Row, i: usize) -> f32 {
    row.slots[3][i] as f32 + 100.0 * i as f32 + 0.25 * row.dense[0] + 0.5 * row.label
}

/// `weighted`: the values of the last slot have weights.
fn examples(rows: &[Row], first: u64, weighted: bool) -> ExampleBatch {
    let one = |s: usize| SlotKeys::One(rows.iter().map(|r| r.slots[s][0]).collect());
    let many = |s: usize| {
        let mut offsets = vec![0];
        let mut keys = Vec::new();
        for row in rows {
            keys.extend_from_slice(&row.slots[s]);
            offsets.push(keys.len() as u32);
        }
        match weighted && s == 3 {
            true => {
                let of_row = |row: &Row| (0..row.slots[s].len()).map(|i| weight(row, i)).collect::<Vec<_>>();
                SlotKeys::Weighted { offsets, keys, weights: rows.iter().flat_map(of_row).collect() }
            }
            false => SlotKeys::Many { offsets, keys },
        }
    };
    ExampleBatch {
        lineage: Lineage { row: first, ..Lineage::default() },
        window: WindowMark::default(),
        rejected: 0,
        rows: rows.len(),
        labels: rows.iter().map(|r| r.label).collect(),
        weights: Vec::new(),
        dense: (0..2).flat_map(|c| rows.iter().map(move |r| r.dense[c])).collect(),
        slots: vec![one(0), one(1), many(2), many(3)],
        kept: None,
    }
}

/// The rows of a batch, put together again.
fn rows_of(batch: &TrainBatch) -> Vec<Row> {
    let offsets = batch.offsets.as_ref().expect("two slots are multi-valued");
    (0..batch.labels.len())
        .map(|i| Row {
            label: batch.labels[i],
            dense: batch.dense[i * 2..i * 2 + 2].to_vec(),
            slots: (0..4)
                .map(|s| {
                    let bag = i * 4 + s;
                    let places = &batch.inverse[offsets[bag] as usize..offsets[bag + 1] as usize];
                    places.iter().map(|&p| batch.unique[p as usize]).collect()
                })
                .collect(),
        })
        .collect()
}

/// Fails unless the values of the last slot have their weights, and all others 1.
fn check_weights(batch: &TrainBatch) {
    let Some(offsets) = &batch.offsets else { return assert_eq!(batch.rows, 0) };
    assert_eq!(batch.value_weights.len(), batch.inverse.len());
    for (i, row) in rows_of(batch).iter().enumerate() {
        for s in 0..4 {
            let weights = &batch.value_weights[offsets[i * 4 + s] as usize..offsets[i * 4 + s + 1] as usize];
            let expected = |value: usize| if s == 3 { weight(row, value) } else { 1.0 };
            assert!(weights.iter().enumerate().all(|(value, &found)| found == expected(value)), "{row:?}: {weights:?}");
        }
    }
}

/// The batches of rows without weights of values, which equal the batches of rows with weights except for the weights.
fn run(plan: BatchPlan, chunks: &[Vec<Row>]) -> (Vec<TrainBatch>, StageCx) {
    let (weighted, _) = run_one(plan.clone(), chunks, true);
    let (plain, cx) = run_one(plan, chunks, false);
    weighted.iter().for_each(check_weights);
    let without = |batch| TrainBatch { value_weights: Vec::new(), ..batch };
    assert_eq!(weighted.into_iter().map(without).collect::<Vec<_>>(), plain);
    (plain, cx)
}

fn run_one(plan: BatchPlan, chunks: &[Vec<Row>], weighted: bool) -> (Vec<TrainBatch>, StageCx) {
    let cx = StageCx::detached("batch");
    let (mut out, collected) = Outbox::collecting();
    let mut stage = Batcher::new(plan);
    block_on(async {
        let mut first = 0;
        for chunk in chunks {
            stage.on_batch(examples(chunk, first, weighted), &cx, &mut out).await.unwrap();
            first += chunk.len() as u64;
        }
        stage.finish(&cx, &mut out).await.unwrap();
    });
    (collected.take(), cx)
}

fn plan(rows: usize, window: usize, drop_last: bool) -> BatchPlan {
    BatchPlan {
        rows,
        window,
        seed: 3,
        drop_last,
        mark_window_ends: false,
        key_spaces: KEY_SPACES.to_vec(),
        missing: MISSING.to_vec(),
    }
}

/// All rows in the order in which stored jobs train on them, which must not change: parts of `window` rows, rounded up to whole
/// batches, each shuffled by random numbers from the seed and the number of the part.
fn expected(rows: &[Row], size: usize, window: usize) -> Vec<Row> {
    let part = |(number, part): (usize, &[Row])| -> Vec<Row> {
        let start = SplitMix64::new(3).next_u64() ^ (number as u64).wrapping_mul(0xd134_2543_de82_ef95);
        let order = SplitMix64::new(start).permutation(part.len() as u32);
        order.into_iter().map(|row| part[row as usize].clone()).collect()
    };
    match window {
        0 => rows.to_vec(),
        _ => rows.chunks(window.next_multiple_of(size)).enumerate().flat_map(part).collect(),
    }
}

proptest! {
    #[test]
    fn every_row_comes_out_once_in_batches_of_the_exact_size(
        chunks in prop::collection::vec(rows(), 0..6),
        size in 1..20_usize,
        window in prop::sample::select(vec![0_usize, 7, 40]),
        drop_last: bool,
    ) {
        let all: Vec<Row> = chunks.concat();
        let (batches, cx) = run(plan(size, window, drop_last), &chunks);
        let whole = all.len() / size;
        let rest = if drop_last { 0 } else { all.len() % size };
        prop_assert_eq!(batches.len(), whole + usize::from(rest > 0));
        for (i, batch) in batches.iter().enumerate() {
            prop_assert_eq!(batch.labels.len(), if i < whole { size } else { rest });
            prop_assert_eq!(batch.lineage.seq, i as u64);
            // Keys once, in the order of slots: keys of one key space never come twice, and 20.. and 10.. are separate spaces here.
            let mut unique = batch.unique.clone();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), batch.unique.len());
            prop_assert_eq!(&batch.slots, &counts_of(&rows_of(batch), &batch.unique));
        }
        let found: Vec<Row> = batches.iter().flat_map(rows_of).collect();
        prop_assert_eq!(&found, &expected(&all, size, window)[..found.len()]);
        let dropped = all.len() - found.len();
        let counted: u64 = cx.ledger().snapshot().rejected.values().sum();
        prop_assert_eq!(counted, dropped as u64);
    }
}

/// The lists of a batch are gathered in blocks of 256 keys and more.
#[test]
fn lists_with_many_keys_are_those_of_their_rows() {
    let list = |i: u64, most: u64, first: u64, of: u64| (0..i % most).map(|k| first + (i + k) % of).collect();
    let row = |i: u64| Row {
        label: 0.0,
        dense: vec![i as f32, 1.0],
        slots: vec![vec![i % 6], vec![10 + i % 3], list(i, 4, 0, 6), list(i, 3, 20, 4)],
    };
    let all: Vec<Row> = (0..900).map(row).collect();
    for window in [0, 900] {
        let (batches, _) = run(plan(400, window, false), std::slice::from_ref(&all));
        let found: Vec<Row> = batches.iter().flat_map(rows_of).collect();
        assert_eq!(found, expected(&all, 400, window));
    }
}

#[test]
fn a_window_shuffles_and_a_seed_repeats_it() {
    let rows: Vec<Row> = (0..1000)
        .map(|i| Row { label: 0.0, dense: vec![i as f32, 0.0], slots: vec![vec![1], vec![11], vec![], vec![]] })
        .collect();
    let order = |seed| -> Vec<f32> {
        let (batches, _) = run(BatchPlan { seed, ..plan(50, 400, false) }, std::slice::from_ref(&rows));
        batches.iter().flat_map(rows_of).map(|row| row.dense[0]).collect()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    let moved = order(1).iter().enumerate().filter(|&(i, &row)| i as f32 != row).count();
    assert!(moved > 900, "{moved} of 1000 rows moved");
}

#[test]
fn single_valued_slots_need_no_offsets() {
    let examples = ExampleBatch {
        lineage: Lineage::default(),
        window: WindowMark::default(),
        rejected: 0,
        rows: 3,
        labels: vec![1.0, 0.0, 1.0],
        weights: Vec::new(),
        dense: vec![],
        slots: vec![SlotKeys::One(vec![5, 5, 6]), SlotKeys::One(vec![9, 8, 9])],
        kept: None,
    };
    let (mut out, collected) = Outbox::collecting();
    let mut stage = Batcher::new(BatchPlan {
        rows: 3,
        window: 0,
        seed: 0,
        drop_last: false,
        mark_window_ends: false,
        key_spaces: vec![0, 1],
        missing: Vec::new(),
    });
    block_on(stage.on_batch(examples, &StageCx::detached("batch"), &mut out)).unwrap();
    let batch = collected.take().pop().unwrap();
    assert_eq!((batch.unique, batch.inverse, batch.offsets), (vec![5, 6, 9, 8], vec![0, 2, 0, 3, 1, 2], None));
}
