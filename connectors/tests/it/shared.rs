//! Several sources over one data set: each split goes to one of them, and a slow one gets fewer.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay_actors::Source;
use forebay_connectors::throttle::ThrottledStore;
use forebay_connectors::{Input, ParquetSource, ReadOptions, SharedSplits, store};

use super::cx;
use super::parquet::{rows, write};

async fn ids(mut source: ParquetSource) -> Vec<i64> {
    source.open(&cx(), None).await.unwrap();
    let mut all = Vec::new();
    while let Some(rows) = source.next().await.unwrap() {
        all.extend(rows.batch.column_by_name("row").unwrap().as_primitive::<Int64Type>().values());
    }
    all
}

#[tokio::test]
async fn a_slow_reader_does_not_hold_the_others_back() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &rows(0, 6000), 100);
    let options = || ReadOptions { read_ahead_bytes: 1, epochs: 2, shuffle: true, ..ReadOptions::default() };
    let splits = SharedSplits::new();
    let (inner, path) = store::open(&dir.path().to_string_lossy()).unwrap();
    // 20 ms a split, one at a time; the other's take well under one.
    let slow = ThrottledStore::new(inner, Duration::from_millis(20), None);
    let slow = ParquetSource::new(Input::in_store(Arc::new(slow), path), options()).sharing(&splits);
    let fast = ParquetSource::new(dir.path(), options()).sharing(&splits);
    let (slow, fast) = tokio::join!(ids(slow), ids(fast));
    assert!(slow.len() < fast.len(), "{} rows by the slow one, {} by the fast one", slow.len(), fast.len());
    let mut all = [slow, fast].concat();
    all.sort_unstable();
    assert_eq!(all, (0..6000).flat_map(|id| [id, id]).collect::<Vec<_>>(), "each row once an epoch");
}
