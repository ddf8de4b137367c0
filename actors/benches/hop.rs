//! Measures a hop: time and allocations per batch between stages on threads of their own.
//!
//! `cargo bench -p forebay-actors --bench hop`. A hop is one link. Batches that need no work travel from a source
//! through stages into a sink, so the time is the runtime's own cost. The goal is at most 10 microseconds and 2
//! allocations per hop.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_actors::{Batch, Fault, Lineage, Outbox, Place, Replicas, Sink, Source, Stage, StageCx, Topology};

/// Counts allocations and reallocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system allocator as it came; the counter is atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(ptr, layout, new) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// As large as the struct of a real batch, without memory on the heap.
struct Light {
    lineage: Lineage,
    _handle: [u64; 16],
}

impl Batch for Light {
    fn rows(&self) -> usize {
        1
    }
    fn bytes(&self) -> usize {
        128
    }
    fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

struct Feed {
    left: u64,
}

impl Source for Feed {
    type Out = Light;
    async fn next(&mut self, _cx: &StageCx) -> Result<Option<Light>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        Ok(Some(Light { lineage: Lineage::default(), _handle: [self.left; 16] }))
    }
}

struct Pass;

impl Stage for Pass {
    type In = Light;
    type Out = Light;
    async fn on_batch(&mut self, batch: Light, _cx: &StageCx, out: &mut Outbox<Light>) -> Result<(), Fault> {
        out.send(batch).await
    }
}

/// Measures time and allocations from the first batch to the last.
struct Last {
    sender: std::sync::mpsc::Sender<(Duration, u64)>,
    first: Option<(Instant, u64)>,
}

impl Sink for Last {
    type In = Light;
    async fn write(&mut self, _batch: Light, _cx: &StageCx) -> Result<(), Fault> {
        self.first.get_or_insert_with(|| (Instant::now(), ALLOCATIONS.load(Relaxed)));
        Ok(())
    }
    async fn finish(&mut self, _cx: &StageCx) -> Result<(), Fault> {
        let (since, allocations) = self.first.expect("there was a batch");
        let _ = self.sender.send((since.elapsed(), ALLOCATIONS.load(Relaxed) - allocations));
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Shape {
    /// Links between single stages.
    Links(usize),
    /// One replicated stage in between.
    Replicated(usize),
}

/// Time and allocations for `batches` batches.
fn travel(batches: u64, shape: Shape, capacity: usize) -> (Duration, u64) {
    let (sender, result) = std::sync::mpsc::channel();
    let left = batches + 1;
    let mut flow = Topology::new("hop").source("feed", Place::Own, move || Feed { left }).link(capacity);
    match shape {
        Shape::Links(links) => {
            for i in 1..links {
                flow = flow.stage(&format!("pass{i}"), Place::Own, || Pass).link(capacity);
            }
        }
        Shape::Replicated(n) => {
            flow = flow.replicated("pass", Place::Own, Replicas::ordered(n), |_| Pass).link(capacity);
        }
    }
    flow.sink("last", Place::Own, move || Last { sender, first: None }).run().unwrap();
    result.recv().unwrap()
}

fn hops(c: &mut Criterion) {
    const BATCHES: u64 = 100_000;
    for (name, shape, capacity) in [
        ("1 link of 8", Shape::Links(1), 8),
        ("1 link of 1", Shape::Links(1), 1),
        ("3 links of 8", Shape::Links(3), 8),
        ("ordered replicas, 2", Shape::Replicated(2), 8),
    ] {
        let (time, allocations) = travel(BATCHES, shape, capacity);
        println!(
            "{name}: {:.2} us and {:.3} allocations per batch",
            time.as_secs_f64() * 1e6 / BATCHES as f64,
            allocations as f64 / BATCHES as f64
        );
    }
    let mut group = c.benchmark_group("hop");
    group.throughput(Throughput::Elements(1)).sample_size(10).measurement_time(Duration::from_secs(3));
    group.bench_function("1 link of 8", |b| b.iter_custom(|n| travel(n, Shape::Links(1), 8).0));
    group.bench_function("3 links of 8", |b| b.iter_custom(|n| travel(n, Shape::Links(3), 8).0));
    group.finish();
}

criterion_group!(benches, hops);
criterion_main!(benches);
