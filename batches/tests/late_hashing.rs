//! Integers that `batch` hashes give the same batches as those that `parse` hashes.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray, UInt32Array};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Lineage, Outbox, Stage, StageCx};
use forebay_batches::{BatchPlan, Batcher, Parse};
use forebay_batches::{ExampleBatch, SlotKeys, TrainBatch};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_job::{Columns, Slot, SlotCross};
use forebay_ps::SlotHasher;
use futures::executor::block_on;
use proptest::prelude::*;

const SEED: u64 = 7;

/// The values of one row, by column: see [`columns`].
#[derive(Clone, Debug)]
struct Row {
    label: i32,
    near: Option<i32>,
    far: Option<i64>,
    shared: (i32, Option<i32>),
    crossed: i64,
    other: Option<u32>,
}

/// `near` and `far` are hashed late. `a` and `b` share a key space, `crossed` is in a cross, and `other` has another type.
fn columns() -> Columns {
    let slot = |column: &str, space: Option<&str>| Slot {
        key_space: space.map(str::to_owned),
        ..Slot::from(column.to_owned())
    };
    Columns {
        label: "label".into(),
        dense: Vec::new(),
        slots: vec![
            slot("near", None),
            slot("a", Some("shared")),
            slot("far", None),
            slot("b", Some("shared")),
            slot("crossed", None),
            slot("other", None),
            Slot { buckets: Some(3), ..slot("bucketed", None) },
            slot("text", None),
        ],
        crosses: vec![SlotCross { columns: vec!["crossed".into(), "near".into()], buckets: None, table: None }],
        ..Columns::default()
    }
}

fn record_batch(rows: &[Row]) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.label)))),
        ("near", Arc::new(rows.iter().map(|row| row.near).collect::<Int32Array>())),
        ("far", Arc::new(rows.iter().map(|row| row.far).collect::<Int64Array>())),
        ("a", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.shared.0)))),
        ("b", Arc::new(rows.iter().map(|row| row.shared.1).collect::<Int32Array>())),
        ("crossed", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.crossed)))),
        ("other", Arc::new(rows.iter().map(|row| row.other).collect::<UInt32Array>())),
        ("bucketed", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.crossed)))),
        ("text", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.crossed.to_string())))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// The batches of these rows, and what `parse` made of them.
fn batches(
    columns: &Columns,
    plan: &BatchPlan,
    chunks: &[Vec<Row>],
    late: bool,
) -> (Vec<TrainBatch>, Vec<ExampleBatch>) {
    let cx = StageCx::detached("test");
    let (mut examples, parsed) = Outbox::collecting();
    let (mut out, made) = Outbox::collecting();
    let mut parse = Parse::new(columns, SEED, OnBadRow::Skip).hashing_late(late).keep_negatives(0.7, SEED);
    let mut batch = Batcher::new(plan.clone());
    let (mut all, mut first) = (Vec::new(), 0);
    for chunk in chunks {
        // The front is cut off, so that arrays and their bitmaps begin in the middle.
        let whole = record_batch(&[chunk.iter().take(3).cloned().collect(), chunk.clone()].concat());
        let from = chunk.len().min(3);
        let batch_of_rows = whole.slice(from, whole.num_rows() - from);
        let lineage = Lineage { row: first, ..Lineage::default() };
        let rows = Rows { batch: batch_of_rows, lineage, window: WindowMark::default(), rejected: 0, places: None };
        first += chunk.len() as u64;
        block_on(parse.on_batch(rows, &cx, &mut examples)).unwrap();
        for examples in parsed.take() {
            all.push(examples.clone());
            block_on(batch.on_batch(examples, &cx, &mut out)).unwrap();
        }
    }
    block_on(batch.finish(&cx, &mut out)).unwrap();
    (made.take(), all)
}

fn plan(columns: &Columns, rows: usize, window: usize) -> BatchPlan {
    let key_spaces = columns.key_spaces();
    let missing = columns.slots.iter().map(|slot| Some(SlotHasher::new(slot.key_space(), SEED).missing()));
    let missing = missing.chain(columns.crosses.iter().map(|_| None)).collect();
    BatchPlan { rows, window, seed: 5, drop_last: false, mark_window_ends: false, key_spaces, missing }
}

/// Integers that lie close together, or that do not; sometimes the integer that has the key of a missing value.
fn far() -> impl Strategy<Value = Option<i64>> {
    let key_of_missing = SlotHasher::new("far", SEED);
    let alike = key_of_missing.integer(key_of_missing.missing());
    prop_oneof![
        4 => Just(None::<i64>),
        8 => (-3_i64..3).prop_map(Some),
        4 => (-2_i64..3).prop_map(move |near| Some(alike.wrapping_add(near))),
        1 => any::<i64>().prop_map(Some),
        1 => prop::sample::select(vec![i64::MIN, i64::MIN + 1, i64::MAX]).prop_map(Some),
    ]
}

/// As [`far`], in a range of few integers around the one that has the key of a missing value, or at an end of all integers.
fn close_to(at: i64) -> impl Strategy<Value = Option<i64>> {
    prop::option::of((0_i64..6).prop_map(move |i| at.saturating_add(i)))
}

fn rows(far: BoxedStrategy<Option<i64>>) -> impl Strategy<Value = Vec<Vec<Row>>> {
    let row = (
        0_i32..3,
        prop::option::of(0_i32..9),
        far,
        (0_i32..4, prop::option::of(2_i32..6)),
        -2_i64..3,
        prop::option::of(0_u32..5),
    );
    let row =
        row.prop_map(|(label, near, far, shared, crossed, other)| Row { label, near, far, shared, crossed, other });
    prop::collection::vec(prop::collection::vec(row, 0..80), 0..5)
}

fn chunks() -> impl Strategy<Value = Vec<Vec<Row>>> {
    let hasher = SlotHasher::new("far", SEED);
    let alike = hasher.integer(hasher.missing());
    prop_oneof![
        rows(far().boxed()),
        rows(close_to(alike.saturating_sub(2)).boxed()),
        rows(close_to(i64::MIN).boxed()),
        rows(close_to(i64::MAX - 3).boxed()),
        rows(prop::option::of(any::<i64>()).boxed()),
    ]
}

proptest! {
    #[test]
    fn the_batches_do_not_depend_on_which_stage_hashes(
        chunks in chunks(), size in 1_usize..60, window in prop::sample::select(vec![0_usize, 40, 200]), crossed: bool,
    ) {
        let mut columns = columns();
        if !crossed {
            columns.crosses.clear();
        }
        let plan = plan(&columns, size, window);
        let (late, examples) = batches(&columns, &plan, &chunks, true);
        let (early, expected) = batches(&columns, &plan, &chunks, false);
        prop_assert_eq!(late, early);
        for (late, early) in examples.iter().zip(&expected) {
            let is_late = |slot: usize| matches!(late.slots[slot], SlotKeys::Integers(_));
            let found: Vec<bool> = (0..columns.slots.len()).map(is_late).collect();
            // With the cross, `near` is hashed by `parse`, and so is `crossed`.
            prop_assert_eq!(found, [!crossed, false, true, false, !crossed, false, false, false]);
            for (late, early) in late.slots.iter().zip(&early.slots) {
                prop_assert_eq!(late.rows(), early.rows());
                prop_assert_eq!(late.keys(0, late.rows()), early.keys(0, early.rows()));
            }
        }
    }
}

/// Keys that a custom stage or a program makes stand beside integers of the same slot.
#[test]
fn integers_and_keys_of_one_slot_are_found_together() {
    let columns = Columns { slots: vec![Slot::from("far".to_owned())], crosses: Vec::new(), ..columns() };
    let row = |far| Row { label: 1, near: None, far, shared: (0, None), crossed: 0, other: None };
    let chunk: Vec<Row> = [Some(4), None, Some(9), Some(4)].map(row).to_vec();
    let plan = plan(&columns, 8, 0);
    let (_, late) = batches(&columns, &plan, std::slice::from_ref(&chunk), true);
    let (_, early) = batches(&columns, &plan, std::slice::from_ref(&chunk), false);
    let (mut out, made) = Outbox::collecting();
    let (cx, mut stage) = (StageCx::detached("batch"), Batcher::new(plan));
    for examples in late.into_iter().chain(early) {
        block_on(stage.on_batch(examples, &cx, &mut out)).unwrap();
    }
    block_on(stage.finish(&cx, &mut out)).unwrap();
    let made = made.take();
    assert_eq!(made.iter().map(|batch| batch.inverse.clone()).collect::<Vec<_>>(), [[0, 1, 2, 0, 0, 1, 2, 0]]);
}
