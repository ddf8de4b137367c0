//! What a snapshot costs a shard: how long its thread is busy at once, rows read per second, and how much slower training
//! is meanwhile.
//!
//! `cargo bench -p forebay-ps --bench snapshot [-- KEYS]` (default 10 million rows of 16 weights and their Adagrad state;
//! under a minute and 4 GiB). Time is CPU time of the thread; a key that is pulled and pushed counts once. Rates are
//! compared within one run, on the same blocks: of Zipf keys, and of uniform keys, the worst case, as nearly every push is
//! of another row.
#![allow(clippy::print_stdout, missing_docs)]

use std::time::Duration;

use forebay_base::{SplitMix64, mix64, unit_f64};
use forebay_ps::{Init, Optimizer, PartConfig, SnapshotKind, Table, TableConfig};

/// Keys per block: unique keys of a batch, about.
const BLOCK: usize = 16_384;

const DIM: usize = 16;

/// Blocks trained on per measurement.
const BLOCKS: usize = 60;

fn main() {
    // `cargo bench` adds flags of its own.
    let n = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(10_000_000usize);
    println!("{n} rows of {DIM} weights and {DIM} floats of state, blocks of {BLOCK} keys, one thread, CPU time");
    for zipf in [true, false] {
        println!("{} keys", if zipf { "Zipf" } else { "uniform" });
        snapshots(n, &draw(n, zipf));
    }
}

fn snapshots(n: usize, blocks: &[Vec<u64>]) {
    let mut table = filled(n);
    let none = best(&mut table, blocks);
    println!("no snapshot so far: {none:.1} M keys/s");

    let mut times = Times::default();
    let rows = times.longest(|| table.begin_snapshot(SnapshotKind::Full).expect("none is open"));
    println!("begin, all {rows} rows: {}", times.take());
    table.end_snapshot(true);
    let again = best(&mut table, blocks);
    println!("changes noted, no open snapshot: {again:.1} M keys/s, {:.3} of the first", again / none);

    let before = table.stats().bytes;
    let rows = times.longest(|| table.begin_snapshot(SnapshotKind::Changes).expect("none is open"));
    println!("begin, {rows} changed rows: {}", times.take());
    times.longest(|| table.snapshot_page(1));
    println!("first page, with the keys of all rows (a shard lists them in slices): {}", times.take());
    let first = train(&mut table, blocks);
    let mib = (table.stats().bytes - before) >> 20;
    println!("open, the changed rows are saved: {first:.1} M keys/s, {:.3} of the first; {mib} MiB held", first / none);
    let saved = best(&mut table, blocks);
    println!("open, the changed rows were saved: {saved:.1} M keys/s, {:.3} of the first", saved / none);
    read(&mut table, &mut times, "saved rows");
    table.end_snapshot(true);

    let rows = times.longest(|| table.begin_snapshot(SnapshotKind::Full).expect("none is open"));
    println!("begin, all {rows} rows: {}", times.take());
    read(&mut table, &mut times, "rows of the table");
    times.longest(|| table.end_snapshot(false));
    println!("end: {}", times.take());
    let end = best(&mut table, blocks);
    println!("changes noted, no open snapshot: {end:.1} M keys/s, {:.3} of the first", end / none);
}

/// A table with `n` rows, imported; prints the rate.
fn filled(n: usize) -> Table {
    let optimizer = Optimizer::Adagrad { lr: 0.01.into(), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 };
    let part = PartConfig::new("p", DIM, optimizer, Init::Uniform { scale: 0.01 });
    let mut table = Table::new(&TableConfig::new("bench", 1, vec![part])).expect("the config is right");
    let values = vec![0.5; BLOCK * DIM];
    let start = cpu();
    let keys: Vec<u64> = (0..n as u64).map(mix64).collect();
    for keys in keys.chunks(BLOCK) {
        let values = &values[..keys.len() * DIM];
        table.import(keys, values, Some(values)).expect("the values are right");
    }
    println!("imported {:.1} M rows/s", n as f64 / (cpu() - start).as_secs_f64() / 1e6);
    table
}

/// Reads all pages of the open snapshot.
fn read(table: &mut Table, times: &mut Times, what: &str) {
    let start = cpu();
    let mut rows = 0;
    loop {
        let block = times.longest(|| table.snapshot_page(usize::MAX));
        if block.keys.is_empty() {
            break;
        }
        rows += block.keys.len();
    }
    let rate = rows as f64 / (cpu() - start).as_secs_f64() / 1e6;
    println!("read {rows} {what}: {rate:.1} M rows/s, longest page {}", times.take());
}

/// The best of five.
fn best(table: &mut Table, blocks: &[Vec<u64>]) -> f64 {
    (0..5).map(|_| train(table, blocks)).fold(0.0, f64::max)
}

/// Million keys per second, pulled and pushed.
fn train(table: &mut Table, blocks: &[Vec<u64>]) -> f64 {
    let (mut rows, grads) = (Vec::new(), vec![0.01; BLOCK * DIM]);
    let start = cpu();
    for block in blocks {
        table.pull(block, &mut rows).expect("there is memory");
        table.push(block, &grads, 1).expect("gradients are finite");
    }
    (blocks.len() * BLOCK) as f64 / (cpu() - start).as_secs_f64() / 1e6
}

/// Blocks of keys: Zipf with exponent 1.05 by inverting the integral of its density, or uniform.
fn draw(n: usize, zipf: bool) -> Vec<Vec<u64>> {
    let mut stream = SplitMix64::new(7);
    let exponent = 1.0 - 1.05;
    let top = (n as f64 + 1.0).powf(exponent);
    let mut rank = || {
        let u = unit_f64(stream.next_u64());
        let rank = if zipf { (u * (top - 1.0) + 1.0).powf(1.0 / exponent) - 1.0 } else { u * n as f64 };
        (rank as u64).min(n as u64 - 1)
    };
    // Ranks are scattered over all rows.
    (0..BLOCKS).map(|_| (0..BLOCK).map(|_| mix64(rank() * 7_368_787 % n as u64)).collect()).collect()
}

/// The longest of some calls.
#[derive(Default)]
struct Times(Duration);

impl Times {
    fn longest<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = cpu();
        let result = call();
        self.0 = self.0.max(cpu() - start);
        result
    }

    fn take(&mut self) -> String {
        format!("{:.2} ms", std::mem::take(&mut self.0).as_secs_f64() * 1e3)
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
