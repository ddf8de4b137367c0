//! What parsing and batching cost: nanoseconds a row, of rows with 26 slots of integers and without dense features.
//!
//! `cargo bench -p forebay-batches --bench batch` compares integers that `parse` hashes with those that `batch` hashes, in turns; the
//! least of the turns counts. `FOREBAY_BENCH_TURNS` sets their number (default 7). `FOREBAY_BENCH_ONLY=WORD` measures only what has the
//! word in its name. Nothing passes or fails on a time.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int32Array, Int64Array};
use arrow::record_batch::RecordBatch;
use forebay_actors::{Fault, Lineage, Outbox, Stage, StageCx};
use forebay_base::{SplitMix64, mix64, unit_f64};
use forebay_batches::{BatchPlan, Batcher, Parse};
use forebay_connectors::{OnBadRow, Rows, WindowMark};
use forebay_job::{Columns, Slot};
use futures::executor::block_on;

/// Rows in all, and of one batch of the source.
const ROWS: usize = 1 << 18;
const READ: usize = 1 << 13;

/// How many values each slot has: as in the comparison with the peers.
const CARDINALITIES: [i64; 26] = [
    1460, 583, 86140, 86140, 305, 24, 12517, 633, 3, 93145, 5683, 86140, 3194, 27, 14992, 86140, 10, 5652, 2173, 4,
    86140, 18, 15, 286_181, 105, 142_572,
];

/// What the integers of the slots are.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    /// Spread over all integers of their width, as hashes are.
    spread: bool,
    wide: bool,
    /// Missing values in 100.
    missing: u64,
}

const FORMS: [Form; 6] = [
    Form { name: "32 bits, close together", spread: false, wide: false, missing: 0 },
    Form { name: "32 bits, close together, 20% missing", spread: false, wide: false, missing: 20 },
    Form { name: "32 bits, spread", spread: true, wide: false, missing: 0 },
    Form { name: "64 bits, close together", spread: false, wide: true, missing: 0 },
    Form { name: "64 bits, spread", spread: true, wide: true, missing: 0 },
    Form { name: "64 bits, spread, 20% missing", spread: true, wide: true, missing: 20 },
];

impl Form {
    /// A column of `READ` values: roughly, value `k` comes as often as 1 / k says.
    fn column(self, slot: usize, random: &mut SplitMix64) -> ArrayRef {
        let cardinality = CARDINALITIES[slot];
        let values = (0..READ).map(|_| {
            let rank = (cardinality as f64).powf(unit_f64(random.next_u64())) as i64 - 1;
            // In no order, as in a vocabulary.
            let value = rank.wrapping_mul(1_000_003).rem_euclid(cardinality) + 100_000 * slot as i64;
            let value = if self.spread { mix64(value as u64) as i64 } else { value };
            (random.below(100) >= self.missing).then_some(value)
        });
        match self.wide {
            true => Arc::new(values.collect::<Int64Array>()),
            false => Arc::new(values.map(|value| value.map(|value| value as i32)).collect::<Int32Array>()),
        }
    }

    fn batches(self) -> Result<Vec<RecordBatch>, Fault> {
        let mut random = SplitMix64::new(1);
        let mut batch = || {
            let label: ArrayRef =
                Arc::new(Int32Array::from_iter_values((0..READ).map(|row| row.is_multiple_of(4).into())));
            let slots = (0..CARDINALITIES.len()).map(|slot| (format!("C{}", slot + 1), self.column(slot, &mut random)));
            RecordBatch::try_from_iter(std::iter::once(("label".to_owned(), label)).chain(slots))
                .map_err(|e| Fault::internal("the bench's columns do not fit together").because(e))
        };
        (0..ROWS / READ).map(|_| batch()).collect()
    }
}

fn columns() -> Columns {
    let slots = (1..=CARDINALITIES.len()).map(|slot| Slot::from(format!("C{slot}"))).collect();
    Columns { label: "label".into(), dense: Vec::new(), slots, ..Columns::default() }
}

/// Seconds that `parse` and `batch` take for all rows, and different keys of all batches.
fn run(batches: &[RecordBatch], window: usize, late: bool) -> Result<(f64, f64, usize), Fault> {
    let (columns, cx) = (columns(), StageCx::detached("bench"));
    let key_spaces = columns.key_spaces();
    let plan = BatchPlan {
        rows: 4096,
        window,
        seed: 1,
        drop_last: false,
        mark_window_ends: false,
        key_spaces,
        missing: Vec::new(),
    };
    let mut parse = Parse::new(&columns, 1, OnBadRow::Fail).hashing_late(late);
    let mut batch = Batcher::new(plan);
    let (mut examples, parsed) = Outbox::collecting();
    let (mut out, made) = Outbox::collecting();
    let (mut parsing, mut batching, mut unique) = (0.0, 0.0, 0);
    for (number, rows) in batches.iter().enumerate() {
        let lineage = Lineage { row: (number * READ) as u64, ..Lineage::default() };
        let window = WindowMark::default();
        let rows = Rows { batch: rows.clone(), lineage, window, rejected: 0, places: None };
        let since = Instant::now();
        block_on(parse.on_batch(rows, &cx, &mut examples))?;
        parsing += since.elapsed().as_secs_f64();
        for examples in parsed.take() {
            let since = Instant::now();
            block_on(batch.on_batch(examples, &cx, &mut out))?;
            batching += since.elapsed().as_secs_f64();
        }
        unique += made.take().iter().map(|batch| batch.unique.len()).sum::<usize>();
    }
    let since = Instant::now();
    block_on(batch.finish(&cx, &mut out))?;
    batching += since.elapsed().as_secs_f64();
    unique += made.take().iter().map(|batch| batch.unique.len()).sum::<usize>();
    Ok((parsing, batching, unique))
}

fn main() -> Result<(), Fault> {
    let only = std::env::var("FOREBAY_BENCH_ONLY").unwrap_or_default();
    let turns: usize = std::env::var("FOREBAY_BENCH_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(7);
    for form in FORMS {
        for (shuffled, window) in [("", 0), (", shuffled", 1 << 16)] {
            let name = format!("{}{shuffled}", form.name);
            if !name.contains(&only) {
                continue;
            }
            let batches = form.batches()?;
            let mut least = [(f64::INFINITY, f64::INFINITY); 2];
            let mut unique = [0; 2];
            for _ in 0..turns {
                for late in [false, true] {
                    let (parsing, batching, keys) = run(&batches, window, late)?;
                    let known = &mut least[usize::from(late)];
                    *known = (known.0.min(parsing), known.1.min(batching));
                    unique[usize::from(late)] = keys;
                }
            }
            assert_eq!(unique[0], unique[1], "the batches depend on who hashes");
            let [early, late] =
                least.map(|(parsing, batching)| (parsing / ROWS as f64 * 1e9, batching / ROWS as f64 * 1e9));
            let ratio = (late.0 + late.1) / (early.0 + early.1);
            println!(
                "{name:48} ns a row, parse + batch: {:5.1} + {:5.1} if parse hashes, {:5.1} + {:5.1} if batch does: \
                 {ratio:.2}; {:.1} keys a row",
                early.0,
                early.1,
                late.0,
                late.1,
                unique[0] as f64 / ROWS as f64
            );
        }
    }
    Ok(())
}
