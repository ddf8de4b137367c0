//! Snapshots of the shards of a table: one moment of all of them, kept or dropped, while training goes on.

use crate::cluster::*;

use std::collections::BTreeMap;

use forebay_actors::{Domain, Fault, Host};
use forebay_ps::remote::Wire;
use forebay_ps::{Route, ShardSnapshot, SnapshotKind, TableClient, start_table};
use futures::FutureExt;

/// Runs `test` against a table of `shards` shards, and stops them.
fn with_table(shards: usize, test: impl AsyncFnOnce(&TableClient)) {
    let host = Host::start("test").unwrap();
    let table = start_table(&host, config(), shards).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(&table));
    drop(table);
    host.stop().unwrap();
}

async fn train(table: &TableClient, steps: std::ops::RangeInclusive<u64>) {
    let mut rows = Vec::new();
    for step in steps {
        let keys = keys(step);
        table.pull(&keys, &mut rows).await.unwrap();
        table.push(&keys, &grads(&keys, &rows), step).await.unwrap();
    }
}

/// The bits of all rows that the snapshots have left, by key. Each shard gives its own keys alone.
async fn read(snapshots: &mut [ShardSnapshot], table: &TableClient) -> BTreeMap<u64, Vec<u32>> {
    let mut all = BTreeMap::new();
    let shards = snapshots.len();
    for snapshot in snapshots {
        let mut rows = 0;
        loop {
            let block = snapshot.next(97).await.unwrap();
            if block.keys.is_empty() {
                break;
            }
            rows += block.keys.len() as u64;
            let values = block.weights.chunks(DIM).zip(block.state.chunks(table.state_dim()));
            for (key, (weights, state)) in block.keys.iter().zip(values) {
                assert_eq!(Route::new(shards).shard(*key), snapshot.shard());
                all.insert(*key, [bits(weights), bits(state)].concat());
            }
        }
        assert_eq!(rows, snapshot.rows());
    }
    all
}

async fn keep(snapshots: Vec<ShardSnapshot>) {
    for snapshot in snapshots {
        snapshot.keep().await.unwrap();
    }
}

fn internal<T>(result: Result<T, Fault>, word: &str) {
    let fault = result.map(drop).unwrap_err();
    assert_eq!(fault.domain, Domain::Internal, "{fault}");
    assert!(fault.to_string().contains(word), "{fault}");
}

#[test]
fn all_shards_give_the_rows_of_the_begin_while_training_goes_on() {
    for shards in [1, 3] {
        with_table(shards, async |table| {
            train(table, 1..=5).await;
            let then: BTreeMap<_, _> = dump(table).await.into_iter().collect();
            let mut full = table.begin_snapshot(SnapshotKind::Full).await.unwrap();
            train(table, 4..=9).await;
            assert!(read(&mut full, table).await == then);
            keep(full).await;
            // Keys of the steps since the begin, and no others.
            let now: BTreeMap<_, _> = dump(table).await.into_iter().collect();
            let changed: Vec<u64> = (4..=9).flat_map(keys).collect();
            let mut changes = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
            let rows = read(&mut changes, table).await;
            assert!(rows == now.into_iter().filter(|(key, _)| changed.contains(key)).collect());
            assert!(rows.len() < table.stats().await.unwrap().rows() as usize);
            keep(changes).await;
            let none = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
            assert!(none.iter().all(|snapshot| snapshot.rows() == 0));
            keep(none).await;
        });
    }
}

#[test]
fn a_snapshot_that_is_dropped_ends_and_its_rows_are_changes_again() {
    with_table(2, async |table| {
        train(table, 1..=2).await;
        for snapshot in table.begin_snapshot(SnapshotKind::Full).await.unwrap() {
            snapshot.keep_unread().await.unwrap();
        }
        train(table, 3..=3).await;
        let mut first = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
        let rows: Vec<u64> = first.iter().map(ShardSnapshot::rows).collect();
        // One at a time; a refused begin ends nothing.
        internal(table.begin_snapshot(SnapshotKind::Full).await, "another one is open");
        first[0].next(10).await.unwrap();
        drop(first);
        // The next call of any kind ends it.
        let held = table.stats().await.unwrap().bytes();
        train(table, 3..=3).await;
        // 500 rows have 46 kB. A shard also remembers the keys of its last pulls.
        let more = table.stats().await.unwrap().bytes() - held;
        assert!(more < 12_000, "a dropped snapshot saves rows: {more} bytes");
        let again = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
        assert_eq!(again.iter().map(ShardSnapshot::rows).collect::<Vec<_>>(), rows);
        // Not read, so not kept.
        for snapshot in again {
            internal(snapshot.keep().await, "were not read");
        }
        let mut last = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
        assert_eq!(last.iter().map(ShardSnapshot::rows).collect::<Vec<_>>(), rows);
        read(&mut last, table).await;
        keep(last).await;
    });
}

#[test]
fn a_snapshot_with_a_lost_page_cannot_be_kept() {
    with_table(1, async |table| {
        train(table, 1..=1).await;
        let mut snapshots = table.begin_snapshot(SnapshotKind::Full).await.unwrap();
        let mut only = snapshots.pop().unwrap();
        // A page that the shard answers at once is not lost.
        assert!((0..45).any(|_| only.next(10).now_or_never().is_none()), "the shard answered at once");
        internal(only.next(10).await, "not awaited");
        internal(only.keep().await, "not awaited");
        let again = table.begin_snapshot(SnapshotKind::Changes).await.unwrap();
        assert_eq!(again[0].rows(), 500);
    });
}

#[tokio::test]
async fn a_snapshot_is_refused_for_shards_of_other_processes() {
    let cluster = Cluster::start(2, 1).await;
    let fault = cluster.client(Wire::F32).await.begin_snapshot(SnapshotKind::Full).await.map(drop).unwrap_err();
    assert_eq!(fault.domain, Domain::User, "{fault}");
    assert!(fault.to_string().contains("other processes"), "{fault}");
    cluster.stop().await;
}
