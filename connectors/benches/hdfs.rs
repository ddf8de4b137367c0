//! Reading Parquet from a real HDFS cluster, beside plain parallel reads of the same bytes by hdfs-native.
//!
//! `cargo bench -p forebay-connectors --bench hdfs` starts a cluster on this machine (`make setup` gets it), writes rows
//! and reads them, turn by turn, both ways. `FOREBAY_BENCH_HDFS=hdfs://host:port/folder` uses a cluster that is there.
//! `FOREBAY_BENCH_DELAYS=0,5,20,100` adds so many milliseconds to every packet to the DataNodes (root: they stand in a
//! network namespace). `FOREBAY_BENCH_RATE=2gbit` limits the line from them (the same, by `tc tbf`). `FOREBAY_BENCH_ROWS` (default
//! 2,000,000), `FOREBAY_BENCH_ROUNDS` (default 5), `FOREBAY_BENCH_ONLY=filled|plain|dictionary`, `FOREBAY_BENCH_AHEAD` (MiB fetched ahead).
//! Nothing passes or fails on a time.
#![allow(clippy::print_stdout, reason = "a bench prints")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use common::{cpu_seconds, number};
use forebay_actors::{Batch, Fault, Source, StageCx};
use forebay_connectors::convert::{Encoding, ParquetOptions, block_on, to_parquet};
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{Input, ParquetSource, ReadOptions, Stores, Synthetic, SyntheticSource};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use tokio::sync::Semaphore;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What one pass took.
#[derive(Clone, Copy)]
struct Pass {
    bytes: u64,
    seconds: f64,
    cpu: f64,
}

impl Pass {
    fn of(read: impl Future<Output = Result<u64, Fault>>) -> Result<Self, Fault> {
        let (cpu, start) = (cpu_seconds(), Instant::now());
        let bytes = block_on(read)?;
        Ok(Self { bytes, seconds: start.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu })
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }
}

/// All bytes of all files in ranges of 8 MiB, 16 at once: `FileReader::read_range` on all threads, nothing else.
async fn plain(stores: &Stores, url: &str) -> Result<u64, Fault> {
    const RANGE: usize = 8 << 20;
    let (root, folder) = (Stores::root(url), stores.open(url)?.1);
    let io = stores.io();
    let failed = |e: hdfs_native::HdfsError| Fault::external("plain read").because(e);
    let client =
        hdfs_native::ClientBuilder::new().with_url(root.trim_end_matches('/')).with_io_runtime(io.handle().clone());
    let client = client.build().map_err(failed)?;
    let files = client.list_status(&format!("/{folder}"), true).await.map_err(failed)?;
    let at_once = Arc::new(Semaphore::new(16));
    let mut reads = Vec::new();
    for file in files.iter().filter(|file| file.length > 0) {
        let reader = Arc::new(client.read(&file.path).await.map_err(failed)?);
        for start in (0..file.length).step_by(RANGE) {
            let (reader, at_once, len) = (Arc::clone(&reader), Arc::clone(&at_once), RANGE.min(file.length - start));
            reads.push(io.spawn(async move {
                let _permit = at_once.acquire_owned().await;
                reader.read_range(start, len).await.map(|bytes| bytes.len() as u64)
            }));
        }
    }
    let mut bytes = 0;
    for read in reads {
        bytes += read.await.map_err(|e| Fault::internal("plain read").because(e))?.map_err(failed)?;
    }
    Ok(bytes)
}

/// All rows as record batches; the bytes are the bytes of the files.
async fn rows(input: Input, bytes: u64) -> Result<u64, Fault> {
    let options = ReadOptions {
        decode_threads: number("FOREBAY_BENCH_THREADS", 2),
        read_ahead_bytes: number("FOREBAY_BENCH_AHEAD", 64) << 20,
        ..ReadOptions::default()
    };
    let mut source = ParquetSource::new(input, options);
    let cx = StageCx::detached("bench");
    source.open(&cx).await?;
    let mut rows = 0;
    while let Some(batch) = source.next(&cx).await? {
        rows += batch.rows();
    }
    if rows == 0 { Err(Fault::internal("no rows came")) } else { Ok(bytes) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(stores: &Stores, name: &str, url: &str) -> Result<(), Fault> {
    let bytes = block_on(plain(stores, url))?;
    let mut passes: [Vec<Pass>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..number("FOREBAY_BENCH_ROUNDS", 5) {
        passes[0].push(Pass::of(plain(stores, url))?);
        passes[1].push(Pass::of(rows(Input::from(url).with_stores(stores), bytes))?);
    }
    let (store, path) = stores.open(url)?;
    let counted = Arc::new(ThrottledStore::new(store, std::time::Duration::ZERO, None));
    let counts = counted.counts();
    block_on(rows(Input::in_store(counted, path), bytes))?;
    let rate = |of: &[Pass]| median(of.iter().map(Pass::rate).collect());
    let cpu = |of: &[Pass]| median(of.iter().map(|p| p.cpu / p.bytes as f64 * 1e9).collect());
    let ratio = median(passes[1].iter().zip(&passes[0]).map(|(ours, plain)| ours.rate() / plain.rate()).collect());
    println!(
        "{name:34} plain {:>6.0} MB/s {:>5.2} CPU s per GB | record batches {:>6.0} MB/s {:>5.2} CPU s per GB | ratio {ratio:.3} | \
         at most {} MiB in flight",
        rate(&passes[0]),
        cpu(&passes[0]),
        rate(&passes[1]),
        cpu(&passes[1]),
        counts.peak() >> 20
    );
    Ok(())
}

/// Runs `scripts/hdfs`; gives back what it printed.
fn hdfs(arguments: &[&str]) -> Result<String, Fault> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/hdfs");
    let output = Command::new(script).args(arguments).output();
    let output = output.map_err(|e| Fault::external(format!("cannot run {script}")).because(e))?;
    if !output.status.success() {
        return Err(Fault::external(format!("{script} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes rows below a URL, unless they are there.
fn write(stores: &Stores, url: &str, encoding: Encoding, fill_nulls: bool) -> Result<(), Fault> {
    let (store, path) = stores.open(url)?;
    let there =
        block_on(async { Ok(store.list(Some(&path)).try_collect::<Vec<_>>().await.is_ok_and(|all| !all.is_empty())) })?;
    if there {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| Fault::external("no temporary folder").because(e))?;
    let local = dir.path().join("rows");
    let synthetic = Synthetic { rows: number("FOREBAY_BENCH_ROWS", 2_000_000) as u64, ..Synthetic::default() };
    let mut source = SyntheticSource::new(synthetic, ReadOptions::default());
    let options = ParquetOptions { encoding, fill_nulls, file_groups: 2, ..ParquetOptions::default() };
    block_on(to_parquet(&mut source, &StageCx::detached("bench"), &local, &options, |_| ()))?;
    block_on(async {
        for file in Input::from(&local).list().await? {
            let failed = |e: object_store::Error| Fault::external("writing the bench's rows").because(e);
            let bytes = file.store.get(&file.path).await.map_err(failed)?.bytes().await.map_err(failed)?;
            let name = file.path.filename().unwrap_or_default().to_owned();
            store.put(&path.clone().join(name), bytes.into()).await.map_err(failed)?;
        }
        Ok(())
    })
}

const NAMESPACE: &str = "forebay-bench";

/// Limits the rate at which bytes leave the network namespace of the DataNodes.
fn limit(rate: &str) -> Result<(), Fault> {
    let card = format!("{NAMESPACE}-i");
    let tc = [
        "-n", NAMESPACE, "qdisc", "replace", "dev", &card, "root", "tbf", "rate", rate, "burst", "2mb", "latency", "2s",
    ];
    let done = Command::new("tc").args(tc).output().map_err(|e| Fault::external("cannot run tc").because(e))?;
    if done.status.success() {
        Ok(())
    } else {
        Err(Fault::external(String::from_utf8_lossy(&done.stderr).into_owned()))
    }
}

fn main() -> Result<(), Fault> {
    let stores = Stores::default();
    let dir = tempfile::tempdir().map_err(|e| Fault::external("no temporary folder").because(e))?;
    let cluster = dir.path().join("hdfs").to_string_lossy().into_owned();
    let rate = std::env::var("FOREBAY_BENCH_RATE").ok();
    let delays = std::env::var("FOREBAY_BENCH_DELAYS").ok().or(rate.is_some().then(|| "0".to_owned()));
    let own = std::env::var("FOREBAY_BENCH_HDFS").is_err();
    let url = match std::env::var("FOREBAY_BENCH_HDFS") {
        Ok(url) => url,
        Err(_) => {
            let owner = std::process::id().to_string();
            let mut up = vec!["up", &cluster, "--owner", &owner, "--block-size", "134217728"];
            if delays.is_some() {
                up.extend(["--netns", NAMESPACE]);
            }
            let printed = hdfs(&up)?;
            if let Some(rate) = &rate {
                limit(rate)?;
            }
            format!("{}/bench", printed.lines().last().unwrap_or_default())
        }
    };
    for (name, folder, encoding, fill_nulls) in [
        ("plain, nulls filled", "filled", Encoding::Plain, true),
        ("plain", "plain", Encoding::Plain, false),
        ("dictionary, zstd", "dictionary", Encoding::Dictionary, false),
    ] {
        if std::env::var("FOREBAY_BENCH_ONLY").is_ok_and(|only| only != folder) {
            continue;
        }
        let url = format!("{url}/{folder}");
        write(&stores, &url, encoding, fill_nulls)?;
        for delay in delays.as_deref().unwrap_or("0").split(',') {
            if own && delays.is_some() {
                hdfs(&["delay", &cluster, delay])?;
            }
            compare(&stores, &format!("{name}, {delay} ms"), &url)?;
        }
        if own && delays.is_some() {
            hdfs(&["delay", &cluster, "0"])?;
        }
    }
    if own {
        hdfs(&["down", &cluster, "--remove"])?;
    }
    Ok(())
}
