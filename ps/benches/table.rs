//! How fast one core pulls and pushes, what a key costs in memory, and the worst stall of an insertion.
//!
//! `cargo bench -p forebay-ps --bench table [-- KEYS]` (default 10 million; about a minute and 3 GiB). One key pulled
//! and pushed counts once. Time is CPU time of the thread, as other work may share the machine; all candidates run in
//! one process, one after the other, on the same keys in the same blocks. `ONLY=own,stall` picks some of: own, hashbrown,
//! dashmap, shapes, lifetime, shards, stall; and, only if they are named, cold (the same fill three times) and capped (what a cap
//! costs keys that come once).
#![allow(clippy::print_stdout, missing_docs)]

use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use forebay_actors::Host;
use forebay_base::{GOLDEN_GAMMA, LearningRate, SplitMix64, mix64, unit_f64};
use forebay_ps::{
    Admission, BloomCount, Eviction, Init, LEAST_CAP, Lifetime, Optimizer, PartConfig, Storage, Table, TableConfig,
    start_table,
};

/// Keys per block: unique keys of a batch, about.
const BLOCK: usize = 16_384;

fn main() {
    // `cargo bench` adds flags of its own.
    let keys = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(10_000_000usize);
    let only = std::env::var("ONLY").unwrap_or_default();
    println!("{keys} keys, blocks of {BLOCK}, one thread, CPU time");
    let wants = |name: &str| only.is_empty() || only.contains(name);
    if wants("own") {
        own("own f32 16 + Adagrad 16", keys, &config(&[(16, ADAGRAD)], Storage::F32));
    }
    if only.contains("cold") {
        // The first fill takes memory that a virtual machine may not have yet from its host.
        for _ in 0..3 {
            own("own f32 16 + Adagrad 16, again", keys, &config(&[(16, ADAGRAD)], Storage::F32));
        }
    }
    if wants("hashbrown") {
        measure("hashbrown + prefetch 16 + 16", keys, &mut Brown::default());
    }
    if wants("dashmap") {
        measure("DashMap of boxed rows 16 + 16", keys, &mut Dash::default());
    }
    if wants("shapes") {
        // Smaller, to stay within a minute: ratios to each other hold.
        let keys = keys.min(3_000_000);
        own("own f32 16 + Adagrad 16", keys, &config(&[(16, ADAGRAD)], Storage::F32));
        own("own f16 16 + Adagrad 16", keys, &config(&[(16, ADAGRAD)], Storage::F16));
        own("own 1 FTRL", keys, &config(&[(1, FTRL)], Storage::F32));
        own("own 1 Adagrad", keys, &config(&[(1, ADAGRAD)], Storage::F32));
        own("own 1 FTRL + 10 Adagrad", keys, &config(&[(1, FTRL), (10, ADAGRAD)], Storage::F32));
        own("own 10 Adagrad (80 bytes)", keys, &config(&[(10, ADAGRAD)], Storage::F32));
    }
    if wants("lifetime") {
        lifetimes(keys);
    }
    if only.contains("capped") {
        capped(keys);
    }
    if wants("shards") {
        through_shards(keys);
    }
    if wants("stall") {
        stalls(keys);
    }
}

const ADAGRAD: Optimizer =
    Optimizer::Adagrad { lr: LearningRate::constant(0.01), initial_accumulator: 0.1, eps: 1e-10, l2: 0.0 };
const FTRL: Optimizer = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };

fn config(parts: &[(usize, Optimizer)], storage: Storage) -> TableConfig {
    let part = |(i, (dim, optimizer)): (usize, &(usize, Optimizer))| {
        PartConfig::new(&format!("part{i}"), *dim, *optimizer, Init::Uniform { scale: 0.01 })
    };
    TableConfig { storage, ..TableConfig::new("bench", 1, parts.iter().enumerate().map(part).collect()) }
}

/// What admission and eviction cost: blocks of a Zipf stream over 10 ranks per key, and then keys that never came before, each
/// pulled and pushed.
fn lifetimes(keys: usize) {
    let visits = keys / BLOCK;
    let cap = (keys as u64 / 20).max(LEAST_CAP);
    let eviction = Some(Eviction { max_rows: Some(cap), ..Eviction::default() });
    let scored = Some(Eviction { max_rows: Some(cap), half_life: Some(500), ..Eviction::default() });
    let (none, count) = (None, Some(Admission::Count(2)));
    let filter = Some(Admission::Bloom(BloomCount { count: 2, keys: keys as u64, error: 0.01 }));
    let all = [
        ("every key, forever", Lifetime::default()),
        ("a cap", Lifetime { admission: none, eviction }),
        ("a cap by score", Lifetime { admission: none, eviction: scored }),
        ("a cap, count 2", Lifetime { admission: count, eviction }),
        ("a cap, filter", Lifetime { admission: filter, eviction }),
    ];
    println!("lifetime: {} keys of a Zipf stream, then {keys} new keys; a cap of {cap} rows", visits * BLOCK);
    for (name, lifetime) in all {
        let config = TableConfig { lifetime, ..config(&[(16, ADAGRAD)], Storage::F32) };
        let mut table = Table::new(&config).expect("the configuration is right");
        let grads: Vec<f32> = (0..BLOCK * 16).map(|i| (mix64(i as u64) >> 40) as f32 / 1e9).collect();
        let (mut rows, mut step) = (Vec::new(), 0);
        let mut run = |block: &[u64]| {
            step += 1;
            table.pull(block, &mut rows).expect("there is memory");
            table.push(block, &grads, step).expect("the gradients are finite");
        };
        let mut spent = Vec::new();
        for zipf in [true, false] {
            let mut time = Duration::ZERO;
            for first in 0..visits / 100 {
                let blocks = match zipf {
                    true => draw_from(keys * 10, true, 100, first as u64),
                    false => {
                        (0..100).map(|i| ((first * 100 + i) * BLOCK..).take(BLOCK).map(|k| !key(k)).collect()).collect()
                    }
                };
                let start = cpu();
                blocks.iter().for_each(|block| run(block));
                time += cpu() - start;
            }
            spent.push((visits / 100 * 100 * BLOCK) as f64 / time.as_secs_f64() / 1e6);
        }
        let stats = table.stats();
        println!(
            "  {name:<20} Zipf {:5.2} M keys/s, new {:5.2} M keys/s, {} rows, {} MiB, {} removed, {} refused",
            spent[0],
            spent[1],
            stats.rows,
            stats.bytes >> 20,
            stats.evicted,
            stats.refused
        );
    }
}

/// Keys that never came before, as `lr` has them: one weight with FTRL, 25 slots and batches of 4,096 rows; without a cap and with a cap of
/// a tenth of the keys, full at the start, three times in turn.
fn capped(keys: usize) {
    const BATCH: usize = 25 * 4096;
    let cap = (keys as u64 / 10).max(LEAST_CAP);
    let filled = cap as usize / BATCH + 1;
    let capped = Some(Eviction { max_rows: Some(cap), ..Eviction::default() });
    let scored = capped.map(|rules| Eviction { half_life: Some(100), ..rules });
    let grads: Vec<f32> = (0..BATCH).map(|i| (mix64(i as u64) >> 40) as f32 / 1e9).collect();
    for turn in 0..3 {
        for (name, eviction) in [("no cap", None), ("a cap", capped), ("a cap by score", scored)] {
            let lifetime = Lifetime { admission: None, eviction };
            let config = TableConfig { lifetime, ..config(&[(1, FTRL)], Storage::F32) };
            let mut table = Table::new(&config).expect("the configuration is right");
            let (mut rows, mut block, mut time) = (Vec::new(), Vec::new(), Duration::ZERO);
            for step in 1..=filled + keys / BATCH {
                block.clear();
                block.extend((step * BATCH..).take(BATCH).map(key));
                let start = cpu();
                table.pull(&block, &mut rows).expect("there is memory");
                table.push(&block, &grads, step as u64).expect("the gradients are finite");
                if step > filled {
                    time += cpu() - start;
                }
            }
            let each = time.as_secs_f64() * 1e9 / (keys / BATCH * BATCH) as f64;
            println!("  {turn} {name:<16} {each:5.0} ns a key, {} rows", table.rows());
        }
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`.
    let rc = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(rc, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The key of rank `rank`: ranks are scattered over all 64 bits.
fn key(rank: usize) -> u64 {
    mix64(rank as u64 + 1)
}

/// Blocks of ranks below `n`. Zipf with exponent 1.05 by inverting the integral of its density, or uniform.
fn draw(n: usize, zipf: bool, blocks: usize) -> Vec<Vec<u64>> {
    draw_from(n, zipf, blocks, 7)
}

fn draw_from(n: usize, zipf: bool, blocks: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut stream = SplitMix64::new(seed);
    let mut unit = || unit_f64(stream.next_u64());
    let exponent = 1.0 - 1.05;
    let top = (n as f64 + 1.0).powf(exponent);
    let mut rank = || {
        let u = unit();
        let r = if zipf { (u * (top - 1.0) + 1.0).powf(1.0 / exponent) - 1.0 } else { u * n as f64 };
        (r as usize).min(n - 1)
    };
    (0..blocks).map(|_| (0..BLOCK).map(|_| key(rank())).collect()).collect()
}

/// What is measured.
trait Peer {
    fn dim(&self) -> usize {
        16
    }
    fn pull(&mut self, keys: &[u64], rows: &mut Vec<f32>);
    fn push(&mut self, keys: &[u64], grads: &[f32]);
    fn bytes(&self) -> usize;
}

/// Fills, then measures.
fn measure(name: &str, n: usize, peer: &mut dyn Peer) {
    let dim = peer.dim();
    let mut rows = Vec::new();
    let grads: Vec<f32> = (0..BLOCK * dim).map(|i| (mix64(i as u64) >> 40) as f32 / 1e9).collect();
    let resident = resident();
    let start = cpu();
    let mut block = Vec::with_capacity(BLOCK);
    for first in (0..n).step_by(BLOCK) {
        block.clear();
        // Keys come in another order than their ranks.
        block.extend((first..n.min(first + BLOCK)).map(|i| key((i as u64 * 7_368_787 % n as u64) as usize)));
        peer.pull(&block, &mut rows);
    }
    let fill = (cpu() - start).as_secs_f64();
    print!("{name:32} insert {:5.1} M/s", n as f64 / fill / 1e6);
    for zipf in [true, false] {
        let blocks = draw(n, zipf, 150);
        let mut best = f64::MAX;
        let (mut pulls, mut best_pull) = (0.0, f64::MAX);
        for _ in 0..3 {
            let start = cpu();
            for block in &blocks {
                let t = cpu();
                peer.pull(block, &mut rows);
                pulls += (cpu() - t).as_secs_f64();
                peer.push(block, &grads);
            }
            best = best.min((cpu() - start).as_secs_f64());
            best_pull = pulls.min(best_pull);
            pulls = 0.0;
        }
        let keys = (blocks.len() * BLOCK) as f64;
        let what = if zipf { "Zipf" } else { "uniform" };
        print!("  {what} {:5.1} M/s (pull alone {:5.1})", keys / best / 1e6, keys / best_pull / 1e6);
    }
    println!(
        "  bytes/key {:5.1} (resident {:5.1})",
        peer.bytes() as f64 / n as f64,
        (self::resident() - resident) as f64 / n as f64
    );
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn own(name: &str, n: usize, config: &TableConfig) {
    measure(name, n, &mut Table::new(config).expect("the config is right"));
}

impl Peer for Table {
    fn dim(&self) -> usize {
        self.row_dim()
    }
    fn pull(&mut self, keys: &[u64], rows: &mut Vec<f32>) {
        Table::pull(self, keys, rows).expect("there is memory");
    }
    fn push(&mut self, keys: &[u64], grads: &[f32]) {
        Table::push(self, keys, grads, 1).expect("gradients are finite");
    }
    fn bytes(&self) -> usize {
        self.stats().bytes as usize
    }
}

/// The same through clients and shards on threads of their own: wall time, and CPU time of the whole process.
fn through_shards(n: usize) {
    for shards in [1, 2] {
        let host = Host::start("bench").expect("a thread starts");
        let table = start_table(&host, config(&[(16, ADAGRAD)], Storage::F32), shards).expect("the config is right");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
        let (mut rows, blocks) = (Vec::new(), draw(n, true, 150));
        let grads = vec![0.01; BLOCK * 16];
        let mut step = |block: &[u64], push: bool| {
            runtime.block_on(async {
                table.pull(block, &mut rows).await.expect("there is memory");
                if push {
                    table.push(block, &grads[..block.len() * 16], 1).await.expect("gradients are finite");
                }
            });
        };
        let all: Vec<u64> = (0..n).map(key).collect();
        all.chunks(BLOCK).for_each(|block| step(block, false));
        let (start, wall) = (clock(libc::CLOCK_PROCESS_CPUTIME_ID), Instant::now());
        blocks.iter().for_each(|block| step(block, true));
        let (cpu, wall) = (clock(libc::CLOCK_PROCESS_CPUTIME_ID) - start, wall.elapsed());
        let keys = (blocks.len() * BLOCK) as f64 / 1e6;
        let (by_wall, by_cpu) = (keys / wall.as_secs_f64(), keys / cpu.as_secs_f64());
        println!(
            "through a client, {shards} shards: Zipf {by_wall:5.1} M/s by wall clock, {by_cpu:5.1} M/s per CPU second"
        );
        drop(table);
        host.stop().expect("the shards end well");
    }
}

/// The keys are hashes already: one multiplication spreads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(GOLDEN_GAMMA);
    }
}

type Build = BuildHasherDefault<Spread>;

fn adagrad(row: &mut [f32], grad: &[f32]) {
    let (w, s) = row.split_at_mut(16);
    for ((w, s), g) in w.iter_mut().zip(s).zip(grad) {
        *s += g * g;
        *w -= 0.01 * g / (s.sqrt() + 1e-10);
    }
}

/// hashbrown from key to row number, rows in one `Vec`, rows of 64 keys prefetched at a time.
#[derive(Default)]
struct Brown {
    index: hashbrown::HashMap<u64, u32, Build>,
    rows: Vec<[f32; 32]>,
}

impl Brown {
    fn find(&mut self, keys: &[u64], mut then: impl FnMut(usize, &mut [f32; 32])) {
        for (c, chunk) in keys.chunks(64).enumerate() {
            let mut found = [0u32; 64];
            for (key, found) in chunk.iter().zip(&mut found) {
                let next = self.rows.len() as u32;
                *found = *self.index.entry(*key).or_insert(next);
                if *found == next {
                    self.rows.push(std::array::from_fn(|i| (mix64(key ^ i as u64) >> 40) as f32));
                }
                #[cfg(target_arch = "x86_64")]
                for line in 0..2 {
                    let at = self.rows.as_ptr().wrapping_add(*found as usize).cast::<i8>().wrapping_add(line * 64);
                    // SAFETY: a prefetch never faults.
                    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) };
                }
            }
            for (i, found) in found[..chunk.len()].iter().enumerate() {
                then(c * 64 + i, &mut self.rows[*found as usize]);
            }
        }
    }
}

impl Peer for Brown {
    fn pull(&mut self, keys: &[u64], rows: &mut Vec<f32>) {
        rows.resize(keys.len() * 16, 0.0);
        self.find(keys, |i, row| rows[i * 16..][..16].copy_from_slice(&row[..16]));
    }
    fn push(&mut self, keys: &[u64], grads: &[f32]) {
        self.find(keys, |i, row| adagrad(row, &grads[i * 16..][..16]));
    }
    fn bytes(&self) -> usize {
        self.index.allocation_size() + self.rows.capacity() * 128
    }
}

/// DashMap from key to a boxed row.
#[derive(Default)]
struct Dash {
    rows: dashmap::DashMap<u64, Box<[f32; 32]>, Build>,
}

impl Peer for Dash {
    fn pull(&mut self, keys: &[u64], rows: &mut Vec<f32>) {
        rows.resize(keys.len() * 16, 0.0);
        for (key, out) in keys.iter().zip(rows.chunks_exact_mut(16)) {
            let new = || Box::new(std::array::from_fn(|i| (mix64(key ^ i as u64) >> 40) as f32));
            out.copy_from_slice(&self.rows.entry(*key).or_insert_with(new)[..16]);
        }
    }
    fn push(&mut self, keys: &[u64], grads: &[f32]) {
        for (key, grad) in keys.iter().zip(grads.chunks_exact(16)) {
            if let Some(mut row) = self.rows.get_mut(key) {
                adagrad(&mut row[..], grad);
            }
        }
    }
    fn bytes(&self) -> usize {
        // Not known to it: see `resident`.
        0
    }
}

/// The slowest single block of 64 new keys: this index and one that doubles at once.
fn stalls(n: usize) {
    let mut table = Table::new(&config(&[(16, ADAGRAD)], Storage::F32)).expect("the config is right");
    let mut rows = Vec::new();
    let mut own = slowest(n, |keys| table.pull(keys, &mut rows).expect("there is memory"));
    drop(table);
    let mut index = hashbrown::HashMap::<u64, u32, Build>::default();
    let mut brown = slowest(n, |keys| keys.iter().for_each(|key| _ = index.insert(*key, 1)));
    own.reverse();
    brown.reverse();
    println!(
        "slowest blocks of 64 insertions, CPU ms: own (index and rows) {own:.3?}, hashbrown (index alone) {brown:.3?}"
    );
}

/// The three slowest blocks, in milliseconds, rising.
fn slowest(n: usize, mut insert: impl FnMut(&[u64])) -> Vec<f64> {
    let mut worst = vec![0.0; 3];
    let mut block = [0; 64];
    for first in (0..n).step_by(64) {
        block.iter_mut().enumerate().for_each(|(i, k)| *k = key(first + i));
        let start = cpu();
        insert(&block);
        worst.push((cpu() - start).as_secs_f64() * 1e3);
        worst.sort_by(f64::total_cmp);
        worst.remove(0);
    }
    worst
}
