//! How fast each source yields batches: rows/s and CPU seconds per million rows.
//!
//! `cargo bench -p forebay-connectors --bench decode` makes 400,000 synthetic rows in a temporary folder and reads them in every form.
//! `FOREBAY_BENCH_DATA=DIR` reads `DIR/pq/train-*.parquet`, `DIR/pqs/train-*.parquet` and `DIR/tsv/train-*.tsv` instead.
//! `FOREBAY_BENCH_THREADS` sets the decode threads (default 1), `FOREBAY_BENCH_EPOCHS` the passes (default 3).
//! `FOREBAY_BENCH_ONLY=WORD` measures only what has the word in its name. Nothing passes or fails on a time.
#![allow(clippy::print_stdout, reason = "a bench prints")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{cpu_seconds, number};
use forebay_actors::{Batch, Fault, Source, StageCx};
use forebay_connectors::convert::{Encoding, ParquetOptions, TextOptions, block_on, to_criteo_text, to_parquet};
use forebay_connectors::criteo::{COLUMNS, INTEGERS, column_name};
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{
    Categories, CriteoSource, CsvSource, FileColumn, Input, JsonLinesSource, ParquetSource, ReadOptions, Rows,
    Synthetic, SyntheticSource, ValueKind,
};

fn measure<S: Source<Out = Rows>>(name: &str, mut source: S) -> Result<(), Fault> {
    if std::env::var("FOREBAY_BENCH_ONLY").is_ok_and(|only| !name.contains(&only)) {
        return Ok(());
    }
    let cx = StageCx::detached("bench");
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    let (rows, bytes) = block_on(async {
        source.open(&cx).await?;
        let (mut rows, mut bytes) = (0usize, 0usize);
        while let Some(batch) = source.next(&cx).await? {
            rows += batch.rows();
            bytes += batch.bytes();
        }
        Ok((rows, bytes))
    })?;
    let (cpu, wall) = (cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
    let per_core = rows as f64 / cpu.max(0.01);
    println!(
        "{name:44} {:>9.0} rows/s wall {:>10.0} rows/s per core {:>7.3} CPU s per M rows {:>5} decoded bytes a row",
        rows as f64 / wall,
        per_core,
        cpu / rows as f64 * 1e6,
        bytes / rows
    );
    Ok(())
}

fn main() -> Result<(), Fault> {
    let options = ReadOptions {
        decode_threads: number("FOREBAY_BENCH_THREADS", 1),
        epochs: number("FOREBAY_BENCH_EPOCHS", 3),
        ..ReadOptions::default()
    };
    let synthetic = Synthetic { rows: 400_000, ..Synthetic::default() };
    measure("synthetic", SyntheticSource::new(synthetic.clone(), ReadOptions { epochs: 1, ..options.clone() }))?;
    if let Ok(dir) = std::env::var("FOREBAY_BENCH_DATA") {
        let dir = PathBuf::from(dir);
        measure("parquet, integer ids", ParquetSource::new(dir.join("pq/train-*.parquet"), options.clone()))?;
        measure("parquet, hex as dictionary", ParquetSource::new(dir.join("pqs/train-*.parquet"), options.clone()))?;
        let plain = ParquetSource::new(dir.join("pqs/train-*.parquet"), options.clone()).dictionaries(false);
        measure("parquet, hex as strings", plain)?;
        return measure("criteo text", CriteoSource::new(dir.join("tsv/train-*.tsv"), options));
    }
    let dir = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
    let done = generated(&dir, &synthetic, &options);
    std::fs::remove_dir_all(&dir).map_err(|e| Fault::external("cannot remove the bench's folder").because(e))?;
    done
}

/// Rewrites Criteo text: `make` converts the text of each file.
fn anew(text: &Path, folder: &Path, ending: &str, make: impl Fn(&str) -> String) -> Result<(), Fault> {
    let failed = |e: std::io::Error| Fault::external("cannot write the bench's files").because(e);
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (number, file) in std::fs::read_dir(text).map_err(failed)?.enumerate() {
        let path = file.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "txt") {
            let rows = std::fs::read_to_string(path).map_err(failed)?;
            std::fs::write(folder.join(format!("{number}.{ending}")), make(&rows)).map_err(failed)?;
        }
    }
    Ok(())
}

/// With commas and a header.
fn as_csv(rows: &str) -> String {
    format!("{}\n{}", (0..COLUMNS).map(column_name).collect::<Vec<_>>().join(","), rows.replace('\t', ","))
}

/// With numbers as numbers, and without what is missing.
fn as_json_lines(rows: &str) -> String {
    let value = |(at, value): (usize, &str)| match (value.is_empty(), at <= INTEGERS) {
        (true, _) => None,
        (_, true) => Some(format!("\"{}\":{value}", column_name(at))),
        (_, false) => Some(format!("\"{}\":\"{value}\"", column_name(at))),
    };
    let line =
        |row: &str| format!("{{{}}}\n", row.split('\t').enumerate().filter_map(value).collect::<Vec<_>>().join(","));
    rows.lines().map(line).collect()
}

fn generated(dir: &Path, synthetic: &Synthetic, options: &ReadOptions) -> Result<(), Fault> {
    let cx = StageCx::detached("bench");
    let rows = || SyntheticSource::new(synthetic.clone(), ReadOptions::default());
    let text = dir.join("text");
    block_on(to_criteo_text(&mut rows(), &cx, &text, &TextOptions::default(), |_| ()))?;
    measure("criteo text", CriteoSource::new(text.clone(), options.clone()))?;
    anew(&text, &dir.join("csv"), "csv", as_csv)?;
    anew(&text, &dir.join("json"), "jsonl", as_json_lines)?;
    for (name, kind) in [("hex", ValueKind::Hex), ("strings", ValueKind::Text)] {
        let numbers = (0..=INTEGERS).map(|at| FileColumn::new(column_name(at), ValueKind::Number));
        let categories = (INTEGERS + 1..COLUMNS).map(|at| FileColumn::new(column_name(at), kind));
        let columns: Vec<FileColumn> = numbers.chain(categories).collect();
        let source = CsvSource::csv(dir.join("csv"), options.clone()).columns(columns.clone());
        measure(&format!("csv, numbers and {name}"), source)?;
        let source = JsonLinesSource::json_lines(dir.join("json"), options.clone()).columns(columns);
        measure(&format!("json lines, numbers and {name}"), source)?;
    }
    for (encoding, fill_nulls, categories) in [
        (Encoding::Dictionary, false, Categories::Int),
        (Encoding::Dictionary, true, Categories::Int),
        (Encoding::Plain, false, Categories::Int),
        (Encoding::Plain, true, Categories::Int),
        (Encoding::Dictionary, false, Categories::Hex),
    ] {
        let form = ParquetOptions { encoding, fill_nulls, categories, ..ParquetOptions::default() };
        let folder = dir.join(format!("{encoding:?}-{fill_nulls}-{categories:?}"));
        let (cpu, since) = (cpu_seconds(), Instant::now());
        let written = block_on(to_parquet(&mut rows(), &cx, &folder, &form, |_| ()))?;
        let nulls = if fill_nulls { "no nulls" } else { "nulls" };
        let name = format!("parquet {encoding:?}, {categories:?}, {nulls}").to_lowercase();
        println!(
            "{name:44} written with the rows generated: {:.0} rows/s, {:.2} CPU s per M rows, {} bytes a row",
            written.rows as f64 / since.elapsed().as_secs_f64(),
            (cpu_seconds() - cpu) / written.rows as f64 * 1e6,
            written.bytes / written.rows
        );
        measure(&name, ParquetSource::new(folder.clone(), options.clone()))?;
        if encoding == Encoding::Plain && !fill_nulls {
            // 20 ms a range and 200 MB/s: fetching ahead against one row group at a time.
            for (name, read_ahead_bytes) in
                [("  slow store, fetched ahead", 64 << 20), ("  slow store, one split at a time", 1)]
            {
                let (store, path) = forebay_connectors::Stores::default().open(&folder.to_string_lossy())?;
                let slow = ThrottledStore::new(store, Duration::from_millis(20), Some(200_000_000));
                let input = Input::in_store(Arc::new(slow), path);
                measure(name, ParquetSource::new(input, ReadOptions { read_ahead_bytes, ..options.clone() }))?;
            }
        }
    }
    Ok(())
}
