//! Batches by (epoch, window, index): the same rows, no matter which source reads them and in which pieces they come.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, Int32Array, Int64Array};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Lineage, Outbox, Source, Stage, StageCx};
use forebay_batches::{BatchPlan, Batcher, Parse};
use forebay_batches::{ExampleBatch, SlotKeys, TrainBatch, WindowEnd};
use forebay_connectors::{DataPlan, Lease, Leases, OnBadRow, ParquetSource, ReadOptions, WindowMark};
use forebay_job::{Columns, DenseColumn, Slot, SlotKind, Transform};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;

/// Two files of row groups of 40 rows; the label of a row in `bad` is no label.
fn data(dir: &Path, rows: usize, bad: &[std::ops::Range<usize>]) {
    for (file, ids) in [0..rows / 3, rows / 3..rows].into_iter().enumerate() {
        let label = |i: usize| if bad.iter().any(|bad| bad.contains(&i)) { 7 } else { i as i32 % 2 };
        let batch = RecordBatch::try_from_iter([
            ("label", Arc::new(Int32Array::from_iter_values(ids.clone().map(label))) as ArrayRef),
            ("row", Arc::new(Int32Array::from_iter_values(ids.clone().map(|i| i as i32)))),
            ("c", Arc::new(Int64Array::from_iter_values(ids.map(|i| i as i64 % 17)))),
        ])
        .unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(40)).build();
        let file = File::create(dir.join(format!("{file}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

/// Source, `parse` and `batch`, one after the other.
async fn batches(mut source: ParquetSource, plan: &BatchPlan) -> Vec<TrainBatch> {
    let columns = Columns {
        label: "label".into(),
        dense: vec![DenseColumn { transform: Transform::None, ..DenseColumn::from("row".to_owned()) }],
        slots: vec![Slot { kind: SlotKind::Int, ..Slot::from("c".to_owned()) }],
        ..Columns::default()
    };
    let cx = StageCx::detached("test");
    let mut parse = Parse::new(&columns, 0, OnBadRow::Skip);
    let mut batch = Batcher::new(plan.clone());
    let (mut examples, parsed) = Outbox::collecting();
    let (mut out, made) = Outbox::collecting();
    source.open(&cx).await.unwrap();
    while let Some(rows) = source.next(&cx).await.unwrap() {
        parse.on_batch(rows, &cx, &mut examples).await.unwrap();
        for examples in parsed.take() {
            batch.on_batch(examples, &cx, &mut out).await.unwrap();
        }
    }
    batch.finish(&cx, &mut out).await.unwrap();
    made.take()
}

/// By (term, epoch, window, index), without what tells how they came.
type Named = BTreeMap<(u32, u32, u64, u32), TrainBatch>;

fn named(batches: Vec<TrainBatch>) -> Named {
    let mut found = Named::new();
    for mut batch in batches {
        let (epoch, WindowMark { window, term, closes }) = (batch.lineage.epoch, batch.window);
        assert_eq!(closes, batch.closes.is_some());
        (batch.lineage, batch.window) = Default::default();
        assert!(found.insert((term, epoch, window, batch.index), batch).is_none());
    }
    found
}

/// Hands out what it was given, in that order.
#[derive(Debug)]
struct Listed(Mutex<VecDeque<Lease>>);

#[async_trait::async_trait]
impl Leases for Listed {
    async fn next(&self, _data: &DataPlan) -> Result<Option<Lease>, Fault> {
        Ok(self.0.lock().unwrap().pop_front())
    }
}

fn plan(rows: usize, window: usize, drop_last: bool, mark_window_ends: bool) -> BatchPlan {
    BatchPlan { rows, window, seed: 9, drop_last, mark_window_ends, key_spaces: vec![0], missing: vec![None] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_division_gives_the_same_batches(
        rows in 60_usize..300, bad in prop::collection::vec((0_usize..300, 1_usize..60), 0..5),
        batch_rows in 1_usize..30, batches_a_window in 1_usize..5, shuffled: bool, drop_last: bool, seed: u64,
        read_rows in 1_usize..90, other_read_rows in 1_usize..90, decode_threads in 1_usize..3, sources in 1_usize..4,
        cuts in prop::collection::vec((any::<bool>(), any::<u32>()), 1..9),
    ) {
        let bad: Vec<_> = bad.into_iter().map(|(from, n)| from..from + n).collect();
        let dir = tempfile::tempdir().unwrap();
        data(dir.path(), rows, &bad);
        let window_rows = batch_rows * batches_a_window;
        let plan = plan(batch_rows, if shuffled { window_rows } else { 0 }, drop_last, true);
        let options =
            ReadOptions { batch_rows: read_rows, epochs: 2, shuffle: true, seed, window_rows, ..ReadOptions::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let whole = named(batches(ParquetSource::new(dir.path(), options.clone()), &plan).await);

            // Each window ends once, and its account is right.
            let windows = rows.div_ceil(window_rows) as u64;
            let mut ends: BTreeMap<(u32, u64), WindowEnd> = BTreeMap::new();
            for (&(_, epoch, window, index), batch) in &whole {
                if let Some(end) = batch.closes {
                    assert_eq!(end.batches, index + 1);
                    assert!(ends.insert((epoch, window), end).is_none());
                } else {
                    assert_eq!(batch.labels.len(), batch_rows);
                }
            }
            assert_eq!(ends.len() as u64, 2 * windows);
            for (&(epoch, window), end) in &ends {
                let raw = window_rows.min(rows - window as usize * window_rows);
                assert_eq!(end.rows + end.rejected, raw as u64);
                let of_window = whole.range((0, epoch, window, 0)..=(0, epoch, window, u32::MAX));
                assert_eq!(of_window.map(|(_, batch)| batch.labels.len() as u64).sum::<u64>(), end.rows);
            }
            if !drop_last {
                let mut all: Vec<i32> = whole.values().flat_map(|b| b.dense.iter().map(|&row| row as i32)).collect();
                all.sort_unstable();
                let good = (0..rows as i32).filter(|&row| !bad.iter().any(|bad| bad.contains(&(row as usize))));
                assert_eq!(all, good.flat_map(|row| [row, row]).collect::<Vec<_>>());
            }

            // The same windows as leases of any length, in any order, some of them twice, to any number of sources.
            let mut leases: Vec<Lease> = Vec::new();
            for (i, (epoch, window)) in (0..2).flat_map(|e| (0..windows).map(move |w| (e, w))).enumerate() {
                match leases.last_mut() {
                    Some(last) if last.epoch == epoch && !cuts[i % cuts.len()].0 => last.windows.end = window + 1,
                    _ => leases.push(Lease { epoch, windows: window..window + 1, term: 0 }),
                }
            }
            let again: Vec<Lease> = leases.iter().step_by(2).map(|lease| Lease { term: 1, ..lease.clone() }).collect();
            leases.extend(again);
            let mut keyed: Vec<_> = leases.into_iter().enumerate().collect();
            keyed.sort_by_key(|(i, _)| cuts[i % cuts.len()].1.rotate_left(*i as u32));
            let leases = Arc::new(Listed(Mutex::new(keyed.into_iter().map(|(_, lease)| lease).collect())));
            let other = ReadOptions { batch_rows: other_read_rows, decode_threads, read_ahead_bytes: 1, ..options.clone() };
            let each = (0..sources).map(|_| {
                batches(ParquetSource::new(dir.path(), other.clone()).leasing(leases.clone()), &plan)
            });
            let found = named(futures::future::join_all(each).await.concat());
            for (&(_, epoch, window, index), batch) in &found {
                assert_eq!(batch, &whole[&(0, epoch, window, index)], "epoch {epoch}, window {window}, batch {index}");
            }
            let of_term = |term| found.keys().filter(|name| name.0 == term).count();
            assert_eq!(of_term(0), whole.len());
            assert!(of_term(1) > 0);

            // Without marks: the same batches, but for empty ones, and perhaps without word of the end.
            let quiet = BatchPlan { mark_window_ends: false, ..plan.clone() };
            let quiet = named(batches(ParquetSource::new(dir.path(), options), &quiet).await);
            let full = |of: Named| -> Vec<_> {
                let bare = of.into_iter().map(|(name, batch)| (name, TrainBatch { closes: None, ..batch }));
                bare.filter(|(_, batch)| !batch.labels.is_empty()).collect()
            };
            assert_eq!(full(quiet), full(whole));
        });
    }
}

/// Rows of one window.
fn examples(rows: usize, window: u64, closes: bool) -> ExampleBatch {
    ExampleBatch {
        lineage: Lineage::default(),
        window: WindowMark { window, closes, ..WindowMark::default() },
        rejected: 1,
        rows,
        labels: vec![0.0; rows],
        weights: Vec::new(),
        dense: vec![],
        slots: vec![SlotKeys::One((0..rows as u64).collect())],
        kept: None,
    }
}

/// (window, rows, end) of each batch.
fn made(plan: BatchPlan, chunks: Vec<ExampleBatch>) -> (Vec<(u64, usize, Option<WindowEnd>)>, u64) {
    let cx = StageCx::detached("batch");
    let (mut out, made) = Outbox::collecting();
    let mut stage = Batcher::new(plan);
    futures::executor::block_on(async {
        for chunk in chunks {
            stage.on_batch(chunk, &cx, &mut out).await.unwrap();
        }
        stage.finish(&cx, &mut out).await.unwrap();
    });
    let made = made.take().into_iter().map(|b| (b.window.window, b.labels.len(), b.closes)).collect();
    (made, cx.ledger().snapshot().rejected_total())
}

#[test]
fn a_window_that_is_cut_off_is_not_sent_as_if_it_were_whole() {
    let chunks = || vec![examples(25, 0, false), examples(5, 1, true), examples(12, 2, false)];
    let end = |batches, rows, rejected| Some(WindowEnd { batches, rows, rejected });
    let (batches, dropped) = made(plan(10, 0, false, true), chunks());
    assert_eq!(batches, [(0, 10, None), (0, 10, None), (1, 5, end(1, 5, 1)), (2, 10, None)]);
    assert_eq!(dropped, 5 + 2);
    // Without marks, every row is sent.
    let (batches, dropped) = made(plan(10, 0, false, false), chunks());
    let rows: Vec<_> = batches.iter().map(|&(window, rows, end)| (window, rows, end.is_some())).collect();
    let expected = [(0, 10), (0, 10), (0, 5), (1, 5), (2, 10), (2, 2)];
    assert_eq!(rows, expected.map(|(window, rows)| (window, rows, window == 1)));
    assert_eq!(dropped, 0);
}

#[test]
fn a_window_without_rows_ends_too_if_somebody_wants_to_know() {
    let chunks = || vec![examples(0, 0, true), examples(7, 1, true), examples(0, 2, false), examples(0, 2, true)];
    let end = |batches, rows, rejected| Some(WindowEnd { batches, rows, rejected });
    let (batches, _) = made(plan(10, 0, false, true), chunks());
    assert_eq!(batches, [(0, 0, end(1, 0, 1)), (1, 7, end(1, 7, 1)), (2, 0, end(1, 0, 2))]);
    let (batches, dropped) = made(plan(10, 0, true, true), chunks());
    assert_eq!(batches, [(0, 0, end(1, 0, 1)), (1, 0, end(1, 0, 8)), (2, 0, end(1, 0, 2))]);
    assert_eq!(dropped, 7);
    assert_eq!(made(plan(10, 0, false, false), chunks()).0, [(1, 7, end(1, 7, 1))]);
}
