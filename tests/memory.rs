//! The configured budgets bound memory, for files of any size and consumers of any speed.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay::actors::{Place, Sink, Source, StageCx, Topology};
use forebay::connectors::convert::{Encoding, ParquetOptions, block_on, to_parquet};
use forebay::connectors::{ParquetSource, ReadOptions, Rows, Synthetic, SyntheticSource};
use forebay::{Fault, Job, Training};

/// Counts the bytes on the heap, and their maximum.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are atomics and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps `alloc`'s promises, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Slow;

impl Sink for Slow {
    type In = Rows;
    fn describe(&self) -> String {
        "a slow consumer".into()
    }
    async fn write(&mut self, _rows: Rows, _cx: &StageCx) -> Result<(), Fault> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    }
}

const MIB: usize = 1 << 20;

/// One after the other, because the allocator counts for the whole program.
#[test]
fn memory_stays_within_the_budgets() {
    a_file_larger_than_the_budget_streams_within_it();
    batches_of_few_rows_count_with_all_that_they_take();
    a_training_holds_no_more_than_the_memory_of_its_dense_parameters();
}

fn a_file_larger_than_the_budget_streams_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("rows");
    let what = Synthetic { rows: 300_000, cap: 5000, ..Synthetic::default() };
    let mut source = SyntheticSource::new(what, ReadOptions::default());
    let options = ParquetOptions { encoding: Encoding::Plain, group_rows: 8192, ..ParquetOptions::default() };
    let written = block_on(to_parquet(&mut source, &StageCx::detached("write"), &folder, &options, |_| {})).unwrap();
    drop(source);
    assert!(written.bytes > 40 * MIB as u64, "{} bytes", written.bytes);

    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let read = ReadOptions {
        batch_rows: 1024,
        read_ahead_bytes: 4 * MIB,
        decode_ahead_bytes: 2 * MIB,
        ..ReadOptions::default()
    };
    let report = Topology::new("slow")
        .source("read", Place::Shared, move || ParquetSource::new(folder, read))
        .link(4)
        .sink("slow", Place::Shared, || Slow)
        .run()
        .unwrap();
    assert_eq!(report.ledger.delivered, 300_000);
    let peak = PEAK.load(Relaxed) - before;
    // The budgets, the batches in the link, decoding, and the footers.
    assert!(peak < 14 * MIB, "{:.1} MiB were held at once", peak as f64 / MIB as f64);
    // A peak below the budgets would mean that the allocator does not count.
    assert!(peak > 2 * MIB, "{:.1} MiB were held at once", peak as f64 / MIB as f64);
}

/// A bug: only the values counted, and 64 MiB of three values each took 1.4 GB.
fn batches_of_few_rows_count_with_all_that_they_take() {
    const MOST: usize = 8 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("rows");
    let mut source = SyntheticSource::new(Synthetic { rows: 3, ..Synthetic::default() }, ReadOptions::default());
    let options = ParquetOptions::default();
    block_on(to_parquet(&mut source, &StageCx::detached("write"), &folder, &options, |_| {})).unwrap();
    drop(source);

    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let read = ReadOptions {
        epochs: 1_000_000,
        read_ahead_bytes: MIB / 4,
        decode_ahead_bytes: 2 * MIB,
        ..ReadOptions::default()
    };
    let mut source = ParquetSource::new(folder, read).columns(["label"]);
    let held = block_on(async {
        let cx = StageCx::detached("read");
        source.open(&cx).await?;
        source.next(&cx).await?;
        // Memory grows until all is decoded that may be decoded while no one takes rows.
        let (mut held, deadline) = (0, Instant::now() + Duration::from_secs(60));
        while (held < MIB / 2 || PEAK.load(Relaxed) - before > held) && held < MOST && Instant::now() < deadline {
            held = PEAK.load(Relaxed) - before;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok::<_, Fault>(held)
    });
    let held = held.unwrap();
    assert!(held < MOST, "{:.1} MiB were held at once", held as f64 / MIB as f64);
    assert!(held > MIB / 2, "{:.1} MiB were held at once", held as f64 / MIB as f64);
}

/// A bug: copies of the dense parameters for checkpoints, evaluations and the saved model were not counted.
fn a_training_holds_no_more_than_the_memory_of_its_dense_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let rows = common::parquet(dir.path(), 0, 64);
    let [train, eval] = ["data.train", "data.eval"].map(|field| format!("{field}={}", rows.display()));
    let every = [&*train, "model.kind=ctr_dnn", "train.batch_rows=32"];
    let checkpoints = format!("checkpoint.to={}", dir.path().join("checkpoints").display());
    let (sgd, adam) = ("train.optimizer.kind=sgd", "train.optimizer.kind=adam");
    let jobs: [&[&str]; 3] = [
        &[adam],
        // No checkpoint is made, but the last state is kept for one.
        &[adam, "output.state=true", &checkpoints, "checkpoint.rows=1000000"],
        &[sgd, &eval, "evaluation.every.rows=32"],
    ];
    for more in jobs {
        // The most bytes that were held at once, the bytes counted for the dense parameters, and the bytes of one copy of them.
        let peak = |hidden: &str| {
            let settings: Vec<String> =
                every.iter().chain(more).chain([&hidden]).map(|set| (*set).to_owned()).collect();
            let job = Job::from_toml("", &settings).unwrap();
            let before = HELD.load(Relaxed);
            PEAK.store(before, Relaxed);
            let training = Training::builder(job).build().unwrap();
            let memory = training.dense_memory().unwrap();
            let trained = training.run().unwrap();
            trained.save(dir.path().join("model").to_str().unwrap()).unwrap();
            drop(trained);
            for made in ["model", "checkpoints"] {
                _ = std::fs::remove_dir_all(dir.path().join(made));
            }
            let counted = memory.weights + memory.state + memory.gradients + memory.copies;
            (PEAK.load(Relaxed) - before, counted as usize, memory.weights as usize)
        };
        // A training with hardly any dense parameters shows the memory of all else.
        let (all_else, ..) = peak("model.hidden=[2, 2]");
        let (held, counted, copy) = peak("model.hidden=[2000, 2000]");
        let copies = (held as f64 - all_else as f64 - counted as f64) / copy as f64;
        assert!(
            copies.abs() < 0.5,
            "{more:?}: {copies:.2} copies more than counted, {held} bytes in all, {all_else} for all else"
        );
    }
}
