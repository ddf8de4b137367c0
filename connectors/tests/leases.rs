//! Several sources over one data set: each window goes to one of them, whole, and is the same no matter which source reads it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{Int32Type, Int64Type};
use forebay_actors::{Fault, Source};
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{
    ArrowSource, CriteoSource, DataPlan, Input, Lease, Leases, LocalLeases, OnBadRow, ParquetSource, ReadOptions, Rows,
    Stores, Synthetic, SyntheticSource,
};
use futures::future::join_all;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use super::cx;
use super::parquet::{folder, rows, write};

/// The rows of each (epoch, window, term): a number of each row, and how many were left out.
type Windows = BTreeMap<(u32, u64, u32), (Vec<i64>, u32)>;

/// Reads all sources at once; every window must come whole, in one piece of the stream, and be closed once.
async fn windows<S: Source<Out = Rows>>(sources: Vec<S>, number: impl Fn(&Rows) -> Vec<i64>) -> Windows {
    let read = sources.into_iter().map(async |mut source| {
        source.open(&cx()).await.unwrap();
        let mut all = Vec::new();
        while let Some(rows) = source.next(&cx()).await.unwrap() {
            assert_eq!(rows.lineage.seq, all.len() as u64);
            all.push(rows);
        }
        all
    });
    let mut found = Windows::new();
    for of_source in join_all(read).await {
        let mut open = None;
        for rows in of_source {
            let name = (rows.lineage.epoch, rows.window.window, rows.window.term);
            assert!(open.is_none_or(|open| open == name), "{name:?} comes before {open:?} is closed");
            open = Some(name).filter(|_| !rows.window.closes);
            let window = found.entry(name).or_default();
            window.0.extend(number(&rows));
            window.1 += rows.rejected;
        }
        assert_eq!(open, None, "not closed");
    }
    found
}

fn ids(rows: &Rows) -> Vec<i64> {
    rows.batch.column_by_name("row").unwrap().as_primitive::<Int64Type>().values().to_vec()
}

fn integers(rows: &Rows) -> Vec<i64> {
    rows.batch.column(1).as_primitive::<Int32Type>().values().iter().map(|&i| i.into()).collect()
}

/// Gives out the leases of the list in order, to any reader.
#[derive(Debug, Default)]
struct Listed(Mutex<VecDeque<Lease>>);

#[async_trait::async_trait]
impl Leases for Listed {
    async fn next(&self, _data: &DataPlan) -> Result<Option<Lease>, Fault> {
        Ok(self.0.lock().unwrap().pop_front())
    }
}

/// All windows, divided where `cuts` says, in an order that `keys` give; every third lease is given out again.
fn divided(names: impl Iterator<Item = (u32, u64)>, cuts: &[bool], keys: &[u64]) -> Arc<Listed> {
    let mut leases: Vec<Lease> = Vec::new();
    for (i, (epoch, window)) in names.enumerate() {
        match leases.last_mut() {
            Some(last) if last.epoch == epoch && !cuts[i % cuts.len()] => last.windows.end = window + 1,
            _ => leases.push(Lease { epoch, windows: window..window + 1, term: 0 }),
        }
    }
    let again: Vec<Lease> = leases.iter().step_by(3).map(|lease| Lease { term: 1, ..lease.clone() }).collect();
    leases.extend(again);
    let mut order: Vec<(u64, Lease)> =
        leases.into_iter().enumerate().map(|(i, lease)| (keys[i % keys.len()].rotate_left(i as u32), lease)).collect();
    order.sort_by_key(|(key, _)| *key);
    Arc::new(Listed(Mutex::new(order.into_iter().map(|(_, lease)| lease).collect())))
}

/// `found` holds what `expected` does, some windows also under a later term.
fn same(expected: &Windows, found: &Windows) {
    for ((epoch, window, _), rows) in found {
        assert_eq!(rows, &expected[&(*epoch, *window, 0)], "epoch {epoch}, window {window}");
    }
    assert_eq!(found.keys().filter(|name| name.2 == 0).count(), expected.len());
    assert!(found.keys().any(|name| name.2 == 1));
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_division_of_the_windows_over_any_sources_holds_the_same_rows(
        window_rows in 20_usize..400, seed: u64, shuffle: bool, sources in 1_usize..4,
        batch_rows in 1_usize..150, other_rows in 1_usize..150, decode_threads in 1_usize..4,
        cuts in prop::collection::vec(any::<bool>(), 1..9), keys in prop::collection::vec(any::<u64>(), 1..9),
    ) {
        run(async {
            let dir = folder();
            let options =
                ReadOptions { batch_rows, epochs: 2, shuffle, seed, window_rows, ..ReadOptions::default() };
            let whole = windows(vec![ParquetSource::new(dir.path(), options.clone())], ids).await;
            for (&(_, window, _), (rows, _)) in &whole {
                let left = 750 - window as usize * window_rows;
                assert_eq!(rows.len(), window_rows.min(left));
            }
            assert_eq!(whole.values().map(|(rows, _)| rows.len()).sum::<usize>(), 1500);
            let leases = divided(whole.keys().map(|name| (name.0, name.1)), &cuts, &keys);
            let other = ReadOptions { batch_rows: other_rows, decode_threads, read_ahead_bytes: 1, ..options.clone() };
            let of = |_| ParquetSource::new(dir.path(), other.clone()).leasing(leases.clone());
            same(&whole, &windows((0..sources).map(of).collect(), ids).await);
            // Arrow files with the same rows in record batches of the same sizes have the same windows.
            let dir = super::arrow_ipc::folder();
            let leases = divided(whole.keys().map(|name| (name.0, name.1)), &cuts, &keys);
            let of = |_| ArrowSource::new(dir.path(), other.clone()).leasing(leases.clone());
            same(&whole, &windows((0..sources).map(of).collect(), ids).await);
            let what = Synthetic { rows: 900, ..Synthetic::default() };
            let whole = windows(vec![SyntheticSource::new(what.clone(), options)], integers).await;
            let leases = divided(whole.keys().map(|name| (name.0, name.1)), &cuts, &keys);
            let of = |_| SyntheticSource::new(what.clone(), other.clone()).leasing(leases.clone());
            same(&whole, &windows((0..sources).map(of).collect(), integers).await);
        });
    }

    #[test]
    fn windows_of_text_are_the_same_from_every_source(
        window_rows in prop::sample::select(vec![0_usize, 1, 40, 100, 5000]), seed: u64, shuffle: bool, sources in 1_usize..4,
        batch_rows in 1_usize..50, range_bytes in 500_u64..9000,
        cuts in prop::collection::vec(any::<bool>(), 1..9), keys in prop::collection::vec(any::<u64>(), 1..9),
    ) {
        run(async {
            let dir = tempfile::tempdir().unwrap();
            let row = |row: usize| match row % 9 {
                4 => "nonsense\n".to_owned(),
                _ => format!("{}\t{row}{}{}\n", row % 2, "\t".repeat(12), "\t0badf00d".repeat(26)),
            };
            for file in 0..3_usize {
                let text: String = (file * 100..file * 100 + 100).map(row).collect();
                std::fs::write(dir.path().join(format!("{file}.txt")), text).unwrap();
            }
            let packed = zstd::encode_all("bad\n".repeat(20).as_bytes(), 1).unwrap();
            std::fs::write(dir.path().join("all-bad.zst"), packed).unwrap();
            let options = ReadOptions { epochs: 2, shuffle, seed, window_rows, ..ReadOptions::default() };
            let source = |batch_rows, leases| {
                CriteoSource::new(dir.path(), ReadOptions { batch_rows, ..options.clone() })
                    .on_bad_row(OnBadRow::Skip)
                    .range_bytes(range_bytes)
                    .leasing(leases)
            };
            let whole = windows(vec![source(64, Arc::new(LocalLeases::new(3)))], integers).await;
            let mut all: Vec<i64> = whole.values().flat_map(|(rows, _)| rows.clone()).collect();
            all.sort_unstable();
            let expected: Vec<i64> = (0..300).filter(|row| row % 9 != 4).flat_map(|row| [row, row]).collect();
            assert_eq!(all, expected, "each good row once an epoch");
            let rejected: u32 = whole.values().map(|(_, rejected)| rejected).sum();
            assert_eq!(rejected as usize, 2 * (20 + 300) - expected.len());
            assert!(whole.values().any(|(rows, rejected)| rows.is_empty() && *rejected == 20), "packed files are windows");
            let leases = divided(whole.keys().map(|name| (name.0, name.1)), &cuts, &keys);
            let of = |_| source(batch_rows, leases.clone());
            same(&whole, &windows((0..sources).map(of).collect(), integers).await);
        });
    }

    #[test]
    fn windows_of_csv_are_the_same_from_every_source(
        window_rows in prop::sample::select(vec![0_usize, 1, 40, 100]), seed: u64, shuffle: bool, sources in 1_usize..4,
        batch_rows in 1_usize..50, range_bytes in 100_u64..2000,
        cuts in prop::collection::vec(any::<bool>(), 1..9), keys in prop::collection::vec(any::<u64>(), 1..9),
    ) {
        run(async {
            let dir = super::csv::folder(100);
            let options = ReadOptions { epochs: 2, shuffle, seed, window_rows, ..ReadOptions::default() };
            let source = |batch_rows, leases| {
                super::csv::source(dir.path(), ReadOptions { batch_rows, ..options.clone() })
                    .range_bytes(range_bytes)
                    .leasing(leases)
            };
            let whole = windows(vec![source(64, Arc::new(LocalLeases::new(3)))], ids).await;
            let mut all: Vec<i64> = whole.values().flat_map(|(rows, _)| rows.clone()).collect();
            all.sort_unstable();
            let expected: Vec<i64> = (0..200).filter(|row| row % 7 != 3).flat_map(|row| [row, row]).collect();
            assert_eq!(all, expected, "each good row once an epoch");
            let leases = divided(whole.keys().map(|name| (name.0, name.1)), &cuts, &keys);
            let of = |_| source(batch_rows, leases.clone());
            same(&whole, &windows((0..sources).map(of).collect(), ids).await);
        });
    }
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_the_others_back() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &rows(0, 6000), 100);
    let options =
        || ReadOptions { read_ahead_bytes: 1, epochs: 2, shuffle: true, window_rows: 100, ..ReadOptions::default() };
    // The fast source does not read more if its threads have no core for a while: then the test tries again.
    let mut found = (0, 0);
    for _ in 0..20 {
        let leases = Arc::new(LocalLeases::new(1));
        let (inner, path) = Stores::default().open(&dir.path().to_string_lossy()).unwrap();
        // 20 ms a row group, one at a time; the other's take well under one.
        let slow = ThrottledStore::new(inner, Duration::from_millis(20), None);
        let slow = ParquetSource::new(Input::in_store(Arc::new(slow), path), options()).leasing(leases.clone());
        let fast = ParquetSource::new(dir.path(), options()).leasing(leases);
        let (slow, fast) = tokio::join!(windows(vec![slow], ids), windows(vec![fast], ids));
        let mut all: Vec<i64> = slow.values().chain(fast.values()).flat_map(|(rows, _)| rows.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..6000).flat_map(|id| [id, id]).collect::<Vec<_>>(), "each row once an epoch");
        found = (slow.len(), fast.len());
        if found.0 < found.1 {
            break;
        }
    }
    assert!(found.0 < found.1, "{} windows by the slow one, {} by the fast one", found.0, found.1);
}

#[tokio::test]
async fn other_data_other_options_and_going_on_are_refused() {
    let dir = folder();
    let options = ReadOptions { window_rows: 100, ..ReadOptions::default() };
    let source = |options: ReadOptions, leases: &Arc<LocalLeases>| {
        ParquetSource::new(dir.path(), options).leasing(Arc::<LocalLeases>::clone(leases))
    };
    let leases = Arc::new(LocalLeases::new(1));
    assert_eq!(windows(vec![source(options.clone(), &leases)], ids).await.len(), 8);
    for other in [
        ReadOptions { window_rows: 50, ..options.clone() },
        ReadOptions { epochs: 2, ..options.clone() },
        ReadOptions { shuffle: true, ..options.clone() },
        ReadOptions { seed: 1, ..options.clone() },
    ] {
        let mut source = source(other, &leases);
        source.open(&cx()).await.unwrap();
        let said = source.next(&cx()).await.unwrap_err().to_string();
        assert!(said.contains("must read the same data with the same options"), "{said}");
    }
    // Options that only change the speed may differ. No lease is left.
    let mut fast = source(ReadOptions { decode_threads: 3, batch_rows: 5, ..options.clone() }, &leases);
    fast.open(&cx()).await.unwrap();
    assert!(fast.next(&cx()).await.unwrap().is_none());
    let outside = Arc::new(Listed(Mutex::new([Lease { epoch: 0, windows: 7..9, term: 0 }].into())));
    let mut source = ParquetSource::new(dir.path(), options).leasing(outside);
    source.open(&cx()).await.unwrap();
    let said = source.next(&cx()).await.unwrap_err().to_string();
    assert!(said.contains("does not lie within"), "{said}");
}

/// Counts what was asked for.
#[derive(Debug)]
struct Counted(LocalLeases, Mutex<usize>);

#[async_trait::async_trait]
impl Leases for Counted {
    async fn next(&self, data: &DataPlan) -> Result<Option<Lease>, Fault> {
        *self.1.lock().unwrap() += 1;
        self.0.next(data).await
    }
}

#[tokio::test]
async fn leases_are_not_hoarded() {
    let dir = folder();
    let leases = Arc::new(Counted(LocalLeases::new(1), Mutex::new(0)));
    let options = ReadOptions {
        window_rows: 10,
        batch_rows: 10,
        read_ahead_bytes: 1,
        decode_ahead_bytes: 1,
        decode_threads: 1,
        ..ReadOptions::default()
    };
    let mut source = ParquetSource::new(dir.path(), options).leasing(leases.clone());
    source.open(&cx()).await.unwrap();
    for taken in 1..=75 {
        assert_eq!(source.next(&cx()).await.unwrap().unwrap().batch.num_rows(), 10);
        let asked = *leases.1.lock().unwrap();
        // Beside what was taken: one decoded, one fetched.
        assert!(asked <= taken + 2, "{asked} leases asked for when {taken} windows were taken");
    }
    assert!(source.next(&cx()).await.unwrap().is_none());
}

/// Writes one row group of `n` rows in pages of 1,000, with or without the places of the pages. One column has a dictionary.
fn one_group(path: &std::path::Path, n: usize, index: bool) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(n))
        .set_data_page_row_count_limit(1_000)
        .set_write_batch_size(500)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled("word".into(), true)
        .set_offset_index_disabled(!index)
        .set_statistics_enabled(if index { EnabledStatistics::Page } else { EnabledStatistics::None })
        .build();
    let batch = rows(0, n);
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Reads the file in windows of `window_rows`, each a lease of its own. Returns the windows and the bytes that were fetched.
async fn leased_one_by_one(file: &std::path::Path, window_rows: usize) -> (Windows, u64) {
    let (store, path) = Stores::default().open(&file.to_string_lossy()).unwrap();
    let counted = ThrottledStore::new(store, Duration::ZERO, None);
    let counts = counted.counts();
    let options = ReadOptions { window_rows, batch_rows: 700, ..ReadOptions::default() };
    let source = ParquetSource::new(Input::in_store(Arc::new(counted), path), options);
    let found = windows(vec![source.leasing(Arc::new(LocalLeases::new(1)))], ids).await;
    (found, counts.bytes())
}

#[test]
fn a_lease_within_a_row_group_fetches_its_own_pages() {
    run(async {
        const ROWS: usize = 900_000;
        let dir = tempfile::tempdir().unwrap();
        let (with, without) = (dir.path().join("with.parquet"), dir.path().join("without.parquet"));
        one_group(&with, ROWS, true);
        one_group(&without, ROWS, false);
        let size = std::fs::metadata(&with).unwrap().len();
        // Eleven leases, which end in the middle of pages.
        let (found, bytes) = leased_one_by_one(&with, 83_333).await;
        let all: Vec<i64> = found.values().flat_map(|(rows, _)| rows.clone()).collect();
        assert!(found.len() == 11 && all.iter().copied().eq(0..ROWS as i64), "{} windows", found.len());
        assert!(bytes < size * 5 / 4, "{bytes} bytes of {size}");
        // Without the places of its pages a row group is fetched for every lease, and the rows are the same.
        let (same, bytes) = leased_one_by_one(&without, 83_333).await;
        assert_eq!(same, found);
        assert!(bytes > 10 * std::fs::metadata(&without).unwrap().len(), "{bytes}");
    });
}
